"""Bounds on the positions of a loop at which a mask is true.

A mask consists of comparisons of whole numbers. A comparison of the loop's position with a loop
invariant (positions of rows, sizes, numbers that were loaded) bounds the position on one side.

The lattice. An element of Bounds stands for a set of positions, and a larger one for a larger set.
ANYWHERE is the top, NOWHERE the bottom. A conjunction has the bounds of both masks, a disjunction
the wider ones. A mask that is no such comparison may be true anywhere. So a mask is true only
within its bounds, but it may be false there, unless they are exact.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from blockbuster_fusion.ir.expr import Expr, call, const, fold_nodes
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.nest import Compute, Index, Positions, Span, Statement, Tile

# ------------------------------------------------------------------------------- sums


@dataclass(frozen=True, slots=True)
class FloorQuotient:
    """A sum, divided by a number and rounded down."""

    inner: "Sum"
    by: int


SumTerm = Span | Tile | FloorQuotient
"""A term of a sum: a position of an axis, a whole number that was computed, or a quotient."""


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum of terms, each times a whole number, and of sizes and numbers."""

    terms: tuple[tuple[SumTerm, int], ...]
    rest: Expr

    def plus(self, other: "Sum", factor: int = 1) -> "Sum":
        terms = dict(self.terms)
        for term, count in other.terms:
            terms[term] = terms.get(term, 0) + factor * count
        left = tuple((term, count) for term, count in terms.items() if count)
        return Sum(left, _total(self.rest, _times(other.rest, factor)))

    def times(self, factor: int) -> "Sum":
        return ZERO.plus(self, factor)


def _total(a: Expr, b: Expr) -> Expr:
    if isinstance(a.value, int) and isinstance(b.value, int):
        return const(a.value + b.value)
    if b.op == "neg":
        return a - b.args[0]
    return b if a is const(0) else a if b is const(0) else a + b


def _times(a: Expr, factor: int) -> Expr:
    if isinstance(a.value, int):
        return const(a.value * factor)
    if a.op == "sub" and factor == -1:
        return a.args[1] - a.args[0]
    return a if factor == 1 else -a if factor == -1 else a * factor


def constant_sum(value: int) -> Sum:
    return Sum((), const(value))


ZERO, ONE = constant_sum(0), constant_sum(1)


@dataclass(frozen=True, slots=True)
class Extreme:
    """The least or the largest of some bounds."""

    op: Literal["minimum", "maximum"]
    parts: tuple["Bound", ...]


Bound = Sum | Extreme
Side = Literal["low", "high"]


def extreme(op: Literal["minimum", "maximum"], parts: Collection[Bound]) -> Bound:
    """The least or the largest of some bounds, without those that are known to be neither."""
    best: dict[object, Bound] = {}
    for part in parts:
        key, own = _place(part)
        if key in best and own is not None:
            other = _place(best[key])[1]
            assert other is not None
            if (own < other) != (op == "minimum"):
                continue
        best[key] = part
    left = tuple(best.values())
    return left[0] if len(left) == 1 else Extreme(op, left)


def _place(edge: Bound) -> tuple[object, int | None]:
    """The part that bounds share if they differ by a constant, and the constant."""
    if isinstance(edge, Sum) and isinstance(edge.rest.value, int):
        return frozenset(edge.terms), edge.rest.value
    return edge, None


# ----------------------------------------------------------------------------- bounds


@dataclass(frozen=True, slots=True)
class Bounds:
    """The positions that are at least each of `lows` and at most each of `highs`.

    `nowhere` stands for no position. `exact` says that the mask is true at all of them.
    """

    lows: tuple[Bound, ...] = ()
    highs: tuple[Bound, ...] = ()
    nowhere: bool = False
    exact: bool = False

    def edges(self, side: Side) -> tuple[Bound, ...]:
        return self.lows if side == "low" else self.highs

    def both(self, other: "Bounds") -> "Bounds":
        """The positions at which two masks are both true."""
        if self.nowhere or other.nowhere:
            return NOWHERE
        lows, highs = ((*self.edges(s), *other.edges(s)) for s in ("low", "high"))
        exact = self.exact and other.exact
        return Bounds(tuple(dict.fromkeys(lows)), tuple(dict.fromkeys(highs)), exact=exact)

    def either(self, other: "Bounds") -> "Bounds":
        """The positions at which one of two masks is true, or both are."""
        if self.nowhere or other.nowhere:
            return other if self.nowhere else self
        lows: tuple[Bound, ...] = ()
        highs: tuple[Bound, ...] = ()
        if self.lows and other.lows:
            lows = (extreme("minimum", [extreme("maximum", b.lows) for b in (self, other)]),)
        if self.highs and other.highs:
            highs = (extreme("maximum", [extreme("minimum", b.highs) for b in (self, other)]),)
        return Bounds(lows, highs)


