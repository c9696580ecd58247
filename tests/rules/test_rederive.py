"""Beyond the paper: a stored list is computed again from another stored list."""

from collections.abc import Callable

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.rules.rederive import Rederive
from helpers.extensions import (
    exp_into_columns,
    twice_weighted_into_columns,
    weighted_by_all,
    weighted_by_running_sums,
    weighted_into_columns,
)
from helpers.rewriting import before_and_after, fire, matches, refusals, sites

RULE = Rederive()


def test_a_weighted_list_is_made_where_it_is_walked(golden: Callable[[str], None]) -> None:
    golden(before_and_after(RULE, weighted_into_columns()))


def test_then_one_list_less_is_stored() -> None:
    graph = weighted_into_columns()
    made = fire(RULE, graph)
    assert matches(RULE, made) == []
    before, after = (bb.fuse(g, "paper").fused[0] for g in (graph, made))
    assert [len(bb.buffered(g)) for g in (before, after)] == [2, 1]


def test_a_list_for_each_block_of_itself() -> None:
    fire(RULE, weighted_by_all(walked=False))


@pytest.mark.parametrize("again", [False, True])
def test_a_list_that_comes_from_several(again: bool) -> None:
    """The source is one that the map reads, and the list one that nobody else needs."""
    graph = twice_weighted_into_columns(again=again)
    made = fire(RULE, graph)
    assert matches(RULE, made) == []
    before, after = (bb.fuse(g, "paper").fused[0] for g in (graph, made))
    assert len(bb.buffered(after)) == len(bb.buffered(before)) - 1


def test_the_decoder_layer_stores_its_residual_once() -> None:
    fusion = bb.fuse(bb.examples.decoder_layer(), "extended")
    (step,) = [step for step in fusion.trace if step.rule == RULE.name]
    assert len(bb.buffered(step.before)) == len(bb.buffered(fusion.fused[-1])) + 1


def test_refuses_where_the_source_is_not_read() -> None:
    assert refusals(RULE, weighted_into_columns(source=False)) == ["reads_the_source"]


def test_refuses_a_list_that_others_need() -> None:
    assert refusals(RULE, weighted_into_columns(again=True)) == ["nobody_else_reads_it"]


def test_refuses_a_list_that_the_map_walks_itself() -> None:
    assert refusals(RULE, weighted_by_all(walked=True)) == ["nobody_else_reads_it"]


def test_refuses_a_function_of_a_list_that_is_made_here() -> None:
    assert refusals(RULE, weighted_by_running_sums()) == ["lists_at_hand"]


def test_no_place_where_no_list_comes_from_another() -> None:
    assert sites(RULE, exp_into_columns()) == []
