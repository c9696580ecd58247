"""Lowering of combiners to statements on accumulators.

A combiner's expressions mix accumulators with incoming values. Parts that vary along fewer axes
than the whole (the two exponentials of a rescaled sum) are computed once, into tiles of their own.

If sums are rescaled by a running exponent t, the incoming values may be computed with the new t in
the first place: S·e^t is the same number for any t. Then no incoming value has to be rescaled, and
a contraction adds straight into its accumulator. This is done if every summand is proportional to
e^-t (analysis/proportional.py).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from blockbuster_fusion.ir.combiner import ADD, ANY, MAX, Combiner
from blockbuster_fusion.ir.expr import Expr, arg, arguments, call, postorder
from blockbuster_fusion.nest.analysis.proportional import proportional
from blockbuster_fusion.nest.nest import (
    Compute,
    Fill,
    Fold,
    Span,
    Statement,
    Tile,
    written,
)
from blockbuster_fusion.nest.rewrite import reading


class TileNames(Protocol):
    """A source of names for tiles: t1, t2, …"""

    def numbered(self, letter: str) -> str: ...


@dataclass
class Accumulation:
    """The accumulators of one combiner, and the statements of an iteration that update them."""

    combiner: Combiner
    tiles: tuple[Tile, ...]
    coming: tuple[Tile, ...]
    names: TileNames
    parts: Mapping[Expr, str] = field(default_factory=dict)
    """The names of parts of the combiner's expressions that have one."""
    updates: list[Statement] = field(default_factory=list)

    @property
    def fills(self) -> list[Statement]:
        return [Fill(t, v) for t, v in zip(self.tiles, self.combiner.identity, strict=True)]

    def name(self, part: Expr) -> str:
        """The name of a part, a new one if it has none."""
        return self.parts.get(part) or self.names.numbered("t")

    def rewritten(self, block: list[Statement]) -> list[Statement]:
        """The block of the loop with the accumulators updated at its end."""
        base = _base(self.combiner)
        early = None if base is None else self._rescaled_early(block, base)
        return [*block, *self.updates] if early is None else early

    def _rescaled_early(self, block: list[Statement], base: str) -> list[Statement] | None:
        exponent, summands = self.coming[0], self.coming[1:]
        if not proportional(block, exponent, summands, base):
            return None
        at = next(i for i, s in enumerate(block) if written(s) is exponent) + 1
        total = self.tiles[0]
        both = call("maximum", arg(0), arg(self.combiner.arity))
        common, scale = (
            Tile(name, exponent.spans, exponent.dtype)
            for name in map(self.name, (both, call(base, arg(0) - both)))
        )
        made: list[Statement] = [
            *block[:at],
            Compute(common, call("maximum", arg(0), arg(1)), (total, exponent)),
            Compute(scale, call(base, arg(0) - arg(1)), (total, common)),
            *(reading(s, exponent, common) for s in block[at:]),
        ]
        for tile, coming in zip(self.tiles[1:], summands, strict=True):
            made.append(Compute(tile, arg(0) * arg(1) + arg(2), (tile, scale, coming)))
        return [*made, Compute(total, arg(0), (common,))]


def _base(combiner: Combiner) -> str | None:
    """The function that rescales sums, `exp` or `exp2`, if one running exponent t is used."""
    size = combiner.arity
    common = call("maximum", arg(0), arg(size))
    for base in ("exp", "exp2"):
        mine, theirs = (call(base, arg(at) - common) for at in (0, size))
        sums = tuple(arg(i) * mine + arg(size + i) * theirs for i in range(1, size))
        if size > 1 and combiner.combine == (common, *sums):
            return base
    return None


def combine(
    combiner: Combiner,
    coming: Sequence[Tile],
    names: TileNames,
    into: tuple[Tile, ...] | None = None,
    parts: Mapping[Expr, str] | None = None,
) -> Accumulation:
    """Accumulators for incoming values, new or given ones, and the statements that update them.

    `parts` has names for some parts of the combiner's expressions.
    """
    tiles = into or tuple(Tile(names.numbered("t"), t.spans, t.dtype) for t in coming)
    made = Accumulation(combiner, tiles, tuple(coming), names, parts or {})
    if combiner is ANY:
        made.updates.append(Compute(tiles[0], arg(0), (coming[0],)))
        return made
    if combiner.arity == 1:
        made.updates.append(Compute(tiles[0], combiner.combine[0], (tiles[0], coming[0])))
        return made
    arguments = (*tiles, *coming)
    shared = _Shared(arguments, made.name)
    finished: list[tuple[Tile, Tile]] = []
    for tile, expr in zip(tiles, combiner.combine, strict=True):
        value, operands = shared.written_out(expr, frozenset(tile.spans))
        if any(t in tiles and t is not tile for t in operands) or _is_needed(expr, combiner):
            new = shared.tile(expr, tile.spans)
            finished.append((tile, new))
        else:
            made.updates.append(Compute(tile, value, operands))
    made.updates[:0] = shared.statements
    made.updates += [Compute(tile, arg(0), (new,)) for tile, new in finished]
    return made


