"""Blocks that a mask leaves out: a loop need not visit what changes none of its accumulators.

Masks bound the positions that rows see (masks.py). A block that lies beyond such an edge for every
row may be skipped if each accumulator then keeps its value. That is worked out on abstract values:
a number is zero, one, hugely negative, an accumulator as it was, or anything. Where it holds only
for rows that have seen something, the window says which accumulators tell.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import count

from blockbuster_fusion.ir.combiner import ADD, MAX, MIN
from blockbuster_fusion.ir.expr import Expr, arg, fold, postorder
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.nest import (
    UNSEEN,
    Body,
    Compute,
    Contract,
    Fill,
    Fold,
    For,
    Index,
    Kernel,
    Load,
    Lookup,
    Positions,
    Span,
    Statement,
    Store,
    Tile,
    Window,
    tiles,
    walk,
    written,
)
from blockbuster_fusion.nest.passes.mask_bounds import (
    Bounds,
    Edge,
    Facts,
    Side,
    Sum,
    Truth,
    edge_expr,
    extreme,
    terms_of,
)

HUGE = 2 * UNSEEN
"""What masks fill in is below this, so that e^(masked - score) is 0."""
LARGEST_SIZE = 1e12


def skip_masked_blocks(kernel: Kernel) -> Kernel:
    """The kernel with loops narrowed to the blocks that a mask leaves."""
    return replace(kernel, body=_Narrowing(kernel).body(kernel.body, [], kernel.grid))


class _Narrowing:
    """One kernel while its loops are narrowed."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        taken = {tile.name for s in kernel.statements for tile in tiles(s)}
        taken |= {buffer.name for buffer in kernel.buffers}
        self.names = (name for i in count(1) if (name := f"t{i}") not in taken)
        writes = [tile for s in kernel.statements if (tile := written(s)) is not None]
        self.fixed = {tile for tile in writes if writes.count(tile) == 1}
        """Tiles that are written once: no accumulators."""

    def body(self, body: Body, above: list[Statement], around: tuple[Index, ...]) -> Body:
        """A body whose loops are narrowed; `above` is what has been computed before it."""
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
        """The loop with a window, after what computes the window's edges."""
        outside = {t for s in above if (t := written(s)) in self.fixed and t is not None}
        facts = Facts(loop.index, outside, around)
        for statement in (*above, *walk(loop.body)):
            if written(statement) in self.fixed:
                facts.visit(statement)
        masked = _Masked(loop, facts, self.kernel)
        edges: dict[Side, list[Edge]] = {"low": [], "high": []}
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
            if seen and masked.tells(edges):
                window = replace(window, seen=None)
            return [replace(loop, window=window)]
        statements: list[Statement] = []
        low = self.edge("low", edges["low"], above, statements)
        high = self.edge("high", edges["high"], above, statements)
        return [*statements, replace(loop, window=Window(None, low, high, seen))]

    def edge(
        self, side: Side, edges: list[Edge], above: list[Statement], made: list[Statement]
    ) -> Expr | Tile | None:
        """The first or the last position that some row sees."""
        if not edges:
            return None
        whole = extreme("maximum" if side == "low" else "minimum", edges)
        leaves = terms_of(whole)
        if not leaves:
            return edge_expr(whole, {})
        operands = [x if isinstance(x, Tile) else self.positions(x, above, made) for x in leaves]
        expr = edge_expr(whole, {leaf: arg(i) for i, leaf in enumerate(leaves)})
        spans = tuple(dict.fromkeys(span for tile in operands for span in tile.spans))
        tile = operands[0]
        if expr is not arg(0):
            tile = Tile(next(self.names), spans, DType.int64)
            made.append(Compute(tile, expr, tuple(operands)))
        for span in spans:
            left = tuple(s for s in tile.spans if s != span)
            folded = Tile(next(self.names), left, DType.int64)
            made.append(Fold(folded, tile, span, MIN if side == "low" else MAX))
            tile = folded
        return tile

    def positions(self, span: Span, above: list[Statement], made: list[Statement]) -> Tile:
        for statement in (*above, *made):
            if isinstance(statement, Positions) and statement.span == span:
                return statement.tile
        tile = Tile(next(self.names), (span,) if span.dim.packed else (), DType.int64)
        made.append(Positions(tile, span))
        return tile


