"""A compiled program: called with arrays, it gives arrays."""

import math
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from blockbuster_fusion.errors import BadInput
from blockbuster_fusion.host.inputs import in_order
from blockbuster_fusion.host.misc import execute
from blockbuster_fusion.host.numbers import Numbers
from blockbuster_fusion.host.outputs import ByName
from blockbuster_fusion.ir.axis import Axis, Dim, Symbol
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.listing import show
from blockbuster_fusion.ir.ops import Input
from blockbuster_fusion.ir.tiling import Extents, Tiling
from blockbuster_fusion.nest.nest import Along, Buffer, Call, Clear, Kernel, Nest, Step
from blockbuster_fusion.nest.shapes import buffer_shape, layout_order
from blockbuster_fusion.runtime.arrays import ArrayLibrary, NumpyArrays
from blockbuster_fusion.runtime.recently_used import RecentlyUsed

MOST_BOUND = 64
"""For how many different sets of shapes a program remembers what it has worked out."""


class Kernels(Protocol):
    """The compiled kernels of a program."""

    source: str

    def bind(
        self,
        kernel: Kernel,
        strides: Sequence[Sequence[int]],
        sizes: Mapping[Symbol, int],
        *,
        elements: int,
    ) -> Callable[[Sequence[Any]], None]:
        """A launch for buffers with these strides, in the order of the kernel's global buffers.

        `elements` is how many they have together.
        """


@dataclass(frozen=True)
class Executable:
    """A program that runs: call it with arrays, in order or by name.

    NumPy arrays give NumPy arrays, PyTorch's tensors give tensors on the same device. Arrays may
    lie in memory with any strides; nothing is copied. Sizes that were not fixed are those of the
    arrays, and one compiled kernel serves them all.
    """

    graph: Graph
    """The block program that runs."""
    target: str
    tiles: Mapping[Dim, int]
    snapshot: int
    """Which snapshot of the fusion it is, counted from 0."""
    runner: "Runner"

    @property
    def source(self) -> str:
        """The text that was compiled; for the interpreter, the listing."""
        return self.runner.source

    @property
    def nest(self) -> Nest | None:
        """The loop nest that was printed; the interpreter has none."""
        return self.runner.nest

    @cached_property
    def listing(self) -> str:
        """The block program as a listing."""
        return show(self.graph)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs, in order."""
        ops = (self.graph.op(i) for i in self.graph.inputs)
        return tuple(op.name for op in ops if isinstance(op, Input))

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs, in order."""
        return tuple(out.name for out in self.graph.outputs)

    def __call__(self, *arrays: Any, **named: Any) -> ByName:
        """The outputs, in order and by name."""
        if named or len(arrays) != len(self.inputs):
            arrays = tuple(_gathered(self.inputs, arrays, named))
        return ByName(self.outputs, self.runner.run(arrays))

    def __repr__(self) -> str:
        name = self.nest.name if self.nest is not None else "program"
        return f"<{name}({', '.join(self.inputs)}) -> ({', '.join(self.outputs)}) on {self.target}>"


def _gathered(
    names: Sequence[str], arrays: Sequence[Any], named: Mapping[str, Any]
) -> Sequence[Any]:
    """What was given for each input, some in order and the rest by name."""
    if arrays and named:
        for name in names[: len(arrays)]:
            if name in named:
                raise BadInput(name=name, problem="is given twice, in order and by name")
        if len(arrays) <= len(names):
            named = dict(zip(names, arrays, strict=False)) | dict(named)
    return in_order(names, named or list(arrays))


Sizes = Sequence[tuple[Axis, int]]
"""The lengths of some axes."""


class Runner(Protocol):
    """Runs a program: by compiled kernels, or by interpretation."""

    nest: Nest | None

    @property
    def tiles(self) -> Mapping[Dim, int]: ...

    @property
    def source(self) -> str: ...

    def run(
        self,
        given: Sequence[Any],
        sizes: Sizes = (),
        library: ArrayLibrary | None = None,
        into: Mapping[int, Any] | None = None,
    ) -> Sequence[Any]:
        """The outputs for inputs in order; `sizes` are of axes that no input need have.

        `library` is that of the arrays, if the inputs alone do not tell. `into` has arrays for
        some outputs, by number.
        """


def has_tensor(given: Sequence[Any]) -> bool:
    """True if one of the inputs is a tensor; without PyTorch there is none."""
    if "torch" not in sys.modules or all(type(x) is np.ndarray for x in given):
        return False
    from blockbuster_fusion.runtime.tensors import is_tensor

    return any(is_tensor(x) for x in given)


