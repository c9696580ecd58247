"""Compiles the parts of a graph, each to kernels; what is left to PyTorch has a reason."""

import contextlib
import os
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch.fx import Node
from torch.utils._python_dispatch import _disable_current_modes

from blockbuster_fusion.array.axes import Length
from blockbuster_fusion.choice import Choice
from blockbuster_fusion.compiler import (
    executable_of,
)
from blockbuster_fusion.errors import NoCompiler
from blockbuster_fusion.improve import Elsewhere
from blockbuster_fusion.messages import log
from blockbuster_fusion.progress import doing
from blockbuster_fusion.runtime.compiled import Compiled
from blockbuster_fusion.runtime.executable import Executable
from blockbuster_fusion.runtime.recently_used import RecentlyUsed
from blockbuster_fusion.runtime.tensors import library_on
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.select.operators import Kind
from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.capture.collectives import REASON, is_collective
from blockbuster_fusion.torch.capture.nodes import name_of
from blockbuster_fusion.torch.capture.operators import refusal
from blockbuster_fusion.torch.capture.sizes import Span
from blockbuster_fusion.torch.freeze import Constants
from blockbuster_fusion.torch.groups import Fused, Group, Joined, Library, LibraryChoice, Unfused
from blockbuster_fusion.torch.options import Options, device_of
from blockbuster_fusion.torch.part_choices import PartChoices
from blockbuster_fusion.torch.table import row_for
from blockbuster_fusion.torch.to_array_program import PartProgram, Unexpressed

MOST_COMPILED = 256
"""The number of executables that are kept for other models."""
_COMPILED = RecentlyUsed[Executable](MOST_COMPILED)
"""Executables of this process, by what they compute: equal layers share theirs."""

PROCESSORS = os.cpu_count() or 1


class PartCompiler(PartChoices):
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
        super().__init__(analysis, options, target, span)
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
        self.later: dict[Hashable, tuple[Seconds, str, float]] = {}
        """The times of kernels for other sizes, with their configurations and errors."""
        self.taken: list[list[Node]] = []
        """The parts that kernels run."""
        self.built: dict[Hashable, Future[Executable]] = {}
        """The kernels that threads build, by part."""

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

    def prefer(self, nodes: Sequence[Node], choice: Choice) -> None:
        """Makes a choice the first one for a part, and compiles it."""
        part, target = self.program(nodes), self.options.target_of(nodes)
        choices = self.put_first(part, target, choice)
        threads = self.threads if target == "cpu" else None
        executable = executable_of(choices, threads, self.elsewhere(part, target))
        _COMPILED.put(self.key(part, target), executable)

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
