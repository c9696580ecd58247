"""The shared memory that a Triton kernel takes.

Triton keeps the operands of dots in shared memory. The same holds for the blocks that an innermost
loop with a dot loads: some are being loaded while others are used. Blocks with disjoint lifetimes
share memory. The estimate is an upper bound; for float32 it is mostly a few percent too high.
"""

import math
from collections.abc import Callable
from functools import cached_property

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.nest.analysis.matrix_products import is_dot, product_of
from blockbuster_fusion.nest.analysis.spread_sums import streaming_loops
from blockbuster_fusion.nest.analysis.triangular_scans import (
    FURTHER,
    LONGEST,
    SHORTEST,
    triangular_scan,
)
from blockbuster_fusion.nest.nest import (
    Body,
    Cascade,
    Contract,
    Fold,
    For,
    Kernel,
    Load,
    Lookup,
    Tile,
    written,
)
from blockbuster_fusion.printers.triton.dots import Dots

SHARED = {
    75: 65536,
    80: 166912,
    86: 101376,
    87: 166912,
    89: 101376,
    90: 232448,
    100: 232448,
    103: 232448,
    120: 101376,
    121: 101376,
}
"""The bytes of shared memory that one program may take, by compute capability."""
USUAL_SHARED = SHARED[80]
"""The same if the GPU is not known: the least of all large ones."""
PARTIAL = 4
"""The bytes of a warp's partial result of a reduction."""

BlockLength = Callable[[Dim], int]
"""The length of the blocks of a dim."""


def shared_limit(capability: int) -> int:
    """The bytes that one program may take; the least of all for an unknown GPU."""
    return SHARED.get(capability, min(SHARED.values()))


class SharedMemory:
    """The shared memory of one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    @cached_property
    def dots(self) -> Dots:
        return Dots(self.kernel, lambda tile: tile.name)

    @cached_property
    def products(self) -> list[Contract]:
        return [s for s in self.kernel.statements if isinstance(s, Contract) and is_dot(s)]

    @cached_property
    def streams(self) -> tuple[For, ...]:
        return streaming_loops(self.kernel)

    @cached_property
    def scans(self) -> list[For]:
        """The loops that scan blocks by products with triangles."""
        loops = (s for s in self.kernel.statements if isinstance(s, For))
        return [loop for loop in loops if triangular_scan(loop) is not None]

    def estimate(self, length: BlockLength, stages: int, warps: int) -> int:
        """The bytes that one program takes at most."""
        if not self.products:
            taken = [self._streamed(s.body, length, stages) for s in self.streams]
            taken += [self._scanned(s, length, stages) for s in self.scans]
            return max(taken, default=0)
        folds = [s for s in self.kernel.statements if isinstance(s, Fold)]
        shares = [_elements(fold.tile, length) * PARTIAL * warps for fold in folds]
        held = self._held(self.kernel.body, length, stages, is_loop=False)
        return held + max(shares, default=0)

    def _streamed(self, body: Body, length: BlockLength, stages: int) -> int:
        """The bytes that a loop without dots has loaded ahead."""
        loads = [s for s in body if isinstance(s, Load | Lookup)]
        sizes = (_elements(s.tile, length) * s.source.buffer.dtype.bytes for s in loads)
        return sum(sizes) * (stages - 1)

    def _scanned(self, loop: For, length: BlockLength, stages: int) -> int:
        """The bytes of blocks that are scanned by products, and of the triangle and its square."""
        scan, rows = triangular_scan(loop), length(loop.index.dim)
        if scan is None or not SHORTEST <= rows <= LONGEST:
            return 0
        ones = 2 * rows * rows * scan.stored.bytes
        return self._streamed(loop.body, length, stages + FURTHER) + ones

    def _held(self, body: Body, length: BlockLength, stages: int, *, is_loop: bool) -> int:
        """The most bytes that the statements of a body hold at one time."""
        loops = [s for s in body if isinstance(s, For | Cascade)]
        inner = [
            self._held(s.body, length, stages, is_loop=isinstance(s, For) and _repeats(s, length))
            for s in loops
        ]
        products = [s for s in body if isinstance(s, Contract) and is_dot(s)]
        is_innermost = is_loop and not any(isinstance(s, For) for s in loops)
        pipelined = products and is_innermost and stages > 1
        ahead = self._loaded_ahead(body, length, stages) if pipelined else {}
        made_here = {written(s) for s in body}
        kept: dict[tuple[Tile, int], int] = {}
        passing: list[int] = []
        for product in products:
            dtype, precision = self.dots.mode(product)
            now = 0
            for side, guard in zip((product.left, product.right), product.tail_masked, strict=True):
                size = _elements(side, length) * dtype.bytes
                as_loaded = side in ahead and not guard and self.dots.stored(side) is dtype
                if as_loaded and product_of(product).is_plain and not product.also:
                    continue
                if side in made_here and precision == "ieee":
                    now += size
                else:  # it is there during the whole loop, or while a tensor core still reads it
                    kept[side, dtype.bytes] = size
            passing.append(now)
        most = max([*passing, *inner], default=0)
        return sum(kept.values()) + sum(ahead.values()) + most

    def _loaded_ahead(self, body: Body, length: BlockLength, stages: int) -> dict[Tile, int]:
        """The bytes for the blocks of each load, including those that are being loaded.

        One more block of a 16-bit array is in use: tensor cores read it while others arrive.
        """
        made: dict[Tile, int] = {}
        for s in body:
            if isinstance(s, Load | Lookup):
                blocks = stages - (s.tile not in self.dots.narrow)
                blocks += (stages - 1) * (s.tile in self.dots.again)
                made[s.tile] = _elements(s.tile, length) * s.source.buffer.dtype.bytes * blocks
        return made


def _repeats(loop: For, length: BlockLength) -> bool:
    """True if a loop may have more than one block; else nothing is loaded ahead."""
    extent = loop.index.dim.axis.extent
    return not isinstance(extent, int) or extent > length(loop.index.dim)


def _elements(tile: Tile, length: BlockLength) -> int:
    return math.prod(length(span.dim) for span in tile.spans)
