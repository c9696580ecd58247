"""The sizes of blocks of a kernel: of its dims, tiles and pieces of rows."""

import math
from dataclasses import dataclass

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.expr import Expr
from blockbuster_fusion.ir.tiling import Tiling
from blockbuster_fusion.nest.analysis.thread_blocks import VECTOR_BYTES
from blockbuster_fusion.nest.nest import (
    Access,
    Buffer,
    Contract,
    For,
    Span,
    Tile,
    Window,
)
from blockbuster_fusion.nest.shapes import buffer_shape
from blockbuster_fusion.schedule.kernel_facts import KernelFacts

LINE = {"cpu": 64, "cuda": 32}
"""The bytes that memory moves at least, if they lie together."""
STREAMED_LINE = {"cpu": 64, "cuda": 128}
"""The same in kernels without products, whose blocks no later program reads from a cache."""


@dataclass(frozen=True, slots=True)
class _Blocks:
    """The blocks of a dim: how many there are, and how long."""

    count: int
    mean: float
    first: int
    whole: int
    """A power of two."""

    @classmethod
    def of(cls, starts: range) -> "_Blocks":
        count, extent, step = max(1, len(starts)), starts.stop, starts.step
        return cls(count, extent / count, min(step, extent), 1 << max(step - 1, 0).bit_length())


class BlockSizes:
    """The sizes of a kernel's blocks, with certain sizes and tiles."""

    def __init__(self, facts: KernelFacts, tiling: Tiling) -> None:
        self.tiling = tiling
        self.line = (LINE if facts.multiplies else STREAMED_LINE)[facts.target]
        self.dims: dict[Dim, _Blocks] = {}
        self.shapes: dict[Buffer, tuple[int, ...]] = {}

    def blocks_of(self, dim: Dim) -> _Blocks:
        """The blocks of a dim."""
        found = self.dims.get(dim)
        if found is None:
            found = self.dims[dim] = _Blocks.of(self.tiling.starts(dim))
        return found

    def blocks(self, dim: Dim) -> int:
        return self.blocks_of(dim).count

    def shape(self, buffer: Buffer) -> tuple[int, ...]:
        """The length of a buffer along each of its axes."""
        found = self.shapes.get(buffer)
        if found is None:
            found = self.shapes[buffer] = buffer_shape(buffer, self.tiling)
        return found

    def whole(self, dim: Dim) -> int:
        """The length of whole blocks of a dim."""
        return self.blocks_of(dim).whole if dim.packed else 1

    def block(self, span: Span) -> int:
        """The length of whole blocks; on a GPU one of a unit dim is a power of two."""
        return -(-self.blocks_of(span.dim).whole // span.each)

    def longest(self, span: Span) -> int:
        """The length of the first block of a span."""
        return self.blocks_of(span.dim).first

    def length(self, span: Span) -> float:
        """The mean length of the blocks of a span."""
        return self.blocks_of(span.dim).mean / span.each

    def elements(self, tile: Tile) -> float:
        return math.prod((self.length(span) for span in tile.spans), start=1.0)

    def rows(self, tile: Tile) -> float:
        """The rows of a tile, each of which is one loop over vectors."""
        return math.prod((self.length(span) for span in tile.spans[:-1]), start=1.0)

    def products(self, statement: Contract) -> float:
        """The products of two blocks before they are summed."""
        return math.prod(map(self.length, {*statement.left.spans, *statement.right.spans}))

    def piece(self, access: Access) -> float:
        """The bytes of a piece of a row; whole rows, and single rows, are not cut."""
        if len(access.spans) < 2 or self.blocks(access.spans[-1].dim) == 1:
            return math.inf
        return self.length(access.spans[-1]) * access.buffer.dtype.bytes

    def has_long_rows(self, access: Access) -> bool:
        """True if rows of an array begin at multiples of 16 bytes, so that vectors are loaded."""
        if len(access.spans) < 2:
            return True
        row = self.shape(access.buffer)[-1] * access.buffer.dtype.bytes
        return row % VECTOR_BYTES == 0

    def jumps(self, access: Access) -> float:
        """The rows of a block that begin elsewhere than where the row before them ends."""
        *outer, last = access.spans or (None,)
        if last is None or self.blocks(last.dim) == 1:
            return 0.0
        rows = math.prod(map(self.length, outer), start=1.0)
        return rows if rows > 1 else 0.0

    def waste(self, access: Access) -> float:
        """The bytes that memory moves for each byte of a block whose rows are short."""
        if not access.spans:
            return 1.0
        row = self.length(access.spans[-1]) * access.buffer.dtype.bytes
        whole = self.shape(access.buffer)[-1] * access.buffer.dtype.bytes
        return max(1.0, min(self.line, whole) / row)

    def visited(self, loop: For, window: Window, trips: float) -> float:
        """The blocks of a window that a block of rows sees, on average.

        A block that any of the rows sees is visited as a whole. Half of the positions are seen if
        the width of the window is not known.
        """
        block = self.length(Span(loop.index.dim, loop.index))
        rows = 1.0 if window.rows is None else self.length(window.rows)
        edges = [e for e in (window.low, window.high) if isinstance(e, Expr) and e.op == "const"]
        seen = 0.5 * trips * block
        if len(edges) == 2:
            seen = min(seen, float(edges[1].number - edges[0].number))
            rows *= 2.0
        visited = min(trips, (seen + 0.5 * rows) / block + 0.5)
        if window.clear is None:
            return visited
        divided = min(visited, rows / block + 1.0)
        return visited - divided if window.clear else divided

    def waits(self, tile: Tile) -> float:
        """The times that threads wait for each other in a fold to a tile."""
        return 1 + math.log2(max(1, self.elements(tile))) / 2
