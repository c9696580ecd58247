"""One call of a plan, recorded: which kernels ran, and where in whose memory their arrays lay.

Views that only kernels look at are offsets and are not run again; what is the same in every call
is kept. `torch_tape.py` makes a tape of it.
"""

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._ops import OpOverload

from blockbuster_fusion.codegen.nest import Buffer
from blockbuster_fusion.codegen.shapes import contiguous
from blockbuster_fusion.runtime.cpu import CpuLaunch
from blockbuster_fusion.runtime.torch_arrays import STORED
from blockbuster_fusion.runtime.torch_steps import (
    BoundCopy,
    BoundKernel,
    BoundOperator,
    BoundRoom,
    BoundStep,
    OperatorStep,
    Slot,
    Step,
    in_order,
)

MOST_KEPT = 1 << 16
"""The bytes of the largest tensor that is kept because it is the same in every call."""


class Untaped(Exception):
    """Why there is no tape."""


@dataclass(slots=True, eq=False)
class Base:
    """A stretch of memory: a tensor's in a slot, or one that the tape has to make room for."""

    address: int
    """Where it was in the recorded call."""
    slot: int | None
    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.uint8
    shown: dict[int, None] = field(default_factory=dict)
    """The slots in room made by the tape that somebody else than a kernel looks at."""

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Lying:
    """How a tensor lies in memory."""

    base: Base
    offset: int
    """In bytes."""
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @property
    def is_whole(self) -> bool:
        """Whether it is all of its base, in order."""
        is_dense = contiguous(self.shape) == self.stride
        return is_dense and not self.offset and math.prod(self.shape) == math.prod(self.base.shape)


@dataclass(frozen=True, slots=True)
class Launched:
    """A kernel that was launched, and where its buffers lay."""

    launch: CpuLaunch
    places: tuple[tuple[Base, int], ...]


@dataclass(frozen=True, slots=True)
class Ran:
    """A step that PyTorch ran."""

    step: Callable[[list[Any]], None]
    reads: tuple[int, ...]
    makes: tuple[int, ...]


