"""Compiles a graph of PyTorch operators: parts become kernels, the rest stays PyTorch's."""

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch.fx import GraphModule, Node
from torch.fx._lazy_graph_module import _LazyGraphModule

from blockbuster_fusion.errors import BadConstraint
from blockbuster_fusion.messages import log
from blockbuster_fusion.plans.operator_graph import OperatorGraph
from blockbuster_fusion.plans.plan import GraphPlan
from blockbuster_fusion.select.certificate import Certificate
from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.capture.complex_pairs import pair_complex
from blockbuster_fusion.torch.capture.operator_graph import operator_graph
from blockbuster_fusion.torch.capture.results import (
    correct_strides,
    kept_whole,
    result_placements,
    unshare,
)
from blockbuster_fusion.torch.capture.simplify import simplify
from blockbuster_fusion.torch.capture.sizes import Span
from blockbuster_fusion.torch.collector import paused_collector
from blockbuster_fusion.torch.compile_parts import PartCompiler
from blockbuster_fusion.torch.compiled_graph import CompiledGraph, OtherRanges, never
from blockbuster_fusion.torch.freeze import Constants, freeze
from blockbuster_fusion.torch.groups import (
    Group,
    KernelNames,
    LibraryChoice,
    distinct_names,
    log_sources,
)
from blockbuster_fusion.torch.machines import as_current
from blockbuster_fusion.torch.options import Options, device_of
from blockbuster_fusion.torch.plan.planner import Planner
from blockbuster_fusion.torch.planned.follow import Follower, division_of, fitting
from blockbuster_fusion.torch.rivals.choose import Chooser
from blockbuster_fusion.torch.rivals.corrections import MOST, Checked, checked
from blockbuster_fusion.torch.rivals.crossings import Crossing, Division, divided
from blockbuster_fusion.torch.rivals.estimate import Estimate
from blockbuster_fusion.torch.rivals.weighing import Weighing
from blockbuster_fusion.torch.slices import move_slices

FEW_OPERATORS = 24
"""The most operators of a graph in which kernels with products are tried, and which is selected
again more than once: a selection of a large graph takes seconds."""


def compile_graph(
    module: GraphModule,
    static: Sequence[int] = (),
    options: Options | None = None,
    weighing: Weighing | None = None,
) -> CompiledGraph:
    """The compiled form of a graph; `static` has the numbers of the inputs that are weights.

    If the faster one of a part changes with a size, the graph is compiled for ranges of it.
    """
    with as_current(device_of(module.graph.nodes)):
        return _compiled(module, static, options or Options(), weighing or Weighing())


def _compiled(
    module: GraphModule, static: Sequence[int], options: Options, weighing: Weighing
) -> CompiledGraph:
    end = time.monotonic() + options.seconds
    constants = freeze(module, static) if options.freeze else None
    spare = _copied(module) if _has_symbols(module) else None
    first = _corrected(module, static, options, weighing, constants)
    division = None if spare is None else first.division
    if spare is None or division is None:
        return first.compiled(first.names)
    several: list[_WeighedGraph] = []
    for number, span in enumerate(division.spans):
        left = replace(options, seconds=max(0.0, end - time.monotonic()))
        given = (_copied(spare), static, left, weighing, constants)
        several.append(_WeighedGraph(*given, span, number))
    is_one = options.plan is None and len({graph.decisions for graph in several}) == 1
    return first.compiled(first.names) if is_one else _ranged(several, division)


