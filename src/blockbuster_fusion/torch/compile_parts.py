"""Compiles the parts of a graph, each to kernels; what is left to PyTorch has a reason."""

import contextlib
import os
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch
from torch.fx import Node
from torch.utils._python_dispatch import _disable_current_modes

from blockbuster_fusion.array.axes import Length
from blockbuster_fusion.choice import Choice
from blockbuster_fusion.compiler import (
    Request,
    capability_of,
    check_target,
    choose,
    executable_of,
)
from blockbuster_fusion.errors import NoCompiler
from blockbuster_fusion.improve import Elsewhere, Improver, Points, points_of
from blockbuster_fusion.ir.axis import Axis, Symbol
from blockbuster_fusion.ir.tiling import Extents
from blockbuster_fusion.machine.machine import Machine
from blockbuster_fusion.messages import log
from blockbuster_fusion.plans.plan import Kernels
from blockbuster_fusion.progress import doing
from blockbuster_fusion.runtime.compiled import Compiled
from blockbuster_fusion.runtime.executable import Executable
from blockbuster_fusion.runtime.ranges import Ranges
from blockbuster_fusion.runtime.recently_used import RecentlyUsed
from blockbuster_fusion.runtime.tensors import library_on
from blockbuster_fusion.runtime.tuning_database import Key, Record
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.search_job import Forecast, SearchesAhead, SearchJob
from blockbuster_fusion.select.operators import Kind
from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.capture.called import called
from blockbuster_fusion.torch.capture.collectives import REASON, is_collective
from blockbuster_fusion.torch.capture.nodes import name_of
from blockbuster_fusion.torch.capture.operators import refusal
from blockbuster_fusion.torch.capture.sizes import ExpectedSizes, Span
from blockbuster_fusion.torch.freeze import Constants
from blockbuster_fusion.torch.groups import Fused, Group, Joined, Library, LibraryChoice, Unfused
from blockbuster_fusion.torch.machines import machine_for
from blockbuster_fusion.torch.options import Options, device_of
from blockbuster_fusion.torch.part_inputs import example_inputs
from blockbuster_fusion.torch.table import row_for
from blockbuster_fusion.torch.to_array_program import PartBuilder, PartProgram, Unexpressed
from blockbuster_fusion.torch.tuned import (
    known_seed,
    measured_before,
    tuned_choices,
    tuning_key,
)

MOST_COMPILED = 256
"""The number of executables that are kept for other models."""
_COMPILED = RecentlyUsed[Executable](MOST_COMPILED)
"""Executables of this process, by what they compute: equal layers share theirs."""
_CHOSEN = RecentlyUsed["Candidates"](MOST_COMPILED)
"""Snapshots with tiles and schedules, by what they compute."""

PROCESSORS = os.cpu_count() or 1
MOST_LETTERS = 48
"""The length of the longest name of a part."""


@dataclass(frozen=True)
class Candidates:
    """The choices that may run a part."""

    choices: list[Choice]
    """Snapshots with their tiles and schedules, the best first."""
    improver: Improver | None
    """Finds choices for other sizes; the interpreter has none."""


