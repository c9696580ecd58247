"""The bytes of global memory that a kernel loads and stores, to the byte.

There are two measures. *Moved* bytes go between global memory and tiles: a block counts each time
that a statement loads or stores it, with the true length of a last block. *Touched* bytes are those
of arrays that a kernel reads or writes at all: each counts once. Memory moves at least the latter,
and no more than the former unless rows are shorter than its lines.

A view of a block that a printer reads in place, row by row, is one load. Kernels compiled with
counters (runtime/c/counted.py) tell the same figures. Three facts are data, and assumed: places of
lookups and scatters lie on their axis, and no two are equal; every row sees something in its
window; and a window whose edge is a tile is not narrowed.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.expr import Expr, evaluate
from blockbuster_fusion.ir.tiling import Tiling
from blockbuster_fusion.nest.nest import (
    Along,
    Body,
    Buffer,
    For,
    Index,
    Kernel,
    Launchable,
    Load,
    Lookup,
    Space,
    Span,
    Statement,
    Store,
    Tile,
    Window,
    accesses,
    is_placed,
)
from blockbuster_fusion.nest.shapes import buffer_shape

Blocks = Mapping[Index, range]
"""The blocks that each loop around a statement goes through."""
Box = tuple[tuple[int, int], ...]
"""The elements of a buffer from a first to before an end, along each axis."""


@dataclass(frozen=True, slots=True)
class KernelTraffic:
    """The bytes of a kernel's global buffers: those that are loaded, and those that are stored."""

    moved: Mapping[Buffer, tuple[int, int]]
    touched: Mapping[Buffer, tuple[int, int]]

    @property
    def total_moved(self) -> int:
        """All bytes that are loaded and stored, each time."""
        return sum(map(sum, self.moved.values()))

    @property
    def total_touched(self) -> int:
        """The bytes of arrays that are read, and of those that are written."""
        return sum(map(sum, self.touched.values()))


@dataclass(frozen=True, slots=True)
class _Move:
    """All runs of a statement in some blocks: the elements that it moves, and their places."""

    statement: Load | Lookup | Store
    elements: int
    box: Box

    @property
    def buffer(self) -> Buffer:
        (access,) = accesses(self.statement)
        return access.buffer


def traffic_of(launched: Launchable, tiling: Tiling) -> KernelTraffic:
    """The bytes that a launch moves and touches with certain sizes and tiles."""
    moves = [move for kernel in launched.kernels for move in _Moves(kernel, tiling).all()]
    moved = {buffer: [0, 0] for buffer in launched.global_buffers}
    found: dict[tuple[Buffer, bool], list[_Move]] = {}
    for move in moves:
        is_store = isinstance(move.statement, Store)
        moved[move.buffer][is_store] += move.elements * move.buffer.dtype.bytes
        found.setdefault((move.buffer, is_store), []).append(move)
    touched = {
        buffer: tuple(
            _touched(found.get((buffer, is_store), []), buffer, tiling) * buffer.dtype.bytes
            for is_store in (False, True)
        )
        for buffer in moved
    }
    return KernelTraffic(
        {buffer: (loaded, stored) for buffer, (loaded, stored) in moved.items()},
        {buffer: (loaded, stored) for buffer, (loaded, stored) in touched.items()},
    )


def _touched(moves: Iterable[_Move], buffer: Buffer, tiling: Tiling) -> int:
    """The elements of a buffer that some statements reach; of placed ones, as many as they move."""
    boxes: dict[Box, None] = {}
    placed: dict[Statement, int] = {}
    for move in moves:
        if is_placed(move.statement):
            placed[move.statement] = placed.get(move.statement, 0) + move.elements
        else:
            boxes[move.box] = None
    count = covered([*boxes])
    return min(prod(buffer_shape(buffer, tiling)), max([count, *placed.values()]))


def covered(boxes: Iterable[Box]) -> int:
    """The elements that boxes cover together, each counted once."""
    boxes = [box for box in boxes if all(first < end for first, end in box)]
    if len(boxes) < 2:
        return sum(prod(end - first for first, end in box) for box in boxes)
    edges = [sorted({at for ends in along for at in ends}) for along in zip(*boxes, strict=True)]
    cells = np.zeros([len(some) - 1 for some in edges], bool)
    for box in boxes:
        pairs = zip(edges, box, strict=True)
        cells[tuple(slice(some.index(a), some.index(b)) for some, (a, b) in pairs)] = True
    counts = cells.astype(np.int64)
    for some in reversed(edges):
        counts = counts @ np.diff(some)
    return int(counts)


