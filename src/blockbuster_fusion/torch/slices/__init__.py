"""Slices move up to what lies in memory, and concatenations down to where they are stored.

A part of a sum is the sum of parts, and a part of a product is a product with a part of the weight.
So `gate_up.chunk(2)` is two products that meet in one kernel, a rotary embedding is the product's
two halves, and what is computed from a concatenation is computed piece by piece, each stored in its
place. A sum along a concatenation is the sum of the pieces' sums: so attention sinks that a model
puts behind its scores are a term of the softmax, and no scores are stored.

The graph is built anew: each old node has a form in the new graph, and parts of it (bands.py) have
theirs. At first everything moves that can. Where this would compute something twice, or split a
product for nothing, what asked for it is remembered as staying, and the graph is built again.

For example, `q * cos + cat((-q[8:], q[:8])) * sin` consists of two pieces, because the
concatenation does. Both pieces are computed from parts of `q`, which is a product: so two
products with parts of its weight take its place. Were `q` normed before, the norm's mean would
still need all of `q`, which would be computed whole and in parts: a doubt. The sum is what
divided it, and stays undivided in the next round. There only the slices ask for parts of `q`,
while the sum needs all of it: a doubt again, and with nobody else to blame `q` is stored. The
third round has none.
"""

from collections.abc import Collection, Sequence

from torch.fx import GraphModule, Node

from blockbuster_fusion.torch.capture.graph import Analysis, short_name
from blockbuster_fusion.torch.slices.boundaries import Pieces
from blockbuster_fusion.torch.slices.rewrite import Moved
from blockbuster_fusion.torch.slices.undo import doubts

MOST_ROUNDS = 8
"""How often a graph is built before everything that is left in doubt stays."""


def move_pieces(
    module: GraphModule, static: Sequence[int], kept: Collection[Node] = (), *, splits: bool
) -> GraphModule:
    """The graph with slices moved up and concatenations down; itself where nothing moves.

    Slices of nodes that are `kept` stay; `splits` says whether products with weights may be split.
    """
    given = [n for n in module.graph.nodes if n.op == "placeholder"]
    analysis = Analysis(module, frozenset(given[i] for i in static if i < len(given)))
    if not any(_is_cut(node) for node in analysis.nodes):
        return module
    stored, undivided = set(kept), set[Node]()
    for number in range(MOST_ROUNDS):
        moved = Moved(Pieces(analysis, stored, undivided), splits=splits)
        found = doubts(moved)
        if not found:
            return moved.module() if moved.has_moved else module
        is_late = number >= MOST_ROUNDS - 2
        undivided = undivided.union(*(doubt.dividers for doubt in found))
        stored = stored | {doubt.node for doubt in found if is_late or not doubt.dividers}
    return module


def _is_cut(node: Node) -> bool:
    names = ("slice", "select", "split", "split_with_sizes", "unbind", "cat")
    return short_name(node) in names
