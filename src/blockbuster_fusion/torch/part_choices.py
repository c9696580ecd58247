"""Chooses the kernels of parts of a graph: snapshots with their tiles and schedules."""

import contextlib
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch.fx import Node

from blockbuster_fusion.array.axes import Length
from blockbuster_fusion.choice import Choice
from blockbuster_fusion.compiler import (
    Request,
    capability_of,
    check_target,
    choose,
)
from blockbuster_fusion.improve import Elsewhere, Improver, Points, points_of
from blockbuster_fusion.ir.axis import Axis, Symbol
from blockbuster_fusion.ir.tiling import Extents
from blockbuster_fusion.machine.machine import Machine
from blockbuster_fusion.plans.plan import Kernels
from blockbuster_fusion.runtime.ranges import Ranges
from blockbuster_fusion.runtime.recently_used import RecentlyUsed
from blockbuster_fusion.runtime.tuning_database import Key, Record, database
from blockbuster_fusion.search_job import Forecast, SearchesAhead, SearchJob
from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.capture.called import called
from blockbuster_fusion.torch.capture.sizes import ExpectedSizes, Span
from blockbuster_fusion.torch.machines import gpu_name, machine_for
from blockbuster_fusion.torch.options import Options
from blockbuster_fusion.torch.part_inputs import example_inputs
from blockbuster_fusion.torch.to_array_program import PartBuilder, PartProgram
from blockbuster_fusion.torch.tuned import (
    known_seed,
    measured_before,
    tuned_choices,
    tuning_key,
)

MOST_CHOSEN = 256
"""The number of parts whose choices are kept for other models."""
_CHOSEN = RecentlyUsed["Candidates"](MOST_CHOSEN)
"""Snapshots with tiles and schedules, by what they compute."""

MOST_LETTERS = 48
"""The length of the longest name of a part."""


@dataclass(frozen=True)
class Candidates:
    """The choices that may run a part."""

    choices: list[Choice]
    """Snapshots with their tiles and schedules, the best first."""
    improver: Improver | None
    """Finds choices for other sizes; the interpreter has none."""


