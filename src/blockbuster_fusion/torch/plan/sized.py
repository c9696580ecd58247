"""Lengths and launches that depend on sizes, so that a tape computes them in each call."""

import ctypes
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from blockbuster_fusion.ir.axis import Axis, Symbol
from blockbuster_fusion.nest.nest import Buffer, Kernel
from blockbuster_fusion.nest.shapes import buffer_shape, contiguous
from blockbuster_fusion.runtime.bound import Launch
from blockbuster_fusion.runtime.c.kernels import CpuKernels, CpuLaunch
from blockbuster_fusion.runtime.recently_used import RecentlyUsed
from blockbuster_fusion.runtime.tensors import STORED
from blockbuster_fusion.runtime.traced import Number, Trace, Value
from blockbuster_fusion.torch.plan.steps import Slot

if TYPE_CHECKING:  # they need Triton
    from blockbuster_fusion.runtime.triton.driver import DriverLaunch
    from blockbuster_fusion.runtime.triton.launch import FittingLaunch

MOST_LAUNCHES = 16
"""The number of launches that are kept of a kernel that the driver cannot launch."""


SizedLength = int | Slot
"""A length: a number, or the slot of one that depends on the sizes of a call."""


def fixed_shape(shape: Sequence[SizedLength]) -> tuple[int, ...]:
    """A shape that is known."""
    assert not any(isinstance(n, Slot) for n in shape)
    return tuple(n for n in shape if isinstance(n, int))


@dataclass(frozen=True, slots=True)
class DenseStrides:
    """The strides of a buffer that is a dense array, from the lengths of its axes in memory."""

    shape: tuple[SizedLength, ...]
    order: tuple[int, ...]
    """The axis of the buffer that each dimension in memory is."""

    def lengths(self, values: Callable[[int], Any]) -> list[Any]:
        """The lengths in memory; `values` gives those in slots."""
        return [values(n.number) if isinstance(n, Slot) else n for n in self.shape]

    def strides(self, values: Callable[[int], Any]) -> tuple[Any, ...]:
        """The strides along the buffer's axes."""
        made = contiguous(self.lengths(values))
        return tuple(made[self.order.index(at)] for at in range(len(made)))

    @property
    def slots(self) -> list[int]:
        return [n.number for n in self.shape if isinstance(n, Slot)]


Varied = int | DenseStrides
"""A buffer that depends on sizes: the slot of its tensor, or the strides of a dense array."""


