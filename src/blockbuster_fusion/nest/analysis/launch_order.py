"""The order in which the programs of a GPU's kernel start, as nested loops.

The two fastest loops of a grid go in groups: some blocks of the one for each block of the other.
Where the last rows take longest, those of a group of heads start first (longest_last.py). Programs
that run at a time are neighbours in this order, so they share what they read. Pointwise programs
share nothing: they go through arrays as these lie in memory.
"""

import math
from collections.abc import Callable, Sequence

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.nest.analysis.longest_last import longest_last
from blockbuster_fusion.nest.analysis.matrix_products import is_dot
from blockbuster_fusion.nest.nest import Compute, Contract, Index, Kernel, Load, Store, accesses

USUAL_GROUP = 8
AT_A_TIME = 132
"""The programs with large tiles that a large GPU runs at a time."""
HEADS = 32
"""The heads whose longest programs start first: a GPU has room for all of them, and those that run
at a time still share some keys."""

Loop = tuple[Index, float]
"""An index of a grid, and the number of places that a loop over a part of its blocks has."""


class LaunchOrder:
    """The order of a kernel's programs, for any tiles."""

    def __init__(self, kernel: Kernel) -> None:
        self.grid, self.is_mirrored = kernel.grid, kernel.is_mirrored
        self.longest = longest_last(kernel)
        products = (s for s in kernel.statements if isinstance(s, Contract))
        self.multiplies = any(map(is_dot, products))
        self.is_grouped = len(kernel.grid) > 1 and not goes_straight(kernel)

    def group(self, length: Callable[[Dim], int]) -> int:
        """The blocks of rows whose programs run together: so many that they share most columns.

        Programs that run at a time then read about as many rows as columns. Where the longest ones
        start first, it is the number of heads.
        """
        if self.longest is not None:
            return HEADS
        if len(self.grid) < 2 or not self.multiplies:
            return USUAL_GROUP
        rows, columns = (length(index.dim) for index in self.grid[-2:])
        return 1 << max(0, int(math.log2(AT_A_TIME * columns / rows) / 2 + 0.1))

    def loops(self, count: Callable[[Dim], int], group: int) -> list[Loop]:
        """The loops over all programs, the slowest first; some indices have two of them."""
        if self.longest is not None:
            others = [index for index in self.grid if index is not self.longest]
            outer, inner = _divided(others, count, group)
            return [*outer, (self.longest, count(self.longest.dim)), *inner]
        if not self.is_grouped or self.is_mirrored:
            return [(index, count(index.dim)) for index in self.grid]
        *others, slow, fast = self.grid
        outer, inner = _divided([slow], count, group)
        own = [(index, float(count(index.dim))) for index in others]
        return [*own, *outer, (fast, count(fast.dim)), *inner]


def goes_straight(kernel: Kernel) -> bool:
    """True if a kernel is pointwise, and no array has its blocks in another order than the grid.

    Numbers of a row or a column that several programs read are few, and stay in a cache.
    """
    if not all(isinstance(s, Load | Compute | Store) for s in kernel.body):
        return False
    found = [access.spans for s in kernel.body for access in accesses(s)]
    orders = [[kernel.grid.index(x.at) for x in spans if x.at in kernel.grid] for spans in found]
    return all(order == sorted(order) for order in orders)


def _divided(
    indices: Sequence[Index], count: Callable[[Dim], int], group: int
) -> tuple[list[Loop], list[Loop]]:
    """The loops over groups of the places of some indices, and those over the places of one."""
    outer: list[Loop] = []
    inner: list[Loop] = []
    left = float(group)
    for index in reversed(indices):
        inside = min(float(count(index.dim)), left)
        left /= inside
        inner.insert(0, (index, inside))
        outer.insert(0, (index, count(index.dim) / inside))
    return outer, inner
