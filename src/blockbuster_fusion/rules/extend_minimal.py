"""Extension beyond the paper: a map is extended over its producers only (rule 6, minimal)."""

from collections.abc import Iterator

from blockbuster_fusion.ir.combiner import ANY, Reduced
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import Map, Scan, Value
from blockbuster_fusion.rules.extend_map import stays_outside
from blockbuster_fusion.rules.merge import Merger
from blockbuster_fusion.rules.rule import Guard, Match, Rule


def pulled_nodes(graph: Graph, match: Match) -> list[int]:
    """The producer and every node on a path from it to the map, in order."""
    v, u = match.nodes
    between = {u}
    for i in graph.nodes:
        if i != v and any(x.node in between for x in graph[i].inputs):
            between.add(i)
    return [i for i in graph.nodes if i in between and graph.reaches(i, v)]


def escaping(graph: Graph, match: Match, pulled: list[int]) -> list[Value]:
    """The values of the pulled nodes that others use too."""
    inside = {*pulled, match.nodes[0]}
    return [
        value
        for i in pulled
        for value in (Value(i, port) for port in range(len(graph[i].types)))
        if value in graph.output_values
        or any(value in graph[user].inputs for user in graph.users[i] if user not in inside)
    ]


def iterates_nothing_pulled(graph: Graph, match: Match) -> bool:
    v = match.nodes[0]
    pulled = set(pulled_nodes(graph, match))
    operands = zip(graph[v].inputs, graph.map(v).iterated, strict=True)
    return not any(iterated and value.node in pulled for value, iterated in operands)


def only_items_escape(graph: Graph, match: Match) -> bool:
    values = escaping(graph, match, pulled_nodes(graph, match))
    return not any(graph.type(value).is_list for value in values)


def moves_no_misc(graph: Graph, match: Match) -> bool:
    return stays_outside(graph).isdisjoint(pulled_nodes(graph, match))


def moves_no_scan(graph: Graph, match: Match) -> bool:
    moved = (graph.op(i) for i in pulled_nodes(graph, match))
    return not any(isinstance(op, Scan) and not op.dim.unit for op in moved)


def walks_inside(body: Graph, value: Value, dim_axis: object) -> bool:
    """True if a map in the body, at any depth, iterates a list that the body takes whole."""
    for i in body.users[value.node]:
        op = body.op(i)
        if not isinstance(op, Map):
            continue
        for port, operand in enumerate(body[i].inputs):
            if operand != value:
                continue
            if op.iterated[port]:
                if op.dim.axis is dim_axis:
                    return True
            elif walks_inside(op.body, Value(op.body.inputs[port]), dim_axis):
                return True
    return False


class ExtendMinimal(Rule):
    """u -> map[X]{… map[Y]{w} …}  =>  map[X]{u -> … map[Y]{w} …}, for a map u over Y.

    Like rule 6, but only u and the nodes between it and the map move in. Other ancestors stay
    outside and become whole operands, so that nodes independent of u are not computed again. Other
    users of moved nodes need items, equal in every iteration: the map yields any of them.
    """

    name = "extend_map_over_producers"
    anchors = (Map,)
    guards = (
        Guard(
            "iterates_nothing_pulled",
            "the map iterates a list that would move into it",
            iterates_nothing_pulled,
            far=True,
        ),
        Guard(
            "only_items_escape",
            "another node needs a list that would move into the map",
            only_items_escape,
            far=True,
        ),
        Guard(
            "moves_no_misc", "a misc operator would run in every iteration", moves_no_misc, far=True
        ),
        Guard(
            "moves_no_scan",
            "a scan would leave the loop that it goes on along",
            moves_no_scan,
            far=True,
        ),
    )

    def sites(self, graph: Graph, node: int) -> Iterator[Match]:
        op = graph.map(node)
        if op.first:
            return  # without an iteration it would yield nothing for the other users
        for port, value in enumerate(graph[node].inputs):
            producer = graph.op(value.node)
            if op.iterated[port] or not isinstance(producer, Map):
                continue
            if producer.modes[value.port] is not None or producer.first:
                continue
            if walks_inside(op.body, Value(op.body.inputs[port]), producer.dim.axis):
                yield Match(self, graph, (node, value.node), op.dim, "a")

    def rewrite(self, graph: Graph, match: Match) -> Graph:
        v, _ = match.nodes
        op = graph.map(v)
        merger = Merger(graph, op.dim, op.first, match.ids())
        pulled = pulled_nodes(graph, match)
        for value, iterated, name, inner in own_ports(graph, v, set(pulled)):
            merger.port(value, iterated, name, inner)
        for i in pulled:
            merger.absorb_node(i)
        merger.absorb_map(v)
        for value in escaping(graph, match, pulled):
            merger.results.append((merger.wholes[value], Reduced(ANY), value))
        node, renumbered = merger.finish()
        redirect = {
            outer: Value(v, renumbered[number])
            for number, (_, _, outer) in enumerate(merger.results)
        }
        return graph.edit(drop=pulled, add={v: node}, redirect=redirect)


def own_ports(graph: Graph, v: int, pulled: set[int]) -> Iterator[tuple[Value, bool, str, int]]:
    """Takes the map's operands that stay outside, so that absorbed nodes use the same ports."""
    op = graph.map(v)
    for port, (value, iterated) in enumerate(zip(graph[v].inputs, op.iterated, strict=True)):
        if value.node not in pulled:
            inner = op.body.inputs[port]
            yield value, iterated, getattr(op.body.op(inner), "name", ""), inner
