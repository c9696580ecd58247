"""Extension beyond the paper: a cheap producer is cloned for a use that cannot be fused."""

from collections.abc import Iterator

from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import Map, Node, Value
from blockbuster_fusion.rules.copy import copied_node
from blockbuster_fusion.rules.fuse_consecutive_maps import (
    iterates_what_is_stacked,
    only_direct_edges,
    same_dim,
)
from blockbuster_fusion.rules.merge import without_unused_results
from blockbuster_fusion.rules.rule import Guard, Match, Rule

LARGEST = 64
"""The most nodes of a producer; without a limit, clones of clones would accumulate."""


def walked(graph: Graph, match: Match) -> dict[int, Value]:
    """The lists of the producer that the consumer iterates, by the consumer's port."""
    u, v = match.nodes
    consumer = zip(graph[v].inputs, graph.map(v).iterated, strict=True)
    return {
        port: value
        for port, (value, iterated) in enumerate(consumer)
        if value.node == u and iterated and graph.map(u).modes[value.port] is None
    }


def walks_a_list(graph: Graph, match: Match) -> bool:
    return bool(walked(graph, match))


def rule_1_is_blocked(graph: Graph, match: Match) -> bool:
    return not (iterates_what_is_stacked(graph, match) and only_direct_edges(graph, match))


def cheap(graph: Graph, match: Match) -> bool:
    body = graph.map(match.nodes[0]).body
    return not body.holds_dot and not body.holds_misc


def small(graph: Graph, match: Match) -> bool:
    inside = graph.map(match.nodes[0]).body.walk()
    return sum(len(g.nodes) for _, g in inside) <= LARGEST


def lists_at_hand(graph: Graph, match: Match) -> bool:
    """The producer's lists are inputs of the graph, or the consumer iterates them too."""
    u, v = match.nodes
    known = {x for x, it in zip(graph[v].inputs, graph.map(v).iterated, strict=True) if it}
    ports = zip(graph[u].inputs, graph.map(u).iterated, strict=True)
    return all(
        graph.is_source(x.node) or not graph.type(x).is_buffered or (iterated and x in known)
        for x, iterated in ports
    )


class Recompute(Rule):
    """u -> w -> v, u -> v  =>  u -> w -> v, u' -> v, with u' a copy of u: u' and v can be fused.

    For a map u without a dot, whose lists are inputs of the graph or also iterated by v. v may also
    need a reduced result of u (w is then not a map). The results of u are computed twice, so the
    driver takes a snapshot before.
    """

    name = "recompute_producer"
    anchors = (Map,)
    guards = (
        Guard("same_dim", "the maps walk different dims", same_dim),
        Guard("walks_a_list", "the second map walks no list that the first makes", walks_a_list),
        Guard(
            "rule_1_is_blocked", "nothing stands in the way of rule 1", rule_1_is_blocked, far=True
        ),
        Guard("cheap", "the producer holds a dot: too dear to compute twice", cheap),
        Guard("small", f"the producer has more than {LARGEST} nodes", small),
        Guard(
            "lists_at_hand",
            "the producer reads a list that is made in this graph and that the other does not read",
            lists_at_hand,
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
        operands = list(graph[v].inputs)
        for port, value in walked(graph, match).items():
            operands[port] = Value(new, value.port)
        node = graph[v]
        made = graph.edit(add={new: clone, v: Node(node.op, tuple(operands), node.types)})
        return without_unused_results(without_unused_results(made, u), new)