class PartChoices:
    """The programs of the parts of a graph, and the choices that may run them."""

    def __init__(
        self, analysis: Analysis, options: Options, target: str, span: Span | None = None
    ) -> None:
        """`target` is that of the whole graph; a part on another device has its own.

        With a span, choices are for sizes in it alone.
        """
        self.analysis, self.options, self.target, self.span = analysis, options, target, span
        self.programs: dict[tuple[Node, ...], PartProgram] = {}
        """The programs of parts, as long as the graph is the same."""
        self.ranged: dict[Hashable, Elsewhere] = {}
        """The choices for other sizes, by part."""
        self.ahead = SearchesAhead()
        self.planned: dict[tuple[Node, ...], Kernels] = {}
        """The kernels that a plan has, by part."""
        self._expected: tuple[Analysis, ExpectedSizes] | None = None

    @cached_property
    def gpu(self) -> tuple[int | None, str]:
        """The compute capability of the GPU that the graph is compiled on, and its name."""
        return capability_of("cuda"), gpu_name()

    @property
    def threads(self) -> int:
        """The number of threads of kernels on a CPU."""
        return self.options.threads or torch.get_num_threads()

    def program(self, nodes: Sequence[Node]) -> PartProgram:
        """Nodes as one array program, or Unexpressed."""
        key = (*nodes,)
        if key not in self.programs:
            inside = set(nodes)
            results = [x for n in nodes for x in self.analysis.stored_results(n, inside)]
            builder = PartBuilder(self.analysis, nodes, part_name(nodes), self.options.strict)
            self.programs[key] = builder.part(results)
        return self.programs[key]

    def choices(self, part: PartProgram, target: str) -> list[Choice]:
        """The snapshots of a part with their tiles and schedules, the best first."""
        return self.candidates(part, target).choices

    def candidates(self, part: PartProgram, target: str) -> Candidates:
        """The choices that may run a part, for the sizes of the captured call."""
        key = self.key(part, target)
        found = _CHOSEN.get(key)
        if found is None:
            check_target(target)
            planned = self.planned.get(part.nodes)
            if planned is not None:
                request = replace(self.request(part, target), config=planned.config)
                found = Candidates([*map(self.as_asked, choose(request))], None)
            elif target in ("cpu", "cuda"):
                found = self.searched(part, target)
            else:
                found = Candidates(choose(self.request(part, target)), None)
            _CHOSEN.put(key, found)
        return found

    def searched(self, part: PartProgram, target: str) -> Candidates:
        """The choices that may run a part, with schedules that are searched."""
        job = self.search_job(part, target)
        choices, (sizes, machine) = job.choices(), (job.sizes, job.machine)
        improver = Improver(choices, machine)
        best = [*self.ahead.result(self.key(part, target), improver, sizes), *choices]
        best = improver.steady(best, self.points(part))
        tuned = tuned_choices(job.request, self.tuning(part, target), machine, best[0], sizes)
        return Candidates([self.as_asked(x) for x in (*tuned, *best)], improver)

    def as_asked(self, choice: Choice) -> Choice:
        """A choice whose kernels start early or not, if the caller says so."""
        early = self.options.early
        if early is None or choice.target != "cuda":
            return choice
        return replace(choice, schedule=replace(choice.schedule, early=early))

    def put_first(self, part: PartProgram, target: str, choice: Choice) -> list[Choice]:
        """The choices for a part, of which one becomes the first."""
        known = self.candidates(part, target)
        choices = [choice, *known.choices]
        _CHOSEN.put(self.key(part, target), replace(known, choices=choices))
        return choices

    def forecast(self, part: PartProgram, target: str) -> Forecast | None:
        """The time of a part's best kernels, if a worker knows it and nothing else decides.

        Measurements do, and so do other sizes, for which kernels may be better.
        """
        key = self.key(part, target)
        if _CHOSEN.get(key) is not None or key not in self.ahead.waiting or self.points(part):
            return None
        place = (self.request(part, target), self.tuning(part, target), self.machine(target))
        is_tuned = measured_before(*place) or known_seed(*place)
        return None if is_tuned else self.ahead.forecast(key)

    def search_job(self, part: PartProgram, target: str) -> SearchJob:
        """The search for the schedules of a part."""
        mirrored = target == "cuda" and part.expressed.reads_transposed
        request = self.request(part, target)
        return SearchJob(request, mirrored, self.sizes(part), self.machine(target))

    def search_ahead(self, parts: Iterable[Sequence[Node]]) -> None:
        """Is told which parts come next: workers search their schedules at the same time.

        A part that fails here fails again in its turn, where it is dealt with.
        """
        jobs: dict[Hashable, SearchJob] = {}
        for nodes in parts:
            with contextlib.suppress(Exception):
                part, target = self.program(nodes), self.options.target_of(nodes)
                key = self.key(part, target)
                if target == "cuda" and _CHOSEN.get(key) is None:
                    jobs[key] = self.search_job(part, target)
        self.ahead.start(jobs)

    def elsewhere(self, part: PartProgram, target: str) -> Elsewhere:
        """The choices for other sizes than those of the captured call, by ranges."""
        if part.nodes in self.planned:
            return self.planned_elsewhere(part, target)
        found, points = self.candidates(part, target), self.points(part)
        if found.improver is None or not points:
            return Elsewhere()
        key = (*self.key(part, target), str(found.choices[0].config))
        if key not in self.ranged:
            others = found.improver.elsewhere(found.choices[0], points)
            asked = tuple(map(self.as_asked, others.choices))
            self.ranged[key] = replace(others, choices=asked)
        return self.ranged[key]

    def planned_elsewhere(self, part: PartProgram, target: str) -> Elsewhere:
        """The choices for other sizes that a plan has."""
        planned = self.planned[part.nodes]
        request = self.request(part, target)
        found = [choose(replace(request, config=config))[0] for config in planned.others]
        asked = tuple(map(self.as_asked, found))
        return Elsewhere(Ranges(tuple(x.scale for x in planned.divisions)), asked)

    def request(self, part: PartProgram, target: str) -> Request:
        """The program of a part, to be fused."""
        return Request(
            part.expressed.program,
            target=target,
            dtype=part.storage,
            capability=self.gpu[0] if target == "cuda" else None,
        )

    def points(self, part: PartProgram) -> tuple[Points, ...]:
        """The sizes that a part may have in later calls, along each symbol that it depends on.

        Of several symbols with which one axis grows, the first one counts.
        """
        found: dict[Symbol, Points] = {}
        for symbol in self.expected.lengths:
            along = [self.sizes(part, length) for length in self.expected.along(symbol)]
            made = points_of(along, self.sizes(part))
            if made is not None:
                found.setdefault(made.symbol, made)
        return tuple(found.values())

    @property
    def expected(self) -> ExpectedSizes:
        """The sizes of the captured call, and those of later ones."""
        if self._expected is None or self._expected[0] is not self.analysis:
            self._expected = (self.analysis, ExpectedSizes(self.analysis, self.span))
        return self._expected[1]

    def record(self, part: PartProgram, target: str) -> Record | None:
        """The best measurement of a part's kernels on this machine, if there is any."""
        request, key = self.request(part, target), self.tuning(part, target)
        return measured_before(request, key, self.machine(target))

    def is_measured_here(self, part: PartProgram, target: str) -> bool:
        """True if the user's own database has a measurement of a part's kernels."""
        return database().best(self.tuning(part, target)) is not None

    def tuning(self, part: PartProgram, target: str) -> Key:
        """The key of a part's measurements."""
        program = part.expressed.program
        return tuning_key(program, part.storage, self.sizes(part), self.machine(target))

    def examples(
        self, part: PartProgram, device: torch.device, length: Length | None = None
    ) -> tuple[list[torch.Tensor], tuple[tuple[Axis, int], ...]]:
        """Arrays of zeros for the inputs of a part, and its sizes: by default as captured."""
        length = length or self.expected.captured
        given = example_inputs(part, self.analysis.by_name, device, length)
        return given, self.sizes(part, length)

    def sizes(
        self, part: PartProgram, length: Length | None = None
    ) -> tuple[tuple[Axis, int], ...]:
        """The lengths of a part's axes: by default, in the captured call."""
        length = length or self.expected.captured
        return tuple((axis, length(size)) for axis, size in part.expressed.sizes)

    def extents(self, part: PartProgram, length: Length) -> Extents:
        """The extents of a part's axes."""
        return Extents.of_sizes(self.sizes(part, length), "a call")

    def key(self, part: PartProgram, target: str) -> tuple[Hashable, ...]:
        """All that the choices for a part depend on."""
        storage = tuple((name, str(dtype)) for name, dtype in part.storage.items())
        sizes = (self.sizes(part), self.points(part))
        program = (part.expressed.program, part.expressed.reads_transposed)
        asked = (self.threads, self.options.early)
        gpu = self.gpu if target == "cuda" else ()
        return (*program, storage, target, *gpu, *sizes, *asked, self.planned_key(part))

    def planned_key(self, part: PartProgram) -> Hashable:
        """The configurations that a plan has for a part; None if there is no plan."""
        planned = self.planned.get(part.nodes)
        if planned is None:
            return None
        return (str(planned.config), *map(str, planned.others), planned.divisions)

    def machine(self, target: str) -> Machine:
        """The machine that kernels for a target run on."""
        return machine_for(target, self.options.threads)


def part_name(nodes: Sequence[Node]) -> str:
    """A name for a part that is the same in every layer: its operators, in order."""
    words = [*map(called, nodes)]
    kept = [word for i, word in enumerate(words) if i == 0 or word != words[i - 1]]
    name = "_".join(kept)
    while len(name) > MOST_LETTERS and len(kept) > 2:
        del kept[len(kept) // 2]
        name = "_".join(kept)
    return name[:MOST_LETTERS].rstrip("_")
