"""The parts of a graph: each with its kernels, and what is left to PyTorch with the reason."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

import torch
from torch._logging._internal import getArtifactLogger
from torch.fx import Node
from torch.utils._python_dispatch import _disable_current_modes

from blockbuster_fusion.compiler import compile as compile_program
from blockbuster_fusion.errors import NoCompiler
from blockbuster_fusion.messages import log
from blockbuster_fusion.progress import doing
from blockbuster_fusion.runtime.executable import Executable
from blockbuster_fusion.runtime.recently_used import RecentlyUsed
from blockbuster_fusion.runtime.tensors import STORED, library_on
from blockbuster_fusion.select.parts import Kind, Layerwise, Selection
from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.capture.describe import described
from blockbuster_fusion.torch.capture.nodes import name_of, tensors_of
from blockbuster_fusion.torch.capture.operators import refusal
from blockbuster_fusion.torch.capture.sizes import captured_length
from blockbuster_fusion.torch.table import row_for
from blockbuster_fusion.torch.to_array_program import Expression, Part, Unexpressed


@dataclass(frozen=True)
class Options:
    """What a caller may say about how a model is compiled."""

    target: str | None = None
    """"cpu", "cuda" or "interpret"; by default where the model's tensors are."""
    strict: bool = False
    """Keep every conversion where the model has it, and raise instead of running eagerly."""
    threads: int | None = None
    selection: Selection | None = None
    """How a graph is cut into parts; by default by the policy of select/parts.py."""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in fields(cls))

    def target_of(self, nodes: Iterable[Node]) -> str:
        """The target of some nodes: the caller's, or the type of the device that they run on."""
        return self.target or device_of(nodes).type


@dataclass(frozen=True)
class Fused:
    """A part with its kernels."""

    part: Part
    region: str
    executable: Executable


@dataclass(frozen=True)
class Unfused:
    """An operator that PyTorch runs, and why."""

    node: Node
    region: str
    reason: str
    is_fallback: bool
    """Whether the operator table knows it, so that a kernel was to be expected."""

    @property
    def operator(self) -> str:
        return name_of(self.node)


@dataclass(frozen=True)
class Joined:
    """Arrays put behind one another in memory: kernels store them there in the first place."""

    node: Node
    region: str


Group = Fused | Unfused | Joined


MOST_COMPILED = 256
"""The number of executables that are kept for other models."""
_COMPILED = RecentlyUsed[Executable](MOST_COMPILED)
"""Executables of this process, by what they compute: equal layers share theirs."""


