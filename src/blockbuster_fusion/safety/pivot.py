"""The pivot: sums of large numbers whose differences matter are taken of small numbers.

A fused LayerNorm takes the variance as E[x²] - μ² and the product as x·W - μ·Σw: differences of
large numbers where the rows have a large offset. Neither feels a shift of x, so a pivot near the
mean, the mean of the row's first block, is subtracted from x first. That nothing feels the shift
is proved, not recognised: the graph's outputs are read as polynomials with and without it.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.builder import Sketch
from blockbuster_fusion.ir.combiner import ADD, MAX
from blockbuster_fusion.ir.expr import Expr, arg, const, size
from blockbuster_fusion.ir.graph import Graph, Path
from blockbuster_fusion.ir.infer import map_types
from blockbuster_fusion.ir.ops import (
    BlockReduce,
    Elementwise,
    Input,
    Iota,
    Map,
    Node,
    Output,
    Pick,
    Value,
)
from blockbuster_fusion.rules.copy import copied_node
from blockbuster_fusion.safety.choices import Choice, Safe
from blockbuster_fusion.safety.storage import NARROW
from blockbuster_fusion.safety.summed import (
    WIDENED,
    Summed,
    kind_of_use,
    kinds_of_use,
    summed_values,
)
from blockbuster_fusion.safety.symbolic import Atoms, Meaning, Poly, Use


def with_pivots(graph: Graph) -> Safe:
    """The program with a pivot subtracted wherever sums cancel and a shift does not matter.

    What is squared comes first, in whatever map: Σx² cancels as no other sum does, and x·W - μ·Σw
    is mended along with it. A pivot of W would mend neither.
    """
    walk = _Walk(count(graph.max_id + 1))
    for squared in (True, False):
        graph = _pivoted(graph, (), walk, squared)
    return Safe(graph, tuple(walk.choices))


@dataclass(frozen=True, slots=True)
class _Walk:
    """What has come about on the way through a graph and its maps."""

    ids: Iterator[int]
    choices: list[Choice] = field(default_factory=list)
    tried: set[tuple[Value, int | None]] = field(default_factory=set)
    done: set[int] = field(default_factory=set)
    """The nodes that have a pivot subtracted from an operand: one will do."""


def _pivoted(graph: Graph, path: Path, walk: _Walk, squared: bool) -> Graph:
    """A graph and those in its maps, outermost first: there more is seen to cancel.

    Only what is squared is looked at, or all that is left.
    """
    graph = _picked_once(graph)
    while (summed := _next_summed(graph, walk, squared)) is not None:
        walk.tried.add((summed.value, summed.loop))
        shift = _harmless(graph, summed)
        if shift is not None:
            walk.done.update(node for _, node, _ in shift.uses)
            graph = _subtract(graph, summed, shift, walk.ids)
            reason = "sums of it cancel, and nothing feels a shift"
            choice = Choice(path, summed.value.node, "pivot", "row", summed.dim.name, reason)
            walk.choices.append(choice)
    for i, op in list(graph.maps()):
        body = _pivoted(op.body, (*path, i), walk, squared)
        if body is not op.body:
            made = Map(op.dim, body, op.iterated, op.modes, op.first)
            graph = graph.edit(add={i: Node(made, graph[i].inputs, map_types(made))})
    return graph


def _next_summed(graph: Graph, walk: _Walk, squared: bool) -> Summed | None:
    """What is to be looked at next."""
    for summed in summed_values(graph):
        if (summed.value, summed.loop) in walk.tried:
            continue
        if any(node in walk.done for _, node, _ in summed.uses):
            continue
        if not squared or "square" in kinds_of_use(graph, summed):
            return summed
    return None


def _picked_once(graph: Graph) -> Graph:
    """The graph with one node for each element that is picked: its uses are then seen together."""
    first: dict[Node, int] = {}
    again: dict[int, int] = {}
    for i, node in graph.nodes.items():
        if isinstance(node.op, Pick) and first.setdefault(node, i) != i:
            again[i] = first[node]
    redirect = {Value(i): Value(kept) for i, kept in again.items()}
    return graph.edit(drop=again, redirect=redirect) if again else graph


# ---------------------------------------------------------------- the proof


@dataclass(frozen=True, slots=True)
class Shift:
    """Where a multiple of the pivot is added: to operands at uses, and to outputs.

    It is subtracted from the value that is summed. What has become of that may differ from what
    it was by a multiple of the pivot, a mean for instance: where it is used otherwise than in what
    cancels, it gets that back.
    """

    uses: dict[Use, Expr]
    outputs: dict[int, Expr]


def _harmless(graph: Graph, summed: Summed) -> Shift | None:
    """A shift that mends a cancellation and that no output notices, if there is one.

    The sums and sums of squares are shifted; others join where that mends what these have changed.
    """
    axis = summed.dim.axis
    path = () if summed.loop is None else (summed.loop,)
    kind = graph.at(path).type(summed.value)
    atoms = Atoms((*kind.axes, axis), axis)
    inputs = [
        atoms.summed
        if Value(i) == summed.value and not path
        else atoms.atom(("input", i), frozenset(graph.type(Value(i)).axes))
        for i in graph.inputs
    ]
    before = Meaning(atoms, (path, summed.value))
    expected = before.read(graph, inputs)
    lists = [graph.type(out.value).is_list for out in graph.outputs]

    def read(uses: Mapping[Use, int], restored: Collection[Use] = ()) -> "_Reading":
        after = Meaning(atoms, (path, summed.value), uses, before, restored)
        found = after.read(graph, inputs)
        wrong = sum(
            new != old and (is_list or atoms.multiple_of_pivot(new, old) is None)
            for new, old, is_list in zip(found, expected, lists, strict=True)
        )
        changed = {at for at, poly in after.known.items() if poly != before.known[at]}
        return _Reading(after, found, wrong, changed)

    uses = {u: 1 for u in summed.uses if kind_of_use(graph, u, axis) in ("sum", "square")}
    only_dots = not uses  # of a list from which something else may have been subtracted
    if only_dots:
        uses = {u: 1 for u in summed.uses if kind_of_use(graph, u, axis) == "dot"}
    reading = read(uses)
    everywhere = dict.fromkeys(summed.uses, 1)
    if reading.found == expected and uses != everywhere:  # a norm of a norm mends the first one's
        trial = read(everywhere)
        if trial.found == expected:
            uses, reading = everywhere, trial
    for use in summed.uses:
        if use not in uses and reading.found != expected:
            trial = read({**uses, use: 1})
            if trial.found == expected or reading.changed - trial.changed:
                uses, reading = {**uses, use: 1}, trial
    for use, sign in _companions(graph, summed, reading) if reading.wrong else ():
        if use not in uses and reading.wrong:
            trial = read({**uses, use: sign})
            if trial.wrong < reading.wrong or reading.changed - trial.changed - {_place(use)}:
                uses, reading = {**uses, use: sign}, trial
    for use in [*uses] if reading.wrong else ():
        trial = read({u: sign for u, sign in uses.items() if u != use})
        if trial.wrong < reading.wrong:
            uses, reading = {u: sign for u, sign in uses.items() if u != use}, trial
    if not _mends(graph, reading.changed):
        return None
    if only_dots and all(use in summed.uses for use in uses):
        return None  # nothing was subtracted from it: there is no shift behind the dot
    amends: dict[Use, Expr] = {}
    for at, value in list(reading.changed) if reading.wrong else ():
        if graph.at(at).type(value).is_list:
            continue
        old = before.known[at, value]
        factor = atoms.multiple_of_pivot(reading.after.known.get((at, value), old), old)
        for user, port in graph.at(at).uses(value) if factor is not None else ():
            trial = read(uses, [*amends, (at, user, port)])
            if trial.wrong < reading.wrong and factor is not None:
                amends[at, user, port] = factor
                reading = trial
    if reading.wrong:
        return None
    subtracted = {use: const(-1.0 * sign) for use, sign in uses.items()}
    pairs = enumerate(zip(reading.found, expected, strict=True))
    back = {n: atoms.multiple_of_pivot(new, old) for n, (new, old) in pairs if new != old}
    outputs_too = {number: factor for number, factor in back.items() if factor is not None}
    return Shift(subtracted | amends, outputs_too)


@dataclass(frozen=True, slots=True)
class _Reading:
    """A graph read with a shift: its outputs, how many are wrong, and the values that change.

    An output that differs by a multiple of the pivot is not wrong: it gets that back.
    """

    after: Meaning
    found: list[Poly]
    wrong: int
    changed: set[tuple[Path, Value]]


def _place(use: Use) -> tuple[Path, Value]:
    path, node, _ = use
    return path, Value(node)


def _companions(graph: Graph, summed: Summed, reading: _Reading) -> list[tuple[Use, int]]:
    """Uses of other items that may be shifted along: Σ(x-c)² does not feel a shift of both.

    They are near what has changed, and have the pivot's axes. They are shifted with the same sign,
    or with the other where c is added.
    """
    path = () if summed.loop is None else (summed.loop,)
    kind = graph.at(path).type(summed.value)
    axes = {d.axis for d in kind.items} - {summed.dim.axis}
    found: list[tuple[Use, int]] = []
    for at, inner in graph.walk():
        for i, node in inner.nodes.items():
            if not isinstance(node.op, Elementwise):
                continue
            near = {(at, Value(user)) for user in (i, *inner.users[i])}
            if near.isdisjoint(reading.changed):
                continue
            for port, value in enumerate(node.inputs):
                other = inner.type(value)
                same = {d.axis for d in other.items} == axes and other.dtype.is_float
                if same and (at, value) not in reading.changed:
                    found += [((at, i, port), 1), ((at, i, port), -1)]
    return found


def _mends(graph: Graph, changed: set[tuple[Path, Value]]) -> bool:
    """Whether something is computed of changed values and is not changed: there they cancel."""
    return any(
        (path, Value(user)) not in changed
        for path, value in changed
        for user in graph.at(path).users[value.node]
        if isinstance(graph.at(path).op(user), Elementwise) and value in graph.at(path)[user].inputs
    )


# ---------------------------------------------------------------- the rewrite


def _subtract(graph: Graph, summed: Summed, shift: Shift, ids: Iterator[int]) -> Graph:
    """The graph with the pivot made, subtracted at the uses and given back to outputs."""
    sketch = Sketch(graph, ids)
    dim = summed.dim
    if summed.loop is None and dim.unit:
        total = sketch.one(BlockReduce(dim, ADD), _wide(sketch, summed.value))
        pivot = sketch.one(Elementwise(arg(0) / size(dim.axis)), total)
    else:
        walked = _walked(graph, summed) if dim.is_free else dim
        first = _wide(sketch, _first_block(sketch, graph, summed, walked))
        total = sketch.one(BlockReduce(walked, ADD), first)
        positions = sketch.one(Pick(walked, 0), sketch.one(Iota(walked)))
        last = sketch.one(BlockReduce(walked, MAX), positions)
        pivot = sketch.one(Elementwise(arg(0) / (arg(1) + 1)), total, last)
    made = _shifted(graph.edit(add=sketch.nodes), pivot, shift.uses, ids)
    return _amended(made, pivot, shift.outputs, ids)


def _amended(graph: Graph, pivot: Value, amends: Mapping[int, Expr], ids: Iterator[int]) -> Graph:
    """The graph with multiples of the pivot added to outputs."""
    if not amends:
        return graph
    sketch = Sketch(graph, ids)
    outputs = list(graph.outputs)
    for number, factor in amends.items():
        out = outputs[number]
        value = sketch.one(Elementwise(_plus(factor)), out.value, pivot)
        outputs[number] = Output(out.name, value, out.axes)
    return Graph({**graph.nodes, **sketch.nodes}, graph.inputs, outputs)


def _wide(sketch: Sketch, value: Value) -> Value:
    """A 16-bit item as float32."""
    narrow = sketch.type(value).dtype in NARROW
    return sketch.one(Elementwise(WIDENED[0]), value) if narrow else value


def _walked(graph: Graph, summed: Summed) -> Dim:
    """The dim of a loop that walks the list."""
    path, _, _ = summed.uses[0]
    dims = (graph.at(path[:depth]).map(node).dim for depth, node in enumerate(path))
    return next(dim for dim in dims if dim.axis is summed.dim.axis)


def _first_block(sketch: Sketch, graph: Graph, summed: Summed, dim: Dim) -> Value:
    """The value's first block: picked from a list, or made by what makes the value in its loop."""
    if summed.loop is None:
        return sketch.one(Pick(dim, 0), summed.value)
    op, operands = graph.map(summed.loop), graph[summed.loop].inputs
    needed = {summed.value.node}
    for i in list(op.body.nodes)[::-1]:
        if i in needed:
            needed.update(v.node for v in op.body[i].inputs)
    known: dict[Value, Value] = {}
    for i in op.body.nodes:
        if i not in needed:
            continue
        if i in op.body.inputs:
            port = op.body.inputs.index(i)
            outside = operands[port]
            known[Value(i)] = sketch.one(Pick(dim, 0), outside) if op.iterated[port] else outside
            continue
        node = copied_node(op.body[i], [known[v] for v in op.body[i].inputs], sketch.ids)
        new = next(sketch.ids)
        sketch.nodes[new] = node
        known.update((Value(i, p), Value(new, p)) for p in range(len(node.types)))
    return known[summed.value]


