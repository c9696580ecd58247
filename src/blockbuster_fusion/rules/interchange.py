"""Extension beyond the paper: the loops of a perfect nest change places."""

from collections.abc import Iterator

from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.infer import map_types
from blockbuster_fusion.ir.ops import Input, Map, Node, Output, Value
from blockbuster_fusion.rules.rule import Guard, Match, Rule


def inner_map(graph: Graph, node: int) -> Map | None:
    """The only node in the body of a map, if it is a map."""
    op = graph.op(node)
    if not isinstance(op, Map) or op.body.sole is None or op.first:
        return None
    inner = op.body.op(op.body.sole)
    return inner if isinstance(inner, Map) and not inner.first else None


def only_stacks(graph: Graph, match: Match) -> bool:
    u, _ = match.nodes
    inner = inner_map(graph, u)
    assert inner is not None
    op = graph.map(u)
    in_order = [out.value.port for out in op.body.outputs] == list(range(len(inner.modes)))
    return not op.reduces and not inner.reduces and in_order


def scans_nothing(graph: Graph, match: Match) -> bool:
    inner = inner_map(graph, match.nodes[0])
    return inner is not None and not inner.scans


def iterated_by_all(graph: Graph, match: Match) -> bool:
    """Every use iterates the inner dim, so that the order of the list dims does not matter."""
    u, _ = match.nodes
    inner = inner_map(graph, u)
    assert inner is not None
    if any(Value(u, port) in graph.output_values for port in range(len(graph[u].types))):
        return False
    for user in graph.users[u]:
        op = graph.op(user)
        if not isinstance(op, Map) or op.dim is not inner.dim:
            return False
        ports = zip(graph[user].inputs, op.iterated, strict=True)
        if not all(iterated for value, iterated in ports if value.node == u):
            return False
    return True


def only_direct_edges(graph: Graph, match: Match) -> bool:
    return not graph.reaches(*match.nodes, indirectly=True)


class Interchange(Rule):
    """map[X]{map[Y]{f}} -> map[Y]{g}  =>  map[Y]{map[X]{f}} -> map[Y]{g}: rule 1 can fuse these."""

    name = "interchange_loops"
    anchors = (Map,)
    guards = (
        Guard("only_stacks", "the loops do more than fill one list", only_stacks),
        Guard("scans_nothing", "a scan goes on along the inner loop", scans_nothing),
        Guard(
            "iterated_by_all", "a user of the list does not iterate the inner dim", iterated_by_all
        ),
        Guard(
            "only_direct_edges",
            "another path leads from the first map to the second",
            only_direct_edges,
            far=True,
        ),
    )

    def sites(self, graph: Graph, node: int) -> Iterator[Match]:
        inner = inner_map(graph, node)
        if inner is None:
            return
        for user in graph.users[node]:
            op = graph.op(user)
            if isinstance(op, Map) and op.dim is inner.dim and op.dim is not graph.map(node).dim:
                yield Match(self, graph, (node, user), inner.dim)

    def rewrite(self, graph: Graph, match: Match) -> Graph:
        u, _ = match.nodes
        outer, inner = graph.map(u), inner_map(graph, u)
        assert inner is not None
        assert outer.body.sole is not None
        sole = outer.body[outer.body.sole]
        ids = match.ids()
        operands: list[Value] = []
        by_inner: list[bool] = []
        by_outer: list[bool] = []
        inputs: dict[int, Node] = {}
        for port, value in enumerate(sole.inputs):
            at = outer.body.inputs.index(value.node)
            operand = graph[u].inputs[at]
            kind = graph.type(operand)
            seen = kind.iterate(inner.dim) if inner.iterated[port] else kind
            name = outer.body.input(value.node).name
            inputs[next(ids)] = Node(Input(name, seen), (), (seen,))
            operands.append(operand)
            by_inner.append(inner.iterated[port])
            by_outer.append(outer.iterated[at])
        deep = Map(outer.dim, inner.body, tuple(by_outer), inner.modes)
        middle = Node(deep, tuple(Value(i) for i in inputs), map_types(deep))
        outputs = [Output("", Value(outer.body.sole, port)) for port in range(len(inner.modes))]
        body = Graph({**inputs, outer.body.sole: middle}, list(inputs), outputs)
        made = Map(inner.dim, body, tuple(by_inner), outer.modes)
        return graph.edit(add={u: Node(made, tuple(operands), map_types(made))})
