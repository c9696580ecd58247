"""Runs plans block by block, and tallies their traffic."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from blockbuster_fusion.cost.counters import Tally
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
    Gather,
    PlanFrame,
    PlanStep,
    Stack,
    Walk,
)
from blockbuster_fusion.errors import BadPlace, BadTile, IllTyped
from blockbuster_fusion.host.misc import execute, imagined_results
from blockbuster_fusion.host.numbers import NumericMode, NumpyArray
from blockbuster_fusion.interp.arithmetic import (
    BlockArithmetic,
    Gathered,
    aligned,
    looked_up,
    misplaced,
)
from blockbuster_fusion.interp.values import Allocation, StoredList
from blockbuster_fusion.ir.axis import Axis, Dim
from blockbuster_fusion.ir.combiner import ANY
from blockbuster_fusion.ir.tiling import Tiling, nothing_to_pick

Values = list[Any]
"""By slot: an array for an item, a StoredList for a list."""


class BlockMachine:
    """Runs the frames of one program on one set of inputs."""

    def __init__(self, tiling: Tiling, numbers: NumericMode) -> None:
        self.tiling = tiling
        self.numbers = numbers
        self.arithmetic = BlockArithmetic(numbers, tiling.extents)
        self.tally = Tally()
        self.imagining = False
        self._positions: dict[Axis, NumpyArray] = {}

    def run(self, frame: PlanFrame, arguments: Sequence[Any]) -> Values:
        """The outputs of a plan; items that it loaded and returns are still tallied as live."""
        plan, tally = frame.plan, self.tally
        sizes = plan.bytes
        values: Values = [None] * len(sizes)
        for slot, argument in zip(plan.inputs, arguments, strict=True):
            values[slot] = argument
        for step in plan.steps:
            for slot in step.loaded:
                tally.hold(values[slot].size * sizes[slot])
            made = _EXECUTE[type(step.action)](self, frame, step, step.action, values)
            for slot, value in zip(step.results, made, strict=True):
                values[slot] = value
            for slot in step.made:
                tally.hold(values[slot].size * sizes[slot])
            for slot in step.dead:
                tally.live -= values[slot].size * sizes[slot]
            for slot in step.dropped:
                values[slot] = None
        for slot in plan.loaded_last:
            tally.hold(values[slot].size * sizes[slot])
        return [values[slot] for slot in plan.outputs]

    # ---------------------------------------------------------------- lists

    def _count(self, op: str, walk: Walk, listed: StoredList) -> int:
        """The number of blocks of a loop over a list, or BadTile if the list has another."""
        count = len(self.tiling.blocks(walk.dim))
        length = listed.array.shape[walk.axis]
        if not walk.cut and length != count:
            problem = (
                f"there are {count} blocks, and the list that {op} walks has {length} elements"
            )
            raise BadTile(name=walk.dim.label, problem=problem)
        return count

    def _part(self, walk: Walk, array: NumpyArray, block: int) -> NumpyArray:
        """A view of one block of a list's array, under the element's dims."""
        at = self.tiling.blocks(walk.dim)[block] if walk.cut else block
        part: NumpyArray = array[(*(slice(None),) * walk.axis, at, ...)]
        return part if walk.order is None else part.transpose(walk.order)

    def _element(self, frame: PlanFrame, walk: Walk, listed: StoredList, block: int) -> Any:
        """Block number `block` of a list; the load is charged if its address is a new one."""
        array = self._part(walk, listed.array, block)
        index = (*listed.index, block)
        if not walk.is_item:
            return StoredList(array, listed.allocation, index)
        place = listed.allocation.place
        if walk.site is not None and place is not None:
            address = (listed.allocation, index)
            if frame.last[walk.site] != address:
                frame.last[walk.site] = address
                self.tally.load(place, array.size * walk.bytes)
        return array

    def _empty_element(self, walk: Walk, listed: StoredList) -> Any:
        """An element of the list with no elements along the loop's axis."""
        shape = list(listed.array.shape)
        shape[walk.axis : walk.axis + 1] = [0] if walk.cut else []
        array = np.zeros(shape, listed.array.dtype)
        if walk.order is not None:
            array = array.transpose(walk.order)
        return array if walk.is_item else StoredList(array, listed.allocation)

    # ---------------------------------------------------------------- operators

    def _elementwise(
        self, frame: PlanFrame, step: PlanStep, action: DoElementwise, values: Values
    ) -> list[Any]:
        made = self.arithmetic.elementwise(action, [values[slot] for slot in step.operands])
        self.tally.flops += action.operations * made.size
        return [made]

    def _block_reduce(
        self, frame: PlanFrame, step: PlanStep, action: DoBlockReduce, values: Values
    ) -> list[Any]:
        block = values[step.operands[0]]
        self.tally.flops += block.size
        return [self.arithmetic.block_reduce(action, block)]

    def _scan(self, frame: PlanFrame, step: PlanStep, action: DoScan, values: Values) -> list[Any]:
        block, (slot,) = values[step.operands[0]], step.results
        self.tally.flops += block.size
        carry = frame.carries.get(slot) if action.goes_on else None
        made, frame.carries[slot] = self.arithmetic.scan(action, block, carry)
        return [made]

    def _dot(self, frame: PlanFrame, step: PlanStep, action: DoDot, values: Values) -> list[Any]:
        left, right = (values[slot] for slot in step.operands)
        made = self.arithmetic.dot(action, left, right)
        self.tally.flops += 2 * made.size * left.shape[action.axes[0]]
        return [made]

    def _take(self, frame: PlanFrame, step: PlanStep, action: DoTake, values: Values) -> list[Any]:
        listed, places = (values[slot] for slot in step.operands)
        table, place = listed.array, listed.allocation.place
        if self.imagining and not len(table):
            table = np.zeros((1, *table.shape[1:]), table.dtype)
        problem = misplaced(places, len(table), action.axis)
        if problem is not None:
            raise BadPlace(name=place, problem=problem)
        made = looked_up(table, aligned(places, action.places), action.kept, action.rank)
        self.tally.load(place, made.size * action.bytes)
        return [made]

    def _map(self, frame: PlanFrame, step: PlanStep, action: DoMap, values: Values) -> list[Any]:
        count = len(self.tiling.blocks(action.dim))
        ports = [
            (walk, values[slot]) for walk, slot in zip(action.walks, step.operands, strict=True)
        ]
        for walk, value in ports:
            if walk is not None:
                self._count("a map", walk, value)
        child, tally = frame.children[action.child], self.tally
        child.carries.clear()
        results: dict[int, Any] = {}
        parts = [Gathered(self.arithmetic, gather) for _, gather in action.reduced]
        before = kept = tally.live
        for block in range(action.first, count):
            arguments = [
                value if walk is None else self._element(frame, walk, value, block)
                for walk, value in ports
            ]
            outputs = self.run(child, arguments)
            for stack in action.stacks:
                output, place = outputs[stack.output], frame.places[step.results[stack.output]]
                if stack.output not in results:
                    results[stack.output] = self._allocate(action, stack, output, place)
                self._put(action, stack, results[stack.output], output, block)
                if stack.is_item:
                    tally.store(place, output.size * stack.bytes)
            for (group, gather), part in zip(action.reduced, parts, strict=True):
                coming = [outputs[output] for output in group]
                if not part:
                    kept += _bytes(gather, coming)
                self._gather(part, coming)
            tally.live = kept
        tally.live = before
        if action.first >= count:
            results = self._map_of_nothing(frame, step, action, ports)
        for (group, gather), part in zip(action.reduced, parts, strict=True):
            whole = part.result() if part else [results[output] for output in group]
            made = self.arithmetic.finished(gather, whole)
            results.update(zip(group, made, strict=True))
        return [results[output] for output in range(len(step.results))]

    def _map_of_nothing(
        self,
        frame: PlanFrame,
        step: PlanStep,
        action: DoMap,
        ports: Sequence[tuple[Walk | None, Any]],
    ) -> dict[int, Any]:
        """The results of a map without blocks: empty lists, and identities."""
        results: dict[int, Any] = {}
        outputs = self._imagined(action, ports)
        for stack in action.stacks:
            place = frame.places[step.results[stack.output]]
            results[stack.output] = self._allocate(action, stack, outputs[stack.output], place)
        for group, gather in action.reduced:
            made = [outputs[o] for o in group]  # equal for all blocks, so also for none
            if gather.combiner is not ANY:
                made = self.arithmetic.identities(gather, [x.shape for x in made])
            results.update(zip(group, made, strict=True))
        return results

    def _imagined(self, action: DoMap, ports: Sequence[tuple[Walk | None, Any]]) -> Values:
        """The untallied outputs of the body for an empty block, for their shapes."""
        arguments = [
            value if walk is None else self._empty_element(walk, value) for walk, value in ports
        ]
        tally, imagining = self.tally, self.imagining
        self.tally, self.imagining = Tally(), True
        try:
            return self.run(PlanFrame(action.body, [None] * len(action.body.outputs)), arguments)
        finally:
            self.tally, self.imagining = tally, imagining

    def _allocate(self, action: DoMap, stack: Stack, element: Any, place: str) -> StoredList:
        """An array for a stacked output, given one of its elements."""
        array: NumpyArray = element if stack.is_item else element.array
        if stack.order is None:
            shape = (len(self.tiling.blocks(action.dim)), *array.shape)
        else:
            rest = array.transpose(stack.order).shape[1:]
            shape = (self.tiling.extents.of(action.dim.axis), *rest)
        return StoredList(np.zeros(shape, array.dtype), Allocation(place))

    def _put(
        self, action: DoMap, stack: Stack, listed: StoredList, element: Any, block: int
    ) -> None:
        array: NumpyArray = element if stack.is_item else element.array
        if stack.order is None:
            target = listed.array[block, ...]
        else:
            target = listed.array[self.tiling.blocks(action.dim)[block]]
            array = array.transpose(stack.order)
        if target.shape != array.shape:
            problem = f"an element of shape {array.shape} does not fit its place, {target.shape}"
            raise IllTyped(op=f"map {action.dim.label}", problem=problem)
        target[...] = array

    def _gather(self, gathered: Gathered, coming: list[NumpyArray]) -> None:
        """Adds an item to an accumulator, and tallies its operations."""
        for component, item in zip(gathered.gather.components, coming, strict=True):
            self.tally.flops += component.operations * item.size
        gathered.add(coming)

    def _reduce(
        self, frame: PlanFrame, step: PlanStep, action: DoReduce, values: Values
    ) -> list[Any]:
        lists = [
            (walk, values[slot]) for walk, slot in zip(action.walks, step.operands, strict=True)
        ]
        counts = {self._count("a reduction", walk, listed) for walk, listed in lists}
        gather, tally, before = action.gather, self.tally, self.tally.live
        gathered = Gathered(self.arithmetic, gather)
        for block in range(counts.pop()):
            coming = [self._element(frame, walk, listed, block) for walk, listed in lists]
            held = _bytes(gather, coming)
            tally.hold(held)
            tally.live = before + held
            self._gather(gathered, coming)
        tally.live = before
        if gathered:
            return list(self.arithmetic.finished(gather, gathered.result()))
        shapes = [self._empty_element(walk, listed).shape for walk, listed in lists]
        nothing = self.arithmetic.identities(gather, shapes)
        return list(self.arithmetic.finished(gather, nothing))

    def _rename(
        self, frame: PlanFrame, step: PlanStep, action: DoRename, values: Values
    ) -> list[Any]:
        value: Any = values[step.operands[0]]
        if action.stored:
            place = frame.places[step.results[0]]
            self.tally.store(place, value.size * action.stored)
            return [StoredList(value, Allocation(place))]
        return [StoredList(value.array, value.allocation, value.index)]

    def _pick(self, frame: PlanFrame, step: PlanStep, action: DoPick, values: Values) -> list[Any]:
        walk, listed = action.walk, values[step.operands[0]]
        count = self._count("a pick", walk, listed)
        if action.index < count:
            return [self._element(frame, walk, listed, action.index)]
        if self.imagining or (walk.cut and action.index == 0):
            return [self._empty_element(walk, listed)]
        raise nothing_to_pick(walk.dim, action.index, count)

    def _join(self, frame: PlanFrame, step: PlanStep, action: DoJoin, values: Values) -> list[Any]:
        walk, place = action.walk, frame.places[step.results[0]]
        first, rest = (values[slot] for slot in step.operands)
        count = self._count("a join", walk, rest)
        joined = rest.array.copy()
        if count:
            self._part(walk, joined, 0)[...] = first if walk.is_item else first.array
        if walk.is_item:
            self.tally.store(place, first.size * walk.bytes)
        return [StoredList(joined, Allocation(place))]

    def _iota(self, frame: PlanFrame, step: PlanStep, action: DoIota, values: Values) -> list[Any]:
        positions = self._positions.get(action.axis)
        if positions is None:
            positions = np.arange(self.tiling.extents.of(action.axis), dtype=np.int64)
            self._positions[action.axis] = positions
        return [StoredList(positions, Allocation(None))]

    def _misc(self, frame: PlanFrame, step: PlanStep, action: DoMisc, values: Values) -> list[Any]:
        arrays: list[NumpyArray] = []
        sizes: dict[Dim, int] = {}
        for kind, order, slot in zip(action.operands, action.orders, step.operands, strict=True):
            value = values[slot]
            if kind.is_list and value.allocation.place is not None:
                self.tally.load(value.allocation.place, value.array.size * kind.dtype.bytes)
            array = value.array if kind.is_list else value
            sizes.update(zip(kind.dims, array.shape, strict=True))
            arrays.append(np.transpose(self.numbers.given(array, kind.dtype), order))
        if self.imagining:
            made = imagined_results(action.op, sizes, self.tiling, self.numbers)
        else:
            made = execute(action.op, arrays, sizes, self.tiling, self.numbers)
        results: list[Any] = []
        for kind, slot, array in zip(action.op.results, step.results, made, strict=True):
            place = frame.places[slot]
            if kind.is_list:
                self.tally.store(place, array.size * kind.dtype.bytes)
            results.append(StoredList(array, Allocation(place)) if kind.is_list else array)
        return results


def _bytes(gather: Gather, items: Sequence[NumpyArray]) -> int:
    return sum(
        item.size * component.dtype.bytes
        for item, component in zip(items, gather.components, strict=True)
    )


_EXECUTE: dict[type, Callable[..., list[Any]]] = {
    DoElementwise: BlockMachine._elementwise,
    DoBlockReduce: BlockMachine._block_reduce,
    DoScan: BlockMachine._scan,
    DoDot: BlockMachine._dot,
    DoTake: BlockMachine._take,
    DoMap: BlockMachine._map,
    DoReduce: BlockMachine._reduce,
    DoRename: BlockMachine._rename,
    DoPick: BlockMachine._pick,
    DoJoin: BlockMachine._join,
    DoIota: BlockMachine._iota,
    DoMisc: BlockMachine._misc,
}
