"""Orders a square grid by diagonals, each right before its mirror.

A sum of an array and its transpose reads each element twice: for the block at (i, j), and for the
one at (j, i). If both blocks are computed soon after each other, the second read comes from a
cache: from the second one, or from that of the processor itself if one program computes both.
"""

from dataclasses import replace

from blockbuster_fusion.nest.nest import Compute, Index, Kernel, Load, Store


def mirror_grid(kernel: Kernel, *, paired: bool = False) -> Kernel:
    """The kernel in that order, if it reads blocks at (i, j) and at (j, i) of a square grid.

    With `paired`, programs of a pointwise kernel compute two blocks each.
    """
    if len(kernel.grid) < 2 or not isinstance(kernel.grid[-1].dim.axis.extent, int):
        return kernel
    slow, fast = kernel.grid[-2:]
    loads = [s.source.spans for s in kernel.statements if isinstance(s, Load)]
    read = {tuple(span.at for span in spans if isinstance(span.at, Index)) for spans in loads}
    is_square = slow.dim.axis.extent == fast.dim.axis.extent
    both = {kernel.grid, (*kernel.grid[:-2], fast, slow)}
    if not is_square or not both <= read:
        return kernel
    is_pointwise = all(isinstance(s, Load | Compute | Store) for s in kernel.body)
    paired = paired and is_pointwise and len(kernel.grid) == 2
    return replace(kernel, is_mirrored=True, is_paired=paired)


def pairs(blocks: int) -> int:
    """The number of pairs of blocks at (i, j) and (j, i), for so many rows of blocks."""
    return blocks * (blocks + 1) // 2
