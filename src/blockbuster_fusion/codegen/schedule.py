"""From a block program to the nest that a printer gets: the passes, in their order."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from blockbuster_fusion.codegen.apart import apart
from blockbuster_fusion.codegen.cascade import cascaded
from blockbuster_fusion.codegen.guards import guarded
from blockbuster_fusion.codegen.hoist import hoisted, stored_narrow, summed_in_place
from blockbuster_fusion.codegen.lower import lower_to_nest
from blockbuster_fusion.codegen.nest import Kernel, Nest
from blockbuster_fusion.codegen.rewrite import without_dead
from blockbuster_fusion.codegen.skip import skipping
from blockbuster_fusion.codegen.split import split
from blockbuster_fusion.codegen.stages import staged
from blockbuster_fusion.codegen.verify import verify_nest
from blockbuster_fusion.ir.graph import Graph


@dataclass(frozen=True, slots=True)
class Schedule:
    """How the loops of a program are run."""

    grid: Literal["all", "outer"] = "all"
    """Of nested parallel loops, which are the grid: all, which gives the most programs; or the
    outer ones down to the first that has blocks, so that nothing is computed twice."""
    apart: bool = False
    """Whether what stands between the loops of a grid is a kernel of its own (codegen/apart.py)."""
    split: Mapping[str, int] = field(default_factory=dict)
    """Axes whose reductions are shared out, each among so many programs (codegen/split.py)."""
    atomic: bool = False
    """Whether split sums are added up atomically rather than by a second kernel."""
    stages: int = 1
    """How many blocks of a load are in flight at a time (codegen/stages.py)."""


def scheduled(graph: Graph, name: str = "kernel", schedule: Schedule | None = None) -> Nest:
    """The program as kernels that are ready to be printed."""
    schedule = schedule or Schedule()
    nest = lower_to_nest(apart(graph) if schedule.apart else graph, name, grid=schedule.grid)
    nest = _each(nest, _finished)
    for axis, parts in schedule.split.items():
        nest = split(nest, axis, parts, atomic=schedule.atomic)
    nest = _each(nest, cascaded)
    nest = _each(nest, lambda kernel: staged(kernel, schedule.stages))
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
