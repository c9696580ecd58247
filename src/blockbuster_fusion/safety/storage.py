"""Storage and arithmetic dtypes: narrow numbers in memory, wide ones in computations.

A program over float16 or bfloat16 lists computes in float32: loads widen, and
stores round. This pass makes these casts explicit, so that other passes need not know of them.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count

from blockbuster_fusion.ir.expr import arg, cast
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.infer import infer, map_types
from blockbuster_fusion.ir.ops import (
    Elementwise,
    Input,
    Map,
    Misc,
    Node,
    Op,
    Output,
    Pick,
    Reduce,
    Take,
    Value,
)
from blockbuster_fusion.ir.types import DType, Type

WIDE = DType.float32
NARROW = (DType.float16, DType.bfloat16)


Storage = DType | Mapping[str, DType]
"""The dtype in which float32 arrays are stored: one for all, or one per input and output name."""


def stored_as(graph: Graph, dtype: Storage, *, inside: DType | None = None) -> Graph:
    """The program with its float32 lists stored as `dtype`; it computes in float32 as before.

    `inside` is the dtype of intermediate lists: float32, so that no value is read back from a
    narrower copy.
    """
    given = [op.name for i in graph.inputs if isinstance(op := graph.op(i), Input)]
    results = [out.name for out in graph.outputs]
    if isinstance(dtype, DType):
        dtype = dict.fromkeys([*given, *results], dtype)
    if not any(kind in NARROW for kind in dtype.values()):
        return graph
    between = inside or WIDE
    narrower = [n for n, name in enumerate(results) if dtype.get(name, WIDE) is not between]
    graph = _with_own_lists(graph, narrower)
    wanted = {out.value: dtype.get(out.name, WIDE) for out in graph.outputs}

    def chosen(kind: Type, result: DType | None) -> DType:
        return kind.dtype if kind.dtype is not WIDE else (result or between)

    inputs = [
        _as(graph.type(Value(i)), dtype.get(name, WIDE))
        for i, name in zip(graph.inputs, given, strict=True)
    ]
    return _Storage(chosen, count(graph.max_id + 1)).program(graph, inputs, wanted)


def _with_own_lists(graph: Graph, results: Collection[int]) -> Graph:
    """The graph with separate lists for some of its results, which nothing in it reads.

    A result with another dtype than the intermediate lists must not be read back.
    """
    made, outputs = graph, list(graph.outputs)
    for number in results:
        value = outputs[number].value
        if not isinstance(made.op(value.node), Map) or not made.type(value).is_list:
            continue
        op, port = made.map(value.node), value.port
        body, modes = op.body, op.modes
        shared = sum(out.value == value for n, out in enumerate(outputs) if n not in results)
        if shared or made.uses(value):
            copy = Output("", body.outputs[port].value, body.outputs[port].axes)
            body = Graph(body.nodes, body.inputs, [*body.outputs, copy])
            port, modes = len(modes), (*modes, None)
        body = _with_own_lists(body, [port])
        if body is op.body:
            continue
        new = Map(op.dim, body, op.iterated, modes, op.first)
        node = Node(new, made[value.node].inputs, map_types(new))
        outputs[number] = replace(outputs[number], value=Value(value.node, port))
        made = Graph({**made.nodes, value.node: node}, made.inputs, outputs)
    return made


def computed_wide(graph: Graph) -> Graph:
    """The program with its 16-bit numbers computed as float32; its lists stay as they are."""
    if not any(_is_narrow(graph)):
        return graph

    def chosen(kind: Type, result: DType | None) -> DType:
        return kind.dtype

    inputs = [graph.type(Value(i)) for i in graph.inputs]
    wanted = {out.value: graph.type(out.value).dtype for out in graph.outputs}
    return _Storage(chosen, count(graph.max_id + 1)).program(graph, inputs, wanted)


def _is_narrow(graph: Graph) -> Iterator[bool]:
    """True if a computed item is narrow; items that are only loaded or stored do not count."""
    for i, node in graph.nodes.items():
        narrow = any(kind.dtype in NARROW and not kind.is_list for kind in node.types)
        if isinstance(node.op, Map):
            yield from _is_narrow(node.op.body)
        elif isinstance(node.op, Reduce | Pick | Take):
            yield narrow and not all(_is_cast(graph.op(user)) for user in graph.users[i])
        elif not isinstance(node.op, Input) and not _is_cast(node.op):
            yield narrow


def _is_cast(op: Op) -> bool:
    return isinstance(op, Elementwise) and op.expr.op == "cast"


def _as(kind: Type, dtype: DType) -> Type:
    """The type of a float32 array in memory."""
    return Type(kind.lists, kind.items, dtype, kind.virtual) if kind.dtype is WIDE else kind


class _Storage:
    """One rewrite; `chosen` gives the type in which a list is stored."""

    def __init__(self, chosen: Callable[[Type, DType | None], DType], ids: Iterator[int]) -> None:
        self.chosen = chosen
        self.ids = ids

    def program(self, graph: Graph, inputs: Sequence[Type], wanted: Mapping[Value, DType]) -> Graph:
        """A program for inputs of these types; results without axes are rounded as well."""
        made = self.write(graph, inputs, wanted)
        nodes, outputs = dict(made.nodes), list[Output]()
        for old, out in zip(graph.outputs, made.outputs, strict=True):
            value, kind = out.value, graph.type(old.value)
            if not kind.is_list:
                value = self.cast(nodes, value, self.chosen(kind, wanted[old.value]))
            outputs.append(replace(out, value=value))
        return Graph(nodes, made.inputs, outputs)

    def write(self, graph: Graph, inputs: Sequence[Type], results: Mapping[Value, DType]) -> Graph:
        """A graph for inputs of these types; `results` are values that leave the program."""
        nodes: dict[int, Node] = {}
        known: dict[Value, Value] = {}
        for i, kind in zip(graph.inputs, inputs, strict=True):
            nodes[i] = Node(Input(graph.input(i).name, kind), (), (kind,))
        for i in graph.inputs:
            known[Value(i)] = self.widened(nodes, Value(i))
        for i, node in graph.nodes.items():
            if i in graph.inputs:
                continue
            operands = tuple(known[v] for v in node.inputs)
            kinds = [nodes[v.node].types[v.port] for v in operands]
            op = node.op
            if isinstance(op, Map):
                op = self.map(i, op, kinds, results)
            elif isinstance(op, Misc):
                op = self.misc(i, op, results)
            nodes[i] = Node(op, operands, infer(op, kinds))
            for port in range(len(node.types)):
                known[Value(i, port)] = self.widened(nodes, Value(i, port))
        outputs = [replace(out, value=known[out.value]) for out in graph.outputs]
        return Graph(nodes, list(graph.inputs), outputs)

    def widened(self, nodes: dict[int, Node], value: Value) -> Value:
        """A value in the dtype of the computation."""
        kind = nodes[value.node].types[value.port]
        if kind.is_list or kind.dtype not in NARROW:
            return value
        return self.cast(nodes, value, WIDE)

    def cast(self, nodes: dict[int, Node], value: Value, dtype: DType) -> Value:
        kind = nodes[value.node].types[value.port]
        if kind.dtype is dtype:
            return value
        made, op = Value(next(self.ids)), Elementwise(cast(arg(0), dtype))
        nodes[made.node] = Node(op, (value,), infer(op, [kind]))
        return made

    def misc(self, i: int, op: Misc, results: Mapping[Value, DType]) -> Misc:
        """A misc operator has the result types that it declares."""
        kinds = tuple(
            _as(kind, self.chosen(kind, results.get(Value(i, port))))
            for port, kind in enumerate(op.results)
        )
        return Misc(op.namespace, op.name, op.attributes, kinds, op.layouts)

    def map(self, i: int, op: Map, kinds: Sequence[Type], results: Mapping[Value, DType]) -> Map:
        """A map whose stacked results are rounded."""
        ports = zip(kinds, op.iterated, strict=True)
        seen = [kind.iterate(op.dim) if iterated else kind for kind, iterated in ports]
        leaving = {
            out.value: results[Value(i, port)]
            for port, (out, mode) in enumerate(zip(op.body.outputs, op.modes, strict=True))
            if mode is None and Value(i, port) in results
        }
        body = self.write(op.body, seen, leaving)
        nodes, outputs = dict(body.nodes), list[Output]()
        for port, (out, mode) in enumerate(zip(body.outputs, op.modes, strict=True)):
            value = out.value
            if mode is None and not body.type(value).is_list:
                old = op.body.type(op.body.outputs[port].value)
                value = self.cast(nodes, value, self.chosen(old, results.get(Value(i, port))))
            outputs.append(Output(out.name, value, out.axes))
        return Map(op.dim, Graph(nodes, body.inputs, outputs), op.iterated, op.modes, op.first)
