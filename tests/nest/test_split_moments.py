"""Sums, and sums of powers about a mean, that programs share: as exact as those of one program."""

from functools import cache
from typing import Any

import numpy as np
import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.nest.analysis.power_sums import moments
from blockbuster_fusion.nest.nest import For
from blockbuster_fusion.nest.text import nest_from_text
from blockbuster_fusion.nest.verify import verify_nest
from blockbuster_fusion.runtime.executable import Executable
from blockbuster_fusion.schedule.schedule import Schedule
from nest.test_passes import HEAD, TWO_SUMS

o = bb.ops
LENGTHS = (1, 2, 31, 33, 500)
EPSILON = float(np.finfo(np.float32).eps)


def in_two_passes(X: Any, W: Any) -> Any:
    """A norm of groups: a sum, and squares about the mean."""
    y = X - o.mean(X, axis=(1, 2), keepdims=True)
    return {"O": y / o.sqrt(o.mean(y * y, axis=(1, 2), keepdims=True) + 1e-5) * W}


def made_safe(X: Any, W: Any) -> Any:
    """A norm with the mean of squares, which is made safe: sums of both powers about a center."""
    mean = o.mean(X, axis=1, keepdims=True)
    variance = o.mean(X * X, axis=1, keepdims=True) - mean * mean
    return {"O": (X - mean) / o.sqrt(variance + 1e-5) * W}


FUNCTIONS = {
    "in two passes": (in_two_passes, {"X": "M N K", "W": "K"}),
    "made safe": (made_safe, {"X": "M N", "W": "N"}),
}


@cache
def kernels(name: str, parts: int) -> Executable:
    """A norm for a CPU, whose sums are shared among some programs, or are those of one."""
    function, axes = FUNCTIONS[name]
    split = {"N": parts} if parts > 1 else {}
    return bb.compile(function, **axes, tiles={"N": 16}, schedule=Schedule("outer", split=split))


def data(kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Elements that are hard to sum."""
    x = np.random.default_rng(len(kind)).standard_normal(shape)
    place = np.linspace(0.0, 1.0, shape[1]).reshape(1, -1, *(1 for _ in shape[2:]))
    hard = {
        "normal": x,
        "far": x + 1e4,
        "very far": np.round(x) + 2**20,
        "a step": x * 1e-2 + 1e3 * (place > 0.4),
        "a slope": x * 1e-3 + 1e4 * place,
        "constant": x * 0 + 1e3 / 3,
        "large": x * 1e15,
    }
    return hard[kind].astype(np.float32)


KINDS = ("normal", "far", "very far", "a step", "a slope", "constant", "large")


def exact(name: str, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    axes = tuple(range(1, x.ndim))
    y = x.astype(np.float64) - x.mean(axes, np.float64, keepdims=True)
    return y / np.sqrt((y * y).mean(axes, keepdims=True) + 1e-5) * w


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parts", [2, 7, 40])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_exact_as_one_program(name: str, parts: int, kind: str) -> None:
    """Shares are ragged, and some are empty."""
    for length in LENGTHS:
        shape = (3, length, 5) if name == "in two passes" else (3, length)
        x = data(kind, shape)
        w = np.linspace(0.5, 1.5, shape[-1], dtype=np.float32)
        wanted = exact(name, x, w)
        error = np.abs(kernels(name, 1)(X=x, W=w)["O"] - wanted).max()
        rounded = EPSILON * np.abs(wanted).max()
        found = kernels(name, parts)(X=x, W=w)["O"]
        assert np.abs(found - wanted).max() <= 2 * (error + rounded), length


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_kernel_has_all_sums_of_the_shares(name: str) -> None:
    source = kernels(name, 7).source
    assert "_parts(" in source
    assert "_parts2(" not in source


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_empty_share_adds_nothing_to_huge_elements(name: str) -> None:
    """The square of their mean is beyond float32, that of no distance is."""
    x = np.full((3, 33, 5) if name == "in two passes" else (3, 33), 2.0**70, np.float32)
    found = kernels(name, 40)(X=x, W=np.ones(x.shape[-1], np.float32))["O"]
    assert np.array_equal(found, np.zeros_like(x))


def split_at(body: str) -> int:
    """How many loops of a kernel are split at once."""
    nest = nest_from_text(HEAD + body)
    verify_nest(nest)
    (kernel,) = nest.kernels
    return len(moments(kernel, next(at for at, s in enumerate(kernel.body) if isinstance(s, For))))


OF_ANOTHER_ARRAY = {
    "X = Buffer(": "Z = Buffer([BufferAxis(M0), BufferAxis(N0)], float32)\nX = Buffer(",
    "Load(t, X[": "Load(t, Z[",
    "])], [X], ": "])], [X, Z], ",
}
REFUSED = {
    "a third power": {"** 2": "** 3"},
    "no power": {"(x0 - x1) ** 2": "exp(x0 - x1)"},
    "the center minus an element": {"(x0 - x1) ** 2": "(x1 - x0) ** 2"},
    "a scaled distance": {"(x0 - x1) ** 2": "(x0 * x1) ** 2"},
    "other elements": {"(x0 - x1) ** 2": "(exp(x0) - x1) ** 2"},
    "a center that is known before": {"(x0 - x1) ** 2, [t, a]": "(x0 - 2.0) ** 2, [t]"},
    "another array": OF_ANOTHER_ARRAY,
    "a maximum": {"Fold(e, u, N0[n], add)": "Fold(e, u, N0[n], max)"},
    "a sum that is turned": {"x0 + x1, [d, e]": "x1 + x0, [e, d]"},
    "the first sum is one of squares": {
        "Fold(r, s,": "Compute(u, x0 ** 2, [s]), Fold(r, u,",
        "(x0 - x1) ** 2": "(x0 ** 2 - x1) ** 2",
    },
    "a tile that is written over": {
        "Fold(r, s,": "Compute(s, exp(x0), [s]), Fold(r, s,",
        "(x0 - x1) ** 2": "(exp(x0) - x1) ** 2",
    },
    "a distance from the sum so far": {"(x0 - x1) ** 2, [t, a]": "(x0 - x1) ** 2, [t, d]"},
    "whole numbers": {"float32": "int32", "0.0": "0"},
}


def test_a_sum_and_squares_about_a_mean_are_found() -> None:
    assert split_at(TWO_SUMS) == 2
    assert split_at(TWO_SUMS.replace("(x0 - x1) ** 2", "(x0 - x1) * (x0 - x1)")) == 2
    assert split_at(TWO_SUMS.replace("(x0 - x1) ** 2", "x0 - (x1 + 1.0)")) == 2
    assert split_at(TWO_SUMS.replace("(x0 - x1) ** 2", "(1.0 - x1 + x0) ** 2")) == 2


@pytest.mark.parametrize("changes", REFUSED.values(), ids=REFUSED)
def test_other_loops_are_split_one_after_the_other(changes: dict[str, str]) -> None:
    body = TWO_SUMS
    for old, new in changes.items():
        assert old in body
        body = body.replace(old, new)
    assert split_at(body) == 0
