"""Storage and arithmetic: narrow numbers in memory, wide ones where they are computed with.

A program over float16 or bfloat16 lists computes in float32: what is loaded is widened, what is
stored is rounded. This makes it explicit, so that rules and passes need not know of it.
"""

from collections.abc import Iterator
from itertools import count

from blockbuster_fusion.ir.expr import arg, cast
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.infer import infer
from blockbuster_fusion.ir.ops import Elementwise, Input, Map, Misc, Node, Output, Value
from blockbuster_fusion.ir.types import DType, Type

WIDE = DType.float32


def stored_as(graph: Graph, dtype: DType) -> Graph:
    """The program with its float32 lists stored as `dtype`; it computes in float32 as before."""
    if dtype is WIDE or not dtype.is_float:
        return graph
    return _narrowed(graph, dtype, [_narrow(graph.type(Value(i)), dtype) for i in graph.inputs])


def _narrow(kind: Type, dtype: DType) -> Type:
    """The type of a list in memory; items are computed with and stay as they are."""
    if not kind.is_buffered or kind.dtype is not WIDE:
        return kind
    return Type(kind.lists, kind.items, dtype)


def _narrowed(
    graph: Graph, dtype: DType, inputs: list[Type], ids: Iterator[int] | None = None
) -> Graph:
    ids = count(graph.max_id + 1) if ids is None else ids
    nodes: dict[int, Node] = {}
    known: dict[Value, Value] = {}

    def item(value: Value) -> Value:
        """A value as it is computed with: what has just been loaded is widened."""
        kind = nodes[value.node].types[value.port]
        if kind.is_list or kind.dtype is not dtype:
            return value
        new = next(ids)
        op = Elementwise(cast(arg(0), WIDE))
        nodes[new] = Node(op, (value,), infer(op, [kind]))
        return Value(new)

    for i, kind in zip(graph.inputs, inputs, strict=True):
        op = graph.op(i)
        assert isinstance(op, Input)
        nodes[i] = Node(Input(op.name, kind), (), (kind,))
    for i in graph.inputs:
        known[Value(i)] = item(Value(i))
    for i, node in graph.nodes.items():
        if i in graph.inputs:
            continue
        operands = tuple(known[v] for v in node.inputs)
        kinds = [nodes[v.node].types[v.port] for v in operands]
        op = node.op
        if isinstance(op, Map):
            ports = zip(kinds, op.iterated, strict=True)
            seen = [kind.iterate(op.dim) if iterated else kind for kind, iterated in ports]
            op = Map(op.dim, _stacked(op, dtype, seen, ids), op.iterated, op.modes, op.first)
        elif isinstance(op, Misc):
            results = tuple(_narrow(kind, dtype) for kind in op.results)
            op = Misc(op.namespace, op.name, op.attributes, results, op.layouts)
        nodes[i] = Node(op, operands, infer(op, kinds))
        for port in range(len(node.types)):
            known[Value(i, port)] = item(Value(i, port))
    outputs = [Output(out.name, known[out.value], out.axes) for out in graph.outputs]
    return Graph(nodes, list(graph.inputs), outputs)


def _stacked(op: Map, dtype: DType, seen: list[Type], ids: Iterator[int]) -> Graph:
    """The body of a map, with what it stacks rounded."""
    body = _narrowed(op.body, dtype, seen, ids)
    nodes = dict(body.nodes)
    outputs: list[Output] = []
    for out, mode in zip(body.outputs, op.modes, strict=True):
        value, kind = out.value, body.type(out.value)
        if mode is None and not kind.is_list and kind.dtype is WIDE:
            rounded = Elementwise(cast(arg(0), dtype))
            value = Value(next(ids))
            nodes[value.node] = Node(rounded, (out.value,), infer(rounded, [kind]))
        outputs.append(Output(out.name, value, out.axes))
    return Graph(nodes, body.inputs, outputs)