def _beside_rows(lows: list[Edge], highs: list[Edge], seen: tuple[Tile, ...]) -> Window | None:
    """The window as one that moves with the rows, if it is one."""
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


# -------------------------------------------------------------- what a masked block does


@dataclass(frozen=True, slots=True)
class _Kept:
    """An accumulator as it was before the block."""

    tile: Tile


@dataclass(frozen=True, slots=True)
class _Low:
    """A number that is at most this, and that is hugely negative."""

    most: float


class _Known(Enum):
    """What else is known of a number."""

    ZERO = 0
    ONE = 1
    FALSE = 2
    TRUE = 3
    ANY = 4


_Abstract = _Kept | _Low | _Known
_ZERO, _ONE, _ANY = _Known.ZERO, _Known.ONE, _Known.ANY
_FALSE, _TRUE = _Known.FALSE, _Known.TRUE
_NOTHING = _Low(float("-inf"))


def _low(most: float) -> _Abstract:
    return _Low(most) if most <= HUGE else _ANY


def _number(value: float) -> _Abstract:
    if isinstance(value, bool):
        return _TRUE if value else _FALSE
    return _ZERO if value == 0 else _ONE if value == 1 else _low(value)


class _Masked:
    """A loop, and what its blocks do where a mask holds nowhere."""

    def __init__(self, loop: For, facts: Facts, kernel: Kernel) -> None:
        self.loop, self.facts = loop, facts
        body = set(walk(loop.body))
        changed = {t for s in body if (t := written(s)) is not None}
        fills = [s for s in kernel.statements if isinstance(s, Fill) and s not in body]
        self.floors = {s.tile: s.value for s in fills if s.tile in changed}
        """The accumulators with what they begin with."""
        self.growing = {
            tile
            for combiner, gathered in loop.gathered
            for at, tile in enumerate(gathered)
            if combiner.combine[at] is Expr("maximum", (arg(at), arg(at + len(gathered))))
        }
        """Accumulators that are a maximum."""

    def computed(self) -> Iterator[Compute]:
        return (s for s in walk(self.loop.body) if isinstance(s, Compute))

    def candidates(self) -> list[tuple[Side, Edge]]:
        """The edges that masks in the loop have."""
        found: dict[tuple[Side, Edge], None] = {}
        if not self.floors:
            return []
        for statement in self.computed():
            for fact in self.facts.nodes(statement).values():
                for bounds in (fact.yes, fact.no) if isinstance(fact, Truth) else ():
                    for side in ("low", "high"):
                        found.update(dict.fromkeys((side, edge) for edge in bounds.edges(side)))
        return list(found)

    def neutral(self, side: Side, edge: Edge) -> Sequence[Tile] | None:
        """What must be above UNSEEN, if blocks beyond the edge leave the accumulators as they were.

        None where they do not.
        """
        state: dict[Tile, _Abstract] = {tile: _Kept(tile) for tile in self.floors}
        beyond = _Beyond(self, side, edge)
        if not beyond.run(self.loop.body, state):
            return None
        kept = all(state[tile] == _Kept(tile) for tile in self.floors)
        return tuple(beyond.assumed) if kept else None

    # ------------------------------------------------------- who else leaves a row nothing

    def tells(self, edges: Mapping[Side, Sequence[Edge]]) -> bool:
        """Whether a row has seen something if its edges leave it some position.

        Not if something else masks as well, or if scores come from memory: a mask may be in them.
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
        return not self._from_memory()

    def _from_memory(self) -> bool:
        """Whether what is compared with the accumulators was loaded, and not multiplied first."""
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


def _within(bounds: Bounds, edges: Mapping[Side, Sequence[Edge]]) -> bool:
    return all(edge in edges[side] for side in ("low", "high") for edge in bounds.edges(side))


def _is_low(expr: Expr) -> bool:
    return isinstance(expr.value, int | float) and isinstance(_number(expr.value), _Low)


@dataclass
class _Beyond:
    """A run of a loop's statements on a block that lies beyond an edge, for every row."""

    masked: _Masked
    side: Side
    edge: Edge
    assumed: dict[Tile, None] = field(default_factory=dict)
    """Accumulators that were taken to be above UNSEEN."""

    def run(self, body: Body, state: dict[Tile, _Abstract]) -> bool:
        """Follows the statements; False where one has an effect of its own."""
        for statement in body:
            match statement:
                case Store():
                    return False
                case Fill():
                    state[statement.tile] = _number(statement.value)
                case Compute():
                    state[statement.tile] = self.value(statement, state)
                case Fold():
                    state[statement.tile] = _folded(statement, state.get(statement.operand, _ANY))
                case Contract():
                    sides = (statement.left, statement.right)
                    if not any(state.get(side) is _ZERO for side in sides):
                        state[statement.tile] = _ANY
                case For():
                    entered = dict(state)
                    if not self.run(statement.body, state):
                        return False
                    for tile in entered:
                        if state[tile] != entered[tile]:
                            state[tile] = _ANY
                case _:
                    made = written(statement)
                    if made is not None:
                        state[made] = _ANY
        return True

    def value(self, statement: Compute, state: Mapping[Tile, _Abstract]) -> _Abstract:
        facts = self.masked.facts.nodes(statement)

        def step(node: Expr, inner: list[_Abstract]) -> _Abstract:
            fact = facts[node]
            if isinstance(fact, Truth) and self.edge in fact.yes.edges(self.side):
                return _FALSE
            if isinstance(fact, Truth) and self.edge in fact.no.edges(self.side):
                return _TRUE
            if node.op == "arg":
                return state.get(statement.operands[node.index], _ANY)
            return _number(node.number) if node.op == "const" else self.applied(node, inner)

        return fold(statement.expr, step)

    def applied(self, node: Expr, inner: Sequence[_Abstract]) -> _Abstract:
        lows = [x for x in inner if isinstance(x, _Low)]
        match node.op:
            case "where":
                return _chosen(*inner)
            case "cast":
                if node.value is DType.bool_ or inner[0] not in (_FALSE, _TRUE):
                    return inner[0]
                return _ZERO if inner[0] is _FALSE else _ONE
            case "mul" | "div":
                return _product(node, inner)
            case "add":
                if len(lows) == 2:
                    return _low(lows[0].most + lows[1].most)
                if lows:
                    return _low(lows[0].most / 2)  # what is added is far less
                if _ZERO in inner:
                    return inner[1] if inner[0] is _ZERO else inner[0]
            case "sub":
                return self.difference(*inner)
            case "exp" | "exp2":
                return _ZERO if lows else _ONE if inner[0] is _ZERO else _ANY
            case "maximum":
                return self.larger(*inner)
            case "minimum" if lows:
                return _low(min(low.most for low in lows))
            case "minimum" | "and_" | "or_" | "not_" | "eq" | "ne" | "gt" | "isinf":
                return _truth(node.op, inner)
        return _ANY

    def difference(self, a: _Abstract, b: _Abstract) -> _Abstract:
        if a == b and isinstance(a, _Kept):
            return _ZERO
        if isinstance(a, _Low) and isinstance(b, _Kept) and b.tile in self.masked.growing:
            if a == _NOTHING and self.masked.floors[b.tile] > a.most:
                return a
            self.assumed[b.tile] = None
            return _low(a.most / 2)
        return a if b is _ZERO else _ANY

    def larger(self, a: _Abstract, b: _Abstract) -> _Abstract:
        if isinstance(a, _Low) and isinstance(b, _Low):
            return _low(max(a.most, b.most))
        if isinstance(b, _Kept):
            a, b = b, a
        if isinstance(a, _Kept) and a.tile in self.masked.growing:
            if b is _FALSE:
                return a
            if isinstance(b, _Low):
                if b.most > self.masked.floors[a.tile]:
                    self.assumed[a.tile] = None
                return a
        return _truth("or_", [a, b])


