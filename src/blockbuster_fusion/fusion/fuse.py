"""Fusion of a block program by rules: the interface of the algorithm."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from blockbuster_fusion.array.lower import lower
from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.errors import BadUnit, InvalidGraph
from blockbuster_fusion.fusion.cut import LARGEST, ProgramPart, cut, joined
from blockbuster_fusion.fusion.driver import Driver, Run
from blockbuster_fusion.fusion.trace import Firing, Trace
from blockbuster_fusion.fusion.why_not import Reason, why_not
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.buffered import buffered
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.listing import Labels, labels
from blockbuster_fusion.ir.specialise import specialise
from blockbuster_fusion.ir.verify import verify
from blockbuster_fusion.rules.sets import RuleSet, rule_set


@dataclass(frozen=True)
class Fusion:
    """The result of fusion: snapshots, one per extension, and the trace that leads to them."""

    initial: Graph
    fused: Sequence[Graph]
    """The fused programs, to which `trace`, `why_not` and `alternatives` refer."""
    trace: Trace
    runs: tuple[Run, ...] = field(default=(), repr=False)
    """The run on each part of the program, with its fork for the base."""

    @property
    def snapshots(self) -> Sequence[Graph]:
        """The alternatives that may be run."""
        return self.fused

    @cached_property
    def base(self) -> "Fusion | None":
        """The fusion by the base of the rule set alone, if it differs; computed on demand."""
        return self._finished_base()

    def _finished_base(self) -> "Fusion | None":
        if all(run.fork is None for run in self.runs):
            return None
        rules = self.trace.rules.base
        assert rules is not None
        by_base: list[Run] = []
        first = None if len(self.runs) == 1 else max(run.next_id for run in self.runs)
        for run in self.runs:
            by_base.append(run.by_base(first))
            first = first and max(first, by_base[-1].next_id)
        return _fusion(self.initial, self.trace.parts, rules, by_base, self.trace.largest)

    @property
    def alternatives(self) -> list[Graph]:
        """The snapshots, then those of the base that differ: the candidates of a selection."""
        return [*self.fused, *self._other_fused()]

    def _other_fused(self) -> list[Graph]:
        """The fusion by the base of the rule set alone, if it differs."""
        known = {graph.digest for graph in self.fused}
        others = [] if self.base is None else self.base.fused
        return [graph for graph in others if graph.digest not in known]

    @property
    def most_fused(self) -> int:
        """The index of the snapshot with the fewest interior buffered edges."""
        edges = [len(buffered(graph)) for graph in self.fused]
        return max(number for number, count in enumerate(edges) if count == min(edges))

    def why_not(
        self, snapshot: Graph | int | None = None, *, shown: Graph | Labels | None = None
    ) -> list[Reason]:
        """The reason for each interior buffered edge of a snapshot of `fused`.

        The default is the snapshot with the fewest. Names are those of its listing, or of
        `shown`, which is the same snapshot made safe, or has names of the snapshot.
        """
        snapshot = self.most_fused if snapshot is None else snapshot
        graph = self.fused[snapshot] if isinstance(snapshot, int) else snapshot
        rules = self.trace.rules
        names = shown if isinstance(shown, Labels) else labels(graph if shown is None else shown)
        return why_not(graph, (*rules.local, *rules.extending), self._unit_helps, names)

    def _unit_helps(self, names: tuple[str, ...]) -> bool:
        """True if fewer edges are left in the end if these axes have one block."""
        if names not in self._tried:
            try:
                graph = specialise(self.initial, unit_dims(self.initial, names))
            except InvalidGraph:
                return False  # a loop has been peeled, so it has several
            self._tried[names] = _fewest_edges(run(graph, self.trace.rules, self.trace.largest))
        return self._tried[names] < _fewest_edges(self)

    @cached_property
    def _tried(self) -> dict[tuple[str, ...], int]:
        """The number of edges that are left with unit dims, for the dims asked about so far."""
        return {}


def fuse(
    program: Graph | ArrayProgram,
    rules: str | RuleSet = "extended",
    *,
    unit: Collection[Dim | str] = frozenset(),
    safe: bool = True,
    largest: int = LARGEST,
) -> Fusion:
    """The program fused by a set of rules.

    `unit` names dims (or axes) with one block: their loops are removed before fusing. Rules that
    need numerical safety fire only if `safe` is True. A program of more than `largest` statements
    is cut into parts that are fused separately.
    """
    graph = lower(program) if isinstance(program, ArrayProgram) else program
    verify(graph)
    graph = specialise(graph.without_dead_nodes(), unit_dims(graph, unit))
    chosen = rule_set(rules)
    return run(graph, chosen if safe else chosen.without_safety, largest)


def run(graph: Graph, rules: RuleSet, largest: int = LARGEST) -> Fusion:
    """A graph fused by a set of rules, in parts of at most `largest` statements."""
    parts = cut(graph, largest)
    runs: list[Run] = []
    first = max(part.graph.max_id for part in parts) + 1
    for part in parts:
        runs.append(Driver(part.graph, rules, first_id=first, shared=part.shared).fuse())
        first = runs[-1].next_id
    return _fusion(graph, parts, rules, runs, largest)


def _fusion(
    initial: Graph, parts: Sequence[ProgramPart], rules: RuleSet, runs: Sequence[Run], largest: int
) -> Fusion:
    """The results of the runs on the parts of a program, as one.

    A snapshot of the whole has the snapshot of that number of each part, or its last one.
    """
    snapshots: list[Graph] = []
    firings: list[Firing] = []
    steps: list[int] = []
    done = [0] * len(runs)
    for number in range(max(len(run.snapshots) for run in runs)):
        taken = [run.snapshots[min(number, len(run.snapshots) - 1)] for run in runs]
        for part, (run, (_, until)) in enumerate(zip(runs, taken, strict=True)):
            more = run.firings[done[part] : until]
            firings += (replace(firing, part=part) for firing in more) if part else more
            done[part] = until
        snapshots.append(joined(initial, parts, [graph for graph, _ in taken]))
        steps.append(len(firings))
    trace = Trace(initial, rules, firings, steps, parts, largest)
    return Fusion(initial, snapshots, trace, tuple(runs))


def _fewest_edges(fusion: Fusion) -> int:
    return min(len(buffered(snapshot)) for snapshot in fusion.fused)


def unit_dims(graph: Graph, names: Collection[Dim | str]) -> set[Dim]:
    """The dims that dims, labels or axis names denote."""
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
