"""`bb.plan` of a PyTorch model: the compiled graphs as plain data, with the reasons."""

from collections.abc import Mapping
from typing import Any

from blockbuster_fusion.plans.plan import Division, GraphPlan, Plan, SizePlan
from blockbuster_fusion.progress import doing
from blockbuster_fusion.torch.backend import options_from
from blockbuster_fusion.torch.compiled_graph import CompiledGraph
from blockbuster_fusion.torch.groups import distinct_names
from blockbuster_fusion.torch.machines import as_current
from blockbuster_fusion.torch.observer import observed
from blockbuster_fusion.torch.options import Options, device_of
from blockbuster_fusion.torch.planned.steps import PlannedGraph
from blockbuster_fusion.torch.planned.stored import stored_arrays
from blockbuster_fusion.version import __version__


@doing("planning the model")
def plan(
    model: Any,
    *inputs: Any,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    **named: Any,
) -> Plan:
    """The plan of a model, a function or an exported program, which is compiled and run once."""
    found = observed("plan", model, inputs, named, mode=mode, options=options, dynamic=dynamic)
    chosen = options_from(mode, options)
    return plan_of(found.graphs, chosen, found.graph_breaks)


def plan_of(
    graphs: tuple[CompiledGraph, ...],
    options: Options,
    graph_breaks: tuple[str, ...] = (),
    seconds: Mapping[int, float] | None = None,
) -> Plan:
    """The plan by which compiled graphs run.

    `seconds` are times within the model, by the ids of parts and of nodes that PyTorch runs.
    """
    ranged = [own for graph in graphs for own in graph.ranged]
    names = distinct_names(f for graph in ranged for f in graph.fused)
    planned = {id(graph): PlannedGraph(graph, names, options, seconds) for graph in ranged}
    nodes = [n for x in planned.values() for n in x.analysis.module.graph.nodes]
    targets = [x.target for x in planned.values()]
    with as_current(device_of(nodes)):
        machines = [x.machine.name for x in planned.values() if x.machine is not None]
        return Plan(
            __version__,
            targets[0] if targets else "cpu",
            machines[0] if machines else "none",
            tuple(_graph_plan(graph, planned) for graph in graphs),
            graph_breaks,
        )


def _graph_plan(graph: CompiledGraph, planned: Mapping[int, PlannedGraph]) -> GraphPlan:
    captured, elsewhere = graph.captured, graph.elsewhere
    words = [""] if elsewhere is None else elsewhere.words
    own = zip(words, graph.ranged, strict=True)
    plans = tuple(_size_plan(planned[id(x)], sizes, graph) for sizes, x in own)
    division = None if elsewhere is None else Division.of(elsewhere.scale)
    return GraphPlan(captured.digest, captured.lines, plans, division)


def _size_plan(planned: PlannedGraph, sizes: str, whole: CompiledGraph) -> SizePlan:
    graph, steps = planned.graph, tuple(planned.steps)
    return SizePlan(
        steps,
        sizes,
        planned.usual,
        graph.certificate,
        as_captured=whole.is_as_captured,
        stored=tuple(stored_arrays(planned)),
    )
