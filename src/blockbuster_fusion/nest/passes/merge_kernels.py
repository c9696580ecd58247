"""Merging of small kernels that do not depend on one another.

Triton compiles a kernel in about a tenth of a second, plus a hundredth for each load with its
arithmetic. So many small kernels take long to compile and to launch. Neighbours with equal grids
are merged, up to the number of statements that Triton compiles in about a second.
"""

from collections.abc import Hashable, Mapping
from dataclasses import replace

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.nest.nest import (
    Buffer,
    Compute,
    Fill,
    Fold,
    Index,
    Kernel,
    Load,
    Lookup,
    Nest,
    NestStep,
    Positions,
    Store,
    accesses,
    tiles,
)
from blockbuster_fusion.nest.rewrite import Renaming

MOST_STATEMENTS = 128
"""Statements in a kernel of several: Triton takes about a second for so many."""

Straight = Load | Lookup | Compute | Positions | Fold | Fill | Store
"""Statements without loops or products."""


def merge_kernels(nest: Nest, blocks: Mapping[Dim, int], most: int = MOST_STATEMENTS) -> Nest:
    """Merges neighbouring kernels with equal grids; `blocks` are the tiles of dims."""
    steps: list[NestStep] = []
    for step in nest.steps:
        last = steps[-1] if steps else None
        if isinstance(last, Kernel) and isinstance(step, Kernel):
            moved = _on_grid_of(last, step, blocks)
            if moved is not None and _length(last) + _length(step) <= most:
                steps[-1] = replace(last, body=(*last.body, *moved.body))
                continue
        steps.append(step)
    return replace(nest, steps=tuple(steps))


def _length(kernel: Kernel) -> int:
    return sum(1 for _ in kernel.statements)


def _on_grid_of(first: Kernel, second: Kernel, blocks: Mapping[Dim, int]) -> Kernel | None:
    """The second kernel on the grid of the first, if they may run at the same time."""
    grids = [[_form(index, blocks) for index in kernel.grid] for kernel in (first, second)]
    if grids[0] != grids[1] or not (_is_straight(first) and _is_straight(second)):
        return None
    if _names(first) & _names(second) or _meet(first, second):
        return None
    indices = dict(zip(second.grid, first.grid, strict=True))
    return replace(second, grid=first.grid, body=Renaming(indices, {}).body(second.body))


def _form(index: Index, blocks: Mapping[Dim, int]) -> Hashable:
    """The key that two indices share if they count the same blocks."""
    dim = index.dim
    return dim.axis.extent, dim.packed, dim.unit, blocks.get(dim)


def _is_straight(kernel: Kernel) -> bool:
    return all(isinstance(s, Straight) for s in kernel.statements)


def _names(kernel: Kernel) -> set[str]:
    return {tile.name for s in kernel.statements for tile in tiles(s)}


def _meet(first: Kernel, second: Kernel) -> bool:
    """True if one kernel writes a buffer that the other reads or writes."""
    (one, made), (other, also) = _touched(first), _touched(second)
    return not made.isdisjoint(other | also) or not also.isdisjoint(one)


def _touched(kernel: Kernel) -> tuple[set[Buffer], set[Buffer]]:
    """The buffers that a kernel reads, and those that it writes."""
    sides: tuple[set[Buffer], set[Buffer]] = (set(), set())
    for s in kernel.statements:
        sides[isinstance(s, Store)].update(access.buffer for access in accesses(s))
    return sides