def _shifted(graph: Graph, pivot: Value, uses: Mapping[Use, Expr], ids: Iterator[int]) -> Graph:
    """The graph with multiples of a pivot added to the operands at some uses."""
    sketch = Sketch(graph, ids)
    moved: dict[tuple[Value, Expr], Value] = {}
    changed: dict[int, Node] = {}
    inner: dict[int, dict[Use, Expr]] = {}
    for (path, node, port), factor in uses.items():
        if path:
            inner.setdefault(path[0], {})[path[1:], node, port] = factor
            continue
        old = changed.get(node, graph[node])
        x = graph[node].inputs[port]
        if (x, factor) not in moved:
            moved[x, factor] = sketch.one(Elementwise(_plus(factor)), x, pivot)
        operands = tuple(moved[x, factor] if at == port else v for at, v in enumerate(old.inputs))
        changed[node] = Node(old.op, operands, old.types)
    for i, deeper in inner.items():
        changed[i] = _with_pivot(graph, changed.get(i, graph[i]), pivot, deeper, ids)
    return graph.edit(add={**sketch.nodes, **changed})


def _plus(factor: Expr) -> Expr:
    """The first argument plus so many of the second."""
    match factor.value:
        case 1:
            return arg(0) + arg(1)
        case -1:
            return arg(0) - arg(1)
    return arg(0) + arg(1) * factor


def _with_pivot(
    graph: Graph, node: Node, pivot: Value, uses: Mapping[Use, Expr], ids: Iterator[int]
) -> Node:
    """A map to which the pivot is handed, and which subtracts it inside."""
    op, kind, new = node.op, graph.type(pivot), next(ids)
    assert isinstance(op, Map)
    nodes = {new: Node(Input("", kind), (), (kind,)), **op.body.nodes}
    body = Graph(nodes, [*op.body.inputs, new], op.body.outputs)
    body = _shifted(body, Value(new), uses, ids)
    made = Map(op.dim, body, (*op.iterated, False), op.modes, op.first)
    return Node(made, (*node.inputs, pivot), map_types(made))
