"""Lengths and launches that depend on sizes, so that a tape computes them in each call."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from blockbuster_fusion.ir.axis import Axis, Symbol
from blockbuster_fusion.nest.nest import Buffer, Kernel
from blockbuster_fusion.nest.shapes import buffer_shape
from blockbuster_fusion.runtime.bound import Launch
from blockbuster_fusion.runtime.c.kernels import CpuLaunch


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
