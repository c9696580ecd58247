"""Large programs are cut into parts that are fused apart."""

import json
from dataclasses import replace

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.array.arrays import Array
from blockbuster_fusion.fusion.cut import LARGEST, cut, statements
from blockbuster_fusion.fusion.fuse import fuse
from helpers.effort import part
from helpers.programs import Case, random_unit

PROGRAMS = part(60, of=2)


def digests(graphs: list[bb.Graph]) -> list[str]:
    return [graph.digest for graph in graphs]


def check(seed: int, *, largest: int, extended: bool, unit: bool) -> int:
    """Fuses a program in small parts; the number of parts."""
    case = Case(seed, extended=extended)
    dims = random_unit(case.program, seed) if unit else ()
    fusion = fuse(case.program, "extended", unit=dims, largest=largest, safe=False)
    for number, snapshot in enumerate(fusion.alternatives):
        bb.verify(snapshot)
        case.check(snapshot, f"seed {seed}, snapshot {number}")
    trace = bb.Trace.from_json(json.loads(json.dumps(fusion.trace.to_json())))
    assert digests([trace.program_after(s) for s in trace.snapshots]) == digests(fusion.fused)
    assert len(trace.parts) == len(fusion.trace.parts)
    return len(trace.parts)


@pytest.mark.parametrize("unit", [False, True], ids=["blocks", "unit dims"])
@pytest.mark.parametrize("largest", [1, 4, 9])
def test_parts_keep_the_meaning(largest: int, unit: bool) -> None:
    found = [
        check(seed, largest=largest, extended=seed % 2 == 1, unit=unit)
        for seed in range(largest * 100, largest * 100 + PROGRAMS // 3)
    ]
    assert sum(parts > 1 for parts in found) > len(found) // 2


@pytest.mark.long
def test_parts_keep_the_meaning_of_many_programs() -> None:
    for seed in range(1000):
        check(seed, largest=1 + seed % 12, extended=seed % 2 == 1, unit=seed % 3 == 0)


def test_a_small_program_is_one_part() -> None:
    graph = bb.lower(bb.examples.rmsnorm_swiglu_residual())
    (part,) = cut(graph)
    assert part.graph is graph


def chain(length: int) -> bb.ArrayProgram:
    def program(X: Array) -> Array:
        Y = X
        for _ in range(length):
            Y = bb.ops.tanh(Y) + X
        return Y

    return bb.trace(program, X="M N")


def test_no_part_is_larger_than_allowed() -> None:
    graph = bb.lower(chain(300))
    parts = cut(graph)
    weights = [sum(map(statements, part.graph.nodes.values())) for part in parts]
    assert max(weights) <= LARGEST
    assert len(parts) < 2 * sum(weights) / LARGEST
    assert all(len(part.operands) <= 2 and len(part.results) == 1 for part in parts)


def test_no_kernel_is_larger_than_a_part() -> None:
    (fused,) = bb.fuse(chain(300)).fused
    assert len(fused.nodes) == 1 + len(cut(bb.lower(chain(300))))
    assert max(map(statements, fused.nodes.values())) <= LARGEST


def test_it_is_cut_where_the_least_crosses() -> None:
    """Between two layers one array crosses, within them two or more."""

    def program(X: Array) -> Array:
        for _ in range(40):
            a, b, c = bb.ops.exp(X), bb.ops.sin(X), bb.ops.tanh(X)
            X = a * b + b * c + c * a
        return X

    parts = cut(bb.lower(bb.trace(program, X="M N")), largest=30)
    assert {len(part.operands) for part in parts} == {1}


def test_the_base_is_the_same_every_time() -> None:
    """A fusion is data: deriving its base does not change it."""
    for seed in range(0, 40, 3):
        for largest in (5, LARGEST):
            fusion = fuse(Case(seed, extended=True).program, largest=largest)
            if fusion.base is None:
                continue
            again = [replace(fusion).base for _ in range(2)]
            for base in again:
                assert base is not None
                assert digests(base.fused) == digests(fusion.base.fused)
                assert base.trace.to_json() == fusion.base.trace.to_json()
