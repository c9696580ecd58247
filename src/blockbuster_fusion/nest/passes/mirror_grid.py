"""Orders a square grid by diagonals, each right before its mirror.

A sum of an array and its transpose reads each element twice: for the block at (i, j), and for the
one at (j, i). If both blocks are computed soon after each other, the second read comes from a
cache.
"""

from dataclasses import replace

from blockbuster_fusion.nest.nest import Index, Kernel, Load


def mirror_grid(kernel: Kernel) -> Kernel:
    """The kernel in that order, if it reads blocks at (i, j) and at (j, i) of a square grid."""
    if len(kernel.grid) < 2 or not isinstance(kernel.grid[-1].dim.axis.extent, int):
        return kernel
    slow, fast = kernel.grid[-2:]
    loads = [s.source.spans for s in kernel.statements if isinstance(s, Load)]
    read = {tuple(span.at for span in spans if isinstance(span.at, Index)) for spans in loads}
    is_square = slow.dim.axis.extent == fast.dim.axis.extent
    both = {kernel.grid, (*kernel.grid[:-2], fast, slow)}
    return replace(kernel, is_mirrored=True) if is_square and both <= read else kernel
