"""Compiles the parts of a graph, each to kernels; what is left to PyTorch has a reason."""

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch._logging._internal import getArtifactLogger
from torch.fx import Node
from torch.utils._python_dispatch import _disable_current_modes

from blockbuster_fusion.compiler import (
    Choice,
    Request,
    capability_of,
    check_target,
    choose,
    executable_of,
    improved,
)
from blockbuster_fusion.errors import BlockbusterError, NoCompiler
from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.machine.machine import Machine
from blockbuster_fusion.messages import log
from blockbuster_fusion.progress import doing
from blockbuster_fusion.runtime.executable import Executable
from blockbuster_fusion.runtime.recently_used import RecentlyUsed
from blockbuster_fusion.runtime.tensors import STORED, library_on
from blockbuster_fusion.runtime.tuning_database import Record, database
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.schedule.space import Config
from blockbuster_fusion.select.parts import Kind, Layerwise, Selection
from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.capture.describe import described
from blockbuster_fusion.torch.capture.nodes import name_of, tensors_of
from blockbuster_fusion.torch.capture.operators import refusal
from blockbuster_fusion.torch.capture.sizes import captured_length
from blockbuster_fusion.torch.machines import machine_for
from blockbuster_fusion.torch.rivals.workers import usual_workers
from blockbuster_fusion.torch.table import row_for
from blockbuster_fusion.torch.to_array_program import PartBuilder, PartProgram, Unexpressed
from blockbuster_fusion.torch.tuned import tuning_key

MOST_COMPILED = 256
"""The number of executables that are kept for other models."""
_COMPILED = RecentlyUsed[Executable](MOST_COMPILED)
"""Executables of this process, by what they compute: equal layers share theirs."""
_CHOSEN = RecentlyUsed[list[Choice]](MOST_COMPILED)
"""Snapshots with tiles and schedules, by what they compute."""

MOST_LETTERS = 48
"""The length of the longest name of a part."""


@dataclass(frozen=True)
class Options:
    """The options of a caller for the compilation of a model."""

    target: str | None = None
    """"cpu", "cuda" or "interpret"; by default, the device of the model's tensors."""
    strict: bool = False
    """Keep every conversion where the model has it, and raise instead of running eagerly."""
    threads: int | None = None
    selection: Selection | None = None
    """The policy that cuts a graph into parts; by default, that of select/parts.py."""
    library: str = field(default_factory=lambda: os.environ.get("BLOCKBUSTER_LIBRARY", "auto"))
    """"auto" runs PyTorch's operators where they are faster than kernels, "never" does not."""
    seconds: float = 600.0
    """The seconds after which tuning measures one configuration of each part only."""
    workers: int = field(default_factory=usual_workers)
    """The number of configurations that tuning compiles at a time."""
    ray: str | None = None
    """The address of a Ray cluster that tunes: "auto", "local" or HOST:PORT."""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in fields(cls))

    def target_of(self, nodes: Iterable[Node]) -> str:
        """The target of some nodes: the caller's, or the type of the device that they run on."""
        return self.target or device_of(nodes).type


@dataclass(frozen=True)
class Fused:
    """A part with its kernels."""

    part: PartProgram
    region: str
    executable: Executable


@dataclass(frozen=True)
class Unfused:
    """An operator that PyTorch runs, with the reason."""

    node: Node
    region: str
    reason: str
    is_fallback: bool
    """True if the operator table knows it, so that a kernel was to be expected."""

    @property
    def operator(self) -> str:
        return name_of(self.node)


@dataclass(frozen=True)
class Joined:
    """A concatenation whose pieces are stored in place, by kernels if they compute them."""

    node: Node
    region: str


@dataclass(frozen=True)
class LibraryChoice:
    """A part that PyTorch's operators run, because kernels for it would be slower."""

    operators: tuple[str, ...]
    region: str
    library: Seconds
    """The measured time of PyTorch's operators."""
    kernels: Seconds
    """The time of the best kernels that there are."""
    basis: str
    """How the time of the kernels is known: predicted, measured, or "at least"."""
    config: str
    """The configuration of these kernels."""

    def data(self) -> dict[str, Any]:
        """The choice as plain data."""
        return {
            "operators": [*self.operators],
            "region": self.region,
            "library_seconds": self.library.total(),
            "kernel_seconds": self.kernels.total(),
            "basis": self.basis,
            "config": self.config,
        }

    def __str__(self) -> str:
        words = ", ".join(dict.fromkeys(name.split(".")[1] for name in self.operators))
        where = f" in {self.region}" if self.region else ""
        ours = f"{self.kernels} {self.basis}" + (f" ({self.config})" if self.config else "")
        return f"{words}{where}: {self.library} measured; kernels {ours}"


