"""Lengths and launches that depend on sizes, so that a tape computes them in each call."""

import ctypes
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from blockbuster_fusion.ir.axis import Axis, Symbol
from blockbuster_fusion.nest.nest import Buffer, Kernel
from blockbuster_fusion.nest.shapes import buffer_shape, contiguous
from blockbuster_fusion.runtime.bound import Launch
from blockbuster_fusion.runtime.c.kernels import CpuLaunch
from blockbuster_fusion.runtime.recently_used import RecentlyUsed
from blockbuster_fusion.runtime.tensors import STORED
from blockbuster_fusion.runtime.traced import Number, Trace
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


class SizedKernel:
    """A kernel for buffers of which some are tensors in slots, with strides known in a call."""

    def __init__(
        self, launch: Launch, varied: Mapping[Buffer, Varied], sizes: Sequence[tuple[Axis, int]]
    ) -> None:
        assert isinstance(launch.step, Kernel)
        assert isinstance(launch.function, CpuLaunch)
        self.kernel, self.kernels = launch.step, launch.bound.owner.kernels
        self.name, self.function = launch.step.name, launch.function.function
        self.sizes = [(x.extent, slot) for x, slot in sizes if isinstance(x.extent, Symbol)]
        self.strides: list[Varied | tuple[int, ...]] = []
        """For each buffer, the slot of its tensor, or its strides."""
        self.elements = 0
        known = iter(launch.function.strides)
        for buffer in launch.buffers:
            strides = tuple(next(known) for _ in buffer.axes)
            self.strides.append(varied.get(buffer, strides))
            if buffer not in varied:
                self.elements += math.prod(buffer_shape(buffer, launch.bound.tiling))

    def launch(self, values: Sequence[Any]) -> CpuLaunch:
        elements, strides = self.elements, []
        for one in self.strides:
            if isinstance(one, int):
                elements += values[one].numel()
                strides.append(values[one].stride())
            elif isinstance(one, DenseStrides):
                elements += math.prod(one.lengths(values.__getitem__))
                strides.append(one.strides(values.__getitem__))
            else:
                strides.append(one)
        sizes = {symbol: values[slot] for symbol, slot in self.sizes}
        made = self.kernels.bind(self.kernel, strides, sizes, elements=elements)
        assert isinstance(made, CpuLaunch)
        return made


class CallNumbers:
    """The sizes and strides of a call as integers in a row, by the slots that they come from."""

    def __init__(self, sizes: Sequence[int], tensors: Mapping[int, int]) -> None:
        """`tensors` has the rank of the tensor in each slot."""
        self.places: dict[int, int] = {}
        """The place of a size, or of the first stride of a tensor."""
        parts = []
        self.count = 0
        for slot in sizes:
            self.places[slot] = self.count
            self.count += 1
            parts.append(f"values[{slot}]")
        for slot, rank in tensors.items():
            self.places[slot] = self.count
            self.count += rank
            parts.append(f"*values[{slot}].stride()")
        names = {"made": ctypes.c_int64 * self.count}
        exec(f"def read(values): return made({', '.join(parts)})", names)
        self.read: Any = names["read"]
        """The integers, from the values of a call."""


class SizedGpuKernel:
    """A kernel on a GPU for buffers of which some are tensors in slots."""

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
        self.sizes = [(x.extent, slot) for x, slot in sizes if isinstance(x.extent, Symbol)]
        pairs = zip(launch.buffers, function.strides, strict=True)
        self.strides = [(varied.get(buffer), tuple(strides)) for buffer, strides in pairs]
        """For each buffer, what tells its strides in a call if they vary, and its strides."""
        self.dtypes = [STORED[buffer.dtype] for buffer in launch.buffers]
        self.launches = RecentlyUsed[Any](MOST_LAUNCHES)

    @property
    def ranks(self) -> dict[int, int]:
        """The ranks of the tensors that vary."""
        return {slot: len(strides) for slot, strides in self.strides if isinstance(slot, int)}

    @property
    def slots(self) -> list[int]:
        """The slots of the lengths that it depends on."""
        dense = (slot for x, _ in self.strides if isinstance(x, DenseStrides) for slot in x.slots)
        return [*(slot for _, slot in self.sizes), *dense]

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

        def given(slot: int) -> Number:
            return trace.given(places[slot], length(slot))

        sizes = {symbol.name: given(slot) for symbol, slot in self.sizes}
        strides: list[Sequence[Any]] = []
        for (varied, fixed), found in zip(self.strides, launch.strides, strict=True):
            if varied is None:
                strides.append(fixed)
            elif isinstance(varied, DenseStrides):
                strides.append(varied.strides(given))
            else:
                at = places[varied]
                strides.append([trace.given(at + n, x) for n, x in enumerate(found)])
        return launch.traced(self.device, trace, sizes, strides)

    def run(
        self, numbers: Sequence[int], places: Mapping[int, int], addresses: Sequence[int]
    ) -> "FittingLaunch":
        """Launches the kernel by Triton, for the numbers of a call."""
        sizes = {symbol: numbers[places[slot]] for symbol, slot in self.sizes}
        strides = [*self.strides_of(numbers, places)]
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

    def strides_of(
        self, numbers: Sequence[int], places: Mapping[int, int]
    ) -> Iterator[tuple[int, ...]]:
        """The strides of the buffers in a call."""
        for varied, fixed in self.strides:
            if varied is None:
                yield fixed
            elif isinstance(varied, DenseStrides):
                yield varied.strides(lambda slot: numbers[places[slot]])
            else:
                at = places[varied]
                yield tuple(numbers[at : at + len(fixed)])


@dataclass(frozen=True, slots=True)
class AddressedArray:
    """Memory of a GPU as an argument of a Triton kernel."""

    address: int
    dtype: torch.dtype
    device: torch.device

    def data_ptr(self) -> int:
        return self.address