class _WeighedGraph:
    """A graph for which it is decided what runs each part; its kernels are still to be compiled."""

    def __init__(
        self,
        module: GraphModule,
        static: Sequence[int],
        options: Options,
        weighing: Weighing,
        constants: Constants | None = None,
        span: Span | None = None,
        number: int = 0,
    ) -> None:
        """With a span, it is for sizes in that alone; `constants` are computed once.

        `number` is that of the span among the ranges of sizes.
        """
        self.weighing, self.constants = weighing, constants
        target = options.target_of(module.graph.nodes)
        with paused_collector():
            analysis = self.prepared(module, static, options, target)
        self.parts = PartCompiler(analysis, options, target, span, constants)
        self.chooser = _chooser(self.parts, target, weighing)
        self.planned: GraphPlan | None = None
        if options.plan is None:
            self.weighed = _Weighed() if self.chooser is None else _weighed(self.chooser, target)
        else:
            self.planned = fitting(options.plan, self.captured, target)
            self.weighed = _followed(self.parts, self.planned, number, self.captured)

    def prepared(
        self, module: GraphModule, static: Sequence[int], options: Options, target: str
    ) -> Analysis:
        """The graph as a selection gets it."""
        correct_strides(module)
        self.placements = result_placements(module)
        simplify(module)
        pair_complex(module)
        given = module.graph.find_nodes(op="placeholder")
        weights = [given[i] for i in static if i < len(given)]
        weights += [] if self.constants is None else self.constants.inputs(module.graph)
        analysis = Analysis(module, frozenset(weights))
        analysis, self.halved = _with_moved_slices(analysis, options, target)
        if unshare(analysis.module, self.placements):
            analysis = replace(analysis)  # without what was known of the graph before
        self.captured = operator_graph(analysis)
        return analysis

    @property
    def division(self) -> Division | None:
        """The ranges of sizes that have plans of their own, if there are several."""
        if self.planned is not None:
            return division_of(self.planned, self.captured)
        return divided(self.weighed.crossings, self.parts.expected)

    @property
    def decisions(self) -> frozenset[str]:
        """The operators that PyTorch runs by choice."""
        return frozenset(node.name for node in self.parts.libraries)

    @cached_property
    def checked(self) -> Checked:
        """Its time, with the kernels of a GPU as measured now; their times are noted."""
        none = Checked(math.inf, 0.0, math.inf)
        return none if self.chooser is None else checked(self.chooser, self.groups)

    def give_up_if_slower(self) -> None:
        """Has PyTorch run all of it if that takes less time, by what was measured."""
        chooser, has_kernels = self.chooser, bool(self.weighed.choices)
        if chooser is None or not has_kernels or not chooser.may_leave_all:
            return
        if self.checked.captured < self.checked.seconds:
            chooser.give_up_all()
            self.weighed = _Weighed(crossings=self.weighed.crossings)
            del self.groups

    @cached_property
    def groups(self) -> list[Group]:
        """The operators that are run together, compiled."""
        return self.parts.compiled()

    @cached_property
    def names(self) -> KernelNames:
        """The names of its kernels."""
        return distinct_names(self.groups)

    def compiled(self, names: KernelNames) -> CompiledGraph:
        """The compiled graph, with these names of kernels."""
        parts = self.parts
        log_sources(self.groups, names)
        planner = Planner(parts.analysis, self.groups, self.placements, names)
        return CompiledGraph(
            planner.plan(),
            parts.analysis,
            self.groups,
            planner.operated,
            [*planner.joins],
            [*self.halved, *parts.halved],
            parts.pays,
            self.weighing.called,
            parts.collapsed,
            self.weighed.gains,
            self.weighed.choices,
            self.weighed.tried,
            self.weighed.certificate,
            self.captured,
            parts.span,
            constants=self.constants,
        )


def _corrected(
    module: GraphModule,
    static: Sequence[int],
    options: Options,
    weighing: Weighing,
    constants: Constants | None,
) -> _WeighedGraph:
    """A graph whose parts are selected again if chosen kernels are slower than they counted for.

    So kernels may be tried that win by less than the error of predictions; with products, in graphs
    of few operators alone, as those take long to compile. The last selection tries nothing more.
    The graph of least time is taken, by what was measured; PyTorch runs all if that takes less.
    """
    is_chosen = options.library != "never" and options.plan is None and not weighing.measures
    is_gpu = options.target_of(module.graph.nodes) == "cuda"
    is_small = sum(n.op == "call_function" for n in module.graph.nodes) <= FEW_OPERATORS
    if not (is_chosen and is_gpu):
        return _WeighedGraph(module, static, options, weighing, constants)

    def weighed(terms: Weighing) -> _WeighedGraph:
        return _WeighedGraph(_copied(module), static, options, terms, constants)

    trying = replace(weighing, tries=True, tries_products=is_small)
    tried = list[_WeighedGraph]()
    for terms in (*[trying] * (MOST if is_small else 1), weighing):
        tried.append(weighed(terms))
        if not tried[-1].checked.is_mispredicted:
            break
    best = min(reversed(tried), key=lambda graph: graph.checked.seconds)
    best.give_up_if_slower()
    return best