@dataclass(frozen=True)
class Library:
    """An operator that PyTorch runs by choice."""

    node: Node
    region: str
    choice: LibraryChoice


Group = Fused | Unfused | Joined | Library
"""Operators that are run together."""

KernelNames = dict[tuple[int, str], str]
"""The name of each kernel in a model, by the id of its executable and its own name."""


class PartCompiler:
    """Compiles the parts of a graph in the order in which they are run."""

    def __init__(self, analysis: Analysis, options: Options, target: str) -> None:
        """`target` is that of the whole graph; a part on another device has its own."""
        self.analysis, self.options, self.target = analysis, options, target
        self.libraries: dict[Node, LibraryChoice] = {}
        """The operators that PyTorch runs by choice."""
        self.pays = True
        """False if the captured graph is faster than any plan."""
        self.has_told = False
        self.halved: list[str] = []
        """The parts for which there was no kernel as a whole, with the reasons."""

    def compiled(self) -> list[Group]:
        """All operators of the graph: fused, joined or left to PyTorch."""
        analysis = self.analysis
        parts = self.parts()
        groups: list[Group] = []
        with doing("parts", len(parts)) as task:
            for nodes in parts:
                if analysis.is_join(nodes[0]):
                    groups.append(Joined(nodes[0], analysis.regions[nodes[0]]))
                elif analysis.kind(nodes[0]) is Kind.MISC:
                    groups.append(self.misc(nodes[0]))
                else:
                    groups += self.fused(nodes)
                task.step()
        return groups

    def parts(self) -> list[list[Node]]:
        """The operators in parts, in an order in which they can be run."""
        operators = self.analysis.operators
        policy = self.options.selection or Layerwise(apart=self.target == "cuda")
        return [[operators[i] for i in part] for part in policy.parts(described(self.analysis))]

    def misc(self, node: Node) -> Unfused | Library:
        """An operator that no kernel is meant to compute: its dtype, its layout or its indices."""
        if node in self.libraries:
            return Library(node, self.analysis.regions[node], self.libraries[node])
        known = row_for(node.target) is not None
        reason = (refusal(node) if known else None) or "not in the operator table"
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
        target, threads = self.options.target_of(nodes), self.threads
        key = (*_key(part, target), self.sizes(part), threads)
        executable = _COMPILED.get(key)
        if executable is None:
            choices = self.choices(part, target)
            executable = executable_of(choices, threads if target == "cpu" else None)
            if target == "cuda":  # Triton compiles when a kernel is first launched
                self.try_out(part, executable, device_of(nodes))
            _COMPILED.put(key, executable)
        return Fused(part, self.analysis.regions[nodes[0]], executable)

    @property
    def threads(self) -> int:
        """The number of threads of kernels on a CPU."""
        return self.options.threads or torch.get_num_threads()

    def prefer(self, nodes: Sequence[Node], choice: Choice) -> None:
        """Makes a choice the first one for a part."""
        part, target = self.program(nodes), self.options.target_of(nodes)
        key = (*_key(part, target), self.sizes(part))
        choices = [choice, *self.choices(part, target)]
        _CHOSEN.put((*key, self.threads), choices)
        threads = self.threads if target == "cpu" else None
        _COMPILED.put((*key, self.threads), executable_of(choices, threads))

    def program(self, nodes: Sequence[Node]) -> PartProgram:
        """Nodes as one array program, or Unexpressed."""
        inside = set(nodes)
        results = [x for n in nodes for x in self.analysis.stored_results(n, inside)]
        return PartBuilder(self.analysis, nodes, part_name(nodes), self.options.strict).part(
            results
        )

    def choices(self, part: PartProgram, target: str) -> list[Choice]:
        """The snapshots of a part with their tiles and schedules, the best first."""
        key = (*_key(part, target), self.sizes(part), self.threads)
        found = _CHOSEN.get(key)
        if found is None:
            check_target(target)
            request = Request(
                part.expressed.program,
                target=target,
                dtype=part.storage,
                capability=capability_of(target),
            )
            found = choose(request)
            if target in ("cpu", "cuda"):
                found = improved(found, self.sizes(part), self.machine(target))
                found = [*self.tuned(part, request), *found]
            _CHOSEN.put(key, found)
        return found

    def record(self, part: PartProgram, target: str) -> Record | None:
        """The best measurement of a part's kernels by earlier tuning, if there is any."""
        program, sizes = part.expressed.program, self.sizes(part)
        return database().best(tuning_key(program, part.storage, sizes, self.machine(target)))

    def tuned(self, part: PartProgram, request: Request) -> list[Choice]:
        """The choice that was the best in earlier tuning, if there is any."""
        record = self.record(part, request.target)
        if record is None:
            return []
        try:
            return choose(replace(request, config=Config.from_data(record.config)))
        except BlockbusterError as error:  # the generator has changed since
            log.debug("a tuned configuration is left out: %s", error)
            return []

    def try_out(self, part: PartProgram, executable: Executable, device: torch.device) -> None:
        """Runs a part once on zeros, so that a kernel that fails does so now."""
        with _disable_current_modes(), torch.no_grad():
            given, sizes = self.examples(part, device)
            executable.runner.run(given, sizes, library_on(device))

    def examples(
        self, part: PartProgram, device: torch.device
    ) -> tuple[list[torch.Tensor], tuple[tuple[Axis, int], ...]]:
        """Arrays of zeros for the inputs of a part, and the sizes of the captured call."""
        length = captured_length(self.analysis)
        given = [
            torch.zeros(
                [length(size) for position in layout.positions for size, _ in position],
                dtype=STORED[part.storage[layout.name]],
                device=device,
            )
            for layout in part.expressed.inputs
        ]
        return given, self.sizes(part)

    def sizes(self, part: PartProgram) -> tuple[tuple[Axis, int], ...]:
        """The lengths of a part's axes in the captured call."""
        length = captured_length(self.analysis)
        return tuple((axis, length(size)) for axis, size in part.expressed.sizes)

    def machine(self, target: str) -> Machine:
        """The machine that kernels for a target run on."""
        return machine_for(target, self.options.threads)