def blocks(extent: int, tile: int | None) -> int:
    """The number of blocks of an axis; without a tile it is one, or none if the axis is empty."""
    return min(extent, 1) if tile is None else -(-extent // tile)


@dataclass(frozen=True, slots=True)
class SizedBuffers:
    """The sizes and the strides of a kernel, of which some differ between calls."""

    sizes: tuple[tuple[Symbol, int], ...]
    """The symbols, each with the slot of its size."""
    strides: tuple[tuple[Varied | None, tuple[int, ...]], ...]
    """For each buffer what tells its strides in a call, if they vary, and its strides."""

    @property
    def ranks(self) -> dict[int, int]:
        """The ranks of the tensors that vary."""
        return {slot: len(strides) for slot, strides in self.strides if isinstance(slot, int)}

    @property
    def slots(self) -> list[int]:
        """The slots of lengths."""
        dense = (slot for x, _ in self.strides if isinstance(x, DenseStrides) for slot in x.slots)
        return [*(slot for _, slot in self.sizes), *dense]

    def strides_in(self, number: Callable[[int, int], Any]) -> list[tuple[Any, ...]]:
        """The strides in a call; `number` gives the integers of a slot, the first of a length."""
        made = []
        for varied, fixed in self.strides:
            if varied is None:
                made.append(fixed)
            elif isinstance(varied, DenseStrides):
                made.append(varied.strides(lambda slot: number(slot, 0)))
            else:
                made.append(tuple(number(varied, at) for at in range(len(fixed))))
        return made


def sized_buffers(
    launch: Launch,
    strides: Iterable[Sequence[int]],
    varied: Mapping[Buffer, Varied],
    sizes: Sequence[tuple[Axis, int]],
) -> SizedBuffers:
    """The buffers of a launch, whose strides in the recorded call are given."""
    symbols = [(x.extent, slot) for x, slot in sizes if isinstance(x.extent, Symbol)]
    pairs = zip(launch.buffers, strides, strict=True)
    return SizedBuffers(tuple(symbols), tuple((varied.get(b), tuple(x)) for b, x in pairs))


class SizedKernel:
    """A kernel on a CPU whose sizes or strides are known in a call."""

    def __init__(
        self, launch: Launch, varied: Mapping[Buffer, Varied], sizes: Sequence[tuple[Axis, int]]
    ) -> None:
        assert isinstance(launch.step, Kernel)
        assert isinstance(launch.function, CpuLaunch)
        kernels = launch.bound.owner.kernels
        assert isinstance(kernels, CpuKernels)
        self.kernel, self.kernels = launch.step, kernels
        self.name, self.function = launch.step.name, launch.function.function
        known = iter(launch.function.strides)
        strides = [[next(known) for _ in buffer.axes] for buffer in launch.buffers]
        self.buffers = sized_buffers(launch, strides, varied, sizes)
        fixed = (buffer for buffer in launch.buffers if buffer not in varied)
        self.elements = sum(math.prod(buffer_shape(b, launch.bound.tiling)) for b in fixed)
        """The elements of the buffers of known shapes."""

    def traced(self, places: Mapping[int, int]) -> "TracedArguments":
        """The arguments, for numbers that are given at some places."""
        trace = Trace()

        def given(slot: int, at: int = 0) -> Number:
            return trace.given(places[slot] + at, 1)

        strides = self.buffers.strides_in(given)
        elements: Value = self.elements
        for varied, fixed in self.buffers.strides:
            if isinstance(varied, DenseStrides):
                elements = math.prod(varied.lengths(given)) + elements
            elif varied is not None:
                elements = given(varied, len(fixed)) + elements
        sizes: Any = {symbol: given(slot) for symbol, slot in self.buffers.sizes}
        made = [x for one in strides for x in one], self.kernels.sizes(self.kernel, sizes)
        registers = [[trace.register(x) for x in numbers] for numbers in (*made, [elements])]
        return TracedArguments(trace.code, *registers)


@dataclass(frozen=True, slots=True)
class TracedArguments:
    """The code of a trace, and the registers of strides, of sizes, and of the elements."""

    code: list[tuple[int, int, int]]
    strides: list[int]
    sizes: list[int]
    elements: list[int]


class CallNumbers:
    """The sizes and strides of a call as integers in a row, by the slots that they come from."""

    def __init__(self, kernels: Iterable[SizedBuffers], others: Iterable[int] = ()) -> None:
        """`kernels` are those that get the integers; `others` are more slots of sizes."""
        known = [*kernels]
        sizes = dict.fromkeys([*(slot for x in known for slot in x.slots), *others])
        tensors = {slot: rank for x in known for slot, rank in x.ranks.items()}
        self.places: dict[int, int] = {}
        """The place of a size, or of the first stride of a tensor; its elements come after."""
        parts = []
        self.count = 0
        for slot in sizes:
            self.places[slot] = self.count
            self.count += 1
            parts.append(f"values[{slot}]")
        for slot, rank in tensors.items():
            self.places[slot] = self.count
            self.count += rank + 1
            parts.append(f"*values[{slot}].stride(), values[{slot}].numel()")
        names = {"made": ctypes.c_int64 * self.count}
        exec(f"def read(values): return made({', '.join(parts)})", names)
        self.read: Any = names["read"]
        """The integers, from the values of a call."""


class SizedGpuKernel:
    """A kernel on a GPU whose sizes or strides are known in a call."""

    def __init__(
        self,
        launch: Launch,
        varied: Mapping[Buffer, Varied],
        sizes: Sequence[tuple[Axis, int]],
        recorded: Mapping[int, int],
        device: torch.device,
    ) -> None:
        """`recorded` are the lengths in slots in the recorded call."""
        assert isinstance(launch.step, Kernel)
        self.kernel, self.kernels = launch.step, launch.bound.owner.kernels
        self.name, self.device = launch.step.name, device
        function: Any = launch.function
        self.recorded: FittingLaunch = function
        self.lengths = recorded
        self.buffers = sized_buffers(launch, function.strides, varied, sizes)
        self.dtypes = [STORED[buffer.dtype] for buffer in launch.buffers]
        self.launches = RecentlyUsed[Any](MOST_LAUNCHES)

    def traced(
        self,
        launch: "FittingLaunch",
        places: Mapping[int, int],
        length: Callable[[int], int] | None = None,
    ) -> "DriverLaunch | None":
        """The form of a launch that has run, for numbers that are given at some places.

        `length` gives the lengths in slots; by default, those of the recorded call.
        """
        trace, length = Trace(), length or self.lengths.__getitem__
        pairs = zip(self.buffers.strides, launch.strides, strict=True)
        found = {slot: strides for (slot, _), strides in pairs if isinstance(slot, int)}

        def given(slot: int, at: int = 0) -> Number:
            value = found[slot][at] if slot in found else length(slot)
            return trace.given(places[slot] + at, value)

        sizes = {symbol.name: given(slot) for symbol, slot in self.buffers.sizes}
        return launch.traced(self.device, trace, sizes, self.buffers.strides_in(given))

    def run(
        self, numbers: Sequence[int], places: Mapping[int, int], addresses: Sequence[int]
    ) -> "FittingLaunch":
        """Launches the kernel by Triton, for the numbers of a call."""
        sizes = {symbol: numbers[places[slot]] for symbol, slot in self.buffers.sizes}
        strides = self.buffers.strides_in(lambda slot, at: numbers[places[slot] + at])
        key = (*sizes.values(), *strides)
        launch: FittingLaunch | None = self.launches.get(key)
        if launch is None:
            made: Any = self.kernels.bind(self.kernel, strides, sizes, elements=0)
            launch = made
            self.launches.put(key, launch)
        pairs = zip(addresses, self.dtypes, strict=True)
        arrays: Any = [AddressedArray(at, dtype, self.device) for at, dtype in pairs]
        launch(arrays)
        return launch


@dataclass(frozen=True, slots=True)
class AddressedArray:
    """Memory of a GPU as an argument of a Triton kernel."""

    address: int
    dtype: torch.dtype
    device: torch.device

    def data_ptr(self) -> int:
        return self.address
