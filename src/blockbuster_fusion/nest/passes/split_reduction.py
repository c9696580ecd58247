"""Split reductions: the blocks of a serial loop, shared among more programs.

One kernel reduces each share and stores its accumulators. A second kernel combines the shares and
does the rest: it loads them in blocks, and folds each. Flash-decoding is an instance. If all
accumulators are plain sums, the shares may be added into one buffer atomically instead. Loops that
sum a row, and then powers of the distances from its mean, are split together (split_power_sums.py).
"""

from dataclasses import replace
from itertools import count

from blockbuster_fusion.errors import NoKernel
from blockbuster_fusion.ir.combiner import ADD, ANY
from blockbuster_fusion.nest.analysis.power_sums import about_center
from blockbuster_fusion.nest.nest import (
    Clear,
    Fill,
    For,
    Kernel,
    Load,
    Nest,
    NestStep,
    Space,
    Statement,
    Store,
    walk,
)
from blockbuster_fusion.nest.passes.remove_dead_code import remove_dead_code
from blockbuster_fusion.nest.rewrite import FreshNames
from blockbuster_fusion.nest.shares import Shares, combining, without_results
from blockbuster_fusion.nest.split_power_sums import power_sums_split


def split_reduction(nest: Nest, axis: str, parts: int, *, atomic: bool = False) -> Nest:
    """Shares each reduction over an axis among `parts` programs."""
    steps: list[NestStep] = []
    for step in nest.steps:
        steps += _all_split(step, axis, parts, atomic) if isinstance(step, Kernel) else [step]
    if len(steps) == len(nest.steps):
        what = f"no kernel gathers along {axis} in a loop that stands right in its grid"
        raise NoKernel(what=what, remedy="split another axis")
    return buffers_between(replace(nest, steps=tuple(steps)))


def _all_split(kernel: Kernel, axis: str, parts: int, atomic: bool) -> list[NestStep]:
    """A kernel with all its reductions over an axis split, one after the other.

    What is added atomically are sums: the first reduction that is none, after some, stays whole.
    """
    steps: list[NestStep] = []
    name = f"{kernel.name}_parts"
    for number in count(1):
        found = reduction_loop(kernel, axis)
        if found is None or (steps and atomic and not _only_sums(found[1])):
            break
        own = name if number == 1 else f"{name}{number}"
        sums = () if atomic else about_center(kernel, found[0])
        if sums:
            shared, kernel = power_sums_split(kernel, sums, parts, own)
        else:
            shared, kernel = _Split(kernel, *found, parts, atomic).kernels(own)
        steps += shared
    return [*steps, kernel]


def buffers_between(nest: Nest) -> Nest:
    """The nest with a list of all buffers that its kernels exchange."""
    known = {*nest.inputs, *(view.buffer for view in nest.outputs)}
    used = [b for kernel in nest.kernels for b in kernel.buffers]
    between = [b for b in dict.fromkeys(used) if b.space is Space.GLOBAL and b not in known]
    return replace(nest, between=tuple(between))


def reduction_loop(kernel: Kernel, axis: str) -> tuple[int, For] | None:
    """The first loop over an axis in the kernel's body that gathers, with its position."""
    for at, statement in enumerate(kernel.body):
        if not isinstance(statement, For) or not statement.gathered or statement.carried:
            continue
        if any(isinstance(s, Store) for s in walk(statement.body)):
            continue  # the second kernel could not see it
        if any(combiner is ANY for combiner, _ in statement.gathered):
            continue  # an empty share has nothing to give
        if statement.index.dim.name == axis and statement.share is None:
            return at, statement
    return None


class _Split:
    """The split of one kernel into two."""

    def __init__(self, kernel: Kernel, at: int, loop: For, parts: int, atomic: bool) -> None:
        self.kernel, self.at, self.loop, self.atomic = kernel, at, loop, atomic
        if atomic and not _only_sums(loop):
            what = f"{kernel.name} gathers more than sums along {loop.index.dim.name}"
            raise NoKernel(what=what, remedy="split it without atomic additions")
        self.shares = Shares.of(kernel, loop, parts)
        gathered = [tile for _, some in loop.gathered for tile in some]
        self.buffers = {tile: self.shares.buffer(tile, is_one=atomic) for tile in gathered}

    def kernels(self, name: str) -> tuple[list[NestStep], Kernel]:
        """The kernel of the shares, which gets a name, and the one that combines them."""
        kernel, body, share = self.kernel, self.kernel.body, self.shares.share
        stores: list[Statement] = [
            Store(self.shares.access(buffer, tile, share.index), tile, self.atomic)
            for tile, buffer in self.buffers.items()
        ]
        loop = replace(self.loop, share=share)
        before = without_results(body[: self.at])
        first = Kernel(name, (*kernel.grid, share.index), (*before, loop, *stores))
        gathering = self.loaded() if self.atomic else [self.combined()]
        filled = [s for s in body[: self.at] if not (self.atomic and self.is_start(s))]
        second = replace(kernel, body=(*filled, *gathering, *body[self.at + 1 :]))
        clears: list[NestStep] = [Clear(b) for b in self.buffers.values()] if self.atomic else []
        return [*clears, remove_dead_code(first)], remove_dead_code(second)

    def is_start(self, statement: Statement) -> bool:
        return isinstance(statement, Fill) and statement.tile in self.buffers

    def loaded(self) -> list[Statement]:
        """The loads of sums that were added atomically."""
        shares = self.shares
        return [
            Load(tile, shares.access(buffer, tile, shares.share.index))
            for tile, buffer in self.buffers.items()
        ]

    def combined(self) -> For:
        """The loop that combines the shares into accumulators, which were filled before."""
        return combining(self.shares, self.loop.gathered, self.buffers, FreshNames(self.kernel))


def _only_sums(loop: For) -> bool:
    """True if a loop gathers sums and nothing else."""
    return all(combiner is ADD for combiner, _ in loop.gathered)
