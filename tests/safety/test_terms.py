"""The algebra of significands and exponents: it keeps values, and each rule keeps its form."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.ir.expr import FUNCTIONS, Expr, arg, call, cast, const, postorder
from blockbuster_fusion.ir.expr import evaluate as run
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.safety.linearity import is_inverse, is_linear
from blockbuster_fusion.safety.pairs.arithmetic import as_plain, evaluate, total
from blockbuster_fusion.safety.pairs.exponents import LOG2, NOTHING, bounded, plus, times
from blockbuster_fusion.safety.pairs.terms import Form, Term, moved, plain, scaled
from helpers.effort import part

X, Y, Z = arg(0), arg(1), arg(2)
T, U = arg(3), arg(4)
EXP = call("exp", X)


def no_size(axis: Axis) -> int:
    raise AssertionError(f"nothing here has the axis {axis}")


def value_of(expr: Expr, arguments: list[float]) -> float:
    """The value of an expression in float64."""
    with np.errstate(all="ignore"):
        given = [np.float64(x) for x in arguments]
        return float(run(expr, given, no_size, lambda x, dtype: x))


def settled(value: Expr, *exponent: tuple[Expr, float]) -> Term:
    """A pair through which a sum has gone."""
    return Term(Form.scaled, value, exponent)


def fresh(value: Expr | None, *exponent: tuple[Expr, float]) -> Term:
    """An exponential, perhaps with a factor, that nothing has summed."""
    return Term(Form.scaled, value, exponent, raw=True)


# ---------------------------------------------------------------- values are kept

OPERANDS = [
    plain(arg(0)),
    plain(arg(1)),
    settled(arg(2), (arg(3), 1.0)),
    settled(arg(4), (arg(3), -1.0)),
    settled(arg(2), (arg(3), 1.0), (arg(5), 0.5)),
    fresh(None, (arg(5), 1.0)),
    fresh(arg(0), (arg(5), 1.0)),
    fresh(arg(1), (arg(5), 1.0), (arg(3), -1.0)),
    Term(Form.scaled, arg(4), ((arg(5), 1.0),), raw=True, native=arg(6)),
    moved(arg(1), ((arg(3), 1.0),)),
    moved(arg(0), ((arg(5), 2.0),)),
]
"""Operands in all forms, over the same few numbers, so that exponents meet and cancel."""

PLAIN = [
    arg(0),
    arg(1),
    arg(2) * call("exp", arg(3)),
    arg(4) * call("exp", -arg(3)),
    arg(2) * call("exp", arg(3) + arg(5) * 0.5),
    call("exp", arg(5)),
    arg(0) * call("exp", arg(5)),
    arg(1) * call("exp", arg(5) - arg(3)),
    arg(6),
    arg(1) + arg(3),
    arg(0) + arg(5) * 2.0,
]
"""The term of each operand."""

UNARY = ("neg", "abs", "sqrt", "log", "log2", "log10", "log1p", "exp", "exp2", "tanh", "sin")
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum")
POWERS = (0.0, 0.5, 1.0, 2.0, -1.0, 3)
BETWEEN = 0.739085133
"""A number that no part of an expression is near to."""


@st.composite
def grown(draw: st.DrawFn) -> tuple[Expr, list[float]]:
    """An expression of which every part is a number of moderate size, and its arguments."""
    number = st.floats(0.25, 2.0)
    values = [draw(number) for _ in range(6)]
    values[0] *= draw(st.sampled_from([1.0, -1.0, 0.0]))
    values.append(values[4] * math.exp(values[5]))
    operands = [value_of(expr, values) for expr in PLAIN]
    pool = [arg(i) for i in range(len(OPERANDS))]
    pool += [const(c) for c in (0.0, 1.0, -0.5, 2)]
    for _ in range(draw(st.integers(1, 8))):
        one, other, third = (draw(st.sampled_from(pool)) for _ in range(3))
        kind = draw(st.sampled_from(("unary", "binary", "binary", "pow", "where", "cast")))
        if kind == "unary":
            made = call(draw(st.sampled_from(UNARY)), one)
        elif kind == "binary":
            made = call(draw(st.sampled_from(BINARY)), one, other)
        elif kind == "pow":
            made = one ** draw(st.sampled_from(POWERS))
        elif kind == "where":
            made = call("where", third < BETWEEN, one, other)
        else:
            made = cast(one, DType.float32)
        if abs(value := value_of(made, operands)) < 1e3 and (value == 0 or abs(value) > 1e-3):
            pool.append(made)
    return pool[-1], values


@settings(max_examples=part(500), deadline=None)
@given(grown(), st.booleans())
def test_values_are_kept(case: tuple[Expr, list[float]], lift: bool) -> None:
    expr, values = case
    expected = value_of(expr, [value_of(x, values) for x in PLAIN])
    term = evaluate(expr, OPERANDS, lift=lift)
    assert value_of(as_plain(term), values) == pytest.approx(expected, rel=1e-6, abs=1e-6), term


@settings(max_examples=100, deadline=None)
@given(grown())
def test_forms_are_sound(case: tuple[Expr, list[float]]) -> None:
    """A scaled or moved term has an exponent; atoms stand once, with a factor."""
    term = evaluate(case[0], OPERANDS)
    assert (term.form in (Form.plain, Form.few)) == (not term.exponent)
    assert term.value is not None or term.form in (Form.scaled, Form.few)
    assert (term.form is Form.few) == bool(term.addends)
    atoms = [atom for atom, _ in term.exponent]
    assert len(set(atoms)) == len(atoms)
    assert all(factor != 0 for _, factor in term.exponent)


# ---------------------------------------------------------------- each rule


def of(expr: Expr, *operands: Term) -> Term:
    return evaluate(expr, operands)


def holds(expr: Expr, *names: str) -> bool:
    """True if a function of some name is in an expression."""
    return any(node.op in names for node in postorder(expr))


S = settled(X, (T, 1.0))
"""X·e^T."""
R = fresh(None, (T, 1.0))
"""e^T, of one element."""
L = moved(X, ((T, 1.0),))
"""X + T."""


def test_an_exponential_is_a_term() -> None:
    assert of(EXP, plain(Y)) == fresh(None, (Y, 1.0))
    assert of(call("exp2", X), plain(Y)) == fresh(None, (Y, LOG2))
    assert evaluate(EXP, [plain(Y)], lift=False) == plain(call("exp", Y))


def test_an_exponential_alone_is_written_as_it_was() -> None:
    for name in ("exp", "exp2"):
        assert as_plain(of(call(name, X), plain(Y))) is call(name, Y)


def test_products_add_exponents() -> None:
    assert of(X * Y, S, settled(Y, (U, 2.0))) == settled(X * Y, (T, 1.0), (U, 2.0))
    assert of(X * Y, R, fresh(None, (U, 1.0))) == fresh(None, (T, 1.0), (U, 1.0))
    assert of(X / Y, S, settled(Y, (U, 2.0))) == settled(X / Y, (T, 1.0), (U, -2.0))
    assert of(X * Y, S, plain(Z)) == settled(X * Z, (T, 1.0))
    assert of(X * Y, R, plain(Z)) == fresh(Z, (T, 1.0))


def test_one_over_an_exponential_has_no_significand() -> None:
    assert of(1 / X, R) == fresh(None, (T, -1.0))
    assert of(2 / X, R) == fresh(const(2), (T, -1.0))


def test_what_cancels_is_gone() -> None:
    inverse = of(1 / X, S)
    assert inverse == settled(1 / X, (T, -1.0))
    for made in (of(X * Y, S, inverse), of(X / Y, S, settled(Y, (T, 1.0))), of(X / Y, R, R)):
        assert made.form is Form.plain
        assert made.exponent == ()
        assert not holds(as_plain(made), "exp")


def test_a_pair_and_an_exponential_cancel_in_part() -> None:
    made = of(X / Y, fresh(None, (U, 1.0)), S)
    assert made.form is Form.scaled
    assert dict(made.exponent) == {U: 1.0, T: -1.0}
    assert made.raw
    assert str(as_plain(made)) == "1.0/x0*exp(x4-x3)"


def test_sums_at_one_exponent() -> None:
    assert of(X + Y, S, settled(Y, (T, 1.0))) == settled(X + Y, (T, 1.0))
    assert of(X - Y, R, fresh(Y, (T, 1.0))) == fresh(const(1.0) - Y, (T, 1.0))


def test_sums_at_two_exponents_take_the_larger() -> None:
    made = of(X + Y, S, settled(Y, (U, 1.0)))
    common = bounded(call("maximum", T, U))
    assert made.form is Form.scaled
    assert made.exponent == ((common, 1.0),)
    assert not made.raw
    assert made.value is not None
    numbers = [2.0, 3.0, 0.0, 1000.0, 999.0]
    assert value_of(made.value, numbers) == pytest.approx(2 + 3 * math.exp(-1))


def test_sums_of_two_nothings_are_nothing() -> None:
    """Both exponents may be -inf: their difference must not be taken."""
    nothing = float("-inf")
    made = of(X + Y, S, settled(Y, (U, 1.0)))
    assert value_of(as_plain(made), [2.0, 3.0, 0.0, nothing, nothing]) == 0.0


def test_a_pair_plus_a_number() -> None:
    """The number has the exponent 0."""
    made = of(X + 1, S)
    assert made.exponent == ((bounded(call("maximum", T, 0.0)), 1.0),)
    assert made.value is not None
    assert value_of(made.value, [2.0, 0, 0, 1000.0]) == 2.0


def test_an_exponential_plus_a_number_is_native() -> None:
    """A sigmoid's exponential: sharing an exponent would break it."""
    made = of(1 / (1 + EXP), plain(Y))
    assert as_plain(made) is 1 / (1 + call("exp", Y))
    native = Term(Form.scaled, None, ((T, 1.0),), raw=True, native=U)
    assert as_plain(of(X + 1, native)) is U + 1


