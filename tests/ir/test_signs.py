"""Signs of expressions: what they tell holds for all numbers, infinite ones too."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockbuster_fusion.ir.expr import Expr, arg, call, const, evaluate
from blockbuster_fusion.ir.signs import Sign, is_share, sign_of
from blockbuster_fusion.schedule.weights import WEIGHTS, weight

NUMBERS = np.array([-np.inf, -1e30, -2.5, -1.0, -0.0, 0.0, 0.5, 1.0, 3.0, 1e30, np.inf])
UNARY = ("abs", "neg", "exp", "exp2", "sqrt", "tanh", "log", "floor")
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum")


def expressions() -> st.SearchStrategy[Expr]:
    leaves = st.one_of(
        st.builds(arg, st.integers(0, 1)),
        st.builds(const, st.sampled_from((-2.0, -0.0, 0.0, 0.5, 3.0))),
    )

    def larger(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        return st.one_of(
            st.builds(lambda op, x: call(op, x), st.sampled_from(UNARY), inner),
            st.builds(lambda op, x, y: call(op, x, y), st.sampled_from(BINARY), inner, inner),
            st.builds(lambda x: x * x, inner),
            st.builds(lambda x, n: x**n, inner, st.sampled_from((2, 3, 4.0, 0.5, -0.5, -1))),
            st.builds(lambda x, y: call("where", call("lt", arg(0), x), x, y), inner, inner),
        )

    return st.recursive(leaves, larger, max_leaves=8)


@given(expressions())
def test_what_is_told_holds_for_all_numbers(expr: Expr) -> None:
    told, given_ = sign_of(expr), np.meshgrid(NUMBERS, NUMBERS)
    with np.errstate(all="ignore"):
        found = np.asarray(evaluate(expr, given_, lambda axis: 1, lambda x, _: x), float)
    assert not told.never_negative or not (found < 0).any()
    assert not told.never_positive or not (found > 0).any()
    with np.errstate(all="ignore"):
        shares = np.exp(found)
    assert not is_share(call("exp", expr)) or not (shares > 1).any()


@pytest.mark.parametrize(
    ("expr", "sign"),
    [
        (-call("abs", arg(0)), Sign(never_positive=True)),
        (call("abs", arg(0)) * -1.0, Sign(never_positive=True)),
        (-(arg(0) ** 2) - 3.0, Sign()),  # differences are not looked at
        (call("minimum", arg(0), 0.0), Sign(never_positive=True)),
        (call("maximum", arg(0), 0.0), Sign(never_negative=True)),
        (arg(0) * arg(0), Sign(never_negative=True)),
        (arg(0) * arg(1), Sign()),
        (const(0.0), Sign(True, True)),
    ],
)
def test_signs(expr: Expr, sign: Sign) -> None:
    assert sign_of(expr) == sign


def test_shares_are_exponentials_of_what_is_never_positive() -> None:
    assert is_share(call("exp", -call("abs", arg(0))))
    assert not is_share(call("exp", call("abs", arg(0))))
    assert not is_share(call("minimum", call("abs", arg(0)), 1.0))


def test_the_logarithm_of_a_share_is_cheap_on_a_gpu() -> None:
    share, other = (call("log1p", call("exp", x)) for x in (-call("abs", arg(0)), arg(0)))
    on_gpu, on_cpu = WEIGHTS["cuda"], WEIGHTS["cpu"]
    assert weight(share, on_gpu) < weight(other, on_gpu)
    assert weight(share, on_cpu) == weight(other, on_cpu) + 2  # the sign takes two operations
