"""Compiles a graph of PyTorch operators: parts become kernels, the rest stays PyTorch's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch.fx import GraphModule, Node

from blockbuster_fusion.messages import log
from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.capture.complex_pairs import pair_complex
from blockbuster_fusion.torch.capture.results import (
    correct_strides,
    kept_whole,
    result_placements,
    unshare,
)
from blockbuster_fusion.torch.capture.simplify import simplify
from blockbuster_fusion.torch.compile_parts import PartCompiler
from blockbuster_fusion.torch.groups import (
    Fused,
    Group,
    Library,
    LibraryChoice,
    Unfused,
    distinct_names,
    log_sources,
)
from blockbuster_fusion.torch.options import Options
from blockbuster_fusion.torch.plan.plan import ModelPlan
from blockbuster_fusion.torch.plan.planner import Planner
from blockbuster_fusion.torch.rivals.choose import Chooser, Weighing
from blockbuster_fusion.torch.rivals.composites import Called, written_out
from blockbuster_fusion.torch.slices import move_slices
from blockbuster_fusion.torch.to_array_program import ElidedCast


@dataclass
class CompiledGraph:
    """The plan of a graph, and what became of each operator."""

    plan: ModelPlan
    analysis: Analysis
    groups: list[Group]
    operated: list[Node]
    """The nodes that PyTorch runs, views too."""
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

    @property
    def fused(self) -> list[Fused]:
        return [g for g in self.groups if isinstance(g, Fused)]

    @property
    def unfused(self) -> list[Unfused]:
        return [g for g in self.groups if isinstance(g, Unfused)]

    @property
    def gains(self) -> bool:
        """True unless PyTorch runs all operators as they were captured."""
        written = written_out((n.target for n in self.collapsed), self.called)
        return bool(self.fused) or (self.pays and written > 0) or not self.library

    @property
    def library(self) -> list[LibraryChoice]:
        """The parts that PyTorch's operators run by choice."""
        found = [g.choice for g in self.groups if isinstance(g, Library)]
        return [*{id(choice): choice for choice in found}.values()]

    @property
    def elided(self) -> list[ElidedCast]:
        found = {cast.name: cast for g in self.fused for cast in g.part.elided}
        return [*found.values()]


def compile_graph(
    module: GraphModule,
    static: Sequence[int] = (),
    options: Options | None = None,
    weighing: Weighing | None = None,
) -> CompiledGraph:
    """The compiled form of a graph; `static` has the numbers of the inputs that are weights."""
    options, weighing = options or Options(), weighing or Weighing()
    target = options.target_of(module.graph.nodes)
    correct_strides(module)
    placements = result_placements(module)
    simplify(module)
    pair_complex(module)
    given = module.graph.find_nodes(op="placeholder")
    analysis = Analysis(module, frozenset(given[i] for i in static if i < len(given)))
    analysis, halved = _with_moved_slices(analysis, options, target)
    if unshare(analysis.module, placements):
        analysis = replace(analysis)  # without what was known of the graph before
    parts = PartCompiler(analysis, options, target)
    won = _weighed(parts, target, weighing)
    groups = parts.compiled()
    names = distinct_names(groups)
    log_sources(groups, names)
    planner = Planner(parts.analysis, static, groups, placements, names)
    return CompiledGraph(
        planner.plan(),
        parts.analysis,
        groups,
        planner.operated,
        [*planner.joins],
        [*halved, *parts.halved],
        parts.pays,
        weighing.called,
        parts.collapsed,
        won,
    )


def _with_moved_slices(
    analysis: Analysis, options: Options, target: str
) -> tuple[Analysis, list[str]]:
    """The graph with its slices moved; and the reason, if they stay where they are."""
    try:
        splits = target != "cuda"
        return move_slices(analysis, kept_whole(analysis.module), splits=splits), []
    except Exception as error:  # whatever it is: the model runs without, and `explain` says so
        if options.strict:
            raise
        reason = f"slices and concatenations stay where they are: {type(error).__name__}: {error}"
        log.warning(reason)
        return analysis, [reason]


def _weighed(parts: PartCompiler, target: str, weighing: Weighing) -> dict[str, float]:
    """Moves operators to PyTorch where they are faster; the seconds that kernels win."""
    if parts.options.library == "never" or target not in ("cpu", "cuda"):
        return {}
    try:
        chooser = Chooser(parts, parts.machine(target), weighing)
        chooser.choose()
        return chooser.gains if parts.pays else {}
    except Exception as error:  # whatever it is: the model runs by kernels
        if parts.options.strict:
            raise
        log.warning("kernels are not weighed: %s: %s", type(error).__name__, error)
        return {}