def test_the_logarithm_of_a_pair_is_moved() -> None:
    assert of(call("log", X), S) == moved(call("log", X), ((T, 1.0),))
    assert of(call("log", X), R) == plain(T)
    made = of(call("log2", X), S)
    assert made.form is Form.moved
    assert made.exponent == ((T, 1 / LOG2),)


def test_log1p_of_a_pair_is_moved() -> None:
    made = of(call("log1p", X), S)
    assert made.form is Form.moved
    assert value_of(as_plain(made), [1.0, 0, 0, 1000.0]) == 1000.0
    assert of(call("log1p", X), R).form is Form.moved


def test_moved_terms_add_up() -> None:
    other = moved(Y, ((U, 1.0),))
    assert of(X + Y, L, other) == moved(X + Y, ((T, 1.0), (U, 1.0)))
    assert of(X - Y, L, moved(Y, ((T, 1.0),))) == plain(X - Y)
    assert of(X + 2.0, L) == moved(X + 2.0, ((T, 1.0),))
    assert of(X * 2.0, L) == moved(X * 2.0, ((T, 2.0),))
    assert of(X / 2, L) == moved(X / 2.0, ((T, 0.5),))
    assert of(-X, L) == moved(-X, ((T, -1.0),))


def test_what_is_large_is_subtracted_first() -> None:
    """x - (t + log s): x - t first, which is where large numbers cancel."""
    lse = of(call("log", X), S)
    assert str(as_plain(of(X - Y, plain(U), lse))) == "x4-x3-log(x0)"
    assert str(as_plain(of(X + Y, lse, plain(U)))) == "x3+x4+log(x0)"
    assert str(as_plain(of(X - Y, lse, plain(U)))) == "x3-x4+log(x0)"
    numbers = [0.5, 0, 0, 1e17, 1e17]
    made = of(X - Y, plain(U), lse)
    assert value_of(as_plain(made), numbers) == -math.log(0.5)