class PartCompiler:
    """Compiles the parts of a graph in the order in which they are run."""

    def __init__(
        self,
        analysis: Analysis,
        options: Options,
        target: str,
        span: Span | None = None,
        constants: Constants | None = None,
    ) -> None:
        """`target` is that of the whole graph; a part on another device has its own.

        With a span, parts are compiled for sizes in it alone. `constants` are computed once.
        """
        self.analysis, self.options, self.target, self.span = analysis, options, target, span
        self.constants = constants
        self.libraries: dict[Node, LibraryChoice] = {}
        """The operators that PyTorch runs by choice."""
        self.collapsed: list[Node] = []
        """The operators that stand for composites, recognised in what PyTorch runs."""
        self.pays = True
        """False if the captured graph is faster than any plan."""
        self.has_told = False
        self.halved: list[str] = []
        """The parts for which there was no kernel as a whole, with the reasons."""
        self.ranged: dict[Hashable, Elsewhere] = {}
        """The choices for other sizes, by part."""
        self.later: dict[Hashable, tuple[Seconds, str, float]] = {}
        """The times of kernels for other sizes, with their configurations and errors."""
        self.taken: list[list[Node]] = []
        """The parts that kernels run."""
        self.programs: dict[tuple[Node, ...], PartProgram] = {}
        """The programs of parts, as long as the graph is the same."""
        self.built: dict[Hashable, Future[Executable]] = {}
        """The kernels that threads build, by part."""
        self.ahead = SearchesAhead()
        self.planned: dict[tuple[Node, ...], Kernels] = {}
        """The kernels that a plan has, by part."""
        self._expected: tuple[Analysis, ExpectedSizes] | None = None

    def compiled(self) -> list[Group]:
        """All operators of the graph: fused, joined or left to PyTorch.

        Copies of updates that are done in place copy nothing, and are left out.
        """
        analysis = self.analysis
        copies = {*analysis.updates.values()}
        parts = [nodes for nodes in self.parts() if nodes[0] not in copies]
        groups: list[Group] = []
        with doing("parts", len(parts)) as task, ThreadPoolExecutor(PROCESSORS) as pool:
            self.build([x for x in parts if self.is_computed(x[0])], pool)
            for nodes in parts:
                if analysis.is_join(nodes[0]):
                    groups.append(Joined(nodes[0], analysis.regions[nodes[0]]))
                elif analysis.kind(nodes[0]) is Kind.MISC:
                    groups.append(self.misc(nodes[0]))
                else:
                    groups += self.fused(nodes)
                task.step()
        self.programs.clear()
        self.built.clear()
        return groups

    def is_computed(self, node: Node) -> bool:
        """True if kernels are meant to compute a node."""
        return not self.analysis.is_join(node) and self.analysis.kind(node) is not Kind.MISC

    def build(self, parts: Sequence[list[Node]], pool: ThreadPoolExecutor) -> None:
        """Has threads build the kernels of all parts: compilers take most of the time.

        A part that fails here fails again in its turn, where it is dealt with.
        """
        for nodes in parts:
            with contextlib.suppress(Exception):
                part, target = self.program(nodes), self.options.target_of(nodes)
                key = self.key(part, target)
                if _COMPILED.get(key) is None and key not in self.built:
                    job = (part, target, device_of(nodes), *self.chosen(part, target))
                    self.built[key] = pool.submit(self.executable, *job)

    def take(self, parts: Iterable[Sequence[Node]]) -> None:
        """Has kernels run some parts."""
        self.taken = [[*nodes] for nodes in parts]

    def parts(self) -> list[list[Node]]:
        """The operators in parts, in an order in which they can be run; the others are alone."""
        part_of: dict[Node, int] = {}
        for number, nodes in enumerate(self.taken):
            part_of |= dict.fromkeys(nodes, number)
        found, left = [*self.taken], [n for n in self.analysis.operators if n not in part_of]
        for node in left:
            part_of[node] = len(found)
            found.append([node])
        return [found[number] for number in self._in_order(part_of)]

    def _in_order(self, part_of: Mapping[Node, int]) -> Iterator[int]:
        """The numbers of parts, each after those that it needs, else as the model has them."""
        operators = self.analysis.operators
        needed: dict[int, set[int]] = {part_of[node]: set() for node in operators}
        left = dict.fromkeys(needed, 0)
        for node, before in self.analysis.needs.items():
            own = part_of[node]
            needed[own] |= {part_of[n] for n in before if n in part_of} - {own}
            left[own] += 1
        done: set[int] = set()
        waiting: dict[int, None] = {}
        for node in operators:
            waiting[part_of[node]] = None
            left[part_of[node]] -= 1
            ready = True
            while ready:
                ready = False
                for number in [x for x in waiting if not left[x] and needed[x] <= done]:
                    del waiting[number]
                    done.add(number)
                    yield number
                    ready = True
        if waiting:
            raise RuntimeError("parts need each other: " + ", ".join(map(str, waiting)))

    def leave(self, choices: Mapping[Node, LibraryChoice]) -> None:
        """Leaves operators to PyTorch, some of which may be new and read new constants.

        New operators may take the place of others. Parts lose the nodes that nothing reads now.
        """
        self.libraries |= choices
        analysis, constants = self.analysis, self.constants
        made = [] if constants is None else constants.inputs(analysis.module.graph)
        static, library = analysis.static.union(made), analysis.library | choices.keys()
        self.analysis = analysis.after_changes(static, library)
        alive = {*self.analysis.nodes}
        self.take(filter(None, ([n for n in part if n in alive] for part in self.taken)))
        self.programs.clear()

    def misc(self, node: Node) -> Unfused | Library:
        """An operator that no kernel is meant to compute: its dtype, its layout or its indices."""
        if node in self.libraries:
            return Library(node, self.analysis.regions[node], self.libraries[node])
        known = row_for(node.target) is not None
        usual = REASON if is_collective(node.target) else "not in the operator table"
        reason = (refusal(node) if known else None) or usual
        return Unfused(node, self.analysis.regions[node], reason, is_fallback=False)

    def fallback(self, node: Node, reason: str) -> Unfused:
        """An operator that has no kernel, though one was to be expected."""
        is_known = row_for(node.target) is not None
        if is_known and self.options.strict:
            raise Unexpressed(operator=name_of(node), reason=reason, node=node)
        if is_known:
            log.warning("%s runs eagerly: %s", name_of(node), reason)
        return Unfused(node, self.analysis.regions[node], reason, is_known)

    def fused(self, nodes: Sequence[Node]) -> list[Group]:
        """Nodes as one part, or as several if they do not go together."""
        groups: list[Group] = []
        stack = [[*nodes]]
        while stack:
            part = stack.pop()
            try:
                groups.append(self.compile_part(part))
            except Unexpressed as error:
                log.debug("cut at %s", error)
                if len(part) == 1:
                    groups.append(self.fallback(error.at, str(error.reason)))
                else:
                    stack += reversed(self.cut(part, error.at))
            except NoCompiler as error:
                if self.options.strict:
                    raise
                self.tell_of_no_compiler(error)
                regions = self.analysis.regions
                groups += [Unfused(n, regions[n], str(error), is_fallback=True) for n in part]
            except Exception as error:  # whatever it is: the model runs, and `explain` says why
                if self.options.strict:
                    raise
                if len(part) == 1:
                    groups.append(self.fallback(part[0], f"{type(error).__name__}: {error}"))
                else:
                    stack += reversed(self.halves(part, error))
        return groups

    def tell_of_no_compiler(self, error: NoCompiler) -> None:
        if not self.has_told:
            self.has_told = True
            log.warning("the model runs eagerly: %s", error)

    def halves(self, part: list[Node], error: Exception) -> list[list[Node]]:
        """Both halves of a part that has no kernel; the reason is kept."""
        reason = f"{len(part)} operators from {name_of(part[0])} on: {error}"
        log.warning("a part has no kernel and is halved: %s", reason)
        self.halved.append(reason)
        half = len(part) // 2
        return [part[:half], part[half:]]

    def cut(self, part: list[Node], at: Node) -> list[list[Node]]:
        """The pieces of a part that cannot be expressed because of one node."""
        after = {at}
        for node in part:
            bases = {self.analysis.owner(self.analysis.base(n)) for n in node.all_input_nodes}
            if bases & after:
                after.add(node)
        before = [n for n in part if n not in after]
        rest = [n for n in part if n in after]
        return [before, rest] if before else [[at], [n for n in rest if n is not at]]

    def compile_part(self, nodes: list[Node]) -> Fused:
        """Nodes as one program with its kernels, compiled or known from an equal part."""
        part = self.program(nodes)
        target, device = self.options.target_of(nodes), device_of(nodes)
        key = self.key(part, target)
        executable = _COMPILED.get(key)
        if executable is None:
            built = self.built.pop(key, None)
            if built is not None:
                executable = built.result()
            else:
                executable = self.executable(part, target, device, *self.chosen(part, target))
            if target == "cuda":
                self.try_out(part, executable, device)
            _COMPILED.put(key, executable)
        return Fused(part, self.analysis.regions[nodes[0]], executable)

    def chosen(self, part: PartProgram, target: str) -> tuple[list[Choice], Elsewhere]:
        """The choices for a part, and those for other sizes."""
        return self.choices(part, target), self.elsewhere(part, target)

    def executable(
        self,
        part: PartProgram,
        target: str,
        device: torch.device,
        choices: Sequence[Choice],
        elsewhere: Elsewhere,
    ) -> Executable:
        """The compiled kernels of a part; any thread may make them."""
        executable = executable_of(choices, self.threads if target == "cpu" else None, elsewhere)
        runner = executable.runner
        if target == "cuda" and isinstance(runner, Compiled):
            from blockbuster_fusion.runtime.triton.ahead import compile_ahead

            with _disable_current_modes():
                runs = [
                    self.examples(part, torch.device("meta"), length)
                    for length in self.trials(part, executable)
                ]
                compile_ahead(runner, runs, device)
        return executable

    @property
    def threads(self) -> int:
        """The number of threads of kernels on a CPU."""
        return self.options.threads or torch.get_num_threads()

    def prefer(self, nodes: Sequence[Node], choice: Choice) -> None:
        """Makes a choice the first one for a part."""
        part, target = self.program(nodes), self.options.target_of(nodes)
        known = self.candidates(part, target)
        choices = [choice, *known.choices]
        _CHOSEN.put(self.key(part, target), replace(known, choices=choices))
        executable = executable_of(
            choices, self.threads if target == "cpu" else None, self.elsewhere(part, target)
        )
        _COMPILED.put(self.key(part, target), executable)

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
                found = Candidates(choose(request), None)
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
        return Candidates([*tuned, *best], improver)

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
            self.ranged[key] = found.improver.elsewhere(found.choices[0], points)
        return self.ranged[key]

    def planned_elsewhere(self, part: PartProgram, target: str) -> Elsewhere:
        """The choices for other sizes that a plan has."""
        planned = self.planned[part.nodes]
        request = self.request(part, target)
        found = [choose(replace(request, config=config))[0] for config in planned.others]
        return Elsewhere(Ranges(tuple(x.scale for x in planned.divisions)), tuple(found))

    def request(self, part: PartProgram, target: str) -> Request:
        """The program of a part, to be fused."""
        return Request(
            part.expressed.program,
            target=target,
            dtype=part.storage,
            capability=capability_of(target),
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

    def tuning(self, part: PartProgram, target: str) -> Key:
        """The key of a part's measurements."""
        program = part.expressed.program
        return tuning_key(program, part.storage, self.sizes(part), self.machine(target))

    def try_out(self, part: PartProgram, executable: Executable, device: torch.device) -> None:
        """Runs a part once on zeros in each range of sizes, so that a failing kernel fails now."""
        with _disable_current_modes(), torch.no_grad():
            for length in self.trials(part, executable):
                try:
                    given, sizes = self.examples(part, device, length)
                    executable.runner.run(given, sizes, library_on(device))
                except torch.OutOfMemoryError:  # such sizes need never come
                    if length is self.expected.captured:
                        raise

    def trials(self, part: PartProgram, executable: Executable) -> list[Length]:
        """Lengths of which each range of sizes has one; among them those of the captured call."""
        runner, captured = executable.runner, self.expected.captured
        if not isinstance(runner, Compiled) or not runner.ranges.scales:
            return [captured]
        others = [x for name in self.expected.lengths for x in self.expected.along(name)]
        served = {runner.ranges.number(self.extents(part, x).sizes): x for x in others[::-1]}
        return [*(served | {0: captured}).values()]

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
        return (*program, storage, target, *sizes, self.threads, self.planned_key(part))

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
