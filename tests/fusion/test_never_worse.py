"""The extended rules never leave more in global memory than the paper's do."""

import pytest

import blockbuster_fusion as bb
from programs import Case

PROGRAMS, CHUNK, LONG = 200, 50, 2000


def edges(snapshot: bb.Graph) -> int:
    return len(bb.buffered(snapshot))


def traffic(graph: bb.Graph, case: Case) -> int:
    """Loads and stores, at tiles that a dim's label and the seed give."""
    extents = {}
    for given in case.program.inputs:
        for axis, length in zip(given.type.axes, case.inputs[given.name].shape, strict=True):
            extents[axis.name] = length
    known = {d.axis.name for d in graph.dims if not isinstance(d.axis.extent, int)}
    sizes = {name: length for name, length in extents.items() if name in known}
    tiles = {d.name: 2 for d in graph.dims if d.packed and not d.is_free}
    found = bb.meter(graph, sizes, tiles)
    return found.loaded + found.stored


def compare(seed: int) -> tuple[int, int, int, bool]:
    """Interior edges at first, with the paper's rules, with the extended; whether traffic grew."""
    case = Case(seed, extended=seed % 2 == 1)
    paper, extended = (bb.fuse(case.program, rules) for rules in ("paper", "extended"))
    best, expected = min(map(edges, extended.snapshots)), min(map(edges, paper.snapshots))
    assert best <= expected, f"seed {seed}: {best} interior edges, and {expected} by the paper"
    least, known = (min(traffic(s, case) for s in f.snapshots) for f in (extended, paper))
    if least > known:
        print(f"seed {seed}: the least traffic is {least}, and {known} by the paper's rules")
    return edges(paper.initial), expected, best, least > known


def report(found: list[tuple[int, int, int, bool]]) -> None:
    count = len(found)
    first, paper, extended = (sum(row[i] for row in found) / count for i in range(3))
    print(f"{count} programs: {first:.2f} edges, paper {paper:.2f}, extended {extended:.2f};")
    fused = [sum(row[i] == 0 for row in found) / count for i in (1, 2)]
    print(f"all fused: paper {fused[0]:.0%}, extended {fused[1]:.0%};")
    print(f"more traffic in {sum(row[3] for row in found)}")


@pytest.mark.parametrize("first", range(0, PROGRAMS, CHUNK))
def test_no_more_interior_edges(first: int) -> None:
    report([compare(seed) for seed in range(first, first + CHUNK)])


@pytest.mark.long
def test_no_more_interior_edges_in_thousands() -> None:
    report([compare(PROGRAMS + number) for number in range(LONG)])
