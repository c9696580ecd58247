"""The reference interpreter: it defines the meaning of block programs, on real blocks."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from blockbuster_fusion.cost.counters import Traffic
from blockbuster_fusion.cost.plan import GraphPlan, PlanFrame
from blockbuster_fusion.cost.planner import plan_of
from blockbuster_fusion.errors import BadInput
from blockbuster_fusion.host.inputs import in_order
from blockbuster_fusion.host.numbers import NumericMode, NumpyArray, as_array, misfit
from blockbuster_fusion.host.outputs import ByName
from blockbuster_fusion.interp.arithmetic import placed
from blockbuster_fusion.interp.machine import BlockMachine
from blockbuster_fusion.interp.values import Allocation, StoredList
from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import Into, Output
from blockbuster_fusion.ir.tiling import Extents, Tiles, Tiling, given_tiles
from blockbuster_fusion.ir.types import Type
from blockbuster_fusion.ir.verify import verify


class Outputs(ByName):
    """The outputs of a program, in order and by name, and the traffic of the run."""

    traffic: Traffic

    def __new__(
        cls, names: Sequence[str], arrays: Sequence[NumpyArray], traffic: Traffic
    ) -> "Outputs":
        made = super().__new__(cls, names, arrays)
        made.traffic = traffic
        return made

    def __getnewargs__(self) -> tuple[object, ...]:
        return self.names, tuple(self), self.traffic


def interpret(
    graph: Graph,
    inputs: Mapping[str, object] | Sequence[object],
    tiles: Tiles | None = None,
    *,
    sizes: Iterable[tuple[Axis, int]] = (),
) -> Outputs:
    """The outputs of a program for some inputs, computed block by block, with the traffic.

    `inputs` are arrays by name, or in order, each laid out in the order of its type's dims; numbers
    do for inputs without axes. `tiles` gives block sizes by dim, by label ("K.1") or by axis name
    ("K": all dims of the axis; what is more specific wins); without one, a tile is the axis or 64,
    whichever is less. The last block of an axis is as short as it has to be, never padded. `sizes`
    are the lengths of axes that no input need have.

    Every value is rounded to its declared dtype. 16-bit floats are computed in float32, and are
    rounded once for each operator; bfloat16 arrays come and go as float32. *Exact mode*: if any
    array given is float64, all floats are computed in float64 whatever is declared, and casts among
    them do nothing, so that a program can serve as its own oracle. A plain Python float does not
    decide this.

    Nothing warns: infinities and NaNs flow as IEEE has it. Sums start from their first element, and
    an empty one gives the combiner's identity.
    """
    verify(graph)
    plan = plan_of(graph, (True,) * len(graph.inputs))
    given = in_order(plan.names, inputs)
    arrays = [as_array(name, x) for name, x in zip(plan.names, given, strict=True)]
    extents = Extents()
    for axis, length in sizes:
        extents.bind(axis, length, "the caller's sizes")
    for name, slot, array in zip(plan.names, plan.inputs, arrays, strict=True):
        _bind(extents, name, plan.types[slot], array)
    tiling = Tiling(extents, given_tiles(plan.dims, tiles))
    exact = any(
        array.dtype.kind == "f" and array.dtype.itemsize >= 8 and type(x) is not float
        for array, x in zip(arrays, given, strict=True)
    )
    machine = BlockMachine(tiling, NumericMode(exact=exact))
    frame = PlanFrame(plan, [out.name or None for out in graph.outputs])
    with np.errstate(all="ignore"):
        values = machine.run(frame, _admitted(plan, machine, arrays))
        made = [
            _handed_out(machine, out, plan.types[slot], value, frame.places[slot])
            for out, slot, value in zip(graph.outputs, plan.outputs, values, strict=True)
        ]
        made = [
            x if out.into is None else _placed(graph, out, out.into, x, arrays)
            for out, x in zip(graph.outputs, made, strict=True)
        ]
    return Outputs([out.name for out in graph.outputs], made, machine.tally.traffic())


def _placed(
    graph: Graph, out: Output, into: Into, rows: NumpyArray, arrays: Sequence[NumpyArray]
) -> NumpyArray:
    """A copy of the array that an output is written into, with its rows replaced."""
    base, index = (graph.type_of_input(i).axes for i in (into.base, into.index))
    own = out.axes or graph.type(out.value).axes
    given = (arrays[into.base], base), (arrays[into.index], index), (rows, own)
    return placed(out.name, into.axis, *given)


def _bind(extents: Extents, name: str, kind: Type, array: NumpyArray) -> None:
    """Checks the shape of an input and binds the extents of its axes."""
    if array.ndim != len(kind.dims):
        axes = ", ".join(axis.name for axis in kind.axes)
        problem = f"has the shape {array.shape}, and the program wants the axes ({axes})"
        raise BadInput(name=name, problem=problem)
    for dim, length in zip(kind.dims, array.shape, strict=True):
        if dim in kind.items or not dim.packed:
            conflict = extents.bind(dim.axis, length, f"input {name}")
            if conflict is not None:
                raise BadInput(name=name, problem=conflict)


def _admitted(plan: GraphPlan, machine: BlockMachine, arrays: Sequence[NumpyArray]) -> list[Any]:
    """The inputs as values; items that are used are loaded here."""
    made: list[Any] = []
    for name, slot, used, array in zip(plan.names, plan.inputs, plan.used, arrays, strict=True):
        kind = plan.types[slot]
        problem = misfit(array, kind.dtype)
        if problem is not None:
            raise BadInput(name=name, problem=problem)
        held = machine.numbers.rounded(array, kind.dtype)
        if kind.is_list:
            made.append(StoredList(held, Allocation(None if kind.virtual else name)))
            continue
        if used:
            machine.tally.load(name, held.size * kind.dtype.bytes)
        made.append(held)
    return made


def _handed_out(
    machine: BlockMachine, out: Output, kind: Type, value: Any, place: str
) -> NumpyArray:
    """An output as the array that the caller gets; an item is stored here."""
    if not kind.is_list:
        machine.tally.store(place, value.size * kind.dtype.bytes)
    array = value.array if kind.is_list else value
    order = [kind.axes.index(axis) for axis in out.axes or kind.axes]
    return machine.numbers.given(array.transpose(order), kind.dtype)