class Grouping:
    """The groups of a graph in the making, in the order in which they are run."""

    def __init__(self, analysis: Analysis, options: Options, target: str) -> None:
        """`target` is that of the whole graph; a part on another device has its own."""
        self.analysis, self.options, self.target = analysis, options, target
        self.regions = analysis.regions
        self.groups: list[Group] = []
        self.has_told = False
        self.halved: list[str] = []
        """The parts for which there was no kernel as a whole, and why."""

    def grouped(self) -> list[Group]:
        """All operators of the graph, fused, joined or left to PyTorch."""
        analysis = self.analysis
        operators = described(analysis)
        parts = list(self.selection().parts(operators))
        with doing("parts", len(parts)) as task:
            for numbers in parts:
                nodes = [analysis.operators[i] for i in numbers]
                if analysis.is_join(nodes[0]):
                    self.groups.append(Joined(nodes[0], self.regions[nodes[0]]))
                elif operators[numbers[0]].kind is Kind.MISC:
                    self.leave(nodes[0])
                else:
                    self.groups += self.fused(nodes)
                task.step()
        return self.groups

    def selection(self) -> Selection:
        return self.options.selection or Layerwise(apart=self.target == "cuda")

    def leave(self, node: Node, reason: str | None = None) -> None:
        self.groups.append(self.unfused(node, reason))

    def unfused(self, node: Node, reason: str | None = None) -> Unfused:
        known = row_for(node.target) is not None
        if reason is None:
            reason = (refusal(node) if known else None) or "not in the operator table"
            known = False  # its dtype or its layout, or an index that is data
        if known and self.options.strict:
            raise Unexpressed(operator=name_of(node), reason=reason, node=node)
        if known:
            log.warning("%s runs eagerly: %s", name_of(node), reason)
        return Unfused(node, self.regions[node], reason, known)

    def fused(self, nodes: Sequence[Node]) -> list[Group]:
        """Nodes as one part, or as several where they do not go together."""
        made: list[Group] = []
        stack = [[*nodes]]
        while stack:
            group = stack.pop()
            try:
                made.append(self.compiled(group))
            except Unexpressed as error:
                log.debug("cut at %s", error)
                stack += reversed(self.cut(group, error.at, str(error.reason), made))
            except NoCompiler as error:
                if self.options.strict:
                    raise
                self.tell_of_no_compiler(error)
                made += [Unfused(n, self.regions[n], str(error), is_fallback=True) for n in group]
            except Exception as error:  # whatever it is: the model runs, and `explain` says why
                if self.options.strict:
                    raise
                half = len(group) // 2
                if not half:
                    made.append(self.unfused(group[0], f"{type(error).__name__}: {error}"))
                else:
                    reason = f"{len(group)} operators from {name_of(group[0])} on: {error}"
                    log.warning("a part has no kernel and is halved: %s", reason)
                    self.halved.append(reason)
                    stack += [group[half:], group[:half]]
        return made

    def tell_of_no_compiler(self, error: NoCompiler) -> None:
        if not self.has_told:
            self.has_told = True
            log.warning("the model runs eagerly: %s", error)

    def cut(self, group: list[Node], at: Node, reason: str, made: list[Group]) -> list[list[Node]]:
        """The parts of a group that has no form because of one node."""
        if len(group) == 1:
            made.append(self.unfused(at, reason))
            return []
        after = {at}
        for node in group:
            bases = {self.analysis.owner(self.analysis.base(n)) for n in node.all_input_nodes}
            if bases & after:
                after.add(node)
        before = [n for n in group if n not in after]
        rest = [n for n in group if n in after]
        return [before, rest] if before else [[at], [n for n in rest if n is not at]]

    def compiled(self, group: list[Node]) -> Fused:
        inside = set(group)
        results = [needed for n in group for needed in self.analysis.stored_results(n, inside)]
        strict = self.options.strict
        part = Expression(self.analysis, group, self.name(group), strict).part(results)
        target = self.options.target_of(group)
        threads = self.options.threads or torch.get_num_threads()
        storage = tuple((name, str(dtype)) for name, dtype in part.storage.items())
        key = (part.expressed.program, storage, target, threads)
        made = _COMPILED.get(key)
        if made is None:
            made = compile_program(
                part.expressed.program,
                target=target,
                dtype=part.storage,
                threads=threads if target == "cpu" else None,
            )
            if target == "cuda":  # Triton compiles when a kernel is first launched
                self.try_out(part, made, device_of(group))
            _COMPILED.put(key, made)
        return Fused(part, self.regions[group[0]], made)

    def try_out(self, part: Part, executable: Executable, device: torch.device) -> None:
        """Run a part once on zeros, so that what fails in it fails now and not in the model."""
        length = captured_length(self.analysis)
        with _disable_current_modes(), torch.no_grad():
            given = [
                torch.zeros(
                    [length(size) for position in layout.positions for size, _ in position],
                    dtype=STORED[part.storage[layout.name]],
                    device=device,
                )
                for layout in part.expressed.inputs
            ]
            sizes = tuple((axis, length(size)) for axis, size in part.expressed.sizes)
            executable.runner.run(given, sizes, library_on(device))

    def name(self, group: Sequence[Node]) -> str:
        """A name for a part that is the same in every layer: its operators, in order."""
        words = [name_of(n).split(".")[1].strip("_").removeprefix("native_") for n in group]
        kept = [word for i, word in enumerate(words) if i == 0 or word != words[i - 1]]
        name = "_".join(kept)
        while len(name) > MOST_LETTERS and len(kept) > 2:
            del kept[len(kept) // 2]
            name = "_".join(kept)
        return name[:MOST_LETTERS].rstrip("_")


MOST_LETTERS = 48
"""The length of the longest name of a part."""


def distinct_names(groups: Iterable[Group]) -> dict[tuple[int, str], str]:
    """A name for each kernel, by its executable's id and its own name: that name, with a number
    where kernels that differ have it too."""
    found: dict[tuple[int, str], str] = {}
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


def log_sources(groups: Iterable[Group], names: Mapping[tuple[int, str], str]) -> None:
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
    """The device that a group runs on: that of its results, which may be single numbers.

    A number on the CPU goes with tensors on any device, so it counts only where all are there.
    """
    devices = (t.device for n in nodes for t in tensors_of(n))
    return next((d for d in devices if d.type != "cpu"), torch.device("cpu"))
