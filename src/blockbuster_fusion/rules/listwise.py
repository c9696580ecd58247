"""Operators on every item of a list: a map around one operator, or the operator alone on an item.

If a dim has one block there is no loop and no list; this view presents both forms alike.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.combiner import ADD
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import BlockReduce, Elementwise, Map, Op, Reduce, Value


@dataclass(frozen=True, slots=True)
class Listwise:
    """`op` of the operands, for every item of those that are iterated."""

    node: int
    op: Op
    operands: tuple[Value, ...]
    walked: tuple[bool, ...]
    dim: Dim | None
    """The dim of the loop, None without one."""

    @property
    def result(self) -> Value:
        return Value(self.node)


def listwise(graph: Graph, node: int) -> Listwise | None:
    """The node as one operator on every item of its lists, if it is one."""
    op = graph.op(node)
    if isinstance(op, Elementwise | BlockReduce):
        operands = graph[node].inputs
        return Listwise(node, op, operands, (False,) * len(operands), None)
    if not isinstance(op, Map) or op.body.sole is None:
        return None
    if op.first or len(op.modes) != 1 or op.reduces:
        return None
    inner = op.body[op.body.sole]
    ports = [op.body.inputs.index(v.node) for v in inner.inputs]
    operands = tuple(graph[node].inputs[port] for port in ports)
    walked = tuple(op.iterated[port] for port in ports)
    return Listwise(node, inner.op, operands, walked, op.dim)


def sum_of(graph: Graph, value: Value) -> tuple[Value, Dim] | None:
    """The list that `value` is the sum of, and the dim of the sum, if it is one."""
    op = graph.op(value.node)
    node = value.node
    if isinstance(op, Reduce) and op.combiner is ADD:
        (parts,) = graph[node].inputs
        if len(graph.uses(parts)) + (parts in graph.output_values) != 1:
            return None  # the sums of the blocks are used as well
        node = parts.node
    found = listwise(graph, node)
    if found is not None and isinstance(found.op, BlockReduce) and found.op.combiner is ADD:
        summed_in_loop = (found.dim is None) == (node == value.node)
        # without a loop over an axis of several blocks, it is the sum of one block only
        whole = found.op.dim.unit if found.dim is None else found.dim is found.op.dim
        return (found.operands[0], found.op.dim) if summed_in_loop and whole else None
    return _sum_inside(graph, value)


def _sum_inside(graph: Graph, value: Value) -> tuple[Value, Dim] | None:
    """The summand of a loop whose only result is the sum, as after rule 3."""
    op = graph.op(value.node)
    if not isinstance(op, Map) or op.body.sole is None or len(op.modes) != 1 or op.first:
        return None
    mode, inner = op.modes[0], op.body.op(op.body.sole)
    if mode is None or mode.combiner is not ADD:
        return None
    if not isinstance(inner, BlockReduce) or inner.combiner is not ADD:
        return None
    (operand,) = op.body[op.body.sole].inputs
    port = op.body.inputs.index(operand.node)
    if not op.iterated[port] or op.dim is not inner.dim:
        return None
    return graph[value.node].inputs[port], inner.dim


def build_listwise(builder: Builder, op: Op, operands: list[Value], dim: Dim | None) -> Value:
    """`op` of the operands, in a loop over `dim` if there is one."""
    dims = [] if dim is None else [dim]
    return builder.nest(dims, operands, lambda inner, *xs: inner.one(op, *xs))


def build_sum(builder: Builder, x: Value, along: Dim, loop: Dim | None) -> Value:
    """The sum of `x` along an axis, with a loop if the axis has several blocks."""
    parts = build_listwise(builder, BlockReduce(along, ADD), [x], loop)
    return parts if loop is None else builder.one(Reduce(loop, ADD), parts)


def uses_of(graph: Graph, value: Value) -> Iterator[int]:
    """The nodes that use a value."""
    return (i for i in graph.users[value.node] if value in graph[i].inputs)
