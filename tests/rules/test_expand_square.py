"""Beyond the paper: Σ(x + c)² = Σx² + 2c·Σx + |K|c²."""

from collections.abc import Callable

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion import ops
from blockbuster_fusion.array.arrays import Array
from blockbuster_fusion.ir.expr import Expr, arg
from blockbuster_fusion.rules.expand_square import ExpandSquare
from helpers.extensions import (
    MINUS,
    SQUARE,
    large_whole_numbers_squared,
    outer_squares,
    shifted_block,
    squares,
    squares_of_all_heads,
    squares_of_each_block,
    truth_values_squared,
    two_pass_variance,
    whole_k,
    whole_m,
    whole_numbers_shifted_and_squared,
)
from helpers.rewriting import before_and_after, check, fire, lowered, refusals, sites

RULE = ExpandSquare()


def test_the_variance_in_two_passes(golden: Callable[[str], None]) -> None:
    """The sum of X, that the mean needs, is used again."""
    golden(before_and_after(RULE, two_pass_variance()))


def test_without_a_loop(golden: Callable[[str], None]) -> None:
    golden(before_and_after(RULE, shifted_block((whole_m,), SQUARE, divided=False)))


@pytest.mark.parametrize("inside", [False, True], ids=["sum beside", "sum inside"])
@pytest.mark.parametrize("square", [SQUARE, arg(0) * arg(0), arg(0) ** 2.0], ids=str)
@pytest.mark.parametrize("shift", [MINUS, arg(0) + arg(1), arg(1) + arg(0)], ids=str)
def test_every_form(shift: Expr, square: Expr, inside: bool) -> None:
    made = fire(RULE, squares(shift=shift, square=square, inside=inside))
    assert sites(RULE, made) == []


@pytest.mark.parametrize("again", ["shifted", "sum"])
def test_what_else_is_used_stays(again: str) -> None:
    fire(RULE, squares(again=again))


@pytest.mark.parametrize("again", ["squares", "parts"])
def test_refuses_squares_that_are_used_elsewhere(again: str) -> None:
    """Also where only the sums of the blocks are."""
    assert refusals(RULE, squares(again=again)) == ["only_summed"]


def test_refuses_a_sum_of_a_part() -> None:
    """A loop that starts at block 1 leaves a block out."""
    assert refusals(RULE, squares(inside=True, first=1)) == ["only_summed"]


def test_refuses_a_sum_over_two_axes() -> None:
    """|K| is not how many squares there are."""
    assert refusals(RULE, squares_of_all_heads()) == ["only_summed"]


def test_refuses_the_sum_of_one_block() -> None:
    """|M| is how many squares there are in all blocks."""
    assert refusals(RULE, squares_of_each_block()) == ["only_summed"]


def test_refuses_a_shift_that_changes_along_the_sum() -> None:
    graph = shifted_block((whole_k,), SQUARE, divided=False)
    assert refusals(RULE, graph) == ["constant_along_the_sum"]


def test_refuses_a_shift_that_changes_the_dtype() -> None:
    assert refusals(RULE, large_whole_numbers_squared()) == ["same_float_dtype"]


@pytest.mark.parametrize(
    "program", [truth_values_squared, whole_numbers_shifted_and_squared], ids=lambda f: f.__name__
)
def test_refuses_what_are_no_floats(program: Callable[[], bb.Graph]) -> None:
    assert refusals(RULE, program()) == ["same_float_dtype"]


def test_refuses_a_shift_with_an_axis_of_its_own() -> None:
    """Σx² has fewer axes than the sum of all pairs' squares."""
    assert refusals(RULE, outer_squares()) == ["within"]


def test_distances_of_all_pairs_are_fused_without_the_rule() -> None:
    def program(x: Array, c: Array, W: Array) -> Array:
        return W @ ops.square(x[None, :, :] - c[:, :, None]).sum(-1)

    graph = lowered(program, x="D N", c="M D", W="L M")
    for snapshot in bb.fuse(graph, "extended").fused:
        check(graph, snapshot)


def test_fires_only_where_safety_follows() -> None:
    graph = two_pass_variance()
    assert RULE.name in [step.rule for step in bb.fuse(graph, rules="extended").trace]
    assert RULE.name not in [
        step.rule for step in bb.fuse(graph, safe=False, rules="extended").trace
    ]
