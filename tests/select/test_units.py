"""Units: operators that are surely together, and no others."""

import random

import pytest

from blockbuster_fusion.select.operators import Kind
from blockbuster_fusion.select.units import Units, contracted
from helpers.operator_graphs import ROWS, Drawn, names_of, random_composites, random_operators

GRAPHS = 400
FUSABLE = (Kind.POINTWISE, Kind.REDUCTION, Kind.GENERATOR)


def unit_names(units: Units) -> list[set[str]]:
    return [names_of(units.operators, own) for own in units.members]


@pytest.mark.parametrize("block", range(4))
def test_random_graphs(block: int) -> None:
    """Every operator is in one unit, and units can be run one after the other."""
    merged = 0
    for seed in range(block * GRAPHS // 4, (block + 1) * GRAPHS // 4):
        rng = random.Random(seed)
        operators = random_operators(rng)
        composites = random_composites(rng, len(operators))
        units = contracted(operators, composites)
        assert sorted(i for own in units.members for i in own) == [*range(len(operators))], seed
        for n, own in enumerate(units.members):  # so the units have no cycle, and are in order
            needed = {units.unit_of[v] for i in own for v in operators[i].operands}
            assert all(v <= n for v in needed), seed
        for own in units.members:
            if len(own) == 1:
                continue
            merged += 1
            assert all(operators[i].kind in FUSABLE for i in own), seed
            assert len({tuple(i in x for x in composites) for i in own}) == 1, seed
            inner = [i for i in own if not is_result(units, i)]
            assert not any(operators[i].is_output or operators[i].is_stored for i in inner), seed
            assert len(own) - len(inner) == 1, seed
    assert merged > GRAPHS // 8  # else nothing is tested


def is_result(units: Units, i: int) -> bool:
    """True if an operator's result leaves its unit."""
    users = [v for v, op in enumerate(units.operators) if i in op.operands]
    own = units.unit_of[i]
    return not users or any(units.unit_of[v] != own for v in users) or units.operators[i].is_output


def test_a_norm_with_its_statistics_is_one_unit() -> None:
    drawn = Drawn()
    drawn.product("a", "x", "w")
    drawn.product("b", drawn.norm("norm", "a"), "w2", is_output=True)
    parts = unit_names(contracted(drawn.operators))
    norm = {f"norm.{x}" for x in ("square", "mean", "root", "scaled", "weighted")}
    assert parts == [{"a"}, norm, {"b"}]


def test_a_rotary_embedding_is_one_unit() -> None:
    drawn = Drawn()
    drawn.product("q", "x", "w")
    drawn.pointwise("plain", "q", "cos")
    drawn.pointwise("negated", "q", size=ROWS * 128 * 4)
    drawn.pointwise("turned", "negated", "q")
    drawn.pointwise("crossed", "turned", "sin")
    drawn.pointwise("rotated", "plain", "crossed")
    drawn.product("scores", "rotated", "k", is_output=True)
    parts = unit_names(contracted(drawn.operators))
    assert parts == [
        {"q"},
        {"plain", "negated", "turned", "crossed", "rotated"},
        {"scores"},
    ]


def test_a_gate_is_one_unit() -> None:
    drawn = Drawn()
    drawn.product("gate", "x", "w")
    drawn.product("up", "x", "v")
    drawn.pointwise("sigmoid", "gate")
    drawn.pointwise("silu", "gate", "sigmoid")
    drawn.pointwise("gated", "silu", "up")
    drawn.product("down", "gated", "u", is_output=True)
    parts = unit_names(contracted(drawn.operators))
    assert parts == [{"gate"}, {"up"}, {"sigmoid", "silu", "gated"}, {"down"}]


def test_a_residual_sum_stays_apart_from_its_two_readers() -> None:
    drawn = Drawn()
    drawn.product("branch", "x", "w")
    drawn.pointwise("sum", "x", "branch")
    normed = drawn.norm("norm", "sum")
    drawn.product("wide", normed, "v")
    drawn.pointwise("next", "sum", "wide", is_output=True)
    parts = unit_names(contracted(drawn.operators))
    assert {"sum"} in parts
    assert {f"norm.{x}" for x in ("square", "mean", "root", "scaled", "weighted")} in parts
    assert {"next"} in parts


def test_a_narrowing_cast_is_with_its_maker() -> None:
    drawn = Drawn()
    drawn.product("a", "x", "w")
    drawn.product("b", "x", "v")
    drawn.pointwise("sum", "a", "b")
    drawn.pointwise("narrow", "sum", size=drawn.bytes_of("sum", 0) // 2)
    drawn.product("c", "narrow", "w2", is_output=True)
    assert {"sum", "narrow"} in unit_names(contracted(drawn.operators))


def test_a_widening_cast_is_with_its_reader() -> None:
    drawn = Drawn()
    drawn.product("a", "x", "w")
    drawn.product("b", "x", "v")
    drawn.pointwise("wide", "a", size=2 * drawn.bytes_of("a", 0))
    drawn.pointwise("sum", "wide", "b")
    drawn.product("c", "sum", "w2", is_output=True)
    assert {"wide", "sum"} in unit_names(contracted(drawn.operators))


def test_a_cast_that_two_read_is_with_neither() -> None:
    """The narrow array may be stored for one of them, and the wide one not."""
    drawn = Drawn()
    drawn.product("a", "x", "w")
    drawn.pointwise("narrow", "a", size=drawn.bytes_of("a", 0) // 2)
    drawn.pointwise("left", "narrow", "b", is_output=True)
    drawn.pointwise("right", "narrow", "c", is_output=True)
    parts = unit_names(contracted(drawn.operators))
    assert {"narrow"} in parts


@pytest.mark.parametrize("flag", ["is_output", "is_stored"])
def test_what_is_stored_anyway_ends_a_unit(flag: str) -> None:
    drawn = Drawn()
    drawn.pointwise("a", "x")
    drawn.pointwise("b", "a", **{flag: True})
    drawn.pointwise("c", "b", is_output=True)
    assert unit_names(contracted(drawn.operators)) == [{"a", "b"}, {"c"}]


def test_nothing_is_contracted_across_a_composite() -> None:
    drawn = Drawn()
    for name, read in ("ax", "ba", "cb", "dc"):
        drawn.pointwise(name, read)
    assert len(contracted(drawn.operators).members) == 1
    parts = unit_names(contracted(drawn.operators, [{1, 2}]))
    assert parts == [{"a"}, {"b", "c"}, {"d"}]


def test_a_path_that_leaves_a_unit_does_not_come_back() -> None:
    """b reads a, also by way of n: in one unit, they would wait for n, which waits for a."""
    drawn = Drawn()
    drawn.pointwise("a", "x")
    drawn.misc("n", "a")
    drawn.pointwise("b", "a", "n", is_output=True)
    assert unit_names(contracted(drawn.operators)) == [{"a"}, {"n"}, {"b"}]
