"""Scans against NumPy: the interpreter for any tiles, fused programs, and generated C."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blockbuster_fusion as bb
from blockbuster_fusion import ops
from blockbuster_fusion.array.arrays import Array
from blockbuster_fusion.errors import InvalidGraph
from blockbuster_fusion.ir.axis import Axis, Dim, Symbol
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.combiner import ADD, ANY, Combiner
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import Scan
from blockbuster_fusion.ir.text import from_text, to_text
from blockbuster_fusion.ir.types import DType, Type

SCANS: dict[str, Callable[..., Any]] = {
    "cumsum": np.cumsum,
    "cumprod": np.cumprod,
    "cummax": np.maximum.accumulate,
    "cummin": np.minimum.accumulate,
    "logcumsumexp": np.logaddexp.accumulate,
}
SHAPES = [(5, 7), (1, 1), (33, 100), (3, 2050), (70, 3)]


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


PROGRAMS: dict[str, tuple[Callable[..., Array], Callable[..., np.ndarray]]] = {
    "between": (
        lambda X, Y: ops.cumsum(X * Y, axis=1) + Y,
        lambda x, y: np.cumsum(x * y, 1) + y,
    ),
    "columns": (
        lambda X, Y: ops.cumsum(X + Y, axis=0) * Y,
        lambda x, y: np.cumsum(x + y, 0) * y,
    ),
    "both": (
        lambda X, Y: ops.cumsum(ops.cumsum(X, axis=0), axis=1) - Y,
        lambda x, y: np.cumsum(np.cumsum(x, 0), 1) - y,
    ),
    "probabilities": (
        lambda X, Y: ops.where(ops.cumsum(ops.softmax(X), axis=1) < 0.5, X, Y),
        lambda x, y: np.where(np.cumsum(softmax(x), 1) < 0.5, x, y),
    ),
    "summed": (
        lambda X, Y: ops.cumsum(X, axis=1).sum(axis=1) + Y.sum(axis=1),
        lambda x, y: np.cumsum(x, 1).sum(1) + y.sum(1),
    ),
    "other axis": (
        lambda X, Y: ops.cumsum(X, axis=1).sum(axis=0) + Y.sum(axis=0),
        lambda x, y: np.cumsum(x, 1).sum(0) + y.sum(0),
    ),
    "twice": (
        lambda X, Y: ops.cumsum(X * ops.cummax(Y, axis=1), axis=1),
        lambda x, y: np.cumsum(x * np.maximum.accumulate(y, 1), 1),
    ),
    "product": (
        lambda X, Y: ops.cumsum(X, axis=1) @ Y.T,
        lambda x, y: np.cumsum(x, 1) @ y.T,
    ),
    "rows of products": (
        lambda X, Y: ops.cumsum(X @ Y.T, axis=0),
        lambda x, y: np.cumsum(x @ y.T, 0),
    ),
}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", SCANS)
def test_a_scan_by_any_tiles_is_that_of_the_whole_array(name: str, axis: int) -> None:
    graph = bb.lower(bb.trace(lambda X: getattr(ops, name)(X, axis=axis), X="M K"))
    assert from_text(to_text(graph)).digest == graph.digest
    x = np.random.default_rng(0).normal(size=(5, 7))
    for tiles in ({"M": 1, "K": 1}, {"M": 2, "K": 3}, {"M": 5, "K": 7}, {"M": 3, "K": 16}):
        (found,) = bb.interpret(graph, {"X": x}, tiles=tiles)
        np.testing.assert_allclose(found, SCANS[name](x, axis=axis), rtol=1e-14)


@pytest.mark.parametrize("name", PROGRAMS)
def test_fused_programs_and_their_kernels(name: str) -> None:
    program, reference = PROGRAMS[name]
    fused = bb.fuse(bb.lower(bb.trace(program, X="M K", Y="M K")))
    kernel = bb.compile(program, X="M K", Y="M K")
    rng = np.random.default_rng(1)
    for shape in SHAPES:
        x, y = rng.normal(size=shape), rng.normal(size=shape)
        wanted = reference(x, y)
        for snapshot in fused.alternatives:
            for tiles in ({"M": 2, "K": 3}, {"M": 128, "K": 512}):
                (found,) = bb.interpret(snapshot, {"X": x, "Y": y}, tiles=tiles)
                np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)
        narrow = np.float32(x), np.float32(y)
        wanted = reference(*(np.float64(a) for a in narrow))
        (made,) = kernel(*narrow)
        scale = np.abs(wanted).max() + np.sqrt(x.size)
        np.testing.assert_allclose(made, wanted, rtol=0, atol=2e-6 * scale)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("spec", ["M K", "33 2050", "33 16"])
def test_scans_in_c(name: str, spec: str) -> None:
    rng = np.random.default_rng(2)
    shapes = SHAPES if spec == "M K" else [tuple(map(int, spec.split()))]
    for axis in (0, 1):
        kernel = bb.compile(lambda X, axis=axis: getattr(ops, name)(X, axis=axis), spec)
        for shape in shapes:
            x = np.float32(rng.normal(size=shape))
            if name == "cumprod":
                x = np.float32(np.exp(x / 8))
            wanted = SCANS[name](np.float64(x), axis=axis)
            sizes = np.abs(wanted) if name == "cumprod" else np.abs(wanted).max() + 1
            error = np.abs(kernel(x)[0] - wanted) / sizes
            assert error.max() < 2**-23 * (shape[axis] if name == "cumprod" else 32)


def test_a_fused_scan_leaves_nothing_in_memory() -> None:
    program = PROGRAMS["probabilities"][0]
    fusion = bb.fuse(bb.lower(bb.trace(program, X="M K", Y="M K")))
    assert "I1" not in bb.show(fusion.snapshots[-1])
    assert "row_cumsum" in bb.show(fusion.snapshots[-1])


@pytest.mark.parametrize("dtype", ["bool", "int32", "int64"])
def test_whole_numbers_are_summed_in_64_bits(dtype: str) -> None:
    x = np.random.default_rng(3).integers(0, 2, (5, 300)).astype(dtype)
    given = bb.array("M K", dtype=dtype)
    graph = bb.lower(bb.trace(lambda X: ops.cumsum(X, axis=1), given))
    kernel = bb.compile(lambda X: ops.cumsum(X, axis=1), given)
    for found in (bb.interpret(graph, {"X": x}, tiles={"K": 7})[0], kernel(x)[0]):
        assert found.dtype == np.int64
        np.testing.assert_array_equal(found, np.cumsum(x, axis=1))


def test_infinities_and_nan_flow_as_in_numpy() -> None:
    x = np.float32([[1, np.inf, 2, -np.inf, 3], [np.nan, 1, 2, 3, 4], [-np.inf] * 5])
    for name in ("cumsum", "cummax", "cummin", "logcumsumexp"):
        kernel = bb.compile(lambda X, name=name: getattr(ops, name)(X, axis=1), "M K")
        with np.errstate(invalid="ignore"):
            np.testing.assert_allclose(kernel(x)[0], SCANS[name](x, axis=1), rtol=1e-6)


def scanned(dim: Dim, combiner: Combiner = ADD, *, loop: Dim | None = None) -> Graph:
    """A scan over a dim in a loop over another, or in none."""
    build = Builder()
    x = build.input("X", Type((dim.free,), (dim.free,), DType.float32))

    def body(g: Builder, x: Any) -> list[Any]:
        return [(g.one(Scan(dim, combiner), x), None)]

    (made,) = build.map(loop or dim, [x], [], body)
    build.output("O", made)
    return build.build()


def test_what_a_scan_refuses() -> None:
    k, other = Dim(Axis("K", Symbol("KK"))), Dim(Axis("K", Symbol("KK")), 1)
    bb.verify(scanned(k))
    with pytest.raises(InvalidGraph, match="any keeps one of equal values"):
        bb.verify(scanned(k, ANY))
    with pytest.raises(bb.BlockbusterError, match=r"has no axis K.0"):
        scanned(k, loop=other)
    build = Builder()
    block = build.input("X", Type((), (k,), DType.float32))
    build.output("O", build.one(Scan(k, ADD), block))
    with pytest.raises(InvalidGraph, match="no map is around it"):
        bb.verify(build.build())
