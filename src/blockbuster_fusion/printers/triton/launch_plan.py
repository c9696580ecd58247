"""Launches of Triton kernels as numbers: blocks, grids and constants, from sizes and tiles."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from blockbuster_fusion.errors import BadExtent, BadTile
from blockbuster_fusion.ir.axis import Axis, Dim
from blockbuster_fusion.nest.analysis.described_blocks import (
    described_blocks,
    described_results,
)
from blockbuster_fusion.nest.analysis.joined_products import joined_products
from blockbuster_fusion.nest.analysis.launch_order import USUAL_GROUP, LaunchOrder
from blockbuster_fusion.nest.analysis.shared_memory import USUAL_SHARED, SharedMemory
from blockbuster_fusion.nest.analysis.spread_sums import spread_over, spread_sums
from blockbuster_fusion.nest.analysis.thread_blocks import sharing
from blockbuster_fusion.nest.nest import (
    Along,
    Body,
    Buffer,
    BufferAxis,
    Cascade,
    Contract,
    For,
    Kernel,
    Launchable,
    Statement,
    Tile,
    written,
)
from blockbuster_fusion.nest.passes.cascade_sums import FEW, run_length
from blockbuster_fusion.printers.triton.names import ParameterNames
from blockbuster_fusion.schedule.gpu import stream_warps
from blockbuster_fusion.schedule.schedule import left_out

SMALLEST, USUAL = 16, 64
"""The shortest block that a dot takes, and the default length of a block."""
OPTIONS = {"num_stages": 3, "group": USUAL_GROUP}
SHORTEST_RUN = 16
"""The length of runs of a loop with few blocks."""
FEW_DOTS = 512
"""The most blocks that are summed without partial sums if they come from dots: such loops are
faster without, and the sums within a block are accurate."""
FEW_WARPS, MOST_WARPS = 4, 8
MOST_ACCUMULATED = 72
"""The most numbers that a thread of four warps accumulates; beyond that there are eight warps."""


def extent(axis: Axis, sizes: Mapping[str, int]) -> int:
    """The length of an axis."""
    if isinstance(axis.extent, int):
        return axis.extent
    if axis.extent.name not in sizes:
        raise BadExtent(name=axis.extent.name, problem="its size was not given")
    return sizes[axis.extent.name]


def block_length(dim: Dim, sizes: Mapping[str, int], tiles: Mapping[Dim, int]) -> int:
    """The length of the blocks of a dim: a power of two, and long enough for a dot."""
    if not dim.packed:
        return 1
    if dim.unit or dim not in tiles:
        whole = max(SMALLEST, 1 << (extent(dim.axis, sizes) - 1).bit_length())
        return whole if dim.unit else min(whole, USUAL)
    chosen = tiles[dim]
    if chosen < 1 or chosen & (chosen - 1):
        raise BadTile(name=dim.label, problem=f"{chosen} is no power of two")
    return chosen


def block_count(dim: Dim, sizes: Mapping[str, int], tiles: Mapping[Dim, int]) -> int:
    """The number of blocks of a dim."""
    return -(-extent(dim.axis, sizes) // block_length(dim, sizes, tiles))


def axis_length(axis: BufferAxis, sizes: Mapping[str, int], tiles: Mapping[Dim, int]) -> int:
    """The number of entries of a buffer along an axis."""
    match axis.along:
        case Along.AXIS:
            return extent(axis.dim.axis, sizes)
        case Along.BLOCKS:
            return block_count(axis.dim, sizes, tiles)
        case Along.BLOCK:
            return block_length(axis.dim, sizes, tiles)
        case Along.PADDED:
            return block_count(axis.dim, sizes, tiles) * block_length(axis.dim, sizes, tiles)


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """The parameters of a launch that do not depend on the tensors."""

    grid: tuple[int, int, int]
    scratch: tuple[tuple[Buffer, tuple[int, ...]], ...]
    constants: Mapping[str, int | bool]
    options: Mapping[str, int]
    matrices: Mapping[Buffer, tuple[tuple[int, ...], tuple[int, ...]]]
    """The shapes and blocks of arrays that descriptors can load, if strides allow it."""
    joined: tuple[tuple[Buffer, Buffer], ...] = ()
    """Those among them that one descriptor can load at a time."""


def options_of(
    launched: Launchable, kernels: Sequence[Kernel], options: Mapping[str, int]
) -> dict[str, int]:
    """The options of one launch of a nest."""
    without = {f"num_{name}" for name in left_out(launched, kernels)}
    return {name: number for name, number in options.items() if name not in without}


class KernelPlanner:
    """Plans the programs of one kernel: how many there are, and what each of them needs.

    `shared` is the shared memory that one program may take, in bytes.
    """

    def __init__(self, kernel: Kernel, shared: int = USUAL_SHARED) -> None:
        self.kernel, self.shared = kernel, shared
        self.memory = SharedMemory(kernel)

    def programs(self, sizes: Mapping[str, int], tiles: Mapping[Dim, int]) -> int:
        """The number of blocks of the grid."""
        return math.prod(block_count(index.dim, sizes, tiles) for index in self.kernel.grid)

    def group(self, sizes: Mapping[str, int], tiles: Mapping[Dim, int]) -> int:
        """The blocks of rows, or the heads, whose programs run together."""
        return self.order.group(lambda dim: block_length(dim, sizes, tiles))

    def warps(
        self, sizes: Mapping[str, int], tiles: Mapping[Dim, int], short: Collection[Dim]
    ) -> int:
        """The number of warps: four, or eight if the accumulators of four would spill registers.

        The loops over the dims in `short` have no partial sums. Without products, each thread has a
        few elements of the largest tile.
        """
        if not self.kernel.multiplies:
            made = {tile for s in self.kernel.statements if (tile := written(s)) is not None}
            blocks = [[block_length(x.dim, sizes, tiles) for x in tile.spans] for tile in made]
            largest = max(map(math.prod, blocks), default=1)
            counts = (block_count(index.dim, sizes, tiles) for index in self.kernel.grid)
            return stream_warps(largest, math.prod(counts), sharing(self.kernel))
        total = sum(
            math.prod(block_length(span.dim, sizes, tiles) for span in tile.spans)
            for tile in self.accumulators(short)
        )
        total += sum(
            math.prod(block_length(span.dim, sizes, tiles) for span in spread_over(s))
            for s in self.spread
        )
        return MOST_WARPS if total > MOST_ACCUMULATED * 32 * FEW_WARPS else FEW_WARPS

    def stages(
        self, sizes: Mapping[str, int], tiles: Mapping[Dim, int], warps: int, most: int
    ) -> int:
        """The number of stages: as many as wanted, or fewer if shared memory does not suffice."""
        lengths = {dim: block_length(dim, sizes, tiles) for dim in self.kernel.dims}
        for stages in range(most, 1, -1):
            if self.memory.estimate(lengths.__getitem__, stages, warps) <= self.shared:
                return stages
        return 1

    def accumulators(self, short: Collection[Dim]) -> list[Tile]:
        """The tiles that are written more than once, if the loops over some dims are short."""
        makes = [made for s in _running(self.kernel.body, short) if (made := written(s))]
        return [tile for tile in dict.fromkeys(makes) if makes.count(tile) > 1]

    @cached_property
    def spread(self) -> tuple[Contract, ...]:
        """The products whose sums are spread over a block."""
        loops = (s for s in self.kernel.statements if isinstance(s, For))
        return tuple(s for loop in loops for s in spread_sums(loop))

    @cached_property
    def long_dims(self) -> frozenset[Dim]:
        """The dims of loops that may have many blocks."""
        found = (s.index.dim for s in self.kernel.statements if isinstance(s, Cascade))
        return frozenset(found)

    @cached_property
    def parts(self) -> dict[Dim, int]:
        """The programs that share all loops over a dim that have partial sums."""
        made: dict[Dim, int] = {}
        for loop in (s for s in self.kernel.statements if isinstance(s, For)):
            if any(isinstance(s, Cascade) for s in loop.body):
                parts = loop.share.parts if loop.share else 1
                made[loop.index.dim] = min(parts, made.get(loop.index.dim, parts))
        return made

    @cached_property
    def few(self) -> int:
        """The most blocks that are summed without partial sums."""
        return FEW_DOTS if self.order.multiplies else FEW

    @cached_property
    def order(self) -> LaunchOrder:
        return LaunchOrder(self.kernel)


class LaunchPlanner:
    """Plans the launches of a kernel, or of several at a time: names and numbers of parameters.

    Programs of all kernels have as many warps as the one that needs most of them, and the stages
    that all have the shared memory for.
    """

    def __init__(self, launched: Launchable, shared: int = USUAL_SHARED) -> None:
        self.launched, self.shared = launched, shared
        self.kernels = tuple(KernelPlanner(kernel, shared) for kernel in launched.kernels)
        self.names = ParameterNames(launched)
        self.buffers = launched.global_buffers

    def plan(
        self, sizes: Mapping[str, int], tiles: Mapping[Dim, int], options: Mapping[str, int]
    ) -> LaunchPlan:
        warps = options.get("num_warps") or self.warps(sizes, tiles)
        wanted = options.get("num_stages") or OPTIONS["num_stages"]
        stages = self.stages(sizes, tiles, warps, wanted)
        constants = self.constants(sizes, tiles)
        constants["STAGES"] = stages
        for kernel in self.kernels:
            length = options.get("group") or kernel.group(sizes, tiles)
            constants[self.names.groups[kernel.kernel.name]] = length
        programs = sum(kernel.programs(sizes, tiles) for kernel in self.kernels)
        most = self.launched.programs if isinstance(self.launched, Kernel) else 0
        if most:
            programs = constants["PROGRAMS"] = min(programs, most)
        chosen = {**options, "num_warps": warps, "num_stages": stages}
        chosen.pop("group", None)
        if self.launched.early:
            chosen["launch_pdl"] = True
        scratch, matrices = self.scratch_shapes(sizes, tiles), self.shapes_and_blocks(sizes, tiles)
        pairs = joined_products(self.launched) if isinstance(self.launched, Kernel) else ()
        joined = tuple(pair.buffers for pair in pairs)
        return LaunchPlan((programs, 1, 1), scratch, constants, chosen, matrices, joined)

    def scratch_shapes(
        self, sizes: Mapping[str, int], tiles: Mapping[Dim, int]
    ) -> tuple[tuple[Buffer, tuple[int, ...]], ...]:
        """The shapes of arrays that kernels have for themselves, with a part for each program."""
        return tuple(
            (b, (kernel.programs(sizes, tiles), *(axis_length(a, sizes, tiles) for a in b.axes)))
            for kernel in self.kernels
            for b in kernel.kernel.buffers
            if b in self.names.copies
        )

    def shapes_and_blocks(
        self, sizes: Mapping[str, int], tiles: Mapping[Dim, int]
    ) -> dict[Buffer, tuple[tuple[int, ...], tuple[int, ...]]]:
        """The shapes and blocks of arrays that are loaded, or stored in halves, by descriptors.

        Several kernels of one launch have none: their blocks of an array may differ.
        """
        if not isinstance(self.launched, Kernel):
            return {}
        operands, results = described_blocks(self.launched), described_results(self.launched)
        found: dict[Buffer, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        for buffer, dims in (*operands.items(), *results.items()):
            *rows, columns = (block_length(dim, sizes, tiles) for dim in dims)
            last = columns // 2 if buffer in results else columns
            shape = tuple(axis_length(axis, sizes, tiles) for axis in buffer.axes)
            found[buffer] = (shape, (*rows, last))
        return found

    def warps(self, sizes: Mapping[str, int], tiles: Mapping[Dim, int]) -> int:
        """The number of warps of all programs."""
        short = {dim for dim in self.long_dims if not self.run(dim, sizes, tiles)}
        return max(kernel.warps(sizes, tiles, short) for kernel in self.kernels)

    def stages(
        self, sizes: Mapping[str, int], tiles: Mapping[Dim, int], warps: int, most: int
    ) -> int:
        """The number of stages of all programs."""
        return min(kernel.stages(sizes, tiles, warps, most) for kernel in self.kernels)

    @cached_property
    def long_dims(self) -> frozenset[Dim]:
        """The dims of loops that may have many blocks."""
        return frozenset[Dim]().union(*(kernel.long_dims for kernel in self.kernels))

    def run(self, dim: Dim, sizes: Mapping[str, int], tiles: Mapping[Dim, int]) -> int:
        """The number of blocks of a partial sum along a dim; 0 if all go into one.

        If the length of the dim differs between calls, there are partial sums also of few blocks,
        but for dots: a kernel need not be compiled for each length.
        """
        blocks = -(-block_count(dim, sizes, tiles) // self.parts.get(dim, 1))
        found = run_length(blocks, self.few)
        is_always = dim in self.names.run_lengths and self.few == FEW
        return found or (SHORTEST_RUN if is_always else 0)

    @cached_property
    def parts(self) -> dict[Dim, int]:
        """The programs that share all loops over a dim that have partial sums."""
        dims = {dim for kernel in self.kernels for dim in kernel.parts}
        return {dim: min(k.parts[dim] for k in self.kernels if dim in k.parts) for dim in dims}

    @cached_property
    def few(self) -> int:
        """The most blocks that are summed without partial sums."""
        return min(kernel.few for kernel in self.kernels)

    def constants(
        self, sizes: Mapping[str, int], tiles: Mapping[Dim, int]
    ) -> dict[str, int | bool]:
        """Sizes, blocks and runs by the names of their parameters."""
        made: dict[str, int | bool] = {}
        for dim in self.long_dims:
            run = self.run(dim, sizes, tiles)
            made[self.names.runs[dim]] = run
            if dim in self.names.run_lengths:
                made[self.names.runs[dim]] = min(run, 1)
                made[self.names.run_lengths[dim]] = run or SHORTEST_RUN
        for symbol, name in self.names.sizes.items():
            made[name] = extent(Axis(symbol.name, symbol), sizes)
        for dim, name in self.names.blocks.items():
            length = block_length(dim, sizes, tiles)
            made[name] = length
            long = extent(dim.axis, sizes)
            made[self.names.evens[dim]] = long > 0 and long % length == 0
        return made


def _running(body: Body, short: Collection[Dim]) -> Iterator[Statement]:
    """The statements of a body that run if the loops over some dims are short."""
    for statement in body:
        if isinstance(statement, For):
            yield from _running(statement.body, short)
        elif not isinstance(statement, Cascade):
            yield statement
        elif statement.index.dim not in short:
            yield from _running(statement.body, short)
