"""Runs C kernels that count the bytes which they move and touch."""

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from blockbuster_fusion.errors import WrongKind
from blockbuster_fusion.ir.tiling import Tiling
from blockbuster_fusion.nest.analysis.traffic import KernelTraffic
from blockbuster_fusion.nest.nest import Kernel
from blockbuster_fusion.nest.shapes import buffer_shape
from blockbuster_fusion.printers.c.counters import counter_names
from blockbuster_fusion.runtime.arrays import NumpyArrays
from blockbuster_fusion.runtime.bound import Bound, CompiledNest
from blockbuster_fusion.runtime.c.kernels import CpuKernels
from blockbuster_fusion.runtime.executable import Executable

Counts = Mapping[str, KernelTraffic]
"""The bytes of each kernel of a program, by its name."""


def counted(
    program: Executable, *arrays: Any, threads: int = 1
) -> tuple[list[Any], Counts, Tiling]:
    """The outputs of a program compiled for a CPU, its counters, and the tiling of its blocks.

    Its kernels are compiled again, with counters. With several threads, blocks of an axis whose
    length only a call tells are shorter than the tiling says (printers/c/tile_facts.py).
    """
    nest = program.nest
    if nest is None or program.target != "cpu":
        wanted, found = "a program compiled for the target 'cpu'", f"one for {program.target!r}"
        remedy = "compile it with target='cpu'"
        raise WrongKind(function="counted", wanted=wanted, given=found, remedy=remedy)
    kernels = CpuKernels(nest, program.tiles, threads=threads, is_counted=True)
    owner = CompiledNest(nest, program.inputs, program.tiles, kernels)
    library = NumpyArrays()
    given = [library.admitted(n, x, d) for (n, d), x in zip(owner.inputs, arrays, strict=True)]
    bound = Bound(owner, library, given, ())
    counters = [_Counters(kernel, kernels.library, bound.tiling) for kernel in nest.kernels]
    outputs = bound.run(library, given)
    return outputs, {c.kernel.name: c.traffic() for c in counters}, bound.tiling


class _Counters:
    """The counters of one kernel in a library: set to 0, with a map for each buffer."""

    def __init__(self, kernel: Kernel, library: ctypes.CDLL, tiling: Tiling) -> None:
        self.kernel = kernel
        self.buffers = kernel.global_buffers
        count = 2 * len(self.buffers)
        moved, touched = counter_names(kernel.name)
        self.moved = (ctypes.c_int64 * count).in_dll(library, moved)
        self.moved[:] = [0] * count
        sizes = [int(np.prod(buffer_shape(b, tiling), dtype=np.int64)) for b in self.buffers]
        self.maps = [np.zeros(size, np.uint8) for size in [*sizes, *sizes]]
        addresses = (ctypes.c_void_p * count).in_dll(library, touched)
        addresses[:] = [made.ctypes.data for made in self.maps]

    def traffic(self) -> KernelTraffic:
        """The bytes that were counted."""
        sizes = [buffer.dtype.bytes for buffer in self.buffers]
        touched = [
            int(made.sum()) * size for made, size in zip(self.maps, [*sizes, *sizes], strict=True)
        ]
        return KernelTraffic(self._pairs([*self.moved]), self._pairs(touched))

    def _pairs(self, numbers: Sequence[int]) -> dict[Any, tuple[int, int]]:
        """Numbers of loads and then of stores, by buffer."""
        half = len(self.buffers)
        return {b: (numbers[i], numbers[half + i]) for i, b in enumerate(self.buffers)}
