"""The explanation of a model as data: regions, kernels, and operators that PyTorch runs."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from os import PathLike
from typing import Any

import torch
from torch.fx import Node

from blockbuster_fusion.array.lower import lower
from blockbuster_fusion.ir.buffered import buffered
from blockbuster_fusion.plans.plan import Plan
from blockbuster_fusion.report.collect import report_of
from blockbuster_fusion.report.page import fragment, page
from blockbuster_fusion.report.report import Report
from blockbuster_fusion.report.save import save
from blockbuster_fusion.report.text import text
from blockbuster_fusion.select.operators import Kind
from blockbuster_fusion.torch.capture.collectives import is_collective
from blockbuster_fusion.torch.capture.nodes import name_of
from blockbuster_fusion.torch.compiled_graph import CompiledGraph
from blockbuster_fusion.torch.explain.collectives import CollectiveReport, collectives_of
from blockbuster_fusion.torch.explain.kernels import (
    KernelReport,
    RangeReport,
    Region,
    ranges_of,
    regions_of,
)
from blockbuster_fusion.torch.explain.notes import notes, summary
from blockbuster_fusion.torch.freeze import ConstantReport
from blockbuster_fusion.torch.groups import (
    CHEAP,
    UNJOINED,
    Fused,
    Joined,
    KernelNames,
    Library,
    LibraryChoice,
    Unfused,
    distinct_names,
)
from blockbuster_fusion.torch.options import Options
from blockbuster_fusion.torch.plan.cuda_graph import obstacle, plan_device
from blockbuster_fusion.torch.planned.make import plan_of
from blockbuster_fusion.torch.to_array_program import ElidedCast


@dataclass(frozen=True)
class EagerOperator:
    """An operator that PyTorch runs, with the reason."""

    operator: str
    node: str
    region: str
    reason: str

    def __str__(self) -> str:
        where = f" in {self.region}" if self.region else ""
        return f"{self.operator} ({self.node}{where}): {self.reason}"


@dataclass(frozen=True)
class Explanation:
    """The fate of each operator of a model: its kernel, or the reason why PyTorch runs it."""

    graphs: tuple[CompiledGraph, ...] = field(repr=False)
    graph_breaks: tuple[str, ...] = ()
    """The reasons why the model is more than one graph."""
    needs_gradients: bool = False
    """True if the model runs eagerly because gradients are enabled where it was called. The rest
    describes the model under torch.no_grad()."""
    seconds: Mapping[int, float] = field(default_factory=dict, repr=False)
    """The measured times, by the ids of parts and of nodes that PyTorch runs."""
    options: Options = field(default_factory=Options, repr=False)
    name: str = "model"
    """The name of the model's class, or of the function."""

    @cached_property
    def regions(self) -> list[Region]:
        """The regions that are compiled without an operator of PyTorch's in between."""
        return [region for g in self.graphs for region in regions_of(g, self._names, self.seconds)]

    @cached_property
    def kernels(self) -> list[KernelReport]:
        """Every kernel, in the order of their calls."""
        return [kernel for region in self.regions for kernel in region.kernels]

    @cached_property
    def ranges(self) -> list[RangeReport]:
        """The ranges of sizes, of each part that has other kernels for some of them."""
        return [report for g in self.graphs for report in ranges_of(g, self._names)]

    @cached_property
    def misc(self) -> list[EagerOperator]:
        """The operators that PyTorch runs because no kernel is meant to."""
        left = [u for g in self.graphs for u in g.unfused if not u.is_fallback]
        left = [u for u in left if not is_collective(u.node.target)]
        found = [_eager(u) for u in left if _is_operator(u.node)]
        for g in self.graphs:
            known = {x.node for x in g.groups if isinstance(x, Unfused | Library)}
            for node in g.operated:
                if g.analysis.is_join(node):
                    reason = UNJOINED
                elif g.analysis.kind(node) not in (Kind.VIEW, Kind.MISC) and node not in known:
                    reason = CHEAP
                else:
                    continue
                found.append(EagerOperator(name_of(node), node.name, "", reason))
        return found

    @cached_property
    def collectives(self) -> list[CollectiveReport]:
        """The transfers between ranks, in the order in which every rank calls them."""
        return [report for g in self.graphs for report in collectives_of(g)]

    @cached_property
    def library(self) -> list[LibraryChoice]:
        """The parts that PyTorch's operators run, because kernels would be slower."""
        return [choice for g in self.graphs for choice in g.library]

    @cached_property
    def fallbacks(self) -> list[EagerOperator]:
        """The operators that should have had a kernel, and have none."""
        return [_eager(u) for g in self.graphs for u in g.unfused if u.is_fallback]

    @cached_property
    def frozen(self) -> list[ConstantReport]:
        """The arrays that are computed once from weights, and kept."""
        found = [g.constants for g in self.graphs if g.constants and not g.is_as_captured]
        return [report for constants in found for report in constants.reports]

    @property
    def frozen_bytes(self) -> int:
        """The memory that these take beside the weights."""
        return sum(report.bytes for report in self.frozen)

    @cached_property
    def halved(self) -> list[str]:
        """The parts that had no kernel as a whole and were halved, with the reasons."""
        return [reason for g in self.graphs for reason in g.halved]

    @cached_property
    def unreplayed(self) -> list[str]:
        """The reasons why CUDA graphs cannot hold some graphs on a GPU."""
        plans = [g.plan for x in self.graphs for g in x.ranged]
        plans = [plan for plan in plans if plan_device(plan).type == "cuda"]
        reasons = [obstacle(plan) for plan in plans]
        return [reason for reason in reasons if reason is not None]

    @cached_property
    def elided_casts(self) -> list[ElidedCast]:
        """The conversions between floats that fusion has made unnecessary."""
        return [cast for g in self.graphs for cast in g.elided]

    @cached_property
    def coverage(self) -> float:
        """The share of the computing operators that kernels compute, in fused regions."""
        if not self.kernels and not any(f.executable.nest is None for f in self._fused):
            return 0.0
        fused = sum(len(_covered(g)) for g in self.graphs)
        chosen = sum(isinstance(x, Library) for g in self.graphs for x in g.groups)
        whole = fused + len(self.misc) + len(self.fallbacks) + chosen
        return fused / whole if whole else 0.0

    @cached_property
    def edges_before(self) -> int:
        """The intermediates that would go through memory if every operator stood alone."""
        inside = [len(buffered(lower(f.part.expressed.program))) for f in self._fused]
        return sum(inside) + self._between

    @cached_property
    def edges_after(self) -> int:
        """The intermediates that go through memory now."""
        return sum(len(buffered(f.executable.graph)) for f in self._fused) + self._between

    @cached_property
    def _names(self) -> KernelNames:
        """The name of each kernel, those for other ranges of sizes last."""
        others = [other for g in self.graphs for other in g.ranged[1:]]
        return distinct_names(f for g in (*self.graphs, *others) for f in g.fused)

    @property
    def _fused(self) -> list[Fused]:
        return [f for g in self.graphs for f in g.fused]

    @cached_property
    def _between(self) -> int:
        return sum(_edges_between(g) for g in self.graphs)

    def data(self) -> dict[str, Any]:
        """The explanation as plain data."""
        return {
            "graphs": len(self.graphs),
            "graph_breaks": [*self.graph_breaks],
            "needs_gradients": self.needs_gradients,
            "coverage": self.coverage,
            "edges_before": self.edges_before,
            "edges_after": self.edges_after,
            "regions": [{"name": r.name, "operators": [*r.operators]} for r in self.regions],
            "kernels": [kernel.data() for kernel in self.kernels],
            "ranges": [asdict(x) for x in self.ranges],
            "misc": [asdict(x) for x in self.misc],
            "collectives": [asdict(x) for x in self.collectives],
            "fallbacks": [asdict(x) for x in self.fallbacks],
            "library": [x.data() for x in self.library],
            "halved": [*self.halved],
            "frozen": [x.data() for x in self.frozen],
            "frozen_bytes": self.frozen_bytes,
            "unreplayed": [*self.unreplayed],
            "elided_casts": [str(cast) for cast in self.elided_casts],
            "report": self.report.data(),
        }

    @cached_property
    def plan(self) -> Plan:
        """The steps of the model with their costs and reasons, as `bb.plan` has them."""
        return plan_of(self.graphs, self.options, self.graph_breaks, self.seconds)

    @cached_property
    def report(self) -> Report:
        """The rows, folded layers and totals that the text and the page show."""
        return report_of(self.plan, tuple(summary(self)), tuple(notes(self)), self.name)

    def html(self) -> str:
        """The explanation as one page of HTML that needs no network."""
        return page(self.report)

    def save(self, file: str | PathLike[str]) -> None:
        """Writes the explanation as text, as HTML or as JSON: .txt, .html or .json."""
        save(self.report, file)

    def __str__(self) -> str:
        return "\n".join(text(self.report))

    def _repr_html_(self) -> str:
        """The explanation as a notebook shows it."""
        return fragment(self.report)


