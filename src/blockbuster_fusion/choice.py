"""A choice: all decisions about a program before its kernels are made."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.nest.analysis.shared_memory import USUAL_SHARED
from blockbuster_fusion.nest.nest import Nest
from blockbuster_fusion.nest.passes.divide_masked_loops import divide_masked_loops
from blockbuster_fusion.nest.passes.join_grids import join_grids
from blockbuster_fusion.nest.passes.join_rows import join_rows
from blockbuster_fusion.nest.passes.merge_kernels import merge_kernels
from blockbuster_fusion.nest.passes.narrow_operands import narrow_operands
from blockbuster_fusion.nest.passes.once_per_row import once_per_row
from blockbuster_fusion.nest.passes.select_once import select_once
from blockbuster_fusion.nest.passes.share_exponentials import share_exponentials
from blockbuster_fusion.nest.passes.sink import sink
from blockbuster_fusion.nest.passes.start_early import start_early
from blockbuster_fusion.nest.passes.sum_in_products import sum_in_products
from blockbuster_fusion.nest.passes.unroll_short_loops import unroll_short_loops
from blockbuster_fusion.nest.passes.untie_kernels import untie_kernels
from blockbuster_fusion.passes import Observer, Pass, run_passes
from blockbuster_fusion.printers.reserved import kernel_name
from blockbuster_fusion.printers.triton.tiles import fitted
from blockbuster_fusion.schedule.config import Config
from blockbuster_fusion.schedule.defaults import all_tiles, assumed_lengths, default_tiles
from blockbuster_fusion.schedule.schedule import Schedule, each_kernel, scheduled


@dataclass(frozen=True)
class Choice:
    """A snapshot with its tiles and schedule: all decisions before kernels are made."""

    graph: Graph
    snapshot: int
    tiles: Mapping[Dim, int]
    target: str
    name: str
    schedule: Schedule
    unfused: Callable[[], Graph] | None
    """Gives the program before fusion, for arrays without elements."""
    given: frozenset[Dim] = frozenset()
    """The dims whose tiles the caller chose."""
    shared: int = USUAL_SHARED
    """The bytes of shared memory that one program of a kernel may take on the GPU."""
    may_start_early: bool = True
    """False if the GPU ends each kernel before it starts the next."""
    fused: Graph | None = None
    """The snapshot as the rules made it, before storage and safety."""

    @property
    def config(self) -> Config:
        """The point of the schedule space that was chosen."""
        tiles = {dim.label: tile for dim, tile in self.tiles.items()}
        return Config(self.snapshot, tiles, self.schedule)

    def loops(self, observe: Observer | None = None) -> "Loops":
        """The loop nest before tiles and options of launches decide anything."""
        is_gpu = self.target == "cuda"
        name = kernel_name(self.name)
        nest = scheduled(self.graph, name, self.schedule, observe, folds_late=is_gpu)
        nest = SHARING.observed(nest, observe)
        if is_gpu:
            nest = run_passes(BETWEEN, nest, observe)
        after = FOR_ROWS if self.target == "cpu" else ON_A_GPU if is_gpu else ()
        return Loops(nest, run_passes(after, nest, observe))

    def scheduled(
        self, observe: Observer | None = None, loops: "Loops | None" = None
    ) -> tuple[Nest, dict[Dim, int]]:
        """The loop nest, and the tiles of all its dims; `loops` are its own, if they are known."""
        loops = loops or self.loops(observe)
        nest, tiles = loops.finished, all_tiles(loops.nest, self.tiles, self.target)
        if self.target == "cuda":
            sizes = assumed_lengths(self.graph, loops.nest)
            tiles = fitted(loops.nest, tiles, sizes, given=self.given, shared=self.shared)
            nest = merging(tiles).observed(nest, observe)
            nest = joining(self.schedule).observed(nest, observe)
            early = self.schedule.early and self.may_start_early
            nest = starting(early).observed(nest, observe)
        return nest, tiles

    @property
    def mirrored(self) -> "Choice":
        """The choice for a program that reads an array and its transpose."""
        return replace(self, schedule=replace(self.schedule, mirrored=True))

    @property
    def before_fusion(self) -> "Callable[[], Choice] | None":
        """Gives the choice of the program before fusion, with default tiles."""
        unfused = self.unfused
        if unfused is None:
            return None

        def choice() -> Choice:
            graph = unfused()
            tiles = default_tiles(graph, self.target)
            plain = Schedule(self.schedule.grid)  # the rest was chosen for other loops
            made = replace(self, graph=graph, tiles=tiles, unfused=None, schedule=plain)
            return replace(made, given=frozenset())

        return choice


@dataclass(frozen=True)
class Loops:
    """A loop nest for which tiles are chosen."""

    nest: Nest
    """The nest that tiles are fitted to."""
    finished: Nest
    """The same after the passes of its target, which do not depend on tiles."""


SHARING = each_kernel(share_exponentials, "Computes exponentials that are needed twice once.")
FOR_ROWS = (each_kernel(once_per_row, "Computes slow functions of the numbers of a row once."),)
"""The passes of kernels for a CPU, where results of a row stay in the first cache."""

BETWEEN: tuple[Pass[Nest, Nest], ...] = (
    Pass("narrow_operands", "Stores what products round in 16 bits, on a GPU.", narrow_operands),
    Pass("join_rows", "Goes through short rows again rather than in a second kernel.", join_rows),
    Pass("untie_kernels", "Gives kernels that read others' results own dims.", untie_kernels),
)
"""The passes over arrays between kernels of a GPU."""
ON_A_GPU = (
    each_kernel(sum_in_products, "Sums over all axes of products at once."),
    each_kernel(divide_masked_loops, "Applies masks only to the blocks that they divide."),
    each_kernel(sink, "Computes behind loops with products what is needed after them alone."),
    each_kernel(unroll_short_loops, "Loads all blocks of short loops before they are used."),
    each_kernel(select_once, "Selects factors of rows rather than their products."),
)
"""Passes of kernels for a GPU: masks take as long as exponentials, and loops wait for memory."""


def merging(tiles: Mapping[Dim, int]) -> Pass[Nest, Nest]:
    """The pass that puts small kernels of a GPU together."""
    doc = "Merges small neighbouring kernels with equal grids, on a GPU."
    return Pass("merge_kernels", doc, lambda nest: merge_kernels(nest, tiles))


def joining(schedule: Schedule) -> Pass[Nest, Nest]:
    """The pass that has independent kernels of a GPU share launches."""

    def join(nest: Nest) -> Nest:
        return join_grids(nest) if schedule.together else nest

    return Pass("join_grids", "Launches independent kernels as one, on a GPU, if asked for.", join)


def starting(early: bool) -> Pass[Nest, Nest]:
    """The pass that has kernels of a GPU start before those before them have ended."""
    doc = "Has kernels start before the one before them has ended, on a GPU, if asked for."
    return Pass("start_early", doc, lambda nest: start_early(nest) if early else nest)
