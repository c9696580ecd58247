"""The shared memory that a Triton kernel takes.

Triton keeps the operands of dots in shared memory. The same holds for the blocks that an innermost
loop with a dot loads for it: some are being loaded while others are used. A loop of one step is
none: its statements are those of the loop around it. Blocks with disjoint lifetimes share memory.
The estimate is made for sm_90 (H100, H200), where it is an upper bound, and mostly exact.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.analysis.matrix_products import Product, is_dot, product_of
from blockbuster_fusion.nest.analysis.product_types import NARROW, ProductTypes
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
    Space,
    Statement,
    Store,
    Tile,
    read,
    written,
)

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
GROUPED, GROUP = 64, 4
"""The rows that a group of warps multiplies at a time, and the warps of a group."""

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
    def types(self) -> ProductTypes:
        return ProductTypes(self.kernel)

    @cached_property
    def products(self) -> dict[Contract, tuple[Product, DType]]:
        """The products of matrices, each with its axes and the dtype of its operands."""
        found = (s for s in self.kernel.statements if isinstance(s, Contract) and is_dot(s))
        return {s: (product_of(s), self.types.of(s)) for s in found}

    @cached_property
    def folds(self) -> list[Fold]:
        statements = self.kernel.statements
        return [s for s in statements if isinstance(s, Fold) and s.groups is None]

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
        shares = [_elements(fold.tile, length) * PARTIAL * warps for fold in self.folds]
        held = self._held(self.kernel.body, length, stages, warps, None)
        return held + max(shares, default=0)

    def _streamed(self, body: Body, length: BlockLength, stages: int) -> int:
        """The bytes that a loop without dots has loaded ahead."""
        loads = [s for s in body if isinstance(s, Load | Lookup)]
        sizes = (_elements(s.tile, length) * s.source.buffer.dtype.bytes for s in loads)
        return sum(sizes) * (stages - 1)

    def _scanned(self, loop: For, length: BlockLength, stages: int) -> int:
        """The bytes of blocks that are scanned by products, one of which is multiplied and stored.

        Triangles lie in registers, but for the product that they are made of.
        """
        scan, rows = triangular_scan(loop), length(loop.index.dim)
        if scan is None or not SHORTEST <= rows <= LONGEST:
            return 0
        ones = 2 * rows * SHORTEST * scan.stored.bytes
        stored = _elements(scan.made.tile, length) * scan.store.target.buffer.dtype.bytes
        return self._streamed(loop.body, length, stages + FURTHER + 1) + max(ones, stored)

    def _held(
        self, body: Body, length: BlockLength, stages: int, warps: int, loop: For | None
    ) -> int:
        """The most bytes that the statements of a body hold at one time."""
        body = tuple(_unrolled(body, length))
        loops = [s for s in body if isinstance(s, For | Cascade)]
        inner = [
            self._held(s.body, length, stages, warps, s if isinstance(s, For) else None)
            for s in loops
        ]
        products = [s for s in body if isinstance(s, Contract) and s in self.products]
        is_innermost = loop is not None and not any(isinstance(s, For) for s in loops)
        ahead: dict[Tile, int] = {}
        if loop is not None and products and is_innermost and stages > 1:
            at_once = 2 if _waits(body) else stages
            ahead = self._loaded_ahead(body, length, at_once, warps, loop)
        made_here = {written(s) for s in body}
        kept: dict[tuple[Tile, int], int] = {}
        stores = [s for s in body if isinstance(s, Store)] if loop is not None and products else []
        passing = [_elements(s.tile, length) * s.target.buffer.dtype.bytes for s in stores]
        for product in products:
            roles, dtype = self.products[product]
            in_groups = self._in_groups(product, length, warps)
            is_exact = dtype not in NARROW and self.types.is_exact(product)
            now = 0
            for side, guard in zip((product.left, product.right), product.tail_masked, strict=True):
                size = _elements(side, length) * dtype.bytes
                as_loaded = side in ahead and not guard and self.types.stored(side) is dtype
                lies_so = roles.is_plain and not product.also
                if as_loaded and (lies_so or (dtype in NARROW and not in_groups)):
                    continue
                if in_groups and side is roles.first and _is_held(side, body):
                    continue
                if side in made_here and is_exact:
                    now += size
                else:  # it is there during the whole loop, or while a tensor core still reads it
                    kept[side, dtype.bytes] = size
            passing.append(now)
        most = max([*passing, *inner], default=0)
        return sum(kept.values()) + sum(ahead.values()) + most

    def _in_groups(self, product: Contract, length: BlockLength, warps: int) -> bool:
        """True if groups of four warps multiply 64 rows each, and read operands as they lie."""
        roles, dtype = self.products[product]
        rows = math.prod(length(span.dim) for span in roles.rows)
        return dtype in NARROW and not roles.batch and rows >= GROUPED and warps >= GROUP

    def _loaded_ahead(
        self, body: Body, length: BlockLength, stages: int, warps: int, loop: For
    ) -> dict[Tile, int]:
        """The bytes for the blocks that dots need of each load, including those on their way.

        One more block is in use if groups of warps read it while others arrive. What each step
        loads again is loaded once, before the loop.
        """
        products = [s for s in body if isinstance(s, Contract) and s in self.products]
        needed = _needed([side for s in products for side in (s.left, s.right)], body)
        in_use = {
            side
            for s in products
            if self._in_groups(s, length, warps)
            for side in (s.left, s.right)
            if self.types.stored(side) is self.products[s][1]
        }
        made_ahead: dict[Tile, int] = {}
        for s in body:
            if isinstance(s, Load | Lookup) and s.tile in needed and _varies(s, loop):
                blocks = stages - (s.tile not in in_use)
                size = _elements(s.tile, length) * s.source.buffer.dtype.bytes
                made_ahead[s.tile] = size * blocks
        return made_ahead


def _needed(tiles: Iterable[Tile], body: Body) -> set[Tile]:
    """Some tiles, and all that a body computes them from."""
    found = {*tiles}
    for statement in reversed(body):
        if written(statement) in found:
            found.update(read(statement))
    return found


def _is_held(tile: Tile, body: Body) -> bool:
    """True if a body computes a tile where groups of warps take its rows from: in registers.

    What is loaded for columns, as the weights of a norm, is with other threads.
    """
    makers = [s for s in body if written(s) is tile]
    if not makers or any(isinstance(s, Load | Lookup) for s in makers):
        return False
    sources = _needed([tile], body)
    loaded = [s.tile for s in body if isinstance(s, Load | Lookup) and s.tile in sources]
    multiplies = any(isinstance(s, Contract) and s.tile in sources for s in body)
    return multiplies or all(set(tile.spans) == set(x.spans) for x in loaded)


def _waits(body: Body) -> bool:
    """True if threads wait for what others have stored: then nothing is loaded far ahead."""
    loads = (s for s in body if isinstance(s, Load))
    return any(s.source.buffer.space is not Space.GLOBAL for s in loads)


def _varies(load: Load | Lookup, loop: For) -> bool:
    """True if a load has another block in each step of a loop."""
    return isinstance(load, Lookup) or any(span.at is loop.index for span in load.source.spans)


def _unrolled(body: Body, length: BlockLength) -> Iterator[Statement]:
    """The statements of a body, with those of loops that have one step."""
    for statement in body:
        if isinstance(statement, For) and not _repeats(statement, length):
            yield from _unrolled(statement.body, length)
        else:
            yield statement


def _repeats(loop: For, length: BlockLength) -> bool:
    """True unless a loop is known to have one step."""
    extent = loop.index.dim.axis.extent
    is_free = loop.window is None and loop.share is None
    return not is_free or not isinstance(extent, int) or extent > length(loop.index.dim)


def _elements(tile: Tile, length: BlockLength) -> int:
    return math.prod(-(-length(span.dim) // span.each) for span in tile.spans)
