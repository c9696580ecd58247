"""Chooses what runs each part of a model: kernels, or PyTorch's own operators.

The captured graph is what the user had, so PyTorch's operators are the incumbent, and measured. A
kernel has to be faster than they are by more than the error of its prediction; with `measures` it
is compiled and measured instead. Products of a part that loses go to PyTorch first, and what is
left of the part is judged again: a kernel may still compute what comes before and after them.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch.fx import Node
from torch.utils._python_dispatch import _disable_current_modes

from blockbuster_fusion.compiler import Choice
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.ir.tiling import Extents, Tiling
from blockbuster_fusion.machine.machine import Machine
from blockbuster_fusion.messages import log
from blockbuster_fusion.progress import doing
from blockbuster_fusion.runtime.executable import Sizes
from blockbuster_fusion.runtime.tuning_database import Record
from blockbuster_fusion.schedule.cost import EFFICIENCY, Seconds, error_of, predicted
from blockbuster_fusion.schedule.space import Config
from blockbuster_fusion.select.parts import Kind
from blockbuster_fusion.torch.capture.nodes import name_of, short_name, tensor_of, tensors_of
from blockbuster_fusion.torch.capture.sizes import captured_length
from blockbuster_fusion.torch.capture.symbolic import as_size
from blockbuster_fusion.torch.compile_parts import LibraryChoice, PartCompiler, device_of
from blockbuster_fusion.torch.rivals.attention import Attention, found_attention
from blockbuster_fusion.torch.rivals.cluster import tuner_for
from blockbuster_fusion.torch.rivals.library import LibraryTimes
from blockbuster_fusion.torch.rivals.tuning import Subject
from blockbuster_fusion.torch.to_array_program import PartProgram
from blockbuster_fusion.torch.tuned import config_of

PLAN = {"cpu": 40e-6, "cuda": 60e-6}
"""Seconds of a call of a compiled graph beside its parts; the captured graph runs without."""
WORTH_IT = 1.02
"""The factor by which a measured kernel must be faster."""


@dataclass(frozen=True)
class Estimate:
    """The time of the kernels of a part, and how it is known."""

    seconds: Seconds
    basis: str
    config: str = ""
    error: float = 1.0
    """The factor by which they may be slower."""


class Chooser:
    """Moves operators of a graph to PyTorch until kernels win in all parts that are left."""

    def __init__(
        self,
        parts: PartCompiler,
        machine: Machine,
        *,
        measures: bool,
        replayed: bool,
        called: int,
    ) -> None:
        """`replayed`: launches are replayed, so that the time of the host does not count.

        The model calls PyTorch's attention `called` times.
        """
        self.parts, self.machine, self.called = parts, machine, called
        self.measures, self.replayed = measures, replayed
        own = parts.options
        self.tuner = tuner_for(own.seconds, own.workers, own.ray if measures else None)
        self.known: dict[object, Estimate] = {}
        self.gain, self.recognised = 0.0, 0.0
        """The seconds that kernels win, and that recognised attention wins."""
        self.won: list[tuple[Sequence[Node], LibraryChoice]] = []
        """The parts that kernels run, with the times."""

    def choose(self) -> None:
        """Makes the choice; the compiler of parts has a new analysis afterwards."""
        with doing("weighing kernels against PyTorch's operators"), self.tuner:
            while self.moved():
                pass
            if self.gain + self.recognised < PLAN[self.machine.target] and not self.replayed:
                self.leave_all()
                self.parts.pays = False

    def leave_all(self) -> None:
        """Moves all operators to PyTorch: kernels gain less than a call of the plan costs."""
        basis = "estimated, and gain less than a call of them costs"
        choices = {node: choice for nodes, choice in self.won for node in nodes}
        while True:  # operators that several parts computed anew become parts of their own
            analysis = self.parts.analysis
            left = [n for part in self.parts.parts() for n in part]
            left = [n for n in left if analysis.kind(n) is not Kind.MISC]
            if not left or not choices:
                return
            usual = next(iter(choices.values()))
            found = {node: replace(choices.get(node, usual), basis=basis) for node in left}
            self.parts.libraries |= found
            self.parts.analysis = replace(analysis, library=analysis.library | found.keys())

    def moved(self) -> bool:
        """Judges all parts once; True if some operators were moved to PyTorch."""
        self.gain, self.won = 0.0, []
        analysis = self.parts.analysis
        self.length = captured_length(analysis)
        self.times = LibraryTimes(analysis)
        self.attention = found_attention(analysis)
        found: dict[Node, LibraryChoice] = {}
        collapsed: list[tuple[Attention, LibraryChoice]] = []
        parts = [part for part in self.parts.parts() if analysis.kind(part[0]) is not Kind.MISC]
        if self.measures:
            self.tuner.ahead(self.subjects(parts))
        for nodes in parts:
            attention = self.attention_in(nodes)
            choice = self.judged(nodes, attention)
            if choice is None:
                continue
            within = {node for x in attention for node in x.members}
            heavy = [n for n in nodes if analysis.kind(n) is Kind.CONTRACTION and n not in within]
            heavy = heavy if heavy or attention else [*nodes]
            found |= dict.fromkeys(heavy, choice)
            collapsed += [(x, choice) for x in attention]
        replaced: dict[Node, Node] = {}
        for x, choice in collapsed:
            self.recognised += self.saved(x)
            found[x.collapse(analysis.module.graph, replaced)] = choice
        self.parts.libraries |= found
        self.parts.analysis = replace(analysis, library=analysis.library | found.keys())
        return bool(found)

    def attention_in(self, nodes: Sequence[Node]) -> list[Attention]:
        """The attention in a part that PyTorch's own may run."""
        inside = set(nodes)
        attention = [x for x in self.attention if inside.issuperset(x.members)]
        if len(self.attention) > self.called:  # else the model calls PyTorch's itself
            attention = [x for x in attention if self.saved(x) > 0]
        return attention

    def saved(self, x: Attention) -> float:
        """The seconds by which PyTorch's attention is faster than what it stands for."""
        whole = self.times.attention(x).total(replayed=self.replayed)
        return self.times.of(x.members).total(replayed=self.replayed) - whole

    def judged(self, nodes: Sequence[Node], attention: Sequence[Attention]) -> LibraryChoice | None:
        """The verdict on a part; of one that cannot be weighed, that kernels run it."""
        try:
            return self.verdict(nodes, attention)
        except Exception as error:  # whatever it is: the model runs, if only by kernels
            if self.parts.options.strict:
                raise
            log.warning("not weighed, so kernels run it: %s: %s", name_of(nodes[0]), error)
            self.gain = math.inf
            return None

    def verdict(
        self, nodes: Sequence[Node], attention: Sequence[Attention]
    ) -> LibraryChoice | None:
        """The choice of PyTorch's operators for a part, or None if kernels run it."""
        library = self.times.of(nodes, attention)
        limit = library.total(replayed=self.replayed)
        estimate = self.least(nodes)
        if self.may_win(estimate, limit):
            try:
                estimate = self.estimated(nodes)
            except BlockbusterError as error:
                log.debug("not weighed: %s", error)
                self.gain = math.inf
                return None  # the compiler of parts cuts it, or says why it cannot
        ours = estimate.seconds.total(replayed=self.replayed)
        choice = LibraryChoice(
            tuple(map(name_of, nodes)),
            self.parts.analysis.regions[nodes[0]],
            library,
            estimate.seconds,
            estimate.basis,
            estimate.config,
        )
        if not self.may_win(estimate, limit):
            return choice
        self.gain += limit - ours
        self.won.append((nodes, choice))
        return None

    def may_win(self, estimate: Estimate, limit: float) -> bool:
        """True if kernels are faster than a number of seconds, by more than the error."""
        return estimate.seconds.total(replayed=self.replayed) * estimate.error < limit

    def subjects(self, parts: Sequence[Sequence[Node]]) -> Iterator[Subject]:
        """The parts that are going to be measured; what one of them lacks is told later."""
        for nodes in parts:
            try:
                library = self.times.of(nodes, self.attention_in(nodes))
                if self.may_win(self.least(nodes), library.total(replayed=self.replayed)):
                    yield self.subject(nodes)
            except Exception as error:  # whatever it is: the verdict on the part meets it again
                log.debug("not sent ahead: %s: %s", name_of(nodes[0]), error)

    def least(self, nodes: Sequence[Node]) -> Estimate:
        """The least time that kernels could take: for their arrays, their products, one launch."""
        machine, analysis = self.machine, self.parts.analysis
        inside = set(nodes)
        read: dict[Node, int] = {}
        for source in (m for n in nodes for m in n.all_input_nodes):
            base = analysis.base(source)
            if base not in inside:  # of a slice, the elements that are read
                seen = min(self.bytes(source), self.bytes(base))
                read[base] = max(read.get(base, 0), seen)
        written = [x for n in nodes for x in analysis.stored_results(n, inside)]
        size = sum(read.values()) + sum(self.bytes(n) for n in written)
        home = machine.memory_for(size)
        products = [n for n in nodes if analysis.kind(n) is Kind.CONTRACTION]
        computing = sum(
            self.flops(n) / machine.rate(str(tensor_of(n).dtype).split(".")[1], matrix=True)
            for n in products
        )
        efficiency = EFFICIENCY[machine.target]
        error = efficiency.product_error if products else efficiency.error
        device = max(size / home.total, computing)
        host = machine.launch if machine.target == "cuda" else 0.0
        launch = 0.0 if machine.target == "cuda" else machine.launch
        return Estimate(
            Seconds(device + launch, host), "at least", "", 1.0 if self.measures else error
        )

    def bytes(self, node: Node) -> int:
        """The bytes of the results of a node."""
        return sum(
            self.length(as_size(math.prod(t.shape))) * t.dtype.itemsize for t in tensors_of(node)
        )

    def flops(self, node: Node) -> float:
        """The operations of a product: twice the elements of its result times what is summed."""
        left = node.args[1 if short_name(node) in ("addmm", "baddbmm") else 0]
        if not isinstance(left, Node) or short_name(node) == "convolution":
            return 0.0
        sizes = [*tensor_of(node).shape, tensor_of(left).shape[-1]]
        return 2.0 * math.prod(self.length(as_size(s)) for s in sizes)

    def estimated(self, nodes: Sequence[Node]) -> Estimate:
        """The time of the kernels of a part: predicted, or measured."""
        part = self.parts.program(nodes)
        target = self.parts.options.target_of(nodes)
        choices = self.parts.choices(part, target)
        sizes = tuple((axis, self.length(size)) for axis, size in part.expressed.sizes)
        key = (id(choices), sizes)
        if key not in self.known:
            made = self.timed(nodes) if self.measures else None
            if made is None:
                made = self.kept(part, target, choices[0]) or self.predicted(choices[0], sizes)
            self.known[key] = made
        return self.known[key]

    def kept(self, part: PartProgram, target: str, choice: Choice) -> Estimate | None:
        """The time that tuning has measured before, if it has."""
        record = self.parts.record(part, target)
        if record is None or str(Config.from_data(record.config)) != str(config_of(choice)):
            return None
        return self.measured(choice, record)

    def measured(self, choice: Choice, record: Record) -> Estimate:
        """The measured time of a choice."""
        host = self.machine.launch * len(choice.scheduled()[0].kernels)
        own = Seconds(record.seconds, 0.0 if self.machine.target == "cpu" else host)
        return Estimate(own, "measured", str(config_of(choice)), WORTH_IT)

    def predicted(self, choice: Choice, sizes: Sizes) -> Estimate:
        """The predicted time of a choice."""
        nest, tiles = choice.scheduled()
        extents = Extents()
        for axis, length in sizes:
            extents.bind(axis, length, "the captured call")
        seconds = predicted(nest, Tiling(extents, tiles), self.machine)
        return Estimate(seconds, "predicted", str(config_of(choice)), error_of(nest, self.machine))

    def subject(self, nodes: Sequence[Node]) -> Subject:
        """A part as a program to be tuned, with random inputs."""
        part, target = self.parts.program(nodes), self.parts.options.target_of(nodes)
        with _disable_current_modes(), torch.no_grad():
            zeros, sizes = self.parts.examples(part, device_of(nodes))
            inputs = [torch.randn_like(x) if x.is_floating_point() else x for x in zeros]
        return Subject(
            part.expressed.program,
            part.storage,
            self.parts.choices(part, target),
            inputs,
            sizes,
            self.machine,
            self.parts.threads if target == "cpu" else None,
        )

    def timed(self, nodes: Sequence[Node]) -> Estimate:
        """The measured time of the best configuration of a part, which becomes its choice."""
        found = self.tuner.best(self.subject(nodes))
        if found is None:  # no configuration is exact and runs
            return Estimate(Seconds(math.inf), "measured", "none is exact enough")
        choice, record = found
        self.parts.prefer(nodes, choice)
        return self.measured(choice, record)
