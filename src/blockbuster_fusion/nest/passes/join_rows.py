"""Kernels over rows that are joined: the statistics of a row, and what is computed from them.

A prologue apart is two kernels: one sums the blocks of each row, the other has a program for each
block, which loads the sums. A short row fits into the first cache. So the first kernel goes through
the row again instead, in a loop: the row comes from memory once, and the sums stay in registers.
"""

from dataclasses import replace

from blockbuster_fusion.nest.analysis.independence import meet
from blockbuster_fusion.nest.nest import Body, For, Index, Kernel, Nest, NestStep
from blockbuster_fusion.nest.passes.merge_kernels import continued, is_straight
from blockbuster_fusion.nest.rewrite import FreshNames, Renaming

LONGEST_ROW = 1 << 14
"""The elements of the longest row that one program goes through several times."""


def join_rows(nest: Nest) -> Nest:
    """A nest whose kernels over blocks of short rows follow, in a loop, what they depend on."""
    steps: list[NestStep] = []
    for step in nest.steps:
        last = steps[-1] if steps else None
        joined = None
        if isinstance(last, Kernel) and isinstance(step, Kernel):
            joined = _joined(last, step)
        if joined is None:
            steps.append(step)
        else:
            steps[-1] = joined
    return replace(nest, steps=tuple(steps))


def _joined(first: Kernel, second: Kernel) -> Kernel | None:
    """Both kernels as one, if the second has a program for each block of the first one's rows."""
    walked = _walked(first, second)
    if walked is None or not is_straight(second) or not meet(first, second):
        return None
    index = Index(walked.name, walked.dim)
    moved = _moved(first, second, index)
    body = continued(first, moved)
    return None if body is None else replace(first, body=(*first.body, For(index, body)))


def _walked(first: Kernel, second: Kernel) -> Index | None:
    """The index of the last loop of a kernel over the blocks that another has programs for."""
    if len(second.grid) != len(first.grid) + 1:
        return None
    *rows, block = second.grid
    extent = block.dim.axis.extent
    if [i.dim for i in rows] != [i.dim for i in first.grid] or not block.dim.packed:
        return None
    if not isinstance(extent, int) or extent > LONGEST_ROW:
        return None
    loops = [s for s in first.body if isinstance(s, For) and s.index.dim.axis is block.dim.axis]
    is_whole = loops and loops[-1].first == 0 and not loops[-1].window and not loops[-1].share
    return loops[-1].index if is_whole else None


def _moved(first: Kernel, second: Kernel, index: Index) -> Body:
    """The statements of a kernel on the grid of another, in a loop over blocks."""
    names, taken = FreshNames(first, second), FreshNames(first).taken
    indices = dict(zip(second.grid, (*first.grid, index), strict=True))

    def free(name: str) -> str:
        return names.numbered("t") if name in taken else name

    return Renaming(indices, {second.grid[-1].dim: index.dim}, free).body(second.body)
