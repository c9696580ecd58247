"""The pipeline: the one place that knows in which order things are done to a program."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.fusion import fuse as fusion
from blockbuster_fusion.fusion.fuse import Fusion
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.rules.sets import RuleSet
from blockbuster_fusion.safety.choices import Safe
from blockbuster_fusion.safety.safe import make_safe


@dataclass(frozen=True)
class SafeFusion(Fusion):
    """A fusion whose snapshots are made numerically safe; `fused` are the programs before that."""

    @cached_property
    def safety(self) -> list[Safe]:
        """Each snapshot with what the safety pass decided; made when asked for."""
        return [make_safe(graph) for graph in self.fused]

    @property
    def snapshots(self) -> list[Graph]:
        """The fused programs, numerically safe."""
        return [safe.graph for safe in self.safety]

    @cached_property
    def base(self) -> Fusion | None:
        """The fusion by the base of the rule set alone, where it differs: done when asked for."""
        made = self._finished_base()
        return made and SafeFusion(made.initial, made.fused, made.trace)

    @cached_property
    def alternatives(self) -> list[Graph]:
        """The snapshots, then those of the base that differ: what a selection chooses from."""
        return [*self.snapshots, *(make_safe(graph).graph for graph in self._other_fused())]


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
    made = fusion.fuse(program, rules, unit=unit, safe=safe)
    if not safe:
        return made
    return SafeFusion(made.initial, made.fused, made.trace, made.turned_off)