def is_empty(shapes: Iterable[Sequence[int]], sizes: Sizes) -> bool:
    """Whether some axis has no elements."""
    return any(0 in shape for shape in shapes) or any(length == 0 for _, length in sizes)


class Compiled:
    """Programs run by compiled kernels, one step after the other.

    `unfused` makes the runner for arrays without elements: that of the program before fusion. It
    is made when it is first needed.
    """

    def __init__(
        self,
        nest: Nest,
        names: Sequence[str],
        tiles: Mapping[Dim, int],
        kernels: Kernels,
        *,
        device: str,
        unfused: Callable[[], Runner] | None = None,
    ) -> None:
        self.nest: Nest | None = nest
        self._unfused = unfused
        self.names = tuple(names)
        self.program, self.tiles, self.kernels, self.device = nest, dict(tiles), kernels, device
        self.source = kernels.source
        self.is_static = not any(isinstance(step, Call) for step in nest.steps)
        self.buffers = [_global_buffers(step) for step in nest.steps]
        self.bound = RecentlyUsed[Bound](MOST_BOUND)
        self.numpy = NumpyArrays()
        self.spare: dict[Hashable, list[_Scratch]] = {}

    def run(
        self,
        given: Sequence[Any],
        sizes: Sizes = (),
        library: ArrayLibrary | None = None,
        into: Mapping[int, Any] | None = None,
    ) -> Sequence[Any]:
        library = library or self.library(given)
        admitted = [
            library.admitted(name, x, buffer.dtype)
            for name, buffer, x in zip(self.names, self.program.inputs, given, strict=True)
        ]
        bound = self.bound_for(admitted, sizes, library, into)
        if bound.is_empty and self.unfused is not None:
            return self.unfused.run(given, sizes, library, into)
        return bound.run(library, admitted, into)

    @cached_property
    def unfused(self) -> Runner | None:
        """The runner of the program before fusion, if there is one."""
        return None if self._unfused is None else self._unfused()

    def bound_for(
        self,
        admitted: Sequence[Any],
        sizes: Sizes,
        library: ArrayLibrary,
        into: Mapping[int, Any] | None = None,
    ) -> "Bound":
        """The program for arrays that lie like these: it may be run again with others that do."""
        key = (library.name, sizes, *[library.seen(x) for x in admitted])
        if into:  # launches depend on how these lie, too
            key = (*key, *((number, library.seen(x)) for number, x in into.items()))
        bound = self.bound.get(key)
        if bound is None:
            bound = Bound(self, library, admitted, sizes)
            if self.is_static:  # else sizes may come from what an operator gives
                self.bound.put(key, bound)
        return bound

    def library(self, given: Sequence[Any]) -> ArrayLibrary:
        if self.device == "cpu" and not has_tensor(given):
            return self.numpy
        from blockbuster_fusion.runtime.tensors import library_for

        return library_for(given, self.device)

    @cached_property
    def layouts(self) -> dict[Buffer, tuple[int, ...]]:
        """For each buffer that is an output: its axes in the order in which its array has them."""
        made: dict[Buffer, tuple[int, ...]] = {}
        for view, layout in zip(self.program.outputs, self.program.layouts, strict=True):
            made.setdefault(view.buffer, layout_order(view, layout))
        return made

    @cached_property
    def given_back(self) -> tuple[tuple[Buffer, tuple[int, ...], bool], ...]:
        """For each output: its buffer, the order of its axes, and whether nobody has it before."""
        found: list[tuple[Buffer, tuple[int, ...], bool]] = []
        for view, layout in zip(self.program.outputs, self.program.layouts, strict=True):
            is_first = all(buffer is not view.buffer for buffer, _, _ in found)
            found.append((view.buffer, layout_order(view, layout), is_first))
        return tuple(found)

    def borrowed(self, library: ArrayLibrary) -> "_Scratch":
        """Flat arrays of an earlier call that nobody is using, to be given back."""
        spares = self.spare.setdefault(library.name, [])
        return spares.pop() if spares else _Scratch()


def _global_buffers(step: Step) -> tuple[Buffer, ...]:
    """What a step is handed by whoever launches it."""
    match step:
        case Kernel():
            return step.global_buffers
        case Clear():
            return (step.buffer,)
        case Call():
            return ()


class _Scratch(dict[Buffer, Any]):
    """Flat arrays for the buffers between kernels, kept from call to call."""


Arrays = dict[Buffer, Any]
"""Where each buffer lies, with its axes in the buffer's order."""


