"""Rule 3: a reduction moves into the map that computes its list."""

from collections.abc import Iterator

from blockbuster_fusion.ir.combiner import Reduced
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.infer import map_types
from blockbuster_fusion.ir.ops import Map, Node, Output, Reduce, Value
from blockbuster_fusion.rules.rule import Guard, Match, Rule


def reduces_what_is_stacked(graph: Graph, match: Match) -> bool:
    u, r = match.nodes
    op = graph.map(u)
    return all(v.node == u and op.modes[v.port] is None for v in graph[r].inputs)


def same_dim(graph: Graph, match: Match) -> bool:
    u, r = match.nodes
    reduce = graph.op(r)
    return isinstance(reduce, Reduce) and reduce.dim is graph.map(u).dim


def items_inside(graph: Graph, match: Match) -> bool:
    u, r = match.nodes
    body = graph.map(u).body
    return not any(body.type(body.outputs[v.port].value).is_list for v in graph[r].inputs)


def whole_range(graph: Graph, match: Match) -> bool:
    return graph.map(match.nodes[0]).first == 0


class FuseMapReduce(Rule):
    """Rule 3: map[X]{f} -> ⊕X  =>  map[X]{f; ⊕}.

    The list itself stays a result of the map if others use it.
    """

    name = "fuse_map_with_reduction"
    number = 3
    anchors = (Map,)
    guards = (
        Guard(
            "reduces_what_is_stacked",
            "the reduction reads more than stacked results of the map",
            reduces_what_is_stacked,
        ),
        Guard("same_dim", "the reduction is over another dim than the map", same_dim),
        Guard("items_inside", "the map makes lists, not items, in each iteration", items_inside),
        Guard("whole_range", "the map walks only a part of its dim", whole_range),
    )

    def sites(self, graph: Graph, node: int) -> Iterator[Match]:
        for user in graph.users[node]:
            if isinstance(graph.op(user), Reduce):
                yield Match(self, graph, (node, user), graph.map(node).dim)

    def rewrite(self, graph: Graph, match: Match) -> Graph:
        u, r = match.nodes
        op, reduce = graph.map(u), graph.op_as(r, Reduce)
        gone = {v.port for v in graph[r].inputs if not _used_by_others(graph, v, r)}
        kept = [port for port in range(len(op.modes)) if port not in gone]
        outputs = [op.body.outputs[port] for port in kept]
        modes = [op.modes[port] for port in kept]
        redirect = {Value(u, old): Value(u, new) for new, old in enumerate(kept) if old != new}
        for component, value in enumerate(graph[r].inputs):
            redirect[Value(r, component)] = Value(u, len(outputs))
            outputs.append(Output("", op.body.outputs[value.port].value))
            modes.append(Reduced(reduce.combiner, component))
        body = Graph(op.body.nodes, op.body.inputs, outputs)
        fused = Map(op.dim, body, op.iterated, tuple(modes), op.first)
        node = Node(fused, graph[u].inputs, map_types(fused))
        return graph.edit(drop={r}, add={u: node}, redirect=redirect)


def _used_by_others(graph: Graph, value: Value, reduction: int) -> bool:
    if value in graph.output_values:
        return True
    users = (i for i in graph.users[value.node] if i != reduction)
    return any(value in graph[i].inputs for i in users)
