"""Runs a snapshot by its printed Triton kernels, on CPU tensors: needs TRITON_INTERPRET=1."""

from collections.abc import Callable, Mapping

import numpy as np
import torch

from blockbuster_fusion.ir.axis import Dim, Symbol
from blockbuster_fusion.nest.nest import Buffer, Clear, Launchable, Nest
from blockbuster_fusion.printers.triton.kernel import print_triton
from blockbuster_fusion.printers.triton.launch_plan import axis_length
from blockbuster_fusion.runtime.triton.launch import TORCH, TritonKernels
from helpers.quick_interpreter import quicken

quicken()


def sizes_of(nest: Nest, inputs: Mapping[str, np.ndarray]) -> dict[str, int]:
    """The sizes of a nest's symbols, read off its inputs."""
    sizes: dict[str, int] = {}
    for buffer in nest.inputs:
        for axis, length in zip(buffer.axes, inputs[buffer.name].shape, strict=True):
            if isinstance(axis.dim.axis.extent, Symbol):
                sizes[axis.dim.axis.extent.name] = length
    return sizes


def run(
    nest: Nest,
    inputs: Mapping[str, np.ndarray],
    tiles: Mapping[Dim, int],
    constant: tuple[str, ...] = (),
    device: str = "cpu",
    options: Mapping[str, int] | None = None,
    placed: Callable[[torch.Tensor, Mapping[Buffer, torch.Tensor]], torch.Tensor] | None = None,
) -> dict[str, np.ndarray]:
    """The outputs by name, axes in the order of the program's.

    `placed` gives an input another place in memory, by those before it.
    """
    sizes = sizes_of(nest, inputs)
    kernels = TritonKernels(nest, tiles, source=print_triton(nest, constant))
    tensors: dict[Buffer, torch.Tensor] = {}
    for buffer in nest.inputs:
        given = torch.from_numpy(np.array(inputs[buffer.name]))
        given = given.to(device=device, dtype=TORCH[buffer.dtype])
        tensors[buffer] = given if placed is None else placed(given, tensors)
    for buffer in (*nest.between, *(view.buffer for view in nest.outputs)):
        if buffer not in tensors:
            shape = [axis_length(a, sizes, tiles) for a in buffer.axes]
            tensors[buffer] = torch.full(shape, float("nan"), device=device).to(TORCH[buffer.dtype])
    for step in nest.steps:
        if isinstance(step, Clear):
            tensors[step.buffer].zero_()
        else:
            assert isinstance(step, Launchable)
            kernels.launch(step, tensors, sizes, tiles, options)
    made = {}
    for view, layout in zip(nest.outputs, nest.layouts, strict=True):
        order = [view.axes.index(axis) for axis in layout]
        made[view.buffer.name] = tensors[view.buffer].permute(order).double().cpu().numpy()
    return made
