"""Loops that skip the blocks that a mask excludes.

Masks bound the positions that a row sees (analysis/mask_bounds.py). A loop may skip a block that
lies beyond such a bound for every row if the block would change no accumulator. An abstract
execution of the loop's body decides that (analysis/masked_values.py).

If the mask excludes every key of a row, softmax averages the masked scores, so no block may be
skipped. Then the window of the loop names the running maxima that show if a row has seen a key.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from blockbuster_fusion.ir.combiner import MAX, MIN
from blockbuster_fusion.ir.expr import Expr, arg, fold, postorder
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.analysis.mask_bounds import (
    Bound,
    Bounds,
    Fact,
    Facts,
    Side,
    Sum,
    Truth,
    bound_expr,
    extreme,
    terms_of,
)
from blockbuster_fusion.nest.analysis.masked_values import (
    ANY,
    FALSE,
    SIZE,
    TRUE,
    Abstract,
    Interval,
    Kept,
    applied,
    assumption,
    contracted,
    number,
    reduced,
)
from blockbuster_fusion.nest.nest import (
    Body,
    Cascade,
    Compute,
    Contract,
    Fill,
    Fold,
    For,
    Index,
    Kernel,
    Last,
    Load,
    Lookup,
    Positions,
    RunningFold,
    Span,
    Statement,
    Store,
    Tile,
    Window,
    walk,
    written,
)
from blockbuster_fusion.nest.rewrite import FreshNames


def skip_masked_blocks(kernel: Kernel) -> Kernel:
    """Narrows loops to the blocks that a mask leaves."""
    return replace(kernel, body=_Narrowing(kernel).body(kernel.body, [], kernel.grid))


class _Narrowing:
    """One kernel while its loops are narrowed."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.names = FreshNames(kernel)
        writes = Counter(tile for s in kernel.statements if (tile := written(s)) is not None)
        self.fixed = {tile for tile, times in writes.items() if times == 1}
        """Tiles that are written once, which accumulators are not."""

    def body(self, body: Body, above: list[Statement], around: tuple[Index, ...]) -> Body:
        """A body whose loops are narrowed; `above` are the statements before it."""
        made: list[Statement] = []
        for statement in body:
            if isinstance(statement, For):
                before = [*above, *made]
                inner = self.body(statement.body, before, (*around, statement.index))
                made += self.narrowed(replace(statement, body=inner), before, around)
            else:
                made.append(statement)
        return tuple(made)

    def narrowed(
        self, loop: For, above: list[Statement], around: tuple[Index, ...]
    ) -> list[Statement]:
        """The loop with a window, after the statements that compute the window's edges."""
        if loop.carried:
            return [loop]  # a block that changes nothing still has its part of a scan
        outside = {t for s in above if (t := written(s)) in self.fixed and t is not None}
        facts = Facts(loop.index, outside, around)
        for statement in (*above, *walk(loop.body)):
            if written(statement) in self.fixed:
                facts.visit(statement)
        masked = _Masked(loop, facts, self.kernel)
        edges: dict[Side, list[Bound]] = {"low": [], "high": []}
        assumed: dict[Tile, None] = {}
        for side, edge in masked.candidates():
            needed = masked.neutral(side, edge)
            if needed is not None:
                edges[side].append(edge)
                assumed.update(dict.fromkeys(needed))
        if not edges["low"] and not edges["high"]:
            return [loop]
        seen = tuple(assumed)
        window = _beside_rows(edges["low"], edges["high"], seen)
        if window is not None:
            if seen and masked.edges_suffice(edges):
                window = replace(window, seen=None)
            return [replace(loop, window=window)]
        statements: list[Statement] = []
        low = self.edge("low", edges["low"], above, statements)
        high = self.edge("high", edges["high"], above, statements)
        return [*statements, replace(loop, window=Window(None, low, high, seen))]

    def edge(
        self, side: Side, edges: list[Bound], above: list[Statement], made: list[Statement]
    ) -> Expr | Tile | None:
        """The first or the last position that some row sees."""
        if not edges:
            return None
        whole = extreme("maximum" if side == "low" else "minimum", edges)
        leaves = terms_of(whole)
        if not leaves:
            return bound_expr(whole, {})
        operands = [x if isinstance(x, Tile) else self.positions(x, above, made) for x in leaves]
        expr = bound_expr(whole, {leaf: arg(i) for i, leaf in enumerate(leaves)})
        spans = tuple(dict.fromkeys(span for tile in operands for span in tile.spans))
        tile = operands[0]
        if expr is not arg(0):
            tile = Tile(self.names.numbered("t"), spans, DType.int64)
            made.append(Compute(tile, expr, tuple(operands)))
        for span in spans:
            left = tuple(s for s in tile.spans if s != span)
            folded = Tile(self.names.numbered("t"), left, DType.int64)
            made.append(Fold(folded, tile, span, MIN if side == "low" else MAX))
            tile = folded
        return tile

    def positions(self, span: Span, above: list[Statement], made: list[Statement]) -> Tile:
        for statement in (*above, *made):
            if isinstance(statement, Positions) and statement.span == span:
                return statement.tile
        tile = Tile(self.names.numbered("t"), (span,) if span.dim.packed else (), DType.int64)
        made.append(Positions(tile, span))
        return tile


