"""Making a program numerically safe: the passes, in their order."""

from dataclasses import replace

from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.passes import Observer, Pass, run_passes
from blockbuster_fusion.safety.choices import Safe
from blockbuster_fusion.safety.pairs.pairs import with_exponents
from blockbuster_fusion.safety.pivot.pivot import with_pivots
from blockbuster_fusion.safety.storage import computed_wide


def make_safe(graph: Graph, observe: Observer | None = None) -> Safe:
    """The program made numerically safe: computed in wide numbers, with pivots and exponents."""
    return run_passes(SAFETY_PASSES, Safe(graph, ()), observe)


def _storage(safe: Safe) -> Safe:
    return replace(safe, graph=computed_wide(safe.graph))


def _pivot(safe: Safe) -> Safe:
    made = with_pivots(safe.graph)
    return replace(made, choices=(*safe.choices, *made.choices))


def _pairs(safe: Safe) -> Safe:
    made = with_exponents(safe.graph)
    return replace(safe, graph=made.graph, choices=(*safe.choices, *made.choices))


SAFETY_PASSES = (
    Pass("storage", "Widens 16-bit floats for arithmetic in float32.", _storage),
    Pass("pivot", "Subtracts pivots from sums that nearly cancel.", _pivot),
    Pass("pairs", "Writes exponentials as pairs of significand and exponent.", _pairs),
)
