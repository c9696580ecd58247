"""The memory traffic of a kernel, and bytes in words."""

import math

from blockbuster_fusion.ir.tiling import Tiling
from blockbuster_fusion.nest.nest import Buffer, Launchable, Space, Store, accesses, is_placed
from blockbuster_fusion.nest.shapes import buffer_shape


def traffic(kernel: Launchable, tiling: Tiling) -> tuple[int, int]:
    """The bytes of the arrays in memory that a kernel reads, and of those that it writes."""
    read: dict[Buffer, int] = {}
    written: dict[Buffer, int] = {}
    for statement in kernel.statements:
        for access in accesses(statement):
            buffer = access.buffer
            if buffer.space is not Space.GLOBAL:
                continue
            count = math.prod(buffer_shape(buffer, tiling))
            if is_placed(statement):
                spans = statement.tile.spans
                count = min(count, math.prod(tiling.extents.of(s.dim.axis) for s in spans))
            kept = written if isinstance(statement, Store) else read
            kept[buffer] = max(kept.get(buffer, 0), count * buffer.dtype.bytes)
    return sum(read.values()), sum(written.values())


def amount(count: int) -> str:
    """Bytes in a unit that leaves one to four digits."""
    number = float(count)
    for unit in ("B", "KB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.4g} GB"
