"""What a tape works out anew in each call, since it depends on sizes: room for arrays, launches."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from blockbuster_fusion.codegen.nest import Buffer, Kernel
from blockbuster_fusion.codegen.shapes import buffer_shape
from blockbuster_fusion.interp.tiling import Extents, Tiling
from blockbuster_fusion.ir.axis import Axis, Symbol
from blockbuster_fusion.runtime.cpu import CpuLaunch
from blockbuster_fusion.runtime.executable import Bound, Launch
from blockbuster_fusion.runtime.torch_arrays import STORED


def is_sized(buffer: Buffer) -> bool:
    """Whether it depends on sizes how long a buffer is."""
    return any(isinstance(axis.dim.axis.extent, Symbol) for axis in buffer.axes)


class SizedRoom:
    """Room for a buffer of a program, made in a slot."""

    def __init__(
        self, program: Bound, buffer: Buffer, sizes: Sequence[tuple[Axis, int]], slot: int
    ) -> None:
        """`sizes` are the slots of the lengths of axes."""
        self.tiles, self.buffer = program.owner.tiles, buffer
        self.sizes, self.slot = sizes, slot
        order = program.owner.layouts.get(buffer)
        self.order = range(len(buffer.axes)) if order is None else order
        self.dtype = STORED[buffer.dtype]

    def __call__(self, values: list[Any]) -> None:
        extents = Extents()
        for axis, slot in self.sizes:
            extents.bind(axis, values[slot], "the caller's sizes")
        shape = buffer_shape(self.buffer, Tiling(extents, self.tiles))
        values[self.slot] = torch.empty([shape[at] for at in self.order], dtype=self.dtype)


class SizedKernel:
    """A kernel for buffers of which some are tensors in slots, whose strides a call tells."""

    def __init__(
        self, launch: Launch, tensors: Mapping[Buffer, int], sizes: Sequence[tuple[Axis, int]]
    ) -> None:
        assert isinstance(launch.step, Kernel)
        assert isinstance(launch.function, CpuLaunch)
        self.kernel, self.kernels = launch.step, launch.bound.owner.kernels
        self.name = launch.step.name
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
