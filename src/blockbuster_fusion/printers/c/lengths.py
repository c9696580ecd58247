"""The names of a C kernel, and the lengths of its axes, dims and blocks."""

import math
from collections.abc import Mapping

from blockbuster_fusion.ir.axis import Axis, Dim
from blockbuster_fusion.ir.tiling import DEFAULT_TILE
from blockbuster_fusion.naming import Scope
from blockbuster_fusion.nest.analysis.few_rows import FEW
from blockbuster_fusion.nest.nest import Buffer, Index, Kernel, Span, Tile
from blockbuster_fusion.printers.c.tile_facts import block_names
from blockbuster_fusion.printers.reserved import C


class Lengths:
    """The names of arrays, tiles and indices of one kernel, and lengths as texts."""

    def __init__(self, kernel: Kernel, tiles: Mapping[Dim, int]) -> None:
        self.tiles, self.id = tiles, Scope(C)
        for buffer in kernel.buffers:
            self.name(buffer)  # arrays first: theirs are the names to keep
        self.blocks = block_names([d for d in kernel.dims if d.packed and not d.unit])

    def name(self, thing: Buffer | Tile | Index) -> str:
        return self.id(thing, thing.name)

    def extent(self, axis: Axis) -> str:
        """The length of an axis."""
        extent = axis.extent
        return str(extent) if isinstance(extent, int) else self.id(extent, extent.name)

    def block(self, dim: Dim) -> str:
        """The length of the blocks of a dim; the last one may be shorter."""
        if dim.unit:
            return self.extent(dim.axis)
        return self.id(("block", dim), f"BLOCK_{self.blocks[dim]}") if dim.packed else "1"

    def count(self, dim: Dim) -> str:
        """The number of blocks of a dim."""
        if dim.unit:
            return "1"
        extent = self.extent(dim.axis)
        return f"BLOCKS({extent}, {self.block(dim)})" if dim.packed else extent

    def length(self, span: Span) -> str:
        """The length of this block."""
        if not span.dim.packed:
            return "1"
        if span.dim.unit:
            return self.extent(span.dim.axis)
        if isinstance(span.at, Index):
            return self.id(("length", span.at), f"{self.name(span.at)}_len")
        return self.id(span, f"block_{self.blocks[span.dim]}_{span.at}")

    def longest(self, span: Span) -> float:
        """The length of the longest block of a span; infinite if only a call tells."""
        extent = span.dim.axis.extent
        whole = extent if isinstance(extent, int) else math.inf
        if span.dim.unit:
            return whole
        return min(whole, self.tiles.get(span.dim, DEFAULT_TILE)) if span.dim.packed else 1

    def can_be_few(self, span: Span) -> bool:
        """True if some block of a span may have so few elements as products with few rows have."""
        whole, block = span.dim.axis.extent, self.longest(span)
        return not isinstance(whole, int) or (whole - 1) % max(block, 1) < FEW

    def start(self, span: Span) -> str:
        """The position of the first element of a block along its axis."""
        if span.dim.unit or span.at == 0:
            return "0"
        at = self.name(span.at) if isinstance(span.at, Index) else str(span.at)
        return f"{at} * {self.block(span.dim)}" if span.dim.packed else at
