"""Chooses what runs each part of a model: kernels, or PyTorch's own operators.

The captured graph is what the user had, so PyTorch's operators are the incumbent, and measured. A
kernel has to be faster than they are by more than the error of its prediction; with `measures` it
is compiled and measured instead. Products of a part that loses go to PyTorch first, and what is
left of the part is judged again: a kernel may still compute what comes before and after them.
"""

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import replace

from torch.fx import Node

from blockbuster_fusion.array.lower import lower
from blockbuster_fusion.choice import Choice
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.ir.tiling import Extents, Tiling
from blockbuster_fusion.machine.machine import Machine
from blockbuster_fusion.messages import log
from blockbuster_fusion.progress import doing
from blockbuster_fusion.runtime.executable import Sizes
from blockbuster_fusion.runtime.tuning_database import Record
from blockbuster_fusion.schedule.cost import Seconds, error_of, predicted
from blockbuster_fusion.schedule.space import Config
from blockbuster_fusion.select.parts import Kind
from blockbuster_fusion.torch.capture.nodes import name_of
from blockbuster_fusion.torch.compile_parts import PartCompiler
from blockbuster_fusion.torch.groups import LibraryChoice
from blockbuster_fusion.torch.rivals.attention import found_attention
from blockbuster_fusion.torch.rivals.cluster import tuner_for
from blockbuster_fusion.torch.rivals.composites import Composite
from blockbuster_fusion.torch.rivals.crossings import Crossing
from blockbuster_fusion.torch.rivals.estimate import Estimate, library_entry
from blockbuster_fusion.torch.rivals.later_sizes import LaterSizes, joint_crossings
from blockbuster_fusion.torch.rivals.least import least
from blockbuster_fusion.torch.rivals.library import LibraryTimes
from blockbuster_fusion.torch.rivals.linears import found_linears
from blockbuster_fusion.torch.rivals.norms import found_norms
from blockbuster_fusion.torch.rivals.packed import found_packed
from blockbuster_fusion.torch.rivals.padded import found_padded
from blockbuster_fusion.torch.rivals.reasons import CALL, LATER, WHOLE, reason_of, sentence
from blockbuster_fusion.torch.rivals.trials import Trials
from blockbuster_fusion.torch.rivals.tuning import Subject, subject_of
from blockbuster_fusion.torch.rivals.weighing import ALL, MEASURED, Weighing
from blockbuster_fusion.torch.to_array_program import PartProgram


