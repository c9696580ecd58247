"""The placements of the buffers of a kernel step, in the recording of a call."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from blockbuster_fusion.array.records import FrameworkLayout
from blockbuster_fusion.nest.nest import Along, Buffer, BufferAxis, Clear, Kernel
from blockbuster_fusion.nest.shapes import contiguous
from blockbuster_fusion.runtime.bound import Bound, Launch
from blockbuster_fusion.runtime.c.kernels import CpuLaunch
from blockbuster_fusion.runtime.tensors import STORED
from blockbuster_fusion.torch.plan.placement import (
    Base,
    Launched,
    Placement,
    Untaped,
    has_driver,
)
from blockbuster_fusion.torch.plan.sized import (
    DenseStrides,
    SizedGpuKernel,
    SizedKernel,
    Varied,
    blocks,
    fixed_shape,
)
from blockbuster_fusion.torch.plan.steps import (
    KernelStep,
    OperatorStep,
    Slot,
    atoms,
    merged,
    merging,
)

if TYPE_CHECKING:
    from blockbuster_fusion.torch.plan.recording import Recording


class KernelBuffers:
    """The placement of each buffer: of inputs, of outputs, and of what only kernels see.

    A buffer whose shape depends on sizes is a dense array of the tape, or a tensor in a slot.
    """

    def __init__(self, recording: "Recording", step: KernelStep, program: Bound) -> None:
        self.recording, self.step, self.program = recording, step, program
        sizes = () if recording.is_fixed else step.sizes
        self.sizes = [(axis, recording.sizes.at(size)) for axis, size in sizes]
        self.lengths = {axis.extent: slot for axis, slot in self.sizes}
        if not (recording.is_fixed or self.lengths.keys() >= program.extents.sizes.keys()):
            raise Untaped("an input alone tells a size")
        self.launches = [launch for launch in program.launches if launch is not None]
        self.rooms = {room.buffer: room for launch in self.launches for room in launch.rooms}
        self.places: dict[Buffer, tuple[Base, int]] = {}
        self.varied: dict[Buffer, Varied] = {}
        """The buffers that depend on sizes."""
        self.slots: dict[Buffer, int] = {}
        """The slots of the dense arrays."""

    def vary(self, buffer: Buffer, slot: int, order: Sequence[int] = ()) -> None:
        """Notes that a buffer is the tensor in a slot, which has its axes in an order."""
        if [*order] != sorted(order):
            back = [order.index(at) for at in range(len(order))]
            slot = self.recording.do(torch.Tensor.permute, Slot(slot), back)
        self.varied[buffer] = slot
        self.places[buffer] = self.recording.place(slot)

    def read(self, buffer: Buffer, slot: int, layout: FrameworkLayout) -> None:
        is_dense = self.recording.is_dense(slot)
        self.places[buffer] = self.recording.place(slot)
        order = self.recording.placements[slot].order if is_dense else ()
        if is_dense and (layout.is_plain or not order):
            shape = atoms(layout, self.recording.sizes.length)
            order = order or tuple(range(len(shape)))
            self.varied[buffer] = DenseStrides(tuple(shape[at] for at in order), order)
        elif slot in self.recording.varying:
            self.vary(buffer, slot if layout.is_plain else self.axes_of(slot, layout))

    def axes_of(self, slot: int, layout: FrameworkLayout) -> int:
        """The slot of a tensor with a dimension for each axis."""
        shape = atoms(layout, self.recording.sizes.length)
        return self.recording.do(torch.Tensor.view, Slot(slot), shape)

    def stored(self, number: int, x: torch.Tensor) -> Iterator[OperatorStep]:
        """Notes the placement of an output, and yields the step that merges its axes, if any."""
        if number in self.step.updates:
            return  # it lies in an input
        recording, (slot, layout, piece) = self.recording, self.step.outputs[number]
        buffer, order, is_first = self.program.owner.given_back[number]
        if buffer in self.places or not is_first:
            raise Untaped("a kernel gives one array twice, or what it was given")
        is_known = recording.sizes.knows(
            size for position in layout.positions for size, _ in position
        )
        if piece is not None:
            if piece.slot not in recording.varying and recording.sizes.knows(piece.lengths):
                recording.note_placement(slot, x, recording.place(piece.slot)[0])
                self.places[buffer] = recording.place(slot)
            else:
                self.vary(buffer, self.axes_of(recording.narrowed(piece, slot), layout), order)
            return
        if self.is_sized(buffer):
            raw = slot if layout.is_plain else recording.new_slot()
            base = self.allocate(buffer, raw)
            if all(has for position in layout.positions for _, has in position):
                recording.dense(slot, base, merging(layout, recording.sizes.length)[2])
                return
        else:
            base = Base(x.data_ptr(), None, self.rooms[buffer].shape, STORED[buffer.dtype])
            self.places[buffer] = (base, 0)
            if is_known and (layout.is_plain or x.untyped_storage().nbytes() <= base.bytes):
                recording.note_placement(slot, x, base)
                return
            raw = recording.new_slot()  # broadcast and then merged, which copies
            shape = fixed_shape(base.shape)
            recording.placements[raw] = Placement(base, 0, shape, contiguous(shape), base.dtype)
        if raw != slot:
            arguments = (Slot(raw), *merging(layout, recording.sizes.length))
            yield OperatorStep("merged", merged, arguments, {}, slot)

    def is_sized(self, buffer: Buffer) -> bool:
        """True if the shape of a buffer depends on sizes."""
        return any(axis.dim.axis.extent in self.lengths for axis in buffer.axes)

    def allocate(self, buffer: Buffer, slot: int) -> Base:
        """Notes that a buffer is a dense array, in the order of its layout, and the slot's."""
        shape = [self.length(axis) for axis in buffer.axes]
        order = tuple(self.program.owner.layouts.get(buffer, range(len(shape))))
        in_memory = tuple(shape[at] for at in order)
        base = Base(0, None, in_memory, STORED[buffer.dtype])
        self.recording.dense(slot, base, in_memory)
        self.varied[buffer], self.slots[buffer] = DenseStrides(in_memory, order), slot
        self.places[buffer] = (base, 0)
        return base

    def length(self, axis: BufferAxis) -> int | Slot:
        """The length of a buffer along an axis."""
        dim, tiling = axis.dim, self.program.tiling
        if axis.along is Along.PADDED and isinstance(dim.axis.extent, int):
            return len(tiling.starts(dim)) * tiling.starts(dim).step
        is_cut = axis.along is Along.BLOCKS and dim.packed
        if isinstance(dim.axis.extent, int):
            return len(tiling.starts(dim)) if is_cut else dim.axis.extent
        extent = Slot(self.lengths[dim.axis.extent])
        if not is_cut:
            return extent
        return self.recording.sizes.number(
            blocks, extent, None if dim.unit else tiling.starts(dim).step
        )

    def allocate_rest(self) -> None:
        """Allocates the buffers that only the kernels see."""
        for buffer, room in self.rooms.items():
            if buffer in self.places:
                continue
            if self.is_sized(buffer):
                self.allocate(buffer, self.recording.new_slot())
            else:
                self.places[buffer] = (Base(0, None, room.shape, STORED[buffer.dtype]), 0)

    def cleared(self, launch: Launch) -> int | None:
        """The slot of the tensor that a launch clears, if it depends on sizes."""
        step = launch.step
        return self.slots.get(step.buffer) if isinstance(step, Clear) else None

    def launched(self, launch: Launch) -> Launched:
        function = launch.function
        places = tuple(self.places[b] for b in launch.buffers)
        if has_driver(self.recording.device):
            return self.on_gpu(launch, places)
        if not isinstance(function, CpuLaunch):
            raise Untaped("its kernels are not launched by address")
        name = self.step.names[function.name]
        if self.is_sized_launch(launch):
            return Launched(name, SizedKernel(launch, self.varied, self.sizes), places)
        return Launched(name, function, places)

    def on_gpu(self, launch: Launch, places: tuple[tuple[Base, int], ...]) -> Launched:
        """A launch by the driver, with memory for what only this kernel sees."""
        from blockbuster_fusion.runtime.triton.driver import cleared
        from blockbuster_fusion.runtime.triton.launch import FittingLaunch

        if isinstance(launch.step, Clear):
            (base, _), name = places[0], launch.step.buffer.name
            if base.slot is not None:
                raise Untaped("an array that is given is cleared")
            return Launched(name, cleared(name, base.bytes), places)
        assert isinstance(launch.step, Kernel)
        function, device = launch.function, self.recording.device
        if not isinstance(function, FittingLaunch):
            raise Untaped("its kernels are not launched by address")
        name = self.step.names[launch.step.name]
        if self.is_sized_launch(launch):
            if function.plan.scratch:
                raise Untaped("a kernel has memory of its own that depends on sizes")
            recorded = self.recording.sizes.numbers
            kernel = SizedGpuKernel(launch, self.varied, self.sizes, recorded, device)
            return Launched(name, kernel, places)
        if not all(self.recording.is_aligned(base, offset) for base, offset in places):
            raise Untaped("an array begins at an address that kernels are not compiled for")
        found = function.by_driver(device)
        if found is None:
            raise Untaped("its kernels are not launched by address")
        own = [(Base(0, None, shape, dtype), 0) for shape, dtype in found.scratch]
        return Launched(name, found, (*places, *own))

    def is_sized_launch(self, launch: Launch) -> bool:
        """True if a kernel depends on sizes, or has a buffer that varies."""
        assert isinstance(launch.step, Kernel)
        has_sizes = bool(self.sizes) and bool(launch.step.symbols)
        return has_sizes or any(b in self.varied for b in launch.buffers)
