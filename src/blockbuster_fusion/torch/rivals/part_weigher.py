"""The times of the parts of a graph: by kernels, and by PyTorch's operators.

PyTorch may compute several operators by one of its own: a composite. Cheap operators that a part
computes anew count for PyTorch, which would have to run them.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from torch.fx import Node

from blockbuster_fusion.array.axes import Length
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.machine.machine import Machine
from blockbuster_fusion.messages import log
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.select.operators import Kind
from blockbuster_fusion.torch.compile_parts import PartCompiler
from blockbuster_fusion.torch.groups import LibraryChoice
from blockbuster_fusion.torch.rivals.attention import found_attention
from blockbuster_fusion.torch.rivals.cluster import tuner_for
from blockbuster_fusion.torch.rivals.composites import Composite
from blockbuster_fusion.torch.rivals.custom import Custom, CustomOperator
from blockbuster_fusion.torch.rivals.estimate import Estimate, library_entry
from blockbuster_fusion.torch.rivals.estimates import Estimates
from blockbuster_fusion.torch.rivals.fusers import (
    FLOOR,
)
from blockbuster_fusion.torch.rivals.later_sizes import LaterSizes
from blockbuster_fusion.torch.rivals.least import least
from blockbuster_fusion.torch.rivals.library import LibraryTimes
from blockbuster_fusion.torch.rivals.norms import found_norms
from blockbuster_fusion.torch.rivals.packed import found_packed
from blockbuster_fusion.torch.rivals.padded import found_padded
from blockbuster_fusion.torch.rivals.reasons import WHOLE, reason_of, sentence
from blockbuster_fusion.torch.rivals.weighing import ALL, Weighing


class PartWeigher:
    """Weighs the parts of a graph as it is now."""

    def __init__(self, parts: PartCompiler, machine: Machine, weighing: Weighing) -> None:
        self.parts, self.machine, self.weighing = parts, machine, weighing
        self.given_up, self.thorough = weighing.given_up, weighing.thorough
        self.measures, self.replayed = weighing.measures, weighing.replayed
        whole = Counter(n.target for n in parts.analysis.nodes)
        self.called = {target: n - whole[target] for target, n in weighing.called.items()}
        self.own: frozenset[object] | None = None
        """The operators of composites that the model calls itself, wherever they are recognised."""
        options = parts.options
        ray = options.ray if self.measures else None
        self.tuner = tuner_for(options.seconds, options.workers, ray)
        self.estimates = Estimates(parts, machine, self.tuner, weighing.estimates)

    @property
    def length(self) -> Length:
        """The sizes of the captured call."""
        return self.parts.expected.captured

    def total(self, seconds: Seconds) -> float:
        """The time of a run: if launches are replayed, that of the device alone."""
        return seconds.total(replayed=self.replayed)

    def entry(
        self, nodes: Sequence[Node], composites: Sequence[Composite] | None = None
    ) -> LibraryChoice:
        """A part with the times of PyTorch's operators and of kernels, and the reason.

        The composites that count are those within it, or some that are given.
        """
        composites = self.within(nodes) if composites is None else composites
        whole = [*self.recomputed(nodes, composites), *nodes]
        library = self.spent(whole, composites)
        limit = self.total(library)
        bound = estimate = self.at_least(whole)
        may_win = self.total(bound.seconds) * bound.error < limit
        if may_win or self.thorough:
            estimate = self.estimates.looked_for(nodes, bound)
        region = self.parts.analysis.regions[nodes[0]]
        reason = reason_of(bound, estimate, limit, self.total)
        if self.is_given_up(nodes):
            reason = WHOLE
        made = library_entry(whole, region, composites, library, estimate)
        return replace(made, bound=bound.seconds, reason=reason)

    def estimate(self, nodes: Sequence[Node]) -> Estimate:
        """The time of the kernels of a part; infinite for one that was slower in the model."""
        made = self.estimates.of(nodes)
        return replace(made, seconds=Seconds(math.inf)) if self.is_given_up(nodes) else made

    def expressed(self, nodes: Sequence[Node]) -> Estimate:
        """Stands for the time of a part that is not asked for; an error if no program has it."""
        try:
            self.parts.program(nodes)
        except BlockbusterError:  # a part that no program has is no candidate
            raise
        except Exception as error:  # whatever it is: the compiler of parts meets it too
            if self.parts.options.strict:
                raise
            log.warning("no kernels for %s: %s", nodes[0].name, sentence(error))
            return Estimate(Seconds(math.inf), FLOOR)
        return Estimate(Seconds(0.0), FLOOR)

    def is_given_up(self, nodes: Sequence[Node]) -> bool:
        if self.given_up == ALL:
            return True
        return bool(self.given_up) and self.estimates.kind(nodes) in self.given_up

    def library(self, nodes: Sequence[Node]) -> Seconds:
        """The time of PyTorch's operators for a part, with those that each would compute anew."""
        composites = self.within(nodes)
        return self.spent([*self.recomputed(nodes, composites), *nodes], composites)

    def spent(self, nodes: Sequence[Node], composites: Sequence[Composite] = ()) -> Seconds:
        """The time of PyTorch's operators; of some that cannot be measured, more than any other."""
        try:
            return self.times.of(nodes, composites)
        except Exception as error:  # whatever it is: the model runs, if only by kernels
            if self.parts.options.strict:
                raise
            log.warning("not weighed, so kernels run it: %s: %s", nodes[0].name, sentence(error))
            return Seconds(math.inf)

    def custom(self, x: Custom) -> Seconds:
        """The time of a user's operator, with cheap operators that it reads the results of."""
        return self.times.of([*self.recomputed(x.members, [x]), *x.members], [x])

    @property
    def declared(self) -> Sequence[CustomOperator]:
        """The user's operators; a CUDA graph holds none that are not PyTorch's own."""
        return () if self.replayed else self.parts.options.operators

    def later(self, nodes: Sequence[Node]) -> LaterSizes:
        """A part, to be weighed for other sizes."""
        composites = self.within(nodes)
        cheap = self.recomputed(nodes, composites)
        return LaterSizes(self.parts, self.machine, self.weighing, nodes, cheap, composites)

    def at_least(self, nodes: Sequence[Node]) -> Estimate:
        """The least time that the kernels of some nodes could take."""
        has_product, seconds = least(self.parts.analysis, nodes, self.machine, self.length)
        error = self.weighing.margin(self.machine.target, has_product=has_product)
        return Estimate(seconds, "at least", "", error)

    def spared(self) -> float:
        """The seconds of PyTorch's operators whose results are constants, or folded into some."""
        constants = self.parts.constants
        found = [] if constants is None else constants.spared
        return sum(self.total(self.times.operator(n)) for n in found)

    # ---------------------------------------------------------------- composites

    def analyse(self, among: Collection[Node] | None = None) -> None:
        """Finds the composites of the graph as it is now, for which times are measured.

        With `among`, those whose members are all among some operators.
        """
        analysis = self.parts.analysis
        self.times = LibraryTimes(analysis, self.length)
        found: list[Composite] = [
            *found_attention(analysis),
            *found_norms(analysis, among),
            *found_padded(analysis),
            *found_packed(analysis, self.parts.constants),
        ]
        if among is not None:
            found = [x for x in found if all(n in among for n in x.members)]
        if self.own is None:
            count = Counter(x.operator for x in found)
            self.own = frozenset(op for op, n in count.items() if n <= self.called.get(op, 0))
        self.composites = [x for x in found if x.operator in self.own or self.is_faster(x)]
        """Those that are faster by one operator, or that the model has as one."""
        self.ending: dict[Node, list[int]] = {}
        """The numbers of those that end with a node."""
        for number, x in enumerate(self.composites):
            self.ending.setdefault(x.members[-1], []).append(number)

    def within(self, nodes: Iterable[Node]) -> list[Composite]:
        """The composites all of whose members are among some nodes."""
        inside = {*nodes}
        ending = sorted(i for n in self.ending.keys() & inside for i in self.ending[n])
        found = (self.composites[i] for i in ending)
        return [x for x in found if inside.issuperset(x.members)]

    def recomputed(self, nodes: Sequence[Node], composites: Sequence[Composite]) -> list[Node]:
        """The cheap operators that a part alone computes anew, and PyTorch would have to run."""
        analysis = self.parts.analysis
        inside = set(nodes)
        needed = inside - {n for x in composites for n in x.members}
        operands = {n for x in composites for n in x.operands}
        found: list[Node] = []
        for node in sorted(self.anew(nodes), reverse=True):
            if not inside.issuperset(node.users):
                continue
            inside.add(node)
            if node in operands or not needed.isdisjoint(node.users):
                needed.add(node)
                found.append(node)
        return [n for n in reversed(found) if analysis.kind(n) is not Kind.VIEW]

    def anew(self, nodes: Sequence[Node]) -> set[Node]:
        """The nodes that some operators compute anew."""
        found: set[Node] = set()
        stack = [*nodes]
        while stack:
            for source in stack.pop().all_input_nodes:
                if source in self.parts.analysis.recomputed and source not in found:
                    found.add(source)
                    stack.append(source)
        return found

    def is_faster(self, x: Composite) -> bool:
        """True if PyTorch's one operator saves enough of the time of what it stands for."""
        return self.saved(x) > x.least_gain * self.total(self.spent(x.members))

    def saved(self, x: Composite) -> float:
        """The seconds by which PyTorch's one operator is faster than what it stands for."""
        return self.total(self.spent(x.members)) - self.total(self.spent(x.members, [x]))
