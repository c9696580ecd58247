"""One form for expressions that are written in several ways, and never another value."""

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from blockbuster_fusion.array.canonical import canonical, masked_scale, turned_choice
from blockbuster_fusion.ir.expr import Expr, arg, call, const, evaluate
from blockbuster_fusion.ir.expr_dtypes import result_dtype
from blockbuster_fusion.ir.types import DType
from helpers.effort import part

X, Y, M, N, P = (arg(i) for i in range(5))
KINDS = [DType.float32, DType.float32, DType.int64, DType.int64, DType.bool_]
"""Two floats, two whole numbers and a truth value."""
TRUE, FALSE = const(True), const(False)


@pytest.mark.parametrize(
    ("written", "form"),
    [
        (X * X, X**2),
        (X**0.5, call("sqrt", X)),
        (X**-1, 1 / X),
        (X**1, X),
        (1 / call("sqrt", X), X**-0.5),
        (call("sqrt", X) ** -1, X**-0.5),
        (X * -1.0, -X),
        (call("neg", -X), X),
        (X / 8, X * 0.125),
        (X / (8 - const(0)), X * 0.125),
        (call("and_", P, TRUE), P),
        (call("or_", FALSE, P), P),
        (call("not_", call("not_", P)), P),
        (call("where", call("not_", P), X, Y), call("where", P, Y, X)),
        (X > Y, call("lt", Y, X)),
        (M - N <= 0, M <= N),
        (call("not_", M < N), N <= M),
        (call("not_", call("eq", X, Y)), call("ne", X, Y)),
    ],
    ids=str,
)
def test_the_one_form(written: Expr, form: Expr) -> None:
    assert canonical(written, KINDS) is form


@pytest.mark.parametrize(
    "expr",
    [
        X / 3,  # 1/3 is rounded
        X - Y <= 0,  # inf - inf is no number
        call("not_", X < Y),  # NaN is neither less nor not less
        M * -1.0,  # a float, and -M is none
        call("and_", M, TRUE),  # a truth value, and M is none
        X / 0.0,
    ],
    ids=str,
)
def test_what_is_left_as_it_is(expr: Expr) -> None:
    assert canonical(expr, KINDS) is expr


def test_a_scale_goes_inside_a_mask_of_infinity() -> None:
    masked = call("where", P, X, -math.inf)
    found = masked_scale(arg(0) * 0.5, masked)
    assert found is not None
    assert (found.condition, found.kept, found.factor) == (4, 0, const(0.5))
    assert masked_scale(arg(0) * -0.5, masked) is None, "the sign would change"
    assert masked_scale(arg(0) * 0.5, call("where", P, X, -1e9)) is None


def test_a_number_that_is_chosen_stands_last() -> None:
    assert turned_choice(call("where", P, 0.0, X)) == (4, call("where", P, X, 0.0))
    assert turned_choice(call("where", P, X, 0.0)) is None
    assert turned_choice(call("where", P, 1.0, 0.0)) is None


COMPARISONS = ["lt", "le", "gt", "ge", "eq", "ne"]


@st.composite
def floats(draw: st.DrawFn, depth: int = 4) -> Expr:
    """An expression that is a float."""
    if depth == 0 or draw(st.integers(0, 4)) == 0:
        return draw(st.sampled_from([X, Y, const(0.5), const(2.0), const(-1.0), const(1.0)]))
    x = draw(floats(depth - 1))
    match draw(st.sampled_from(["infix", "neg", "sqrt", "pow", "where"])):
        case "infix":
            return call(draw(st.sampled_from(["mul", "div"])), x, draw(floats(depth - 1)))
        case "neg":
            return -x
        case "sqrt":
            return call("sqrt", call("abs", x))
        case "pow":
            return call("abs", x) ** draw(st.sampled_from([-1, -0.5, 0.5, 1, 2]))
    return call("where", draw(conditions(depth - 1)), x, draw(floats(depth - 1)))


@st.composite
def conditions(draw: st.DrawFn, depth: int) -> Expr:
    """An expression that is true or false."""
    if depth == 0:
        return draw(st.sampled_from([P, TRUE, FALSE]))
    match draw(st.sampled_from(["floats", "whole", "not_", "both"])):
        case "floats":
            name = draw(st.sampled_from(COMPARISONS))
            return call(name, draw(floats(0)), draw(floats(0)))
        case "whole":
            some = st.sampled_from([M, N, M - N, const(0), const(2)])
            return call(draw(st.sampled_from(COMPARISONS)), draw(some), draw(some))
        case "not_":
            return call("not_", draw(conditions(depth - 1)))
    name = draw(st.sampled_from(["and_", "or_"]))
    return call(name, draw(conditions(depth - 1)), draw(conditions(depth - 1)))


def no_sizes(axis: object) -> int:
    raise AssertionError(f"the size of {axis}")


def no_casts(x: object, dtype: DType) -> object:
    raise AssertionError(f"a cast to {dtype}")


@settings(deadline=None, max_examples=part(300))
@given(floats())
def test_the_one_form_has_the_same_value(expr: Expr) -> None:
    """In float64, so that only the last bits may differ: there are no differences of floats, nor
    comparisons of computed ones, which would make much of these."""
    floats = np.array([0.25, -1.5, 3.0, 0.7])
    grid = np.meshgrid(floats, floats[::-1], [-1, 0, 2], [0, 2], [True, False])
    kinds = [DType.float64, DType.float64, *KINDS[2:]]
    form = canonical(expr, kinds)
    assert result_dtype(form, kinds) is result_dtype(expr, kinds)
    with np.errstate(all="ignore"):
        found, wanted = (
            np.asarray(evaluate(e, grid, no_sizes, no_casts), float) for e in (form, expr)
        )
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