ANYWHERE = Bounds()
NOWHERE = Bounds(nowhere=True, exact=True)


@dataclass(frozen=True, slots=True)
class Truth:
    """The positions at which a mask is true, and those at which it is false."""

    yes: Bounds = ANYWHERE
    no: Bounds = ANYWHERE


Fact = Sum | Truth | None


class Facts:
    """Tiles as functions of the position of a loop: sums of positions, or masks.

    `outside` are the tiles that were computed before the loop and do not change in it. `around` are
    the variables of the loops around it.
    """

    def __init__(self, index: Index, outside: Collection[Tile], around: Collection[Index]) -> None:
        self.index, self.outside, self.around = index, outside, around
        self.known: dict[Tile, Fact] = {}
        self._nodes: dict[Compute, Mapping[Expr, Fact]] = {}

    def visit(self, statement: Statement) -> None:
        if isinstance(statement, Positions):
            self.known[statement.tile] = Sum(((statement.span, 1),), const(0))
        elif isinstance(statement, Compute):
            self.known[statement.tile] = self.nodes(statement)[statement.expr]

    def of(self, tile: Tile) -> Fact:
        found = self.known.get(tile)
        if found is None and tile in self.outside and tile.dtype in _WHOLE:
            return Sum(((tile, 1),), const(0))
        return found

    def nodes(self, statement: Compute) -> Mapping[Expr, Fact]:
        """The sum or the mask that each part of an expression is.

        The statements that compute its operands must have been visited.
        """
        if statement not in self._nodes:
            self._nodes[statement] = self._worked_out(statement)
        return self._nodes[statement]

    def _worked_out(self, statement: Compute) -> Mapping[Expr, Fact]:
        def step(node: Expr, inner: list[Fact]) -> Fact:
            if node.op == "arg":
                return self.of(statement.operands[node.index])
            if node.op == "size" or (node.op == "const" and type(node.value) is int):
                return Sum((), node)
            if node.op == "const" and type(node.value) is bool:
                return Truth(no=NOWHERE) if node.value else Truth(yes=NOWHERE)
            return self._combined(node, inner)

        return fold_nodes(statement.expr, step)

    def _combined(self, node: Expr, inner: Sequence[Fact]) -> Fact:
        sums = [x for x in inner if isinstance(x, Sum)]
        if len(sums) == len(inner):
            return self._of_sums(node, sums)
        truths = [x if isinstance(x, Truth) else Truth() for x in inner]
        match node.op, truths:
            case "not_", [a]:
                return Truth(a.no, a.yes)
            case "and_", [a, b]:
                return Truth(a.yes.both(b.yes), a.no.either(b.no))
            case "or_", [a, b]:
                return Truth(a.yes.either(b.yes), a.no.both(b.no))
            case "where", [c, a, b] if isinstance(inner[1], Truth) or isinstance(inner[2], Truth):
                yes = c.yes.both(a.yes).either(c.no.both(b.yes))
                return Truth(yes, c.yes.both(a.no).either(c.no.both(b.no)))
            case "cast", [a] if node.value is DType.bool_ and isinstance(inner[0], Truth):
                return a
        return None

    def _of_sums(self, node: Expr, sums: Sequence[Sum]) -> Fact:
        match node.op, sums:
            case "add", [a, b]:
                return a.plus(b)
            case "sub", [a, b]:
                return a.plus(b, -1)
            case "neg", [a]:
                return a.times(-1)
            case "mul", [a, b] if _value(a) is not None or _value(b) is not None:
                factor = _value(a)
                return a.times(_value(b) or 0) if factor is None else b.times(factor)
            case "floordiv", [a, b] if (by := _value(b)) is not None and by > 0:
                return Sum(((FloorQuotient(a, by), 1),), const(0))
            case "cast", [a] if node.value in _WHOLE:
                return a
            case "le", [a, b]:
                return self._compared(a, b)
            case "ge", [a, b]:
                return self._compared(b, a)
            case "lt", [a, b]:
                return self._compared(a.plus(ONE), b)
            case "gt", [a, b]:
                return self._compared(b.plus(ONE), a)
            case "eq" | "ne", [a, b]:
                equal = self._compared(a, b).yes.both(self._compared(b, a).yes)
                return Truth(equal) if node.op == "eq" else Truth(no=equal)
        return None

    def _compared(self, a: Sum, b: Sum) -> Truth:
        """The mask `a <= b`."""
        return Truth(self._at_most_0(a.plus(b, -1)), self._at_most_0(b.plus(a, -1).plus(ONE)))

    def _at_most_0(self, total: Sum) -> Bounds:
        """The positions at which a sum is at most 0, if the sum has the loop's position once."""
        own = [(term, count) for term, count in total.terms if self._mentions(term)]
        if len(own) != 1 or abs(own[0][1]) != 1:
            return ANYWHERE
        ((term, count),) = own
        others = Sum(tuple(part for part in total.terms if part[0] != term), total.rest)
        edge = others.times(-1) if count == 1 else others
        if isinstance(term, FloorQuotient):
            if not self._is_plain(term.inner):
                return ANYWHERE
            # q <= e and q >= e of the rounded quotient, for the position itself
            edge = edge.times(term.by).plus(constant_sum(term.by - 1 if count == 1 else 0))
            moved = tuple(part for part in term.inner.terms if not self._mentions(part[0]))
            edge = edge.plus(Sum(moved, term.inner.rest), -1)
        if not all(self._is_invariant(term) for term, _ in edge.terms):
            return ANYWHERE
        return Bounds(highs=(edge,), exact=True) if count == 1 else Bounds((edge,), exact=True)

    def _mentions(self, term: SumTerm) -> bool:
        if isinstance(term, FloorQuotient):
            return any(self._mentions(inner) for inner, _ in term.inner.terms)
        return isinstance(term, Span) and term.at is self.index

    def _is_plain(self, total: Sum) -> bool:
        """True if a sum has the loop's position once, with factor 1."""
        own = [part for part in total.terms if self._mentions(part[0])]
        return len(own) == 1 and isinstance(own[0][0], Span) and own[0][1] == 1

    def _is_invariant(self, term: SumTerm) -> bool:
        """True if a term is known before the loop."""
        if isinstance(term, FloorQuotient):
            return all(self._is_invariant(inner) for inner, _ in term.inner.terms)
        if isinstance(term, Span):
            return isinstance(term.at, int) or term.at in self.around
        return term in self.outside


