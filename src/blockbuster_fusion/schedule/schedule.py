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


@dataclass(frozen=True, slots=True)
class Schedule:
    """How the loops of a program are run."""

    grid: Literal["all", "outer"] = "all"
    """Of nested parallel loops, which are the grid: all, which gives the most programs; or the
    outer ones down to the first that has blocks, so that nothing is computed twice."""
    apart: bool = False
    """Whether a kernel makes what a grid would repeat (nest/passes/split_prologue.py)."""
    split: Mapping[str, int] = field(default_factory=dict)
    """Axes whose reductions are shared among so many programs (nest/passes/split_reduction.py)."""
    atomic: bool = False
    """Whether split sums are added up atomically rather than by a second kernel."""


def scheduled(graph: Graph, name: str = "kernel", schedule: Schedule | None = None) -> Nest:
    """The program as kernels that are ready to be printed."""
    schedule = schedule or Schedule()
    nest = lower_to_nest(
        split_prologue(graph) if schedule.apart else graph, name, grid=schedule.grid
    )
    nest = _each(nest, _finished)
    for axis, parts in schedule.split.items():
        nest = split_reduction(nest, axis, parts, atomic=schedule.atomic)
    nest = _each(nest, cascade_sums)
    verify_nest(nest)
    return nest


def _each(nest: Nest, change: Callable[[Kernel], Kernel]) -> Nest:
    steps = tuple(change(step) if isinstance(step, Kernel) else step for step in nest.steps)
    return replace(nest, steps=steps)


def _finished(kernel: Kernel) -> Kernel:
    kernel = fold_casts(kernel)
    kernel = accumulate_in_place(kernel)
    kernel = hoist(kernel)
    kernel = remove_dead_code(kernel)
    kernel = tail_masks(kernel)
    return skip_masked_blocks(kernel)
