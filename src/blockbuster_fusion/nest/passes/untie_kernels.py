"""Gives kernels that read what others made dims of their own, so that each has its own tiles.

The loops of a block program that make a list and iterate it share a dim. Kernels exchange whole
arrays, so that their blocks need not agree: a product may want 128 rows at a time, and the norm
before it one. The rows of one product may be what the next one sums.
"""

from collections.abc import Mapping
from dataclasses import replace

from blockbuster_fusion.ir.axis import Axis, Dim
from blockbuster_fusion.nest.nest import (
    Along,
    Buffer,
    Cascade,
    Contract,
    Fold,
    For,
    Index,
    Kernel,
    Nest,
    NestStep,
    RunningFold,
    Space,
    Store,
)
from blockbuster_fusion.nest.rewrite import Renaming


def untie_kernels(nest: Nest) -> Nest:
    """A nest whose kernels share the dims of loops only with those that they do not depend on."""
    statements = [s for kernel in nest.kernels for s in kernel.statements]
    if not any(isinstance(s, Contract | Fold | RunningFold) for s in statements):
        return nest  # one tile suits all kernels that compute element by element
    levels = _levels(nest)
    tied = _tied(nest)
    taken: dict[Axis, int] = {}
    for dim in (dim for kernel in nest.kernels for dim in kernel.dims):
        taken[dim.axis] = max(taken.get(dim.axis, -1), -1 if dim.index is None else dim.index)
    first: dict[Dim, int] = {}
    fresh: dict[tuple[int, Dim], Dim] = {}
    steps: list[NestStep] = []
    for step in nest.steps:
        if isinstance(step, Kernel):
            level = levels[step.name]
            own: dict[Dim, Dim] = {}
            for dim in step.dims:
                if not _is_loop(dim) or dim in tied or first.setdefault(dim, level) == level:
                    continue
                if (level, dim) not in fresh:
                    taken[dim.axis] += 1
                    fresh[level, dim] = replace(dim, index=taken[dim.axis])
                own[dim] = fresh[level, dim]
            step = _with_dims(step, own) if own else step
        steps.append(step)
    return replace(nest, steps=tuple(steps))


def _is_loop(dim: Dim) -> bool:
    """True if loops over a dim have blocks of several elements."""
    return dim.packed and not dim.unit and not dim.is_free


def _levels(nest: Nest) -> dict[str, int]:
    """The number of kernels that must run one after the other before each kernel, by name."""
    made: dict[Buffer, int] = {}
    levels: dict[str, int] = {}
    for kernel in nest.kernels:
        stores = {
            s.target.buffer
            for s in kernel.statements
            if isinstance(s, Store) and s.target.buffer.space is Space.GLOBAL
        }
        levels[kernel.name] = max((made.get(b, 0) for b in kernel.buffers), default=0)
        made |= dict.fromkeys(stores, levels[kernel.name] + 1)
    return levels


def _tied(nest: Nest) -> set[Dim]:
    """The dims whose blocks arrays in memory depend on; scratch memory keeps its dims as well.

    The totals of a split scan are those of shares of blocks, so both its kernels have the same.
    """
    buffers = {b for kernel in nest.kernels for b in kernel.buffers}
    axes = [axis for buffer in buffers for axis in buffer.axes if axis.along is not Along.AXIS]
    loops = [s for kernel in nest.kernels for s in kernel.statements if isinstance(s, For)]
    shared = {loop.index.dim for loop in loops if loop.share is not None and loop.carried}
    return {axis.dim for axis in axes} | shared


def _with_dims(kernel: Kernel, dims: Mapping[Dim, Dim]) -> Kernel:
    """A kernel with loops over other dims."""
    loops = [s.index for s in kernel.statements if isinstance(s, For | Cascade)]
    shares = [s.share.index for s in kernel.statements if isinstance(s, For) and s.share]
    indices = {
        old: Index(old.name, dims[old.dim])
        for old in dict.fromkeys([*kernel.grid, *loops, *shares])
        if old.dim in dims
    }
    grid = tuple(indices.get(index, index) for index in kernel.grid)
    return replace(kernel, grid=grid, body=Renaming(indices, dims).body(kernel.body))
