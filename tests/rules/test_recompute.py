"""Beyond the paper: a cheap producer is cloned for a use that cannot be fused."""

from collections.abc import Callable

import blockbuster_fusion as bb
from blockbuster_fusion.rules.recompute import Recompute
from extensions import (
    divided_by_its_sum,
    one_after_the_other,
    product_by_its_sum,
    running_sums_by_their_sum,
    scaled_rows_by_column,
    whole_list_and_its_sum,
)
from rewriting import before_and_after, fire, matches, refusals

RULE = Recompute()


def test_a_list_that_is_read_twice(golden: Callable[[str], None]) -> None:
    golden(before_and_after(RULE, divided_by_its_sum()))


def test_then_the_copy_can_be_fused() -> None:
    graph = divided_by_its_sum()
    assert matches(RULE, fire(RULE, graph)) == []
    assert [len(bb.buffered(s)) for s in bb.fuse(graph, "paper").snapshots] == [1]
    assert [len(bb.buffered(s)) for s in bb.fuse(graph, rules="extended").snapshots] == [1, 0]


def test_refuses_maps_over_different_dims() -> None:
    assert refusals(RULE, scaled_rows_by_column()).count("same_dim") == 1


def test_refuses_a_list_that_is_needed_whole() -> None:
    assert "iterates_what_is_stacked" in refusals(RULE, whole_list_and_its_sum())


def test_refuses_where_rule_1_can_fire() -> None:
    assert refusals(RULE, one_after_the_other()) == ["blocked_by_a_path"]


def test_refuses_a_producer_with_a_dot() -> None:
    assert "cheap" in refusals(RULE, product_by_its_sum())


def test_refuses_a_producer_of_lists_that_are_made_here() -> None:
    assert "reads_only_inputs" in refusals(RULE, running_sums_by_their_sum())
