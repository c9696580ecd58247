"""Measurements of the alternatives of a fusion: edges, traffic, work and local memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from blockbuster_fusion.cost.meter import meter
from blockbuster_fusion.fusion.fuse import fuse
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.buffered import buffered
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.rules.sets import RuleSet


@dataclass(frozen=True, slots=True)
class Alternative:
    """One snapshot for one set of unit dims."""

    unit: tuple[str, ...]
    snapshot: int
    graph: Graph
    edges: int
    traffic: int
    flops: float
    """Relative to the unfused program."""
    local: int
    best: bool = False

    @property
    def costs(self) -> tuple[float, ...]:
        return self.edges, self.traffic, self.flops, self.local


def alternatives(
    graph: Graph,
    rules: str | RuleSet,
    sizes: Mapping[str, int],
    tiles: Mapping[Dim | str, int],
    most: int = 64,
) -> list[Alternative]:
    """Every snapshot for every set of unit axes; of more than `most` sets, small and large ones.

    Snapshots that only the base of the rule set gives are numbered after the set's own.
    """
    base = meter(graph, sizes, tiles).flops
    rows = [
        _measured(unit, number, snapshot, base, sizes, tiles)
        for unit in tried_sets(graph, most)
        for number, snapshot in enumerate(fuse(graph, rules, unit=unit).alternatives)
    ]
    return [
        Alternative(
            r.unit, r.snapshot, r.graph, r.edges, r.traffic, r.flops, r.local, _undominated(r, rows)
        )
        for r in rows
    ]


def unit_sets(graph: Graph) -> list[tuple[str, ...]]:
    """Sets of axes that could have one block, from none to all."""
    names = sorted({d.name for d in graph.dims if d.packed and not d.is_free})
    return [chosen for count in range(len(names) + 1) for chosen in combinations(names, count)]


def tried_sets(graph: Graph, most: int = 64) -> list[tuple[str, ...]]:
    """The sets to measure: if there are too many, those of none, few and nearly all axes."""
    sets = unit_sets(graph)
    return sets if len(sets) <= most else [*sets[: most // 2], *sets[-(most - most // 2) :]]


def _measured(
    unit: tuple[str, ...],
    number: int,
    snapshot: Graph,
    base: int,
    sizes: Mapping[str, int],
    tiles: Mapping[Dim | str, int],
) -> Alternative:
    found = meter(snapshot, sizes, tiles)
    traffic = found.loaded + found.stored
    edges = len(buffered(snapshot))
    return Alternative(
        unit, number, snapshot, edges, traffic, found.flops / max(base, 1), found.peak_local
    )


def _undominated(row: Alternative, rows: Sequence[Alternative]) -> bool:
    return not any(
        other.costs != row.costs
        and all(a <= b for a, b in zip(other.costs, row.costs, strict=True))
        for other in rows
    )
