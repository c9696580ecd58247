"""Running sums down the rows of 16-bit blocks: products with a triangle of ones.

To scan a block along its rows, the threads of a GPU would wait for each other several times. Tensor
cores sum the rows up to each one, and all rows for the block after it, in two products. These are
exact, as one operand is 0 or 1. But 0 times an infinity is NaN, so that sums which are not finite
are scanned again.
"""

from dataclasses import dataclass

from blockbuster_fusion.ir.combiner import ADD
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.analysis.product_types import NARROW
from blockbuster_fusion.nest.nest import Compute, For, Last, Load, RunningFold, Store, Tile

SHORTEST, LONGEST = 16, 128
"""The rows of a block, and the least of its columns: tensor cores take no fewer, and a triangle of
more rows does not fit beside the blocks."""
FURTHER = 2
"""The stages beside the usual ones: there are few programs, and their blocks are small."""


@dataclass(frozen=True)
class TriangularScan:
    """The statements of a loop that scans blocks of rows, as they follow each other."""

    load: Load
    made: Compute
    store: Store
    carry: Tile

    @property
    def stored(self) -> DType:
        """The dtype of the blocks in memory."""
        return self.load.source.buffer.dtype


def triangular_scan(loop: For) -> TriangularScan | None:
    """The scan of a loop that sums 16-bit blocks down their rows, and does nothing else."""
    if loop.gathered or loop.window is not None or len(loop.carried) != 1:
        return None
    match loop.body:
        case (Load() as load, RunningFold() as scan, Compute() as made, Store() as store, Last()):
            pass
        case _:
            return None
    ((combiner, carry),) = loop.carried
    blocks = (load.tile.spans, scan.tile.spans, made.tile.spans)
    is_down = len(load.tile.spans) == 2 and scan.span == load.tile.spans[0]
    is_plain = (
        combiner is ADD
        and scan.operand is load.tile
        and made.operands == (carry, scan.tile)
        and store.tile is made.tile
        and store.places is None
        and not store.atomic
        and len({*blocks}) == 1
        and scan.span.at is loop.index
    )
    is_narrow = {load.source.buffer.dtype, store.target.buffer.dtype} <= {*NARROW}
    if not (is_down and is_plain and is_narrow and made.tile.dtype is DType.float32):
        return None
    return TriangularScan(load, made, store, carry)
