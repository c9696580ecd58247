"""What a tape works out anew in each call, since it depends on sizes: lengths and launches."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from blockbuster_fusion.ir.axis import Axis, Symbol
from blockbuster_fusion.nest.nest import Buffer, Kernel
from blockbuster_fusion.nest.shapes import buffer_shape
from blockbuster_fusion.runtime.c.kernels import CpuLaunch
from blockbuster_fusion.runtime.executable import Launch


def blocks(extent: int, tile: int | None) -> int:
    """How many blocks an axis has; without a tile it is one, unless there is nothing."""
    return min(extent, 1) if tile is None else -(-extent // tile)


class SizedKernel:
    """A kernel for buffers of which some are tensors in slots, whose strides a call tells."""

    def __init__(
        self, launch: Launch, tensors: Mapping[Buffer, int], sizes: Sequence[tuple[Axis, int]]
    ) -> None:
        assert isinstance(launch.step, Kernel)
        assert isinstance(launch.function, CpuLaunch)
        self.kernel, self.kernels = launch.step, launch.bound.owner.kernels
        self.name, self.function = launch.step.name, launch.function.function
        self.sizes = [(x.extent, slot) for x, slot in sizes if isinstance(x.extent, Symbol)]
        self.strides: list[int | tuple[int, ...]] = []
        """For each buffer, where its tensor is, or its strides."""
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