def test_the_exponential_of_a_moved_term_is_a_pair() -> None:
    assert of(EXP, L) == settled(call("exp", X), (T, 1.0))
    back = of(EXP, of(call("log", X), S))
    assert back == settled(call("exp", call("log", X)), (T, 1.0))


def test_other_functions_of_a_moved_term_are_plain() -> None:
    for expr in (X * Y, Y / X, call("tanh", X), call("sqrt", X), X**2, call("abs", X)):
        assert of(expr, L, plain(Z)).form is Form.plain
    assert of(call("exp2", X), L) == fresh(None, (T + X, LOG2))


def test_hidden_exponentials_have_no_exponent() -> None:
    """A mask on a fresh term goes into the exponent: nothing hidden counts for a maximum."""
    hidden = call("where", Y, T, NOTHING)
    assert of(call("where", Y, X, 0.0), R, plain(Y)) == fresh(None, (hidden, 1.0))
    turned = call("where", Y, NOTHING, T)
    assert of(call("where", Y, 0, X), R, plain(Y)) == fresh(None, (turned, 1.0))


def test_hidden_sums_are_zero_and_have_no_exponent() -> None:
    made = of(call("where", Y, X, 0.0), S, plain(Y))
    assert made == settled(call("where", Y, X, 0.0), (call("where", Y, T, NOTHING), 1.0))
    assert value_of(as_plain(made), [2.0, 0.0, 0.0, 1000.0]) == 0.0


def test_a_choice_between_pairs() -> None:
    made = of(call("where", Z, X, Y), S, settled(Y, (T, 1.0)), plain(Z))
    assert made == settled(call("where", Z, X, Y), (T, 1.0))
    assert of(call("where", Z, X, Y), R, fresh(None, (U, 1.0)), plain(Z)).form is Form.plain
    assert of(call("where", Z, X, Y), L, plain(Y), plain(Z)).form is Form.plain


