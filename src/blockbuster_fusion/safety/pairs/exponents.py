"""Exponents as formal sums of atoms with factors, so that cancellation is exact."""

import math
from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import TypeVar

from blockbuster_fusion.ir.expr import Expr, call, const
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.safety.guards import finite_or_zero

Exponent = tuple[tuple[Expr, float], ...]
"""A formal sum: atoms, each with its factor."""

T = TypeVar("T")
LOG2 = math.log(2)
NOTHING = const(float("-inf"))
"""The exponent of zero."""
LARGEST = 3.4028235e38
"""Shared exponents lie between -LARGEST and LARGEST, so that their differences are numbers.

An empty or infinite row then has a finite exponent. The bounds are those of float32, because a mask
may be as low as that.
"""
GREATEST = {DType.float64: 1.7976931348623157e308}
"""The bounds of shared exponents of other dtypes than float32."""


def plus(a: Exponent, b: Exponent, factor: float = 1.0) -> Exponent:
    """a + factor·b, without atoms that cancel."""
    made = dict(a)
    for atom, count in b:
        made[atom] = made.get(atom, 0.0) + factor * count
    return tuple((atom, count) for atom, count in made.items() if count != 0)


def times(a: Exponent, factor: float) -> Exponent:
    return plus((), a, factor)


def over(a: Exponent, divisor: float) -> Exponent:
    """a / divisor; the factor is exactly 1 if they are equal."""
    return tuple((atom, factor / divisor) for atom, factor in a)


def bounded(exponent: Expr, dtype: DType = DType.float32, share: float = 1.0) -> Expr:
    """A shared exponent, bounded to the finite range, or to a part of it."""
    largest = share * GREATEST.get(dtype, LARGEST)
    return call("maximum", call("minimum", exponent, largest), -largest)


def power(total: Expr, *, of_two: bool) -> Expr:
    """e^t, or 2^t."""
    return call("exp2" if of_two else "exp", total)


def is_of_two(exponent: Sequence[tuple[object, float]]) -> bool:
    """True if e^t is a power of two: every factor in t is log 2, times a power of two."""
    return bool(exponent) and all(
        math.frexp(abs(factor) / LOG2)[0] == 0.5 for _, factor in exponent
    )


def signed(origin: Expr) -> tuple[Expr, int]:
    """An origin without its minus signs, and its sign: atoms of x and of -x cancel too."""
    sign = 1
    while origin.op == "neg":
        (origin,), sign = origin.args, -sign
    return origin, sign


Addends = list[tuple[Expr, float]]
"""Atoms, each with its factor, in the order in which they are added."""


def met(above: Addends, below: Addends) -> tuple[list[Addends], Addends]:
    """Pairs of atoms that cancel, one from above and one from below, and the remaining atoms."""
    above, below = list(above), list(below)
    made: list[Addends] = []
    while above and below:
        (a, f), (b, g) = above.pop(), below.pop()
        size = min(abs(f), abs(g))
        made.append([(a, math.copysign(size, f)), (b, math.copysign(size, g))])
        if abs(f) > size:
            above.append((a, f - math.copysign(size, f)))
        if abs(g) > size:
            below.append((b, g - math.copysign(size, g)))
    return made, [*above, *below]


def summed(parts: Sequence[tuple[Expr, float]]) -> Expr:
    """A sum of atoms with factors; positive ones come first."""
    factors = {abs(factor) for _, factor in parts}
    if len(parts) > 1 and len(factors) == 1 and factors != {1.0}:
        return summed([(atom, math.copysign(1, f)) for atom, f in parts]) * factors.pop()
    made: Expr | None = None
    for atom, factor in sorted(parts, key=lambda part: part[1] < 0):
        part = atom if abs(factor) == 1 else atom * abs(factor)
        if made is None:
            made = part if factor > 0 else -part
        else:
            made = made + part if factor > 0 else made - part
    return const(0.0) if made is None else made


def compensated(parts: Sequence[tuple[Expr, float]]) -> tuple[Expr, Expr | None]:
    """A sum of atoms with factors, and its rounding error, which is far smaller.

    The rounding error of a single atom is None.
    """
    if len(parts) == 1:
        return summed(parts), None
    total: Expr | None = None
    lost: list[Expr] = []
    for unit, group in in_exact_units(parts):
        part: Expr | None = None
        for atom, factor in group:
            multiple = atom if abs(factor) == 1 else atom * abs(factor)
            if part is None:
                part = multiple if factor > 0 else -multiple
                continue
            error = _rounding(part, multiple if factor > 0 else -multiple)
            lost.append(error if unit == 1 else error * unit)
            part = part + multiple if factor > 0 else part - multiple
        assert part is not None
        part = part if unit == 1 else part * unit
        lost += [] if total is None else [_rounding(total, part)]
        total = part if total is None else total + part
    assert total is not None
    error = finite_or_zero(reduce(add, lost))
    if len(parts) == 2:
        return total, error
    return total + error, finite_or_zero(_rounding(total, error))


Scaled = tuple[float, list[tuple[T, float]]]
"""A unit, and atoms with factors that are multiples of it."""


def in_exact_units(parts: Sequence[tuple[T, float]]) -> list[Scaled[T]]:
    """Atoms in groups, each with a unit: factors are powers of two times it, so exact."""
    groups: dict[float, list[tuple[T, float]]] = {}
    for atom, factor in parts:
        groups.setdefault(math.frexp(abs(factor))[0], []).append((atom, factor))
    made = []
    for group in groups.values():
        unit = max(abs(factor) for _, factor in group)
        made.append((unit, [(atom, factor / unit) for atom, factor in group]))
    return made


def room_for(parts: Sequence[tuple[object, float]]) -> float:
    """A power of two by which to divide the addends of a sum, so that it does not overflow."""
    return 2.0 ** math.ceil(math.log2(sum(abs(factor) for _, factor in parts)))


def _rounding(a: Expr, b: Expr) -> Expr:
    """The exact rounding error of a sum of two numbers (Knuth's two-sum)."""
    total = a + b
    second = total - a
    return (a - (total - second)) + (b - second)


def is_nothing(value: Expr, exponent: Expr) -> Expr:
    """The test that a significand is 0 and its exponent is not infinite: the value is then 0."""
    return Expr("eq", (value, const(0.0))) & (exponent < const(float("inf")))


def log_of_size(value: Expr, *, of_two: bool = False) -> Expr:
    """The logarithm of the absolute value of a significand."""
    return call("log2" if of_two else "log", call("maximum", call("abs", value), 1e-30))
