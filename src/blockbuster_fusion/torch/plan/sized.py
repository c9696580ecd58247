"""Lengths and launches that depend on sizes, so that a tape computes them in each call."""

import ctypes
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from blockbuster_fusion.ir.axis import Symbol
from blockbuster_fusion.nest.nest import Buffer, Kernel, Launchable
from blockbuster_fusion.nest.shapes import buffer_shape, contiguous
from blockbuster_fusion.runtime.bound import Launch
from blockbuster_fusion.runtime.c.kernels import CpuKernels
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

    sizes: tuple[tuple[Symbol, SizedLength], ...]
    """The symbols, each with its size."""
    strides: tuple[tuple[Varied | None, tuple[int, ...]], ...]
    """For each buffer what tells its strides in a call, if they vary, and its strides."""

    @property
    def is_sized(self) -> bool:
        """True if anything differs between calls."""
        return bool(self.ranks or self.slots)

    @property
    def ranks(self) -> dict[int, int]:
        """The ranks of the tensors that vary."""
        return {slot: len(strides) for slot, strides in self.strides if isinstance(slot, int)}

    @property
    def slots(self) -> list[int]:
        """The slots of lengths."""
        dense = (slot for x, _ in self.strides if isinstance(x, DenseStrides) for slot in x.slots)
        return [*(n.number for _, n in self.sizes if isinstance(n, Slot)), *dense]

    def sizes_in(self, number: Callable[[int, int], Any]) -> dict[Symbol, Any]:
        """The sizes in a call; `number` gives the integers of a slot."""
        return {s: number(n.number, 0) if isinstance(n, Slot) else n for s, n in self.sizes}

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


class SizedKernel:
    """A kernel on a CPU whose sizes or strides are known in a call."""

    def __init__(self, launch: Launch, buffers: SizedBuffers) -> None:
        assert isinstance(launch.step, Kernel)
        kernels = launch.bound.owner.kernels
        assert isinstance(kernels, CpuKernels)
        self.kernel, self.kernels, self.buffers = launch.step, kernels, buffers
        self.name, self.function = launch.step.name, kernels.functions[launch.step.name]
        pairs = zip(launch.buffers, buffers.strides, strict=True)
        fixed = (buffer for buffer, (varied, _) in pairs if varied is None)
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
        sizes = self.buffers.sizes_in(given)
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


class GpuKernel:
    """A kernel on a GPU, of which some sizes or strides may be known in a call only."""

    def __init__(self, launch: Launch, buffers: SizedBuffers, device: torch.device) -> None:
        assert isinstance(launch.step, Launchable)
        self.kernel, self.kernels = launch.step, launch.bound.owner.kernels
        self.name, self.device, self.buffers = launch.step.name, device, buffers
        self.dtypes = [STORED[buffer.dtype] for buffer in launch.buffers]
        self.launches = RecentlyUsed[Any](MOST_LAUNCHES)
        sizes, strides = launch.bound.extents.sizes, [x for _, x in buffers.strides]
        first: Any = self.kernels.bind(self.kernel, strides, sizes, elements=0)
        self.launcher, self.tiles = first.launcher, dict(first.tiles)
        self.scratch: tuple[tuple[Buffer, tuple[int, ...]], ...] = first.plan.scratch
        """The arrays of its own, with their shapes for the sizes of one call."""

    def scratch_elements(self, at: int, *sizes: int) -> int:
        """The number of elements of an array of its own, for the sizes of a call."""
        pairs = zip(self.buffers.sizes, sizes, strict=True)
        named = {symbol.name: size for (symbol, _), size in pairs}
        return math.prod(self.launcher.scratch_shapes(named, self.tiles)[at][1])

    def form(
        self,
        launch: "FittingLaunch",
        addresses: Sequence[int],
        numbers: Sequence[int],
        places: Mapping[int, int],
    ) -> "DriverLaunch | None":
        """The form of a launch that has run with these addresses and numbers; None if it has none.

        A launch that had to be made smaller may need more memory of its own.
        """
        if self.scratch and launch.tiles != self.tiles:
            return None
        if not self.buffers.is_sized:
            return launch.by_driver(self.device, addresses)
        trace = Trace()

        def given(slot: int, at: int = 0) -> Number:
            return trace.given(places[slot] + at, int(numbers[places[slot] + at]))

        sizes = {symbol.name: x for symbol, x in self.buffers.sizes_in(given).items()}
        strides = self.buffers.strides_in(given)
        return launch.traced(self.device, addresses, trace, sizes, strides)

    def launch(self, numbers: Sequence[int], places: Mapping[int, int]) -> "FittingLaunch":
        """The launch by Triton for the numbers of a call."""

        def given(slot: int, at: int) -> int:
            return numbers[places[slot] + at]

        sizes, strides = self.buffers.sizes_in(given), self.buffers.strides_in(given)
        key = (*sizes.values(), *strides)
        found: FittingLaunch | None = self.launches.get(key)
        if found is None:
            made: Any = self.kernels.bind(self.kernel, strides, sizes, elements=0)
            found = made
            self.launches.put(key, found)
        return found

    def arrays(self, addresses: Sequence[int]) -> list[Any]:
        """The arguments of a launch by Triton."""
        pairs = zip(addresses, self.dtypes, strict=True)
        return [AddressedArray(at, dtype, self.device) for at, dtype in pairs]


@dataclass(frozen=True, slots=True)
class AddressedArray:
    """Memory of a GPU as an argument of a Triton kernel."""

    address: int
    dtype: torch.dtype
    device: torch.device

    def data_ptr(self) -> int:
        return self.address
