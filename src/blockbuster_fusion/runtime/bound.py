"""Compiled programs bound to the shapes and strides of their inputs."""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from blockbuster_fusion.errors import BadInput
from blockbuster_fusion.host.misc import execute
from blockbuster_fusion.host.numbers import NumericMode
from blockbuster_fusion.ir.axis import Dim, Symbol
from blockbuster_fusion.ir.tiling import Extents, Tiling
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.nest import (
    Along,
    Buffer,
    Call,
    Clear,
    Grids,
    Kernel,
    Launchable,
    Nest,
    NestStep,
)
from blockbuster_fusion.nest.shapes import buffer_shape, layout_order
from blockbuster_fusion.runtime.arrays import ArrayLibrary
from blockbuster_fusion.runtime.executable import Sizes


class Kernels(Protocol):
    """The compiled kernels of a program."""

    source: str

    def bind(
        self,
        kernel: Launchable,
        strides: Sequence[Sequence[int]],
        sizes: Mapping[Symbol, int],
        *,
        elements: int,
    ) -> Callable[[Sequence[Any]], None]:
        """A launch for buffers with these strides, in the order of its global buffers.

        `elements` is the number of elements of all of them.
        """


class ScratchPool:
    """Flat arrays for the buffers between kernels, kept from call to call."""

    def __init__(self) -> None:
        self.spare: dict[Hashable, list[dict[Buffer, Any]]] = {}

    def borrow(self, library: ArrayLibrary) -> dict[Buffer, Any]:
        """The arrays of an earlier call that nobody is using, or none."""
        spares = self.spare.setdefault(library.name, [])
        return spares.pop() if spares else {}

    def give_back(self, library: ArrayLibrary, scratch: dict[Buffer, Any]) -> None:
        """Keeps the arrays of a call that is done; on a GPU its kernels may still run."""
        if scratch and library.is_prompt:
            self.spare[library.name].append(scratch)


@dataclass(frozen=True)
class CompiledNest:
    """A nest with its compiled kernels, the names of its inputs and its tiles."""

    nest: Nest
    names: tuple[str, ...]
    tiles: Mapping[Dim, int]
    kernels: Kernels
    scratch: ScratchPool = field(default_factory=ScratchPool)

    @cached_property
    def is_static(self) -> bool:
        """True if no step is a misc operator: all sizes follow from the inputs."""
        return not any(isinstance(step, Call) for step in self.nest.steps)

    @cached_property
    def inputs(self) -> tuple[tuple[str, DType], ...]:
        """The names and dtypes of the inputs."""
        dtypes = (buffer.dtype for buffer in self.nest.inputs)
        return tuple(zip(self.names, dtypes, strict=True))

    @cached_property
    def buffers(self) -> tuple[tuple[Buffer, ...], ...]:
        """The buffers that each step takes as arguments."""
        return tuple(map(_global_buffers, self.nest.steps))

    @cached_property
    def layouts(self) -> dict[Buffer, tuple[int, ...]]:
        """The order of axes in the array of each output buffer."""
        made: dict[Buffer, tuple[int, ...]] = {}
        for view, layout in zip(self.nest.outputs, self.nest.layouts, strict=True):
            made.setdefault(view.buffer, layout_order(view, layout))
        return made

    @cached_property
    def updated(self) -> frozenset[Buffer]:
        """The inputs that are written in place."""
        return frozenset(self.nest.updated)

    @cached_property
    def given_back(self) -> tuple[tuple[Buffer, tuple[int, ...], bool], ...]:
        """For each output its buffer, the order of its axes, and True at the buffer's first use."""
        found: list[tuple[Buffer, tuple[int, ...], bool]] = []
        for view, layout in zip(self.nest.outputs, self.nest.layouts, strict=True):
            is_first = all(buffer is not view.buffer for buffer, _, _ in found)
            found.append((view.buffer, layout_order(view, layout), is_first))
        return tuple(found)


def _global_buffers(step: NestStep) -> tuple[Buffer, ...]:
    """The buffers that a step takes as arguments."""
    match step:
        case Kernel() | Grids():
            return step.global_buffers
        case Clear():
            return (step.buffer,)
        case Call():
            return ()


