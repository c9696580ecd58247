"""The placements of the buffers of a kernel step, in the assembly of a call."""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from blockbuster_fusion.array.records import FrameworkLayout
from blockbuster_fusion.nest.nest import Along, Buffer, BufferAxis, Call, Clear, Launchable
from blockbuster_fusion.nest.shapes import buffer_shape, contiguous
from blockbuster_fusion.runtime.bound import Bound, Launch
from blockbuster_fusion.runtime.c.kernels import CpuKernels
from blockbuster_fusion.runtime.compiled import Compiled
from blockbuster_fusion.runtime.tensors import STORED, library_on
from blockbuster_fusion.torch.plan.placement import (
    Base,
    EmptyArrays,
    Launched,
    Untaped,
    has_driver,
)
from blockbuster_fusion.torch.plan.sized import (
    DenseStrides,
    GpuKernel,
    SizedBuffers,
    SizedKernel,
    Varied,
    blocks,
)
from blockbuster_fusion.torch.plan.steps import (
    KernelStep,
    OperatorStep,
    Piece,
    Slot,
    atoms,
    merged,
    merging,
)

if TYPE_CHECKING:
    from blockbuster_fusion.torch.plan.assembling import Assembly


class KernelBuffers:
    """The placement of each buffer: of inputs, of outputs, and of what only kernels see.

    A buffer whose shape depends on sizes is a dense array of the tape, or a tensor in a slot.
    """

    def __init__(self, assembly: "Assembly", step: KernelStep, given: Sequence[int]) -> None:
        """`given` are the slots of the inputs, which have the dtypes that the kernels want."""
        self.assembly, self.step = assembly, step
        self.program = self.bound(given)
        sizes = {axis.extent: assembly.sizes.length(size) for axis, size in step.sizes}
        known = self.program.extents.sizes
        if not (assembly.is_fixed or sizes.keys() >= known.keys()):
            raise Untaped("an input alone tells a size")
        self.sizes = {symbol: sizes.get(symbol, n) for symbol, n in known.items()}
        self.lengths = {symbol: n for symbol, n in self.sizes.items() if isinstance(n, Slot)}
        steps = zip(self.program.owner.nest.steps, self.program.owner.buffers, strict=True)
        self.launches = [
            Launch(self.program, x, buffers) for x, buffers in steps if not isinstance(x, Call)
        ]
        self.rooms = {room.buffer: room for launch in self.launches for room in launch.rooms}
        self.strides = {
            room.buffer: _turned(contiguous(room.shape), room.turned)
            for room in self.rooms.values()
        }
        """The strides of each buffer that does not vary."""
        self.places: dict[Buffer, tuple[Base, int]] = {}
        self.varied: dict[Buffer, Varied] = {}
        """The buffers that depend on sizes."""
        self.slots: dict[Buffer, int] = {}
        """The slots of buffers that are no inputs."""
        inputs = self.program.owner.nest.inputs
        for buffer, slot, (_, layout, _) in zip(inputs, given, step.inputs, strict=True):
            self.strides[buffer] = self.seen(slot, layout).stride()
            self.read(buffer, slot, layout)

    def bound(self, given: Sequence[int]) -> Bound:
        """The program for inputs like these, or Untaped."""
        runner, length = self.step.executable.runner, self.assembly.sizes.length_now
        if not isinstance(runner, Compiled) or not runner.is_static:
            raise Untaped("its kernels are not compiled")
        for slot in given:
            self.assembly.place(slot)
        layouts = (layout for _, layout, _ in self.step.inputs)
        arrays = [self.seen(slot, layout) for slot, layout in zip(given, layouts, strict=True)]
        sizes = tuple((axis, length(size)) for axis, size in self.step.sizes)
        found = runner.bound_for(arrays, sizes, library_on(self.step.device))
        if found.is_empty:
            raise EmptyArrays("arrays are empty, for which other kernels run")
        return found

    def seen(self, slot: int, layout: FrameworkLayout) -> torch.Tensor:
        """The tensor in a slot without its contents, with a dimension for each axis."""
        x: torch.Tensor = self.assembly.layouts.values[slot]
        return x if layout.is_plain else x.view(atoms(layout, self.assembly.sizes.length_now))

    def vary(self, buffer: Buffer, slot: int, order: Sequence[int] = ()) -> None:
        """Notes that a buffer is the tensor in a slot, which has its axes in an order."""
        if [*order] != sorted(order):
            slot = self.assembly.do(torch.Tensor.permute, Slot(slot), [*_back(order)])
        self.varied[buffer] = slot
        self.places[buffer] = self.assembly.place(slot)

    def read(self, buffer: Buffer, slot: int, layout: FrameworkLayout) -> None:
        is_dense = self.assembly.is_dense(slot)
        self.places[buffer] = self.assembly.place(slot)
        order = self.assembly.placements[slot].order if is_dense else ()
        if is_dense and (layout.is_plain or not order):
            shape = atoms(layout, self.assembly.sizes.length)
            order = order or tuple(range(len(shape)))
            self.varied[buffer] = DenseStrides(tuple(shape[at] for at in order), order)
        elif slot in self.assembly.varying:
            self.vary(buffer, slot if layout.is_plain else self.axes_of(slot, layout))

    def axes_of(self, slot: int, layout: FrameworkLayout) -> int:
        """The slot of a tensor with a dimension for each axis."""
        shape = atoms(layout, self.assembly.sizes.length)
        return self.assembly.do(torch.Tensor.view, Slot(slot), shape)

    def stored(self, number: int) -> Iterator[OperatorStep]:
        """Notes the placement of an output, and yields the step that merges its axes, if any."""
        if number in self.step.updates:
            return  # it lies in an input
        assembly, (slot, layout, piece) = self.assembly, self.step.outputs[number]
        buffer, order, is_first = self.program.owner.given_back[number]
        if buffer in self.places or not is_first:
            raise Untaped("a kernel gives one array twice, or what it was given")
        if piece is not None:
            self.slots[buffer] = slot
            self.store_piece(buffer, slot, layout, piece, order)
            return
        has_all = all(has for position in layout.positions for _, has in position)
        raw = slot if layout.is_plain else assembly.layouts.new_slot()
        base, made = self.allocate(buffer, raw), assembly.layouts.values[raw]
        if raw == slot:
            return
        shapes = merging(layout, assembly.sizes.length)
        merge = OperatorStep("merged", merged, (Slot(raw), *shapes), {}, slot)
        found = assembly.layouts.evaluate(merge)
        is_known = assembly.sizes.knows(size for p in layout.positions for size, _ in p)
        is_view = found.untyped_storage()._cdata == made.untyped_storage()._cdata
        if base.is_sized and has_all:
            assembly.dense(slot, base, shapes[2])
        elif is_known and is_view and not base.is_sized:
            assembly.note_placement(slot, base)
        elif not is_known or base.is_sized:  # broadcast and then merged, which copies
            yield merge
        else:
            whole, wide = assembly.layouts.new_slot(), assembly.layouts.new_slot()
            inner, spread, shape = shapes
            yield OperatorStep("view", torch.Tensor.reshape, (Slot(raw), inner), {}, whole)
            yield OperatorStep("expand", torch.Tensor.expand, (Slot(whole), spread), {}, wide)
            yield OperatorStep("merge", torch.Tensor.reshape, (Slot(wide), shape), {}, slot)

    def store_piece(
        self, buffer: Buffer, slot: int, layout: FrameworkLayout, piece: Piece, order: Sequence[int]
    ) -> None:
        """Notes that an output is stored into a piece of a larger array."""
        self.assembly.piece(piece, slot)
        if slot in self.assembly.varying:
            self.vary(buffer, self.axes_of(slot, layout), order)
            return
        self.places[buffer] = self.assembly.place(slot)
        self.strides[buffer] = _turned(self.seen(slot, layout).stride(), _back(order))

    def is_sized(self, buffer: Buffer) -> bool:
        """True if the shape of a buffer depends on sizes."""
        return any(axis.dim.axis.extent in self.lengths for axis in buffer.axes)

    def allocate(self, buffer: Buffer, slot: int) -> Base:
        """Notes that a buffer is a dense array, in the order of its layout, and the slot's."""
        assembly, room, dtype = self.assembly, self.rooms[buffer], STORED[buffer.dtype]
        assembly.layouts.allocate(slot, room.shape, dtype, assembly.device)
        self.slots[buffer] = slot
        if self.is_sized(buffer):
            shape = [self.length(axis) for axis in buffer.axes]
            order = tuple(self.program.owner.layouts.get(buffer, range(len(shape))))
            in_memory = tuple(shape[at] for at in order)
            base = Base(None, in_memory, dtype)
            assembly.dense(slot, base, in_memory)
            self.varied[buffer] = DenseStrides(in_memory, order)
        else:
            base = Base(None, room.shape, dtype)
            assembly.note_placement(slot, base)
        self.places[buffer] = (base, 0)
        return base

    def length(self, axis: BufferAxis) -> int | Slot:
        """The length of a buffer along an axis."""
        dim, tiling = axis.dim, self.program.tiling
        if axis.along is Along.PADDED and isinstance(dim.axis.extent, int):
            return len(tiling.starts(dim)) * tiling.starts(dim).step
        is_cut = axis.along is Along.BLOCKS and dim.packed
        symbol, known = dim.axis.extent, tiling.extents.of(dim.axis)
        extent = known if isinstance(symbol, int) else self.lengths.get(symbol, known)
        if isinstance(extent, int):
            return len(tiling.starts(dim)) if is_cut else extent
        if not is_cut:
            return extent
        return self.assembly.sizes.number(
            blocks, extent, None if dim.unit else tiling.starts(dim).step
        )

    def allocate_rest(self) -> None:
        """Allocates the buffers that only the kernels see."""
        for buffer in self.rooms:
            if buffer not in self.places:
                self.allocate(buffer, self.assembly.layouts.new_slot())

    def cleared(self, launch: Launch) -> int | None:
        """The slot of the tensor that a launch clears, unless the driver clears it."""
        step = launch.step
        if not isinstance(step, Clear):
            return None
        base, _ = self.places[step.buffer]
        room = self.rooms.get(step.buffer)
        is_whole = room is not None and base.shape == room.shape
        is_by_driver = has_driver(self.assembly.device) and base.slot is None and is_whole
        return None if is_by_driver else self.slots[step.buffer]

    def launched(self, launch: Launch) -> Launched:
        step, device = launch.step, self.assembly.device
        places = tuple(self.places[b] for b in launch.buffers)
        if isinstance(step, Clear):
            from blockbuster_fusion.runtime.triton.driver import cleared

            return Launched(step.buffer.name, cleared(step.buffer.name, places[0][0].bytes), places)
        name, kernels = self.step.names[step.name], self.program.owner.kernels
        buffers = self.sized_buffers(launch)
        if has_driver(device):
            kernel = GpuKernel(launch, buffers, device)
            return Launched(name, kernel, (*places, *self.scratch(kernel)))
        if not isinstance(kernels, CpuKernels):
            raise Untaped("its kernels are not launched by address")
        if buffers.is_sized:
            return Launched(name, SizedKernel(launch, buffers), places)
        strides, sizes = [x for _, x in buffers.strides], self.program.extents.sizes
        elements = sum(math.prod(buffer_shape(b, self.program.tiling)) for b in launch.buffers)
        return Launched(name, kernels.bind(step, strides, sizes, elements=elements), places)

    def scratch(self, kernel: GpuKernel) -> Iterator[tuple[Base, int]]:
        """The places of the arrays that a kernel has for itself."""
        sizes = [n for _, n in kernel.buffers.sizes]
        for at, (buffer, shape) in enumerate(kernel.scratch):
            lengths: tuple[int | Slot, ...] = shape
            if any(isinstance(n, Slot) for n in sizes):
                lengths = (self.assembly.sizes.number(kernel.scratch_elements, at, *sizes),)
            yield Base(None, lengths, STORED[buffer.dtype]), 0

    def sized_buffers(self, launch: Launch) -> SizedBuffers:
        """The sizes and strides of a launch."""
        assert isinstance(launch.step, Launchable)
        strides = tuple((self.varied.get(b), self.strides[b]) for b in launch.buffers)
        is_sized = bool(self.lengths) and not self.lengths.keys().isdisjoint(launch.step.symbols)
        sizes = self.sizes if is_sized else self.program.extents.sizes
        return SizedBuffers(tuple(sizes.items()), strides)


def _back(order: Sequence[int]) -> tuple[int, ...]:
    """The order that undoes an order."""
    return tuple(order.index(at) for at in range(len(order)))


def _turned(strides: Sequence[int], order: Sequence[int] | None) -> tuple[int, ...]:
    return tuple(strides) if order is None else tuple(strides[at] for at in order)
