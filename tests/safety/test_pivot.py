"""Pivots: the programs that get one, the same results, and smaller errors."""

import re
from collections.abc import Callable

import numpy as np
import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.combiner import ADD, Mode, Reduced
from blockbuster_fusion.ir.expr import arg, size
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import BlockReduce, Elementwise, Value
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.safety.choices import Safe
from blockbuster_fusion.safety.pivot.pivot import with_pivots
from blockbuster_fusion.safety.storage import stored_as
from helpers.graphs import K, M, array, k, m
from helpers.rewriting import lowered
from helpers.running import assert_computes, inputs_for

Golden = Callable[[str], None]
Results = list[tuple[Value, Mode]]
ops = bb.ops
OFFSETS = (10.0, 100.0, 1e3, 1e4)


def listing(made: Safe) -> str:
    """The program and the choices of the pass, as one text."""
    bb.verify(made.graph)
    return "\n".join([bb.show(made.graph), *map(str, made.choices)])


def fused(function: Callable[..., object], **specs: object) -> list[bb.Graph]:
    """The snapshots of a function, as the rules made them."""
    return list(bb.fuse(lowered(function, **specs)).fused)


def same_results(program: bb.ArrayProgram, graph: bb.Graph) -> None:
    """A program with pivots keeps its results, on rows with offsets, in float64."""
    inputs = inputs_for(program)
    for name, x in inputs.items():
        if x.ndim > 1:
            inputs[name] = x + np.arange(len(x))[:, None]
    assert_computes(with_pivots(graph).graph, inputs, bb.evaluate(program, inputs))


def stays(graph: bb.Graph) -> bool:
    """True if a program gets no pivot."""
    made = with_pivots(graph)
    assert (made.graph is graph) == (not made.choices)
    return made.graph is graph


# ---------------------------------------------------------------- listings


@pytest.mark.parametrize(
    "name", ["layernorm-matmul", "post-norm-linear", "two-pass-layernorm-matmul", "layernorm-qkv"]
)
def test_listing(name: str, golden: Golden) -> None:
    golden(listing(with_pivots(bb.fuse(bb.examples.find(name)).fused[-1])))


def test_a_layernorm_of_one_block(golden: Golden) -> None:
    """The pivot is the mean itself."""
    golden(listing(with_pivots(bb.fuse(bb.examples.layernorm_matmul(), unit=["K"]).fused[-1])))


def normalised_and_not(X, W, U):
    return {"Z": ops.layernorm(X) @ W, "Y": X @ U}


def test_another_use_stays_as_it_is(golden: Golden) -> None:
    """The product of x itself is not shifted, that of the normalised x is."""
    graph = fused(normalised_and_not, X="M K", W="K N", U="K N")[-1]
    golden(listing(with_pivots(graph)))


def with_its_mean(X, W):
    return {"Z": ops.layernorm(X) @ W, "mean": X.mean(-1), "total": X.sum(-1)}


def test_a_mean_gets_the_pivot_back(golden: Golden) -> None:
    golden(listing(with_pivots(fused(with_its_mean, X="M K", W="K N")[-1])))


# ---------------------------------------------------------------- programs that get a pivot


@pytest.mark.parametrize("unit", [(), ("K",), ("M",), ("M", "K")])
@pytest.mark.parametrize(
    "name", ["layernorm-matmul", "two-pass-layernorm-matmul", "layernorm-linear"]
)
def test_only_the_rows_get_a_pivot(name: str, unit: tuple[str, ...]) -> None:
    """The weights have a sum as well, but where x has a pivot their offset does no harm."""
    for graph in bb.fuse(bb.examples.find(name), unit=unit).fused:
        made = with_pivots(graph)
        (choice,) = made.choices
        assert (choice.kind, choice.shared, choice.axis) == ("pivot", "row", "K")
        row_sum = r"(t\d+) = load\(X\[.*\]\)\n *(t\d+) \+?= row_sum\(\1\)\n *t\d+ = .*\2/KK"
        assert re.search(row_sum, bb.show(made.graph))
        same_results(bb.examples.find(name), graph)


@pytest.mark.parametrize(
    "name", ["layernorm-qkv", "gelu-mlp", "layernorm-linear", "layernorm-matmul"]
)
def test_examples_with_a_pivot(name: str) -> None:
    program = bb.examples.find(name)
    for graph in bb.fuse(program).fused:
        assert not stays(graph)
        same_results(program, graph)


