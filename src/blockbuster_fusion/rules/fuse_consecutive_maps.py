"""Rule 1: two maps in a row become one."""

from collections.abc import Iterator

from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import Map
from blockbuster_fusion.rules.merge import fuse_maps
from blockbuster_fusion.rules.rule import Guard, Match, Rule


def same_dim(graph: Graph, match: Match) -> bool:
    u, v = (graph.map(i) for i in match.nodes)
    return u.dim is v.dim and u.first == v.first


def iterates_what_is_stacked(graph: Graph, match: Match) -> bool:
    u, v = match.nodes
    consumer = zip(graph[v].inputs, graph.map(v).iterated, strict=True)
    return all(
        iterated and graph.map(u).modes[value.port] is None
        for value, iterated in consumer
        if value.node == u
    )


def only_direct_edges(graph: Graph, match: Match) -> bool:
    u, v = match.nodes
    return not graph.reaches(u, v, indirectly=True)


class FuseConsecutiveMaps(Rule):
    """Rule 1: map[X]{f} -> map[X]{g}  =>  map[X]{f -> g}.

    Results of the first map that others use stay results.
    """

    name = "fuse_consecutive_maps"
    number = 1
    anchors = (Map,)
    guards = (
        Guard("same_dim", "the maps walk different dims", same_dim),
        Guard(
            "iterates_what_is_stacked",
            "the second map needs a whole list, or a reduced result, of the first",
            iterates_what_is_stacked,
        ),
        Guard(
            "only_direct_edges",
            "another path leads from the first map to the second: fusing would close a cycle",
            only_direct_edges,
            far=True,
        ),
    )

    def sites(self, graph: Graph, node: int) -> Iterator[Match]:
        for user in graph.users[node]:
            if isinstance(graph.op(user), Map):
                yield Match(self, graph, (node, user), graph.map(node).dim)

    def rewrite(self, graph: Graph, match: Match) -> Graph:
        return fuse_maps(match)
