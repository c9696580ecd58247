"""Beyond the paper: a cheap producer is cloned for a use that cannot be fused."""

from collections.abc import Callable

import blockbuster_fusion as bb
from blockbuster_fusion.rules.recompute import LARGEST, Recompute
from helpers.extensions import (
    divided_by_its_sum,
    exp_with_its_sum,
    one_after_the_other,
    product_by_its_sum,
    product_read_again,
    running_sums_by_their_sum,
    scaled_rows_by_column,
    weighted_many_times,
    whole_list_and_its_sum,
)
from helpers.rewriting import before_and_after, fire, matches, refusals

RULE = Recompute()


def test_a_list_that_is_read_twice(golden: Callable[[str], None]) -> None:
    golden(before_and_after(RULE, divided_by_its_sum()))


def test_the_producer_keeps_the_sum_and_the_copy_the_list(golden: Callable[[str], None]) -> None:
    """Neither makes results that only the other's users need."""
    golden(before_and_after(RULE, exp_with_its_sum()))


def test_then_the_copy_can_be_fused() -> None:
    for graph in (divided_by_its_sum(), exp_with_its_sum()):
        assert matches(RULE, fire(RULE, graph)) == []
        assert [len(bb.buffered(s)) for s in bb.fuse(graph, "paper").fused] == [1]
        assert [len(bb.buffered(s)) for s in bb.fuse(graph, "extended").fused] == [1, 0]


def test_a_list_that_the_consumer_walks_as_well_is_at_hand() -> None:
    """Nothing more is read: the copy is made of a list that is loaded anyway."""
    graph = product_read_again()
    assert len(matches(RULE, graph)) == 1
    assert [len(bb.buffered(s)) for s in bb.fuse(graph, "extended").fused] == [3, 2]


def test_refuses_maps_over_different_dims() -> None:
    assert refusals(RULE, scaled_rows_by_column()).count("same_dim") == 1


def test_refuses_a_list_that_is_needed_whole() -> None:
    assert "walks_a_list" in refusals(RULE, whole_list_and_its_sum())


def test_refuses_where_rule_1_can_fire() -> None:
    assert refusals(RULE, one_after_the_other()) == ["rule_1_is_blocked"]


def test_refuses_a_producer_with_a_dot() -> None:
    assert "cheap" in refusals(RULE, product_by_its_sum())


def test_refuses_a_large_producer() -> None:
    """Each factor is an operand and a product; the first list and the sum come on top."""
    most = (LARGEST - 2) // 2
    assert len(matches(RULE, weighted_many_times(most))) == 1
    assert refusals(RULE, weighted_many_times(most + 1)) == ["small"]


def test_refuses_a_producer_of_lists_that_are_made_here() -> None:
    assert "lists_at_hand" in refusals(RULE, running_sums_by_their_sum())
