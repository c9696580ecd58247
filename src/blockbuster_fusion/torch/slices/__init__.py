"""Moves slices up to arrays in memory, and concatenations down to where they are stored.

A kernel has no axis for a part of an array, so a slice of a computed array would have to be stored.
Most need not be: a slice of an elementwise operator is that operator on slices of its operands, and
half of a matrix product is a product with half of the weight. So `gate_up.chunk(2)` becomes two
products in one kernel, and a rotary embedding the two halves of one product. What is computed from
a concatenation is computed piece by piece, and each piece is stored in its place. A sum along a
concatenation is the sum of the sums of its pieces: attention sinks that a model puts behind its
scores become a term of the softmax, and no scores are stored.

The new graph is drafted first (draft.py). Each old node has a counterpart in it, most often itself,
and so have slices of it, which are described by bands (band.py). At first everything moves that
can. If this would compute something twice, or split a product for nothing, the operators that asked
for it are remembered as undivided or stored (undo.py), and the graph is drafted again. The last
draft is written into the graph.

For example, `q * cos + cat((-q[8:], q[:8])) * sin` consists of two pieces, because the
concatenation does. Both pieces are computed from slices of `q`, which is a product: two products
with slices of its weight take its place. If `q` were normed before, the mean of the norm would
still need all of `q`, which would be computed whole and in slices. The sum divided it, so the sum
stays undivided in the next round. There only the slices ask for slices of `q`, while the sum needs
all of it; no operator is left to blame, and `q` is stored. The third round has nothing to undo.
"""

from collections.abc import Collection

from torch.fx import Node

from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.capture.nodes import short_name
from blockbuster_fusion.torch.slices.boundaries import Concatenations
from blockbuster_fusion.torch.slices.rewrite import SliceMotion
from blockbuster_fusion.torch.slices.survey import Survey
from blockbuster_fusion.torch.slices.undo import motions_to_undo

MOST_ROUNDS = 8
"""The number of times that a graph is drafted before every motion that is left to undo stays."""

SLICING = frozenset({"slice", "select", "split", "split_with_sizes", "unbind", "cat"})


def move_slices(analysis: Analysis, kept: Collection[Node] = (), *, splits: bool) -> Analysis:
    """The analysis of the graph, whose slices are moved, or the given one if none moves.

    Slices of nodes in `kept` stay; products with weights are split only if `splits`.
    """
    if not any(short_name(node) in SLICING for node in analysis.nodes):
        return analysis
    survey, stored, undivided = Survey(analysis), set(kept), set[Node]()
    for number in range(MOST_ROUNDS):
        motion = SliceMotion(Concatenations(survey, stored, undivided), splits=splits)
        found = motions_to_undo(motion)
        if not found:
            return motion.result() if motion.has_moved else analysis
        is_late = number >= MOST_ROUNDS - 2
        undivided = undivided.union(*(undo.dividers for undo in found))
        stored = stored | {undo.node for undo in found if is_late or not undo.dividers}
    return analysis