def is_foldable(combiner: Combiner) -> bool:
    """True if a block of tuples can be folded along an axis: `folded` does so."""
    return combiner.arity == 1 or _base(combiner) is not None


def folded(
    combiner: Combiner, blocks: Sequence[Tile], span: Span, names: TileNames
) -> tuple[list[Tile], list[Statement]]:
    """The tiles of a tuple whose blocks are folded along a span, and the statements that do so.

    Sums with a common exponent are first scaled to the largest one.
    """

    def along_rest(tile: Tile) -> Tile:
        rest = tuple(s for s in tile.spans if s != span)
        return Tile(names.numbered("t"), rest, tile.dtype)

    made = [along_rest(tile) for tile in blocks]
    base = _base(combiner)
    if base is None:
        return made, [Fold(made[0], blocks[0], span, combiner)]
    exponents, largest = blocks[0], made[0]
    scale = Tile(names.numbered("t"), exponents.spans, exponents.dtype)
    statements: list[Statement] = [
        Fold(largest, exponents, span, MAX),
        Compute(scale, call(base, arg(0) - arg(1)), (exponents, largest)),
    ]
    for tile, block in zip(made[1:], blocks[1:], strict=True):
        scaled = Tile(names.numbered("t"), block.spans, block.dtype)
        statements.append(Compute(scaled, arg(0) * arg(1), (block, scale)))
        statements.append(Fold(tile, scaled, span, ADD))
    return made, statements


def _is_needed(expr: Expr, combiner: Combiner) -> bool:
    """True if the new value of a component is a part of another's."""
    return any(expr in postorder(other) for other in combiner.combine if other is not expr)


class _Shared:
    """Parts of a combiner's expressions that have tiles of their own."""

    def __init__(self, arguments: Sequence[Tile], name: Callable[[Expr], str]) -> None:
        self.arguments, self.name = arguments, name
        self.tiles: dict[Expr, Tile] = {}
        self.statements: list[Statement] = []

    def spans(self, expr: Expr) -> frozenset[Span]:
        return frozenset(s for i in arguments(expr) for s in self.arguments[i].spans)

    def tile(self, expr: Expr, order: tuple[Span, ...]) -> Tile:
        """The tile that holds a part."""
        if expr not in self.tiles:
            spans = self.spans(expr)
            value, operands = self.written_out(expr, spans)
            used = [self.arguments[n.value] for n in postorder(expr) if isinstance(n.value, int)]
            own = tuple(s for s in order if s in spans)
            tile = Tile(self.name(expr), own, used[0].dtype)
            self.statements.append(Compute(tile, value, operands))
            self.tiles[expr] = tile
        return self.tiles[expr]

    def written_out(self, expr: Expr, spans: frozenset[Span]) -> tuple[Expr, tuple[Tile, ...]]:
        """The expression over tiles; parts that lack some of `spans` have tiles of their own."""
        operands: dict[Tile, int] = {}
        made: dict[Expr, Expr] = {}

        def operand(tile: Tile) -> Expr:
            return arg(operands.setdefault(tile, len(operands)))

        def write(node: Expr) -> Expr:
            if node in made:
                return made[node]
            if node in self.tiles:
                done = operand(self.tiles[node])
            elif node.op == "arg":
                done = operand(self.arguments[node.index])
            elif not node.args:
                done = node
            elif node is not expr and (self.spans(node) < spans or node.op in _COSTLY):
                widest = max(self.arguments, key=lambda t: len(t.spans))
                done = operand(self.tile(node, widest.spans))
            else:
                done = Expr(node.op, tuple(write(a) for a in node.args), node.value)
            made[node] = done
            return done

        return write(expr), tuple(operands)


_COSTLY = ("exp", "exp2", "maximum")
