"""Launches independent kernels as one, on a GPU.

A launch of few programs leaves most of the memory's bandwidth unused, and each launch ends with
processors that have nothing left to do. Kernels that do not depend on one another share a launch
instead: the projections of queries, keys and values, the second kernels of several split
reductions. Each program runs the body of one kernel.

Steps go in *levels*: a step is in the level after the last one of those that it depends on. So a
kernel may come before others that were written down first.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeGuard

from blockbuster_fusion.nest.analysis.independence import touched
from blockbuster_fusion.nest.nest import Buffer, Call, Grids, Kernel, Nest, NestStep
from blockbuster_fusion.nest.passes.merge_kernels import MOST_STATEMENTS

MOST_KERNELS = 8
"""The most kernels of a launch: all their programs have the registers that one of them needs.

They have as many statements together as a kernel that is merged from several may have."""


def join_grids(nest: Nest) -> Nest:
    """The nest with each level's kernels in one launch; those with products are apart."""
    if any(isinstance(step, Call) for step in nest.steps):
        return nest  # operators on the host run where they stand
    levels: list[list[NestStep]] = []
    last_read: dict[Buffer, int] = {}
    last_written: dict[Buffer, int] = {}
    for step in nest.steps:
        read, made = touched(step)
        before = [last_written.get(b, -1) for b in read | made]
        before += [last_read.get(b, -1) for b in made]
        level = 1 + max(before, default=-1)
        levels += [[]] if level == len(levels) else []
        levels[level].append(step)
        last_read |= {b: max(level, last_read.get(b, 0)) for b in read}
        last_written |= dict.fromkeys(made, level)
    return replace(nest, steps=tuple(step for level in levels for step in _joined(level)))


def _joined(level: Sequence[NestStep]) -> Iterator[NestStep]:
    """The steps of a level, with kernels of a kind in as few launches as may be."""
    yield from (step for step in level if not _may_join(step))
    kernels = [step for step in level if _may_join(step)]
    for multiplies in (True, False):
        for some in _groups(kernel for kernel in kernels if kernel.multiplies is multiplies):
            yield some[0] if len(some) == 1 else Grids(f"{some[0].name}_together", (*some,))


def _groups(kernels: Iterable[Kernel]) -> list[list[Kernel]]:
    """The kernels in order, in groups that one launch may have."""
    groups: list[list[Kernel]] = []
    room = 0
    for kernel in kernels:
        length = sum(1 for _ in kernel.statements)
        if not groups or length > room or len(groups[-1]) == MOST_KERNELS:
            groups.append([])
            room = MOST_STATEMENTS
        groups[-1].append(kernel)
        room -= length
    return groups


def _may_join(step: NestStep) -> TypeGuard[Kernel]:
    """True for a kernel, unless its programs take turns: they fill a GPU by themselves."""
    return isinstance(step, Kernel) and not step.programs
