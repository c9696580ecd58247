"""Sums, and sums of powers about a mean, that programs share: as exact as those of one program."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.nest.analysis.power_sums import PowerSums, about_center
from blockbuster_fusion.nest.nest import For, Kernel
from blockbuster_fusion.nest.passes import split_reduction
from blockbuster_fusion.nest.split_power_sums import power_sums_split
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
    "in two passes": (in_two_passes, {"X": "M N K:5", "W": "K:5"}),
    "made safe": (made_safe, {"X": "M N", "W": "N"}),
}


def spread(X: Any) -> Any:
    """A sum, and the squares about the mean by themselves: no norm hides their error."""
    total = o.sum(X, axis=1, keepdims=True)
    y = X - total / float(LENGTHS[-1])
    return {"T": total, "V": o.sum(y * y, axis=1)}


def split_in(parts: int, tile: int = 16) -> dict[str, Any]:
    """The tiles and the schedule of programs that share the sums along N."""
    split = {"N": parts} if parts > 1 else {}
    return {"tiles": {"N": tile}, "schedule": Schedule("outer", split=split)}


@cache
def kernels(name: str, parts: int) -> Executable:
    """A norm for a CPU, whose sums are shared among some programs, or are those of one."""
    function, axes = FUNCTIONS[name]
    return bb.compile(function, **axes, **split_in(parts))


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


@pytest.mark.parametrize(
    ("function", "axes"), [*FUNCTIONS.values(), (spread, {"X": "M N"})], ids=[*FUNCTIONS, "spread"]
)
def test_one_kernel_has_all_sums_of_the_shares(
    function: Any, axes: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loops: list[int] = []

    def noted(kernel: Kernel, found: Sequence[PowerSums], *rest: Any) -> Any:
        loops.append(len(found))
        return power_sums_split(kernel, found, *rest)

    monkeypatch.setattr(split_reduction, "power_sums_split", noted)
    source = bb.compile(function, **axes, **split_in(7)).source
    assert loops == [2]
    assert "_parts(" in source
    assert "_parts2(" not in source


@cache
def spreads(parts: int) -> Executable:
    """The sums of squares about the mean, of some programs or of one."""
    return bb.compile(spread, X="M N", **split_in(parts))


@pytest.mark.parametrize("step", [1e-6, 1e-5, 1e-4, 1e-2])
@pytest.mark.parametrize("parts", [2, 7, 40])
def test_squares_about_a_mean_are_as_exact_as_those_of_one_program(parts: int, step: float) -> None:
    """Halves of rows differ by little beside their mean: the error of the means counts most."""
    rng, length = np.random.default_rng(0), LENGTHS[-1]
    mean = 1e4 * (1 + 0.01 * rng.standard_normal((100, 1)))
    halves = 1e4 * step * (np.arange(length) >= length // 2)
    x = (mean + halves + 500 * step * rng.standard_normal((100, length))).astype(np.float32)
    wide = x.astype(np.float64)
    exact = wide.var(axis=1) * length
    error, found = (np.abs(spreads(n)(X=x)["V"] / exact - 1).max() for n in (1, parts))
    assert found <= 2 * error + 8 * EPSILON


@pytest.mark.parametrize("parts", [4, 40])
def test_sums_of_whole_numbers_are_exact(parts: int) -> None:
    """They are no means times numbers of elements."""
    x = (np.random.default_rng(0).random((200, LENGTHS[-1])) < 0.3).astype(np.float32)
    assert np.array_equal(spreads(parts)(X=x)["T"], x.sum(1))


@pytest.mark.parametrize("parts", [4, 40])
@pytest.mark.parametrize("large", [3e38, -3e38, np.inf])
def test_a_sum_that_overflows_is_infinite(parts: int, large: float) -> None:
    x = np.ones((2, LENGTHS[-1]), np.float32)
    x[0] = x[1, 3] = large
    with np.errstate(over="ignore"):
        wanted = np.array([np.sign(large) * np.inf, x[1].sum()])
    assert np.array_equal(spreads(parts)(X=x)["T"], wanted)


def test_a_center_that_varies_along_a_row_is_none() -> None:
    def scaled(X: Any, W: Any) -> Any:
        y = X - o.mean(X, axis=(1, 2), keepdims=True) * W
        return {"O": o.sum(y * y, axis=(1, 2))}

    x = np.random.default_rng(0).standard_normal((3, 70, 5)).astype(np.float32) + 5
    w = np.linspace(-1, 2, 5, dtype=np.float32)
    found = bb.compile(scaled, X="M N K:5", W="K:5", **split_in(3))(X=x, W=w)["O"]
    wide = x.astype(np.float64)
    exact = ((wide - wide.mean((1, 2), keepdims=True) * w) ** 2).sum((1, 2))
    assert np.abs(found / exact - 1).max() <= 64 * EPSILON


def test_only_an_exponent_of_a_sum_is_read() -> None:
    """A long loop is summed in runs; what nothing reads of its sums is none of them."""

    def distances(X: Any) -> Any:
        e = o.exp(X * 0.01)
        y = e - o.mean(e, axis=(1, 2), keepdims=True)
        return {"O": o.mean(y * y, axis=(1, 2))}

    x = np.random.default_rng(0).standard_normal((3, 70, 5)).astype(np.float32)
    found = bb.compile(distances, X="M N K", **split_in(3))(X=x)["O"]
    exact = np.exp(x.astype(np.float64) * 0.01).var(axis=(1, 2))
    assert np.abs(found / exact - 1).max() <= 64 * EPSILON / 0.01


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_empty_share_adds_nothing_to_huge_elements(name: str) -> None:
    """The square of their mean is beyond float32, that of no distance is."""
    x = np.full((3, 33, 5) if name == "in two passes" else (3, 33), 2.0**70, np.float32)
    found = kernels(name, 40)(X=x, W=np.ones(x.shape[-1], np.float32))["O"]
    assert np.array_equal(found, np.zeros_like(x))


def split_at(body: str) -> int:
    """How many loops of a kernel are split together."""
    nest = nest_from_text(body)
    verify_nest(nest)
    (kernel,) = nest.kernels
    return len(
        about_center(kernel, next(at for at, s in enumerate(kernel.body) if isinstance(s, For)))
    )


OF_ANOTHER_ARRAY = {
    "X = Buffer(": "Z = Buffer([BufferAxis(M0), BufferAxis(N0)], float32)\nX = Buffer(",
    "Load(t, X[": "Load(t, Z[",
    "])], [X], ": "])], [X, Z], ",
}
A_LOADED_CENTER = {
    "X = Buffer(": "Z = Buffer([BufferAxis(M0)], float32)\nc = Tile([M0[m]], float32)\nX = Buffer(",
    "Fill(a, 0.0),": "Fill(a, 0.0), Load(c, Z[M0[m]]),",
    "[t, a]": "[t, c]",
    "])], [X], ": "])], [X, Z], ",
}
TWICE = {
    "d = Tile": "c = Tile([M0[m]], float32)\nd = Tile",
    "Fill(a, 0.0),": "Fill(a, 0.0), Fill(c, 0.0),",
    "x1, [a, r])": "x1, [a, r]), Compute(c, x0 + x1, [c, r])",
    "[[add, [a]]]": "[[add, [a]], [add, [c]]]",
}
IN_FLOAT64 = {
    "d = Tile([M0[m]], float32)": "d = Tile([M0[m]], float64)",
    "e = Tile([M0[m]], float32)": "e = Tile([M0[m]], float64)",
    "u = Tile([M0[m], N0[n]], float32)": "u = Tile([M0[m], N0[n]], float64)",
    "(x0 - x1) ** 2": "float64(x0 - x1) ** 2",
    "Store(O[M0[m]], d)": "Store(O[M0[m]], a)",
}
WHOLE_NUMBERS = {"float32": "int32", "bfloat16": "int32", "0.0": "0"}
REFUSED = {
    "a third power": {"** 2": "** 3"},
    "no power": {"(x0 - x1) ** 2": "exp(x0 - x1)"},
    "the center minus an element": {"(x0 - x1) ** 2": "(x1 - x0) ** 2"},
    "a scaled distance": {"(x0 - x1) ** 2": "(x0 * x1) ** 2"},
    "other elements": {"(x0 - x1) ** 2": "(exp(x0) - x1) ** 2"},
    "other elements beyond the end": {
        "Load(t, X[M0[m], N0[n]])": "Load(t, X[M0[m], N0[n]], beyond=1.0)"
    },
    "a center that is a number": {"(x0 - x1) ** 2, [t, a]": "(x0 - 2.0) ** 2, [t]"},
    "a center that is known before": A_LOADED_CENTER,
    "another array": OF_ANOTHER_ARRAY,
    "a maximum": {"Fold(e, u, N0[n], add)": "Fold(e, u, N0[n], max)"},
    "a sum that is turned": {"x0 + x1, [d, e]": "x1 + x0, [e, d]"},
    "a sum that is multiplied": {"x0 + x1, [d, e]": "x0 * x1, [d, e]"},
    "a sum that is replaced": {"x0 + x1, [d, e]": "x0 + x1, [e, e]"},
    "a sum that is added twice": {
        "x0 + x1, [d, e])": "x0 + x1, [d, e]), Compute(d, x0 + x1, [d, e])"
    },
    "two first sums": TWICE,
    "sums of another dtype": IN_FLOAT64,
    "the first sum is one of squares": {
        "Fold(r, s,": "Compute(u, x0 ** 2, [s]), Fold(r, u,",
        "(x0 - x1) ** 2": "(x0 ** 2 - x1) ** 2",
    },
    "a tile that is written over": {
        "Fold(r, s,": "Compute(s, exp(x0), [s]), Fold(r, s,",
        "(x0 - x1) ** 2": "(exp(x0) - x1) ** 2",
    },
    "a distance from the sum so far": {"(x0 - x1) ** 2, [t, a]": "(x0 - x1) ** 2, [t, d]"},
    "whole numbers": WHOLE_NUMBERS,
    "without the first block": {"], gathered=[[add, [d]]])": "], first=1, gathered=[[add, [d]]])"},
}


@pytest.mark.parametrize(
    "square",
    ["(x0 - x1) ** 2", "(x0 - x1) * (x0 - x1)", "x0 - (x1 + 1.0)", "(1.0 - x1 + x0) ** 2"],
)
def test_a_sum_and_squares_about_a_mean_are_found(square: str) -> None:
    assert split_at(HEAD + TWO_SUMS.replace("(x0 - x1) ** 2", square)) == 2


@pytest.mark.parametrize("changes", REFUSED.values(), ids=REFUSED)
def test_other_loops_are_split_one_after_the_other(changes: dict[str, str]) -> None:
    body = HEAD + TWO_SUMS
    for old, new in changes.items():
        assert old in body
        body = body.replace(old, new)
    assert split_at(body) == 0