class Recording:
    """What happens in one call of a plan, told step by step."""

    def __init__(
        self, steps: Sequence[Step], outputs: Sequence[Any], given: Sequence[Any], room: int
    ) -> None:
        """`given` are the inputs, and there is room for so many other values."""
        self.outputs, self.slots = outputs, len(given) + room
        self.refusal: Untaped | None = None
        self.exposed = _exposed(steps, outputs)
        self.lying: dict[int, Lying] = {}
        self.views: dict[int, OperatorStep] = {}
        """Views that nobody but kernels has looked at."""
        self.kept: dict[int, Any] = {}
        """What is the same in every call."""
        self.actions: list[Launched | Ran] = []
        for slot, x in enumerate(given):
            if isinstance(x, torch.Tensor):
                self.lies(slot, x)
            elif isinstance(x, int):
                self.kept[slot] = x
        self.given = tuple(self.lying)

    def note(self, bound: BoundStep, values: list[Any]) -> None:
        """A step that has just been run."""
        if self.refusal is None:
            try:
                self.add(bound, values)
            except Untaped as refusal:
                self.refusal = refusal

    def add(self, bound: BoundStep, values: list[Any]) -> None:
        match bound:
            case BoundKernel():
                self.kernel(bound, values)
            case BoundOperator():
                self.operator(bound.step, values[bound.output], values)
            case BoundRoom():
                room = values[bound.slot]
                self.lies(bound.slot, room, Base(room.data_ptr(), None, bound.shape, bound.dtype))
            case BoundCopy():
                self.run(bound, (bound.source, bound.place.slot))

    def finish(self) -> list[int]:
        """The slots of the results, which are tensors then; or Untaped."""
        if self.refusal is not None:
            raise self.refusal
        results = [x.number for x in self.outputs if isinstance(x, Slot)]
        for slot in results:
            self.show(slot)
        return results

    # ---------------------------------------------------------------- places

    def lies(self, slot: int, x: torch.Tensor, base: Base | None = None) -> None:
        """Note where a tensor lies; without a base, it is one."""
        if _is_plain(x):
            base = base or Base(x.data_ptr(), slot)
            offset = x.data_ptr() - base.address if x.numel() else 0
            self.lying[slot] = Lying(base, offset, tuple(x.shape), tuple(x.stride()), x.dtype)

    def place(self, slot: int) -> tuple[Base, int]:
        if slot not in self.lying:
            raise Untaped("a kernel takes what is no plain tensor")
        return self.lying[slot].base, self.lying[slot].offset

    def new_slot(self) -> int:
        self.slots += 1
        return self.slots - 1

    # ---------------------------------------------------------------- kernels

    def kernel(self, bound: BoundKernel, values: list[Any]) -> None:
        program = bound.program(values)
        if program is None:
            raise Untaped("its kernels are not compiled")
        launches = [launch for launch in program.launches if launch is not None]
        rooms = {room.buffer: room.shape for launch in launches for room in launch.rooms}
        places: dict[Buffer, tuple[Base, int]] = {}
        for buffer, (slot, _, dtype) in zip(
            program.owner.program.inputs, bound.inputs, strict=True
        ):
            places[buffer] = self.place(self.converted(slot, dtype, values))
        merged: list[OperatorStep] = []
        for number, (slot, shown) in enumerate(bound.outputs):
            buffer, _, is_first = program.owner.given_back[number]
            if buffer in places or not is_first:
                raise Untaped("a kernel gives one array twice, or what it was given")
            x: torch.Tensor = values[slot]
            if number in bound.pieces:
                self.lies(slot, x, self.place(bound.pieces[number][0].slot)[0])
                places[buffer] = self.place(slot)
                continue
            base = Base(x.data_ptr(), None, rooms[buffer], STORED[buffer.dtype])
            places[buffer] = (base, 0)
            if shown is None or x.untyped_storage().nbytes() <= base.bytes:
                self.lies(slot, x, base)
            else:  # broadcast and then merged, which copies
                raw = self.new_slot()
                self.lying[raw] = Lying(base, 0, base.shape, contiguous(base.shape), base.dtype)
                merged.append(OperatorStep("merge", shown, (Slot(raw),), {}, slot))
        for buffer, shape in rooms.items():
            places.setdefault(buffer, (Base(0, None, shape, STORED[buffer.dtype]), 0))
        for launch in launches:
            if not isinstance(launch.function, CpuLaunch):
                raise Untaped("its kernels are not launched by address")
            self.actions.append(Launched(launch.function, tuple(places[b] for b in launch.buffers)))
        for step in merged:
            self.run(BoundOperator(step), tuple(step.reads), step.output)
            self.lies(step.output, values[step.output])

    def converted(self, slot: int, dtype: torch.dtype | None, values: list[Any]) -> int:
        """The slot of an input, as a tensor of the dtype that a kernel wants."""
        if dtype is None:
            return slot
        options = {"dtype": dtype}
        step = OperatorStep("convert", torch.as_tensor, (Slot(slot),), options, self.new_slot())
        self.operator(step, torch.as_tensor(values[slot], dtype=dtype), values)
        return step.output

    # ---------------------------------------------------------------- operators

    def operator(self, step: OperatorStep, made: Any, values: list[Any]) -> None:
        reads = tuple(step.reads)
        if depends_on_data(step.function) or _picks_by_mask(step, values):
            raise Untaped(f"data decides how much {step.name} gives")
        is_tensor = isinstance(made, torch.Tensor)
        if is_pure(step.function):
            is_same = step.function in _SIZES or all(slot in self.kept for slot in reads)
            if is_same and (not is_tensor or self.is_kept(step.output, made)):
                self.kept[step.output] = made
                if is_tensor:
                    self.lies(step.output, made)
                return
            source = self.source(made, reads, values) if is_tensor else None
            if source is not None:
                self.views[step.output] = step
                self.lies(step.output, made, source)
                return
        self.run(BoundOperator(step), reads, step.output)
        if is_tensor:
            self.lies(step.output, made)

    def is_kept(self, slot: int, x: torch.Tensor) -> bool:
        return slot not in self.exposed and _is_plain(x) and x.nbytes <= MOST_KEPT

    def source(self, x: torch.Tensor, reads: Iterable[int], values: list[Any]) -> Base | None:
        """Where that lies of which an operator gave a view."""
        if not _is_plain(x):
            return None
        storage = x.untyped_storage()._cdata
        for slot in reads:
            if slot in self.lying and values[slot].untyped_storage()._cdata == storage:
                return self.lying[slot].base
        return None

    def run(self, step: Callable[[list[Any]], None], reads: tuple[int, ...], *makes: int) -> None:
        for slot in reads:
            self.show(slot)
        self.actions.append(Ran(step, reads, makes))

    def show(self, slot: int) -> None:
        """See to it that there is a tensor in a slot: views are run when somebody asks."""
        wanted = [slot]
        for at in wanted:
            if at in self.views and not self.is_made(at):
                wanted.extend(self.views[at].reads)
        for at in reversed(wanted):
            if self.is_made(at):
                self.lying[at].base.shown[at] = None
            elif at in self.views:
                step = self.views.pop(at)
                self.actions.append(Ran(BoundOperator(step), tuple(step.reads), (at,)))

    def is_made(self, slot: int) -> bool:
        """Whether the tape makes room for it, so that it is a tensor without running anything."""
        found = self.lying.get(slot)
        return found is not None and found.base.slot is None and found.base.dtype is found.dtype


