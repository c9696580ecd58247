"""Beyond the paper: the loops of a perfect nest change places."""

from collections.abc import Callable

import blockbuster_fusion as bb
from blockbuster_fusion.rules.interchange import Interchange
from helpers.extensions import column_sums, columns_of_itself, columns_of_two, rows_and_columns
from helpers.rewriting import before_and_after, fire, matches, refusals

RULE = Interchange()


def test_rows_for_a_map_over_columns(golden: Callable[[str], None]) -> None:
    golden(before_and_after(RULE, column_sums()))


def test_then_the_maps_can_be_fused() -> None:
    graph = column_sums()
    assert [len(bb.buffered(s)) for s in bb.fuse(graph, "paper").fused] == [1]
    assert [len(bb.buffered(s)) for s in bb.fuse(graph, rules="extended").fused] == [0]


def test_several_results() -> None:
    made = fire(RULE, columns_of_two(turned=False))
    assert [op.dim.name for _, op in made.maps()] == ["K", "K"]
    assert matches(RULE, made) == []


def test_refuses_results_in_another_order() -> None:
    assert refusals(RULE, columns_of_two(turned=True)) == ["only_stacks"]


def test_refuses_a_user_that_walks_rows() -> None:
    assert "iterated_by_all" in refusals(RULE, rows_and_columns())


def test_refuses_a_list_that_is_a_result() -> None:
    assert refusals(RULE, column_sums(again=True)) == ["iterated_by_all"]


def test_refuses_where_another_path_leads_to_the_map() -> None:
    """For the map that comes first it fires all the same."""
    graph = columns_of_itself()
    assert refusals(RULE, graph) == ["only_direct_edges"]
    assert len(matches(RULE, graph)) == 1
