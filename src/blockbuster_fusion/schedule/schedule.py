"""From a block program to the nest that a printer gets: the passes, in their order."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.nest.lower import lower_to_nest
from blockbuster_fusion.nest.nest import Kernel, Nest
from blockbuster_fusion.nest.passes.cascade_sums import cascaded
from blockbuster_fusion.nest.passes.hoist import hoisted, stored_narrow, summed_in_place
from blockbuster_fusion.nest.passes.skip_masked_blocks import skipping
from blockbuster_fusion.nest.passes.split_prologue import apart
from blockbuster_fusion.nest.passes.split_reduction import split
from blockbuster_fusion.nest.passes.tail_masks import guarded
from blockbuster_fusion.nest.rewrite import without_dead
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
    nest = lower_to_nest(apart(graph) if schedule.apart else graph, name, grid=schedule.grid)
    nest = _each(nest, _finished)
    for axis, parts in schedule.split.items():
        nest = split(nest, axis, parts, atomic=schedule.atomic)
    nest = _each(nest, cascaded)
    verify_nest(nest)
    return nest


def _each(nest: Nest, change: Callable[[Kernel], Kernel]) -> Nest:
    steps = tuple(change(step) if isinstance(step, Kernel) else step for step in nest.steps)
    return replace(nest, steps=steps)


def _finished(kernel: Kernel) -> Kernel:
    kernel = stored_narrow(kernel)
    kernel = summed_in_place(kernel)
    kernel = hoisted(kernel)
    kernel = without_dead(kernel)
    kernel = guarded(kernel)
    return skipping(kernel)
