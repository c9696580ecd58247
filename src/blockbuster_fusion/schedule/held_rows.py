"""Long rows that one program of a GPU holds as a whole, rather than to read them twice.

The registers of a processor hold one such row. A loop over its blocks that sums exponentials folds
each of them, as it needs maxima: its threads wait for each other and for memory in turns. Loops
that only sum load blocks ahead, and are as fast as the memory even if rows are read twice.
"""

import math

from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.ir.combiner import ADD
from blockbuster_fusion.ir.expr import contains
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import BlockReduce, Elementwise

MANY_ROWS = 264
"""The rows that are enough for all processors of a large GPU, two for each."""


def may_be_held(axis: Axis, graph: Graph) -> bool:
    """True if many rows along an axis are read from one array, folded, and written."""
    outputs = [graph.type(out.value).axes for out in graph.outputs]
    inputs = [graph.type_of_input(port).axes for port in range(len(graph.inputs))]
    read = [axes for axes in inputs if axis in axes and len(axes) > 1]
    lengths = [[x.extent for x in axes if x is not axis] for axes in outputs if axis in axes]
    counts = [math.prod(n if isinstance(n, int) else 0 for n in own) for own in lengths]
    has_rows = len(read) == 1 and min(counts, default=0) >= MANY_ROWS
    return has_rows and _is_folded(axis, graph)


def _is_folded(axis: Axis, graph: Graph) -> bool:
    """True if loops over an axis would fold each block, for a maximum or for exponentials."""
    nodes = [node for _, inner in graph.walk() for node in inner.nodes.values()]
    reductions = [n.op for n in nodes if isinstance(n.op, BlockReduce) and n.op.dim.axis is axis]
    takes_maxima = any(op.combiner is not ADD for op in reductions)
    along = [n.op for n in nodes if axis in n.types[0].axes]
    computed = [op.expr for op in along if isinstance(op, Elementwise)]
    return takes_maxima or any(contains(expr, "exp", "exp2") for expr in computed)
