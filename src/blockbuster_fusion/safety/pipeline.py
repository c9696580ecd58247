"""Making a program numerically safe: the pass as a whole."""

from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.safety.choices import Safe
from blockbuster_fusion.safety.pairs.pairs import with_exponents
from blockbuster_fusion.safety.pivot.pivot import with_pivots
from blockbuster_fusion.safety.storage import computed_wide


def make_safe(graph: Graph) -> Safe:
    """The program made numerically safe: computed in wide numbers, with pivots and exponents."""
    pivoted = with_pivots(computed_wide(graph))
    made = with_exponents(pivoted.graph)
    return Safe(made.graph, (*pivoted.choices, *made.choices), pivoted.precision)