@pytest.mark.parametrize(
    "name",
    [
        *("rmsnorm-swiglu", "rmsnorm-swiglu-residual", "qk-norm-attention", "attention"),
        *("matmul-relu", "linear-attention", "language-model-head", "residual-layers", "softmax"),
    ],
)
def test_examples_without_a_pivot(name: str) -> None:
    """A shift of x changes the result of an RMSNorm, and a sum of products."""
    for graph in bb.fuse(bb.examples.find(name)).fused:
        assert stays(graph)


@pytest.mark.parametrize("function", [normalised_and_not, with_its_mean])
def test_other_uses_and_results(function: Callable[..., object]) -> None:
    names = "XWU"[: function.__code__.co_argcount]
    specs = {"X": "M K", "W": "K N", "U": "K N"}
    program = bb.trace(function, **{name: specs[name] for name in names})
    for graph in bb.fuse(program).fused:
        assert not stays(graph)
        same_results(program, graph)


def test_a_residual_keeps_x() -> None:
    traced = bb.trace(lambda X: X + ops.layernorm(X), X="M K")
    for graph in bb.fuse(traced).fused:
        assert not stays(graph)
        same_results(traced, graph)


def statistics(X):
    """The mean, the sum of squares and the inverse deviation of a LayerNorm."""
    width = ops.size(X, 1)
    mean = ops.elementwise(lambda s: s / width, X.sum(-1, keepdims=True))
    squares = ops.square(X).sum(-1, keepdims=True)
    inverse = ops.elementwise(lambda s, m: (s / width - m**2 + 1e-5) ** -0.5, squares, mean)
    return mean, squares, inverse


# ---------------------------------------------------------------- programs that a shift changes


def centred_by_half(X):
    mean, _, inverse = statistics(X)
    return ops.elementwise(lambda x, m, i: (x - m / 2) * i, X, mean, inverse)


def squares_too(X):
    mean, squares, inverse = statistics(X)
    return {"Z": (X - mean) * inverse, "S": squares}


def function_of_the_sum(X):
    """Invariant but for the tanh of the sum, in every element."""
    mean, _, inverse = statistics(X)
    return (X - mean) * inverse + ops.tanh(X.sum(-1, keepdims=True))


def function_of_x(X):
    mean, _, inverse = statistics(X)
    return (ops.tanh(X) - mean) * inverse


def rounded(X):
    """A whole number plus a shift is not the whole number of the sum."""
    mean, _, inverse = statistics(X)
    whole = ops.cast(ops.cast(X, "int64"), "float32")
    return ops.elementwise(lambda x, m, i: (x - m) * i, whole, mean, inverse)


def largest(X):
    mean, _, inverse = statistics(X)
    return (X - mean) * inverse + X.max(-1, keepdims=True)


def another_divisor(X):
    """A variance with n - 1 in one place only."""
    width = ops.size(X, 1)
    mean = ops.elementwise(lambda s: s / (width - 1), X.sum(-1, keepdims=True))
    squares = ops.square(X).sum(-1, keepdims=True)
    inverse = ops.elementwise(lambda s, m: (s / width - m**2 + 1e5) ** -0.5, squares, mean)
    return (X - mean) * inverse


def twice_x(X):
    """A list that would be off by the pivot, from the mean or from x."""
    mean, _, inverse = statistics(X)
    return {"Z": (X - mean) * inverse, "Y": ops.elementwise(lambda x, m: 2 * x - m, X, mean)}


REFUSED = [squares_too, another_divisor]
GIVEN_BACK = [centred_by_half, function_of_the_sum, function_of_x, rounded, largest, twice_x]


@pytest.mark.parametrize("function", REFUSED, ids=lambda f: f.__name__)
def test_unsound_shifts_are_refused(function: Callable[..., object]) -> None:
    for graph in fused(function, X="M K"):
        assert stays(graph)


@pytest.mark.parametrize("function", GIVEN_BACK, ids=lambda f: f.__name__)
def test_what_feels_a_shift_sees_the_row_as_it_is(function: Callable[..., object]) -> None:
    """The variance has its pivot all the same."""
    program = bb.trace(function, X="M K")
    for graph in (bb.lower(program), *bb.fuse(program).fused):
        same_results(program, graph)
    assert not stays(bb.fuse(program).fused[-1])


def test_a_tanh_of_the_sum(golden: Golden) -> None:
    golden(listing(with_pivots(fused(function_of_the_sum, X="M K")[-1])))