def test_roots_powers_and_absolute_values() -> None:
    assert of(call("sqrt", X), S) == settled(call("sqrt", X), (T, 0.5))
    assert of(call("sqrt", X), R) == fresh(None, (T, 0.5))
    assert of(X**2, S) == settled(X**2, (T, 2.0))
    assert of(X**-0.5, R) == fresh(None, (T, -0.5))
    assert of(X**0, S) == plain(X**0)
    assert of(call("abs", X), S) == settled(call("abs", X), (T, 1.0))
    assert of(-X, R) == fresh(-const(1.0), (T, 1.0))
    assert of(Y**X, S, plain(Y)).form is Form.plain


def test_the_larger_of_two() -> None:
    assert of(call("maximum", X, 0.0), S) == settled(call("maximum", X, 0.0), (T, 1.0))
    assert of(call("minimum", X, Y), S, settled(Y, (T, 1.0))).exponent == ((T, 1.0),)
    assert of(call("maximum", X, 0.0), R) == plain(call("maximum", call("exp", T), 0.0))


def test_casts_keep_pairs() -> None:
    assert of(cast(X, DType.bfloat16), S) == S
    assert of(cast(X, DType.int64), S).form is Form.plain
    assert of(cast(X, DType.float32), L).form is Form.plain


def test_exponents_as_sums() -> None:
    assert plus(((T, 1.0),), ((T, 1.0), (U, 2.0)), -1.0) == ((U, -2.0),)
    assert times(((T, 1.0),), 0.0) == ()
    assert scaled(None, (), raw=True) == plain(const(1.0))
    assert moved(X, ()) == plain(X)
    assert str(total(((T, -1.0), (U, 2.0)))) == "x4*2.0-x3"
    assert total(()) is const(0.0)


@pytest.mark.parametrize("exponent", [170.0, -170.0])
def test_a_pair_is_multiplied_out_in_two_steps(exponent: float) -> None:
    """Neither factor overflows in float32 where the product does not."""
    significand = np.float32(10.0 ** (-38 if exponent > 0 else 38))
    with np.errstate(over="raise"):
        made = run(
            as_plain(S), [significand, 0, 0, np.float32(exponent)], no_size, lambda x, dtype: x
        )
    wanted = float(significand) * math.exp(exponent)
    assert float(made) == pytest.approx(wanted, rel=1e-5)


def test_nothing_times_infinity_is_nothing() -> None:
    assert value_of(as_plain(S), [0.0, 0, 0, 1e5]) == 0.0


# ---------------------------------------------------------------- terms that may share an exponent


@pytest.mark.parametrize(
    "expr",
    [
        X,
        X * Y,
        Y * X,
        X / Y,
        -X * 2,
        X * Y + X * Z,
        X - X * Y,
        call("abs", X),
        cast(X, DType.float32),
        call("where", Y > 0, X, 0.0),
        call("where", Y > 0, X * Y, X),
        1 / (Y / X),
        X * call("exp", Y),
    ],
    ids=str,
)
def test_multiples(expr: Expr) -> None:
    assert is_linear(expr, 0)
    assert not is_inverse(expr, 0)


@pytest.mark.parametrize("expr", [1 / X, Y / X, -(1 / (X * Y)), 1 / X + Y / X], ids=str)
def test_inverses(expr: Expr) -> None:
    assert is_inverse(expr, 0)
    assert not is_linear(expr, 0)


@pytest.mark.parametrize(
    "expr",
    [
        Y,
        X + 1,
        X + Y,
        X * X,
        X / X,
        X**2,
        1 / (1 + X),
        X + 1 / X,
        call("sqrt", X),
        call("log", X),
        call("tanh", X),
        call("maximum", X, 0.0),
        call("where", X > 0, X, 0.0),
        call("where", Y > 0, X, 1.0),
        call("where", Y > 0, X, Y),
        call("where", Y > 0, X, 1 / X),
        call("where", Y > 0, 0.0, 0.0),
    ],
    ids=str,
)
def test_neither(expr: Expr) -> None:
    assert not is_linear(expr, 0)
    assert not is_inverse(expr, 0)


@pytest.mark.parametrize("name", sorted(f.name for f in FUNCTIONS.values() if f.arity == 1))
def test_functions_are_linear_where_they_are(name: str) -> None:
    """A function that the table calls a multiple is one: f(2x) = 2 f(x)."""
    expr = call(name, X)
    if is_linear(expr, 0):
        for x in (-1.5, 0.0, 3.0):
            assert value_of(expr, [2 * x]) == 2 * value_of(expr, [x])
