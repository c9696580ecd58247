"""Prologues that each program of a grid would repeat, moved into a kernel of their own.

A map may compute a prologue (row statistics, a normalised block) before a map over a second
parallel dim. If both dims are in the grid, each program computes the prologue again. This pass
computes it once, in a map of its own, and loads it: the inverse of fusing the two maps.
"""

from collections.abc import Sequence
from itertools import count

from blockbuster_fusion.ir.graph import Graph, with_body
from blockbuster_fusion.ir.infer import map_types
from blockbuster_fusion.ir.ops import BlockReduce, Input, Iota, Map, Node, Output, Scan, Value


def split_prologue(graph: Graph) -> Graph:
    """Splits maps with a prologue."""
    ids = count(graph.max_id + 1)
    return _Splitting(ids).graph(graph)


class _Splitting:
    def __init__(self, ids: "count[int]") -> None:
        self.ids = ids

    def graph(self, graph: Graph) -> Graph:
        """A graph with its maps split, innermost first."""
        made = graph
        for i, op in graph.maps():
            if op.reduces or op.first:
                continue
            body = self.graph(op.body)
            if body is not op.body:
                made = made.edit(add={i: with_body(made[i], body)})
            made = self.split(made, i)
        return made

    def split(self, graph: Graph, i: int) -> Graph:
        """Splits map `i` into its prologue and the rest, and the prologue again if possible."""
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
        before = self.prologue(op, node, main, prepared)
        after = self.rest(op, node, main, {v: places[v] for v in crossing})
        ends = [v for v in leaving if v.node == main]
        places |= {v: Value(second, port) for port, v in enumerate(ends)}
        moved = {Value(i, port): places[v] for port, v in enumerate(leaving)}
        made = graph.edit(drop=[i], add={first: before, second: after}, redirect=moved)
        return self.split(made, first)

    def prologue(self, op: Map, node: Node, main: int, prepared: Sequence[Value]) -> Node:
        """The map that computes the prologue, and stacks the values that the rest needs."""
        outputs = [Output("", value) for value in prepared]
        nodes = {j: n for j, n in op.body.nodes.items() if j != main}
        body = Graph(nodes, op.body.inputs, outputs).without_dead_nodes()
        return _pruned(Map(op.dim, body, op.iterated, (None,) * len(outputs)), node.inputs)

    def rest(self, op: Map, node: Node, main: int, ports: dict[Value, Value]) -> Node:
        """The map that computes the rest from the prologue."""
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
    """The last parallel map whose results are only yielded, if there is a prologue.

    A prologue has a loop or a reduction, or its results are yielded too.
    """
    makers = [out.value.node for out in body.outputs]
    for main in sorted(set(makers), key=makers.index, reverse=True):
        op = body.op(main)
        if not isinstance(op, Map) or op.reduces or op.scans or body.users[main]:
            continue
        others = [body.op(j) for j in body.nodes if j != main and j not in body.inputs]
        if any(isinstance(op, Map | BlockReduce | Scan) for op in others) or {*makers} > {main}:
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
