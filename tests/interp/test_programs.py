"""Whole programs against plain NumPy in float64, on ragged tiles and non-square arrays."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from blockbuster_fusion.interp.interpreter import interpret
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.combiner import MAX, MIN, MUL, Combiner
from blockbuster_fusion.ir.expr import arg
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.verify import verify
from helpers.graphs import array, m, matmul_relu
from helpers.interp_graphs import (
    attention,
    batched_matmul,
    causal,
    each,
    flash_attention,
    gram,
    matmul,
    peeled,
    row_sums,
    safe_attention,
)

RANDOM = np.random.default_rng(7)
TILES = [dict(zip("MNKDL", sizes, strict=True)) for sizes in ((3, 2, 2, 3, 4), (1,) * 5, (4,) * 5)]
TILES += [dict(zip("MNKDL", (7, 6, 5, 9, 8), strict=True)), dict.fromkeys("MNKDL", 100), {}]
EMPTY = [set(), *({name} for name in "MNKDL"), set("MNKDL")]


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=1, keepdims=True, initial=-np.inf))
    return e / e.sum(axis=1, keepdims=True)


def run_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    return softmax(q @ k.T * np.float64(q.shape[1]) ** -0.5) @ v.T


def run_flash_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    e = np.exp(q @ k.T * np.float64(q.shape[1]) ** -0.5)
    return (e @ v.T) * (1 / e.sum(axis=1, keepdims=True))


def run_safe_attention(x: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    e = np.exp(x - x.max(axis=1, keepdims=True, initial=-np.inf))
    return (e @ v) / e.sum(axis=1, keepdims=True), logsumexp(x)


def logsumexp(x: np.ndarray) -> np.ndarray:
    top = x.max(axis=1, initial=-np.inf)
    return np.log(np.exp(x - top[:, None]).sum(axis=1)) + top


PROGRAMS: dict[str, tuple[Graph, dict[str, str], Callable[..., object]]] = {
    "matmul": (matmul(), {"A": "MK", "B": "NK"}, lambda a, b: a @ b.T),
    "matmul, sums apart": (matmul(fused=False), {"A": "MK", "B": "NK"}, lambda a, b: a @ b.T),
    "matmul, relu": (matmul_relu(), {"A": "MK", "B": "NK"}, lambda a, b: np.maximum(a @ b.T, 0)),
    "row sums": (row_sums(), {"X": "MK"}, lambda x: x.sum(axis=1)),
    "row maxima": (row_sums(MAX), {"X": "MK"}, lambda x: x.max(axis=1, initial=-np.inf)),
    "row minima": (row_sums(MIN), {"X": "MK"}, lambda x: x.min(axis=1, initial=np.inf)),
    "row products": (row_sums(MUL), {"X": "MK"}, lambda x: x.prod(axis=1)),
    "attention": (attention(), {"Q": "MD", "KT": "ND", "VT": "LN"}, run_attention),
    "flash attention": (
        flash_attention(),
        {"Q": "MD", "KT": "ND", "VT": "LN"},
        run_flash_attention,
    ),
    "peeled": (peeled(), {"X": "MK"}, lambda x: 2 * x),
    "gram": (gram(), {"X": "MK"}, lambda x: 4 * x @ x.T),
    "causal": (causal(), {"X": "MN"}, lambda x: np.where(np.tri(*x.shape, dtype=bool), x, -np.inf)),
    "safe attention": (safe_attention(), {"X": "MN", "V": "NL"}, run_safe_attention),
    "batched": (
        batched_matmul(),
        {"A": "HMK", "B": "HNK"},
        lambda a, b: np.einsum("hmk,hnk->mhn", a, b),
    ),
}


@pytest.mark.parametrize("tiles", TILES, ids=str)
@pytest.mark.parametrize("empty", EMPTY, ids=lambda e: f"empty {''.join(sorted(e))}")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_computes_what_numpy_does(name: str, empty: set[str], tiles: dict) -> None:
    graph, layouts, reference = PROGRAMS[name]
    verify(graph)
    extents = {"M": 7, "N": 6, "K": 5, "D": 9, "L": 8, "H": 4} | dict.fromkeys(empty, 0)
    inputs = {x: RANDOM.standard_normal([extents[a] for a in axes]) for x, axes in layouts.items()}
    known = {dim.name for dim in graph.dims}
    found = interpret(graph, inputs, {a: t for a, t in tiles.items() if a in known})
    with np.errstate(all="ignore"):
        expected = reference(*inputs.values())
    expected = expected if isinstance(expected, tuple) else (expected,)
    assert len(found) == len(expected)
    for made, wanted in zip(found, expected, strict=True):
        assert made.dtype == np.float64
        np.testing.assert_allclose(made, wanted, rtol=1e-12, atol=1e-12)


def test_safe_attention_is_safe() -> None:
    x = np.array([[1000.0, 999.0, -1000.0], [-5000.0, -5001.0, -5000.0]])
    v = RANDOM.standard_normal((3, 2))
    for tile in (1, 2, 3):
        found = interpret(safe_attention(), [x, v], {"N": tile})
        np.testing.assert_allclose(found["O"], softmax(x) @ v, rtol=1e-12)


def test_an_axis_may_be_walked_by_loops_of_different_tiles() -> None:
    build = Builder()
    x = build.input("X", array(m))
    build.output("twice", each(build, [m], arg(0) * 2.0, x))
    build.output("thrice", each(build, [type(m)(m.axis, 1)], arg(0) * 3.0, x))
    given = RANDOM.standard_normal(11)
    for first, second in product((1, 3, 11), repeat=2):
        found = interpret(build.build(), [given], {"M.0": first, "M.1": second})
        np.testing.assert_array_equal(found[0], 2 * given)
        np.testing.assert_array_equal(found[1], 3 * given)


def test_a_general_combiner_reduces_blocks_and_lists() -> None:
    join = Combiner("join", (0.0,), (arg(0) + arg(1) + arg(0) * arg(1),))  # 1+z = (1+x)·(1+y)
    x = RANDOM.standard_normal((3, 5))
    for tile in (1, 2, 5):
        (found,) = interpret(row_sums(join), [x], {"K": tile, "M": 2})
        np.testing.assert_allclose(found, np.prod(1 + x, axis=1) - 1, rtol=1e-12)
