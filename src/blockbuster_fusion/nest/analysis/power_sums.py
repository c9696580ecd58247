"""Loops that sum numbers, and the squares of their distances from a center, as norms do.

A *power sum* adds up u + d or (u + d)² over the elements of an axis. The loop computes u from what
it loads. The shift d is the same for all elements and known before the loop, as minus the mean is.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from blockbuster_fusion.ir.combiner import ADD, Combiner
from blockbuster_fusion.ir.expr import Expr, arg, arguments, postorder, rewrite, substitute
from blockbuster_fusion.nest.nest import (
    Body,
    Compute,
    Fold,
    For,
    Kernel,
    Load,
    Span,
    Statement,
    Tile,
    written,
)
from blockbuster_fusion.nest.rewrite import all_read, all_written

SQUARES = (arg(0) ** 2, arg(0) * arg(0), arg(0) ** 2.0)


@dataclass(frozen=True)
class PowerSum:
    """An accumulator of a loop, which adds up a power of shifted elements."""

    tile: Tile
    power: int
    shifted: Expr
    """The shifted element, u + d: argument 0 is u, the others are `operands`."""
    operands: tuple[Tile, ...]
    """The tiles that u is shifted by, from before the loop."""
    folds: tuple[Fold, ...]
    """The folds of a block, in their order."""

    @property
    def is_plain(self) -> bool:
        """True for the sum of the elements themselves."""
        return self.power == 1 and self.shifted is arg(0)


@dataclass(frozen=True)
class PowerSums:
    """A loop all of whose accumulators are power sums of the same elements."""

    at: int
    """The place of the loop in the kernel's body."""
    loop: For
    element: tuple[Expr, tuple[object, ...]]
    """The elements: an expression of what is loaded, alike for loops that load the same."""
    folded: tuple[object, ...]
    """The axes that are folded, alike for loops that fold the same."""
    sums: tuple[PowerSum, ...]

    @property
    def plain(self) -> PowerSum | None:
        """The sum of the elements themselves, if there is one."""
        return next((s for s in self.sums if s.is_plain), None)


def about_center(kernel: Kernel, at: int) -> tuple[PowerSums, ...]:
    """The loop at a place that sums elements, and those after it that sum powers about a center.

    The center depends on the sum, as a mean does. There are none if no other loop does so.
    """
    first = _power_sums(kernel, at)
    plain = None if first is None else first.plain
    if first is None or plain is None or len(first.sums) > 1 or not _is_whole(first):
        return ()
    found = [first]
    for place in range(at + 1, len(kernel.body)):
        other = _power_sums(kernel, place)
        if other is None or (other.element, other.folded) != (first.element, first.folded):
            continue
        known = _depending(kernel.body[:place], plain.tile)
        if all(_is_about_center(own, plain, known) for own in other.sums):
            found.append(other)
    return tuple(found) if len(found) > 1 else ()


def _is_whole(found: PowerSums) -> bool:
    """True if blocks are folded along the loop's axis and along whole axes."""
    spans = [fold.span for own in found.sums for fold in own.folds]
    along = [span for span in spans if span.at is found.loop.index and span.each == 1]
    return len(along) == 1 and all(span.dim.unit for span in spans if span is not along[0])


def _is_about_center(own: PowerSum, plain: PowerSum, known: set[Tile]) -> bool:
    """True if powers are summed about a center that depends on the sum of the elements."""
    is_alike = set(own.tile.spans) == set(plain.tile.spans) and own.tile.dtype is plain.tile.dtype
    return is_alike and not known.isdisjoint(own.operands)


def _depending(body: Body, tile: Tile) -> set[Tile]:
    """A tile, and those that are computed from it."""
    found = {tile}
    for statement in body:
        if not found.isdisjoint(all_read(statement)):
            found |= all_written(statement)
    return found


def _power_sums(kernel: Kernel, at: int) -> PowerSums | None:
    loop = kernel.body[at]
    if not isinstance(loop, For) or not loop.gathered or loop.share or loop.window:
        return None
    if loop.first or loop.carried or not all(isinstance(s, _SIMPLE) for s in loop.body):
        return None
    return _Reader(at, loop).power_sums()


_SIMPLE = Load | Compute | Fold


