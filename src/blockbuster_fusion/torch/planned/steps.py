"""The steps of a compiled graph as plain data."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import takewhile
from typing import Literal

from torch._ops import OpOverload
from torch.fx import Node

from blockbuster_fusion.array.axes import Length
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.tiling import Extents, Tiling
from blockbuster_fusion.machine.machine import Machine
from blockbuster_fusion.messages import log
from blockbuster_fusion.plans.plan import (
    Division,
    Kernels,
    RunnerUp,
    Step,
    rounded,
)
from blockbuster_fusion.runtime.compiled import Compiled
from blockbuster_fusion.runtime.executable import Executable
from blockbuster_fusion.schedule.config import Config
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.select.operators import Kind
from blockbuster_fusion.torch.capture.called import called
from blockbuster_fusion.torch.capture.nodes import (
    has_effect,
    is_pure_operator,
    name_of,
    operand,
    short_name,
    tensor_operands,
)
from blockbuster_fusion.torch.capture.operator_graph import operator_name
from blockbuster_fusion.torch.capture.operators import concatenated
from blockbuster_fusion.torch.capture.sizes import ExpectedSizes
from blockbuster_fusion.torch.capture.source_lines import source_lines
from blockbuster_fusion.torch.capture.touched import bytes_of, touched
from blockbuster_fusion.torch.compiled_graph import CompiledGraph
from blockbuster_fusion.torch.groups import (
    CHEAP,
    UNJOINED,
    Fused,
    Group,
    Joined,
    KernelNames,
    Library,
    LibraryChoice,
    Unfused,
)
from blockbuster_fusion.torch.machines import machine_for
from blockbuster_fusion.torch.options import Options
from blockbuster_fusion.torch.planned.kernel_work import KernelWork, kernel_work
from blockbuster_fusion.torch.planned.operations import operations_of
from blockbuster_fusion.torch.rivals.composites import captured_names
from blockbuster_fusion.torch.rivals.library import LibraryTimes
from blockbuster_fusion.torch.to_array_program import PartProgram

SLOWER = "PyTorch's operators take longer"
Sizes = dict[str, int]
"""The bytes of arrays, by name."""


class PlannedGraph:
    """A compiled graph for one range of sizes, whose steps are described."""

    def __init__(
        self,
        graph: CompiledGraph,
        names: KernelNames,
        options: Options,
        seconds: Mapping[int, float] | None = None,
    ) -> None:
        """`names` has the name of each kernel, by its executable's id and its own name.

        `seconds` are times within the model, by the ids of parts and of nodes that PyTorch runs.
        """
        self.graph, self.names, self.options = graph, names, options
        self.seconds = seconds or {}
        self.analysis = graph.analysis
        self.by_name = {n.name: n for n in self.analysis.module.graph.nodes}
        self.works: dict[object, KernelWork] = {}
        """The work of kernels, by executable and sizes."""
        self.choices = {frozenset(x.nodes): x for x in graph.weighed}

    @cached_property
    def target(self) -> str:
        return self.options.target_of(self.analysis.module.graph.nodes)

    @cached_property
    def machine(self) -> Machine | None:
        """The machine that times are predicted for.

        The interpreter has none, and one that cannot be measured has no times.
        """
        if self.target not in ("cpu", "cuda"):
            return None
        try:
            return machine_for(self.target, self.options.threads)
        except BlockbusterError as error:
            log.debug("times are not predicted: %s", error)
            return None

    @cached_property
    def length(self) -> Length:
        """The lengths of sizes: of the captured call, or those that stand for the range."""
        return ExpectedSizes(self.analysis, self.graph.span).captured

    @property
    def usual(self) -> int | None:
        return None if self.graph.span is None else self.graph.span.usual

    @cached_property
    def times(self) -> LibraryTimes | None:
        """Measures PyTorch's operators, if kernels are weighed against them at all."""
        is_weighed = self.options.library != "never" and self.machine is not None
        return LibraryTimes(self.analysis, self.length) if is_weighed else None

    @cached_property
    def groups(self) -> list[Group]:
        """The operators that are run together, those that PyTorch runs beside the parts too.

        Such an operator depends on inputs alone; it comes before the first group that reads it.
        """
        known = {x.node for x in self.graph.groups if not isinstance(x, Fused)}
        beside = [n for n in self.graph.operated if n not in known and self.computes(n)]
        found: list[Group] = []
        for group in self.graph.groups:
            if isinstance(group, Fused):
                read = [self.by_name[x.source] for x in group.part.expressed.inputs]
            else:
                read = group.node.all_input_nodes
            roots = {self.analysis.base(n) for n in read}
            needed = [n for n in beside if n in roots]
            found += [Unfused(n, group.region, CHEAP, is_fallback=False) for n in needed]
            beside = [n for n in beside if n not in needed]
            found.append(group)
        return found + [Unfused(n, "", CHEAP, is_fallback=False) for n in beside]

    def computes(self, node: Node) -> bool:
        """True if a node computes something: it is no view, no size and no item of another."""
        is_operator = isinstance(node.target, OpOverload)
        return is_operator and self.analysis.kind(node) not in (Kind.VIEW, Kind.MISC)

    @cached_property
    def described(self) -> list[tuple[Group, Step]]:
        """The steps in order, with their groups."""
        shown = [g for g in self.groups if isinstance(g, Fused) or _is_operator(g.node)]
        return [(group, self.timed(group, self.step(group))) for group in shown]

    def timed(self, group: Group, step: Step) -> Step:
        """A step with its time within the model, if that was measured."""
        spent = self.seconds.get(id(group if isinstance(group, Fused) else group.node))
        return step if spent is None else replace(step, measured=rounded(Seconds(spent)))

    @property
    def steps(self) -> list[Step]:
        return [step for _, step in self.described]

    def step(self, group: Group) -> Step:
        match group:
            case Fused():
                return self.kernels(group)
            case Library(node, region, choice):
                is_all = {*choice.nodes} == {*captured_names(node)}
                known = choice.library if is_all else self.time(node)
                return self.operator("library", node, region, known, losing_kernels(choice))
            case Unfused(node, region, reason):
                return self.operator("misc", node, region, self.time(node), reason=reason)
            case Joined(node, region):
                is_stored = node in self.graph.joined
                if not is_stored:
                    return self.operator("misc", node, region, self.time(node), reason=UNJOINED)
                return self.join(node, region)

    # ---------------------------------------------------------------- arrays

    def array(self, node: Node) -> str:
        """The captured name of the array that a node is, or that it is a view of."""
        base = self.analysis.base(node)
        if base.target is operator.getitem and base.name not in self.graph.captured.names:
            base = operand(base)  # an item of an operator that stands for several
        return captured_names(base)[-1]

    def sizes(self, nodes: Iterable[Node]) -> Sizes:
        """The bytes of some arrays; of one that is seen in several ways, each byte once."""
        shown: dict[Node, list[Node]] = {}
        for node in nodes:
            shown.setdefault(self.analysis.base(node), []).append(node)
        found: Sizes = {}
        for base, views in shown.items():
            name = self.array(base)
            found[name] = found.get(name, 0) + touched(base, views, self.length)
        return found

    def operators(self, nodes: Iterable[Node]) -> dict[str, str]:
        """The operators of the captured graph that some nodes compute."""
        known = self.graph.captured.operators
        names = (name for node in nodes for name in captured_names(node))
        return {name: known[name] for name in names if name in known}

    # ---------------------------------------------------------------- PyTorch's operators

    def operator(
        self,
        kind: Literal["library", "misc"],
        node: Node,
        region: str,
        measured: Seconds | None,
        runner_up: RunnerUp | None = None,
        reason: str = "",
    ) -> Step:
        """The step of an operator that PyTorch runs."""
        reads, writes = self.sizes(tensor_operands(node)), self.written(node)
        operators = self.operators([node])
        is_whole = operators.keys() == {node.name}
        return Step(
            kind,
            called(node) if short_name(node) else operator_name(node),
            operators,
            reads,
            writes,
            sum(reads.values()),
            sum(writes.values()),
            operations_of(node, self.length),
            measured=rounded(measured),
            region=region,
            lines=source_lines([node]),
            recognised="" if is_whole else name_of(node),
            reason=reason,
            runner_up=runner_up,
        )

    def written(self, node: Node) -> Sizes:
        """The arrays that an operator writes: its results, or operands that it writes into."""
        if has_effect(node) and isinstance(node.args[0], Node):
            return self.sizes([operand(node)])
        if node in self.analysis.updates:
            return {self.array(node): bytes_of(operand(node, 2), self.length)}
        items = [n for n in node.users if n.target is operator.getitem]
        is_several = isinstance(node.meta.get("val"), tuple | list) and bool(items)
        return self.sizes(items) if is_several else self.sizes([node])

    def time(self, node: Node) -> Seconds | None:
        """The measured time of an operator; None if it may have effects, or is not measured."""
        target = node.target
        may_run = isinstance(target, OpOverload) and is_pure_operator(target)
        if self.times is None or not may_run or node in self.analysis.updates:
            return None
        try:
            return self.times.operator(node)
        except Exception as error:  # whatever it is: the plan has one time less
            log.debug("not measured: %s: %s", name_of(node), error)
            return None

    def join(self, node: Node, region: str) -> Step:
        """A concatenation: what kernels compute is in its place, all other pieces are copied."""
        pieces, _ = concatenated(node)
        computed = {n for f in self.graph.fused for n in f.part.results}
        copied = self.sizes(n for n in pieces if n not in computed)
        size = sum(copied.values())
        return Step(
            "join",
            short_name(node),
            self.operators([node]),
            self.sizes(pieces),
            self.sizes([node]),
            size,
            size,
            region=region,
            lines=source_lines([node]),
        )

    # ---------------------------------------------------------------- kernels

    def kernels(self, fused: Fused) -> Step:
        """The step of a part that kernels run."""
        part, executable = fused.part, fused.executable
        work = self.work(fused)
        launches = work.launches
        nodes = [n for n in part.nodes if _is_operator(n)]
        choice = self.choice(part.nodes)
        reads, writes = self.moved(fused, work)
        own = (sum(reads.values()), sum(writes.values()))
        if launches:
            own = (sum(x.bytes_read for x in launches), sum(x.bytes_written for x in launches))
        divisions, others = _elsewhere(executable)
        digest, config = executable.graph.digest, executable.config
        if config is not None:
            config = _fitted(config, executable.tiles)
        is_measured = choice is not None and choice.basis == "measured"
        return Step(
            "kernels",
            _title([x.name for x in launches], nodes),
            self.operators(nodes),
            reads,
            writes,
            *own,
            sum(x.flops for x in launches),
            rounded(work.predicted),
            rounded(choice.kernels) if choice is not None and is_measured else None,
            fused.region,
            source_lines(part.nodes),
            anew=tuple(self.operators(self.anew(part))),
            kernels=Kernels(digest, config, launches, divisions, others),
            runner_up=None if choice is None else losing_library(choice),
        )

    def anew(self, part: PartProgram) -> list[Node]:
        """The operators that a part computes beside its own."""
        own, kind = {*part.nodes}, self.analysis.kind
        return [n for n in part.covered if n not in own and kind(n) is not Kind.VIEW]

    def tiling(self, fused: Fused) -> Tiling:
        """The blocks of a part."""
        sizes = ((axis, self.length(size)) for axis, size in fused.part.expressed.sizes)
        return Tiling(Extents.of_sizes(sizes, "the captured call"), fused.executable.tiles)

    def work(self, fused: Fused) -> KernelWork:
        """The work of a part's kernels, which equal layers share."""
        executable, tiling = fused.executable, self.tiling(fused)
        key = (id(executable), tuple(tiling.extents.sizes.items()))
        if key not in self.works:
            own = id(executable)
            names = {name: shown for (other, name), shown in self.names.items() if other == own}
            self.works[key] = kernel_work(executable, tiling, self.machine, names)
        return self.works[key]

    def moved(self, fused: Fused, work: KernelWork) -> tuple[Sizes, Sizes]:
        """The arrays that a part reads and writes: as many bytes as kernels move of each."""
        expressed = fused.part.expressed
        sources = {x.name: self.by_name[x.source] for x in expressed.inputs}
        targets = dict(zip((x.name for x in expressed.outputs), fused.part.results, strict=True))
        if work.read is None or work.written is None:
            return self.sizes(sources.values()), self.sizes(targets.values())
        read, written = work.read, dict(work.written)
        scattered = {n: x.into.base for n, x in enumerate(expressed.program.outputs) if x.into}
        for number, base in scattered.items():  # it is written into an input
            name = expressed.outputs[number].name
            written[name] = written.get(expressed.inputs[base].name, 0)
        return self.named(sources, read), self.named(targets, written)

    def named(self, nodes: Mapping[str, Node], sizes: Mapping[str, int]) -> Sizes:
        """Bytes by the arrays of the graph."""
        found: Sizes = {}
        for name, node in nodes.items():
            if name in sizes:
                own = self.array(node)
                found[own] = found.get(own, 0) + sizes[name]
        return found

    def choice(self, nodes: Iterable[Node]) -> LibraryChoice | None:
        """The times of both rivals for a part; cheap operators may have been weighed with it."""
        names = frozenset(n.name for n in nodes)
        own = self.choices.get(names)
        return own or next((x for key, x in self.choices.items() if names <= key), None)