def _beside_rows(lows: list[Bound], highs: list[Bound], seen: tuple[Tile, ...]) -> Window | None:
    """The window that moves with the rows, if these bounds are such a window."""
    rows: set[Span] = set()
    moved: list[Expr | None] = []
    for edges in (lows, highs):
        if len(edges) > 1:
            return None
        moved.append(None)
        for edge in edges:
            if not isinstance(edge, Sum) or len(edge.terms) != 1:
                return None
            ((term, times),) = edge.terms
            if not isinstance(term, Span) or times != 1:
                return None
            rows.add(term)
            moved[-1] = edge.rest
    return Window(rows.pop(), moved[0], moved[1], seen) if len(rows) == 1 else None


# --------------------------------------------------------- the effect of a masked block


class _Masked:
    """A loop whose blocks may be masked for every row."""

    def __init__(self, loop: For, facts: Facts, kernel: Kernel) -> None:
        self.loop, self.facts = loop, facts
        body = set(walk(loop.body))
        changed = {t for s in body if (t := written(s)) is not None}
        fills = [s for s in kernel.statements if isinstance(s, Fill) and s not in body]
        self.floors = {s.tile: float(s.value) for s in fills if s.tile in changed}
        """The initial values of the accumulators."""
        self.growing = {
            tile
            for combiner, gathered in loop.gathered
            for at, tile in enumerate(gathered)
            if combiner.combine[at] is Expr("maximum", (arg(at), arg(at + len(gathered))))
        }
        """Accumulators that are running maxima."""

    def computed(self) -> Iterator[Compute]:
        return (s for s in walk(self.loop.body) if isinstance(s, Compute))

    def candidates(self) -> list[tuple[Side, Bound]]:
        """The bounds of the masks in the loop."""
        found: dict[tuple[Side, Bound], None] = {}
        if not self.floors:
            return []
        for statement in self.computed():
            for fact in self.facts.nodes(statement).values():
                for bounds in (fact.yes, fact.no) if isinstance(fact, Truth) else ():
                    for side in ("low", "high"):
                        found.update(dict.fromkeys((side, edge) for edge in bounds.edges(side)))
        return list(found)

    def neutral(self, side: Side, edge: Bound) -> Sequence[Tile] | None:
        """The running maxima that must be above UNSEEN for a loop to skip blocks beyond an edge.

        None if such blocks change an accumulator.
        """
        before: dict[Tile, Abstract] = {
            tile: Kept(tile, floor if tile in self.growing else None)
            for tile, floor in self.floors.items()
        }
        after, beyond = dict(before), _Beyond(self.facts, side, edge)
        if not beyond.run(self.loop.body, after):
            return None
        kept = all(after[tile] == value for tile, value in before.items())
        return tuple(beyond.assumed) if kept else None

    # -------------------------------------------------------------- rows that see nothing

    def edges_suffice(self, edges: Mapping[Side, Sequence[Bound]]) -> bool:
        """True if a row has seen a key whenever its edges leave it some position.

        That is not so if another mask applies as well, or if scores are loaded: they may be masked.
        """
        for statement in self.computed():
            facts = self.facts.nodes(statement)
            for node in postorder(statement.expr):
                if node.op != "where" or not any(_is_low(branch) for branch in node.args[1:]):
                    continue
                fact = facts[node.args[0]]
                if not isinstance(fact, Truth):
                    return False
                bounds = fact.no if _is_low(node.args[1]) else fact.yes
                if not bounds.exact or not _within(bounds, edges):
                    return False
        return not self._loads_scores()

    def _loads_scores(self) -> bool:
        """True if scores are loaded, rather than computed by a contraction."""
        makers: dict[Tile, list[Statement]] = {}
        for statement in walk(self.loop.body):
            made = written(statement)
            if made is not None:
                makers.setdefault(made, []).append(statement)
        pending, done = list(self.growing), set(self.growing)
        while pending:
            for maker in makers.get(pending.pop(), []):
                if isinstance(maker, Lookup):
                    return True
                if isinstance(maker, Load):
                    if any(span.at is self.loop.index for span in maker.source.spans):
                        return True
                elif isinstance(maker, Compute | Fold):
                    used = maker.operands if isinstance(maker, Compute) else (maker.operand,)
                    pending += [tile for tile in used if tile not in done]
                    done.update(used)
        return False