class _Reader:
    """Reads the accumulators of a loop."""

    def __init__(self, at: int, loop: For) -> None:
        self.at, self.loop = at, loop
        self.makers: dict[Tile, Statement] = {}
        """The statement that makes each tile."""
        self.updates: dict[Tile, list[Compute]] = {}
        self.loaded: list[Load] = []
        self.outer: list[Tile] = []
        self.accumulators = {tile for _, some in loop.gathered for tile in some}
        self.is_written_once = True
        for s in loop.body:
            tile = written(s)
            if tile in self.accumulators and isinstance(s, Compute):
                self.updates.setdefault(tile, []).append(s)
            elif tile is not None:
                self.is_written_once &= tile not in self.makers and tile not in all_read(s)
                self.makers[tile] = s

    def power_sums(self) -> PowerSums | None:
        if not self.is_written_once:
            return None
        found: list[tuple[PowerSum, Expr, tuple[object, ...]]] = []
        for combiner, tiles in self.loop.gathered:
            one = self.power_sum(combiner, tiles)
            if one is None:
                return None
            found.append(one)
        _, element, folded = found[0]
        if any((e, f) != (element, folded) for _, e, f in found):
            return None
        used = sorted(arguments(element))
        loads = tuple(self.form(self.loaded[number]) for number in used)
        numbered = substitute(element, {number: arg(k) for k, number in enumerate(used)})
        sums = tuple(own for own, _, _ in found)
        return PowerSums(self.at, self.loop, (numbered, loads), folded, sums)

    def power_sum(
        self, combiner: Combiner, tiles: tuple[Tile, ...]
    ) -> tuple[PowerSum, Expr, tuple[object, ...]] | None:
        """An accumulator with the elements that it sums and the axes that are folded."""
        updates = self.updates.get(tiles[0], [])
        if combiner is not ADD or len(updates) != 1 or not tiles[0].dtype.is_float:
            return None
        (update,) = updates
        if update.expr is not ADD.combine[0] or update.operands[0] is not tiles[0]:
            return None
        folds = [*self.folds(update.operands[1])][::-1]
        if not folds:
            return None
        term = self.value(folds[0].operand)
        if term is None:
            return None
        power, base = _power(term)
        loaded = {node for node in postorder(base) if node.op == "arg" and node.index >= 0}
        element = _element(base, loaded)
        if element is None or any(t.spans and not self.is_fixed(t, tiles[0]) for t in self.outer):
            return None
        outside = rewrite(base, lambda node: arg(0) if node == element else node)
        numbers = sorted(-n for n in arguments(outside) if n < 0)
        renumbered = {-n: arg(k + 1) for k, n in enumerate(numbers)} | {0: arg(0)}
        operands = tuple(self.outer[n - 1] for n in numbers)
        shifted = substitute(outside, renumbered)
        own = PowerSum(tiles[0], power, shifted, operands, tuple(folds))
        return own, element, tuple(self.place(fold.span) for fold in folds)

    def folds(self, tile: Tile) -> Iterator[Fold]:
        """The folds of a block, the last one first."""
        made = self.makers.get(tile)
        while isinstance(made, Fold) and made.combiner is ADD and made.groups is None:
            yield made
            made = self.makers.get(made.operand)

    def value(self, tile: Tile) -> Expr | None:
        """A tile as an expression of what is loaded (0, 1, …) and of outer tiles (-1, -2, …)."""
        made = self.makers.get(tile)
        match made:
            case None if tile not in self.accumulators:
                if tile not in self.outer:
                    self.outer.append(tile)
                return arg(-1 - self.outer.index(tile))
            case Load():
                forms = [self.form(load) for load in self.loaded]
                if self.form(made) not in forms:
                    self.loaded.append(made)
                    return arg(len(forms))
                return arg(forms.index(self.form(made)))
            case Compute():
                operands = [self.value(t) for t in made.operands]
                known = [x for x in operands if x is not None]
                return substitute(made.expr, known) if len(known) == len(operands) else None
        return None

    def form(self, load: Load) -> object:
        """A load without the loop's variable, so that other loops have the same."""
        spans = tuple(map(self.place, load.source.spans))
        own = tuple(map(self.place, load.tile.spans))
        return load.source.buffer, spans, own, load.tile.dtype, load.beyond

    def place(self, span: Span) -> object:
        """A span without the variable and the dim of the loop."""
        if span.at is self.loop.index:
            return self.loop.index.dim.axis, span.dim.packed, span.each
        return span

    def is_fixed(self, tile: Tile, total: Tile) -> bool:
        """True if an outer tile has no axis that is folded."""
        return set(tile.spans) <= set(total.spans)


def _power(term: Expr) -> tuple[int, Expr]:
    """The power of a term and its base."""
    for square in SQUARES:
        base = term.args[0] if term.op in ("mul", "pow") else term
        if term.op == square.op and substitute(square, [base]) == term:
            return 2, base
    return 1, term


def _element(base: Expr, loaded: set[Expr]) -> Expr | None:
    """The part u of u + d or u - d that depends on what is loaded, and on nothing else."""
    varies: dict[Expr, tuple[bool, bool]] = {}
    for node in postorder(base):
        parts = [varies[a] for a in node.args]
        is_loaded = node in loaded or any(own for own, _ in parts)
        is_outer = (node.op == "arg" and node not in loaded) or any(out for _, out in parts)
        varies[node] = is_loaded, is_outer
    node = base
    while True:
        is_loaded, is_outer = varies[node]
        if not is_loaded:
            return None
        if not is_outer:
            return node
        sides = [varies[a][0] for a in node.args]
        if node.op in ("add", "sub") and sides == [True, False]:
            node = node.args[0]
        elif node.op == "add" and sides == [False, True]:
            node = node.args[1]
        else:
            return None