def test_where_nothing_cancels_there_is_no_pivot() -> None:
    """The sum could be shifted and get that back, which would be for nothing."""

    def program(X, W):
        return (X + ops.tanh(X.sum(-1, keepdims=True))) @ W

    assert stays(fused(program, X="M K", W="K N")[-1])


def nested(inner: Dim) -> Graph:
    """(x - s) / σ for each block x, where a loop over all blocks adds up s of this one block.

    Were s taken for the sum of all blocks, no shift would be felt.
    """
    build = Builder()
    x = build.input("X", array(m, k))

    def statistics(g: Builder, x: Value) -> Results:
        sums = (g.one(BlockReduce(k, ADD), v) for v in (x, g.one(Elementwise(arg(0) ** 2), x)))
        return [(made, Reduced(ADD)) for made in sums]

    def block(g: Builder, x: Value, row: Value, inverse: Value) -> Results:
        part = g.one(BlockReduce(k, ADD), x)
        (total,) = g.map(
            inner,
            [row],
            [part],
            lambda g, _, part: [(g.one(Elementwise(arg(0) * 1.0), part), Reduced(ADD))],
        )
        centred = Elementwise((arg(0) - arg(1) / size(K)) * arg(2))
        return [(g.one(centred, x, total, inverse), None)]

    def row(g: Builder, x: Value) -> Results:
        total, squares = g.map(k, [x], [], statistics)
        deviation = (arg(1) / size(K) - (arg(0) / size(K)) ** 2 + 1.0) ** -0.5
        inverse = g.one(Elementwise(deviation), total, squares)
        return [(g.map(k, [x], [x, inverse], block)[0], None)]

    build.output("Y", build.map(m, [x], [], row)[0], (M, K))
    return build.build()


@pytest.mark.parametrize("inner", [k, Dim(K, 1)], ids=["the same dim", "another"])
def test_a_block_is_not_mixed_up_with_those_of_an_inner_loop(inner: Dim) -> None:
    graph = nested(inner)
    bb.verify(graph)
    x = {"X": np.random.default_rng(0).standard_normal((3, 7)) + 5}
    tiles = {"K": 3, "M": 2}
    wanted = bb.interpret(graph, x, tiles)["Y"]
    made = bb.interpret(with_pivots(graph).graph, x, tiles)["Y"]
    np.testing.assert_allclose(made, wanted, atol=1e-12)


# ---------------------------------------------------------------- errors with and without a pivot


def errors(graph: bb.Graph, offset: float, dtype: DType = DType.float32) -> tuple[float, float]:
    """The error of a LayerNorm's program in float32, without and with a pivot."""
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((16, 96)) + offset).astype(np.float32)
    y = rng.standard_normal((8, 96)).astype(np.float32)
    exact = np.asarray(x, np.float64)
    centred = exact - exact.mean(1, keepdims=True)
    wanted = centred / np.sqrt((centred**2).mean(1, keepdims=True)) @ y.T
    found = []
    for program in (graph, with_pivots(graph).graph):
        (made,) = bb.interpret(program, {"X": x, "YT": y}, {"K": 40, "M": 5})
        found.append(np.abs(made - wanted).max() / np.abs(wanted).max())
    return found[0], found[1]


@pytest.mark.parametrize("unit", [(), ("K",)])
@pytest.mark.parametrize("offset", OFFSETS)
def test_precision(offset: float, unit: tuple[str, ...]) -> None:
    for graph in bb.fuse(bb.examples.layernorm_matmul(), unit=unit).fused:
        raw, pivoted = errors(graph, offset)
        assert pivoted <= 2e-6
        if offset >= 1e3:
            assert not raw <= 1e-3  # or NaN: a variance below 0


def test_precision_where_numbers_are_narrow() -> None:
    """A loaded value is widened before its pivot is computed."""
    for graph in bb.fuse(bb.examples.layernorm_matmul()).fused:
        narrow = stored_as(graph, DType.bfloat16)
        rng = np.random.default_rng(3)
        x = np.float32(1000 + 8 * rng.integers(-4, 5, (6, 50)))  # bfloat16 has these
        y = np.float32(rng.integers(-2, 3, (4, 50)))
        centred = np.float64(x) - np.float64(x).mean(1, keepdims=True)
        wanted = centred / np.sqrt((centred**2).mean(1, keepdims=True)) @ y.T
        (made,) = bb.interpret(with_pivots(narrow).graph, {"X": x, "YT": y}, {"K": 16})
        assert np.abs(made - wanted).max() / np.abs(wanted).max() <= 2.0**-8