# ---------------------------------------------------------------- what operators do

_DATA_DEPENDENT = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
INDEX = torch.ops.aten.index.Tensor
"""What it gives depends in size on what is in its indices only where these are masks."""
_SIZES = (
    torch.ops.aten.sym_size.int,
    torch.ops.aten.sym_stride.int,
    torch.ops.aten.sym_numel.default,
)
"""What depends on how an array lies in memory, and not on what is in it."""
_PURE = (
    *(torch.Tensor.reshape, torch.Tensor.permute, torch.Tensor.unsqueeze, torch.Tensor.expand),
    *(torch.Tensor.clone, torch.as_tensor, in_order),
)


def depends_on_data(function: Any) -> bool:
    """Whether the size of what a function gives depends on numbers in what it is given."""
    tags = getattr(function, "tags", ())
    return function is not INDEX and any(tag in _DATA_DEPENDENT for tag in tags)


def _picks_by_mask(step: OperatorStep, values: Sequence[Any]) -> bool:
    if step.function is not INDEX:
        return False
    indices = [values[x.number] for x in step.arguments[1] if isinstance(x, Slot)]
    return any(x.dtype in (torch.bool, torch.uint8) for x in indices)


def is_pure(function: Any) -> bool:
    """Whether a function does nothing but give its result, which is the same every time."""
    if isinstance(function, OpOverload):
        is_random = torch.Tag.nondeterministic_seeded in function.tags
        return function.namespace == "aten" and not function._schema.is_mutable and not is_random
    return function in _PURE or getattr(operator, getattr(function, "__name__", ""), 0) is function


PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
"""What tensors are that are nothing but numbers in memory."""


def _is_plain(x: torch.Tensor) -> bool:
    """Whether a tensor is nothing but numbers, in the memory of the CPU."""
    return type(x) in PLAIN and x.layout is torch.strided and x.device.type == "cpu"


def _exposed(steps: Sequence[Step], outputs: Sequence[Any]) -> set[int]:
    """The slots whose tensors may leave the call or be written to."""
    found = {x.number for x in outputs if isinstance(x, Slot)}
    for step in reversed(steps):
        if not isinstance(step, OperatorStep):
            continue
        if step.output in found or not is_pure(step.function):
            found.update(step.reads)
    return found
