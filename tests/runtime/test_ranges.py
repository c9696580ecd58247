"""Ranges of sizes: which program serves which sizes, and that all of them compute the same."""

import numpy as np
import pytest

import blockbuster_fusion as bb
from blockbuster_fusion import compiler
from blockbuster_fusion.errors import BadExtent, WrongKind
from blockbuster_fusion.ir.axis import Symbol
from blockbuster_fusion.runtime.c import kernels
from blockbuster_fusion.runtime.ranges import Ranges, Scale
from helpers.machines import FOUR_CORES

M, N = Symbol("M"), Symbol("N")
ROWS = Scale(M, (1, 16, 64, 1024), (2, 0, 1, 1), home=1)
COLUMNS = Scale(N, (16, 4096), (0, 3), home=0)


@pytest.mark.parametrize(
    ("length", "number"),
    [(0, 2), (1, 2), (3, 2), (4, 0), (16, 0), (31, 0), (32, 1), (255, 1), (1 << 40, 1)],
)
def test_a_range_ends_halfway_by_factors(length: int, number: int) -> None:
    assert Ranges((ROWS,)).number({M: length}) == number


@pytest.mark.parametrize(
    ("rows", "columns", "number"),
    [(16, 16, 0), (16, 4096, 3), (64, 16, 1), (64, 4096, 1), (1024, 4096, 1), (17, 9999, 3)],
)
def test_the_size_farthest_from_usual_decides(rows: int, columns: int, number: int) -> None:
    assert Ranges((ROWS, COLUMNS)).number({M: rows, N: columns}) == number


def test_without_ranges_one_program_serves_all() -> None:
    assert Ranges().number({M: 7}) == 0
    assert [*Ranges()] == []


def test_neighbours_with_one_program_are_one_range() -> None:
    assert [*Ranges((ROWS, COLUMNS))] == [
        ("M up to 3", 2),
        ("M from 4 to 31", 0),
        ("M from 32", 1),
        ("N up to 255", 0),
        ("N from 256", 3),
    ]
    assert [*Scale(M, (1, 4), (0, 0), home=0).ranges] == [("any M", 0)]


# ---------------------------------------------------------------- programs


def total(X):
    return {"Y": bb.ops.sum(X * X, (0, 1))}


def rows(X):
    return {"Y": bb.ops.softmax(X, 1)}


def wanted(function, x):
    """The same in float64."""
    if function is total:
        return (x.astype(np.float64) ** 2).sum()
    powers = np.exp(x - x.max(1, keepdims=True, initial=0).astype(np.float64))
    return powers / powers.sum(1, keepdims=True)


LENGTHS = {"M": (16, 1, 1024, 4096), "N": (16, 1, 1024, 4096)}


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources that were compiled so far, for a machine whose figures do not change."""
    compiled: list[str] = []
    compile_c = kernels.compile_c

    def counting(source, **options):
        compiled.append(source)
        return compile_c(source, **options)

    monkeypatch.setattr(kernels, "compile_c", counting)
    monkeypatch.setattr(compiler, "this_cpu", lambda threads: FOUR_CORES)
    return compiled


@pytest.mark.parametrize("function", [total, rows])
def test_all_kernels_are_compiled_at_once_and_compute_the_same(function, sources) -> None:
    program = bb.compile(function, X="M N", lengths=LENGTHS)
    assert len(sources) == len(program.nests) > 1
    del sources[:]
    rng, used = np.random.default_rng(0), set()
    for shape in [(1, 1), (2, 17), (16, 16), (17, 1000), (1, 5000), (1000, 3), (5000, 2)]:
        x = rng.standard_normal(shape).astype(np.float32)
        for given in (x, x.T.copy().T):  # with other strides
            found = program(given)["Y"]
            np.testing.assert_allclose(found, wanted(function, x), rtol=1e-5, atol=1e-7)
        used.add(id(program.runner.bound.values()[-1].owner))
    assert len(used) == len(program.nests)
    assert not sources


def test_programs_may_have_different_numbers_of_kernels(sources: list[str]) -> None:
    program = bb.compile(total, X="M N", lengths=LENGTHS)
    assert {len(nest.kernels) for nest in program.nests} == {1, 2}  # a split sum takes two


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 5000)])
def test_arrays_without_elements(shape: tuple[int, int], sources: list[str]) -> None:
    assert bb.compile(total, X="M N", lengths=LENGTHS)(np.zeros(shape, np.float32))["Y"] == 0


def test_configurations_are_shown_by_range(sources: list[str]) -> None:
    program = bb.compile(total, X="M N", lengths=LENGTHS)
    (first, usual), *_, (last, split) = (x for x in program.configs if x[0].startswith("MM"))
    assert first.startswith("MM up to ")
    assert last.startswith("MM from ")
    assert "split M/" in str(split)
    assert "split" not in str(usual)
    assert bb.compile(total, X="M N", config=split).nest.kernels  # each can be given


@pytest.mark.parametrize(
    ("lengths", "said"),
    [
        ({"M": (16,)}, "nothing says how long axis N is"),
        ({"M": (16,), "N": (0, 1)}, "no lengths"),
        ({"M": (16,), "N": 8}, "no lengths"),
        ({"M": (16,), "N": (8,), "Z": (8,)}, "unknown"),
    ],
)
def test_wrong_lengths_are_refused(lengths: dict, said: str) -> None:
    with pytest.raises(BadExtent, match=said):
        bb.compile(total, X="M N", lengths=lengths)


def test_lengths_of_a_fixed_size_are_refused() -> None:
    with pytest.raises(BadExtent, match="fixed to 8"):
        bb.compile(total, X="M 8", lengths={"M": (4,), "A_1": (8,)})


@pytest.mark.parametrize("option", [{"tiles": {"M": 8}}, {"target": "interpret"}])
def test_lengths_go_with_no_configuration(option: dict) -> None:
    with pytest.raises(WrongKind, match="lengths"):
        bb.compile(total, X="M N", lengths=LENGTHS, **option)
