"""Integers, positions and masks in C, against the interpreter."""

import numpy as np
import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.nest.nest import Fold
from blockbuster_fusion.schedule.schedule import scheduled

ops = bb.ops


def test_whole_numbers():
    def program(X, Y):
        return {
            "quotient": X / Y,
            "floor": X // Y,
            "rest": X % Y,
            "less": X < 2.5,
            "equal": X == 2.5,
            "both": ops.logical_and(X, Y),
        }

    X = np.array([7, 1, 2, -7, 7, -(2**31), 5, 2], np.int32)
    Y = np.array([2, 3, 1, 2, -2, -1, 5, 0], np.int32)
    spec = bb.array("N", dtype="int32")
    found = bb.compile(program, X=spec, Y=spec)(X, Y)
    wide, by = X.astype(np.int64), np.where(Y == 0, 1, Y).astype(np.int64)
    whole = Y != 0
    np.testing.assert_array_equal(found["floor"][whole], (wide // by).astype(np.int32)[whole])
    np.testing.assert_array_equal(found["rest"][whole], (wide % by)[whole])
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(found["quotient"], X / Y, rtol=1e-6)
    np.testing.assert_array_equal(found["less"], X < 2.5)
    np.testing.assert_array_equal(found["equal"], np.zeros(8, bool))
    np.testing.assert_array_equal(found["both"], np.logical_and(X, Y))


def test_floor_division_of_floats():
    X = np.array([1.0, 127.0, -1.0, 7.5, -7.5], np.float32)
    Y = np.array([0.1, 0.1, 0.1, -2.0, 2.0], np.float32)
    found = bb.compile(lambda X, Y: {"q": X // Y, "r": X % Y}, X="N", Y="N")(X, Y)
    np.testing.assert_array_equal(found["q"], X // Y)
    np.testing.assert_allclose(found["r"], X % Y, rtol=1e-6)


EVERY_NUMBER = {
    "times zero": lambda X, Y: X * 0.0,
    "zero times": lambda X, Y: 0.0 * (X + Y),
    "zero over": lambda X, Y: 0.0 / X,
    "itself less": lambda X, Y: X - X,
    "over itself": lambda X, Y: X / X,
    "nothing added": lambda X, Y: Y + X * 0.0,
    "nothing of a root": lambda X, Y: ops.sqrt(X) * 0.0,
    "a truth times": lambda X, Y: ops.where(Y > 100, 1.0, 0.0) * X,
    "equals itself": lambda X, Y: ops.where(X == X, 1.0, 2.0),
    "below": lambda X, Y: ops.where(X < Y, 1.0, 2.0),
    "largest": lambda X, Y: ops.maximum(X, Y),
    "smallest": lambda X, Y: ops.minimum(Y, X),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_number_makes_zero_of_nan(dtype):
    """In vectors and beside them: 0 times NaN is NaN, wherever in an array it stands."""

    def program(X, Y):
        return {name.replace(" ", "_"): f(X, Y) for name, f in EVERY_NUMBER.items()}

    spec = bb.array("N", dtype=dtype)
    kernel = bb.compile(program, X=spec, Y=spec)
    values = np.array([np.nan, np.inf, 1.5, -np.inf, 0.0, -2.0, -np.nan], dtype)
    for length in range(1, 41):
        X = np.resize(np.roll(values, length), length)
        Y = np.full(length, 2, dtype)
        found = kernel(X, Y)
        for name, f in EVERY_NUMBER.items():
            with np.errstate(all="ignore"):
                exact = bb.evaluate(bb.trace(f, X=spec, Y=spec), {"X": X, "Y": Y})
            (exact,) = exact.values()
            np.testing.assert_array_equal(found[name.replace(" ", "_")], exact, f"{name} {length}")


def test_positions():
    """Products of positions need more than 32 bits; half a size is no whole number."""

    def program(X):
        at = ops.index(X, 0)
        far = ops.where(at * at > 3_000_000_000, X, 0.0)
        return {"far": far, "half": ops.where(at < ops.size(X, 0) / 2, X, 0.0)}

    X = np.ones(60_001, np.float32)
    found = bb.compile(program, X="N")(X)
    at = np.arange(60_001)
    np.testing.assert_array_equal(found["far"], at * at > 3_000_000_000)
    np.testing.assert_array_equal(found["half"], at < 60_001 / 2)


def test_constants_of_sizes():
    kernel = bb.compile(lambda X: {"O": X + (ops.size(X, 0) - ops.size(X, 1)) // 3}, X="M N")
    X = np.zeros((20, 4), np.float32)
    np.testing.assert_array_equal(kernel(X)["O"], np.full((20, 4), 5.0))


MASKS = {
    "causal": lambda n, m, s, pad: n <= m,
    "bottom right": lambda n, m, s, pad: n <= m + (ops.size(s, 1) - ops.size(s, 0)),
    "window": lambda n, m, s, pad: (n <= m) & (n > m - 4),
    "from the fifth on": lambda n, m, s, pad: (n <= m) & (n >= 5),
    "twice": lambda n, m, s, pad: (n <= m) & (n <= m - 10),
    "nothing": lambda n, m, s, pad: (n < m) & (n > m),
    "left padding": lambda n, m, s, pad: (n <= m) & (pad[None, :] > 0),
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", MASKS)
def test_blocks_are_skipped_only_where_nothing_changes(name):
    """Rows that see nothing are averaged over everything, as without skipping."""

    def program(Q, K, V, pad):
        s = Q @ K.T
        mask = MASKS[name](ops.index(s, 1), ops.index(s, 0), s, pad)
        return {"O": ops.softmax(ops.where(mask, s, -1e30)) @ V}

    traced = bb.trace(program, Q="M D", K="N D", V="N L", pad="N")
    kernel = bb.compile(traced, tiles=dict.fromkeys("MNDL", 8), snapshot="most_fused")
    rng = np.random.default_rng(0)
    for rows, columns in ((40, 40), (30, 12), (12, 30), (1, 40), (17, 33)):
        inputs = {
            "Q": rng.standard_normal((rows, 6)),
            "K": rng.standard_normal((columns, 6)),
            "V": rng.standard_normal((columns, 5)),
            "pad": (np.arange(columns) >= 10).astype(float),
        }
        expected = bb.interpret(kernel.graph, inputs)["O"]
        found = kernel(**{n: x.astype(np.float32) for n, x in inputs.items()})["O"]
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)


def test_a_product_with_zero_needs_a_guard():
    """Beyond the end x is 0 and log(x) is not finite."""
    graph = bb.fuse(bb.lower(bb.trace(lambda X: (X * ops.log(X)).sum(-1), X="M N"))).snapshots[-1]
    folds = [s for k in scheduled(graph).kernels for s in k.statements if isinstance(s, Fold)]
    assert folds
    assert all(fold.tail_masked for fold in folds)
