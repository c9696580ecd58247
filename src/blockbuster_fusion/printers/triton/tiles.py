"""Tiles of Triton kernels made smaller until shared memory suffices."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.nest.analysis.matrix_products import is_dot, product_of
from blockbuster_fusion.nest.analysis.shared_memory import SharedMemory
from blockbuster_fusion.nest.nest import Along, Contract, Kernel, Launchable, Nest, Space
from blockbuster_fusion.printers.triton.launch_plan import MOST_WARPS, SMALLEST, block_length

OVERLAPPED = 2
"""The least number of stages with which loads overlap with computation."""

TileLengths = Mapping[Dim, int]


def fitted(
    nest: Nest, tiles: TileLengths, sizes: Mapping[str, int], *, given: Collection[Dim], shared: int
) -> dict[Dim, int]:
    """The tiles with which every kernel has enough shared memory; those that are given stay.

    Tiles that are longer than their axes are halved too, as far as dots allow.
    """
    made = dict(tiles)
    for kernel in nest.kernels:
        halving = Halving(kernel, sizes, frozenset(given), nest.kernels)
        made = halving.within(halving.no_longer_than_axes(made), shared)
    return made


@dataclass(frozen=True)
class Halving:
    """The ways to make a kernel's tiles smaller."""

    kernel: Kernel
    sizes: Mapping[str, int]
    kept: frozenset[Dim]
    """The dims whose tiles are not changed."""
    beside: tuple[Kernel, ...] = ()
    """The kernels that have the same tiles: their dots need as many elements too."""

    @cached_property
    def memory(self) -> SharedMemory:
        return SharedMemory(self.kernel)

    @cached_property
    def dims(self) -> tuple[Dim, ...]:
        return tuple(sorted(self.kernel.dims, key=lambda dim: dim.label))

    def no_longer_than_axes(self, tiles: TileLengths) -> dict[Dim, int]:
        """Tiles halved as long as half still holds the axis."""
        made = dict(tiles)
        while short := [dim for dim in self.halvable(made) if _holds(made[dim] // 2, dim)]:
            made[short[0]] //= 2
        return made

    def within(self, tiles: TileLengths, shared: int) -> dict[Dim, int]:
        """Tiles with which the kernel takes at most `shared` bytes, if there are any."""
        made = dict(tiles)
        while (now := self.estimate(made)) > shared:
            dims = self.halvable(made)
            rest = {dim: self.estimate({**made, dim: made[dim] // 2}) for dim in dims}
            least = min(dims, key=lambda dim: (rest[dim], -made[dim]), default=None)
            if least is None or rest[least] == now:
                break
            made[least] //= 2
        return made

    def estimate(self, tiles: TileLengths) -> int:
        """The bytes of shared memory that the kernel takes with such tiles."""
        lengths = self.lengths(tiles)
        return self.memory.estimate(lengths.__getitem__, OVERLAPPED, MOST_WARPS)

    def halvable(self, tiles: TileLengths) -> list[Dim]:
        """The dims whose tiles can be halved: every dot keeps as many elements as it needs."""
        found = [d for d in self.dims if tiles.get(d, 1) > 1 and d not in self.kept]
        return [dim for dim in found if self.takes({**tiles, dim: tiles[dim] // 2})]

    def takes(self, tiles: TileLengths) -> bool:
        """True if every dot has as many rows, columns and summed elements as it needs."""
        groups = (group for contract in self.dots for group in _groups(contract))
        lengths = ([block_length(dim, self.sizes, tiles) for dim in group] for group in groups)
        return all(math.prod(group) >= SMALLEST for group in lengths)

    @cached_property
    def dots(self) -> list[Contract]:
        kernels = {self.kernel.name: self.kernel} | {k.name: k for k in self.beside}
        statements = (s for kernel in kernels.values() for s in kernel.statements)
        return [s for s in statements if isinstance(s, Contract) and is_dot(s)]

    def lengths(self, tiles: TileLengths) -> dict[Dim, int]:
        return {dim: block_length(dim, self.sizes, tiles) for dim in self.dims}


def _groups(contract: Contract) -> list[list[Dim]]:
    """The rows, columns and summed elements of a dot, by their dims."""
    product = product_of(contract)
    return [[s.dim for s in group] for group in (product.rows, product.columns, contract.summed)]


def _holds(tile: int, dim: Dim) -> bool:
    """True if one block of this length is known to hold the whole axis."""
    return isinstance(dim.axis.extent, int) and 0 < dim.axis.extent <= tile


def seen_outside(kernel: Launchable) -> frozenset[Dim]:
    """The dims whose tiles other kernels share: arrays have an entry for each of their blocks."""
    buffers = [b for b in kernel.buffers if b.space is Space.GLOBAL]
    axes = (axis for buffer in buffers for axis in buffer.axes)
    return frozenset(axis.dim for axis in axes if axis.along is not Along.AXIS)