Arrays = dict[Buffer, Any]
"""The array of each buffer, with its axes in the buffer's order."""


class Bound:
    """A program bound to inputs of certain shapes and strides: sizes and launches are fixed."""

    def __init__(
        self, owner: CompiledNest, library: ArrayLibrary, inputs: Sequence[Any], sizes: Sizes
    ) -> None:
        self.owner = owner
        self.extents = Extents.of_sizes(sizes, "the caller's sizes")
        self.tiling = Tiling(self.extents, owner.tiles)
        shapes = [library.shape(x) for x in inputs]
        self.is_empty = is_empty(shapes, sizes)
        named = [*zip(owner.names, owner.nest.inputs, shapes, strict=True)]
        for name, buffer, shape in named:
            self.admit(name, buffer, shape)
        for name, buffer, shape in named:
            self.check_blocks(name, buffer, shape)
        self.launches: list[Launch | None] = [None] * len(owner.nest.steps)

    def admit(self, name: str, buffer: Buffer, shape: tuple[int, ...]) -> None:
        """Binds the sizes of an input's axes, or BadInput."""
        if len(shape) != len(buffer.axes):
            axes = ", ".join(axis.dim.name for axis in buffer.axes)
            problem = f"has the shape {shape}, and the program wants the axes ({axes})"
            raise BadInput(name=name, problem=problem)
        for axis, length in zip(buffer.axes, shape, strict=True):
            if axis.along is Along.AXIS or not axis.dim.packed:
                conflict = self.extents.bind(axis.dim.axis, length, f"input {name}")
                if conflict is not None:
                    raise BadInput(name=name, problem=conflict)

    def check_blocks(self, name: str, buffer: Buffer, shape: tuple[int, ...]) -> None:
        """BadInput if an input has the wrong number of blocks."""
        for axis, length in zip(buffer.axes, shape, strict=True):
            if axis.along is Along.BLOCKS and axis.dim.packed and not axis.dim.is_free:
                blocks = len(self.tiling.starts(axis.dim))
                if blocks != length:
                    problem = f"has {length} elements for the {blocks} blocks of {axis.dim.label}"
                    raise BadInput(name=name, problem=problem)

    def run(
        self,
        library: ArrayLibrary,
        inputs: Sequence[Any],
        into: Mapping[int, Any] | None = None,
    ) -> list[Any]:
        """The outputs, in order; those with numbers in `into` are written there."""
        scratch = self.owner.scratch.borrow(library)
        arrays, outputs = self.launched(library, inputs, into or {}, scratch)
        self.owner.scratch.give_back(library, scratch)
        return self.handed_out(library, arrays, outputs, into or {})

    def prepared(self, library: ArrayLibrary, inputs: Sequence[Any]) -> Callable[[], None]:
        """Runs the program once, and gives a function that launches its kernels again.

        It launches them on the same arrays and does nothing else, so it serves to measure them.
        """
        arrays, _ = self.launched(library, inputs, {}, {})
        launches = [launch for launch in self.launches if launch is not None]

        def again() -> None:
            for launch in launches:
                launch(library, arrays)

        return again

    def launched(
        self,
        library: ArrayLibrary,
        inputs: Sequence[Any],
        into: Mapping[int, Any],
        scratch: Arrays,
    ) -> tuple[Arrays, Arrays]:
        """Runs all steps, and returns the arrays of all buffers, and of the outputs."""
        owner = self.owner
        arrays: Arrays = dict(zip(owner.nest.inputs, inputs, strict=True))
        outputs: Arrays = {}
        for number, x in into.items():
            buffer, order, is_first = owner.given_back[number]
            if is_first and buffer not in arrays:
                outputs[buffer] = x
                turned = tuple(order.index(at) for at in range(len(order)))
                arrays[buffer] = library.permuted(x, turned)
        for number, step in enumerate(owner.nest.steps):
            if isinstance(step, Call):
                self.call(library, step, arrays)
                continue
            launch = self.launches[number]
            if launch is None:
                launch = self.launches[number] = Launch(self, step, owner.buffers[number])
            for room in launch.rooms:
                if room.buffer not in arrays:
                    arrays[room.buffer] = self.allocated(library, room, outputs, scratch)
            launch(library, arrays)
        return arrays, outputs

    def allocated(
        self, library: ArrayLibrary, room: "Room", outputs: Arrays, scratch: Arrays
    ) -> Any:
        """An array for a buffer: a new output, or the scratch of an earlier call if it suffices."""
        buffer, shape = room.buffer, room.shape
        if room.is_output:
            x = outputs[buffer] = library.empty(shape, buffer.dtype)
            return x if room.turned is None else library.permuted(x, room.turned)
        count = int(np.prod(shape, dtype=np.int64))
        flat = scratch.get(buffer)
        if flat is None or library.shape(flat)[0] < count:
            flat = scratch[buffer] = library.empty((count,), buffer.dtype)
        return library.shaped(flat, shape)

    def handed_out(
        self, library: ArrayLibrary, arrays: Arrays, outputs: Arrays, into: Mapping[int, Any]
    ) -> list[Any]:
        """The outputs as the caller gets them; a buffer that is two outputs is copied.

        An input that was written in place is handed out itself.
        """
        made = []
        for number, (buffer, order, is_first) in enumerate(self.owner.given_back):
            if buffer in self.owner.updated:
                made.append(library.permuted(arrays[buffer], order))
                continue
            x = outputs.get(buffer) if is_first else None
            if x is None:
                x = library.copied(library.permuted(arrays[buffer], order))
                if number in into:
                    into[number][...] = x
            made.append(library.handed_out(x, buffer.dtype))
        return made

    def call(self, library: ArrayLibrary, step: Call, arrays: Arrays) -> None:
        """Runs a misc operator by the executor of its namespace."""
        op = step.op
        layouts = op.layouts or tuple(view.axes for view in step.operands)
        given = [
            library.to_numpy(
                library.permuted(arrays[view.buffer], layout_order(view, layout)), view.buffer.dtype
            )
            for view, layout in zip(step.operands, layouts, strict=True)
        ]
        numbers = NumericMode(exact=False)
        with np.errstate(all="ignore"):
            made = execute(op, given, {}, self.tiling, numbers)
        for view, x in zip(step.results, made, strict=True):
            arrays[view.buffer] = library.from_numpy(x, view.buffer.dtype)


