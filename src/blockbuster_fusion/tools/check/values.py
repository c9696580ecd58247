"""The values of a careful evaluation: arrays with named axes, and polynomials of moments."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockbuster_fusion.ir.axis import Axis

Array = NDArray[Any]
AxisOrder = tuple[Axis, ...]


@dataclass(eq=False, slots=True)
class Moment:
    """The sum of an array over some axes; `factors` are two arrays of which it is the product."""

    axes: AxisOrder
    over: frozenset[Axis]
    whole: "Number"
    factors: tuple["Number", "Number"] | None
    array: Array | None = None
    centred: Array | None = None


MomentProduct = tuple[Moment, ...]
MomentPolynomial = dict[MomentProduct, Fraction]


@dataclass(eq=False, slots=True)
class Number:
    """An array, known or to be computed.

    `sums` is its polynomial of moments, if it has one. `factors` are two arrays of which it is the
    product. `made` is the operator and the operands that it was computed from.
    """

    axes: AxisOrder
    array: Array | None = None
    sums: MomentPolynomial | None = None
    factors: tuple["Number", "Number"] | None = None
    made: tuple[Any, ...] = ()
    constant: Fraction | None = None
    top_of: "Number | None" = None
    """The array of which this is the maximum along an axis."""
    infinite: Array | None = None
    """True for elements for which that maximum is +inf."""


def constant(value: float) -> Number:
    """A literal of the program."""
    exact = Fraction(value) if np.isfinite(value) else None
    return Number((), np.asarray(value).reshape(1), constant=exact)


def union(numbers: Sequence[Number]) -> AxisOrder:
    """All axes of some numbers, in order."""
    return tuple(dict.fromkeys(axis for x in numbers for axis in x.axes))


def polynomial_of(x: Number) -> MomentPolynomial | None:
    """A number as a polynomial of moments, if it is one."""
    if x.sums is not None:
        return x.sums
    return {(): x.constant} if x.constant is not None else None
