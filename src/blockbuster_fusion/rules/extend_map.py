"""Rule 6: a map is extended over the whole graph around it."""

from collections.abc import Iterator
from dataclasses import replace

from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import Map, Misc, Value
from blockbuster_fusion.rules.merge import Merger
from blockbuster_fusion.rules.rule import Guard, Match, Rule


def nothing_downstream(graph: Graph, match: Match) -> bool:
    return not graph.users[match.nodes[0]]


def yields_all_outputs(graph: Graph, match: Match) -> bool:
    return all(out.value.node == match.nodes[0] for out in graph.outputs)


def iterates_only_inputs(graph: Graph, match: Match) -> bool:
    v = match.nodes[0]
    outside = stays_outside(graph)
    operands = zip(graph[v].inputs, graph.map(v).iterated, strict=True)
    walked = [value.node for value, iterated in operands if iterated]
    return all(graph.is_source(i) or i in outside for i in walked)


def stays_outside(graph: Graph) -> set[int]:
    """Misc operators and all nodes that they depend on, which run once."""
    stack = [
        i
        for i, node in graph.nodes.items()
        if isinstance(node.op, Misc) or (isinstance(node.op, Map) and node.op.body.holds_misc)
    ]
    found: set[int] = set()
    while stack:
        i = stack.pop()
        if i not in found:
            found.add(i)
            stack.extend(v.node for v in graph[i].inputs)
    return found


def moves_no_misc(graph: Graph, match: Match) -> bool:
    return stays_outside(graph).isdisjoint(match.nodes)


def moves_no_scan(graph: Graph, match: Match) -> bool:
    return not graph.open_scans


def twin_maps(graph: Graph, v: int) -> Iterator[tuple[int, int, str]]:
    """(u, w, variant): a map u beside v and a map w directly inside it that could be fused.

    Variants as in the paper: w iterates (a) a result of u, or the list that u iterates, which comes
    from (b) an input of the graph or (c) another node.
    """
    op = graph.map(v)
    whole = {
        Value(op.body.inputs[port]): value
        for port, value in enumerate(graph[v].inputs)
        if not op.iterated[port]
    }
    inner: list[tuple[int, Map, set[Value]]] = []
    for w, inner_op in op.body.maps():
        walked = zip(op.body[w].inputs, inner_op.iterated, strict=True)
        inner.append((w, inner_op, {whole[x] for x, it in walked if it and x in whole}))
    for u, outer_op in graph.maps():
        if u == v:
            continue
        lists = {x for x, it in zip(graph[u].inputs, outer_op.iterated, strict=True) if it}
        for w, inner_op, walked_outside in inner:
            if inner_op.dim.axis is not outer_op.dim.axis or inner_op.first != outer_op.first:
                continue
            if any(x.node == u and outer_op.modes[x.port] is None for x in walked_outside):
                yield u, w, "a"
            for x in walked_outside & lists:
                if graph.type(x).is_buffered:
                    yield u, w, "b" if graph.is_source(x.node) else "c"


def first_twins(graph: Graph, v: int) -> tuple[int, int, str] | None:
    """The pair to extend for: producer and consumer if there is one, else two readers of a list."""
    return min(twin_maps(graph, v), key=lambda found: found[2], default=None)


class ExtendMap(Rule):
    """Rule 6: u, map[X]{… map[Y]{w} …}  =>  map[X]{u, … map[Y]{w} …}, for a map u over Y.

    All nodes beside the map move into it and are computed in each iteration; misc operators and
    the nodes that they depend on stay outside.
    """

    name = "extend_map"
    number = 6
    anchors = (Map,)
    guards = (
        Guard("nothing_downstream", "other nodes use the map's results", nothing_downstream),
        Guard("yields_all_outputs", "the graph has other outputs", yields_all_outputs),
        Guard(
            "iterates_only_inputs",
            "the map iterates a list that would move into it",
            iterates_only_inputs,
        ),
        Guard("moves_no_misc", "a misc operator would run in every iteration", moves_no_misc),
        Guard("moves_no_scan", "a scan would leave the loop that it goes on along", moves_no_scan),
    )

    def sites(self, graph: Graph, node: int) -> Iterator[Match]:
        found = first_twins(graph, node)
        if found is not None:
            u, _, variant = found
            yield Match(self, graph, (node, u), graph.map(node).dim, variant)

    def rewrite(self, graph: Graph, match: Match) -> Graph:
        v = match.nodes[0]
        op = graph.map(v)
        outside = stays_outside(graph) | {i for i in graph.nodes if graph.is_source(i)}
        merger = Merger(graph, op.dim, op.first, match.ids())
        _keep_ports(merger, graph, v, outside)
        for i in graph.nodes:
            if i != v and i not in outside:
                merger.absorb_node(i)
        merger.absorb_map(v)
        node, renumbered = merger.finish()
        outputs = [
            replace(out, value=Value(v, renumbered[out.value.port])) for out in graph.outputs
        ]
        kept = {i: n for i, n in graph.nodes.items() if i in outside}
        nodes = {**kept, v: node}
        return Graph(nodes, graph.inputs, outputs, touched=frozenset(nodes))


def _keep_ports(merger: Merger, graph: Graph, v: int, outside: set[int]) -> None:
    """Takes the map's own whole inputs first, so that absorbed nodes use the same ports."""
    op = graph.map(v)
    for port, (value, iterated) in enumerate(zip(graph[v].inputs, op.iterated, strict=True)):
        if value.node in outside:
            inner = op.body.inputs[port]
            name = getattr(op.body.op(inner), "name", "")
            merger.port(value, iterated, name, inner)
