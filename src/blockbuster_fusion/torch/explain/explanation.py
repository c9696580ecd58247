"""The explanation of a model as data: regions, kernels, and operators that PyTorch runs."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch.fx import Node

from blockbuster_fusion.array.lower import lower
from blockbuster_fusion.ir.buffered import buffered
from blockbuster_fusion.ir.listing import show
from blockbuster_fusion.ir.tiling import Extents, Tiling
from blockbuster_fusion.nest.analysis.traffic import traffic_of
from blockbuster_fusion.nest.listing import show_nest
from blockbuster_fusion.nest.nest import Launchable
from blockbuster_fusion.select.operators import Kind
from blockbuster_fusion.torch.capture.collectives import is_collective
from blockbuster_fusion.torch.capture.nodes import name_of
from blockbuster_fusion.torch.capture.sizes import captured_length
from blockbuster_fusion.torch.compile_graph import CompiledGraph
from blockbuster_fusion.torch.explain.collectives import CollectiveReport, collectives_of
from blockbuster_fusion.torch.explain.flash import is_flash
from blockbuster_fusion.torch.explain.source_lines import source_lines
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
from blockbuster_fusion.torch.plan.cuda_graph import obstacle, plan_device
from blockbuster_fusion.torch.to_array_program import ElidedCast


@dataclass(frozen=True)
class KernelReport:
    """A launch of a kernel or of several, and the operators whose part it belongs to."""

    name: str
    """A name of its own in the model, also in torch.profiler; equal kernels share it."""
    region: str
    operators: tuple[str, ...]
    fused: Fused = field(repr=False)
    nest: Launchable = field(repr=False)
    bytes_read: int = 0
    bytes_written: int = 0
    """The bytes of the arrays in memory that it reads and writes, each array once, for the sizes
    of the captured call; of a table, as many elements as are looked up."""
    seconds: float | None = None
    """The measured time of its part, if it was asked for."""

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The lines of the model that its operators come from, as `file.py:12`."""
        return source_lines(self.fused.part.nodes)

    @cached_property
    def listing(self) -> str:
        """The kernel as a loop nest."""
        return show_nest(self.nest)

    @cached_property
    def program(self) -> str:
        """The fused block program, as the paper writes it."""
        return show(self.fused.executable.graph)

    @property
    def source(self) -> str:
        """The source that was compiled, of the whole part."""
        return self.fused.executable.source

    @property
    def digest(self) -> str:
        """A digest of the fused block program that does not depend on names."""
        return self.fused.executable.graph.digest

    @cached_property
    def is_flash(self) -> bool:
        """True if it makes exponentials of a product and multiplies them, all in local memory."""
        return is_flash(self.nest)

    def data(self) -> dict[str, Any]:
        """The report as plain data."""
        return {
            "name": self.name,
            "region": self.region,
            "is_flash": self.is_flash,
            "operators": [*self.operators],
            "digest": self.digest,
            "bytes_read": self.bytes_read,
            "bytes_written": self.bytes_written,
            "lines": [*self.lines],
            "seconds": self.seconds,
            "listing": self.listing,
        }


@dataclass(frozen=True)
class Region:
    """Parts that follow one another in one layer, with no operator of PyTorch's between them."""

    name: str
    parts: tuple[Fused, ...] = field(repr=False)

    @property
    def operators(self) -> tuple[str, ...]:
        return tuple(name_of(n) for p in self.parts for n in p.part.nodes)

    kernels: tuple[KernelReport, ...] = field(repr=False)


@dataclass(frozen=True)
class RangeReport:
    """A range of sizes, and the configuration of the kernels that serve it."""

    kernel: str
    """The name of the first kernel of the part."""
    sizes: str
    config: str

    def __str__(self) -> str:
        return f"{self.kernel}, {self.sizes}: {self.config}"


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
    """The measured time of each part, by its id."""

    @cached_property
    def regions(self) -> list[Region]:
        """The regions that are compiled without an operator of PyTorch's in between."""
        return [region for g in self.graphs for region in _regions(g, self._names, self.seconds)]

    @cached_property
    def kernels(self) -> list[KernelReport]:
        """Every kernel, in the order of their calls."""
        return [kernel for region in self.regions for kernel in region.kernels]

    @cached_property
    def ranges(self) -> list[RangeReport]:
        """The ranges of sizes, of each part that has other kernels for some of them."""
        return [report for g in self.graphs for report in _ranges(g, self._names)]

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
        }

    def __str__(self) -> str:
        from blockbuster_fusion.torch.explain.text import text

        return "\n".join(text(self))


def _eager(u: Unfused) -> EagerOperator:
    return EagerOperator(u.operator, u.node.name, u.region, u.reason)


def _is_operator(node: Node) -> bool:
    """True if a node is an operator: not a constant, nor one of several results of another."""
    return node.op == "call_function" and isinstance(node.target, torch._ops.OperatorBase)


def _kernels(
    graph: CompiledGraph, fused: Fused, names: KernelNames, seconds: Mapping[int, float]
) -> Iterator[KernelReport]:
    nest = fused.executable.nest
    if nest is None:
        return
    operators = tuple(name_of(n) for n in fused.part.nodes)
    tiling = _tiling(graph, fused)
    for kernel in nest.launches:
        touched = traffic_of(kernel, tiling).touched.values()
        yield KernelReport(
            names[id(fused.executable), kernel.name],
            fused.region,
            operators,
            fused,
            kernel,
            sum(read for read, _ in touched),
            sum(written for _, written in touched),
            seconds.get(id(fused)),
        )


def _tiling(graph: CompiledGraph, fused: Fused) -> Tiling:
    """The blocks of a part for the sizes of the captured call."""
    length = captured_length(graph.analysis)
    sizes = ((axis, length(size)) for axis, size in fused.part.expressed.sizes)
    return Tiling(Extents.of_sizes(sizes, "the captured call"), fused.executable.tiles)


def _ranges(graph: CompiledGraph, names: KernelNames) -> Iterator[RangeReport]:
    """The ranges of the parts of a graph; if kernels run some for a range alone, that range too."""
    words = [None] if graph.elsewhere is None else graph.elsewhere.words
    for within, own in zip(words, graph.ranged, strict=True):
        for executable in {id(f.executable): f.executable for f in own.fused}.values():
            if executable.nest is None:
                continue
            name = names[id(executable), executable.nest.launches[0].name]
            for sizes, config in executable.configs or ((None, executable.config),):
                where = ", ".join(x for x in (within, sizes) if x is not None)
                if where:
                    yield RangeReport(name, where, str(config))


def _regions(
    graph: CompiledGraph, names: KernelNames, seconds: Mapping[int, float]
) -> Iterator[Region]:
    run: list[Fused] = []

    def region() -> Region:
        kernels = [k for f in run for k in _kernels(graph, f, names, seconds)]
        return Region(run[0].region, tuple(run), tuple(kernels))

    for group in graph.groups:
        if isinstance(group, Joined):
            continue
        breaks = isinstance(group, Unfused | Library) or (run and run[-1].region != group.region)
        if breaks and run:
            yield region()
            run = []
        if isinstance(group, Fused):
            run.append(group)
    if run:
        yield region()


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
