"""Fusing a block program by rules: the algorithm's face to the rest of the compiler."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from blockbuster_fusion.array.lower import lower
from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.errors import BadUnit, InvalidGraph
from blockbuster_fusion.fusion.driver import Driver
from blockbuster_fusion.fusion.trace import Trace
from blockbuster_fusion.fusion.why_not import Reason, why_not
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.buffered import buffered
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.show import labels
from blockbuster_fusion.ir.specialise import specialise
from blockbuster_fusion.ir.verify import verify
from blockbuster_fusion.rules.sets import RuleSet, rule_set


@dataclass(frozen=True)
class Fusion:
    """What fusing gave: alternatives, each one extension after the other, and the way to them."""

    initial: Graph
    fused: Sequence[Graph]
    """What the rules made; `trace`, `why_not` and `alternatives` refer to these programs."""
    trace: Trace
    turned_off: Driver | None = field(default=None, repr=False)
    """Where rules beyond the base have fired: what is left to do by the base alone."""

    @property
    def snapshots(self) -> Sequence[Graph]:
        """The alternatives as they are run."""
        return self.fused

    @cached_property
    def base(self) -> "Fusion | None":
        """The fusion by the base of the rule set alone, where it differs: done when asked for."""
        return self._finished_base()

    def _finished_base(self) -> "Fusion | None":
        if self.turned_off is None:
            return None
        self.turned_off.fuse()
        return _fusion(self.initial, self.turned_off)

    @property
    def alternatives(self) -> list[Graph]:
        """The snapshots, then those of the base that differ: what a selection chooses from."""
        return [*self.fused, *self._other_fused()]

    def _other_fused(self) -> list[Graph]:
        """What the base alone comes to, as far as that is something else."""
        known = {graph.digest for graph in self.fused}
        others = [] if self.base is None else self.base.fused
        return [graph for graph in others if graph.digest not in known]

    @property
    def most_fused(self) -> int:
        """Which snapshot has the fewest interior buffered edges: not always the last one."""
        edges = [len(buffered(graph)) for graph in self.fused]
        return max(number for number, count in enumerate(edges) if count == min(edges))

    def why_not(
        self, snapshot: Graph | int | None = None, *, shown: Graph | None = None
    ) -> list[Reason]:
        """For each interior buffered edge that a snapshot of `fused` has left: what kept it there.

        Without a snapshot, the one that has the fewest. Names are those of its listing, or of
        `shown`, which is the same snapshot made safe.
        """
        snapshot = self.most_fused if snapshot is None else snapshot
        graph = self.fused[snapshot] if isinstance(snapshot, int) else snapshot
        rules = self.trace.rules
        names = labels(graph if shown is None else shown)
        return why_not(graph, (*rules.local, *rules.extending), self._unit_helps, names)

    def _unit_helps(self, names: tuple[str, ...]) -> bool:
        """Whether fewer edges are left in the end where these axes have one block."""
        if names not in self._tried:
            try:
                graph = specialise(self.initial, unit_dims(self.initial, names))
            except InvalidGraph:
                return False  # a loop has been peeled, so it has several
            self._tried[names] = _fewest_edges(_run(graph, self.trace.rules))
        return self._tried[names] < _fewest_edges(self)

    @cached_property
    def _tried(self) -> dict[tuple[str, ...], int]:
        """How many edges are left with unit dims, as far as that has been asked."""
        return {}


def fuse(
    program: Graph | ArrayProgram,
    rules: str | RuleSet = "extended",
    *,
    unit: Collection[Dim | str] = frozenset(),
    safe: bool = True,
) -> Fusion:
    """The program fused by a set of rules.

    `unit` names dims (or axes) that are to have one block: their loops go before fusing. `safe`
    says that numerical safety is going to be applied: else rules that need it do not fire.
    """
    graph = lower(program) if isinstance(program, ArrayProgram) else program
    verify(graph)
    graph = specialise(graph.without_dead_nodes(), unit_dims(graph, unit))
    chosen = rule_set(rules)
    return _run(graph, chosen if safe else chosen.without_safety)


def _run(graph: Graph, rules: RuleSet) -> Fusion:
    driver = Driver(graph, rules)
    driver.fuse()
    return _fusion(graph, driver)


def _fusion(initial: Graph, driver: Driver) -> Fusion:
    """What a run has come to."""
    snapshots = [snapshot for snapshot, _ in driver.snapshots]
    trace = Trace(initial, driver.rules, driver.firings, [steps for _, steps in driver.snapshots])
    return Fusion(initial, snapshots, trace, driver.base)


def _fewest_edges(fusion: Fusion) -> int:
    return min(len(buffered(snapshot)) for snapshot in fusion.fused)


def unit_dims(graph: Graph, names: Collection[Dim | str]) -> set[Dim]:
    """The dims that are meant by dims, labels or axis names."""
    if isinstance(names, str):
        names = (names,)
    loops = [d for d in graph.dims if not d.is_free]
    known = ", ".join(sorted({d.name for d in loops if d.packed}))
    found: set[Dim] = set()
    for name in names:
        meant = [d for d in loops if name is d or name in (d.name, d.label)]
        shown = name.label if isinstance(name, Dim) else name
        if not meant:
            raise BadUnit(name=shown, problem="there is no such dim", known=known)
        if not any(d.packed for d in meant):
            problem = "its blocks have one element: it cannot have one block"
            raise BadUnit(name=shown, problem=problem, known=known)
        found.update(d for d in meant if d.packed)
    return found
