"""Pivots: shifts that keep the terms of cancelling sums small.

A fused LayerNorm computes the variance as E[x²] - μ² and the product as x·W - μ·Σw: differences of
large numbers if the rows have a large offset. Neither depends on a shift of x, so a pivot, the mean
of the row, is subtracted from x first. safety/pivot/shift.py proves that the shift changes no
output.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import count
from operator import mul

from blockbuster_fusion.ir.axis import Axis, Dim
from blockbuster_fusion.ir.builder import Builder, Sketch
from blockbuster_fusion.ir.combiner import ADD, Reduced
from blockbuster_fusion.ir.expr import Expr, arg, cast, size
from blockbuster_fusion.ir.graph import Graph, Path, with_body
from blockbuster_fusion.ir.infer import map_types
from blockbuster_fusion.ir.ops import (
    BlockReduce,
    Dot,
    Elementwise,
    Input,
    Map,
    Node,
    Pick,
    Value,
)
from blockbuster_fusion.ir.types import Type
from blockbuster_fusion.rules.copy import copied_node
from blockbuster_fusion.rules.merge import without_unused_results
from blockbuster_fusion.safety.choices import Loss, Precision, Safe, SafetyChoice
from blockbuster_fusion.safety.guards import finite_or_zero
from blockbuster_fusion.safety.pivot.cancelling_sums import (
    WIDENED,
    Summed,
    is_squared,
    kind_of_use,
    made_of,
    summed_apart,
    summed_values,
)
from blockbuster_fusion.safety.pivot.polynomials import Use
from blockbuster_fusion.safety.pivot.shift import Shift, unfelt_shift
from blockbuster_fusion.safety.storage import NARROW

DEAR = "sums of it cancel, and a dot makes it: its mean would cost as much again"
Move = Expr | Elementwise | None
"""The change of a value by a pivot: a multiple added, a function of it, or the pivot itself."""

APART = "sums of it cancel, and they are made in loops apart"
FELT = "sums of it cancel, and an output feels every shift"


def with_pivots(graph: Graph) -> Safe:
    """The program with a pivot subtracted wherever sums cancel and a shift changes no output.

    Squared values come first, in all maps: Σx² loses the most digits, and the same pivot repairs
    x·W - μ·Σw. A pivot of W would repair neither.
    """
    walk = _Walk(count(graph.max_id + 1))
    for squared in (True, False):
        graph = _pivoted(graph, (), walk, squared)
    if walk.choices:
        graph = _without_unused_results(graph)
    _note_losses(graph, (), walk)
    return Safe(graph, tuple(walk.choices), Precision(tuple(walk.losses)))


def _without_unused_results(graph: Graph) -> Graph:
    """The graph without results of maps that became unused when sums were replaced."""
    for i in [i for i, _ in graph.maps()]:
        graph = without_unused_results(graph, i)
        body = graph.map(i).body
        smaller = _without_unused_results(body)
        if smaller is not body:
            graph = graph.edit(add={i: with_body(graph[i], smaller)})
    return graph


def _note_losses(graph: Graph, path: Path, walk: "_Walk") -> None:
    """Notes the sums that still cancel, because different loops compute sums and squares."""
    for summed in summed_apart(graph):
        if unfelt_shift(graph, summed, walk.pivots).loses:
            walk.losses.append(Loss(path, summed.value.node, summed.dims[0].name, APART))
    for i, op in graph.maps():
        _note_losses(op.body, (*path, i), walk)


@dataclass(frozen=True, slots=True)
class _Walk:
    """Results collected on the way through a graph and its maps."""

    ids: Iterator[int]
    choices: list[SafetyChoice] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    tried: set[tuple[Value, Path, tuple[Dim, ...]]] = field(default_factory=set)
    done: dict[int, frozenset[Axis]] = field(default_factory=dict)
    """The nodes with a pivot subtracted from an operand, each with the axes of the pivot."""
    pivots: set[int] = field(default_factory=set)
    """The nodes that compute pivots: they get no other pivot."""


def _pivoted(graph: Graph, path: Path, walk: _Walk, squared: bool) -> Graph:
    """Rewrites a graph and those in its maps, outermost first, where more cancellation is visible.

    It examines either squared values only, or all remaining ones.
    """
    graph = _picked_once(graph)
    while (summed := _next_summed(graph, walk, squared)) is not None:
        walk.tried.add((summed.value, summed.loops, summed.dims))
        found = unfelt_shift(graph, summed, walk.pivots)
        node, axis = summed.value.node, " ".join(dim.name for dim in summed.dims)
        if found.shift is None or _is_dear(graph, summed):
            if found.loses:
                reason = DEAR if found.shift is not None else FELT
                walk.losses.append(Loss(path, node, axis, reason))
            continue
        walk.done.update((node, summed.axes) for _, node, _ in found.shift.uses)
        reason = "sums of it cancel, and nothing feels a shift"
        walk.choices.append(SafetyChoice(path, node, "pivot", "row", axis, reason))
        graph = _subtract(graph, summed, found.shift, walk)
    for i, op in list(graph.maps()):
        body = _pivoted(op.body, (*path, i), walk, squared)
        if body is not op.body:
            made = Map(op.dim, body, op.iterated, op.modes, op.first)
            graph = graph.edit(add={i: Node(made, graph[i].inputs, map_types(made))})
    return graph


def _next_summed(graph: Graph, walk: _Walk, squared: bool) -> Summed | None:
    """The summed value that is to be examined next."""
    for summed in summed_values(graph):
        if (summed.value, summed.loops, summed.dims) in walk.tried:
            continue
        if _is_mended(graph, summed, walk):
            continue
        if not squared or is_squared(graph, summed):
            return summed
    return None


def _is_mended(graph: Graph, summed: Summed, walk: _Walk) -> bool:
    """True if a pivot of another value has repaired the sums of this one, except its squares."""
    done = [use for use in summed.uses if walk.done.get(use[1]) == summed.axes]
    left = (use for use in summed.uses if use not in done)
    return bool(done) and all(kind_of_use(graph, use, summed.axes) != "square" for use in left)


def _picked_once(graph: Graph) -> Graph:
    """The graph with one node per picked element, so that it has all uses."""
    first: dict[Node, int] = {}
    again: dict[int, int] = {}
    for i, node in graph.nodes.items():
        if isinstance(node.op, Pick) and first.setdefault(node, i) != i:
            again[i] = first[node]
    redirect = {Value(i): Value(kept) for i, kept in again.items()}
    return graph.edit(drop=again, redirect=redirect) if again else graph


# ---------------------------------------------------------------- the rewrite


def _subtract(graph: Graph, summed: Summed, shift: Shift, walk: _Walk) -> Graph:
    """The graph with the pivot computed, subtracted at the uses and added back to outputs.

    The pivot of a row with infinities or NaN is 0, so that these propagate as before.
    """
    first, ids = next(walk.ids), walk.ids
    sketch = Sketch(graph, ids)
    walked = [_walked(graph, summed, dim) if dim.is_free else dim for dim in summed.dims]
    total = _sum_in_loops(sketch, graph, summed.loops, summed.value, walked, {})
    length = reduce(mul, (size(dim.axis) for dim in summed.dims))
    pivot = sketch.one(Elementwise(finite_or_zero(arg(0) / length)), total)
    walk.pivots.update(range(first, pivot.node + 1))
    made = _shifted(graph.edit(add=sketch.nodes), pivot, shift.uses, ids)
    made = _shifted(made, total, shift.total_uses, ids)
    made = _amended(made, pivot, shift.outputs, ids)
    return _amended(made, total, shift.total_outputs, ids)


def _is_dear(graph: Graph, summed: Summed) -> bool:
    """True if the loops compute the value by a dot: too costly to repeat for every block."""
    for depth, loop in enumerate(summed.loops):
        body = graph.at(summed.loops[:depth]).map(loop).body
        ops = (body.op(i) for i in made_of(body, summed.loops[depth + 1 :], summed.value))
        if any(isinstance(op, Dot) or (isinstance(op, Map) and op.body.holds_dot) for op in ops):
            return True
    return False


def _sum_in_loops(
    build: Builder,
    graph: Graph,
    loops: Path,
    value: Value,
    dims: Sequence[Dim],
    known: Mapping[Value, Value],
) -> Value:
    """The sum of a value that loops compute, in new loops; `known` are available values."""
    if not loops:
        return _sum_of_items(build, known.get(value, value), dims)
    op, operands = graph.map(loops[0]), graph[loops[0]].inputs
    needed = made_of(op.body, loops[1:], value)
    ports = [port for port, i in enumerate(op.body.inputs) if i in needed]
    walked = [port for port in ports if op.iterated[port]]
    whole = [port for port in ports if not op.iterated[port]]
    lists, items = (
        [known.get(operands[port], operands[port]) for port in some] for some in (walked, whole)
    )

    def total(inner: Builder, *values: Value) -> Value:
        ends = (Value(op.body.inputs[port]) for port in (*walked, *whole))
        copied = _copied(inner, op.body, needed, dict(zip(ends, values, strict=True)))
        return _sum_in_loops(inner, op.body, loops[1:], value, dims, copied)

    if not walked:  # each iteration computes the same
        return total(build, *items)
    return build.map(op.dim, lists, items, lambda *parts: [(total(*parts), Reduced(ADD))])[0]


def _sum_of_items(build: Builder, x: Value, dims: Sequence[Dim]) -> Value:
    """The sum of a value along some axes, with a loop per list dim."""
    for dim in dims:
        if build.type(x).list_dim(dim) is not None:
            made = build.map(
                dim, [x], [], lambda inner, e: [(_sum_of_items(inner, e, dims), Reduced(ADD))]
            )
            return made[0]
    x = _wide(build, x)
    for dim in reversed(dims):
        own = next(d for d in build.type(x).items if d.axis is dim.axis)
        x = build.one(BlockReduce(own, ADD), x)
    return x


def _copied(
    build: Builder, body: Graph, needed: Collection[int], known: dict[Value, Value]
) -> dict[Value, Value]:
    """The copies of the needed nodes of a body."""
    known = dict(known)
    for i in body.nodes:
        if i in needed and i not in body.inputs:
            new = next(build.ids)
            node = copied_node(body[i], [known[v] for v in body[i].inputs], build.ids)
            build.nodes[new] = node
            known.update((Value(i, p), Value(new, p)) for p in range(len(node.types)))
    return known


def _amended(graph: Graph, pivot: Value, amends: Mapping[int, Move], ids: Iterator[int]) -> Graph:
    """The graph with multiples of the pivot added to outputs."""
    if not amends:
        return graph
    sketch = Sketch(graph, ids)
    outputs = list(graph.outputs)
    for number, factor in amends.items():
        out = outputs[number]
        value = _moved(sketch, out.value, pivot, factor)
        outputs[number] = replace(out, value=value)
    return Graph({**graph.nodes, **sketch.nodes}, graph.inputs, outputs)


def _wide(build: Builder, value: Value) -> Value:
    """A 16-bit item as float32."""
    narrow = build.type(value).dtype in NARROW
    return build.one(Elementwise(WIDENED[0]), value) if narrow else value


def _walked(graph: Graph, summed: Summed, free: Dim) -> Dim:
    """The dim of a loop over a list along an axis."""
    path, _, _ = summed.uses[0]
    dims = (graph.at(path[:depth]).map(node).dim for depth, node in enumerate(path))
    return next(dim for dim in dims if dim.axis is free.axis)


def _shifted(graph: Graph, pivot: Value, uses: Mapping[Use, Move], ids: Iterator[int]) -> Graph:
    """The graph with multiples of a pivot added to the operands at some uses."""
    sketch = Sketch(graph, ids)
    moved: dict[tuple[Value, Move], Value] = {}
    changed: dict[int, Node] = {}
    inner: dict[int, dict[Use, Move]] = {}
    for (path, node, port), factor in uses.items():
        if path:
            inner.setdefault(path[0], {})[path[1:], node, port] = factor
            continue
        old = changed.get(node, graph[node])
        x = graph[node].inputs[port]
        if (x, factor) not in moved:
            moved[x, factor] = _moved(sketch, x, pivot, factor)
        operands = tuple(moved[x, factor] if at == port else v for at, v in enumerate(old.inputs))
        changed[node] = Node(old.op, operands, old.types)
    for i, deeper in inner.items():
        operands = changed.get(i, graph[i]).inputs
        changed[i] = _with_pivot(graph.map(i), operands, pivot, graph.type(pivot), deeper, ids)
    return graph.edit(add={**sketch.nodes, **changed})


def _moved(sketch: Sketch, x: Value, pivot: Value, factor: Move) -> Value:
    """A value plus a multiple of the pivot, in its own dtype, or a function of the pivot."""
    dtype = sketch.type(x).dtype
    if isinstance(factor, Elementwise):
        return sketch.one(factor, pivot)
    same = sketch.type(pivot).dtype is dtype
    if factor is None:
        return pivot if same else sketch.one(Elementwise(cast(arg(0), dtype)), pivot)
    expr = _plus(factor)
    return sketch.one(Elementwise(expr if same else cast(expr, dtype)), x, pivot)


def _plus(factor: Expr) -> Expr:
    """The first argument plus a multiple of the second."""
    match factor.value:
        case 1:
            return arg(0) + arg(1)
        case -1:
            return arg(0) - arg(1)
    return arg(0) + arg(1) * factor


def _with_pivot(
    op: Map,
    operands: tuple[Value, ...],
    pivot: Value,
    kind: Type,
    uses: Mapping[Use, Move],
    ids: Iterator[int],
) -> Node:
    """A map of the operands and the pivot, which its body subtracts."""
    new = next(ids)
    nodes = {new: Node(Input("", kind), (), (kind,)), **op.body.nodes}
    body = Graph(nodes, [*op.body.inputs, new], op.body.outputs)
    body = _shifted(body, Value(new), uses, ids)
    made = Map(op.dim, body, (*op.iterated, False), op.modes, op.first)
    return Node(made, (*operands, pivot), map_types(made))
