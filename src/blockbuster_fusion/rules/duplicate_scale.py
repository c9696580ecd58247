"""Rule 8: a scale or shift with several uses is split, so that one of them can be swapped."""

from collections.abc import Iterator

from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import Node, Value
from blockbuster_fusion.rules.copy import copied_node
from blockbuster_fusion.rules.linear import SCALES, SHIFTS, use_count
from blockbuster_fusion.rules.rule import Guard, Match, Rule
from blockbuster_fusion.rules.swap_scale_dot import ANCHORS, SWAPPABLE, contracted_uses


def several_uses(graph: Graph, match: Match) -> bool:
    return use_count(graph, Value(match.nodes[0])) > 1


class DuplicateScale(Rule):
    """Rule 8: map[K]{·c} -> (dot, others)  =>  map[K]{·c} -> dot, map[K]{·c} -> others.

    One swappable use is split off at a time; the copy goes to it.
    """

    name = "duplicate_mapped_scale"
    number = 8
    anchors = ANCHORS
    guards = (
        Guard("several_uses", "the list has only one use", several_uses),
        *SWAPPABLE,
    )

    def sites(self, graph: Graph, node: int) -> Iterator[Match]:
        return contracted_uses(self, graph, node, SCALES | SHIFTS)

    def rewrite(self, graph: Graph, match: Match) -> Graph:
        u, v = match.nodes
        ids = match.ids()
        new = next(ids)
        add = {new: copied_node(graph[u], list(graph[u].inputs), ids)}
        operands = tuple(Value(new) if x == Value(u) else x for x in graph[v].inputs)
        add[v] = Node(graph[v].op, operands, graph[v].types)
        return graph.edit(add=add)
