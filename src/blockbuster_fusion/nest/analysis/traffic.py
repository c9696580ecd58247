"""The memory traffic of a kernel."""

import math

from blockbuster_fusion.ir.tiling import Tiling
from blockbuster_fusion.nest.nest import Buffer, Launchable, Space, Store, accesses, is_placed
from blockbuster_fusion.nest.shapes import buffer_shape


def traffic(kernel: Launchable, tiling: Tiling) -> tuple[int, int]:
    """The bytes of the arrays in memory that a kernel reads, and of those that it writes."""
    read, written = traffic_by_array(kernel, tiling)
    return sum(read.values()), sum(written.values())


def traffic_by_array(
    kernel: Launchable, tiling: Tiling
) -> tuple[dict[Buffer, int], dict[Buffer, int]]:
    """The bytes of each array in memory that a kernel reads, and of each that it writes."""
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
    return read, written
