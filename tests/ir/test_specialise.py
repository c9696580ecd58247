"""Unit dims: programs in which a dim has one block mean the same, and have no loop over it."""

import random

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion import ops
from blockbuster_fusion.array.arrays import Array
from blockbuster_fusion.errors import BadUnit, InvalidGraph
from blockbuster_fusion.fusion.fuse import unit_dims
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.specialise import specialise
from helpers.effort import part
from helpers.programs import Case, random_unit
from helpers.rewriting import fire, lowered
from helpers.running import assert_computes, inputs_for, ragged_tiles

EXAMPLES = sorted(bb.examples.EXAMPLES)


def tiled(graph: bb.Graph) -> list[str]:
    """The axes that loops with tiles walk."""
    return sorted({d.name for d in graph.dims if d.packed and not d.is_free})


def unit_sets(name: str, axes: list[str]) -> list[tuple[str, ...]]:
    """Each axis alone, all of them, and some sets at random."""
    rng = random.Random(name)
    some = [tuple(a for a in axes if rng.random() < 0.5) for _ in range(3)]
    return list(dict.fromkeys([*((a,) for a in axes), tuple(axes), *filter(None, some)]))


def loops(graph: bb.Graph) -> set[Dim]:
    return {op.dim for _, inner in graph.walk() for _, op in inner.maps()}


def reread(graph: bb.Graph) -> bb.Graph:
    return bb.from_text(bb.to_text(graph))


def tiles_of(graph: bb.Graph) -> dict[str, int]:
    units = {d.label for d in graph.dims if d.unit}
    return {label: t for label, t in ragged_tiles(graph).items() if label not in units}


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_mean_the_same(name: str) -> None:
    program = bb.examples.find(name)
    graph = bb.lower(program)
    given = inputs_for(program)
    expected = bb.evaluate(program, given)
    for unit in unit_sets(name, tiled(graph)):
        made = specialise(graph, unit_dims(graph, unit))
        bb.verify(made)
        assert not any(d.name in unit for d in loops(made) if d.packed), unit
        assert made.digest != graph.digest, unit
        assert_computes(made, given, expected, tiles_of(made))
        again = reread(made)
        assert again.digest == made.digest, unit
        assert bb.to_text(again) == bb.to_text(made), unit


@pytest.mark.parametrize("first", range(0, part(120), 30))
def test_random_programs_mean_the_same(first: int) -> None:
    for seed in range(first, first + 30):
        case = Case(seed, extended=bool(seed % 2))
        graph = bb.lower(case.program)
        unit = random_unit(case.program, seed)
        made = specialise(graph, unit_dims(graph, unit))
        case.check(made, unit)
        assert not any(d.name in unit for d in loops(made) if d.packed), f"seed {seed}, {unit}"
        assert reread(made).digest == made.digest, f"seed {seed}, {unit}"


def test_a_fused_program_can_be_specialised() -> None:
    """Not only initial programs: every snapshot, for every set of axes."""
    program = bb.examples.attention()
    given = inputs_for(program)
    expected = bb.evaluate(program, given)
    for snapshot in bb.fuse(program, rules="extended").fused:
        for unit in unit_sets("attention", tiled(snapshot)):
            made = specialise(snapshot, unit_dims(snapshot, unit))
            bb.verify(made)
            assert not any(d.name in unit for d in loops(made)), unit
            assert_computes(made, given, expected, tiles_of(made))


def test_nothing_to_do_gives_the_same_graph() -> None:
    graph = bb.lower(bb.examples.attention())
    assert specialise(graph, ()) is graph


def test_one_dim_of_an_axis_has_one_block_and_another_has_not() -> None:
    """Two loops over one axis whose lists never meet: only one of them goes."""

    def program(X: Array, Y: Array) -> dict[str, Array]:
        return {"A": ops.exp(X).sum(axis=0), "B": ops.sin(Y).sum(axis=0)}

    traced = bb.trace(program, X="M", Y="M")
    graph = bb.lower(traced)
    given = inputs_for(traced)
    expected = bb.evaluate(traced, given)
    dims = sorted({d for d in loops(graph) if d.name == "M"}, key=lambda d: d.label)
    assert len(dims) > 1
    for dim in dims:
        made = specialise(graph, {dim})
        bb.verify(made)
        assert dim not in loops(made)
        assert loops(made) == set(dims) - {dim}
        for tile in (2, 3, 100):
            assert_computes(made, given, expected, dict.fromkeys(loops(made), tile))
        again = reread(made)
        assert again.digest == made.digest
        assert_computes(again, given, expected, {"M": 2})


def test_across_a_rename() -> None:
    """The renamed list lies in memory: either side of it may have one block."""
    traced = bb.trace(lambda X: ops.exp(X) @ ops.sin(X).T, X="M K")
    graph = bb.lower(traced)
    given = inputs_for(traced)
    expected = bb.evaluate(traced, given)
    axes = tiled(graph)
    assert len(axes) == 3  # M stands twice in the product, so that one is renamed
    for unit in unit_sets("rename", axes):
        made = specialise(graph, unit_dims(graph, unit))
        bb.verify(made)
        assert not any(d.name in unit for d in loops(made)), unit
        assert_computes(made, given, expected, tiles_of(made))
        assert reread(made).digest == made.digest
        sizes, tiles = dict(zip("MK", given["X"].shape, strict=True)), tiles_of(made)
        assert bb.meter(made, sizes, tiles) == bb.interpret(made, given, tiles).traffic, unit


@pytest.mark.parametrize("axis", [0, 1])
def test_across_a_misc_operator(axis: int) -> None:
    traced = bb.trace(lambda X: ops.sin(ops.sort(ops.exp(X), axis=axis)), X="M K")
    graph = bb.lower(traced)
    given = inputs_for(traced)
    expected = bb.evaluate(traced, given)
    for unit in (("M",), ("K",), ("M", "K")):
        made = specialise(graph, unit_dims(graph, unit))
        bb.verify(made)
        assert not any(d.name in unit for d in loops(made)), unit
        assert_computes(made, given, expected, tiles_of(made))
        assert reread(made).digest == made.digest


def test_refuses_a_peeled_map() -> None:
    graph = lowered(lambda X, Y: ops.exp(X) @ Y.T, X="K", Y="N K")
    (snapshot, *_) = bb.fuse(graph, "paper").fused
    peeled = fire(bb.RULE_SETS["paper"].rule("peel_first_iteration"), snapshot)
    (dim,) = {op.dim for _, g in peeled.walk() for _, op in g.maps() if op.first}
    with pytest.raises(InvalidGraph, match="has been peeled, so the dim cannot have only one bl"):
        specialise(peeled, {dim})


@pytest.mark.parametrize("name", ["Q", "", "m", "N.7"])
def test_refuses_an_unknown_name(name: str) -> None:
    with pytest.raises(
        BadUnit, match="there is no such dim; the dims that can have one block are D, L, M, N"
    ):
        bb.fuse(bb.examples.attention(), unit={name}, rules="extended")


def test_a_label_means_one_dim_and_a_name_all_of_the_axis() -> None:
    graph = bb.lower(bb.examples.attention())
    by_name = unit_dims(graph, {"N"})
    assert by_name == unit_dims(graph, by_name)
    assert by_name == {d for d in graph.dims if d.name == "N" and not d.is_free}
    one = min(by_name, key=lambda d: d.label)
    assert unit_dims(graph, {one.label}) == {one}
    assert unit_dims(graph, "N") == by_name
