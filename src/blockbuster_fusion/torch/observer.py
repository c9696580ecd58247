"""A model that is compiled and run once, to look at what was compiled."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule

from blockbuster_fusion.errors import WrongKind
from blockbuster_fusion.torch.alone import alone
from blockbuster_fusion.torch.backend import backend, needs_gradients, options_from
from blockbuster_fusion.torch.compiled_graph import CompiledGraph
from blockbuster_fusion.torch.plan.clock import TimedPlan
from blockbuster_fusion.torch.rivals.weighing import Weighing

ALONE = {
    "recompile_limit": 10_000,
    "accumulated_recompile_limit": 10_000,
    "automatic_dynamic_shapes": False,
}
"""Settings of torch.compile by which earlier calls of a model count for nothing."""


@dataclass(frozen=True)
class Observed:
    """The graphs that a model was compiled to."""

    graphs: tuple[CompiledGraph, ...]
    graph_breaks: tuple[str, ...] = ()
    """The reasons why there are several."""
    needs_gradients: bool = False
    """True if the model needs gradients where it was called, and runs eagerly there."""
    seconds: Mapping[int, float] | None = None
    """The measured times if they were asked for, by the ids of parts and of PyTorch's nodes."""


def observed(
    function: str,
    model: Any,
    inputs: Sequence[Any],
    named: Mapping[str, Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    measures: bool = False,
    thorough: bool = False,
) -> Observed:
    """The graphs of a model, a function or an exported program, which is compiled and run once.

    `function` is the caller's name for errors. With `measures`, the steps are timed. Collectives
    are not run: of several ranks, one may look at the model while the others do something else.
    """
    options_from(mode, options)
    if isinstance(model, torch.export.ExportedProgram):
        from blockbuster_fusion.torch.export import compiled_program

        made = compiled_program(model, options or {}, Weighing(thorough=thorough))
        observer = _Observer(mode, options, measures=measures, thorough=thorough)
        observer.observe(made.graph)
        if measures:
            given, by_name = _inputs(function, model, inputs, named)
            made.renewed()(*given, **by_name)
        return Observed((made.graph,), seconds=observer.seconds())
    if not callable(model):
        raise WrongKind(
            function=function,
            wanted="a module, a function or an exported program",
            given=type(model).__name__,
            remedy="give what you would give torch.compile",
        )
    model = getattr(model, "_orig_mod", model)
    observer = _Observer(mode, options, measures=measures, thorough=thorough)
    is_enabled = torch.is_grad_enabled()
    settings: Any = torch._dynamo.config.patch(ALONE)
    with torch.no_grad(), settings, _graph_breaks() as breaks, alone():
        compiled: Any = torch.compile(model, backend=observer.backend, dynamic=dynamic)
        compiled(*inputs, **named)
    needs = is_enabled and observer.needs_gradients
    return Observed(tuple(observer.graphs), tuple(breaks), needs, observer.seconds())


def _inputs(
    function: str,
    program: torch.export.ExportedProgram,
    inputs: Sequence[Any],
    named: Mapping[str, Any],
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The inputs of an exported program to be measured: as given, or those of its export."""
    if inputs or named:
        return inputs, named
    if program.example_inputs is None:
        raise WrongKind(
            function=function,
            wanted="inputs of the exported program, to measure it",
            given="a program without example inputs",
            remedy="give the inputs too",
        )
    given, by_name = program.example_inputs
    return given, by_name


class _Observer:
    """A backend of torch.compile that keeps what it compiles."""

    def __init__(
        self,
        mode: str | None,
        options: Mapping[str, Any] | None,
        *,
        measures: bool,
        thorough: bool,
    ) -> None:
        self.mode, self.options = mode, options
        self.measures, self.thorough = measures, thorough
        self.graphs: list[CompiledGraph] = []
        self.clocks: list[TimedPlan] = []
        self.needs_gradients = False

    def backend(self, module: GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        self.needs_gradients |= needs_gradients(module, examples)
        return backend(
            module,
            examples,
            mode=self.mode,
            options=self.options,
            watcher=self.observe,
            thorough=self.thorough,
        )

    def observe(self, graph: CompiledGraph) -> None:
        self.graphs.append(graph)
        if self.measures:
            graph.plan = clock = TimedPlan(graph.plan)
            self.clocks.append(clock)

    def seconds(self) -> dict[int, float]:
        """The measured times, by the ids of parts and of the nodes that PyTorch runs."""
        found = dict[int, float]()
        for graph, clock in zip(self.graphs, self.clocks, strict=False):
            found |= {id(part): t for part, t in clock.parts(graph.fused)}
            found |= {id(node): t for node, t in clock.operators(graph.operated)}
        return found


@contextmanager
def _graph_breaks() -> Iterator[list[str]]:
    """A list that has the first line of the reason of each new graph break afterwards."""
    counters = torch._dynamo.utils.counters
    before = dict(counters["graph_break"])
    found: list[str] = []
    yield found
    for reason, count in counters["graph_break"].items():
        if count > before.get(reason, 0):
            found.append(str(reason).strip().splitlines()[0])