def _key(part: PartProgram, target: str) -> tuple[Any, ...]:
    """All that the kernels of a part depend on, but for the number of threads."""
    storage = tuple((name, str(dtype)) for name, dtype in part.storage.items())
    return (part.expressed.program, storage, target)


def part_name(nodes: Sequence[Node]) -> str:
    """A name for a part that is the same in every layer: its operators, in order."""
    words = [name_of(n).split(".")[1].strip("_").removeprefix("native_") for n in nodes]
    kept = [word for i, word in enumerate(words) if i == 0 or word != words[i - 1]]
    name = "_".join(kept)
    while len(name) > MOST_LETTERS and len(kept) > 2:
        del kept[len(kept) // 2]
        name = "_".join(kept)
    return name[:MOST_LETTERS].rstrip("_")


def distinct_names(groups: Iterable[Group]) -> KernelNames:
    """A distinct name for each kernel, by its executable's id and its own name.

    It is the kernel's own name, with a number if other kernels have it too.
    """
    found: KernelNames = {}
    used: set[str] = set()
    for part in (g for g in groups if isinstance(g, Fused)):
        nest = part.executable.nest
        for kernel in () if nest is None else nest.kernels:
            key = (id(part.executable), kernel.name)
            if key in found:
                continue
            name, number = kernel.name, 1
            while name in used:
                number += 1
                name = f"{kernel.name}_{number}"
            used.add(name)
            found[key] = name
    return found


output_code = getArtifactLogger("torch.blockbuster_fusion", "output_code")
"""The log that TORCH_LOGS=output_code shows; PyTorch has handlers for its own loggers alone."""


def log_sources(groups: Iterable[Group], names: KernelNames) -> None:
    """Logs the source of each executable once, with the names of its kernels."""
    logs = [logger for logger in (log, output_code) if logger.isEnabledFor(logging.DEBUG)]
    if not logs:
        return
    fused = [g for g in groups if isinstance(g, Fused)]
    for executable in {id(f.executable): f.executable for f in fused}.values():
        nest = executable.nest
        kernels = [] if nest is None else [names[id(executable), k.name] for k in nest.kernels]
        for logger in logs:
            logger.debug("kernel %s:\n%s", ", ".join(kernels), executable.source)


def device_of(nodes: Iterable[Node]) -> torch.device:
    """The device that nodes run on: that of their results, which may be single numbers.

    A number on the CPU goes with tensors on any device, so it counts only if all are there.
    """
    devices = (t.device for n in nodes for t in tensors_of(n))
    return next((d for d in devices if d.type != "cpu"), torch.device("cpu"))