class _Moves:
    """The loads and stores of one kernel."""

    def __init__(self, kernel: Kernel, tiling: Tiling) -> None:
        self.kernel, self.tiling = kernel, tiling
        self.apart = set(_apart(kernel))

    def all(self) -> Iterator[_Move]:
        """The moves of the whole grid."""
        grid = {index: range(self.count(index.dim)) for index in self.kernel.grid}
        for blocks in self.divided(grid):
            yield from self.body(self.kernel.body, blocks)

    def divided(self, blocks: Blocks) -> Iterator[Blocks]:
        """The same blocks all at once, or one by one along an index that others depend on."""
        choices = [
            [range(n, n + 1) for n in some] if index in self.apart else [some]
            for index, some in blocks.items()
        ]
        for chosen in product(*choices):
            yield dict(zip(blocks, chosen, strict=True))

    def body(self, body: Body, blocks: Blocks) -> Iterator[_Move]:
        for statement in body:
            match statement:
                case For():
                    own = {statement.index: self.visited(statement, blocks)}
                    for chosen in self.divided(own):
                        yield from self.body(statement.body, {**blocks, **chosen})
                case Load() | Lookup() | Store():
                    yield from self.moved(statement, blocks)

    def moved(self, statement: Load | Lookup | Store, blocks: Blocks) -> Iterator[_Move]:
        """The elements that a statement moves in all runs; buffers of one program do not count."""
        (access,) = accesses(statement)
        if access.buffer.space is not Space.GLOBAL:
            return
        pairs = [*zip(access.buffer.axes, access.spans, strict=True)]
        spans = [span for axis, span in pairs if axis.along is not Along.BLOCKS]
        if is_placed(statement):
            spans = [*statement.tile.spans]
        fixed = prod(
            self.length(s.dim, self.blocks_of(s, blocks)) for s in spans if s.at not in blocks
        )
        varying = prod(
            self.lengths([s.dim for s in spans if s.at is index], some)
            for index, some in blocks.items()
        )
        box = tuple(
            (some.start, some.stop)
            if axis.along is Along.BLOCKS and span.dim.packed
            else self.ends(span.dim, some)
            for (axis, span) in pairs
            for some in [self.blocks_of(span, blocks)]
        )
        yield _Move(statement, fixed * varying, box)

    def blocks_of(self, span: Span, blocks: Blocks) -> range:
        """The blocks that a span goes through."""
        if isinstance(span.at, Index) and not span.dim.unit:
            return blocks[span.at]
        at = span.at if isinstance(span.at, int) else 0  # a unit dim has one block
        return range(at, min(at + 1, self.count(span.dim)))

    def count(self, dim: Dim) -> int:
        return len(self.tiling.starts(dim))

    def ends(self, dim: Dim, blocks: range) -> tuple[int, int]:
        """The first element of some neighbouring blocks, and the one after the last."""
        starts = self.tiling.starts(dim)
        if not blocks:
            return 0, 0
        return starts[blocks[0]], min(starts[blocks[-1]] + starts.step, starts.stop)

    def length(self, dim: Dim, blocks: range) -> int:
        """The elements of some neighbouring blocks."""
        first, end = self.ends(dim, blocks)
        return end - first

    def lengths(self, dims: list[Dim], blocks: range) -> int:
        """The elements of blocks along some axes at once, summed over a loop."""
        if not dims:
            return len(blocks)
        if len(dims) == 1:
            return self.length(dims[0], blocks)
        return sum(prod(self.length(dim, range(n, n + 1)) for dim in dims) for n in blocks)

    def visited(self, loop: For, blocks: Blocks) -> range:
        """The blocks that a loop visits: of its share, and of its window."""
        first, last = loop.first, self.count(loop.index.dim)
        if loop.share is not None:
            chunk = -(-last // loop.share.parts)
            (part,) = blocks[loop.share.index]
            first, last = max(first, part * chunk), min(last, (part + 1) * chunk)
        if loop.window is not None:
            return self.window(loop.index.dim, loop.window, range(first, last), blocks)
        return range(first, max(first, last))

    def window(self, dim: Dim, window: Window, own: range, blocks: Blocks) -> range:
        """The blocks among a loop's own that some row of a block sees."""
        low, high = self.edge(window.low), self.edge(window.high)
        starts = self.tiling.starts(dim)
        top, bottom = (
            (0, 0)
            if window.rows is None
            else self.ends(window.rows.dim, self.blocks_of(window.rows, blocks))
        )
        bottom -= window.rows is not None
        is_blind = (
            (low is not None and bottom + low > starts.stop - 1)
            or (high is not None and top + high < 0)
            or (low is not None and high is not None and low > high)
        )
        first, last = own.start, own.stop
        if window.seen is not None or not is_blind:
            if low is not None:
                first = max(first, max(0, min(starts.stop, top + low)) // starts.step)
            if high is not None:
                last = min(last, -(-max(0, min(starts.stop, bottom + high + 1)) // starts.step))
        if window.clear is not None:
            assert high is not None
            clear = min(max(top + high + 1, 0), starts.stop) // starts.step
            first, last = (first, min(clear, last)) if window.clear else (max(clear, first), last)
        return range(first, max(first, last))

    def edge(self, edge: Expr | Tile | None) -> int | None:
        """The edge of a window; None if there is none, or only data tell."""
        if edge is None or isinstance(edge, Tile):
            return None
        return int(evaluate(edge, (), self.tiling.extents.of, lambda x, _: x))


def _apart(kernel: Kernel) -> Iterator[Index]:
    """The indices whose blocks count one by one: other loops depend on them, or a diagonal."""
    for statement in kernel.statements:
        if isinstance(statement, For):
            if statement.share is not None:
                yield statement.share.index
            window = statement.window
            if window is not None and window.rows is not None:
                yield from [window.rows.at] if isinstance(window.rows.at, Index) else []
        for access in accesses(statement):
            indices = [span.at for span in access.spans if isinstance(span.at, Index)]
            yield from (index for index in indices if indices.count(index) > 1)