def is_empty(shapes: Iterable[Sequence[int]], sizes: Sizes) -> bool:
    """True if some axis has no elements."""
    return any(0 in shape for shape in shapes) or any(length == 0 for _, length in sizes)


@dataclass(frozen=True, slots=True)
class Room:
    """The array to allocate for a buffer: its shape, and the order of axes if it is an output."""

    buffer: Buffer
    shape: tuple[int, ...]
    is_output: bool
    turned: tuple[int, ...] | None


class Launch:
    """A launch, or the clearing of a buffer, for arrays of certain strides."""

    def __init__(self, bound: Bound, step: Launchable | Clear, buffers: tuple[Buffer, ...]) -> None:
        self.bound, self.step, self.buffers = bound, step, buffers
        given = bound.owner.nest.inputs
        self.rooms = tuple(self.room(b) for b in self.buffers if b not in given)
        self.function: Callable[[Sequence[Any]], None] | None = None

    def room(self, buffer: Buffer) -> Room:
        shape = buffer_shape(buffer, self.bound.tiling)
        order = self.bound.owner.layouts.get(buffer)
        if order is None:
            return Room(buffer, shape, False, None)
        turned = tuple(order.index(at) for at in range(len(order)))
        laid_out = tuple(shape[at] for at in order)
        return Room(buffer, laid_out, True, turned if list(turned) != sorted(turned) else None)

    def __call__(self, library: ArrayLibrary, arrays: Arrays) -> None:
        if isinstance(self.step, Clear):
            library.clear(arrays[self.step.buffer])
            return
        if self.function is None:
            strides = [library.strides(arrays[b]) for b in self.buffers]
            sizes = self.bound.extents.sizes
            elements = sum(math.prod(library.shape(arrays[b])) for b in self.buffers)
            kernels = self.bound.owner.kernels
            self.function = kernels.bind(self.step, strides, sizes, elements=elements)
        handle = library.handle
        self.function([handle(arrays[b]) for b in self.buffers])
