"""Terms of a careful evaluation: numbers, powers of e, and numbers plus an exponent."""

from dataclasses import dataclass

from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.tools.check.values import Number, union

ExponentSum = tuple[tuple[Number, float], ...]


@dataclass(eq=False, slots=True)
class Power:
    """`significand · e^exponent`; None stands for 1.

    `plain` is its value as the program computes it, if no sum was taken of the exponential.
    `met`: a maximum was subtracted from its exponent, so `plain` serves for sums.
    """

    significand: Number | None
    exponent: ExponentSum
    plain: Number | None = None
    met: bool = False


@dataclass(eq=False, slots=True)
class Moved:
    """`value + exponent`."""

    value: Number
    exponent: ExponentSum


CarefulTerm = Number | Power | Moved


def plus(a: ExponentSum, b: ExponentSum, factor: float = 1.0) -> ExponentSum:
    """a + factor·b; arrays that cancel are dropped."""
    made = {id(atom): (atom, count) for atom, count in a}
    for atom, count in b:
        old = made.get(id(atom), (atom, 0.0))[1]
        made[id(atom)] = (atom, old + factor * count)
    return tuple((atom, count) for atom, count in made.values() if count != 0)


def axes_of(term: CarefulTerm) -> tuple[Axis, ...]:
    """The axes of a term."""
    match term:
        case Number():
            return term.axes
        case Power():
            own = [] if term.significand is None else [term.significand]
            return union([*(atom for atom, _ in term.exponent), *own])
        case Moved():
            return union([*(atom for atom, _ in term.exponent), term.value])
