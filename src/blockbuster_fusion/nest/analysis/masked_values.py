"""Abstract values: what is known of numbers in a block that a mask leaves out for every row.

The lattice. An abstract value stands for a set of numbers, and a larger one for a larger set:

                         ANY                     every number
          /               |           \\
    Interval(lo, hi)  TRUE  FALSE   Kept(tile)   lo <= x <= hi; a truth; an accumulator as it was
          |
    Interval(c, c)                               a known number: ZERO, ONE, -inf

Intervals are ordered by inclusion; `lo` may be -inf, `hi` is below inf. The join of two intervals
is the interval around both. The join of any other two different values is ANY. Kept is the value
that an accumulator had before the block; of a running maximum, `least` is a number that it is
never below.

Each transfer function gives, for abstract operands, a value that holds the result for all numbers
in them. Three assumptions are made on data:

- They are finite, so that 0 times a number that is not known is 0.
- A number that is added to a masked score is below SCORE_LIMIT; masked scores are below MASKED.
- A running maximum is above -SCORE_LIMIT after a row has seen a score. `assumption` says where a
  transfer function relies on that, so that a kernel can check it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from blockbuster_fusion.ir.combiner import ADD, MAX, MIN, Combiner
from blockbuster_fusion.ir.expr import Expr
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.nest import UNSEEN, Tile

SCORE_LIMIT = -UNSEEN
"""Scores are between minus this and this."""
MASKED = -2 * SCORE_LIMIT
"""Masks fill in numbers that are at most this, so that e^(masked - score) is 0."""
LARGEST_SIZE = 1e12
"""The longest axis."""
LARGEST_POWER = 4
"""The largest exponent of a power that is followed."""
NO_EXPONENTIAL = -1e4
"""e^x and 2^x are 0 in every dtype for x up to this."""
ROUNDING = 1 / 64
"""More than the relative error of an operation in any dtype."""
TINY, HUGE = 1e-37, 3e38
"""Numbers beyond these may underflow to 0, or overflow to an infinity, in float32."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Numbers between two bounds."""

    low: float
    high: float

    @property
    def is_masked(self) -> bool:
        """True for numbers that only a mask fills in."""
        return self.high <= MASKED


@dataclass(frozen=True, slots=True)
class Kept:
    """The value that an accumulator had before the block."""

    tile: Tile
    least: float | None = None
    """A number that a running maximum is never below; None for other accumulators."""


class Known(Enum):
    """Truths, and the top of the lattice."""

    FALSE = 0
    TRUE = 1
    ANY = 2


Abstract = Interval | Kept | Known
FALSE, TRUE, ANY = Known.FALSE, Known.TRUE, Known.ANY
ZERO, ONE = Interval(0.0, 0.0), Interval(1.0, 1.0)
MINUS_INFINITY = Interval(-math.inf, -math.inf)
SIZE = Interval(1.0, LARGEST_SIZE)


def number(value: float) -> Abstract:
    """The abstract value of a number or a truth."""
    if isinstance(value, bool):
        return TRUE if value else FALSE
    return Interval(float(value), float(value)) if value < math.inf else ANY


def join(a: Abstract, b: Abstract) -> Abstract:
    """The least value above two."""
    if isinstance(a, Interval) and isinstance(b, Interval):
        return Interval(min(a.low, b.low), max(a.high, b.high))
    return a if a == b else ANY


def _interval(low: float, high: float) -> Abstract:
    """The numbers between two bounds; ANY if there is no upper bound."""
    if math.isnan(low + high) or high >= HUGE:
        return ANY
    return Interval(low if low > -HUGE else -math.inf, high)


def _rounded(*ends: float) -> Abstract:
    """An interval around computed numbers, wide enough for the rounding of the kernel."""
    if any(map(math.isnan, ends)):
        return ANY
    low, high = min(ends), max(ends)
    below, above = (abs(x) * ROUNDING + TINY if math.isfinite(x) else 0.0 for x in (low, high))
    return _interval(low - below, high + above)


# ---------------------------------------------------------------- transfer functions


def _add(a: Abstract, b: Abstract) -> Abstract:
    if ZERO in (a, b):
        return b if a == ZERO else a
    if isinstance(b, Interval) and not isinstance(a, Interval):
        a, b = b, a
    match a, b:
        case Interval(), Interval():
            return _rounded(a.low + b.low, a.high + b.high)
        case Interval(is_masked=True), _:
            return _rounded(-math.inf, a.high + SCORE_LIMIT)
    return ANY


def _subtract(a: Abstract, b: Abstract) -> Abstract:
    match a, b:
        case Kept(), Kept() if a == b:
            return ZERO
        case _, Interval() if b == ZERO:
            return a
        case Interval(), Interval() if math.isfinite(b.low):
            return _rounded(a.low - b.high, a.high - b.low)
        case Interval(is_masked=True), Kept(least=float() as least):
            if a == MINUS_INFINITY and least > -math.inf:
                return a
            return _rounded(-math.inf, a.high + SCORE_LIMIT)
    return ANY


def _negative(a: Abstract) -> Abstract:
    return _interval(-a.high, -a.low) if isinstance(a, Interval) else ANY


def _multiply(a: Abstract, b: Abstract) -> Abstract:
    if {ZERO, FALSE} & {a, b}:
        is_finite = not any(isinstance(x, Interval) and x.low == -math.inf for x in (a, b))
        return ZERO if is_finite else ANY
    if ONE in (a, b):
        return b if a == ONE else a
    if isinstance(a, Interval) and isinstance(b, Interval):
        return _rounded(*(x * y for x in (a.low, a.high) for y in (b.low, b.high)))
    return ANY


