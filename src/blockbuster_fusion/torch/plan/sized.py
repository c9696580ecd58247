"""Lengths and launches that depend on sizes, so that a tape computes them in each call."""

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from blockbuster_fusion.ir.axis import Axis, Symbol
from blockbuster_fusion.nest.nest import Buffer, Kernel
from blockbuster_fusion.nest.shapes import buffer_shape
from blockbuster_fusion.runtime.bound import Launch
from blockbuster_fusion.runtime.c.kernels import CpuLaunch
from blockbuster_fusion.runtime.recently_used import RecentlyUsed
from blockbuster_fusion.runtime.tensors import STORED
from blockbuster_fusion.runtime.traced import Trace

if TYPE_CHECKING:  # they need Triton
    from blockbuster_fusion.runtime.triton.driver import DriverLaunch
    from blockbuster_fusion.runtime.triton.launch import FittingLaunch

MOST_LAUNCHES = 16
"""The number of launches that are kept of a kernel that the driver cannot launch."""


def blocks(extent: int, tile: int | None) -> int:
    """The number of blocks of an axis; without a tile it is one, or none if the axis is empty."""
    return min(extent, 1) if tile is None else -(-extent // tile)


class SizedKernel:
    """A kernel for buffers of which some are tensors in slots, with strides known in a call."""

    def __init__(
        self, launch: Launch, tensors: Mapping[Buffer, int], sizes: Sequence[tuple[Axis, int]]
    ) -> None:
        assert isinstance(launch.step, Kernel)
        assert isinstance(launch.function, CpuLaunch)
        self.kernel, self.kernels = launch.step, launch.bound.owner.kernels
        self.name, self.function = launch.step.name, launch.function.function
        self.sizes = [(x.extent, slot) for x, slot in sizes if isinstance(x.extent, Symbol)]
        self.strides: list[int | tuple[int, ...]] = []
        """For each buffer, the slot of its tensor, or its strides."""
        self.elements = 0
        known = iter(launch.function.strides)
        for buffer in launch.buffers:
            strides = tuple(next(known) for _ in buffer.axes)
            self.strides.append(tensors.get(buffer, strides))
            if buffer not in tensors:
                self.elements += math.prod(buffer_shape(buffer, launch.bound.tiling))

    def launch(self, values: Sequence[Any]) -> CpuLaunch:
        elements, strides = self.elements, []
        for one in self.strides:
            if isinstance(one, int):
                elements += values[one].numel()
                strides.append(values[one].stride())
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
        tensors: Mapping[Buffer, int],
        sizes: Sequence[tuple[Axis, int]],
        device: torch.device,
    ) -> None:
        assert isinstance(launch.step, Kernel)
        self.kernel, self.kernels = launch.step, launch.bound.owner.kernels
        self.name, self.device = launch.step.name, device
        function: Any = launch.function
        self.recorded: FittingLaunch = function
        self.sizes = [(x.extent, slot) for x, slot in sizes if isinstance(x.extent, Symbol)]
        pairs = zip(launch.buffers, function.strides, strict=True)
        self.strides = [(tensors.get(buffer), tuple(strides)) for buffer, strides in pairs]
        """For each buffer, the slot of its tensor if it varies, and its strides."""
        self.dtypes = [STORED[buffer.dtype] for buffer in launch.buffers]
        self.launches = RecentlyUsed[Any](MOST_LAUNCHES)

    @property
    def ranks(self) -> dict[int, int]:
        """The ranks of the tensors that vary."""
        return {slot: len(strides) for slot, strides in self.strides if slot is not None}

    def traced(self, launch: "FittingLaunch", places: Mapping[int, int]) -> "DriverLaunch | None":
        """The form of a launch that has run, for numbers that are given at some places."""
        trace = Trace()
        sizes = {s.name: trace.given(places[slot], launch.sizes[s.name]) for s, slot in self.sizes}
        strides: list[Sequence[Any]] = []
        for (slot, fixed), found in zip(self.strides, launch.strides, strict=True):
            if slot is None:
                strides.append(fixed)
            else:
                at = places[slot]
                strides.append([trace.given(at + n, x) for n, x in enumerate(found)])
        return launch.traced(self.device, trace, sizes, strides)

    def run(
        self, numbers: Sequence[int], places: Mapping[int, int], addresses: Sequence[int]
    ) -> "FittingLaunch":
        """Launches the kernel by Triton, for the numbers of a call."""
        sizes = {symbol: numbers[places[slot]] for symbol, slot in self.sizes}
        strides = [
            fixed if slot is None else tuple(numbers[places[slot] : places[slot] + len(fixed)])
            for slot, fixed in self.strides
        ]
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
