"""The snapshots of a program that can be run, and those of them that are tried first."""

from collections.abc import Callable, Collection
from typing import Literal

from blockbuster_fusion.errors import WrongKind
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.rules.sets import RuleSet
from blockbuster_fusion.safety.fuse import SafeFusion, safe_fusion
from blockbuster_fusion.safety.storage import Storage
from blockbuster_fusion.schedule.defaults import chosen_units

Snapshot = int | Literal["most_fused"] | None
"""A snapshot by its number, the most fused one, or that of the least estimated time."""


def chosen_snapshots(
    graph: Graph,
    rules: str | RuleSet,
    unit: Collection[Dim | str] | None,
    stored: Storage | None,
    target: str,
) -> "Snapshots":
    """The snapshots of a program, fused with the axes of one block that serve it best."""
    made: dict[tuple[object, ...], Snapshots] = {}

    def snapshots(units: Collection[Dim | str]) -> Snapshots:
        key = tuple(units)
        if key not in made:
            made[key] = Snapshots(safe_fusion(graph, rules, units, stored))
        return made[key]

    if unit is None:
        unit = chosen_units(graph, target, lambda units: snapshots(units).graphs)
    return snapshots((unit,) if isinstance(unit, str) else tuple(unit))


class Snapshots:
    """The snapshots of a program that can be run: stored in a dtype, and made safe."""

    def __init__(self, fusion: SafeFusion) -> None:
        self.fusion = fusion
        self.safe = [*self.fusion.safety, *self.fusion.careful]
        self.own = len(self.safe)
        """The number of snapshots by the whole rule set; those of its base alone come later."""

    @property
    def graphs(self) -> list[Graph]:
        return [safe.graph for safe in self.safe]

    def with_base(self) -> "Snapshots":
        """These snapshots and those of the base that differ; the default is chosen from all."""
        if len(self.safe) == self.own:
            self.safe += self.fusion.others
        return self

    def wanted(self, snapshot: Snapshot, ordered: Callable[[], list[int]]) -> list[int]:
        """The snapshots to try, in order; by default only careful ones, if there are any."""
        if snapshot is None:
            found = ordered()
            careful = [number for number in found if self.safe[number].precision.careful]
            return careful or found
        if snapshot == "most_fused":
            return [self.fusion.most_fused]
        count = len(self.graphs)
        if not isinstance(snapshot, int) or not -count <= snapshot < count:
            known = f"one of 0 to {count - 1}, or 'most_fused'"
            remedy = "bb.fuse(program).snapshots are what there is"
            given = repr(snapshot)
            raise WrongKind(
                function="compile", wanted=known, given=given, remedy=remedy, snapshots=count
            )
        return [snapshot % count]
