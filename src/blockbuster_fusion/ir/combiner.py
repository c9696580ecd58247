"""Combiners: the monoids of reductions of lists and loops."""

import math
from dataclasses import dataclass

from blockbuster_fusion.ir.expr import Expr, arg, call
from blockbuster_fusion.ir.interned import InternedValue


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Combiner(InternedValue):
    """A monoid on tuples of `arity` values.

    `combine[i]` computes component i from arguments 0…n-1 (the accumulator) and n…2n-1 (the next
    tuple). `identity[i]` is the initial value of component i. Sums and maxima are one-tuples.
    Components may depend on one another: online softmax has a running maximum and sums that are
    rescaled by it.
    """

    name: str
    identity: tuple[float, ...]
    combine: tuple[Expr, ...]

    @property
    def arity(self) -> int:
        return len(self.combine)

    def __str__(self) -> str:
        return self.name


def _log_add_exp(x: Expr, y: Expr) -> Expr:
    """log(exp(x) + exp(y)). Equal infinities have no difference, and log(1 + z) is z for small z.

    The quotient corrects what 1 + z loses.
    """
    z = call("exp", -call("abs", x - y))
    more = 1 + z
    log1p = call("where", call("eq", more, 1), z, call("log", more) * (z / (more - 1)))
    larger = call("maximum", x, y)
    return call("where", call("eq", x, y), x + math.log(2), larger + log1p)


ADD = Combiner("add", (0.0,), (arg(0) + arg(1),))
MUL = Combiner("mul", (1.0,), (arg(0) * arg(1),))
MAX = Combiner("max", (float("-inf"),), (call("maximum", arg(0), arg(1)),))
MIN = Combiner("min", (float("inf"),), (call("minimum", arg(0), arg(1)),))
LOGADDEXP = Combiner("logaddexp", (float("-inf"),), (_log_add_exp(arg(0), arg(1)),))
"""log(exp(x) + exp(y)): running sums of exponentials, as logarithms."""
ANY = Combiner("any", (0.0,), (arg(1),))
"""Every iteration yields the same value: keep one."""

SIMPLE = {c.name: c for c in (ADD, MUL, MAX, MIN, LOGADDEXP, ANY)}
"""The combiners that are known by name; a tuple combiner carries its own expressions."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Reduced(InternedValue):
    """The mode of a map output that a combiner reduces over the iterations.

    The components of one tuple are adjacent outputs; `component` counts them from 0.
    """

    combiner: Combiner
    component: int = 0


Mode = Reduced | None
"""The mode of a map output: reduced, or stacked into a list (None)."""
