"""Shares of a loop: the programs that divide it, and the buffers in which they leave results."""

from collections.abc import Mapping
from dataclasses import dataclass

from blockbuster_fusion.ir.axis import Axis, Dim
from blockbuster_fusion.ir.combiner import Combiner
from blockbuster_fusion.nest.lower_combiner import combine, folded, is_foldable
from blockbuster_fusion.nest.nest import (
    Access,
    Along,
    Body,
    Buffer,
    BufferAxis,
    For,
    Index,
    Kernel,
    Load,
    Share,
    Space,
    Span,
    Statement,
    Store,
    Tile,
)
from blockbuster_fusion.nest.passes.unroll_short_loops import MOST_BLOCKS
from blockbuster_fusion.nest.rewrite import FreshNames, rebuilt

PARTS = "_parts"
"""The end of the name of an axis of programs."""


def axis_of_parts(axis: str, parts: int) -> Axis:
    """The axis of the programs that share the reduction over another axis."""
    return Axis(f"{axis}{PARTS}", parts)


def is_axis_of_parts(axis: Axis) -> bool:
    """True for an axis of such programs."""
    return axis.name.endswith(PARTS)


@dataclass(frozen=True)
class Shares:
    """The shares of a loop of a kernel, each a program, and what another kernel reads of them."""

    kernel: Kernel
    share: Share
    all: Index
    """The index over all shares."""

    @staticmethod
    def of(kernel: Kernel, loop: For, parts: int) -> "Shares":
        """Shares that another kernel reads in blocks, or one by one if they cannot be folded.

        A few matrices are read one by one as well: they fill registers, and the loop is unrolled,
        so that it waits for memory once (passes/unroll_short_loops.py).
        """
        matrices = any(len(tile.spans) > 1 for _, some in loop.gathered for tile in some)
        in_blocks = all(is_foldable(combiner) for combiner, _ in loop.gathered)
        in_blocks = in_blocks and not (matrices and parts <= MOST_BLOCKS)
        name, axis = loop.index.name, axis_of_parts(loop.index.dim.name, parts)
        share = Share(Index(f"{name}_part", Dim(axis, 0, packed=False)), parts)
        return Shares(kernel, share, Index(f"{name}_parts", Dim(axis, 1, packed=in_blocks)))

    @property
    def span(self) -> tuple[Span, ...]:
        """The span of a block of shares; none if they are read one by one."""
        return (Span(self.all.dim, self.all),) if self.all.dim.packed else ()

    def buffer(self, tile: Tile, *, is_one: bool = False) -> Buffer:
        """The buffer for a tile of each share, or for one tile of all shares.

        It has a block for each program of the kernel's grid.
        """
        own = [] if is_one else [BufferAxis(self.all.dim, Along.AXIS)]
        kept = {span.dim for span in tile.spans}
        own += [BufferAxis(i.dim, Along.BLOCKS) for i in self.kernel.grid if i.dim not in kept]
        own += [BufferAxis(span.dim, Along.AXIS) for span in tile.spans]
        return Buffer(f"{self.kernel.name}_{tile.name}", tuple(own), tile.dtype)

    def access(self, buffer: Buffer, tile: Tile, part: Index) -> Access:
        """The places of a tile in the buffer: those of one share, or of a block of shares."""
        return access_of_share(self.kernel, buffer, tile, self.all, part)

    def block(self, tile: Tile, names: FreshNames) -> Tile:
        """A tile for a block of shares, or for one of them."""
        return Tile(names.numbered("t"), (*self.span, *tile.spans), tile.dtype)


def access_of_share(
    kernel: Kernel, buffer: Buffer, tile: Tile, shares: Index, part: Index
) -> Access:
    """The places of a tile in the buffer of all shares: those of one share, or of a block."""
    spans = {index.dim: Span(index.dim, index) for index in kernel.grid}
    spans[shares.dim] = Span(part.dim, part)
    spans |= {span.dim: span for span in tile.spans}
    return Access(buffer, tuple(spans[a.dim] for a in buffer.axes))


Gathered = tuple[tuple[Combiner, tuple[Tile, ...]], ...]
"""The accumulators of a loop."""


def combining(
    shares: Shares, gathered: Gathered, buffers: Mapping[Tile, Buffer], names: FreshNames
) -> For:
    """The loop that combines the shares of accumulators, which were filled before."""
    inner: list[Statement] = []
    for combiner, some in gathered:
        blocks = [shares.block(tile, names) for tile in some]
        inner += [
            Load(block, shares.access(buffers[tile], tile, shares.all))
            for block, tile in zip(blocks, some, strict=True)
        ]
        span = shares.span
        coming, folds = folded(combiner, blocks, span[0], names) if span else (blocks, [])
        inner += [*folds, *combine(combiner, coming, names, into=some).updates]
    return For(shares.all, tuple(inner), gathered=gathered)


def without_results(body: Body) -> Body:
    """A body without the stores to global memory, which the second kernel has as well."""

    def rest(own: Body) -> Body:
        return tuple(
            s for s in own if not (isinstance(s, Store) and s.target.buffer.space is Space.GLOBAL)
        )

    return rebuilt(body, rest)
