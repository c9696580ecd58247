"""Programs that the numeric fuzzer found, one for each cause: the judge passes all snapshots."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.tools.check.adversarial import adversarial

o = bb.ops


@dataclass(frozen=True)
class Found:
    """A program, the cause of its errors without care, and the inputs that show them."""

    cause: str
    function: Callable[..., object]
    specs: tuple[str | tuple[()], ...]
    case: str
    unit: tuple[str, ...] = ()


def total_variance(x):
    """The variance over two axes, written in one pass."""
    mean = o.mean(x, (-2, -1), keepdims=True)
    return o.mean(x * x, (-2, -1), keepdims=True) - mean**2


def centred(x):
    return x - o.mean(x, -1, keepdims=True)


def total_norm(x):
    mean = o.mean(x, (-2, -1), keepdims=True)
    variance = o.mean((x - mean) ** 2, (-2, -1), keepdims=True)
    return (x - mean) * (variance + 1e-5) ** -0.5


def softmax(x, axis=-1):
    """A softmax as it is written out, without a shift."""
    e = o.exp(x)
    return e / o.sum(e, axis, keepdims=True)


def logsumexp(x):
    return o.log(o.sum(o.exp(x), -1, keepdims=True))


def log_cosh(x):
    return o.log(o.exp(x) + o.exp(-x))


def balanced(X, turns, power=-1.0):
    """Exponentials times factors of rows, then of columns too; and the factors of columns."""
    kernel = o.exp(X)
    factors = {-2: o.sum(kernel, -2, keepdims=True) ** power}
    for turn in range(1, turns):
        at, other = (-1, -2) if turn % 2 else (-2, -1)
        factors[at] = o.sum(kernel * factors[other], at, keepdims=True) ** power
    rows = kernel * factors[-1]
    return rows, rows * factors[-2], factors[-2]


FOUND = [
    Found(
        "a pivot of an exponential has its exponent",
        lambda X: o.layernorm(o.exp(X)),
        ("M N",),
        "X: an element at 1e4",
    ),
    Found(
        "so has a pivot of a product with one",
        lambda X, Y: o.layernorm(Y * o.exp(X)),
        ("M N", "M N"),
        "X: columns at 10 to 1e5",
    ),
    Found(
        "a variance over two axes has one pivot",
        lambda X: total_variance(X),
        ("M N",),
        "X: nearly constant",
    ),
    Found(
        "rows keep their means beside it",
        lambda X, Y: {"v": Y * (total_variance(X) + 1e-5) ** -0.5, "m": o.mean(X, -1)},
        ("M N", "M N"),
        "X: rows times 1e-3 to 1e3",
    ),
    Found(
        "a norm of rows is no norm of all",
        lambda X, w: o.mean(o.layernorm(X, w, w), (-2, -1)),
        ("M N", "N"),
        "X: rows at 10 to 1e5",
    ),
    Found(
        "two norms over different axes have two pivots",
        lambda X, Y: {"a": o.layernorm(X, axis=-2), "b": Y * (total_variance(X) + 1e-5) ** -0.5},
        ("M N", "M N"),
        "X: a column at 1e4",
    ),
    Found(
        "elements stay where they were beside a norm over two axes",
        lambda X: {"a": total_norm(X), "b": o.layernorm(centred(X))},
        ("M N",),
        "X: rows times 1e-3 to 1e3",
    ),
    Found(
        "elements do not get a pivot back",
        lambda X, Y: {"a": o.layernorm(X), "b": X + Y},
        ("M N", "M N"),
        "X: first block at 1e4",
    ),
    Found(
        "nor do weighted sums",
        lambda X, Y: {"a": o.layernorm(Y), "b": o.sum(o.softmax(X) * Y, -1)},
        ("M N", "M N"),
        "X: saturated",
    ),
    Found(
        "a sum is the same wherever it is made",
        lambda X: {"a": o.layernorm(X), "b": o.softmax(o.sum(X, -1, keepdims=True), -2)},
        ("B M N",),
        "X: huge",
    ),
    Found(
        "statistics that each iteration of a loop makes",
        lambda X, s, W: {"a": o.layernorm(X - s), "b": (X - s) @ W},
        ("M N", (), "N D"),
        "s: 100",
    ),
    Found(
        "sums that a loop makes beside other results",
        lambda X: {"a": o.layernorm(o.sum(o.exp(X), -1, keepdims=True), axis=-2), "b": o.exp(X)},
        ("B M N",),
        "X: nearly constant",
    ),
    Found(
        "the values of attention have no pivot of their own",
        lambda Q, K, V: o.layernorm(o.softmax(Q @ K.swapaxes(-1, -2)) @ V),
        ("M N", "K N", "K E"),
        "V: rows at 10 to 1e5",
    ),
    Found(
        "exponents that are stored lie apart",
        lambda X, Y: o.layernorm(o.softmax(X, -2) * o.softmax(Y, -2)),
        ("M N", "M N"),
        "X: rows at 10 to 1e5",
    ),
    Found(
        "a maximum meets one exponent only",
        lambda X, W: {"a": o.sum(o.softmax(X) * o.softmax(X), -1), "b": (softmax(X) ** 2) @ W},
        ("M N", "N E"),
        "ordinary",
    ),
    Found(
        "one exponent meets two maxima",
        lambda X, w: o.softmax(o.rmsnorm(o.softmax(X, -2) * o.softmax(X, -2), w)),
        ("M N", "N"),
        "X: columns at 10 to 1e5",
    ),
    Found(
        "two exponents are joined at two maxima",
        lambda X, Y, W: centred(o.softmax(X) * o.softmax(Y)) @ W,
        ("M N", "M N", "N D"),
        "Y: columns at 10 to 1e5",
    ),
    Found(
        "a tiny factor does not move the exponents",
        lambda X, Y: o.sum(o.exp(X) * Y, -1),
        ("M N", "M N"),
        "Y: tiny",
    ),
    Found(
        "a power of an exponential has an exponent",
        lambda X, w: {"a": o.exp(X), "b": o.rmsnorm(o.exp(X), w)},
        ("M N", "N"),
        "X: huge beside tiny",
    ),
    Found(
        "the exponent of a norm comes from the row",
        lambda X, w: o.rmsnorm(o.rmsnorm(o.exp(X), w), axis=-2),
        ("M N", "N"),
        "X: rows times 1e-3 to 1e3",
    ),
    Found(
        "log cosh times a number",
        lambda X: o.softmax(log_cosh(X) * 1000.0),
        ("M N",),
        "ordinary",
    ),
    Found(
        "a softmax of softplus",
        lambda X: o.mean(o.softmax(o.log(1 + o.exp(X))), (-2, -1)),
        ("B M N",),
        "X: rows at 10 to 1e5",
    ),
    Found(
        "an infinity in a softmax of log cosh",
        lambda X: o.softmax(log_cosh(X)),
        ("M N",),
        "X: not finite",
    ),
    Found(
        "an infinity in a norm of exponentials",
        lambda X: o.rmsnorm(o.exp(X)),
        ("M N",),
        "X: not finite",
    ),
    Found(
        "a NaN of another row",
        lambda X: o.softmax(X - o.mean(X, (-2, -1), keepdims=True)),
        ("M N",),
        "X: not finite",
    ),
    Found(
        "a logarithm of sums that is centred and subtracted",
        lambda X: {
            "a": o.mean(logsumexp(X) ** 2, -2) - o.mean(logsumexp(X), -2) ** 2,
            "b": o.layernorm(o.sum(o.softmax(X, -2) * (X - logsumexp(X)), -2)),
        },
        ("B M N",),
        "X: nearly constant",
    ),
    Found(
        "a norm of the other factor of a dot that has a pivot",
        lambda X, Y: {
            "a": o.mean(centred(X) ** 2, -1),
            "b": centred(X) @ Y.swapaxes(-1, -2),
            "c": o.layernorm(Y),
        },
        ("M N", "E N"),
        "Y: rows at 10 to 1e5",
        ("M", "E"),
    ),
    Found(
        "copies of a centred array, one of them with a pivot",
        lambda X: {
            "a": X - o.mean(X, -2, keepdims=True),
            "b": o.mean((X - o.mean(X, -2, keepdims=True)) ** 2, -2),
            "c": o.rmsnorm(X - o.mean(X, -2, keepdims=True)),
        },
        ("M N",),
        "X: a column at 1e4",
    ),
    Found(
        "a sum of differences from other maxima is divided by",
        lambda X: balanced(X, 2)[0],
        ("M N",),
        "X: saturated",
    ),
    Found(
        "an exponential is summed with a factor that has an exponent, and without one",
        lambda X: (lambda p: {"a": p, "b": p - o.mean(p, -1, keepdims=True)})(balanced(X, 2)[0]),
        ("M N",),
        "X: columns at 10 to 1e5",
    ),
    Found(
        "an exponent is left when another has met its maximum",
        lambda X: o.rmsnorm(balanced(X, 3)[1]),
        ("M N",),
        "X: rows at 10 to 1e5",
    ),
    Found(
        "a factor after the sum has an exponent",
        lambda X, Y: balanced(X, 3)[1] @ Y,
        ("M N", "N K"),
        "X: rows at 10 to 1e5",
    ),
    Found(
        "products of factors near the largest number are summed",
        lambda X: balanced(X, 4)[2],
        ("M N",),
        "X: rows times 1e-3 to 1e3",
    ),
    Found(
        "two loops over the same blocks, and a norm in the inner one",
        lambda X: o.layernorm(balanced(X, 3, -0.5)[2]),
        ("B M N",),
        "ordinary",
    ),
    Found(
        "all trials of the judge are NaN, because what they are made of overflows",
        lambda X: balanced(X * X, 3, -0.5)[1],
        ("B M N",),
        "X: huge",
    ),
]


@pytest.mark.parametrize("found", FOUND, ids=lambda found: found.cause)
def test_found(found: Found) -> None:
    program = bb.trace(found.function, *found.specs)
    cases = [case for case in adversarial(program) if case.name == found.case]
    assert cases, [case.name for case in adversarial(program)]
    report = bb.check(program, cases=cases, unit=found.unit)
    assert report.ok, report


def test_a_choice_is_no_guard() -> None:
    """exp(where(y > 0, x, 0)) is 1 somewhere, even if all x are small."""

    def program(X, Y):
        return o.exp(o.where(Y > 0, X, 0.0)) + o.sum(o.exp(X), -1, keepdims=True)

    inputs = {
        "X": np.full((3, 7), -1000, np.float32),
        "Y": np.resize(np.float32([1, -1]), (3, 7)),
    }
    report = bb.check(bb.trace(program, "M N", "M N"), inputs)
    assert report.ok, report


def test_added_exponents_keep_their_digits() -> None:
    """e^(s+t) has the error of s+t, which is much where both are large and far apart."""

    def program(X, Y):
        return o.exp(X) * o.softmax(Y)

    rng = np.random.default_rng(0)
    inputs = {
        "X": rng.uniform(300, 700, (24, 17)),
        "Y": 300 * rng.uniform(-1, 1, (24, 17)),
    }
    report = bb.check(bb.trace(program, "M N", "M N"), inputs, dtype="float64")
    assert report.ok, report


def test_the_square_of_a_large_factor_is_scaled() -> None:
    """A row's factor of e^60 meets exponents that are only partly those of its own maxima."""

    def program(X):
        return o.rmsnorm(balanced(X, 3)[1], axis=-2)

    inputs = {"X": np.float32([[100] * 5, [40] * 5, [70] * 5, [1, 2, 3, 90, 5]])}
    report = bb.check(bb.trace(program, "M N"), inputs)
    assert report.ok, report


