"""The extended rules never leave more in global memory than the paper's do, nor move more."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.fusion.fuse import fuse
from blockbuster_fusion.ir.ops import Misc, Rename
from helpers.effort import part
from helpers.programs import Case

PROGRAMS, CHUNK, LONG = part(200), 25, 2000


def edges(snapshot: bb.Graph) -> int:
    return len(bb.buffered(snapshot))


def traffic(graph: bb.Graph, case: Case) -> int:
    """Loads and stores, with tiles of two."""
    extents = {}
    for given in case.program.inputs:
        for axis, length in zip(given.type.axes, case.inputs[given.name].shape, strict=True):
            extents[axis.name] = length
    known = {d.axis.name for d in graph.dims if not isinstance(d.axis.extent, int)}
    sizes = {name: length for name, length in extents.items() if name in known}
    tiles = {d.name: 2 for d in graph.dims if d.packed and not d.is_free}
    found = bb.meter(graph, sizes, tiles)
    return found.loaded + found.stored


@dataclass(frozen=True)
class Best:
    """The fewest edges and the least traffic among some graphs, each for itself."""

    edges: int
    traffic: int

    @classmethod
    def of(cls, graphs: Sequence[bb.Graph], case: Case) -> "Best":
        return cls(min(map(edges, graphs)), min(traffic(g, case) for g in graphs))

    def is_worse(self, other: "Best") -> bool:
        return self.edges > other.edges or self.traffic > other.traffic


@dataclass(frozen=True)
class Row:
    """One program: unfused, by the paper's rules, and by the extended ones."""

    seed: int
    start: Best
    paper: Best
    snapshots: Best
    """Of the extended rules alone."""
    alternatives: Best
    plain: bool
    """True if no rename and no misc operator keeps lists in memory."""


def compared(seed: int) -> Row:
    """The program of a seed fused both ways."""
    case = Case(seed, extended=seed % 2 == 1)
    paper, extended = (fuse(case.program, rules) for rules in ("paper", "extended"))
    ops = [node.op for _, graph in paper.initial.walk() for node in graph.nodes.values()]
    return Row(
        seed,
        Best.of([paper.initial], case),
        Best.of(paper.fused, case),
        Best.of(extended.fused, case),
        Best.of(extended.alternatives, case),
        not any(isinstance(op, Misc | Rename) for op in ops),
    )


def check(rows: Sequence[Row]) -> None:
    """No program is worse than by the paper's rules; prints how all of them are."""
    report("all", rows)
    report("no rename and no misc operator", [row for row in rows if row.plain])
    for row in rows:
        place = f"seed {row.seed}: {row.alternatives}, and {row.paper} by the paper's rules"
        assert not row.alternatives.is_worse(row.paper), place


def report(title: str, rows: Sequence[Row]) -> None:
    def mean(of: Callable[[Row], float]) -> float:
        return sum(map(of, rows)) / len(rows)

    alone = [row for row in rows if row.snapshots.is_worse(row.paper)]
    print(
        f"{len(rows)} programs, {title}: {mean(lambda r: r.start.edges):.2f} edges, "
        f"paper {mean(lambda r: r.paper.edges):.2f}, "
        f"extended {mean(lambda r: r.alternatives.edges):.2f}; "
        f"all fused: paper {mean(lambda r: not r.paper.edges):.1%}, "
        f"extended {mean(lambda r: not r.alternatives.edges):.1%}; traffic of the extended "
        f"to the paper's: {mean(lambda r: r.alternatives.traffic / max(r.paper.traffic, 1)):.3f}; "
        f"worse by its own snapshots alone: {len(alone)}, "
        f"{sum(row.snapshots.edges > row.paper.edges for row in alone)} of them in edges"
    )


@pytest.mark.parametrize("first", range(0, PROGRAMS, CHUNK))
def test_never_worse(first: int) -> None:
    check([compared(seed) for seed in range(first, first + CHUNK)])


@pytest.mark.long
def test_never_worse_in_thousands() -> None:
    check([compared(PROGRAMS + number) for number in range(LONG)])
