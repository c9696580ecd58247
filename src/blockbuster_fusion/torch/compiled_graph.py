"""A compiled graph: its plan, and what became of each operator."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch.fx import Node

from blockbuster_fusion.messages import log
from blockbuster_fusion.plans.operator_graph import OperatorGraph
from blockbuster_fusion.runtime.ranges import Scale
from blockbuster_fusion.select.certificate import Certificate
from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.capture.collectives import is_collective
from blockbuster_fusion.torch.capture.sizes import Span, SymbolSource
from blockbuster_fusion.torch.freeze import Constants
from blockbuster_fusion.torch.groups import Fused, Group, Library, LibraryChoice, Unfused
from blockbuster_fusion.torch.plan.plan import ModelPlan
from blockbuster_fusion.torch.plan.ranged import ranged_call
from blockbuster_fusion.torch.plan.steps import PlanStep
from blockbuster_fusion.torch.rivals.composites import Called, written_out
from blockbuster_fusion.torch.rivals.estimate import Estimate
from blockbuster_fusion.torch.to_array_program import ElidedCast


def never(nodes: Sequence[Node]) -> Estimate | None:
    """Nothing was asked for."""
    return None


@dataclass(frozen=True)
class OtherRanges:
    """The same graph compiled for other ranges of a size than that of the captured call."""

    scale: Scale
    """The ranges; 0 is that of the captured call."""
    source: SymbolSource
    """The input that has the size."""
    graphs: "tuple[CompiledGraph, ...]" = field(repr=False)
    """The graphs for the ranges from 1 on."""

    @property
    def words(self) -> list[str]:
        """The ranges in words, by number."""
        found = {number: text for text, number in self.scale.ranges}
        return [found[number] for number in range(len(found))]


@dataclass
class CompiledGraph:
    """The plan of a graph, and what became of each operator.

    If there are plans for ranges of sizes, it is that of the captured call.
    """

    plan: ModelPlan
    analysis: Analysis
    groups: list[Group]
    operated: Mapping[Node, PlanStep]
    """The nodes that PyTorch runs, views too, with their steps."""
    joined: list[Node]
    """The concatenations of which kernels store at least one piece in its place."""
    halved: list[str]
    """The parts for which there was no kernel as a whole, with the reasons."""
    pays: bool = True
    """False if the captured graph is faster than any plan."""
    called: Called = field(default_factory=dict)
    """The number of times that the model calls composites itself."""
    collapsed: Sequence[Node] = ()
    """The operators that stand for recognised composites."""
    won: Mapping[str, float] = field(default_factory=dict)
    """The seconds that kernels win, by the kinds of parts."""
    weighed: tuple[LibraryChoice, ...] = ()
    """The parts that kernels run, with the times of both rivals."""
    tried: Callable[[Sequence[Node]], Estimate | None] = field(default=never, repr=False)
    """The time of kernels for some operators, if the selection has asked for it."""
    certificate: Certificate | None = None
    """The proof that no partition into parts is cheaper; None if a policy has chosen them."""
    captured: OperatorGraph = field(default_factory=lambda: OperatorGraph(()), repr=False)
    """The operators before any were left to PyTorch."""
    span: Span | None = None
    """The range of sizes that it is for; None for all."""
    elsewhere: OtherRanges | None = None
    """The graph for other ranges of sizes, if it is not one for all."""
    constants: Constants | None = None
    """The constants that are computed once from weights, if the caller asked for that."""
    is_as_captured: bool = False
    """True if the graph runs as it was captured, for all sizes: nothing is faster."""

    @property
    def ranged(self) -> "tuple[CompiledGraph, ...]":
        """This graph, and those for other ranges, by number."""
        return (self,) if self.elsewhere is None else (self, *self.elsewhere.graphs)

    def call(self, prepared: Callable[[ModelPlan], Callable[..., Any]]) -> Callable[..., Any]:
        """The function that runs the graph; `prepared` makes a plan ready to be called."""
        calls = [graph._call(prepared) for graph in self.ranged]
        if self.elsewhere is None:
            return calls[0]
        return ranged_call(self.elsewhere.scale, self.elsewhere.source, calls)

    def _call(self, prepared: Callable[[ModelPlan], Callable[..., Any]]) -> Callable[..., Any]:
        """The function that runs the plan, in this range of sizes, with the constants in place."""
        run = prepared(self.plan)
        return run if self.constants is None else self.constants.bound(run, self.analysis.inputs)

    @property
    def inputs(self) -> list[Node]:
        """The inputs of a call."""
        given = self.analysis.inputs
        return given if self.constants is None else given[: len(self.constants.slots)]

    def settle(self, *, is_as_captured: bool) -> None:
        """Notes whether the graph runs as it was captured; if so, it needs no constants."""
        self.is_as_captured = is_as_captured
        if self.constants is not None and is_as_captured:
            self.constants.release()
        elif self.constants is not None and self.constants.wanted:
            told = (len(self.constants.reports), self.constants.bytes)
            log.info("freeze: %d constants take %d bytes beside the weights", *told)

    @property
    def fused(self) -> list[Fused]:
        return [g for g in self.groups if isinstance(g, Fused)]

    @property
    def unfused(self) -> list[Unfused]:
        return [g for g in self.groups if isinstance(g, Unfused)]

    @property
    def gains(self) -> bool:
        """True unless PyTorch runs all operators as they were captured, for all sizes."""
        return any(graph.gains_here for graph in self.ranged)

    @property
    def gains_here(self) -> bool:
        """True unless PyTorch runs all operators as they were captured, in this range of sizes."""
        written = written_out((n.target for n in self.collapsed), self.called)
        spares = self.constants is not None and self.constants.spares
        return bool(self.fused) or (self.pays and (written > 0 or spares)) or not self.chosen

    @property
    def communicates(self) -> bool:
        """True if it has collectives: then it runs by its plan, as all ranks have the same ones."""
        return any(is_collective(n.target) for n in self.analysis.nodes)

    @property
    def library(self) -> list[LibraryChoice]:
        """The parts that PyTorch's operators run by choice, for all sizes or for a range."""
        if self.elsewhere is None:
            return self.chosen
        always = set.intersection(*({x.nodes for x in graph.chosen} for graph in self.ranged))
        found = [x for x in self.chosen if x.nodes in always]
        for words, graph in zip(self.elsewhere.words, self.ranged, strict=True):
            for x in graph.chosen:
                if x.nodes not in always:
                    found.append(replace(x, sizes=words, elsewhere=self._kernels_for(x, graph)))
        return found

    def _kernels_for(self, choice: LibraryChoice, within: "CompiledGraph") -> tuple[str, ...]:
        """The ranges of sizes for which kernels run more of a part than within one."""
        assert self.elsewhere is not None
        nodes = {*choice.nodes}
        found = zip(self.elsewhere.words, self.ranged, strict=True)
        own = len(nodes & within.in_kernels)
        return tuple(words for words, graph in found if len(nodes & graph.in_kernels) > own)

    @property
    def chosen(self) -> list[LibraryChoice]:
        """The parts that PyTorch's operators run by choice, in this range of sizes."""
        return [*dict.fromkeys(g.choice for g in self.groups if isinstance(g, Library))]

    @property
    def in_kernels(self) -> set[str]:
        """The names of the operators that kernels compute."""
        return {n.name for f in self.fused for n in f.part.covered}

    @property
    def elided(self) -> list[ElidedCast]:
        found = {cast.name: cast for g in self.fused for cast in g.part.elided}
        return [*found.values()]