def _within(bounds: Bounds, edges: Mapping[Side, Sequence[Bound]]) -> bool:
    return all(edge in edges[side] for side in ("low", "high") for edge in bounds.edges(side))


def _is_low(expr: Expr) -> bool:
    found = number(expr.value) if isinstance(expr.value, int | float) else ANY
    return isinstance(found, Interval) and found.is_masked


@dataclass(frozen=True)
class _Beyond:
    """Abstract execution of a loop's statements on a block that lies beyond an edge for every row.

    `masked_values` has the lattice and the transfer functions.
    """

    facts: Facts
    side: Side
    edge: Bound
    assumed: dict[Tile, None] = field(default_factory=dict)
    """Running maxima that were taken to be above UNSEEN."""

    def run(self, body: Body, state: dict[Tile, Abstract]) -> bool:
        """Follows the statements; False if one has an effect of its own."""
        for statement in body:
            match statement:
                case Store() | Cascade():
                    return False
                case Fill():
                    state[statement.tile] = number(statement.value)
                case Compute():
                    state[statement.tile] = self.value(statement, state)
                case Fold():
                    operand = state.get(statement.operand, ANY)
                    state[statement.tile] = reduced(statement.combiner, operand)
                case Contract(tile=tile):
                    sides = [state.get(t, ANY) for t in (statement.left, statement.right)]
                    state[tile] = contracted(state.get(tile, ANY), *sides)
                case For():
                    if not self.loop(statement, state):
                        return False
                case Load() | Lookup() | Positions() | RunningFold() | Last():
                    state[statement.tile] = ANY
        return True

    def loop(self, loop: For, state: dict[Tile, Abstract]) -> bool:
        """Follows a loop until another iteration changes nothing: what one changes is unknown."""
        while True:
            entered = dict(state)
            if not self.run(loop.body, state):
                return False
            changed = [tile for tile in entered if state[tile] != entered[tile]]
            if not changed:
                return True
            state.update(entered)
            state.update(dict.fromkeys(changed, ANY))

    def value(self, statement: Compute, state: Mapping[Tile, Abstract]) -> Abstract:
        """The value of an expression, given those of tiles."""
        facts = self.facts.nodes(statement)

        def step(node: Expr, operands: Sequence[Abstract]) -> Abstract:
            return self.masked(facts[node]) or self.node(node, operands, statement, state)

        return fold(statement.expr, step)

    def masked(self, fact: Fact) -> Abstract | None:
        """The truth of a mask that the edge bounds; None of other values."""
        if not isinstance(fact, Truth):
            return None
        if self.edge in fact.yes.edges(self.side):
            return FALSE
        return TRUE if self.edge in fact.no.edges(self.side) else None

    def node(
        self,
        node: Expr,
        operands: Sequence[Abstract],
        statement: Compute,
        state: Mapping[Tile, Abstract],
    ) -> Abstract:
        match node:
            case Expr(op="arg"):
                return state.get(statement.operands[node.index], ANY)
            case Expr(op="const", value=int() | float() as value):
                return number(value)
            case Expr(op="size"):
                return SIZE
        needed = assumption(node.op, operands)
        if needed is not None:
            self.assumed[needed] = None
        return applied(node, operands)