def _ranged(several: Sequence[_WeighedGraph], division: Division) -> CompiledGraph:
    """A graph for the sizes of the captured call, with those for other ranges."""
    names = distinct_names(group for graph in several for group in graph.groups)
    home, *others = (graph.compiled(names) for graph in several)
    symbol = str(division.scale.symbol)
    source = next(x for x in home.plan.symbols if x.symbol == symbol)
    return replace(home, elsewhere=OtherRanges(division.scale, source, tuple(others)))


def _has_symbols(module: GraphModule) -> bool:
    """True if an input of a graph has a size that changes, and all sizes are numbers in a call."""
    values = [n.meta.get("val") for n in module.graph.find_nodes(op="placeholder")]
    if any(isinstance(x, torch.Tensor) and x.is_nested for x in values):
        return False
    sizes = (x.shape if isinstance(x, torch.Tensor) else (x,) for x in values)
    symbols = [n for shape in sizes for n in shape if isinstance(n, torch.SymInt)]
    return bool(symbols) and not any(n.node.is_nested_int() for n in symbols)


def _copied(module: GraphModule) -> GraphModule:
    """A copy of a graph, with the same weights and fake values; no code is made before a call."""
    return _LazyGraphModule(module, copy.deepcopy(module.graph))


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


@dataclass(frozen=True)
class _Weighed:
    """The outcome of the choice between kernels and PyTorch's operators."""

    gains: Mapping[str, float] = field(default_factory=dict)
    """The seconds that kernels win, by the kinds of parts."""
    crossings: Sequence[Crossing] = ()
    """The sizes between which the faster one changes."""
    choices: tuple[LibraryChoice, ...] = ()
    """The parts that kernels run, with the times of both."""
    tried: Callable[[Sequence[Node]], Estimate | None] = never
    """The time of kernels for some operators, if it was asked for."""
    certificate: Certificate | None = None


def _followed(
    parts: PartCompiler, planned: GraphPlan, number: int, captured: OperatorGraph
) -> _Weighed:
    """Moves operators to PyTorch and arranges parts as a plan has them."""
    choices = Follower(parts, planned, number, captured).follow()
    return _Weighed(choices=choices, certificate=planned.plans[number].certificate)


def _chooser(parts: PartCompiler, target: str, weighing: Weighing) -> Chooser | None:
    """Makes the choice of a graph; None if the machine can't be measured."""
    try:
        return Chooser(parts, parts.machine(target), weighing)
    except Exception as error:  # whatever it is: the model runs, each operator by itself
        if parts.options.strict:
            raise
        parts.halved.append(f"no parts are selected: {type(error).__name__}: {error}")
        log.warning(parts.halved[-1])
        return None


def _weighed(chooser: Chooser, target: str) -> _Weighed:
    """Moves operators to PyTorch where they are faster."""
    parts = chooser.parts
    if parts.options.library == "never" or target not in ("cpu", "cuda"):
        return _kernels_alone(chooser)
    try:
        chooser.choose()
        crossings = [x for found in chooser.crossings.values() for x in found]
        if not parts.pays:
            return _Weighed(crossings=crossings)
        won = tuple(choice for _, choice in chooser.won)
        tried = chooser.estimates.noted
        return _Weighed(chooser.gains, crossings, won, tried, chooser.certificate)
    except BadConstraint:
        raise
    except Exception as error:  # whatever it is: the model runs by kernels
        if parts.options.strict:
            raise
        log.warning("kernels are not weighed: %s: %s", type(error).__name__, error)
        return _kernels_alone(chooser)


def _kernels_alone(chooser: Chooser) -> _Weighed:
    """Selects parts for kernels alone; if that fails, each operator is one."""
    try:
        chooser.choose_kernels()
    except BadConstraint:
        raise
    except Exception as error:  # whatever it is: the model runs
        if chooser.parts.options.strict:
            raise
        chooser.parts.halved.append(f"no parts are selected: {type(error).__name__}: {error}")
        log.warning(chooser.parts.halved[-1])
        return _Weighed()
    return _Weighed(tried=chooser.estimates.noted, certificate=chooser.certificate)
