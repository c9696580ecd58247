"""The sizes that the figures of a page are for: lengths of axes, and of their blocks."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from blockbuster_fusion.cost.counters import Traffic
from blockbuster_fusion.cost.meter import meter
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.tiling import DEFAULT_TILE, given_extents


@dataclass(frozen=True)
class Sizes:
    """Lengths by symbol or axis, and the tiles that kernels run with, by the labels of dims."""

    lengths: Mapping[str, int]
    tiles: Mapping[str, int] = field(default_factory=dict)
    """The tiles of kernels that run; without any, blocks have the default size."""

    def traffic(self, graph: Graph) -> Traffic:
        """The cost of a program at these sizes."""
        loops = (dim for dim in graph.dims if dim.packed and not dim.unit and not dim.is_free)
        return meter(graph, self.lengths, {dim: self.tile(dim) for dim in loops})

    def tile(self, dim: Dim) -> int:
        """The tile of a dim: its own, or that of another loop over its axis."""
        along = (tile for label, tile in self.tiles.items() if label.startswith(f"{dim.name}."))
        return self.tiles.get(dim.label, next(along, DEFAULT_TILE))

    def blocks(self, program: Graph, dim: Dim) -> int:
        """The number of blocks of a dim of a program."""
        if dim.unit:
            return 1
        axes = sorted({each.axis for each in program.dims}, key=str)
        length = given_extents(axes, self.lengths).of(dim.axis)
        return -(-length // self.tile(dim)) if dim.packed else length

    def words(self, graph: Graph) -> str:
        """The blocks of a program in words: `blocks of 128 along M, as it runs`."""
        if not self.tiles:
            return f"blocks of {DEFAULT_TILE}"
        loops = {dim.label: dim for dim in graph.dims if dim.label in self.tiles}
        several = [
            f"{self.tiles[label]} along {dim.name}"
            for label, dim in sorted(loops.items())
            if self.blocks(graph, dim) > 1
        ]
        if not several:
            return "one block of each axis, as it runs"
        return f"blocks of {', '.join(dict.fromkeys(several))}, as it runs"
