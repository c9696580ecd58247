"""Blocks that a mask leaves out: a loop need not visit what changes none of its accumulators.

Masks are arithmetic on positions. From their comparisons, those of a loop's axis with the axis of
some rows give a window of positions that a row sees. A block outside every row's window is masked
throughout; it may be skipped if each accumulator then keeps its value. That is worked out on
abstract values: a number is zero, one, hugely negative, an accumulator as it was, or anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from blockbuster_fusion.codegen.nest import (
    Body,
    Compute,
    Contract,
    Fill,
    Fold,
    For,
    Index,
    Kernel,
    Positions,
    Span,
    Statement,
    Store,
    Tile,
    Window,
    walk,
    written,
)
from blockbuster_fusion.codegen.rewrite import rebuilt
from blockbuster_fusion.ir.combiner import ADD, MAX
from blockbuster_fusion.ir.expr import Expr, const, postorder

HUGE = -1e20
"""Scores are above this, so that e^(masked - score) is 0; what masks fill in is below it."""


def skipping(kernel: Kernel) -> Kernel:
    """The kernel with loops narrowed to the blocks that a mask leaves."""
    facts = _Facts()
    for statement in kernel.statements:
        facts.visit(statement)

    def rewrite(body: Body) -> Body:
        return tuple(_narrowed(s, facts, kernel) if isinstance(s, For) else s for s in body)

    return replace(kernel, body=rebuilt(kernel.body, rewrite))


def _narrowed(loop: For, facts: "_Facts", kernel: Kernel) -> For:
    inside = [tile for s in walk(loop.body) if (tile := written(s)) in facts.masks]
    widest_first = sorted(inside, key=lambda tile: -len(facts.masks[tile]))
    for rows in facts.rows_of(loop.index):
        for mask in widest_first:
            edges = _edges(facts.masks[mask], loop.index, rows)
            if edges is not None and _is_neutral(loop, mask, kernel):
                return replace(loop, window=Window(rows, *edges))
    return loop


# ------------------------------------------------------------------- what masks say


@dataclass(frozen=True, slots=True)
class _Affine:
    """A sum of positions, each times a whole number, and of sizes and numbers."""

    terms: tuple[tuple[Span, int], ...]
    rest: Expr

    def plus(self, other: "_Affine", factor: int = 1) -> "_Affine":
        terms = dict(self.terms)
        for span, count in other.terms:
            terms[span] = terms.get(span, 0) + factor * count
        left = tuple((span, count) for span, count in terms.items() if count)
        rest = _sum(self.rest, other.rest) if factor == 1 else _difference(self.rest, other.rest)
        return _Affine(left, rest)


def _sum(a: Expr, b: Expr) -> Expr:
    if isinstance(a.value, int) and isinstance(b.value, int):
        return const(a.value + b.value)
    return b if a is const(0) else a if b is const(0) else a + b


def _difference(a: Expr, b: Expr) -> Expr:
    if isinstance(a.value, int) and isinstance(b.value, int):
        return const(a.value - b.value)
    return a if b is const(0) else a - b


_Atoms = tuple[_Affine, ...]
"""A mask that holds where each of some sums is at most 0."""


class _Facts:
    """What tiles are as sums of positions, or as masks."""

    def __init__(self) -> None:
        self.sums: dict[Tile, _Affine] = {}
        self.masks: dict[Tile, _Atoms] = {}

    def visit(self, statement: Statement) -> None:
        if isinstance(statement, Positions):
            self.sums[statement.tile] = _Affine(((statement.span, 1),), const(0))
        elif isinstance(statement, Compute):
            found = self.expr(statement.expr, statement.operands)
            if isinstance(found, _Affine):
                self.sums[statement.tile] = found
            elif found:
                self.masks[statement.tile] = found

    def expr(self, expr: Expr, operands: Sequence[Tile]) -> "_Affine | _Atoms | None":
        made: dict[Expr, _Affine | _Atoms | None] = {}
        for node in postorder(expr):
            inner = [made[a] for a in node.args]
            if node.op == "arg":
                assert isinstance(node.value, int)
                tile = operands[node.value]
                made[node] = self.sums.get(tile) or self.masks.get(tile)
            elif node.op == "size" or (node.op == "const" and type(node.value) is int):
                made[node] = _Affine((), node)
            else:
                made[node] = _combined(node.op, inner)
        return made[expr]

    def rows_of(self, index: Index) -> list[Span]:
        """The spans with which a mask compares the positions of a loop."""
        found: dict[Span, None] = {}
        for atoms in self.masks.values():
            for atom in atoms:
                spans = [span for span, _ in atom.terms]
                if len(spans) == 2 and any(span.at is index for span in spans):
                    found.update(dict.fromkeys(s for s in spans if s.at is not index))
        return list(found)


def _combined(op: str, inner: "Sequence[_Affine | _Atoms | None]") -> "_Affine | _Atoms | None":
    sums = [x for x in inner if isinstance(x, _Affine)]
    if len(sums) == 2:
        a, b = sums
        one = _Affine((), const(1))
        match op:
            case "add":
                return a.plus(b)
            case "sub":
                return a.plus(b, -1)
            case "le":
                return (a.plus(b, -1),)
            case "lt":
                return (a.plus(b, -1).plus(one),)
            case "ge":
                return (b.plus(a, -1),)
            case "gt":
                return (b.plus(a, -1).plus(one),)
    if op == "neg" and len(sums) == 1:
        return _Affine((), const(0)).plus(sums[0], -1)
    masks = [x for x in inner if isinstance(x, tuple)]
    if op == "and_" and len(masks) == 2:
        return (*masks[0], *masks[1])
    return None


def _edges(atoms: _Atoms, index: Index, rows: Span) -> tuple[Expr | None, Expr | None] | None:
    """The window that a mask gives a row, if it says nothing else.

    With another condition a row might see nothing of its window, and then what is masked counts.
    """
    low: Expr | None = None
    high: Expr | None = None
    for atom in atoms:
        counts = {("own" if s.at is index else s): count for s, count in atom.terms}
        if counts == {"own": 1, rows: -1} and high is None:
            high = _difference(const(0), atom.rest)
        elif counts == {"own": -1, rows: 1} and low is None:
            low = atom.rest
        else:
            return None
    return low, high


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
    ANY = 3


_Abstract = _Kept | _Low | _Known
_ZERO, _ONE, _FALSE, _ANY = _Known.ZERO, _Known.ONE, _Known.FALSE, _Known.ANY


def _low(most: float) -> _Abstract:
    return _Low(most) if most <= HUGE else _ANY


def _is_neutral(loop: For, mask: Tile, kernel: Kernel) -> bool:
    """Whether a block in which the mask holds nowhere leaves every accumulator as it was."""
    body = set(walk(loop.body))
    before = {s.tile for s in kernel.statements if isinstance(s, Fill) and s not in body}
    accumulators = before & {t for s in body if (t := written(s)) is not None}
    state: dict[Tile, _Abstract] = {tile: _Kept(tile) for tile in accumulators}
    if not accumulators or _masks_otherwise(loop.body, mask):
        return False
    if not _run(loop.body, state, mask):
        return False
    return all(state[tile] == _Kept(tile) for tile in accumulators)


def _masks_otherwise(body: Body, mask: Tile) -> bool:
    """Whether something else masks as well: a row might then see nothing of its window."""
    for statement in walk(body):
        if not isinstance(statement, Compute):
            continue
        for node in postorder(statement.expr):
            if node.op != "where" or not any(_is_low(branch) for branch in node.args[1:]):
                continue
            condition = node.args[0]
            by_mask = condition.op == "arg" and isinstance(condition.value, int)
            if not by_mask or statement.operands[condition.value] is not mask:  # type: ignore[index]
                return True
    return False


def _is_low(expr: Expr) -> bool:
    return isinstance(expr.value, int | float) and isinstance(_number(expr.value), _Low)


def _run(body: Body, state: dict[Tile, _Abstract], mask: Tile) -> bool:
    """Follows the statements; False where one has an effect of its own."""
    for statement in body:
        match statement:
            case Store():
                return False
            case Fill():
                state[statement.tile] = _number(statement.value)
            case Compute():
                state[statement.tile] = (
                    _FALSE if statement.tile is mask else _value(statement, state)
                )
            case Fold():
                inner = state.get(statement.operand, _ANY)
                zero = statement.combiner is ADD and inner is _ZERO
                low = statement.combiner is MAX and isinstance(inner, _Low)
                state[statement.tile] = inner if zero or low else _ANY
            case Contract():
                sides = (statement.left, statement.right)
                if not any(state.get(side) is _ZERO for side in sides):
                    state[statement.tile] = _ANY
            case For():
                entered = dict(state)
                if not _run(statement.body, state, mask):
                    return False
                for tile in entered:
                    if state[tile] != entered[tile]:
                        state[tile] = _ANY
            case _:
                made = written(statement)
                if made is not None:
                    state[made] = _ANY
    return True


def _number(value: float) -> _Abstract:
    return _ZERO if value == 0 else _low(value)


def _value(statement: Compute, state: dict[Tile, _Abstract]) -> _Abstract:
    made: dict[Expr, _Abstract] = {}
    for node in postorder(statement.expr):
        if node.op == "arg":
            assert isinstance(node.value, int)
            made[node] = state.get(statement.operands[node.value], _ANY)
        elif node.op == "const" and isinstance(node.value, int | float):
            made[node] = _number(node.value)
        else:
            made[node] = _applied(node, [made[a] for a in node.args])
    return made[statement.expr]


def _applied(node: Expr, inner: Sequence[_Abstract]) -> _Abstract:
    lows = [x for x in inner if isinstance(x, _Low)]
    match node.op:
        case "where":
            return inner[2] if inner[0] is _FALSE or inner[1] == inner[2] else _ANY
        case "cast":
            return _ZERO if inner[0] is _FALSE else inner[0]
        case "mul":
            return _product(node, inner)
        case "add":
            if len(lows) == 1:
                return _low(lows[0].most / 2)  # what is added is far less
            if _ZERO in inner:
                return inner[1] if inner[0] is _ZERO else inner[0]
        case "sub":
            if inner[0] == inner[1] and isinstance(inner[0], _Kept):
                return _ZERO
            if isinstance(inner[0], _Low) and not isinstance(inner[1], _Low):
                return _low(inner[0].most / 2)
            return inner[0] if inner[1] is _ZERO else _ANY
        case "exp" | "exp2":
            return _ZERO if lows else _ONE if inner[0] is _ZERO else _ANY
        case "maximum":
            if len(lows) == 2:
                return _low(max(x.most for x in lows))
            if lows:
                return inner[1] if isinstance(inner[0], _Low) else inner[0]
    return _ANY


def _product(node: Expr, inner: Sequence[_Abstract]) -> _Abstract:
    if _ZERO in inner or _FALSE in inner:
        return _ZERO
    if _ONE in inner:
        return inner[1] if inner[0] is _ONE else inner[0]
    for x, factor in zip(inner, reversed(node.args), strict=True):
        number = factor.value
        if isinstance(x, _Low) and factor.op == "const" and isinstance(number, int | float):
            return _low(x.most * number) if number > 0 else _ANY
    return _ANY
