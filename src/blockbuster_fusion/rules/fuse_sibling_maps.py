"""Rule 2: two maps that read the same list become one."""

from collections.abc import Iterator

from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import Map
from blockbuster_fusion.rules.merge import fuse_maps
from blockbuster_fusion.rules.rule import Guard, Match, Rule, unify


def same_axis(graph: Graph, match: Match) -> bool:
    u, v = (graph.map(i) for i in match.nodes)
    return (u.dim.axis, u.dim.packed, u.first) == (v.dim.axis, v.dim.packed, v.first)


def dims_apart(graph: Graph, match: Match) -> bool:
    """No map of the graph has a loop over one of the dims inside one over the other."""
    a, b = (graph.map(i).dim for i in match.nodes)
    stack = [] if a is b else [graph]
    while stack:
        for _, op in stack.pop().maps():
            loops = op.body.loops
            if (op.dim is a and b in loops) or (op.dim is b and a in loops):
                return False
            if a in loops and b in loops:
                stack.append(op.body)
    return True


def share_a_list(graph: Graph, match: Match) -> bool:
    """Both iterate one list, or both take it whole; sharing an item, or indices, saves nothing."""
    u, v = match.nodes
    ports = set(zip(graph[u].inputs, graph.map(u).iterated, strict=True))
    shared = ports.intersection(zip(graph[v].inputs, graph.map(v).iterated, strict=True))
    return any(graph.type(value).is_buffered for value, _ in shared)


def independent(graph: Graph, match: Match) -> bool:
    u, v = match.nodes
    return not graph.reaches(u, v) and not graph.reaches(v, u)


class FuseSiblingMaps(Rule):
    """Rule 2: A -> map[X]{f}, A -> map[X]{g}  =>  A -> map[X]{f, g}.

    The dims may be two of one axis: they become the same.
    """

    name = "fuse_sibling_maps"
    number = 2
    anchors = (Map,)
    guards = (
        Guard("same_axis", "the maps walk different axes", same_axis),
        Guard("share_a_list", "the maps share no list that both use alike", share_a_list),
        Guard("independent", "one of the maps needs the other's result", independent, far=True),
        Guard("dims_apart", "loops over the two dims are inside one another", dims_apart, far=True),
    )

    def sites(self, graph: Graph, node: int) -> Iterator[Match]:
        for producer in dict.fromkeys(value.node for value in graph[node].inputs):
            for other in graph.users[producer]:
                if other == node or not isinstance(graph.op(other), Map):
                    continue
                u, v = sorted((node, other), key=graph.position.__getitem__)
                keep = graph.map(u).dim
                yield Match(self, graph, (u, v), keep, unify=unify(keep, graph.map(v).dim))

    def rewrite(self, graph: Graph, match: Match) -> Graph:
        return fuse_maps(match)
