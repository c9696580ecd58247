"""Unit dims: a dim with one block has no loops, and its lists are items."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import count

from blockbuster_fusion.errors import InvalidGraph
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.infer import infer
from blockbuster_fusion.ir.ops import Input, Map, Node, Op, Output, Pick, Reduce, Take, Value
from blockbuster_fusion.ir.types import Type

_Known = dict[Value, Value]
"""The copy of each value of the graph that is being copied."""


def specialise(graph: Graph, unit: Collection[Dim]) -> Graph:
    """The program in which each dim in `unit` has one block.

    Maps over such a dim are replaced by their bodies, and reductions by their operands. A list in
    memory is read whole along the axis, through a pick of its only block. The table of a `Take`
    stays a list, because it has to be in memory.
    """
    tables = _tables(graph)
    whole = {
        dim: dim.as_unit for dim in unit if dim in graph.dims and dim.packed and dim not in tables
    }
    if not whole:
        return graph
    frame = _Frame(count(graph.max_id + 1))
    known: _Known = {}
    _copy(graph.substitute(whole), frame, known)
    outputs = [replace(out, value=known[out.value]) for out in graph.outputs]
    return Graph(frame.nodes, graph.inputs, outputs)


def _tables(graph: Graph) -> set[Dim]:
    """The dims along which elements of lists are looked up."""
    return {
        dim
        for _, inner in graph.walk()
        for node in inner.nodes.values()
        if isinstance(node.op, Take)
        for dim in inner.type(node.inputs[0]).lists
    }


class _Frame:
    """A graph under construction; inside a map its inputs are added as they are needed."""

    def __init__(self, ids: Iterator[int], around: "_Frame | None" = None) -> None:
        self.ids = ids
        self.around = around
        self.nodes: dict[int, Node] = {}
        self.ports: dict[tuple[Value, bool], Value] = {}
        self.picked: dict[tuple[Value, Dim], Value] = {}
        self.dim: Dim | None = None

    def type(self, value: Value) -> Type:
        return self.nodes[value.node].types[value.port]

    def add(self, i: int, op: Op, operands: tuple[Value, ...]) -> None:
        self.nodes[i] = Node(op, operands, infer(op, [self.type(v) for v in operands]))

    def port(self, outer: Value, iterated: bool, name: str, wanted: int | None = None) -> Value:
        """The input for an operand of the map."""
        key = (outer, iterated)
        if key not in self.ports:
            assert self.around is not None
            assert self.dim is not None
            kind = self.around.type(outer)
            i = next(self.ids) if wanted is None else wanted
            self.add(i, Input(name, kind.iterate(self.dim) if iterated else kind), ())
            self.ports[key] = Value(i)
        return self.ports[key]

    def element(self, value: Value, dim: Dim) -> Value:
        """The only element of a list over a unit dim; other values are returned as they are."""
        if self.type(value).list_dim(dim) is None:
            return value
        if (value, dim) not in self.picked:
            self.picked[value, dim] = self._pick(value, dim)
        return self.picked[value, dim]

    def _pick(self, value: Value, dim: Dim) -> Value:
        outside = next((key for key, inner in self.ports.items() if inner == value), None)
        if outside is not None:
            assert self.around is not None
            outer, iterated = outside
            name = getattr(self.nodes[value.node].op, "name", "")
            return self.port(self.around.element(outer, dim), iterated, name)
        node = self.nodes[value.node]
        if isinstance(node.op, Pick) and node.op.dim.unit and dim.label < node.op.dim.label:
            # in one order of dims, so that equal blocks are the same value
            return self.element(self.element(node.inputs[0], dim), node.op.dim)
        i = next(self.ids)
        self.add(i, Pick(dim, 0), (value,))
        return Value(i)


def _copy(graph: Graph, frame: _Frame, known: _Known) -> None:
    """Copies the nodes of a graph into a frame, without loops over unit dims."""
    for i, node in graph.nodes.items():
        op = node.op
        if Value(i) in known:
            continue  # an input that is known already
        if isinstance(op, Map) and op.dim.unit:
            _inline(i, node, op, frame, known)
            continue
        if isinstance(op, Reduce | Pick) and op.dim.unit:
            known |= {
                Value(i, port): frame.element(known[v], op.dim)
                for port, v in enumerate(node.inputs)
            }
            continue
        if isinstance(op, Map):
            _copy_map(i, node, op, frame, known)
        else:
            frame.add(i, op, tuple(known[v] for v in node.inputs))
        known |= {Value(i, port): Value(i, port) for port in range(len(node.types))}


def _inline(i: int, node: Node, op: Map, frame: _Frame, known: _Known) -> None:
    """Copies the body of a map in place of the map."""
    if op.first:
        problem = f"the map over {op.dim} has been peeled, so the dim cannot have only one block"
        raise InvalidGraph(place=f"node %{i}", problem=problem, neighbours="")
    inner: _Known = {}
    for port, (value, iterated) in enumerate(zip(node.inputs, op.iterated, strict=True)):
        outer = known[value]
        element = frame.element(outer, op.dim) if iterated else outer
        inner[Value(op.body.inputs[port])] = element
    _copy(op.body, frame, inner)
    known |= {Value(i, port): inner[out.value] for port, out in enumerate(op.body.outputs)}


def _copy_map(i: int, node: Node, op: Map, frame: _Frame, known: _Known) -> None:
    body = _Frame(frame.ids, frame)
    body.dim = op.dim
    inner: _Known = {}
    for port, (value, iterated) in enumerate(zip(node.inputs, op.iterated, strict=True)):
        old = op.body.inputs[port]
        name = getattr(op.body.op(old), "name", "")
        inner[Value(old)] = body.port(known[value], iterated, name, old)
    _copy(op.body, body, inner)
    outputs = [Output(out.name, inner[out.value], out.axes) for out in op.body.outputs]
    used = {v.node for n in body.nodes.values() for v in n.inputs} | {o.value.node for o in outputs}
    ports = {key: inner for key, inner in body.ports.items() if inner.node in used}
    nodes = {j: n for j, n in body.nodes.items() if j in used or not isinstance(n.op, Input)}
    graph = Graph(nodes, [inner.node for inner in ports.values()], outputs)
    made = Map(op.dim, graph, tuple(iterated for _, iterated in ports), op.modes, op.first)
    frame.add(i, made, tuple(outer for outer, _ in ports))
