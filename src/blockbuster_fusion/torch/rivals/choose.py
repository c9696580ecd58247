"""Chooses what runs each part of a model: kernels, PyTorch's own operators, or a user's.

The captured graph is what the user had, so PyTorch's operators are the incumbent, and measured. A
kernel has to be faster than they are by more than the error of its prediction; where that leaves
it open, it is compiled and measured, as long as there is time. With `measures`, all kernels of the
cheapest set are. Then the set is sought again, until it holds nothing that is still open.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

from torch.fx import Node

from blockbuster_fusion.machine.machine import Machine
from blockbuster_fusion.messages import log
from blockbuster_fusion.progress import doing
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.select.certificate import Certificate
from blockbuster_fusion.select.constraints import Wishes
from blockbuster_fusion.select.floors import Floors
from blockbuster_fusion.select.fusers import Fuser
from blockbuster_fusion.select.ideals import Caps
from blockbuster_fusion.select.operators import Kind
from blockbuster_fusion.select.order import members
from blockbuster_fusion.select.selection import Selected, Selection
from blockbuster_fusion.select.units import Units, contracted
from blockbuster_fusion.torch.capture.describe import described
from blockbuster_fusion.torch.capture.nodes import name_of
from blockbuster_fusion.torch.collector import paused_collector
from blockbuster_fusion.torch.compile_parts import PartCompiler
from blockbuster_fusion.torch.groups import LibraryChoice
from blockbuster_fusion.torch.rivals.account import Account
from blockbuster_fusion.torch.rivals.composites import Composite
from blockbuster_fusion.torch.rivals.crossings import Crossing
from blockbuster_fusion.torch.rivals.custom import found_custom
from blockbuster_fusion.torch.rivals.estimate import Estimate
from blockbuster_fusion.torch.rivals.fusers import (
    CUSTOM,
    EVEN,
    HOPEFUL,
    KERNELS,
    CustomFuser,
    KernelFuser,
    LastResort,
    LibraryFuser,
)
from blockbuster_fusion.torch.rivals.later_sizes import joint_crossings
from blockbuster_fusion.torch.rivals.linears import found_linears
from blockbuster_fusion.torch.rivals.reasons import CALL, LATER, WHOLE
from blockbuster_fusion.torch.rivals.rest import rest_of, rest_units
from blockbuster_fusion.torch.rivals.trials import Trials
from blockbuster_fusion.torch.rivals.weighing import ALL, Weighing
from blockbuster_fusion.torch.tuned import has_measurements

UNSEEN = "earlier measurements of parts that predictions rule out were not looked up"
FEW = 4
"""The candidates that are priced of the rest, which takes little time."""


class Chooser(Account):
    """Selects the parts of a graph, and moves operators to PyTorch where that is faster."""

    def __init__(self, parts: PartCompiler, machine: Machine, weighing: Weighing) -> None:
        super().__init__(parts, machine, weighing)
        time_left = weighing.trial_time
        self.trials = Trials(self.tuner, machine.target, time_left, strict=parts.options.strict)
        self.crossings: dict[object, list[Crossing]] = {}
        """The sizes between which the faster one changes, by part: those that moved count too."""
        self.lost: dict[tuple[Node, ...], LibraryChoice] = {}
        """The parts that kernels would run, but for later sizes."""
        self.has_looked = False
        """True if parts were looked at that predictions rule out."""
        self.certificate: Certificate | None = None
        self.kinds: dict[str, tuple[str, object]] = {}
        """The kinds of parts and the keys of their estimates, by the keys of parts."""

    def choose(self) -> None:
        """Makes the choice; the compiler of parts has a new analysis afterwards."""
        collector = nullcontext() if self.measures else paused_collector()
        with doing("weighing kernels against PyTorch's operators"), self.tuner, collector:
            self.analyse()
            self.recognised += self.spared()
            self.select()
            self.analyse(self.parts.analysis.library)
            self.collapse_rest()
            call_cost = self.weighing.call_cost(self.machine.target)
            if self.given_up == ALL:
                self.leave_all(WHOLE)
            elif not self.replayed and self.may_leave_all and not self.pays(call_cost):
                needed = call_cost - self.recognised
                later = [self.later(nodes) for nodes, _ in self.won]
                self.look_for_crossings("all", lambda: joint_crossings(later, needed))
                self.leave_all(CALL)
            self.restore_linears()

    @property
    def may_leave_all(self) -> bool:
        """True unless kernels have to hold some operators together."""
        return self.parts.options.wishes.allow_single_units

    def choose_kernels(self) -> None:
        """Selects the parts for which kernels alone are to be had.

        On a GPU they are those of the least predicted time. Elsewhere they are those of the least
        floor, which is least traffic: nothing is asked for its time.
        """
        units, kernels = self.problem(())
        kernels = replace(kernels, attitude=EVEN)
        if self.parts.target != "cuda":
            kernels = replace(kernels, estimate=self.expressed)
        selected = self.selection(units, kernels, LastResort(units)).cheapest()
        self.certificate = selected.certificate
        self.parts.take([kernels.of(part) for part, offer in selected.parts])

    # ---------------------------------------------------------------- selection

    def problem(self, composites: Sequence[Composite]) -> tuple[Units, KernelFuser]:
        """The units of the graph, and the kernels that may run them."""
        analysis, wishes = self.parts.analysis, self.parts.options.wishes
        operators = described(analysis, self.length)
        number = {node: i for i, node in enumerate(analysis.operators)}
        borders = [frozenset(number[n] for n in x.members if n in number) for x in composites]
        units = contracted(operators, [*borders, *wishes.borders(operators)])
        return units, self.kernels(units, analysis.operators)

    def kernels(self, units: Units, nodes: Sequence[Node]) -> KernelFuser:
        """The kernels that may run some units."""
        floors, times = Floors(units, self.machine), (self.estimate, self.parts.search_ahead)
        return KernelFuser(units, nodes, floors, *times, attitude=self.weighing.attitude)

    def selection(self, units: Units, *fusers: Fuser, most: int | None = None) -> Selection:
        """A selection that prices at most some candidates: by default, as the options say."""
        usual = Caps(priced=self.parts.options.candidates)
        return Selection(
            units,
            fusers,
            self.total,
            usual if most is None else Caps(priced=most, light=0),
            constraints=self.parts.options.wishes.constraints(units),
        )

    def select(self) -> None:
        """Selects the parts of the graph, and moves those that PyTorch runs there."""
        declared = found_custom(self.parts.analysis, self.declared)
        units, kernels = self.problem([*self.composites, *declared])
        library = LibraryFuser(units, kernels.nodes, self.composites, self.library)
        custom = CustomFuser(units, kernels.nodes, declared, self.custom)
        selected = self.sought(kernels, library, custom)
        self.certificate = self.certified(selected.certificate)
        self.weigh_other_sizes(units, kernels, selected)
        self.settle(kernels, custom, selected)
        self.judge_rest()

    def certified(self, found: Certificate) -> Certificate:
        """A certificate that tells if earlier measurements might be cheaper than predictions."""
        if self.measures or self.looks_closer() or not has_measurements(self.machine):
            return found
        return replace(found, caps=(*found.caps, UNSEEN))

    def looks_closer(self) -> bool:
        """True if parts are looked at that predictions rule out, but for their error.

        Once they were, they still are when trials have spent their time.
        """
        self.has_looked |= self.trials.has_time or self.estimates.has_kept
        return self.has_looked

    def sought(
        self,
        kernels: KernelFuser,
        library: LibraryFuser,
        *others: Fuser,
        most: int | None = None,
    ) -> Selected:
        """The cheapest set of parts, of which nothing is open."""
        units, may_be_single = kernels.units, self.parts.options.wishes.allow_single_units
        captured = library.captured() if may_be_single else ()
        while True:
            fusers, measured = (library, *others), len(kernels.measured)
            selected = self.selection(units, kernels, *fusers, most=most).cheapest(captured)
            hopeful = selected
            if not self.measures and self.looks_closer():
                hoping = replace(kernels, attitude=HOPEFUL)
                hopeful = self.selection(units, hoping, *fusers, most=most).cheapest(captured)
            is_same = len(kernels.measured) == measured or self.measures
            is_settled = not self.refined(kernels, hopeful) and is_same
            if is_settled and not self.lost_later(kernels, selected):
                return selected

    def judge_rest(self) -> None:
        """Selects what runs cheap operators that PyTorch's operators read now, by themselves."""
        wishes = self.parts.options.wishes
        while wishes == Wishes() and (rest := rest_of(self.parts)):
            units, nodes = rest_units(self.parts, {*rest}, self.length)
            kernels = self.kernels(units, nodes)
            library = LibraryFuser(units, nodes, (), self.library)
            found: dict[Node, LibraryChoice] = {}
            taken = [*self.parts.taken]
            most = min(FEW, self.parts.options.candidates)
            for part, offer in self.sought(kernels, library, most=most).parts:
                own = kernels.of(part)
                if kernels.is_misc(part):
                    continue
                choice = self.lost.get(tuple(own)) or self.entry(own, ())
                if offer.fuser == KERNELS:
                    self.win(own, choice, offer.seconds, *self.kind_of(own))
                    taken.append(own)
                else:
                    found |= dict.fromkeys((*self.recomputed(own, ()), *own), choice)
            self.parts.take(taken)
            self.parts.leave(found)
        self.leave_rest()

    def refined(self, kernels: KernelFuser, selected: Selected) -> bool:
        """Measures kernels of a set for which that decides; True if there were any."""
        open_parts: dict[str, list[Node]] = {}
        for part in selected.distinct(KERNELS):
            nodes = kernels.of(part)
            made = self.estimates.of(nodes)
            if made.basis == "predicted" and self.is_open(nodes, made):
                open_parts.setdefault(self.estimates.kind(nodes), nodes)

        def worth(nodes: Sequence[Node]) -> float:
            return self.total(self.library(nodes))

        parts = sorted(open_parts.values(), key=worth, reverse=True)
        if self.measures:
            self.tuner.ahead(self.estimates.subject(nodes) for nodes in parts)
            for nodes in parts:
                self.estimates.timed(nodes)
            return bool(parts)
        return self.tried(parts)

    def tried(self, parts: Sequence[Sequence[Node]]) -> bool:
        """Tries the kernels of some parts, as long as there is time; True if any were tried.

        Those whose trial fails are not chosen, and the reason is kept.
        """
        found, together = False, self.trials.together
        for start in range(0, len(parts), together):
            if not self.trials.has_time:
                break
            some = [partial(self.estimates.subject, nodes) for nodes in parts[start:][:together]]
            for nodes, tried in zip(parts[start:], self.trials.first(some), strict=False):
                if isinstance(tried, str):
                    made = Estimate(Seconds(math.inf), "measured", obstacle=tried)
                else:
                    made = self.estimates.measured(*tried)
                self.estimates.note(nodes, made)
                found = True
        return found

    def is_open(self, nodes: Sequence[Node], made: Estimate) -> bool:
        """True if a measurement may decide whether kernels run a part."""
        if self.measures:
            return True
        limit = self.total(self.library(nodes))
        return self.trials.is_wanted(made, self.total(made.seconds), limit)

    def lost_later(self, kernels: KernelFuser, selected: Selected) -> bool:
        """Refuses the kernels of a set that are slower for later sizes; True if there are any."""
        found = False
        for part, offer in selected.parts if self.parts.expected.lengths else ():
            nodes = kernels.of(part)
            if offer.fuser != KERNELS:
                continue
            later = self.later(nodes)
            lost = later.loss()
            if lost is None:
                continue
            limit, ours = self.total(self.library(nodes)), self.total(offer.seconds)
            self.look_for_crossings(nodes[0], partial(later.crossings, limit - ours))
            entry = replace(lost.described(self.entry(nodes)), reason=LATER, bound=None)
            self.lost[tuple(nodes)] = entry
            kernels.refused.add(tuple(nodes))
            found = True
        return found

    def weigh_other_sizes(self, units: Units, kernels: KernelFuser, selected: Selected) -> None:
        """Looks for sizes from which on kernels win parts that PyTorch runs now."""
        lost = {n for nodes in self.lost for n in nodes}  # for these, sizes are known
        ours = [part for part, offer in selected.parts if offer.fuser == KERNELS]
        known = {n for part in ours for n in members(part)}
        known |= {n for n in range(len(units.members)) if units.is_misc(n)}
        is_settled = len(known) == len(units.members)
        if self.parts.span is not None or not self.parts.expected.lengths or is_settled:
            return
        alone = replace(kernels, attitude=EVEN)
        best = self.selection(units, alone, LastResort(units)).cheapest()
        for part, offer in best.parts:
            nodes = kernels.of(part)
            is_open = not known.issuperset(members(part)) and lost.isdisjoint(nodes)
            if offer.fuser == KERNELS and is_open:
                self.look_for_crossings(nodes[0], partial(self.later(nodes).crossings, None))

    def settle(self, kernels: KernelFuser, custom: CustomFuser, selected: Selected) -> None:
        """Has the selected parts compiled, or moved to PyTorch's operators or a user's."""
        found: dict[Node, LibraryChoice] = {}
        collapsed: list[tuple[Composite, LibraryChoice]] = []
        taken = []
        known: dict[str, LibraryChoice] = {}
        for (part, offer), key in zip(selected.parts, selected.keys, strict=True):
            nodes = kernels.of(part)
            if kernels.is_misc(part):
                continue
            is_custom = offer.fuser == CUSTOM
            composites = [custom.known[part][1]] if is_custom else self.within(nodes)
            is_ours = offer.fuser == KERNELS
            cheap = self.recomputed(nodes, composites)
            whole = [*cheap, *nodes] if is_ours else [*self.generators(cheap), *nodes]
            choice = self.lost.get(tuple(nodes))
            if choice is None:
                if key not in known:
                    made = self.entry(nodes, composites)
                    # what PyTorch reads of cheap operators is judged by itself
                    own = made.library if is_ours else self.spent(whole, composites)
                    known[key] = replace(made, library=own)
                choice = replace(
                    known[key],
                    operators=tuple(map(name_of, whole)),
                    region=self.parts.analysis.regions[nodes[0]],
                    nodes=tuple(n.name for n in whole),
                )
            if is_ours:
                if key not in self.kinds:
                    self.kinds[key] = self.kind_of(nodes)
                self.win(nodes, choice, offer.seconds, *self.kinds[key])
                taken.append(nodes)
                continue
            inside = {n for x in composites for n in x.absorbed()}
            found |= {n: choice for n in whole if n not in inside}
            collapsed += [(x, choice) for x in composites]
        self.parts.take(taken)
        self.move(found, collapsed)

    def generators(self, nodes: Iterable[Node]) -> list[Node]:
        """Those of some cheap nodes that each reader makes, PyTorch's operators too."""
        return [n for n in nodes if self.parts.analysis.kind(n) is Kind.GENERATOR]

    def kind_of(self, nodes: Sequence[Node]) -> tuple[str, object]:
        """The kind of a part, and the key of its estimate."""
        return self.estimates.kind(nodes), self.estimates.key(nodes)

    # ---------------------------------------------------------------- moves

    def move(
        self, found: dict[Node, LibraryChoice], collapsed: Sequence[tuple[Composite, LibraryChoice]]
    ) -> None:
        """Moves operators and composites to PyTorch."""
        analysis, replaced = self.parts.analysis, dict[Node, Node]()
        for x, choice in collapsed:
            self.recognised += 0.0 if x.operator in (self.own or ()) else self.saved(x)
            made = x.collapse(analysis.module.graph, replaced)
            found |= {n: choice for n in made if analysis.kind(n) is not Kind.VIEW}
            self.parts.collapsed.append(next(n for n in made if n.target is x.operator))
        self.parts.leave(found)

    def collapse_rest(self) -> None:
        """Collapses the composites whose members are of several parts that all went to PyTorch."""
        libraries = self.parts.libraries
        found = [x for x in self.within(self.parts.analysis.library) if self.is_free]
        self.move({}, [(x, libraries[x.members[-1]]) for x in found])

    @property
    def is_free(self) -> bool:
        """True if no constraint keeps operators of a composite apart."""
        wishes = self.parts.options.wishes
        return not wishes.apart and not wishes.materialise

    def restore_linears(self) -> None:
        """Puts the linear layers whose products PyTorch runs back as one operator each."""
        analysis, replaced = self.parts.analysis, dict[Node, Node]()
        found = [x for x in found_linears(analysis) if x.members[0] in self.parts.libraries]
        found = found if self.is_free else []
        graph, libraries = analysis.module.graph, self.parts.libraries
        made = [(x.collapse(graph, replaced), libraries[x.members[0]]) for x in found]
        self.parts.leave({node: choice for (node,), choice in made})

    def give_up_all(self) -> None:
        """Moves all operators to PyTorch after the choice, as the kernels are slower together."""
        self.analyse(self.parts.analysis.library)
        self.leave_all(WHOLE)
        self.restore_linears()

    def leave_all(self, reason: str) -> None:
        """Moves all operators to PyTorch."""
        self.parts.pays = False
        self.parts.take([])
        for nodes, choice in self.won:
            self.parts.leave(dict.fromkeys(nodes, replace(choice, reason=reason)))
        self.won = []
        self.leave_rest(reason)

    def leave_rest(self, reason: str = "") -> None:
        """Leaves operators to PyTorch that parts computed anew, until its operators read them."""
        while left := rest_of(self.parts):
            made = {n: self.entry([n]) for n in left}
            self.parts.leave({n: replace(x, reason=reason or x.reason) for n, x in made.items()})

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
