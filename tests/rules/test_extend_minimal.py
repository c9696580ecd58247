"""Beyond the paper: a map is extended over its producers only."""

from collections.abc import Callable

import blockbuster_fusion as bb
from blockbuster_fusion import ops
from blockbuster_fusion.rules.extend_minimal import ExtendMinimal
from helpers.extensions import exp_into_columns, summed_by_a_nested_loop
from helpers.rewriting import before_and_after, fire, lowered, matches, refusals, sites

RULE = ExtendMinimal()


def test_a_producer_moves_in_and_its_sum_comes_out(golden: Callable[[str], None]) -> None:
    """The sum is the same in every iteration: the map yields any of them."""
    golden(before_and_after(RULE, exp_into_columns()))


def test_other_ancestors_stay_outside() -> None:
    """The factor does not depend on the list, and is not computed again for each column."""

    def program(X: object, Y: object, Z: object) -> object:
        return (ops.exp(X) @ Y.T) * ops.sin(Z.sum())

    (snapshot, *_) = bb.fuse(lowered(program, X="K", Y="N K", Z="M"), "paper").fused
    made = fire(RULE, snapshot)
    ((_, op),) = [(i, op) for i, op in made.maps() if op.dim.name == "N"]
    assert len(list(made.maps())) == 2  # the sum over M is still there
    assert [inner.dim.name for _, inner in op.body.maps()] == ["K", "K"]


def test_what_lies_between_moves_in_as_well() -> None:
    """Also a map over the same dim, which then stands in one over that dim."""
    graph = summed_by_a_nested_loop()
    made = fire(RULE, graph)
    ((_, op),) = made.maps()
    assert [inner.dim.name for _, inner in op.body.maps()] == ["K", "N", "K"]


def test_refuses_where_the_map_iterates_what_would_move_in() -> None:
    graph = exp_into_columns(iterated=True)
    assert refusals(RULE, graph) == ["only_items_escape", "iterates_nothing_pulled"]


def test_refuses_a_list_that_others_need() -> None:
    assert refusals(RULE, exp_into_columns(again=True)) == ["only_items_escape"]


def test_no_place_in_a_loop_that_starts_at_block_1() -> None:
    """The loop may have no iteration, and then yields no result that others need."""
    assert sites(RULE, exp_into_columns(peeled=True)) == []


def test_no_place_where_the_list_is_not_walked_inside() -> None:
    graph = lowered(lambda X: ops.exp(X) + 1.0, X="K")
    assert sites(RULE, graph) == []
    assert matches(RULE, graph) == []
