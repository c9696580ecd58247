"""Extension beyond the paper: a stored list is computed again from another stored list."""

from collections.abc import Iterator
from dataclasses import dataclass

from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.infer import map_types
from blockbuster_fusion.ir.ops import Elementwise, Input, Map, Node, Output, Value
from blockbuster_fusion.rules.extend_minimal import ExtendMinimal, walks_inside
from blockbuster_fusion.rules.merge import without_unused_results
from blockbuster_fusion.rules.rule import Guard, Match, Rule


@dataclass(frozen=True, slots=True)
class Derived:
    """A list that a map derives, element by element, from another of its lists."""

    port: int
    source: int
    nodes: tuple[int, ...]
    """The elementwise operators in the body that lead from one to the other, in order."""
    inputs: tuple[int, ...]
    """The other ports of the map that they read."""


def derived_list(graph: Graph, u: int, port: int) -> Iterator[Derived]:
    """The derivation of one list of a map from others by elementwise operators alone."""
    op = graph.map(u)
    for source, mode in enumerate(op.modes):
        if mode is None and source != port:
            found = _derivation(op, port, source)
            if found is not None:
                yield found


def _derivation(op: Map, port: int, source: int) -> Derived | None:
    body, start = op.body, op.body.outputs[source].value
    nodes: set[int] = set()
    reads: set[Value] = set()
    stack = [body.outputs[port].value]
    while stack:
        value = stack.pop()
        if value == start or isinstance(body.op(value.node), Input):
            reads.add(value)
        elif not isinstance(body.op(value.node), Elementwise):
            return None
        elif value.node not in nodes:
            nodes.add(value.node)
            stack.extend(body[value.node].inputs)
    if start not in reads or not nodes:
        return None
    ordered = tuple(i for i in body.nodes if i in nodes)
    others = (p for p, i in enumerate(body.inputs) if Value(i) in reads and Value(i) != start)
    return Derived(port, source, ordered, tuple(others))


def derivations(graph: Graph, match: Match) -> list[Derived]:
    """The lists that the map iterates inside, with their derivations; the best one first.

    A list may have several derivations: the guards apply to the first.
    """
    v, u = match.nodes
    op, operands = graph.map(v), graph[v].inputs
    whole = {
        value.port: Value(op.body.inputs[port])
        for port, value in enumerate(operands)
        if value.node == u and not op.iterated[port] and graph.map(u).modes[value.port] is None
    }
    found = [
        each
        for port, inner in whole.items()
        if walks_inside(op.body, inner, graph.map(u).dim.axis)
        for each in derived_list(graph, u, port)
    ]
    return sorted(found, key=lambda each: [not holds(graph, match, each) for holds in _DEMANDS])


def _source_is_read(graph: Graph, match: Match, found: Derived) -> bool:
    v, u = match.nodes
    return Value(u, found.source) in graph[v].inputs


def _is_read_here_only(graph: Graph, match: Match, found: Derived) -> bool:
    v, u = match.nodes
    value = Value(u, found.port)
    walked = graph.map(v).iterated
    inside = all(i == v and not walked[port] for i, port in graph.uses(value))
    return inside and value not in graph.output_values


def _inputs_are_at_hand(graph: Graph, match: Match, found: Derived) -> bool:
    u = match.nodes[1]
    operands = [graph[u].inputs[port] for port in found.inputs]
    lists = (x for x in operands if graph.type(x).is_buffered)
    return all(graph.is_source(x.node) for x in lists)


_DEMANDS = (_source_is_read, _is_read_here_only, _inputs_are_at_hand)
"""The conditions on a derivation, as guards."""


def reads_the_source(graph: Graph, match: Match) -> bool:
    return _source_is_read(graph, match, derivations(graph, match)[0])


def nobody_else_reads_it(graph: Graph, match: Match) -> bool:
    return _is_read_here_only(graph, match, derivations(graph, match)[0])


def lists_at_hand(graph: Graph, match: Match) -> bool:
    return _inputs_are_at_hand(graph, match, derivations(graph, match)[0])


class Rederive(Rule):
    """u stacks a and b = f(a); map[X]{… map[Y]{w(b)} …}  =>  map[X]{… map[Y]{w(f(a))} …}.

    For an elementwise f and a map that reads the list a anyway: one list less is in memory. As in
    the minimal extension, f becomes a separate map, which moves in.
    """

    name = "rederive_list"
    anchors = (Map,)
    guards = (
        Guard(
            "reads_the_source",
            "the map does not read the list that the other one comes from",
            reads_the_source,
        ),
        Guard(
            "nobody_else_reads_it",
            "the list is used elsewhere too, or the map itself walks it",
            nobody_else_reads_it,
        ),
        Guard(
            "lists_at_hand", "the function reads a list that is made in this graph", lists_at_hand
        ),
    )

    def sites(self, graph: Graph, node: int) -> Iterator[Match]:
        op = graph.map(node)
        if op.first:
            return
        for u in {value.node: None for value in graph[node].inputs}:
            producer = graph.op(u)
            if isinstance(producer, Map) and not producer.first and len(producer.modes) > 1:
                match = Match(self, graph, (node, u), op.dim)
                if derivations(graph, match):
                    yield match

    def rewrite(self, graph: Graph, match: Match) -> Graph:
        v, u = match.nodes
        found = derivations(graph, match)[0]
        ids = match.ids()
        new = next(ids)
        split = graph.edit(
            add={new: _own_map(graph, u, found, ids)},
            redirect={Value(u, found.port): Value(new)},
        )
        split = without_unused_results(split, u)
        inner = Match(self, split, (v, new), match.dim, fresh=next(ids))
        return ExtendMinimal().rewrite(split, inner)


def _own_map(graph: Graph, u: int, found: Derived, ids: Iterator[int]) -> Node:
    """The map that computes the derived list from its source."""
    op, body = graph.map(u), graph.map(u).body
    source = body.outputs[found.source].value
    known = {source: Value(next(ids))}
    known |= {Value(body.inputs[port]): Value(next(ids)) for port in found.inputs}
    nodes: dict[int, Node] = {}
    for value, inner in known.items():
        old = body.op(value.node)
        kind = body.type(value)
        name = old.name if isinstance(old, Input) else ""
        nodes[inner.node] = Node(Input(name, kind), (), (kind,))
    for i in found.nodes:
        new = next(ids)
        operands = tuple(known[x] for x in body[i].inputs)
        nodes[new] = Node(body.op(i), operands, body[i].types)
        known[Value(i)] = Value(new)
    result = Output("", known[body.outputs[found.port].value])
    inputs = list(nodes)[: 1 + len(found.inputs)]
    iterated = (True, *(op.iterated[port] for port in found.inputs))
    made = Map(op.dim, Graph(nodes, inputs, [result]), iterated, (None,))
    operands = (Value(u, found.source), *(graph[u].inputs[port] for port in found.inputs))
    return Node(made, operands, map_types(made))
