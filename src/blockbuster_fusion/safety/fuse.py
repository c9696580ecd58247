"""Fusion whose snapshots are made numerically safe."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.fusion import fuse as fusion
from blockbuster_fusion.fusion.fuse import Fusion
from blockbuster_fusion.fusion.trace import Trace
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.rules.sets import RuleSet
from blockbuster_fusion.safety.choices import Loss, Precision, Safe, SafetyChoice
from blockbuster_fusion.safety.pipeline import make_safe
from blockbuster_fusion.safety.storage import Storage, stored_as


@dataclass(frozen=True)
class SafeFusion(Fusion):
    """A fusion whose snapshots are made numerically safe; `fused` are the programs before that."""

    stored: Storage | None = None
    """The dtypes that float32 arrays are stored in, where they are narrower."""

    @cached_property
    def safety(self) -> list[Safe]:
        """Each snapshot with the decisions of the safety pass; made when asked for."""
        return self._made_safe(self)

    @property
    def snapshots(self) -> list[Graph]:
        """The fused programs, numerically safe."""
        return [safe.graph for safe in self.safety]

    @cached_property
    def careful(self) -> list[Safe]:
        """Snapshots with the lossy rewrites undone, where no snapshot is careful; else none.

        The program is fused again without the rules that take shifts out of sums.
        """
        if any(safe.precision.careful for safe in self.safety):
            return []
        rules = self.trace.rules.careful
        undone = SafetyChoice(
            (), 0, "undone", "", "", "no snapshot with shifts out of sums is careful"
        )
        made = self._made_safe(fusion.run(self.initial, rules))
        return [replace(safe, choices=(*safe.choices, undone)) for safe in made]

    @cached_property
    def base(self) -> Fusion | None:
        """The fusion by the base of the rule set alone, where it differs: done when asked for."""
        made = self._finished_base()
        return made and SafeFusion(made.initial, made.fused, made.trace, stored=self.stored)

    @cached_property
    def alternatives(self) -> list[Graph]:
        """The snapshots, careful ones where none is, and those of the base that differ."""
        return [safe.graph for safe in (*self.safety, *self.careful, *self.others)]

    @cached_property
    def others(self) -> list[Safe]:
        """The snapshots of the base that differ, numerically safe; made when asked for."""
        if not isinstance(self.base, SafeFusion):
            return []
        known = {graph.digest for graph in self.fused}
        found = zip(self.base.fused, self.base.safety, strict=True)
        return [safe for graph, safe in found if graph.digest not in known]

    def _made_safe(self, made: Fusion) -> list[Safe]:
        """The programs of a fusion made safe, with the precision that its rules lose."""
        safe = [make_safe(self._as_stored(graph)) for graph in made.fused]
        found = zip(safe, made.fused, made.trace.snapshots, strict=True)
        return [
            replace(
                each,
                precision=_with_careless_steps(each.precision, made.trace, steps),
                source=graph,
            )
            for each, graph, steps in found
        ]

    def _as_stored(self, graph: Graph) -> Graph:
        return graph if self.stored is None else stored_as(graph, self.stored)


def _with_careless_steps(precision: Precision, trace: Trace, steps: int) -> Precision:
    """A precision class, with a loss for each of the first steps that a caution would refuse."""
    careless = [(index, guard) for index, guard in trace.careless if index <= steps]
    losses = []
    for index, guard in careless:
        firing = trace.firings[index - 1]
        reason = f"by {firing.rule.name} in step {index}: {guard.refusal}"
        losses.append(Loss(firing.path, firing.nodes[0], str(firing.dim or "a row"), reason))
    return replace(precision, losses=(*precision.losses, *losses)) if losses else precision


def fuse(
    program: Graph | ArrayProgram,
    rules: str | RuleSet = "extended",
    *,
    unit: Collection[Dim | str] = frozenset(),
    safe: bool = True,
) -> Fusion:
    """The program fused by a set of rules.

    `unit` names dims (or axes) that are to have one block: their loops go before fusing. Snapshots
    are made numerically safe unless `safe` is False; then rules that need that do not fire.
    """
    if not safe:
        return fusion.fuse(program, rules, unit=unit, safe=False)
    return safe_fusion(program, rules, unit)


def safe_fusion(
    program: Graph | ArrayProgram,
    rules: str | RuleSet,
    unit: Collection[Dim | str],
    stored: Storage | None = None,
) -> SafeFusion:
    """The program fused, its snapshots stored as some dtypes and numerically safe."""
    made = fusion.fuse(program, rules, unit=unit)
    return SafeFusion(made.initial, made.fused, made.trace, made.runs, stored)