class Bound:
    """A program for inputs of certain shapes and strides: sizes, strides and launches are fixed."""

    def __init__(
        self, owner: Compiled, library: ArrayLibrary, inputs: Sequence[Any], sizes: Sizes
    ) -> None:
        self.owner = owner
        self.extents = Extents()
        for axis, length in sizes:
            self.extents.bind(axis, length, "the caller's sizes")
        self.tiling = Tiling(self.extents, owner.tiles)
        shapes = [library.shape(x) for x in inputs]
        self.is_empty = is_empty(shapes, sizes)
        for name, buffer, shape in zip(owner.names, owner.program.inputs, shapes, strict=True):
            self.admit(name, buffer, shape)
        for name, buffer, shape in zip(owner.names, owner.program.inputs, shapes, strict=True):
            self.check_blocks(name, buffer, shape)
        self.launches: list[Launch | None] = [None] * len(owner.program.steps)

    def admit(self, name: str, buffer: Buffer, shape: tuple[int, ...]) -> None:
        """Note what an input says of sizes, or BadInput."""
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
        for axis, length in zip(buffer.axes, shape, strict=True):
            if axis.along is Along.BLOCKS and axis.dim.packed and not axis.dim.is_free:
                blocks = len(self.tiling.starts(axis.dim))
                if blocks != length:
                    problem = f"has {length} elements for the {blocks} blocks of {axis.dim.label}"
                    raise BadInput(name=name, problem=problem)

    def run(
        self, library: ArrayLibrary, inputs: Sequence[Any], into: Mapping[int, Any] | None = None
    ) -> list[Any]:
        owner = self.owner
        arrays: Arrays = dict(zip(owner.program.inputs, inputs, strict=True))
        made: Arrays = {}
        for number, x in (into or {}).items():
            buffer, order, is_first = owner.given_back[number]
            if is_first and buffer not in arrays:
                made[buffer] = x
                turned = tuple(order.index(at) for at in range(len(order)))
                arrays[buffer] = library.permuted(x, turned)
        scratch = owner.borrowed(library)
        for number, step in enumerate(owner.program.steps):
            if isinstance(step, Call):
                self.call(library, step, arrays)
                continue
            launch = self.launches[number]
            if launch is None:
                launch = self.launches[number] = Launch(self, step, owner.buffers[number])
            for room in launch.rooms:
                buffer = room.buffer
                if buffer in arrays:
                    continue
                if room.is_output:
                    x = made[buffer] = library.empty(room.shape, buffer.dtype)
                    arrays[buffer] = x if room.turned is None else library.permuted(x, room.turned)
                else:
                    arrays[buffer] = self.scratch(library, scratch, buffer, room.shape)
            launch(library, arrays)
        if scratch and library.is_prompt:
            owner.spare[library.name].append(scratch)
        outputs = []
        for number, (buffer, order, is_first) in enumerate(owner.given_back):
            x = made.get(buffer) if is_first else None
            if x is None:
                x = library.copied(library.permuted(arrays[buffer], order))
                if into and number in into:
                    into[number][...] = x
            outputs.append(library.handed_out(x, buffer.dtype))
        return outputs

    def scratch(
        self, library: ArrayLibrary, scratch: _Scratch, buffer: Buffer, shape: tuple[int, ...]
    ) -> Any:
        """Room for a buffer between kernels: what an earlier call had, if that is enough."""
        count = int(np.prod(shape, dtype=np.int64))
        flat = scratch.get(buffer)
        if flat is None or library.shape(flat)[0] < count:
            flat = scratch[buffer] = library.empty((count,), buffer.dtype)
        return library.shaped(flat, shape)

    def call(self, library: ArrayLibrary, step: Call, arrays: Arrays) -> None:
        """A misc operator, by the executor of its namespace."""
        op = step.op
        layouts = op.layouts or tuple(view.axes for view in step.operands)
        given = [
            library.to_numpy(
                library.permuted(arrays[view.buffer], layout_order(view, layout)), view.buffer.dtype
            )
            for view, layout in zip(step.operands, layouts, strict=True)
        ]
        numbers = Numbers(exact=False)
        with np.errstate(all="ignore"):
            made = execute(op, given, {}, self.tiling, numbers)
        for view, x in zip(step.results, made, strict=True):
            arrays[view.buffer] = library.from_numpy(x, view.buffer.dtype)


@dataclass(frozen=True, slots=True)
class Room:
    """What to allocate for a buffer: its shape, and how to turn the array of an output."""

    buffer: Buffer
    shape: tuple[int, ...]
    is_output: bool
    turned: tuple[int, ...] | None


class Launch:
    """A kernel, or the clearing of a buffer, for arrays that lie in a certain way."""

    def __init__(self, bound: Bound, step: Kernel | Clear, buffers: tuple[Buffer, ...]) -> None:
        self.bound, self.step, self.buffers = bound, step, buffers
        given = bound.owner.program.inputs
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
