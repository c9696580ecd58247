"""Finds values whose sums along an axis may cancel, and the uses that form these sums."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from blockbuster_fusion.ir.analysis import analysis
from blockbuster_fusion.ir.axis import Axis, Dim
from blockbuster_fusion.ir.combiner import ADD
from blockbuster_fusion.ir.expr import arg, cast
from blockbuster_fusion.ir.graph import Graph, Path
from blockbuster_fusion.ir.ops import BlockReduce, Dot, Elementwise, Input, Map, Op, Value
from blockbuster_fusion.ir.types import DType, Type
from blockbuster_fusion.rules.expand_square import SQUARES
from blockbuster_fusion.safety.linearity import is_linear
from blockbuster_fusion.safety.pivot.polynomials import Use

WIDENED = (cast(arg(0), DType.float32), cast(arg(0), DType.float64))
"""Casts that widen a value: the result counts as the same value."""


@dataclass(frozen=True, slots=True)
class Summed:
    """A list, or an item computed in loops, that is summed along some axes."""

    value: Value
    loops: Path
    """The maps that compute the items, each in the body of the one before it."""
    dims: tuple[Dim, ...]
    uses: tuple[Use, ...]
    """The uses of its items."""

    @property
    def axes(self) -> frozenset[Axis]:
        return frozenset(dim.axis for dim in self.dims)


def summed_values(graph: Graph) -> Iterator[Summed]:
    """Lists and items whose sums along one or more axes may cancel."""
    for i, node in graph.nodes.items():
        for port, kind in enumerate(node.types):
            value = Value(i, port)
            for dims in _along(kind):
                yield from _if_it_may_cancel(
                    graph, Summed(value, (), dims, item_uses(graph, value))
                )
        if isinstance(node.op, Map):
            yield from _made_in_loops(graph, graph, (i,), ())


def summed_apart(graph: Graph) -> Iterator[Summed]:
    """Lists of lists whose sums along one axis may cancel, and which get no pivot there."""
    for i, node in graph.nodes.items():
        for port, kind in enumerate(node.types):
            value = Value(i, port)
            for dim in kind.lists if len(kind.lists) > 1 else ():
                summed = Summed(value, (), (dim,), item_uses(graph, value))
                if dim in kind.items and kinds_of_use(graph, summed) >= {"sum", "square"}:
                    yield summed


def _along(kind: Type) -> Iterator[tuple[Dim, ...]]:
    """The axes along which a value may be summed; for a list, those not yet iterated.

    Sets of several axes come first: a pivot along one axis would hide the sums along all.
    """
    if not set(kind.lists) <= set(kind.items):
        return
    units = tuple(dim for dim in kind.items if dim.unit)
    if units and len(kind.lists + units) > 1:
        yield kind.lists + units
    if kind.lists:
        yield kind.lists
    else:
        yield from ((dim,) for dim in units)


def _made_in_loops(
    graph: Graph, level: Graph, loops: Path, dims: tuple[Dim, ...]
) -> Iterator[Summed]:
    """Values that loops compute and sum, and may stack; `level` is the graph of the last loop."""
    op = level.map(loops[-1])
    if not op.dim.packed or op.first or op.dim in dims:
        return  # a second loop over the same blocks has sums of its own, in the body of the first
    dims = (*dims, op.dim)
    for i, node in op.body.nodes.items():
        if isinstance(node.op, Map):
            yield from _made_in_loops(graph, op.body, (*loops, i), dims)
        if isinstance(node.op, Input) or is_widened(node.op):
            continue  # an input is a list outside
        for port, kind in enumerate(node.types):
            value, walked = Value(i, port), tuple(dim for dim in dims if dim in kind.items)
            uses = tuple(_uses_inside_and_out(graph, value, loops))
            for more in (*_along(kind), ()) if not kind.lists else _along(kind):
                summed = Summed(value, loops, (*walked, *more), uses)
                for found in _if_it_may_cancel(graph, summed):
                    if walked == dims or _is_same_in(graph, found):
                        yield found


def _is_same_in(graph: Graph, summed: Summed) -> bool:
    """True if loops over other axes compute the same value in every iteration."""
    for depth, loop in enumerate(summed.loops):
        op = graph.at(summed.loops[:depth]).map(loop)
        needed = made_of(op.body, summed.loops[depth + 1 :], summed.value)
        walks = any(op.iterated[port] for port, i in enumerate(op.body.inputs) if i in needed)
        if walks is not (op.dim in summed.dims):
            return False
    return True


def made_of(body: Graph, loops: Path, value: Value) -> set[int]:
    """The nodes of a graph that a value depends on; it may be in inner loops."""
    needed = {value.node}
    if loops:
        inner = body.map(loops[0]).body
        inside = made_of(inner, loops[1:], value)
        ports = [port for port, i in enumerate(inner.inputs) if i in inside]
        needed = {body[loops[0]].inputs[port].node for port in ports}
    for i in list(body.nodes)[::-1]:
        if i in needed:
            needed.update(v.node for v in body[i].inputs)
    return needed


def is_widened(op: Op) -> bool:
    """True if an operator only converts to a wider dtype."""
    return isinstance(op, Elementwise) and op.expr in WIDENED


def _uses_inside_and_out(graph: Graph, value: Value, loops: Path) -> Iterator[Use]:
    """The uses of the items of a loop, and of the list that the loop stacks."""
    yield from item_uses(graph.at(loops), value, loops)
    if loops:
        op = graph.at(loops[:-1]).map(loops[-1])
        for port, (out, mode) in enumerate(zip(op.body.outputs, op.modes, strict=True)):
            if out.value == value and mode is None:
                yield from _uses_inside_and_out(graph, Value(loops[-1], port), loops[:-1])


def item_uses(graph: Graph, value: Value, path: Path = ()) -> tuple[Use, ...]:
    """The uses of the items of a value, in this graph and in its maps."""
    found: list[Use] = []
    for user, port in graph.uses(value):
        op = graph.op(user)
        if isinstance(op, Map):
            found += item_uses(op.body, Value(op.body.inputs[port]), (*path, user))
        elif is_widened(op):
            found += item_uses(graph, Value(user), path)
        elif not graph.type(value).is_list:
            found.append((path, user, port))
    return tuple(found)


def _if_it_may_cancel(graph: Graph, summed: Summed) -> Iterator[Summed]:
    if not summed.dims or (len(summed.dims) > 1 and not summed.axes <= summed_axes(graph)):
        return
    if kinds_of_use(graph, summed) >= {"sum", "square"} or _meets_a_sum(graph, summed):
        yield summed


@analysis
def summed_axes(graph: Graph) -> frozenset[Axis]:
    """The axes along which blocks are summed, in a graph or in its maps."""
    found: set[Axis] = set()
    for node in graph.nodes.values():
        match node.op:
            case Map(body=body):
                found |= summed_axes(body)
            case BlockReduce(dim=dim, combiner=combiner) if combiner is ADD:
                found.add(dim.axis)
    return frozenset(found)


def _meets_a_sum(graph: Graph, summed: Summed) -> bool:
    """True if the other operand of a dot is also summed along the axis, as after rule 5."""
    for path, node, port in summed.uses:
        if kind_of_use(graph, (path, node, port), summed.axes) == "dot":
            other = graph.at(path)[node].inputs[1 - port]
            value, above = _origin(graph, other, path)
            found = item_uses(graph.at(above), value, above)
            if any(kind_of_use(graph, use, summed.axes) == "sum" for use in found):
                return True
    return False


def _origin(graph: Graph, value: Value, path: Path) -> tuple[Value, Path]:
    """The value outside of maps behind an input of a body."""
    while path and isinstance(graph.at(path).op(value.node), Input):
        port = graph.at(path).inputs.index(value.node)
        path, node = path[:-1], path[-1]
        value = graph.at(path)[node].inputs[port]
    return value, path


def kinds_of_use(graph: Graph, summed: Summed) -> set[str]:
    return {kind_of_use(graph, use, summed.axes) for use in summed.uses}


def is_squared(graph: Graph, summed: Summed) -> bool:
    """True if squares of a value are summed, or squares of a multiple of it."""
    pending = list(summed.uses)
    while pending:
        path, node, port = use = pending.pop()
        if kind_of_use(graph, use, summed.axes) == "square":
            return True
        op = graph.at(path).op(node)
        if isinstance(op, Elementwise) and is_linear(op.expr, port):
            pending += item_uses(graph.at(path), Value(node), path)
    return False


def kind_of_use(graph: Graph, use: Use, axes: Collection[Axis]) -> str:
    """The kind of a use: a sum along an axis of these, a square that is so summed, or a dot."""
    path, node, _ = use
    inner = graph.at(path)
    op = inner.op(node)
    if isinstance(op, BlockReduce):
        return "sum" if op.combiner is ADD and op.dim.axis in axes else ""
    if isinstance(op, Dot):
        return "dot" if op.dim.axis in axes else ""
    if isinstance(op, Elementwise) and op.expr in SQUARES:
        uses = [(path, *use) for use in inner.uses(Value(node))]
        return "square" if all(kind_of_use(graph, u, axes) == "sum" for u in uses) else ""
    return ""