def losing_library(choice: LibraryChoice) -> RunnerUp:
    """PyTorch's operators, which kernels are faster than."""
    times = (rounded(choice.library), "measured", "", rounded(choice.kernels))
    return RunnerUp("library", choice.nodes, *times, SLOWER, instead_basis=choice.basis)


def losing_kernels(choice: LibraryChoice) -> RunnerUp:
    """Kernels that PyTorch's operators are faster than, or that there are none of."""
    seconds, basis = rounded(choice.kernels), choice.basis
    if choice.obstacle and choice.bound is not None:
        seconds, basis = rounded(choice.bound), "at least"
    times = (seconds, basis, choice.config, rounded(choice.library))
    why = (choice.reason, choice.obstacle)
    return RunnerUp("kernels", choice.nodes, *times, *why, instead_basis="measured")


def _elsewhere(executable: Executable) -> tuple[tuple[Division, ...], tuple[Config, ...]]:
    """The ranges of sizes that other kernels of a part serve, and their configurations."""
    runner = executable.runner
    if not isinstance(runner, Compiled) or not executable.configs:
        return (), ()
    numbers = [number for _, number in runner.ranges]
    configs = zip(numbers, (config for _, config in executable.configs), strict=True)
    found = {n: _fitted(config, runner.programs[n].tiles) for n, config in configs}
    divisions = tuple(Division.of(scale) for scale in runner.ranges.scales)
    return divisions, tuple(found[number] for number in sorted(found) if number)


def _fitted(config: Config, tiles: Mapping[Dim, int]) -> Config:
    """A configuration with the tiles of its kernels, which shared memory may have shortened."""
    made = {dim.label: tile for dim, tile in tiles.items()}
    return replace(config, tiles={label: made.get(label, n) for label, n in config.tiles.items()})


def _is_operator(node: Node) -> bool:
    """True if a node is an operator: not one of several results of another."""
    return node.op == "call_function" and node.target is not operator.getitem


def _title(kernels: Sequence[str], nodes: Iterable[Node]) -> str:
    """The name of a step: the words that its kernels share, or its operators if there are none."""
    words = zip(*(name.split("_") for name in kernels), strict=False)
    shared = [several[0] for several in takewhile(lambda x: len({*x}) == 1, words)]
    own = dict.fromkeys(map(called, nodes))
    return "_".join(shared) or "+".join(kernels or own)
