"""The careful program is careful, and the judge finds the errors of careless passes."""

from collections.abc import Callable

import numpy as np
import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.array.arrays import Array
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.safety.pairs.pairs import with_exponents
from blockbuster_fusion.safety.pivot.pivot import with_pivots
from blockbuster_fusion.safety.storage import computed_wide
from blockbuster_fusion.tools.check import judge
from blockbuster_fusion.tools.check.careful import careful, reference
from blockbuster_fusion.tools.check.pairwise import in_pairs
from helpers.programs import random_inputs, random_program

ops = bb.ops
EPS = 2.0**-23


def programs(**functions: Callable[..., Array]) -> list[object]:
    return [pytest.param(function, id=name) for name, function in functions.items()]


def careful_error(program: bb.ArrayProgram, inputs: dict[str, np.ndarray]) -> float:
    """The error of the careful program in float32, relative to the largest element of a row."""
    graph = bb.lower(program)
    inputs = {given.name: x for given, x in zip(program.inputs, inputs.values(), strict=True)}
    made = careful(graph, inputs, DType.float32)
    return judge.relative_error(made, reference(graph, inputs, DType.float32).exact)


# ---------------------------------------------------------------- the careful program


def one_pass(X: Array, eps: float = 1e-5) -> Array:
    """LayerNorm with the variance as E[x²] - E[x]²."""
    mean = ops.mean(X, -1, keepdims=True)
    return (X - mean) * (ops.mean(X * X, -1, keepdims=True) - mean**2 + eps) ** -0.5


def two_axes(X: Array, eps: float = 1e-5) -> Array:
    """The same over all axes."""
    mean = ops.mean(X)
    return (X - mean) * (ops.mean(ops.square(X)) - mean * mean + eps) ** -0.5


@pytest.mark.parametrize("offset", [10.0, 1e3, 1e5])
@pytest.mark.parametrize(
    "function", programs(table=ops.layernorm, one_pass=one_pass, two_axes=two_axes)
)
def test_variances_are_made_in_two_passes(
    function: Callable[[Array], Array], offset: float
) -> None:
    """The mean is rounded, which moves all differences alike; nothing else is lost."""
    x = (offset + np.random.default_rng(0).standard_normal((7, 40))).astype(np.float32)
    assert careful_error(bb.trace(function, "M N"), {"X": x}) <= 4 * EPS + offset * EPS


def test_a_covariance() -> None:
    def program(X: Array, Y: Array) -> Array:
        return ops.mean(X * Y, -1) - ops.mean(X, -1) * ops.mean(Y, -1)

    rng = np.random.default_rng(0)
    x, y = (np.float32(1e4) + rng.standard_normal((2, 7, 40)).astype(np.float32) for _ in "xy")
    traced = bb.trace(program, X="B M N", Y="B M N")
    assert careful_error(traced, {"X": x, "Y": y}) <= 16 * EPS


def logsumexp(X: Array) -> Array:
    return ops.log(ops.sum(ops.exp(X), -1))


def written_out(X: Array) -> Array:
    e = ops.exp(X)
    return e / ops.sum(e, -1, keepdims=True)


@pytest.mark.parametrize("offset", [-1e5, 0.0, 1e3, 1e5])
@pytest.mark.parametrize(
    "function",
    programs(
        softmax=ops.softmax,
        written_out=written_out,
        log_softmax=ops.log_softmax,
        log_of_softmax=lambda X: ops.log(ops.softmax(X)),
        logsumexp=logsumexp,
        less_logsumexp=lambda X: X - logsumexp(X)[:, None],
        of_two=lambda X: ops.softmax(X) * ops.softmax(-X),
        weighted=lambda X: ops.sum(ops.exp(X) * X, -1) / ops.sum(ops.exp(X), -1),
        product=lambda X: ops.log(ops.sum(ops.exp(X) * ops.exp(-2 * X), -1)),
    ),
)
def test_exponentials_are_shifted(function: Callable[[Array], Array], offset: float) -> None:
    x = (offset + np.random.default_rng(0).standard_normal((7, 40))).astype(np.float32)
    assert careful_error(bb.trace(function, "M N"), {"X": x}) <= 8 * EPS


@pytest.mark.parametrize(
    "function",
    programs(
        softplus=ops.softplus,
        written=lambda X: ops.log(1 + ops.exp(X)),
        log_cosh=lambda X: ops.log(ops.exp(X) + ops.exp(-X)),
        logaddexp=lambda X: ops.log(ops.exp(X) + ops.exp(2 * X)),
        log_sigmoid=lambda X: -ops.log(ops.sigmoid(-X)),
        sigmoid=ops.sigmoid,
        swish=ops.swish,
    ),
)
def test_logarithms_of_few_exponentials(function: Callable[[Array], Array]) -> None:
    x = np.linspace(-2000, 2000, 41, dtype=np.float32)
    assert careful_error(bb.trace(function, "N"), {"X": x}) <= 2 * EPS


def test_sums_are_made_in_pairs() -> None:
    x = np.random.default_rng(0).random((3, 100_003), np.float32)
    assert np.abs(in_pairs(x) / x.sum(-1, dtype=np.float64) - 1).max() <= EPS
    program = bb.trace(lambda X: ops.sum(X, -1), X="M N")
    assert careful_error(program, {"X": x}) <= EPS
    product = bb.trace(lambda X, Y: X @ Y, "M N", "N K")
    y = np.random.default_rng(1).random((100_003, 1), np.float32)
    assert careful_error(product, {"X": x, "Y": y}) <= 2 * EPS


