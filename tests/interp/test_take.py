"""Lookups in the interpreter: results, costs, and places out of range."""

import numpy as np
import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.array.trace import array
from blockbuster_fusion.cost.meter import meter
from blockbuster_fusion.errors import BadInput
from blockbuster_fusion.interp.interpreter import interpret
from blockbuster_fusion.ir.axis import Axis, Dim, Symbol
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import Take
from blockbuster_fusion.ir.types import DType, Type
from helpers.graphs import item, k, m, n

RANDOM = np.random.default_rng(2)
V = Axis("V", Symbol("VV"))
v = Dim(V).free


def lookup(own: tuple[Dim, ...], at: tuple[Dim, ...], dtype: DType = DType.float32) -> Graph:
    """A table of items with some axes, looked up at places with some axes."""
    build = Builder()
    table = build.input("T", Type((v,), (v, *own), dtype))
    places = build.input("at", item(*at, dtype=DType.int32))
    build.output("Y", build.one(Take(V), table, places))
    return build.build()


@pytest.mark.parametrize(
    ("own", "at", "result"),
    [
        ("", "", ""),
        ("k", "", "k"),
        ("", "mn", "mn"),
        ("k", "mn", "mnk"),
        ("kn", "mn", "mnk"),  # n is an axis of both
        ("nm", "mn", "mn"),
    ],
)
def test_axes_of_both_are_walked_together(own: str, at: str, result: str) -> None:
    dims, lengths = {"m": m, "n": n, "k": k}, {"m": 2, "n": 3, "k": 4}
    graph = lookup(tuple(dims[c] for c in own), tuple(dims[c] for c in at))
    table = RANDOM.standard_normal([5, *(lengths[c] for c in own)])
    places = RANDOM.integers(0, 5, [lengths[c] for c in at])
    (found,) = interpret(graph, [table, places])
    letters = {c: np.arange(length) for c, length in lengths.items()}
    grid = dict(zip(result, np.ix_(*(letters[c] for c in result)), strict=True))
    where = places[tuple(grid[c] for c in at)]
    np.testing.assert_array_equal(found, table[(where, *(grid[c] for c in own))])


def test_each_element_of_the_result_is_loaded() -> None:
    program = bb.trace(lambda ids, W: W[ids], array("M", dtype="int32"), "V K")
    graph = bb.lower(program)
    given = [RANDOM.integers(0, 9, 5), RANDOM.standard_normal((9, 7)).astype(np.float32)]
    for tiles in ({}, {"M": 2, "K": 3}):
        found = interpret(graph, given, tiles).traffic
        assert found == meter(graph, {"M": 5, "K": 7, "V": 9}, tiles)
        assert found.by_buffer == {"ids": (4 * 5, 0), "W": (4 * 5 * 7, 0), "O": (0, 4 * 5 * 7)}
        assert found.flops == 0


def test_a_table_in_16_bits() -> None:
    table = RANDOM.standard_normal((6, 3)).astype(np.float32)
    (found,) = interpret(lookup((k,), (m,), DType.float16), [table, [5, 0]])
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, table.astype(np.float16)[[5, 0]])


@pytest.mark.parametrize("wrong", [-1, 6])
def test_places_that_are_nowhere(wrong: int) -> None:
    graph, table = lookup((k,), (m,)), np.ones((6, 3))
    with pytest.raises(BadInput, match=f"input T: is looked up along V at {wrong}, and its places"):
        interpret(graph, [table, [0, wrong]])


@pytest.mark.parametrize("empty", ["M", "K", "V M", "M K V"])
def test_axes_without_elements(empty: str) -> None:
    """Also those of blocks that are never run."""
    program = bb.trace(lambda ids, W: W[ids] + 1, array("H", "M", dtype="int64"), "V K")
    sizes = {"H": 2, "M": 4, "V": 5, "K": 3} | dict.fromkeys(empty.split(), 0)
    given = [np.zeros((sizes["H"], sizes["M"]), int), np.ones((sizes["V"], sizes["K"]))]
    (found,) = interpret(bb.lower(program), given)
    assert found.shape == (sizes["H"], sizes["M"], sizes["K"])
    one_at_a_time = bb.trace(
        lambda ids, W: W[ids] + 1, array("M", dtype="int64"), "V K", batch="M V"
    )
    (found,) = interpret(bb.lower(one_at_a_time), [given[0][0], given[1]])
    assert found.shape == (sizes["M"], sizes["K"])