def _folded(statement: Fold, inner: _Abstract) -> _Abstract:
    if statement.combiner is ADD:
        return inner if inner is _ZERO else _ANY
    is_extreme = statement.combiner in (MAX, MIN)
    return inner if is_extreme and (inner in (_FALSE, _TRUE) or isinstance(inner, _Low)) else _ANY


def _chosen(condition: _Abstract, a: _Abstract, b: _Abstract) -> _Abstract:
    if condition in (_FALSE, _TRUE):
        return a if condition is _TRUE else b
    if isinstance(a, _Low) and isinstance(b, _Low):
        return _Low(max(a.most, b.most))
    return a if a == b else _ANY


def _truth(op: str, inner: Sequence[_Abstract]) -> _Abstract:
    """What is known of truths, and of what is compared with -inf."""
    match op, inner:
        case "not_", [a]:
            return _TRUE if a is _FALSE else _FALSE if a is _TRUE else _ANY
        case "isinf", [a]:
            return _TRUE if a == _NOTHING else _ANY
        case "eq" | "ne" | "gt", [a, b]:
            return (_TRUE if op == "eq" else _FALSE) if a == b == _NOTHING else _ANY
        case "or_", [a, b]:
            if _TRUE in (a, b):
                return _TRUE
            return b if a is _FALSE else a if b is _FALSE else _ANY
        case "and_" | "minimum", [a, b]:
            if _FALSE in (a, b):
                return _FALSE
            return b if a is _TRUE else a if b is _TRUE else _ANY
    return _ANY