_WHOLE = frozenset({DType.int32, DType.int64})


def _value(total: Sum) -> int | None:
    """The number that a sum is, if it is constant."""
    value = total.rest.value
    return value if not total.terms and type(value) is int else None


# -------------------------------------------------------------------------- computing


def bound_expr(edge: Bound, leaf: Mapping[SumTerm, Expr]) -> Expr:
    """A bound as an expression, given expressions for the positions and tiles in it."""
    if isinstance(edge, Extreme):
        made = bound_expr(edge.parts[0], leaf)
        for part in edge.parts[1:]:
            made = call(edge.op, made, bound_expr(part, leaf))
        return made
    total: Expr | None = None
    for term, count in sorted(edge.terms, key=lambda part: part[1] < 0):
        if isinstance(term, FloorQuotient):
            part_expr = call("floordiv", bound_expr(term.inner, leaf), const(term.by))
        else:
            part_expr = leaf[term]
        if abs(count) != 1:
            part_expr = part_expr * abs(count)
        if total is None:
            total = part_expr if count > 0 else -part_expr
        else:
            total = total + part_expr if count > 0 else total - part_expr
    if total is None:
        return edge.rest
    if edge.rest is const(0):
        return total
    value = edge.rest.value
    return total - const(-value) if type(value) is int and value < 0 else total + edge.rest


def terms_of(edge: Bound) -> list[Span | Tile]:
    """The positions and tiles in a bound."""
    if isinstance(edge, Extreme):
        found = [term for part in edge.parts for term in terms_of(part)]
    else:
        found = []
        for term, _ in edge.terms:
            found += terms_of(term.inner) if isinstance(term, FloorQuotient) else [term]
    return list(dict.fromkeys(found))
