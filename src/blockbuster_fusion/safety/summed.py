"""What is summed along an axis, and how: where sums may cancel, and the uses that make them."""

from collections.abc import Iterator
from dataclasses import dataclass

from blockbuster_fusion.ir.axis import Axis, Dim
from blockbuster_fusion.ir.combiner import ADD
from blockbuster_fusion.ir.expr import arg, cast
from blockbuster_fusion.ir.graph import Graph, Path
from blockbuster_fusion.ir.ops import BlockReduce, Dot, Elementwise, Input, Map, Value
from blockbuster_fusion.ir.types import DType, Type
from blockbuster_fusion.rules.expand_square import SQUARES
from blockbuster_fusion.safety.symbolic import Use

WIDENED = (cast(arg(0), DType.float32), cast(arg(0), DType.float64))
"""What is only wider is the same value."""


@dataclass(frozen=True, slots=True)
class Summed:
    """A list, or an item that a loop makes, that is summed along an axis."""

    value: Value
    loop: int | None
    """The map that makes the items, if they are none of the graph's own values."""
    dim: Dim
    uses: tuple[Use, ...]
    """Where its items are used."""


def summed_values(graph: Graph) -> Iterator[Summed]:
    """Lists and items of which sums along an axis may cancel."""
    for i, node in graph.nodes.items():
        for port, kind in enumerate(node.types):
            value = Value(i, port)
            for dim in _along(kind):
                yield from _if_it_may_cancel(
                    graph, Summed(value, None, dim, item_uses(graph, value))
                )
        if isinstance(node.op, Map) and node.op.dim.packed and not node.op.first:
            yield from _made_in_loop(graph, i, node.op)


def _along(kind: Type) -> list[Dim]:
    """The axes along which a value may be summed: of a list, the one that is left to walk."""
    if len(kind.lists) == 1:
        return [dim for dim in kind.lists if dim in kind.items]
    return [] if kind.lists else [dim for dim in kind.items if dim.unit]


def _made_in_loop(graph: Graph, loop: int, op: Map) -> Iterator[Summed]:
    """Items that a loop makes, sums, and perhaps stacks."""
    for i, node in op.body.nodes.items():
        if isinstance(node.op, Input):
            continue  # a list outside
        widened = isinstance(node.op, Elementwise) and node.op.expr in WIDENED
        if not widened and not node.types[0].is_list and op.dim in node.types[0].items:
            value = Value(i)
            uses = item_uses(op.body, value, (loop,))
            for port, (out, mode) in enumerate(zip(op.body.outputs, op.modes, strict=True)):
                if out.value == value and mode is None:
                    uses += item_uses(graph, Value(loop, port))
            yield from _if_it_may_cancel(graph, Summed(value, loop, op.dim, uses))


def item_uses(graph: Graph, value: Value, path: Path = ()) -> tuple[Use, ...]:
    """Where items of a value are used, in this graph and in its maps."""
    found: list[Use] = []
    for user, port in graph.uses(value):
        op = graph.op(user)
        if isinstance(op, Map):
            found += item_uses(op.body, Value(op.body.inputs[port]), (*path, user))
        elif isinstance(op, Elementwise) and op.expr in WIDENED:
            found += item_uses(graph, Value(user), path)
        elif not graph.type(value).is_list:
            found.append((path, user, port))
    return tuple(found)


def _if_it_may_cancel(graph: Graph, summed: Summed) -> Iterator[Summed]:
    kinds = kinds_of_use(graph, summed)
    if kinds >= {"sum", "square"} or _meets_a_sum(graph, summed):
        yield summed


def _meets_a_sum(graph: Graph, summed: Summed) -> bool:
    """Whether a dot's other operand is summed along the axis as well, as rule 5 leaves it."""
    axis = summed.dim.axis
    for path, node, port in summed.uses:
        if kind_of_use(graph, (path, node, port), axis) == "dot":
            other = graph.at(path)[node].inputs[1 - port]
            value, above = _origin(graph, other, path)
            found = item_uses(graph.at(above), value, above)
            if any(kind_of_use(graph, use, axis) == "sum" for use in found):
                return True
    return False


def _origin(graph: Graph, value: Value, path: Path) -> tuple[Value, Path]:
    """The value outside of maps that is handed in as this one."""
    while path and isinstance(graph.at(path).op(value.node), Input):
        port = graph.at(path).inputs.index(value.node)
        path, node = path[:-1], path[-1]
        value = graph.at(path)[node].inputs[port]
    return value, path


def kinds_of_use(graph: Graph, summed: Summed) -> set[str]:
    return {kind_of_use(graph, use, summed.dim.axis) for use in summed.uses}


def kind_of_use(graph: Graph, use: Use, axis: Axis) -> str:
    """What a use does: a sum along the axis, a square that is so summed, a dot along it."""
    path, node, _ = use
    inner = graph.at(path)
    op = inner.op(node)
    if isinstance(op, BlockReduce):
        return "sum" if op.combiner is ADD and op.dim.axis is axis else ""
    if isinstance(op, Dot):
        return "dot" if op.dim.axis is axis else ""
    if isinstance(op, Elementwise) and op.expr in SQUARES:
        uses = [(path, *use) for use in inner.uses(Value(node))]
        return "square" if all(kind_of_use(graph, u, axis) == "sum" for u in uses) else ""
    return ""
