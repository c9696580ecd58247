"""The meter: the cost of a run of a program, computed without running it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from blockbuster_fusion.cost.counters import Tally, Traffic
from blockbuster_fusion.cost.plan import (
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
    PlanFrame,
    PlanStep,
    Walk,
)
from blockbuster_fusion.cost.planner import plan_of
from blockbuster_fusion.errors import BadExtent
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.tiling import Tiles, Tiling, given_extents, given_tiles, nothing_to_pick
from blockbuster_fusion.ir.types import Type
from blockbuster_fusion.ir.verify import verify


def meter(graph: Graph, extents: Mapping[str, int], tiles: Tiles | None = None) -> Traffic:
    """The traffic that `interpret` tallies for inputs with these extents, without data.

    `extents` gives lengths by symbol or by axis name; `tiles` is as for `interpret`. The figures
    are the same to the byte, but the work does not grow with the number of blocks: loops multiply.
    Failures that depend on data or on an executor are not noticed here.
    """
    verify(graph)
    plan = plan_of(graph, (True,) * len(graph.inputs))
    tiling = Tiling(given_extents(plan.axes, extents), given_tiles(plan.dims, tiles))
    frame = PlanFrame(plan, [out.name or None for out in graph.outputs])
    counter = _Counter(tiling)
    arguments = []
    for name, slot, used in zip(plan.names, plan.inputs, plan.used, strict=True):
        kind = plan.types[slot]
        shape = _Shape(counter.sizes(kind, {}), None if kind.virtual else name)
        arguments.append(shape)
        if used and not kind.is_list:
            counter.tally.load(name, _total(shape.sizes) * kind.dtype.bytes)
    results = counter.count(frame, arguments, ())
    for slot, shape in zip(plan.outputs, results, strict=True):
        kind = plan.types[slot]
        if not kind.is_list:
            counter.tally.store(frame.places[slot], _total(shape.sizes) * kind.dtype.bytes)
    counter.tally.peak = counter.peak(frame)
    return counter.tally.traffic()


class _Loop:
    """A loop: the lengths of its first two blocks, and of all together."""

    __slots__ = ("count", "current", "depth", "lengths", "total")

    def __init__(self, depth: int, starts: range, first: int = 0) -> None:
        self.depth = depth
        self.count = max(len(starts) - first, 0)
        self.lengths = [min(starts.step, starts.stop - at) for at in starts[first : first + 2]]
        self.total = starts.stop - starts[first] if self.count else 0
        self.current = 0
        """The length of the block for which the peak is computed."""


_Size = int | _Loop
"""The length of an array's axis: fixed, or that of a loop's current block."""
_Loops = tuple[_Loop, ...]


@dataclass(frozen=True, slots=True)
class _Shape:
    """The length of each dim of a value and, of a list, its address.

    The address varies with loop number `varies` (counted from 1, outermost first) and not with any
    deeper one that has more than one block.
    """

    sizes: tuple[_Size, ...]
    place: str | None = None
    varies: int = 0


def _total(sizes: Sequence[_Size], loops: Sequence[_Loop] = ()) -> int:
    """The elements of a block of these sizes, summed over all iterations of `loops`."""
    made = prod(size if isinstance(size, int) else size.total for size in sizes)
    return made * prod(loop.count for loop in loops if loop not in sizes)


def _deepest(loops: Sequence[_Loop]) -> int:
    """The depth of the innermost loop that has more than one block."""
    return max((loop.depth for loop in loops if loop.count > 1), default=0)


class _Counter:
    def __init__(self, tiling: Tiling) -> None:
        self.tiling = tiling
        self.tally = Tally()
        self.shapes: dict[PlanFrame, list[_Shape]] = {}
        self.loops: dict[PlanFrame, _Loop] = {}

    def sizes(self, kind: Type, known: Mapping[Dim, _Size]) -> tuple[_Size, ...]:
        """The lengths of a full array of this type."""
        made: list[_Size] = []
        for dim in kind.dims:
            length = known.get(dim, self.tiling.length(dim, in_item=dim in kind.items))
            if length is None:
                problem = f"a free list of items without the axis has any number of blocks: {kind}"
                raise BadExtent(name=dim.label, problem=problem)
            made.append(length)
        return tuple(made)

    # ---------------------------------------------------------------- bytes and operations

    def count(self, frame: PlanFrame, arguments: Sequence[_Shape], loops: _Loops) -> list[_Shape]:
        """Tallies a plan for all iterations of the loops around it; the shapes of its outputs."""
        plan = frame.plan
        shapes = [_Shape(())] * len(plan.types)
        self.shapes[frame] = shapes
        for slot, shape in zip(plan.inputs, arguments, strict=True):
            shapes[slot] = shape
        for step in plan.steps:
            made = self._step(frame, step, [shapes[slot] for slot in step.operands], loops)
            for slot, shape in zip(step.results, made, strict=True):
                shapes[slot] = shape
        return [shapes[slot] for slot in plan.outputs]

    def _step(
        self, frame: PlanFrame, step: PlanStep, operands: list[_Shape], loops: _Loops
    ) -> Sequence[_Shape]:
        types = frame.plan.types
        known: dict[Dim, _Size] = {}
        for slot, shape in zip(step.operands, operands, strict=True):
            known.update(zip(types[slot].dims, shape.sizes, strict=True))
        match step.action:
            case DoElementwise() | DoBlockReduce() | DoScan() | DoDot() | DoTake() as functional:
                made = _Shape(tuple(known[dim] for dim in types[step.results[0]].items))
                self._functional(functional, operands, made, known, loops)
                return [made]
            case DoMap() as action:
                return self._map(frame, step, action, operands, loops)
            case DoReduce() as action:
                return self._reduce(action, operands, loops)
            case DoRename() as action:
                if not action.stored:
                    return operands
                place = frame.places[step.results[0]]
                self.tally.store(place, _total(operands[0].sizes, loops) * action.stored)
                return [_Shape(operands[0].sizes, place, _deepest(loops))]
            case DoPick() as action:
                return [self._pick(action, operands[0], loops)]
            case DoJoin() as action:
                first, rest = operands
                place = frame.places[step.results[0]]
                if action.walk.is_item:
                    self.tally.store(place, _total(first.sizes, loops) * action.walk.bytes)
                return [_Shape(rest.sizes, place, _deepest(loops))]
            case DoIota() as action:
                return [_Shape((self.tiling.extents.of(action.axis),))]
            case DoMisc() as action:
                return self._misc(frame, step, action, operands, known, loops)

    def _functional(
        self,
        action: DoElementwise | DoBlockReduce | DoScan | DoDot | DoTake,
        operands: list[_Shape],
        made: _Shape,
        known: Mapping[Dim, _Size],
        loops: _Loops,
    ) -> None:
        """Tallies the operations of a functional operator, or the loads of a lookup."""
        match action:
            case DoElementwise():
                self.tally.flops += action.operations * _total(made.sizes, loops)
            case DoBlockReduce() | DoScan():
                self.tally.flops += _total(operands[0].sizes, loops)
            case DoDot():
                self.tally.flops += 2 * _total(list(known.values()), loops)
            case DoTake():
                place = operands[0].place
                assert place is not None
                self.tally.load(place, _total(made.sizes, loops) * action.bytes)

    def _reduce(self, action: DoReduce, operands: list[_Shape], loops: _Loops) -> list[_Shape]:
        loop = _Loop(len(loops) + 1, self.tiling.starts(action.dim))
        inner = (*loops, loop)
        made_all = []
        for walk, listed, component in zip(
            action.walks, operands, action.gather.components, strict=True
        ):
            made = self._element(walk, listed, loop, inner)
            self.tally.flops += component.operations * _total(made.sizes, inner)
            made_all.append(made)
        return made_all

    def _element(self, walk: Walk, listed: _Shape, at: _Size, loops: _Loops) -> _Shape:
        """An element of a list in the innermost of `loops`; its loads are tallied."""
        sizes = list(listed.sizes)
        sizes[walk.axis : walk.axis + 1] = [at] if walk.cut else []
        if walk.order is not None:
            sizes = [sizes[axis] for axis in walk.order]
        varies = listed.varies
        if isinstance(at, _Loop) and at.count > 1:
            varies = at.depth
        if walk.site is not None and listed.place is not None and all(lp.count for lp in loops):
            self.tally.load(listed.place, _total(sizes, loops[:varies]) * walk.bytes)
        return _Shape(tuple(sizes), listed.place, varies)

    def _map(
        self, frame: PlanFrame, step: PlanStep, action: DoMap, operands: list[_Shape], loops: _Loops
    ) -> list[_Shape]:
        starts = self.tiling.starts(action.dim)
        loop = _Loop(len(loops) + 1, starts, action.first)
        inner, child = (*loops, loop), frame.children[action.child]
        self.loops[child] = loop
        arguments = [
            shape if walk is None else self._element(walk, shape, loop, inner)
            for walk, shape in zip(action.walks, operands, strict=True)
        ]
        outputs = self.count(child, arguments, inner)
        made = [
            _Shape(tuple(sum(loop.lengths[:1]) if s is loop else s for s in shape.sizes))
            for shape in outputs
        ]
        for stack in action.stacks:
            sizes, place = outputs[stack.output].sizes, frame.places[step.results[stack.output]]
            if stack.is_item:
                self.tally.store(place, _total(sizes, inner) * stack.bytes)
            if stack.order is None:
                sizes = (len(starts), *sizes)
            else:
                rest = (sizes[axis] for axis in stack.order[1:])
                sizes = (self.tiling.extents.of(action.dim.axis), *rest)
            made[stack.output] = _Shape(sizes, place, _deepest(loops))
        for group, gather in action.reduced:
            for output, component in zip(group, gather.components, strict=True):
                elements = _total(outputs[output].sizes, inner)
                self.tally.flops += component.operations * elements
        return made

    def _pick(self, action: DoPick, listed: _Shape, loops: _Loops) -> _Shape:
        walk, starts = action.walk, self.tiling.starts(action.walk.dim)
        if action.index < len(starts):
            length = min(starts.step, starts.stop - starts[action.index])
            return self._element(walk, listed, length, loops)
        runs = all(loop.count for loop in loops)
        if runs and not (walk.cut and action.index == 0):
            raise nothing_to_pick(walk.dim, action.index, len(starts))
        return self._element(walk, listed, 0, loops)

    def _misc(
        self,
        frame: PlanFrame,
        step: PlanStep,
        action: DoMisc,
        operands: list[_Shape],
        known: Mapping[Dim, _Size],
        loops: _Loops,
    ) -> list[_Shape]:
        for kind, shape in zip(action.operands, operands, strict=True):
            if kind.is_list and shape.place is not None:
                self.tally.load(shape.place, _total(shape.sizes, loops) * kind.dtype.bytes)
        made = []
        for kind, slot in zip(action.op.results, step.results, strict=True):
            sizes, place = self.sizes(kind, known), frame.places[slot]
            if kind.is_list:
                self.tally.store(place, _total(sizes, loops) * kind.dtype.bytes)
            made.append(_Shape(sizes, place, _deepest(loops)))
        return made

    # ---------------------------------------------------------------- local memory

    def peak(self, frame: PlanFrame) -> int:
        """The most bytes of items that live in a plan, for the current blocks of its loops."""
        live = most = 0
        for step in frame.plan.steps:
            live += self._bytes(frame, step.loaded)
            most = max(most, live + self._inside(frame, step))
            live += self._bytes(frame, step.made)
            most = max(most, live)
            live -= self._bytes(frame, step.dead)
        return max(most, live + self._bytes(frame, frame.plan.loaded_last))

    def _bytes(self, frame: PlanFrame, slots: Sequence[int]) -> int:
        shapes, elements = self.shapes[frame], frame.plan.bytes
        return sum(
            elements[slot]
            * prod(size if isinstance(size, int) else size.current for size in shapes[slot].sizes)
            for slot in slots
        )

    def _inside(self, frame: PlanFrame, step: PlanStep) -> int:
        """The bytes that live while a step runs, without those of its operands."""
        if isinstance(step.action, DoReduce):
            blocks = len(self.tiling.starts(step.action.dim))
            return min(blocks, 2) * self._bytes(frame, step.results)
        if not isinstance(step.action, DoMap):
            return 0
        child = frame.children[step.action.child]
        loop = self.loops[child]
        if loop.count == 0:
            return 0
        gathered = [step.results[output] for group, _ in step.action.reduced for output in group]
        held = self._bytes(frame, gathered)
        most = 0
        # Accumulators live from the second block on, and blocks never grow: two cases are enough.
        if loop.count == 1 or not held or loop.lengths[1] < loop.lengths[0]:
            loop.current = loop.lengths[0]
            most = self.peak(child)
        if loop.count > 1 and held:
            loop.current = loop.lengths[1]
            most = max(most, held + self.peak(child))
        return most
