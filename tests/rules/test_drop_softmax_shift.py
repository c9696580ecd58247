"""Beyond the paper: a shift that a normalised exponential does not feel is dropped."""

from collections.abc import Callable

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.ir.expr import Expr, arg
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.rules.drop_softmax_shift import DropSoftmaxShift
from helpers.contractions import rows
from helpers.extensions import (
    EXP,
    MINUS,
    outer_softmax,
    shifted_block,
    shifted_softmax,
    softmax_of_truth_values,
    whole_k,
    whole_m,
)
from helpers.rewriting import before_and_after, check, fire, refusals, sites

RULE = DropSoftmaxShift()


def test_a_softmax_that_is_written_out(golden: Callable[[str], None]) -> None:
    golden(before_and_after(RULE, shifted_softmax()))


def test_without_a_loop(golden: Callable[[str], None]) -> None:
    golden(before_and_after(RULE, shifted_block((whole_m,), EXP)))


@pytest.mark.parametrize("inverse", [False, True], ids=["divided", "times the inverse"])
@pytest.mark.parametrize("shift", [MINUS, arg(0) + arg(1), arg(1) + arg(0)], ids=str)
def test_every_form(shift: Expr, inverse: bool) -> None:
    made = fire(RULE, shifted_softmax(shift=shift, inverse=inverse))
    assert sites(RULE, made) == []


def test_refuses_a_shifted_list_that_is_used_elsewhere() -> None:
    assert refusals(RULE, shifted_softmax(again="shifted")) == ["used_once"]


@pytest.mark.parametrize("again", ["e", "total", "parts"])
def test_refuses_where_more_than_the_quotient_is_wanted(again: str) -> None:
    """Also the sums of the blocks feel the shift."""
    assert refusals(RULE, shifted_softmax(again=again)) == ["normalised_exp"]


def test_refuses_a_shift_that_changes_along_the_sum() -> None:
    assert refusals(RULE, shifted_block((whole_k,), EXP)) == ["constant_along_the_sum"]


def test_refuses_a_shift_that_changes_the_dtype() -> None:
    assert refusals(RULE, shifted_softmax(dtype=DType.bfloat16)) == ["same_float_dtype"]


def test_refuses_truth_values() -> None:
    assert refusals(RULE, softmax_of_truth_values()) == ["same_float_dtype"]


def test_refuses_a_shift_with_an_axis_of_its_own() -> None:
    """Without the shift the result would lack that axis."""
    assert refusals(RULE, outer_softmax()) == ["within"]


def test_an_outer_sum_is_fused_without_the_rule() -> None:
    graph = outer_softmax()
    for snapshot in bb.fuse(graph, "extended").fused:
        check(graph, snapshot)


def test_no_place_without_an_exponential() -> None:
    assert sites(RULE, shifted_softmax(square=True)) == []


def test_no_place_where_the_list_is_subtracted() -> None:
    """exp(c - x) is no shift of x."""
    assert sites(RULE, shifted_softmax(shift=arg(1) - arg(0))) == []


def safe_softmax(X):
    e = bb.ops.exp(X - X.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_fires_only_where_safety_follows() -> None:
    graph = rows(safe_softmax, X="M K")
    assert RULE.name in [step.rule for step in bb.fuse(graph, rules="extended").trace]
    assert RULE.name not in [
        step.rule for step in bb.fuse(graph, safe=False, rules="extended").trace
    ]


@pytest.mark.parametrize(
    "shift",
    [
        lambda X, c: c,
        lambda X, c: X.max(-1, keepdims=True) + c,
        lambda X, c: X.mean((-2, -1), keepdims=True),
    ],
    ids=["another array", "the maximum and another array", "other rows"],
)
def test_caution_where_the_shift_is_not_of_the_row(shift) -> None:
    """A NaN of another row, or of another array, is not lost."""

    def program(X, c):
        e = bb.ops.exp(X - shift(X, c[:, None]))
        return e / e.sum(-1, keepdims=True)

    graph = bb.lower(bb.trace(program, X="M K", c="M"))
    assert RULE.name not in [step.rule for step in bb.fuse(graph, rules="extended").trace]


def sink(minus_c, minus_other) -> bb.Graph:
    """Attention's weights with a sink beside their sum; each may have a shift of its own."""

    def program(X, Y, z):
        c, other = X.max(-1, keepdims=True), X.min(-1, keepdims=True)
        e = bb.ops.exp(minus_c(X, c))
        beside = bb.ops.exp(minus_other(z, c, other))
        return (e / (e.sum(-1, keepdims=True) + beside)) @ Y.T

    return rows(program, X="M K", Y="N K", z="")


def test_a_sink_with_the_same_shift() -> None:
    graph = sink(lambda x, c: x - c, lambda z, c, other: z - c)
    assert sites(RULE, fire(RULE, graph)) == []
    graph = sink(lambda x, c: x + c, lambda z, c, other: c + z)
    assert sites(RULE, fire(RULE, graph)) == []


@pytest.mark.parametrize(
    "beside",
    [
        lambda z, c, other: z - other,
        lambda z, c, other: c - z,
        lambda z, c, other: z + c,
        lambda z, c, other: z,
    ],
)
def test_refuses_a_sink_with_another_shift(beside) -> None:
    assert set(refusals(RULE, sink(lambda x, c: x - c, beside))) == {"normalised_exp"}