class Chooser:
    """Moves operators of a graph to PyTorch until kernels win in all parts that are left."""

    def __init__(self, parts: PartCompiler, machine: Machine, weighing: Weighing) -> None:
        self.parts, self.machine, self.given_up = parts, machine, weighing.given_up
        self.thorough = weighing.thorough
        whole = Counter(n.target for n in parts.analysis.nodes)
        self.called = {target: n - whole[target] for target, n in weighing.called.items()}
        self.own: frozenset[object] = frozenset()
        """The operators of composites that the model calls itself, wherever they are recognised."""
        self.measures, self.replayed = weighing.measures, weighing.replayed
        self.weighing = weighing
        own = parts.options
        self.tuner = tuner_for(own.seconds, own.workers, own.ray if self.measures else None)
        time_left = weighing.trial_time
        self.trials = Trials(self.tuner, machine.target, time_left, strict=own.strict)
        self.known: dict[object, Estimate] = {}
        self.gain, self.recognised = 0.0, 0.0
        """The seconds that kernels win, and that recognised composites win."""
        self.won: list[tuple[Sequence[Node], LibraryChoice]] = []
        """The parts that kernels run, with the times."""
        self.later: list[LaterSizes] = []
        """The same parts, to be weighed for other sizes."""
        self.crossings: dict[object, list[Crossing]] = {}
        """The sizes between which the faster one changes, by part: those that moved count too."""

    def choose(self) -> None:
        """Makes the choice; the compiler of parts has a new analysis afterwards."""
        with doing("weighing kernels against PyTorch's operators"), self.tuner:
            self.analyse()
            self.recognised += self.spared()
            found = Counter(x.operator for x in self.composites)
            self.own = frozenset(op for op, n in found.items() if n <= self.called.get(op, 0))
            while self.moved():
                self.analyse()
            self.collapse_rest()
            call_cost = self.weighing.call_cost(self.machine.target)
            if self.given_up == ALL:
                self.leave_all(WHOLE)
            elif not self.replayed and not self.pays(call_cost):
                needed = call_cost - self.recognised
                self.look_for_crossings("all", lambda: joint_crossings(self.later, needed))
                self.leave_all(CALL)
            self.restore_linears()

    def pays(self, call_cost: float) -> bool:
        """True if kernels win more than a call of the compiled graph costs.

        A GPU works while the host calls: the longer of both times counts, of the whole graph.
        """
        if self.machine.target == "cpu" or math.isinf(self.gain):
            return self.gain + self.recognised >= call_cost
        rest = {id(x): x.library for x in self.parts.libraries.values()}
        captured = ours = sum(rest.values(), Seconds(0.0))
        for _, choice in self.won:
            captured, ours = captured + choice.library, ours + choice.kernels
        ours += Seconds(0.0, call_cost)
        return ours.total() < captured.total() + self.recognised

    def spared(self) -> float:
        """The seconds of PyTorch's operators whose results are constants, or folded into some."""
        constants = self.parts.constants
        found = [] if constants is None else constants.spared
        return sum(self.times.operator(n).total(replayed=self.replayed) for n in found)

    def leave_all(self, reason: str) -> None:
        """Moves all operators to PyTorch."""
        self.parts.pays = False
        left_parts = [(nodes, replace(choice, reason=reason)) for nodes, choice in self.won]
        choices = {node: choice for nodes, choice in left_parts for node in nodes}
        while True:  # operators that several parts computed anew become parts of their own
            analysis = self.parts.analysis
            left = [n for part in self.parts.parts() for n in part]
            left = [n for n in left if analysis.kind(n) is not Kind.MISC]
            if not left or not choices:
                return
            usual = next(iter(choices.values()))
            found = {node: choices.get(node, usual) for node in left}
            self.parts.leave(found)

    def moved(self) -> bool:
        """Judges all parts once; True if some operators were moved to PyTorch."""
        self.gain, self.won, self.later = 0.0, [], []
        analysis = self.parts.analysis
        found: dict[Node, LibraryChoice] = {}
        collapsed: list[tuple[Composite, LibraryChoice]] = []
        parts = [part for part in self.parts.parts() if analysis.kind(part[0]) is not Kind.MISC]
        if self.measures:
            self.tuner.ahead(self.subjects(parts))
        for nodes in parts:
            composites = self.worthwhile(self.within(set(nodes)))
            cheap = self.recomputed(nodes, composites)
            choice = self.judged(nodes, cheap, composites)
            if choice is None:
                continue
            going, moving = self.first(nodes, cheap, composites)
            found |= dict.fromkeys(going, choice)
            collapsed += [(x, choice) for x in moving]
        return self.move(found, collapsed)

    def analyse(self) -> None:
        """Finds the composites of the graph as it is now, for which times are measured."""
        analysis = self.parts.analysis
        self.length = self.parts.expected.captured
        self.times = LibraryTimes(analysis, self.length)
        self.composites: list[Composite] = [
            *found_attention(analysis),
            *found_norms(analysis),
            *found_padded(analysis),
            *found_packed(analysis, self.parts.constants),
        ]

    def within(self, nodes: Container[Node]) -> list[Composite]:
        """The composites all of whose members are among some nodes."""
        return [x for x in self.composites if all(n in nodes for n in x.members)]

    def worthwhile(self, composites: Sequence[Composite]) -> list[Composite]:
        """The composites that are faster by one operator, and those that the model has as one."""
        return [x for x in composites if x.operator in self.own or self.is_faster(x)]

    def first(
        self, nodes: Sequence[Node], cheap: Sequence[Node], composites: Sequence[Composite]
    ) -> tuple[list[Node], list[Composite]]:
        """The operators and composites of a losing part that go to PyTorch now.

        Products do, alone or in composites; the rest is judged again. Without any, all do, and with
        them the cheap operators that only the part computes.
        """
        products = {n for n in nodes if self.parts.analysis.kind(n) is Kind.CONTRACTION}
        moving = [x for x in composites if not products.isdisjoint(x.members)]
        going = [n for n in nodes if n in products] if products else [*cheap, *nodes]
        moving = moving if products else [*composites]
        inside = {node for x in moving for node in x.members}
        return [n for n in going if n not in inside], moving

    def move(
        self, found: dict[Node, LibraryChoice], collapsed: Sequence[tuple[Composite, LibraryChoice]]
    ) -> bool:
        """Moves operators and composites to PyTorch; True if there are any."""
        analysis, replaced = self.parts.analysis, dict[Node, Node]()
        for x, choice in collapsed:
            self.recognised += 0.0 if x.operator in self.own else self.saved(x)
            made = x.collapse(analysis.module.graph, replaced)
            found[made] = choice
            self.parts.collapsed.append(made)
        self.parts.leave(found)
        return bool(found)

    def collapse_rest(self) -> None:
        """Collapses the composites whose members are of several parts that all went to PyTorch."""
        libraries, library = self.parts.libraries, self.parts.analysis.library
        found = self.worthwhile(self.within(library))
        self.move({}, [(x, libraries[x.members[-1]]) for x in found])

    def restore_linears(self) -> None:
        """Puts the linear layers whose products PyTorch runs back as one operator each."""
        analysis, replaced = self.parts.analysis, dict[Node, Node]()
        found = [x for x in found_linears(analysis) if x.members[0] in self.parts.libraries]
        made = {x.collapse(analysis.module.graph, replaced): x for x in found}
        libraries = self.parts.libraries
        self.parts.leave({node: libraries[x.members[0]] for node, x in made.items()})

    def recomputed(self, nodes: Sequence[Node], composites: Sequence[Composite]) -> list[Node]:
        """The cheap operators that a part alone computes anew, and PyTorch would have to run."""
        analysis = self.parts.analysis
        inside = set(nodes)
        needed = inside - {n for x in composites for n in x.members}
        operands = {n for x in composites for n in x.operands}
        found: list[Node] = []
        for node in reversed(analysis.nodes):
            if node not in analysis.recomputed or not inside.issuperset(node.users):
                continue
            inside.add(node)
            if node in operands or not needed.isdisjoint(node.users):
                needed.add(node)
                found.append(node)
        return [n for n in reversed(found) if analysis.kind(n) is not Kind.VIEW]

    def is_faster(self, x: Composite) -> bool:
        """True if PyTorch's one operator saves enough of the time of what it stands for."""
        members = self.times.of(x.members).total(replayed=self.replayed)
        return self.saved(x) > x.least_gain * members

    def saved(self, x: Composite) -> float:
        """The seconds by which PyTorch's one operator is faster than what it stands for."""
        whole = self.times.composite(x).total(replayed=self.replayed)
        return self.times.of(x.members).total(replayed=self.replayed) - whole

    def judged(
        self, nodes: Sequence[Node], cheap: Sequence[Node], composites: Sequence[Composite]
    ) -> LibraryChoice | None:
        """The verdict on a part; of one that cannot be weighed, that kernels run it."""
        try:
            return self.verdict(nodes, cheap, composites)
        except Exception as error:  # whatever it is: the model runs, if only by kernels
            if self.parts.options.strict:
                raise
            reason = str(error).strip().partition("\n")[0]
            log.warning("not weighed, so kernels run it: %s: %s", name_of(nodes[0]), reason)
            self.gain = math.inf
            return None

    def verdict(
        self, nodes: Sequence[Node], cheap: Sequence[Node], composites: Sequence[Composite]
    ) -> LibraryChoice | None:
        """The choice of PyTorch's operators for a part, or None if kernels run it.

        `cheap` are the operators of PyTorch's that the part computes beside its own.
        """
        library = self.times.of([*cheap, *nodes], composites)
        limit = library.total(replayed=self.replayed)
        least = estimate = self.at_least([*cheap, *nodes])
        may_win = self.may_win(least, limit) or (  # what is measured needs no margin
            self.may_win(replace(least, error=1.0), limit)
            and (self.trials.has_time or self.parts.was_measured(nodes))
        )
        if may_win:
            try:
                estimate = self.estimated(nodes, limit)
            except BlockbusterError as error:
                log.debug("not weighed: %s", error)
                self.gain = math.inf
                return None  # the compiler of parts cuts it, or says why it cannot
        elif self.thorough:
            estimate = self.looked_for(nodes, least)
        ours = estimate.seconds.total(replayed=self.replayed)
        reason = reason_of(may_win=may_win, is_slower=ours >= limit)
        region, whole = self.parts.analysis.regions[nodes[0]], [*cheap, *nodes]
        entry = library_entry(whole, region, composites, library, estimate)
        choice = replace(entry, bound=least.seconds, reason=reason)
        later = LaterSizes(self.parts, self.machine, self.weighing, nodes, cheap, composites)
        if not may_win or not self.may_win(estimate, limit):
            self.look_for_crossings(nodes[0], lambda: later.crossings(None))
            return choice
        if self.kind(nodes) in self.given_up:
            return replace(choice, reason=WHOLE)
        lost = later.loss()
        if lost is not None:
            self.look_for_crossings(nodes[0], lambda: later.crossings(limit - ours))
            return replace(lost.described(choice), reason=LATER, bound=None)
        self.gain += limit - ours
        self.won.append((nodes, choice))
        self.later.append(later)
        return None

    def look_for_crossings(self, part: object, found: Callable[[], Iterable[Crossing]]) -> None:
        """Notes the sizes between which the faster one of a part, or of all, changes."""
        if self.parts.span is not None:  # ranges are not divided again
            return
        try:
            self.crossings[part] = [*found()]
        except Exception as error:  # whatever it is: one choice is for all sizes
            if self.parts.options.strict:
                raise
            log.warning("one choice serves all sizes, as others were not weighed: %s", error)

    def kind(self, nodes: Sequence[Node]) -> str:
        """The kind of a part: parts of one kind have the same program, as layers of a model do."""
        return lower(self.parts.program(nodes).expressed.program).digest

    @property
    def gains(self) -> dict[str, float]:
        """The seconds that kernels win, by the kinds of parts."""
        found: dict[str, float] = {}
        for nodes, choice in self.won:
            gain = choice.library.total(replayed=self.replayed) - choice.kernels.total(
                replayed=self.replayed
            )
            kind = self.kind(nodes)
            found[kind] = found.get(kind, 0.0) + gain
        return found

    def may_win(self, estimate: Estimate, limit: float) -> bool:
        """True if kernels are faster than a number of seconds, by more than the error."""
        return estimate.seconds.total(replayed=self.replayed) * estimate.error < limit

    def subjects(self, parts: Sequence[Sequence[Node]]) -> Iterator[Subject]:
        """The parts that are going to be measured; what one of them lacks is told later."""
        for nodes in parts:
            try:
                composites = self.worthwhile(self.within(set(nodes)))
                whole = [*self.recomputed(nodes, composites), *nodes]
                library = self.times.of(whole, composites)
                if self.may_win(self.at_least(whole), library.total(replayed=self.replayed)):
                    yield self.subject(nodes)
            except Exception as error:  # whatever it is: the verdict on the part meets it again
                log.debug("not sent ahead: %s: %s", name_of(nodes[0]), error)

    def at_least(self, nodes: Sequence[Node]) -> Estimate:
        """The least time that the kernels of some nodes could take."""
        has_product, seconds = least(self.parts.analysis, nodes, self.machine, self.length)
        error = self.weighing.margin(self.machine.target, has_product=has_product)
        return Estimate(seconds, "at least", "", error)

    def estimated(self, nodes: Sequence[Node], limit: float) -> Estimate:
        """The time of the kernels of a part: predicted, or measured if it may be near a limit."""
        part = self.parts.program(nodes)
        target = self.parts.options.target_of(nodes)
        choices = self.parts.choices(part, target)
        sizes = self.sizes(part)
        key = (self.parts.key(part, target), sizes)
        if key not in self.known:
            made = self.timed(nodes) if self.measures else None
            if made is None:
                made = self.kept(part, target, choices[0]) or self.predicted(choices[0], sizes)
            ours = made.seconds.total(replayed=self.replayed)
            if self.trials.is_wanted(made, ours, limit):
                tried = self.trials.first(lambda: self.subject(nodes))
                made = made if tried is None else self.measured(*tried)
            self.known[key] = made
        return self.known[key]

    def looked_for(self, nodes: Sequence[Node], least: Estimate) -> Estimate:
        """The time of the best kernels of a part that has lost: kept or predicted, not measured."""
        try:
            part, target = self.parts.program(nodes), self.parts.options.target_of(nodes)
            choice = self.parts.choices(part, target)[0]
            return self.kept(part, target, choice) or self.predicted(choice, self.sizes(part))
        except Exception as error:  # whatever it is: PyTorch runs the part, and this is told
            return replace(least, obstacle=sentence(error))

    def sizes(self, part: PartProgram) -> Sizes:
        """The lengths of a part's axes in the captured call."""
        return tuple((axis, self.length(size)) for axis, size in part.expressed.sizes)

    def kept(self, part: PartProgram, target: str, choice: Choice) -> Estimate | None:
        """The time that tuning has measured before, if it has."""
        record = self.parts.record(part, target)
        if record is None or str(Config.from_data(record.config)) != str(choice.config):
            return None
        return self.measured(choice, record)

    def measured(self, choice: Choice, record: Record) -> Estimate:
        """The measured time of a choice."""
        host = self.machine.launch * len(choice.scheduled()[0].launches)
        own = Seconds(record.seconds, 0.0 if self.machine.target == "cpu" else host)
        return Estimate(own, "measured", str(choice.config), MEASURED)

    def predicted(self, choice: Choice, sizes: Sizes) -> Estimate:
        """The predicted time of a choice."""
        nest, tiles = choice.scheduled()
        extents = Extents.of_sizes(sizes, "the captured call")
        seconds = predicted(nest, Tiling(extents, tiles), self.machine, choice.schedule)
        return Estimate(seconds, "predicted", str(choice.config), error_of(nest, self.machine))

    def subject(self, nodes: Sequence[Node]) -> Subject:
        """A part as a program to be tuned, with random inputs."""
        return subject_of(self.parts, nodes, self.machine)

    def timed(self, nodes: Sequence[Node]) -> Estimate:
        """The measured time of the best configuration of a part, which becomes its choice."""
        found = self.tuner.best(self.subject(nodes))
        if found is None:  # no configuration is exact and runs
            return Estimate(Seconds(math.inf), "measured", obstacle="none is exact enough")
        choice, record = found
        self.parts.prefer(nodes, choice)
        return self.measured(choice, record)
