"""Makes the plan of a graph, once; it is kept as long as the graph lives."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from weakref import WeakKeyDictionary

from blockbuster_fusion.cost.plan import (
    Action,
    Alignment,
    Component,
    DoBlockReduce,
    DoDot,
    DoElementwise,
    DoIota,
    DoJoin,
    DoMap,
    DoMisc,
    DoPick,
    DoReduce,
    DoRename,
    DoScan,
    DoTake,
    Gather,
    GraphPlan,
    PlanStep,
    Stack,
    Walk,
)
from blockbuster_fusion.errors import IllTyped
from blockbuster_fusion.ir.axis import Axis, Dim
from blockbuster_fusion.ir.combiner import ANY, Combiner
from blockbuster_fusion.ir.expr import Expr, arguments, axes_in, count_operations
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import (
    BlockReduce,
    Dot,
    Elementwise,
    Input,
    Iota,
    Join,
    Map,
    Misc,
    Node,
    Pick,
    Reduce,
    Rename,
    Scan,
    Take,
    Value,
)
from blockbuster_fusion.ir.types import Type

_Work = tuple[Action, tuple[int, ...], tuple[int, ...]]
"""The action of a node, and the slots of its operands and results."""

# A plan holds no graph, so that it is freed with its graph.
_PLANS: WeakKeyDictionary[Graph, dict[tuple[bool, ...], GraphPlan]] = WeakKeyDictionary()


def plan_of(graph: Graph, owned: tuple[bool, ...]) -> GraphPlan:
    """The plan of a graph; `owned` inputs are loaded for it, the others are passed whole."""
    made = _PLANS.setdefault(graph, {})
    if owned not in made:
        made[owned] = _Planner(graph, owned).plan()
    return made[owned]


class _Planner:
    def __init__(self, graph: Graph, owned: tuple[bool, ...]) -> None:
        self.graph = graph
        self.owned = owned
        self.sites = 0
        self.maps = 0
        self.slots: dict[Value, int] = {}
        self.types: list[Type] = []
        self.dims: set[Dim] = set()
        self.axes: set[Axis] = set()
        for i, node in graph.nodes.items():
            for port, kind in enumerate(node.types):
                self.slots[Value(i, port)] = len(self.types)
                self.types.append(kind)
                self.dims.update(kind.lists, kind.items)

    def plan(self) -> GraphPlan:
        graph, slots = self.graph, self.slots
        work: list[_Work] = [
            (self._action(node), tuple(slots[v] for v in node.inputs), self._results(i, node))
            for i, node in graph.nodes.items()
            if not isinstance(node.op, Input)
        ]
        inputs = tuple(slots[Value(i)] for i in graph.inputs)
        outputs = tuple(slots[out.value] for out in graph.outputs)
        first, last, last_seen = _uses(work, outputs)
        owned = {slot for slot, owns in zip(inputs, self.owned, strict=True) if owns}
        owned.update(slot for _, _, results in work for slot in results)
        items = {slot for slot in owned if not self.types[slot].is_list}
        loaded = _by_step({slot: first[slot] for slot in inputs if slot in items & first.keys()})
        dead = _by_step({slot: at for slot, at in last.items() if slot in items})
        steps = _steps(work, items, loaded, dead, _by_step(last_seen))
        self.axes.update(dim.axis for dim in self.dims)
        return GraphPlan(
            types=tuple(self.types),
            bytes=tuple(kind.dtype.bytes for kind in self.types),
            labels=tuple(str(value) for value in slots),
            inputs=inputs,
            used=tuple(slot in first for slot in inputs),
            names=tuple(graph.input(i).name for i in graph.inputs),
            steps=steps,
            outputs=outputs,
            loaded_last=loaded.get(len(work), ()),
            sites=self.sites,
            dims=frozenset(self.dims),
            axes=frozenset(self.axes),
        )

    def _results(self, i: int, node: Node) -> tuple[int, ...]:
        return tuple(self.slots[Value(i, port)] for port in range(len(node.types)))

    def _site(self) -> int:
        self.sites += 1
        return self.sites - 1

    def _action(self, node: Node) -> Action:
        operands = [self.graph.type(v) for v in node.inputs]
        op = node.op
        match op:
            case Elementwise():
                self.axes.update(_sizes(op.expr))
                return _elementwise(op, operands, node.types[0])
            case BlockReduce():
                axis = operands[0].items.index(op.dim)
                return DoBlockReduce(axis, self._gather(op.combiner, node.types))
            case Scan():
                axis = operands[0].items.index(op.dim)
                return DoScan(axis, self._gather(op.combiner, node.types), not op.dim.unit)
            case Dot():
                return _dot(op, operands, node.types[0])
            case Take():
                return _take(op, operands, node.types[0])
            case Map():
                return self._map(op, operands, node.types)
            case Reduce():
                return self._reduce(op, operands, node.types)
            case Rename():
                self.axes.add(op.old)
                (renamed,) = operands
                return DoRename(0 if renamed.is_list else renamed.dtype.bytes)
            case Pick():
                self.dims.add(op.dim)
                site = None if node.types[0].is_list else self._site()
                return DoPick(_walk(operands[0], op.dim, site), op.index)
            case Join():
                return DoJoin(_walk(operands[1], op.dim, None))
            case Iota():
                return DoIota(op.dim.axis)
            case Misc():
                return _misc(op, operands)
            case Input():
                raise AssertionError("an input is no step")

    def _reduce(self, op: Reduce, operands: list[Type], results: tuple[Type, ...]) -> DoReduce:
        self.dims.add(op.dim)
        if any(op.dim in t.items for t in results):
            raise _mixes_blocks(f"reduce {op.combiner}", op.dim)
        walks = tuple(_walk(t, op.dim, self._site()) for t in operands)
        return DoReduce(op.dim, walks, self._gather(op.combiner, results))

    def _map(self, op: Map, operands: list[Type], results: tuple[Type, ...]) -> DoMap:
        body = plan_of(op.body, op.iterated)
        self.dims |= body.dims
        self.dims.add(op.dim)
        self.axes |= body.axes
        walks: list[Walk | None] = []
        for kind, iterated, used in zip(operands, op.iterated, body.used, strict=True):
            loads = iterated and used and not kind.iterate(op.dim).is_list
            site = self._site() if loads else None
            walks.append(_walk(kind, op.dim, site) if iterated else None)
        stacks: list[Stack] = []
        reduced: list[tuple[tuple[int, ...], Gather]] = []
        for output, (out, mode) in enumerate(zip(op.body.outputs, op.modes, strict=True)):
            kind = op.body.type(out.value)
            if mode is None:
                order = None
                if op.dim in kind.items:
                    stacked = results[output].dims
                    order = tuple(kind.dims.index(dim) for dim in stacked)
                stacks.append(Stack(output, order, not kind.is_list, kind.dtype.bytes))
                continue
            if op.dim in kind.items and mode.combiner is not ANY:
                raise _mixes_blocks(f"map {op.dim.label}, {mode.combiner}", op.dim)
            if mode.component == 0:
                group = tuple(range(output, output + mode.combiner.arity))
                kinds = [results[at] for at in group]
                reduced.append((group, self._gather(mode.combiner, kinds)))
        self.maps += 1
        child = self.maps - 1
        return DoMap(child, op.dim, op.first, body, tuple(walks), tuple(stacks), tuple(reduced))

    def _gather(self, combiner: Combiner, kinds: Sequence[Type]) -> Gather:
        components = []
        for kind, expr, identity in zip(kinds, combiner.combine, combiner.identity, strict=True):
            self.axes.update(_sizes(expr))
            arguments = []
            for at in _arguments(expr):
                dims = kinds[at % combiner.arity].items
                if not set(dims) <= set(kind.items):
                    problem = f"{kinds[at % combiner.arity]} goes into {kind}, which lacks its axes"
                    raise IllTyped(op=f"combiner {combiner}", problem=problem)
                arguments.append((at, alignment(dims, kind.items)))
            operations = _operations(expr)
            components.append(
                Component(expr, tuple(arguments), identity, kind.dtype, operations),
            )
        return Gather(combiner, tuple(components))


def _uses(
    work: Sequence[_Work], outputs: Sequence[int]
) -> tuple[dict[int, int], dict[int, int], dict[int, int]]:
    """The steps at which each slot is first used, last used, and last an operand at all.

    The last use of an unused result is its own step; outputs are used after the last step.
    """
    first: dict[int, int] = {}
    last = {slot: at for at, (_, _, results) in enumerate(work) for slot in results}
    last_seen = dict(last)
    for at, (action, operands, _) in enumerate(work):
        last_seen.update(dict.fromkeys(operands, at))
        for slot in _really_used(action, operands):
            first.setdefault(slot, at)
            last[slot] = at
    for slot in outputs:
        first.setdefault(slot, len(work))
        last[slot] = last_seen[slot] = len(work)
    return first, last, last_seen


def _steps(
    work: Sequence[_Work],
    items: Collection[int],
    loaded: Mapping[int, tuple[int, ...]],
    dead: Mapping[int, tuple[int, ...]],
    dropped: Mapping[int, tuple[int, ...]],
) -> tuple[PlanStep, ...]:
    """The steps, each with the slots whose items it loads, makes, uses last and drops."""
    return tuple(
        PlanStep(
            *node,
            loaded.get(at, ()),
            tuple(slot for slot in node[2] if slot in items),
            dead.get(at, ()),
            dropped.get(at, ()),
        )
        for at, node in enumerate(work)
    )


def _by_step(at: dict[int, int]) -> dict[int, tuple[int, ...]]:
    """The slots of each step, from the step of each slot."""
    made: dict[int, tuple[int, ...]] = {}
    for slot, step in at.items():
        made[step] = (*made.get(step, ()), slot)
    return made


def _really_used(action: Action, operands: tuple[int, ...]) -> Iterator[int]:
    """The operands that are used: a map does not use what its body ignores."""
    used = action.body.used if isinstance(action, DoMap) else (True,) * len(operands)
    return (slot for slot, really in zip(operands, used, strict=True) if really)


def _elementwise(op: Elementwise, operands: list[Type], result: Type) -> DoElementwise:
    told = {dim for at in _arguments(op.expr) for dim in operands[at].items}
    spread = None
    if len(told) < len(result.items):
        where = {dim: (at, t.items.index(dim)) for at, t in enumerate(operands) for dim in t.items}
        spread = tuple(where[dim] for dim in result.items)
    return DoElementwise(
        op.expr,
        tuple(alignment(t.items, result.items) for t in operands),
        result.dtype,
        _operations(op.expr),
        spread,
    )


def _dot(op: Dot, operands: list[Type], result: Type) -> DoDot:
    left, right = (t.items for t in operands)
    numbers = {dim: at for at, dim in enumerate(dict.fromkeys((*left, *right)))}
    return DoDot(
        (left.index(op.dim), right.index(op.dim)),
        tuple(numbers[dim] for dim in left),
        tuple(numbers[dim] for dim in right),
        tuple(numbers[dim] for dim in result.items),
        len(set(left) & set(right)) > 1,
        result.dtype,
    )


def _take(op: Take, operands: list[Type], result: Type) -> DoTake:
    table, places = operands
    kept = tuple(result.items.index(dim) for dim in table.dims[1:])
    turned = alignment(places.items, result.items)
    return DoTake(op.axis, turned, kept, len(result.items), table.dtype.bytes)


def _misc(op: Misc, operands: list[Type]) -> DoMisc:
    layouts = op.layouts or tuple(kind.axes for kind in operands)
    orders = tuple(
        tuple(kind.axes.index(axis) for axis in layout)
        for kind, layout in zip(operands, layouts, strict=True)
    )
    return DoMisc(op, tuple(operands), orders)


def _mixes_blocks(op: str, dim: Dim) -> IllTyped:
    problem = f"would combine different blocks of {dim.label} element by element"
    return IllTyped(op=op, problem=f"{problem}; reduce each block over it first")


@lru_cache(maxsize=4096)
def _operations(expr: Expr) -> int:
    return count_operations(expr)


@lru_cache(maxsize=4096)
def _arguments(expr: Expr) -> tuple[int, ...]:
    """The numbers of the arguments that an expression uses."""
    return tuple(sorted(arguments(expr)))


@lru_cache(maxsize=4096)
def _sizes(expr: Expr) -> tuple[Axis, ...]:
    """The axes whose extents an expression mentions."""
    return axes_in(expr)


def alignment(source: Sequence[Dim], target: Sequence[Dim]) -> Alignment | None:
    """The alignment of a block with the dims `source` to `target`; None if they agree."""
    order = tuple(sorted(range(len(source)), key=lambda at: target.index(source[at])))
    present = [dim in source for dim in target]
    leading = present.index(True) if any(present) else len(target)
    index = tuple(slice(None) if there else None for there in present[leading:])
    if order == tuple(range(len(source))) and None not in index:
        return None
    return Alignment(order, index)


def _walk(kind: Type, dim: Dim, site: int | None) -> Walk:
    walked = kind.list_dim(dim)
    assert walked is not None
    cut = walked in kind.items
    element = kind.iterate(dim)
    left = [dim if d is walked else d for d in kind.dims if cut or d is not walked]
    order = tuple(left.index(d) for d in element.dims)
    return Walk(
        dim,
        kind.dims.index(walked),
        cut,
        None if order == tuple(range(len(order))) else order,
        not element.is_list,
        kind.dtype.bytes,
        site,
    )
