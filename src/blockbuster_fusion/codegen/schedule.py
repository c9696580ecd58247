"""From a block program to the nest that a printer gets: the passes, in their order."""

from dataclasses import replace

from blockbuster_fusion.codegen.guards import guarded
from blockbuster_fusion.codegen.hoist import hoisted, stored_narrow, summed_in_place
from blockbuster_fusion.codegen.lower import lower_to_nest
from blockbuster_fusion.codegen.nest import Kernel, Nest
from blockbuster_fusion.codegen.rewrite import without_dead
from blockbuster_fusion.codegen.skip import skipping
from blockbuster_fusion.ir.graph import Graph


def scheduled(graph: Graph, name: str = "kernel", *, grid: str = "all") -> Nest:
    """The program as kernels that are ready to be printed."""
    nest = lower_to_nest(graph, name, grid=grid)
    steps = tuple(_finished(s) if isinstance(s, Kernel) else s for s in nest.steps)
    return replace(nest, steps=steps)


def _finished(kernel: Kernel) -> Kernel:
    kernel = stored_narrow(kernel)
    kernel = summed_in_place(kernel)
    kernel = hoisted(kernel)
    kernel = without_dead(kernel)
    return skipping(guarded(kernel))
