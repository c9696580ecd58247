"""Beyond the paper: a row scale moves behind a column scale, (a·c)·w = (a·w)·c."""

from collections.abc import Callable

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.ir.expr import Expr, arg
from blockbuster_fusion.rules.swap_scales import SwapScales
from helpers.extensions import (
    TIMES,
    large_whole_numbers_weighted,
    weighted,
    weighted_by_a_turned_list,
    weighted_by_a_wider_list,
    weighted_item,
)
from helpers.rewriting import before_and_after, check, fire, matches, refusals, sites

RULE = SwapScales()
TURNED = arg(1) * arg(0)


def test_a_weight_between_a_scale_and_a_matmul(golden: Callable[[str], None]) -> None:
    golden(before_and_after(RULE, weighted()))


def test_without_a_loop(golden: Callable[[str], None]) -> None:
    golden(before_and_after(RULE, weighted_item("K")))


@pytest.mark.parametrize("product", [TIMES, TURNED], ids=str)
@pytest.mark.parametrize("operation", [TIMES, TURNED, arg(0) / arg(1)], ids=str)
def test_every_form(operation: Expr, product: Expr) -> None:
    made = fire(RULE, weighted(operation, product))
    assert matches(RULE, made) == []


def test_the_product_is_laid_out_as_it_was() -> None:
    """w comes first, and its blocks are turned: so is the product, before and after."""
    fire(RULE, weighted_by_a_turned_list())


def test_two_dots_that_want_different_factors_last() -> None:
    """If a scale moves behind the other, one of the dots wants it back: neither moves."""
    graph = weighted_item("K", "M")
    assert refusals(RULE, graph) == ["towards_a_dot"]
    check(graph, bb.fuse(graph, rules="extended").fused[-1])


def test_refuses_a_list_that_is_used_elsewhere() -> None:
    assert "used_once" in refusals(RULE, weighted(again=True))


def test_refuses_where_no_dot_follows() -> None:
    for graph in (weighted(dot=False), weighted_item()):
        assert refusals(RULE, graph) == ["towards_a_dot"]


def test_refuses_a_dot_along_the_scales_own_axis() -> None:
    assert refusals(RULE, weighted_item("M")) == ["towards_a_dot"]


def test_refuses_an_operation_that_changes_the_dtype() -> None:
    assert refusals(RULE, large_whole_numbers_weighted()) == ["same_dtypes"]


def test_refuses_factors_that_widen_the_list() -> None:
    assert refusals(RULE, weighted_by_a_wider_list()) == ["within"]


def test_no_place_where_the_weight_divides() -> None:
    """Only products have two factors that may change places."""
    assert sites(RULE, weighted(product=arg(0) / arg(1))) == []
