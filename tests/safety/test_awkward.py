"""Programs that are awkward for exponents and pivots: hidden sums, means used twice, shifts."""

from collections.abc import Callable

import numpy as np
import pytest

import blockbuster_fusion as bb
from blockbuster_fusion import ops
from blockbuster_fusion.safety.pipeline import make_safe
from blockbuster_fusion.tools.check.judge import relative_error

RNG = np.random.default_rng(0)
X = RNG.standard_normal((5, 7))
ROWS = RNG.standard_normal((4, 64)) + 1e4
HUGE_ROW = X + np.where(np.arange(5) == 0, 1000.0, 0.0)[:, None]
HIDE_FIRST = np.where(np.arange(5) == 0, -1.0, 1.0)


def two_pass(x):
    centred = x - x.mean(-1, keepdims=True)
    return centred * (ops.square(centred).mean(-1, keepdims=True) + 1e-5) ** -0.5


CASES: dict[str, tuple[Callable[..., object], dict[str, str], dict[str, np.ndarray]]] = {
    "a sum of x times its LayerNorm": (
        lambda x, w: ops.layernorm(x) @ w * x.sum(-1, keepdims=True),
        {"x": "M N", "w": "N L"},
        {"x": X + 3, "w": RNG.standard_normal((7, 2))},
    ),
    "one and the mean, times the LayerNorm": (
        lambda x, w: ops.layernorm(x) @ w * (1 + x.mean(-1, keepdims=True)),
        {"x": "M N", "w": "N L"},
        {"x": X + 3, "w": RNG.standard_normal((7, 2))},
    ),
    "a hidden sum": (
        lambda x, c: ops.where(c > 0, ops.exp(x).sum(-1), 0).sum(0),
        {"x": "M N", "c": "M"},
        {"x": HUGE_ROW, "c": HIDE_FIRST},
    ),
    "a hidden sum and one": (
        lambda x, c: ops.where(c > 0, ops.exp(x).sum(-1), 0) + 1.0,
        {"x": "M N", "c": "M"},
        {"x": HUGE_ROW, "c": HIDE_FIRST},
    ),
    "an infinite factor that is hidden": (
        lambda x, w, c: ops.where(c > 0, ops.exp(x) * w, 0).sum(-1),
        {"x": "M N", "w": "M N", "c": "M N"},
        {"x": X, "w": np.where(X > 1, np.inf, 1.0), "c": np.where(X > 1, -1.0, 1.0)},
    ),
    "a factor that lifts what is small": (
        lambda x, w: (ops.exp(x) * w).sum(-1),
        {"x": "M N", "w": "N"},
        {"x": np.array([[80.0, -70.0]]), "w": np.array([1e-37, 1e30])},
    ),
    "squares of differences from c": (
        lambda x, c: ops.square(x - c[:, None]).mean(-1),
        {"x": "M K", "c": "M"},
        {"x": ROWS, "c": np.full(4, 1e4)},
    ),
    "squares of differences from the maximum": (
        lambda x: ops.square(x - x.max(-1, keepdims=True)).mean(-1),
        {"x": "M K"},
        {"x": ROWS},
    ),
    "differences from c, and a matmul": (
        lambda x, c, w: (x - c[:, None]) @ w,
        {"x": "M K", "c": "M", "w": "K L"},
        {"x": ROWS, "c": np.full(4, 1e4), "w": RNG.standard_normal((64, 5))},
    ),
    "a two-pass norm beside a sum of squares": (
        lambda x: {"A": two_pass(x), "B": ops.square(x).sum(-1)},
        {"x": "M K"},
        {"x": ROWS},
    ),
    "a row of the least float32": (
        lambda x: ops.softmax(x),
        {"x": "M N"},
        {"x": np.where(np.arange(5)[:, None] == 0, np.finfo(np.float32).min, X)},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_as_exact_as_the_program_is_written(name: str) -> None:
    function, axes, given = CASES[name]
    program = bb.trace(function, **axes)
    narrow = {key: x.astype(np.float32) for key, x in given.items()}
    exact = {key: x.astype(np.float64) for key, x in narrow.items()}
    fusion = bb.fuse(program)
    reference = make_safe(fusion.initial).graph
    expected = {
        key: np.where(np.isfinite(x), x, bb.interpret(reference, exact)[key])
        for key, x in bb.evaluate(program, exact).items()
    }
    unfused = relative_error(dict(bb.interpret(fusion.initial, narrow).items()), expected)
    for graph in fusion.snapshots:
        tiles = {dim.name: 3 for dim in graph.dims if dim.packed and not dim.is_free}
        same = dict(bb.interpret(graph, exact, tiles).items())
        assert relative_error(same, expected) < 1e-9
        found = relative_error(dict(bb.interpret(graph, narrow, tiles).items()), expected)
        assert found <= max(2 * unfused, 1e-6) if np.isfinite(unfused) else found < 1e-5


def test_a_long_chain_is_no_trouble() -> None:
    def program(x, w):
        e = ops.exp(x)
        for _ in range(300):
            e = e * w[:, None]
        return e.sum(-1)

    make_safe(bb.lower(bb.trace(program, x="M N", w="M")))