def model_name(model: Any) -> str:
    """The name of a model's class, or of a function."""
    own = getattr(getattr(model, "_orig_mod", model), "__name__", None)
    return own if isinstance(own, str) else type(getattr(model, "_orig_mod", model)).__name__


def _eager(u: Unfused) -> EagerOperator:
    return EagerOperator(u.operator, u.node.name, u.region, u.reason)


def _is_operator(node: Node) -> bool:
    """True if a node is an operator: not a constant, nor one of several results of another."""
    return node.op == "call_function" and isinstance(node.target, torch._ops.OperatorBase)


def _covered(graph: CompiledGraph) -> set[Node]:
    """The operators that kernels alone compute."""
    operated = set(graph.operated)
    computed = {n for f in graph.fused for n in f.part.covered if n not in operated}
    return computed | set(graph.joined)


def _edges_between(graph: CompiledGraph) -> int:
    """The number of intermediates that one group leaves in memory for another."""
    inputs = {n.name for n in graph.analysis.inputs}
    count = 0
    for group in graph.groups:
        if isinstance(group, Joined):
            continue
        if isinstance(group, Fused):
            sources = {layout.source for layout in group.part.expressed.inputs}
        else:
            sources = {graph.analysis.base(n).name for n in group.node.all_input_nodes}
        count += len({s for s in sources if s not in inputs})
    return count
