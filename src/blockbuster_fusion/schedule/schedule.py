"""From a block program to the nest that a printer gets: the passes, in their order."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.nest.lower import lower_to_nest
from blockbuster_fusion.nest.nest import Kernel, Nest
from blockbuster_fusion.nest.passes.accumulate_in_place import accumulate_in_place
from blockbuster_fusion.nest.passes.cascade_sums import cascade_sums
from blockbuster_fusion.nest.passes.fold_casts import fold_casts
from blockbuster_fusion.nest.passes.hoist import hoist
from blockbuster_fusion.nest.passes.remove_dead_code import remove_dead_code
from blockbuster_fusion.nest.passes.skip_masked_blocks import skip_masked_blocks
from blockbuster_fusion.nest.passes.split_prologue import split_prologue
from blockbuster_fusion.nest.passes.split_reduction import split_reduction
from blockbuster_fusion.nest.passes.tail_masks import tail_masks
from blockbuster_fusion.nest.verify import verify_nest
from blockbuster_fusion.passes import Observer, Pass, run_passes


@dataclass(frozen=True, slots=True)
class Schedule:
    """Options of the passes that turn a block program into kernels."""

    grid: Literal["all", "outer"] = "all"
    """The parallel loops that become the grid. With "all", every nested parallel loop is in the
    grid, which gives the most programs. With "outer", the grid ends with the first loop over
    blocks, so that nothing is computed twice."""
    apart: bool = False
    """True to compute a prologue in a kernel of its own (nest/passes/split_prologue.py)."""
    split: Mapping[str, int] = field(default_factory=dict, hash=False)
    """The number of programs that share each reduction over an axis
    (nest/passes/split_reduction.py)."""
    atomic: bool = False
    """True to add up split sums atomically rather than in a second kernel."""
    warps: int | None = None
    """The warps of a program on a GPU; by default, as many as its accumulators need."""
    stages: int | None = None
    """The stages of pipelined loops on a GPU; by default, as many as shared memory holds."""
    group: int | None = None
    """The blocks of rows whose programs run together on a GPU, so that they share columns."""
    threads: int | None = None
    """The threads of kernels on a CPU; by default, those of the call of `compile`."""

    @property
    def launch(self) -> dict[str, int]:
        """The options of a launch of a Triton kernel."""
        given = {"num_warps": self.warps, "num_stages": self.stages, "group": self.group}
        return {name: number for name, number in given.items() if number is not None}


def scheduled(
    graph: Graph,
    name: str = "kernel",
    schedule: Schedule | None = None,
    observe: Observer | None = None,
) -> Nest:
    """The program as kernels that are ready to be printed."""
    schedule = schedule or Schedule()
    graph = run_passes(graph_passes(schedule), graph, observe)
    nest = lowering(name, schedule).observed(graph, observe)
    nest = run_passes(nest_passes(schedule), nest, observe)
    verify_nest(nest)
    return nest


def graph_passes(schedule: Schedule) -> tuple[Pass[Graph, Graph], ...]:
    """The passes over the block program."""

    def prologue(graph: Graph) -> Graph:
        return split_prologue(graph) if schedule.apart else graph

    doc = "Computes a prologue that a grid would repeat in a kernel of its own, if asked for."
    return (Pass("split_prologue", doc, prologue),)


def lowering(name: str, schedule: Schedule) -> Pass[Graph, Nest]:
    """The pass from the block program to loop nests."""

    def lower(graph: Graph) -> Nest:
        return lower_to_nest(graph, name, grid=schedule.grid)

    return Pass("lower_to_nest", "Turns maps into grids and loops over tiles.", lower)


def nest_passes(schedule: Schedule) -> tuple[Pass[Nest, Nest], ...]:
    """The passes over loop nests, in order."""

    def split(nest: Nest) -> Nest:
        for axis, parts in schedule.split.items():
            nest = split_reduction(nest, axis, parts, atomic=schedule.atomic)
        return nest

    return (
        _each_kernel(fold_casts, "Folds casts into loads and stores."),
        _each_kernel(accumulate_in_place, "Has contractions add straight into accumulators."),
        _each_kernel(hoist, "Moves loads and what follows from them out of loops."),
        _each_kernel(remove_dead_code, "Removes statements whose tile is not read."),
        _each_kernel(tail_masks, "Masks the tail of a last block only where it is not neutral."),
        _each_kernel(skip_masked_blocks, "Narrows loops to the blocks that a mask leaves."),
        Pass("split_reduction", "Shares reductions among programs, if asked for.", split),
        _each_kernel(cascade_sums, "Gathers the sums of long loops in runs."),
    )


def _each_kernel(change: Callable[[Kernel], Kernel], doc: str) -> Pass[Nest, Nest]:
    """The pass that changes each kernel of a nest; it has the name of the function."""

    def run(nest: Nest) -> Nest:
        steps = tuple(change(step) if isinstance(step, Kernel) else step for step in nest.steps)
        return replace(nest, steps=steps)

    return Pass(change.__name__, doc, run)