def test_infinities_are_those_of_the_program_as_it_is_written() -> None:
    x = np.array([[1, np.inf], [1, -np.inf], [np.nan, 1], [-np.inf, -np.inf]], np.float32)
    graph = bb.lower(bb.trace(logsumexp, X="M N"))
    made = next(iter(careful(graph, {"X": x}, DType.float32).values()))
    assert np.array_equal(made, np.float32([np.inf, 1, np.nan, -np.inf]), equal_nan=True)


@pytest.mark.parametrize("extended", [False, True])
def test_the_careful_program_means_the_same(extended: bool) -> None:
    for seed in range(60):
        program = random_program(seed, extended=extended)
        inputs = random_inputs(program, seed)
        made = reference(bb.lower(program), inputs, DType.float32).exact
        for name, wanted in bb.evaluate(program, inputs).items():
            bound = 1e-9 * np.abs(wanted).max(initial=1)
            assert np.allclose(made[name], wanted, rtol=0, atol=bound), f"seed {seed}"


# ---------------------------------------------------------------- careless passes


def pivot_before_the_shift(X: Array, c: Array) -> Array:
    """LayerNorm of X + c whose pivot sits on X, so that the squares of c cancel."""
    pivot = ops.mean(X, -1, keepdims=True)
    d, shift = X - pivot, c + pivot
    mean = ops.mean(d, -1, keepdims=True)
    squares = ops.mean(d * d, -1, keepdims=True) + 2 * shift * mean + shift**2
    variance = squares - (mean + shift) ** 2
    return (d + shift - (mean + shift)) * (variance + 1e-5) ** -0.5


def over_all(X: Array) -> Array:
    mean = ops.mean(X, (1, 2), keepdims=True)
    centred = X - mean
    return centred * (ops.mean(centred**2, (1, 2), keepdims=True) + 1e-5) ** -0.5


def over_all_in_one_pass(X: Array) -> Array:
    mean = ops.mean(X, (1, 2), keepdims=True)
    return (X - mean) * (ops.mean(X**2, (1, 2), keepdims=True) - mean**2 + 1e-5) ** -0.5


def shifted(X: Array) -> tuple[Array, Array]:
    """Exponentials and their sum, shifted as they should be."""
    e = ops.exp(X - ops.max(X, -1, keepdims=True))
    return e, ops.sum(e, -1, keepdims=True)


def softmax_of_one_pass(X: Array, b: Array) -> Array:
    e, total = shifted(one_pass(X + b))
    return e / total


def exponents_added_first(A: Array, B: Array) -> Array:
    tops = [ops.max(x, -1, keepdims=True) for x in (A, B)]
    totals = [shifted(x)[1] for x in (A, B)]
    return ops.exp((A + B) - (tops[0] + tops[1])) / (totals[0] * totals[1])


def factor_in_the_exponent(L: Array, X: Array) -> Array:
    top, (_, total) = ops.max(L, -1, keepdims=True), shifted(L)
    size = ops.log(ops.abs(X))
    return ops.sum(ops.sign(X) * ops.exp(L + size - top) / total, -1)


CARELESS = {
    "a shift by rows": (
        lambda X, c: ops.layernorm(X + c[:, None]),
        lambda X, c: pivot_before_the_shift(X, c[:, None]),
        ("M N", "M"),
    ),
    "a shift by columns": (
        lambda X, c: ops.layernorm(X + c),
        lambda X, c: one_pass(X + c),
        ("M N", "N"),
    ),
    "a shift by a number": (
        lambda X, c: ops.layernorm(X + c),
        pivot_before_the_shift,
        ("M N", ()),
    ),
    "two axes": (over_all, over_all_in_one_pass, ("B M N",)),
    "a producer made twice": (
        lambda X, b: ops.softmax(ops.layernorm(X + b)),
        softmax_of_one_pass,
        ("M N", "N"),
    ),
    "products of softmaxes": (
        lambda A, B: ops.softmax(A) * ops.softmax(B),
        exponents_added_first,
        ("M N", "M N"),
    ),
    "a factor": (
        lambda L, X: ops.sum(ops.softmax(L) * X, -1),
        factor_in_the_exponent,
        ("M N", "M N"),
    ),
}
"""A program, the form that a careless pass would make of it, and the inputs of both."""


@pytest.mark.parametrize("name", CARELESS)
def test_what_careless_passes_lose_is_found(name: str) -> None:
    function, careless, specs = CARELESS[name]
    program, lossy = (bb.trace(made, *specs) for made in (function, careless))
    report = bb.check(program, snapshots=[bb.lower(lossy)])
    assert not report.ok
    assert {row.case for row in report.failures} - {"ordinary"}
    assert "snapshot 1 loses" in report.verdict


PASSES = {
    "without pivots": lambda graph: with_exponents(computed_wide(graph)),
    "without exponents": lambda graph: with_pivots(computed_wide(graph)),
}


@pytest.mark.parametrize(
    ("mutant", "function"),
    [
        ("without pivots", ops.layernorm),
        ("without pivots", lambda X: ops.softmax(ops.layernorm(X))),
        ("without exponents", ops.softmax),
        ("without exponents", logsumexp),
    ],
)
def test_mutants_of_the_pass_are_found(
    mutant: str, function: Callable[[Array], Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = bb.trace(function, "M N")
    cases = [case for case in bb.adversarial(program) if "1e5" in case.name]
    assert bb.check(program, cases=cases).ok
    monkeypatch.setattr(judge, "make_safe", PASSES[mutant])
    assert not bb.check(program, cases=cases).ok


def test_a_contraction_of_nothing() -> None:
    program = bb.trace(lambda A, B: A @ B, "M K", "K N")
    inputs = {"A": np.zeros((3, 0), np.float32), "B": np.zeros((0, 4), np.float32)}
    assert bb.check(program, inputs).ok
