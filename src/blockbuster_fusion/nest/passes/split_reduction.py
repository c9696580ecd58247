"""Split reductions: the blocks of a serial loop, shared among more programs.

One kernel reduces each share and stores its accumulators. A second kernel combines the shares and
does the rest: it loads them in blocks, and folds each. Flash-decoding is an instance. If all
accumulators are plain sums, the shares may be added into one buffer atomically instead.
"""

from dataclasses import replace
from itertools import count

from blockbuster_fusion.errors import NoKernel
from blockbuster_fusion.ir.axis import Axis, Dim
from blockbuster_fusion.ir.combiner import ADD, ANY
from blockbuster_fusion.nest.lower_combiner import combine, folded, is_foldable
from blockbuster_fusion.nest.nest import (
    Access,
    Along,
    Body,
    Buffer,
    BufferAxis,
    Clear,
    Fill,
    For,
    Index,
    Kernel,
    Load,
    Nest,
    NestStep,
    Share,
    Space,
    Span,
    Statement,
    Store,
    Tile,
    walk,
)
from blockbuster_fusion.nest.passes.remove_dead_code import remove_dead_code
from blockbuster_fusion.nest.passes.unroll_short_loops import MOST_BLOCKS
from blockbuster_fusion.nest.rewrite import FreshNames, rebuilt

PARTS = "_parts"
"""The end of the name of an axis of programs."""


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
        shared, kernel = _Split(kernel, *found, parts, atomic).kernels(own)
        steps += shared
    return [*steps, kernel]


def buffers_between(nest: Nest) -> Nest:
    """The nest with a list of all buffers that its kernels exchange."""
    known = {*nest.inputs, *(view.buffer for view in nest.outputs)}
    used = [b for kernel in nest.kernels for b in kernel.buffers]
    between = [b for b in dict.fromkeys(used) if b.space is Space.GLOBAL and b not in known]
    return replace(nest, between=tuple(between))


def access_of_share(
    kernel: Kernel, buffer: Buffer, tile: Tile, shares: Index, part: Index
) -> Access:
    """The places of a tile in the buffer of all shares: those of one share, or of a block."""
    spans = {index.dim: Span(index.dim, index) for index in kernel.grid}
    spans[shares.dim] = Span(part.dim, part)
    spans |= {span.dim: span for span in tile.spans}
    return Access(buffer, tuple(spans[a.dim] for a in buffer.axes))


def axis_of_parts(axis: str, parts: int) -> Axis:
    """The axis of the programs that share the reduction over another axis."""
    return Axis(f"{axis}{PARTS}", parts)


def is_axis_of_parts(axis: Axis) -> bool:
    """True for an axis of such programs."""
    return axis.name.endswith(PARTS)


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
        axis = axis_of_parts(loop.index.dim.name, parts)
        self.share = Share(Index(f"{loop.index.name}_part", Dim(axis, 0, packed=False)), parts)
        in_blocks = all(is_foldable(combiner) for combiner, _ in loop.gathered)
        matrices = any(len(tile.spans) > 1 for _, some in loop.gathered for tile in some)
        in_blocks = in_blocks and not (matrices and parts <= MOST_BLOCKS)
        self.all = Index(f"{loop.index.name}_parts", Dim(axis, 1, packed=in_blocks))
        """The index over all shares: in blocks, or one by one if they cannot be folded.

        A few matrices are combined one by one as well: they fill registers, and the loop is
        unrolled, so that it waits for memory once (unroll_short_loops.py)."""
        self.buffers = {
            tile: self.buffer(tile) for _, gathered in loop.gathered for tile in gathered
        }

    def buffer(self, tile: Tile) -> Buffer:
        """The buffer for the shares of an accumulator, with a block for each program."""
        own = [] if self.atomic else [BufferAxis(self.all.dim, Along.AXIS)]
        kept = {span.dim for span in tile.spans}
        own += [BufferAxis(i.dim, Along.BLOCKS) for i in self.kernel.grid if i.dim not in kept]
        own += [BufferAxis(span.dim, Along.AXIS) for span in tile.spans]
        return Buffer(f"{self.kernel.name}_{tile.name}", tuple(own), tile.dtype)

    def access(self, tile: Tile, part: Index) -> Access:
        """The places of one share, or of a block of shares."""
        return access_of_share(self.kernel, self.buffers[tile], tile, self.all, part)

    def kernels(self, name: str) -> tuple[list[NestStep], Kernel]:
        """The kernel of the shares, which gets a name, and the one that combines them."""
        kernel, body = self.kernel, self.kernel.body
        shares: list[Statement] = [
            Store(self.access(tile, self.share.index), tile, self.atomic) for tile in self.buffers
        ]
        loop = replace(self.loop, share=self.share)
        before = rebuilt(body[: self.at], _without_results)
        first = Kernel(name, (*kernel.grid, self.share.index), (*before, loop, *shares))
        gathering = self.loaded() if self.atomic else self.combined()
        filled = [s for s in body[: self.at] if not (self.atomic and self.is_start(s))]
        second = replace(kernel, body=(*filled, *gathering, *body[self.at + 1 :]))
        clears: list[NestStep] = [Clear(b) for b in self.buffers.values()] if self.atomic else []
        return [*clears, remove_dead_code(first)], remove_dead_code(second)

    def is_start(self, statement: Statement) -> bool:
        return isinstance(statement, Fill) and statement.tile in self.buffers

    def loaded(self) -> list[Statement]:
        return [Load(tile, self.access(tile, self.share.index)) for tile in self.buffers]

    def combined(self) -> list[Statement]:
        """The loop that combines the shares into accumulators, which were filled before."""
        names = FreshNames(self.kernel)
        span = Span(self.all.dim, self.all)
        own = (span,) if span.dim.packed else ()
        inner: list[Statement] = []
        for combiner, gathered in self.loop.gathered:
            blocks = [Tile(names.numbered("t"), (*own, *t.spans), t.dtype) for t in gathered]
            inner += [
                Load(block, self.access(tile, self.all))
                for block, tile in zip(blocks, gathered, strict=True)
            ]
            coming, folds = folded(combiner, blocks, span, names) if own else (blocks, [])
            inner += [*folds, *combine(combiner, coming, names, into=gathered).updates]
        return [For(self.all, tuple(inner), gathered=self.loop.gathered)]


def _only_sums(loop: For) -> bool:
    """True if a loop gathers sums and nothing else."""
    return all(combiner is ADD for combiner, _ in loop.gathered)


def _without_results(body: Body) -> Body:
    """A body without the stores to global memory, which the second kernel has as well."""
    return tuple(
        s for s in body if not (isinstance(s, Store) and s.target.buffer.space is Space.GLOBAL)
    )