@pytest.mark.parametrize("function", [o.rmsnorm, lambda p: o.log(p * p)], ids=["norm", "log"])
def test_the_square_of_a_large_factor_does_not_overflow(function) -> None:
    """A row's factor of e^60 makes up for its share of e^-60 in the columns."""

    def program(X):
        return function(balanced(X, 2)[1])

    inputs = {"X": np.float32([[100] * 5, [40] * 5, [70] * 5])}
    report = bb.check(bb.trace(program, "M N"), inputs)
    assert report.ok, report


def test_a_program_that_just_fails_is_judged_with_more_trials() -> None:
    """The sum of an exponential minus its maximum is 0, but for its rounding."""

    def program(X):
        total = o.sum(o.exp(X), -1, keepdims=True)
        return o.mean(o.relu(total - o.max(total, -2, keepdims=True)), -2)

    rng = np.random.default_rng(0)
    for _ in range(20):
        inputs = {"X": np.where(rng.random((2, 24, 17)) < 0.5, 5, -1000).astype(np.float32)}
        report = bb.check(bb.trace(program, "B M N"), inputs)
        assert report.ok, report


def test_a_mean_keeps_its_dtype() -> None:
    """A float64 sum is not taken from the float32 sum that a pivot is made of."""

    def program(X):
        wide = o.cast(X, "float64")
        mean = o.mean(wide, -1)
        return {"mean": mean, "variance": o.mean(wide * wide, -1) - mean * mean}

    x = (1000 + np.random.default_rng(0).standard_normal((5, 33))).astype(np.float32)
    mean = bb.compile(bb.trace(program, X="M N"))(X=x)["mean"]
    assert mean.dtype == np.float64
    assert np.abs(mean - x.mean(-1, dtype=np.float64)).max() < 1e-12
