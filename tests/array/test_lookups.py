"""Lookups against NumPy: along any axis, at places that are inputs or are computed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blockbuster_fusion as bb
from blockbuster_fusion import ops
from blockbuster_fusion.array.primitives import Primitives
from blockbuster_fusion.array.program import ArrayType
from blockbuster_fusion.array.trace import array
from blockbuster_fusion.errors import BadInput, IllTyped, TraceError
from blockbuster_fusion.ir.axis import Axis, Symbol
from blockbuster_fusion.ir.types import DType

Check = Callable[..., bb.ArrayProgram]

RANDOM = np.random.default_rng(7)
X = RANDOM.standard_normal((5, 7, 4))


def places(*shape: int, below: int = 4) -> np.ndarray:
    return RANDOM.integers(0, below, shape)


def integers(*axes: str) -> Any:
    return array(*axes, dtype="int64")


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("shape", [("R",), ("R", "E"), ("M",), ("N",), ("K", "M")])
def test_take(check: Check, axis: int, shape: tuple[str, ...]) -> None:
    """The places share axes with the array, or have only axes of their own."""
    sizes = {"M": 5, "K": 7, "N": 4, "R": 3, "E": 2}
    at = places(*(sizes[name] for name in shape))
    check(
        lambda x, at: np.take(x, at, axis=axis),
        *("M K N", integers(*shape)),
        reference=lambda x, at: np.take(x, at, axis=axis),
        inputs=[X, at],
    )


def test_an_index_of_an_array_is_a_lookup(check: Check) -> None:
    program = check(lambda x, at: x[at] + 1, "M K N", integers("R"), inputs=[X, places(3)])
    assert [op.name for op in program.operators] == ["take", "elementwise"]
    check(lambda x, at: np.take(x, at), "N", integers("R"), inputs=[X[0, 0], places(9)])
    check(lambda x, at: x[at], "M K N", array("R", dtype="int32"), inputs=[X, places(3)])
    check(lambda x, at: x[at], (5, 7), integers("5"), inputs=[X[:, :, 0], places(5)])


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("whole", [True, False])
def test_take_along_axis(check: Check, axis: int, whole: bool) -> None:
    """A place for each element along the other axes, as many of them as there are, or others."""
    lengths, names = list(X.shape), ["M", "K", "N"]
    if not whole:
        lengths[axis], names[axis] = 3, "R"
    at = places(*lengths)
    check(
        lambda x, at: np.take_along_axis(x, at, axis),
        *("M K N", integers(*names)),
        inputs=[X, at],
    )


def test_along_an_axis_with_axes_of_length_1(check: Check) -> None:
    at = places(5, 4, below=7)
    check(
        lambda x, at: ops.take_along_axis(x, at[:, None], 1),
        *("M K N", integers("M", "N")),
        reference=lambda x, at: np.take_along_axis(x, at[:, None], 1),
        inputs=[X, at],
    )
    check(
        lambda x, at: ops.take_along_axis(x[:, None], at[..., None], -1),
        *("M K", integers("M", "R")),
        reference=lambda x, at: np.take_along_axis(x[:, None], at[..., None], -1),
        inputs=[X[:, :, 0], at],
    )


def test_places_and_tables_that_are_computed(check: Check) -> None:
    x, y, at = X[:, :4, 0], X[:, :4, 1], places(6, below=3)
    check(lambda x, at: (x * 2 + 1)[at + 1], "M K", integers("R"), inputs=[x, at])
    check(lambda x, y, at: (x @ y.T)[at], *("M K", "N K"), integers("R"), inputs=[x, y, at])
    check(lambda x, at: x[at] @ x.T, "M K", integers("R"), inputs=[x, at])
    check(lambda x, at: x[at][at], "M K", integers("R"), inputs=[x, at])
    check(
        lambda x: ops.take_along_axis(x, (x > 0).astype("int64"), 1),
        "M K",
        reference=lambda x: np.take_along_axis(x, (x > 0).astype(np.int64), 1),
        inputs=[x],
    )


def test_places_among_positions_are_themselves() -> None:
    n, m = Axis("N", Symbol("NN")), Axis("M", Symbol("MM"))
    p = Primitives()
    at = p.given("at", ArrayType((m,), DType.int32))
    made = p.take(p.positions(n), at, n)
    assert made.type == ArrayType((m,), DType.int64)
    assert [type(step.primitive).__name__ for step in p.steps[2:]] == ["Pointwise"]


def test_axes_of_the_result() -> None:
    b, m, v, d = (Axis(name, Symbol(name * 2)) for name in "BMVD")
    p = Primitives()
    table = p.given("table", ArrayType((b, v, d), DType.float16))
    at = p.given("at", ArrayType((m, b), DType.int64))
    assert p.take(table, at, v).type == ArrayType((m, b, d), DType.float16)


@pytest.mark.parametrize(
    ("table", "at", "dtype", "sentence"),
    [
        ("MD", "M", "int64", "take along V: the table float32[M D] has no such axis"),
        ("VD", "M", "float32", "take along V: the places are float32, not int64 or int32: cast t"),
        ("VD", "V", "int64", "take along V: the places int64[V] have that axis themselves: renam"),
    ],
)
def test_primitives_that_do_not_fit(table: str, at: str, dtype: str, sentence: str) -> None:
    axes = {name: Axis(name, Symbol(name * 2)) for name in "MVD"}
    p = Primitives()
    x = p.given("x", ArrayType(tuple(axes[c] for c in table), DType.float32))
    y = p.given("y", ArrayType(tuple(axes[c] for c in at), DType(dtype)))
    with pytest.raises(IllTyped) as error:
        p.take(x, y, axes["V"])
    assert str(error.value).startswith(sentence)


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda x, at: np.take(x, at), "take: without an axis Array[M K] would be flattened"),
        (lambda x, at: x[x > 0], "not a Array; use where"),
        (lambda x, at: ops.take(x, x > 0), "the places are bool, not int64 or int32: cast them"),
        (lambda x, at: x[at, at], "an array of whole numbers are traced in an index, not a Array"),
        (lambda x, at: ops.take(x, 1), "take: got int, not an array of this trace"),
        (lambda x, at: ops.take(x, at, 2), "take: there is no axis 2 in Array[M K]"),
        (
            lambda x, at: ops.take(x[:, None], at, 1),
            "take: axis 1 of Array[M 1 K] has length 1, and nothing lies along it",
        ),
        (
            lambda x, at: ops.take_along_axis(x, at, 1),
            "take_along_axis of Array[M K] and Array[R]: the two have as many axes",
        ),
    ],
)
def test_what_is_refused(function: Callable[..., Any], sentence: str) -> None:
    with pytest.raises(TraceError) as error:
        bb.trace(function, "M K", integers("R"))
    assert sentence in str(error.value)


@pytest.mark.parametrize("wrong", [-1, 5])
def test_places_beyond_the_axis(wrong: int) -> None:
    program = bb.trace(lambda x, at: x[at], "M K", integers("R"))
    given = [X[:, :, 0], np.array([0, wrong, 4])]
    with pytest.raises(BadInput, match=f"is looked up along M at {wrong}, and its places are 0 to"):
        bb.evaluate(program, given)
    with pytest.raises(BadInput, match=f"input x: is looked up along M at {wrong}, and its places"):
        bb.interpret(bb.lower(program), given)
