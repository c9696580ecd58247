"""What a grid would compute again for each of its inner programs, as a kernel of its own.

A map whose body prepares something (row statistics, a normalised block) and then walks a second
parallel dim may have both dims in its grid; each program then prepares it anew. Here it is prepared
once, by a map of its own, and read back: the inverse of fusing the two maps.
"""

from collections.abc import Sequence
from itertools import count

from blockbuster_fusion.ir.graph import Graph, with_body
from blockbuster_fusion.ir.infer import map_types
from blockbuster_fusion.ir.ops import Input, Iota, Map, Node, Output, Value


def split_prologue(graph: Graph) -> Graph:
    """The program with such maps taken apart, wherever what is prepared takes a loop."""
    ids = count(graph.max_id + 1)
    return _Apart(ids).graph(graph)


class _Apart:
    def __init__(self, ids: "count[int]") -> None:
        self.ids = ids

    def graph(self, graph: Graph) -> Graph:
        """A graph with its maps taken apart, innermost first."""
        made = graph
        for i, op in graph.maps():
            if op.reduces or op.first:
                continue
            body = self.graph(op.body)
            if body is not op.body:
                made = made.edit(add={i: with_body(made[i], body)})
            made = self.taken_apart(made, i)
        return made

    def taken_apart(self, graph: Graph, i: int) -> Graph:
        """Map number `i` as one that prepares and one that goes on; the first again, if it can."""
        op, node = graph.map(i), graph[i]
        main = _main(op.body)
        if main is None:
            return graph
        body = op.body
        kept = {j for j in body.nodes if j in body.inputs or isinstance(body.op(j), Iota)}
        crossing = dict.fromkeys(v for v in body[main].inputs if v.node not in kept)
        leaving = [out.value for out in body.outputs]
        prepared = list(dict.fromkeys([*crossing, *(v for v in leaving if v.node != main)]))
        first, second = next(self.ids), next(self.ids)
        places = {v: Value(first, port) for port, v in enumerate(prepared)}
        before = self.preparing(op, node, main, prepared)
        after = self.going_on(op, node, main, {v: places[v] for v in crossing})
        ends = [v for v in leaving if v.node == main]
        places |= {v: Value(second, port) for port, v in enumerate(ends)}
        moved = {Value(i, port): places[v] for port, v in enumerate(leaving)}
        made = graph.edit(drop=[i], add={first: before, second: after}, redirect=moved)
        return self.taken_apart(made, first)

    def preparing(self, op: Map, node: Node, main: int, prepared: Sequence[Value]) -> Node:
        """The map that prepares, and stacks what is needed of it."""
        outputs = [Output("", value) for value in prepared]
        nodes = {j: n for j, n in op.body.nodes.items() if j != main}
        body = Graph(nodes, op.body.inputs, outputs).without_dead_nodes()
        return _pruned(Map(op.dim, body, op.iterated, (None,) * len(outputs)), node.inputs)

    def going_on(self, op: Map, node: Node, main: int, ports: dict[Value, Value]) -> Node:
        """The map that goes on with what was prepared."""
        body = op.body
        shared = [j for j in body.nodes if j in body.inputs or isinstance(body.op(j), Iota)]
        known = {Value(j): Value(next(self.ids)) for j in shared}
        nodes = {known[Value(j)].node: body[j] for j in shared}
        inputs = [known[Value(j)].node for j in body.inputs]
        for value in ports:
            known[value] = Value(next(self.ids))
            kind = body.type(value)
            nodes[known[value].node] = Node(Input("", kind), (), (kind,))
            inputs.append(known[value].node)
        old = body[main]
        nodes[main] = Node(old.op, tuple(known[v] for v in old.inputs), old.types)
        outputs = [out for out in body.outputs if out.value.node == main]
        made = Graph(nodes, inputs, outputs).without_dead_nodes()
        iterated = (*op.iterated, *(True for _ in ports))
        operands = (*node.inputs, *ports.values())
        return _pruned(Map(op.dim, made, iterated, (None,) * len(outputs)), operands)


def _main(body: Graph) -> int | None:
    """The last parallel map that only yields, where a loop comes before it."""
    makers = [out.value.node for out in body.outputs]
    for main in sorted(set(makers), key=makers.index, reverse=True):
        op = body.op(main)
        if not isinstance(op, Map) or op.reduces or body.users[main]:
            continue
        others = [j for j in body.nodes if j != main and j not in body.inputs]
        if any(isinstance(body.op(j), Map) for j in others):
            return main
    return None


def _pruned(op: Map, operands: Sequence[Value]) -> Node:
    """A map without the ports that its body does not use."""
    body = op.body
    used = {v.node for n in body.nodes.values() for v in n.inputs}
    used |= {out.value.node for out in body.outputs}
    ports = [p for p, j in enumerate(body.inputs) if j in used]
    nodes = {j: n for j, n in body.nodes.items() if j in used or j not in body.inputs}
    inner = Graph(nodes, [body.inputs[p] for p in ports], body.outputs)
    made = Map(op.dim, inner, tuple(op.iterated[p] for p in ports), op.modes, op.first)
    return Node(made, tuple(operands[p] for p in ports), map_types(made))
