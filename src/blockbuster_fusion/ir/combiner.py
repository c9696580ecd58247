"""Combiners: the monoids by which lists and loops are summarised."""

from dataclasses import dataclass

from blockbuster_fusion.ir.expr import Expr, arg, call
from blockbuster_fusion.ir.interned import InternedValue


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Combiner(InternedValue):
    """A monoid on tuples of `arity` values.

    `combine[i]` gives component i from arguments 0…n-1 (what has been gathered) and n…2n-1 (what
    comes next); `identity[i]` is what component i is before anything came. Sums and maxima are
    one-tuples; a tuple whose components depend on one another (online softmax: a running maximum
    and sums that are rescaled by it) is the same thing with more components.
    """

    name: str
    identity: tuple[float, ...]
    combine: tuple[Expr, ...]

    @property
    def arity(self) -> int:
        return len(self.combine)

    def __str__(self) -> str:
        return self.name


ADD = Combiner("add", (0.0,), (arg(0) + arg(1),))
MUL = Combiner("mul", (1.0,), (arg(0) * arg(1),))
MAX = Combiner("max", (float("-inf"),), (call("maximum", arg(0), arg(1)),))
MIN = Combiner("min", (float("inf"),), (call("minimum", arg(0), arg(1)),))
ANY = Combiner("any", (0.0,), (arg(1),))
"""Every iteration yields the same value: keep one."""

SIMPLE = {c.name: c for c in (ADD, MUL, MAX, MIN, ANY)}
"""The combiners that are known by name; a tuple combiner carries its own expressions."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Reduced(InternedValue):
    """The mode of a map's output that a combiner gathers over the iterations.

    The components of one tuple stand side by side among the outputs, `component` counting from 0.
    """

    combiner: Combiner
    component: int = 0


Mode = Reduced | None
"""How a map yields an output: reduced, or stacked into a list (None)."""