def _product(node: Expr, inner: Sequence[_Abstract]) -> _Abstract:
    if node.op == "mul" and (_ZERO in inner or _FALSE in inner):
        return _ZERO
    if node.op == "mul" and _ONE in inner:
        return inner[1] if inner[0] is _ONE else inner[0]
    for x, factor in zip(inner, reversed(node.args), strict=True):
        if not isinstance(x, _Low) or (node.op == "div" and x is not inner[0]):
            continue
        sizes = _range(factor)
        if sizes is not None and sizes[0] > 0:
            return _low(x.most * sizes[0] if node.op == "mul" else x.most / sizes[1])
    return _ANY


def _range(expr: Expr) -> tuple[float, float] | None:
    """Between which numbers an expression of sizes lies, where none of its parts is negative."""
    return fold(expr, _range_of_node)


def _range_of_node(
    node: Expr, inner: list[tuple[float, float] | None]
) -> tuple[float, float] | None:
    known = [x for x in inner if x is not None]
    if node.op == "size":
        return 1.0, LARGEST_SIZE
    if node.op == "const":
        return (float(node.number), float(node.number)) if node.number >= 0 else None
    if node.op == "pow" and inner[0] is not None and node.args[1].op == "const":
        power = node.args[1].number
        ends = sorted(x**power for x in inner[0]) if inner[0][0] > 0 else [0.0, 0.0]
        return ends[0], ends[1]
    if len(known) < len(inner):
        return None
    match node.op, known:
        case "sqrt", [(low, high)]:
            return low**0.5, high**0.5
        case "add", [a, b]:
            return a[0] + b[0], a[1] + b[1]
        case "mul", [a, b]:
            return a[0] * b[0], a[1] * b[1]
        case "div", [a, b] if b[0] > 0:
            return a[0] / b[1], a[1] / b[0]
    return None