def _divide(a: Abstract, b: Abstract) -> Abstract:
    if isinstance(a, Interval) and isinstance(b, Interval) and b.low > 0:
        return _rounded(*(x / y for x in (a.low, a.high) for y in (b.low, b.high)))
    return ANY


def _square_root(a: Abstract) -> Abstract:
    if isinstance(a, Interval) and a.low >= 0:
        return _rounded(a.low**0.5, a.high**0.5)
    return ANY


def _power(a: Abstract, b: Abstract) -> Abstract:
    exponent = b.low if isinstance(b, Interval) and b.low == b.high else math.inf
    if isinstance(a, Interval) and a.low > 0 and abs(exponent) <= LARGEST_POWER:
        return _rounded(a.low**exponent, a.high**exponent)
    return ANY


def _exponential(a: Abstract) -> Abstract:
    if isinstance(a, Interval) and a.high <= NO_EXPONENTIAL:
        return ZERO
    return ONE if a == ZERO else ANY


def _maximum(a: Abstract, b: Abstract) -> Abstract:
    match (b, a) if isinstance(b, Kept) else (a, b):
        case Interval() as one, Interval() as other:
            return Interval(max(one.low, other.low), max(one.high, other.high))
        case Kept(least=float() as least) as kept, Interval() as other:
            return kept if other.high <= least or other.is_masked else ANY
    return _either(a, b)


def _minimum(a: Abstract, b: Abstract) -> Abstract:
    intervals = [x for x in (a, b) if isinstance(x, Interval)]
    if len(intervals) == 2:
        return Interval(min(x.low for x in intervals), min(x.high for x in intervals))
    if intervals and ANY in (a, b):
        return Interval(-math.inf, intervals[0].high)
    return _both(a, b)


def _where(condition: Abstract, a: Abstract, b: Abstract) -> Abstract:
    if condition in (FALSE, TRUE):
        return a if condition is TRUE else b
    return join(a, b)


def _opposite(a: Abstract) -> Abstract:
    return TRUE if a is FALSE else FALSE if a is TRUE else ANY


def _either(a: Abstract, b: Abstract) -> Abstract:
    if TRUE in (a, b):
        return TRUE
    return b if a is FALSE else a if b is FALSE else ANY


def _both(a: Abstract, b: Abstract) -> Abstract:
    if FALSE in (a, b):
        return FALSE
    return b if a is TRUE else a if b is TRUE else ANY


def _equal(a: Abstract, b: Abstract) -> Abstract:
    return TRUE if a == b == MINUS_INFINITY else ANY


def _unequal(a: Abstract, b: Abstract) -> Abstract:
    return _opposite(_equal(a, b))


def _infinite(a: Abstract) -> Abstract:
    return TRUE if a == MINUS_INFINITY else ANY


def _converted(a: Abstract, dtype: DType) -> Abstract:
    """A value as another dtype."""
    match a:
        case Known.FALSE | Known.TRUE:
            return a if dtype is DType.bool_ else number(float(a.value))
        case Interval() if a in (ZERO, ONE):
            return number(bool(a.low)) if dtype is DType.bool_ else a
        case Interval(is_masked=True) if dtype.is_float:
            return Interval(-math.inf, a.high)
        case Interval() if dtype.is_float and dtype is not DType.float16:  # it overflows early
            return _rounded(a.low, a.high)
        case Kept() if a.tile.dtype is dtype:
            return a
    return ANY


TRANSFER: Mapping[str, Callable[..., Abstract]] = {
    "add": _add,
    "sub": _subtract,
    "neg": _negative,
    "mul": _multiply,
    "div": _divide,
    "sqrt": _square_root,
    "pow": _power,
    "exp": _exponential,
    "exp2": _exponential,
    "maximum": _maximum,
    "minimum": _minimum,
    "where": _where,
    "not_": _opposite,
    "or_": _either,
    "and_": _both,
    "eq": _equal,
    "ne": _unequal,
    "gt": _unequal,
    "isinf": _infinite,
}


def reduced(combiner: Combiner, a: Abstract) -> Abstract:
    """A tile reduced along an axis, each of whose elements has a value."""
    if combiner is ADD:
        return a if a == ZERO else ANY
    return a if combiner in (MAX, MIN) and isinstance(a, Interval | Known) else ANY


def contracted(total: Abstract, left: Abstract, right: Abstract) -> Abstract:
    """An accumulator after a contraction was added to it."""
    return total if ZERO in (left, right) else ANY


def applied(node: Expr, operands: Sequence[Abstract]) -> Abstract:
    """The value of an operator of an expression, whose leaves are known."""
    if isinstance(node.value, DType):
        return _converted(operands[0], node.value)
    return TRANSFER[node.op](*operands) if node.op in TRANSFER else ANY


def assumption(op: str, operands: Sequence[Abstract]) -> Tile | None:
    """The running maximum that must be above -SCORE_LIMIT for `applied` to hold."""
    if op not in ("sub", "maximum"):
        return None
    match operands:
        case [Interval(is_masked=True) as low, Kept(least=float() as least) as kept]:
            pass
        case [Kept(least=float() as least) as kept, Interval(is_masked=True) as low] if op != "sub":
            pass
        case _:
            return None
    is_safe = low == MINUS_INFINITY and least > -math.inf if op == "sub" else low.high <= least
    return None if is_safe else kept.tile
