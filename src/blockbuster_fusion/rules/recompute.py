"""Extension beyond the paper: a cheap producer is cloned for a use that cannot be fused."""

from collections.abc import Iterator

from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import Map, Value
from blockbuster_fusion.rules.copy import copied_node
from blockbuster_fusion.rules.fuse_consecutive_maps import iterates_what_is_stacked, same_dim
from blockbuster_fusion.rules.rule import Guard, Match, Rule


def cheap(graph: Graph, match: Match) -> bool:
    body = graph.map(match.nodes[0]).body
    return not body.holds_dot and not body.holds_misc


def reads_only_inputs(graph: Graph, match: Match) -> bool:
    u = match.nodes[0]
    lists = (x for x in graph[u].inputs if graph.type(x).is_buffered)
    return all(graph.is_source(x.node) for x in lists)


def blocked_by_a_path(graph: Graph, match: Match) -> bool:
    u, v = match.nodes
    return graph.reaches(u, v, indirectly=True)


class Recompute(Rule):
    """u -> w -> v, u -> v  =>  u -> w -> v', u' -> v', with u' a copy of u: u' and v can be fused.

    For a map u without a dot, whose lists are inputs of the graph. What it makes is made twice, so
    the driver takes a snapshot before.
    """

    name = "recompute_producer"
    anchors = (Map,)
    guards = (
        Guard("same_dim", "the maps walk different dims", same_dim),
        Guard(
            "iterates_what_is_stacked",
            "the second map needs a whole list, or a reduced result, of the first",
            iterates_what_is_stacked,
        ),
        Guard(
            "blocked_by_a_path", "nothing stands in the way of rule 1", blocked_by_a_path, far=True
        ),
        Guard("cheap", "the producer holds a dot: too dear to compute twice", cheap),
        Guard(
            "reads_only_inputs",
            "the producer reads a list that is made in this graph",
            reads_only_inputs,
        ),
    )

    def sites(self, graph: Graph, node: int) -> Iterator[Match]:
        for user in graph.users[node]:
            if isinstance(graph.op(user), Map):
                yield Match(self, graph, (node, user), graph.map(node).dim)

    def rewrite(self, graph: Graph, match: Match) -> Graph:
        u, v = match.nodes
        ids = match.ids()
        new = next(ids)
        clone = copied_node(graph[u], list(graph[u].inputs), ids)
        operands = [Value(new, x.port) if x.node == u else x for x in graph[v].inputs]
        node = graph[v]
        return graph.edit(add={new: clone, v: type(node)(node.op, tuple(operands), node.types)})
