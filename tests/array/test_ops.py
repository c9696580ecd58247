"""Every operator of `bb.ops`, Python and NumPy against plain NumPy in float64, on ragged blocks."""

import math
import operator
from collections.abc import Callable
from itertools import product
from types import FunctionType
from typing import Any

import numpy as np
import pytest

import blockbuster_fusion as bb
from blockbuster_fusion import ops
from blockbuster_fusion.array.arrays import FUNCTIONS, UFUNCS
from blockbuster_fusion.errors import BadInput, BadResult, NoExecutor
from blockbuster_fusion.ir.expr import FUNCTIONS as SCALARS
from blockbuster_fusion.ir.expr import call

Check = Callable[..., bb.ArrayProgram]
Function = Callable[..., Any]

erf = np.vectorize(math.erf, otypes=[np.float64])
RANDOM = np.random.default_rng(3)


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    e = np.exp(x)
    return e / e.sum(axis, keepdims=True)


def rmsnorm(x: np.ndarray, axis: int = -1, eps: float = 1e-6) -> np.ndarray:
    return x / np.sqrt((x**2).mean(axis, keepdims=True) + eps)


def layernorm(x: np.ndarray, axis: int = -1, eps: float = 1e-5) -> np.ndarray:
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + eps)


def along(axis: int, vector: np.ndarray, x: np.ndarray) -> np.ndarray:
    """A vector so shaped that it lies along an axis of `x`."""
    return vector.reshape([-1 if at == axis % x.ndim else 1 for at in range(x.ndim)])


# ---------------------------------------------------------------- functions of every element

ANY = RANDOM.standard_normal((5, 7)) * 3
POSITIVE = np.abs(ANY) + 0.1
SMALL = np.tanh(ANY) * 0.9
SPECIAL = np.array([[0.0, -0.0, np.nan, np.inf], [-np.inf, 1.5, -2.5, 0.5]])

UNARY: dict[str, tuple[Function, np.ndarray]] = {
    **{name: (getattr(np, name), ANY) for name in ("exp", "exp2", "expm1", "cbrt", "sin", "cos")},
    **{name: (getattr(np, name), ANY) for name in ("tan", "arctan", "sinh", "cosh", "tanh")},
    **{name: (getattr(np, name), ANY) for name in ("arcsinh", "abs", "sign", "square")},
    **{name: (getattr(np, name), ANY) for name in ("floor", "ceil", "trunc", "round")},
    **{name: (getattr(np, name), POSITIVE) for name in ("log", "log2", "log10", "log1p", "sqrt")},
    **{name: (getattr(np, name), SMALL) for name in ("arcsin", "arccos", "arctanh")},
    **{name: (getattr(np, name), SPECIAL) for name in ("isnan", "isinf", "isfinite")},
    "arccosh": (np.arccosh, POSITIVE + 1),
    "logical_not": (np.logical_not, np.round(ANY)),
    "erf": (erf, ANY),
    "relu": (lambda x: np.maximum(x, 0), ANY),
    "reciprocal": (lambda x: 1 / x, POSITIVE),
    "rsqrt": (lambda x: 1 / np.sqrt(x), POSITIVE),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), ANY),
    "swish": (lambda x: x / (1 + np.exp(-x)), ANY),
    "silu": (lambda x: x / (1 + np.exp(-x)), ANY),
    "softplus": (lambda x: np.log(1 + np.exp(x)), ANY),
    "gelu": (lambda x: x * (1 + erf(x / np.sqrt(2))) / 2, ANY),
    "leaky_relu": (lambda x: np.where(x > 0, x, 0.01 * x), ANY),
    "elu": (lambda x: np.where(x > 0, x, np.exp(x) - 1), ANY),
}

BINARY: dict[str, tuple[Function, np.ndarray, np.ndarray]] = {
    "arctan2": (np.arctan2, ANY, POSITIVE),
    "maximum": (np.maximum, ANY, SMALL),
    "minimum": (np.minimum, ANY, SMALL),
    "logical_and": (np.logical_and, np.round(ANY), np.round(SMALL)),
    "logical_or": (np.logical_or, np.round(ANY), np.round(SMALL)),
    "logical_xor": (np.logical_xor, np.round(ANY), np.round(SMALL)),
}


@pytest.mark.parametrize("name", UNARY)
def test_a_function_of_one_array(check: Check, name: str) -> None:
    reference, x = UNARY[name]
    program = check(getattr(ops, name), "M K", reference=reference, inputs=[x])
    assert len(program.operators) == 1


@pytest.mark.parametrize("name", BINARY)
def test_a_function_of_two_arrays(check: Check, name: str) -> None:
    reference, x, y = BINARY[name]
    program = check(getattr(ops, name), "M K", "M K", reference=reference, inputs=[x, y])
    assert len(program.operators) == 1


def test_every_operator_is_tested_here() -> None:
    """Whoever adds an operator to `bb.ops` adds its test: name it in one of these lists."""
    elsewhere = (
        "where clip cast sum prod max min mean softmax log_softmax rmsnorm layernorm index size "
        "elementwise matmul misc sort cumsum cumprod cummax cummin logcumsumexp transpose swapaxes "
        "expand_dims squeeze registered "
        "take take_along_axis"
    )
    internal = {
        "call",
        "is_scalar",
        "apply",
        "broadcast",
        "of_masks",
        "one_trace",
        "reduce",
        "scan",
    }
    internal |= {"numpy_take"}
    public = {n for n, f in vars(ops).items() if isinstance(f, FunctionType) and n[0] != "_"}
    assert public - internal == {*UNARY, *BINARY, *elsewhere.split()}


@pytest.mark.parametrize("low", [None, -1, 0.5])
@pytest.mark.parametrize("high", [None, 2, 0.25])
def test_clip(check: Check, low: float | None, high: float | None) -> None:
    if low is None and high is None:
        with pytest.raises(bb.BlockbusterError, match="both bounds are None: give one"):
            bb.trace(lambda x: ops.clip(x), "M K")
        return
    check(lambda x: np.clip(x, low, high), "M K", inputs=[ANY])


def test_clip_by_arrays(check: Check) -> None:
    check(lambda x, low: np.clip(x, low, 1), "M K", "K")
    check(lambda x, low, high: np.clip(x, a_min=low, a_max=high), "M K", "M K", "K")


@pytest.mark.parametrize("slope", [0, 0.3])
def test_parameters_of_activations(check: Check, slope: float) -> None:
    leaky = lambda x: np.where(x > 0, x, slope * x)  # noqa: E731
    check(lambda x: ops.leaky_relu(x, slope), "M K", reference=leaky)
    steep = lambda x: np.where(x > 0, x, slope * np.expm1(x))  # noqa: E731
    check(lambda x: ops.elu(x, slope), "M K", reference=steep)
    check(
        lambda x, s: ops.leaky_relu(x, s),
        *("M K", "K"),
        reference=lambda x, s: np.where(x > 0, x, s * x),
    )


def test_gelu_with_tanh(check: Check) -> None:
    def gelu(x: np.ndarray) -> np.ndarray:
        return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    check(lambda x: ops.gelu(x, approximate="tanh"), "M K", reference=gelu)
    with pytest.raises(bb.BlockbusterError, match="gelu: approximate is 'none' or 'tanh', not 'th"):
        bb.trace(lambda x: ops.gelu(x, approximate="than"), "M K")


@pytest.mark.parametrize(
    ("x", "y"),
    [(2.0, "x"), ("x", 2.0), (1, 0), (True, False), (1.5, 0), (np.nan, -np.inf), ("x", "y")],
)
def test_where(check: Check, x: Any, y: Any) -> None:
    def choose(where: Function, a: Any, b: Any) -> Any:
        arrays = {"x": a, "y": b}
        return where(a > 0, arrays.get(x, x), arrays.get(y, y))

    check(lambda a, b: choose(np.where, a, b), "M K", "K")


def test_where_takes_any_condition(check: Check) -> None:
    counts = np.round(ANY)
    check(lambda x: np.where(x, x, 7.0), "M K", inputs=[counts])
    check(lambda x: np.where(x.sum(1, keepdims=True) > 0, x, -x), "M K")
    check(lambda x: np.where(True, x, 0.0), "M K")


def test_masks(check: Check) -> None:
    check(lambda x, y: ((x > 0) & (y < 1)) | ~(x > y) ^ (y > 0), "M K", "K")
    check(lambda x: (True & (x > 0), False | (x > 0), (x > 0) ^ True), "M K")
    check(lambda x, y: np.bitwise_xor(x > 0, np.invert(y > 0)), "M K", "M K")
    check(lambda x: np.where((x > 0) & (x < 1), x, 0.0) * (x > 0.5), "M K")


# ---------------------------------------------------------------- Python's operators

PYTHON = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow"]
PYTHON += ["lt", "le", "gt", "ge", "eq", "ne"]


@pytest.mark.parametrize("name", PYTHON)
def test_python_operators(check: Check, name: str) -> None:
    apply = getattr(operator, name)
    check(apply, "M K", "M K", inputs=[POSITIVE, POSITIVE[::-1]])
    check(lambda x: (apply(x, 1.5), apply(2.5, x), apply(x, np.float64(2)), apply(3, x)), "M K")
    check(lambda x: (apply(x, 2), apply(np.float32(0.5), x), apply(np.int64(3), x)), "M K")


@pytest.mark.parametrize("name", PYTHON)
def test_python_operators_of_integers(check: Check, name: str) -> None:
    apply = getattr(operator, name)
    x = RANDOM.integers(1, 6, (5, 7))
    check(apply, "M K", "M K", inputs=[x, x[::-1]], dtype="int64")
    check(
        lambda x: (apply(x, 2), apply(2, x), apply(x, np.int64(3))), "M", inputs=[x[0]], dtype=int
    )


def test_signs(check: Check) -> None:
    check(lambda x: (-x, +x, abs(x)), "M K")


def test_a_power_of_integers_that_is_no_integer(check: Check) -> None:
    x = RANDOM.integers(1, 6, (5, 7))
    check(lambda x: (x**0.5, x**-1.0, x / 2, 1 / x), "M K", inputs=[x], dtype="int64")
    with pytest.raises(bb.BlockbusterError, match="negative power of int64 is not defined"):
        bb.trace(lambda x: x**-1, "M K", dtype="int64")


# ---------------------------------------------------------------- NumPy's functions

LOGICAL = {np.logical_and, np.logical_or, np.logical_not, np.logical_xor}
BITWISE = {np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.invert}


@pytest.mark.parametrize("ufunc", UFUNCS, ids=lambda ufunc: ufunc.__name__)
def test_numpy_ufuncs(check: Check, ufunc: np.ufunc) -> None:
    if ufunc is np.matmul:
        check(np.matmul, "M K", "K N")
        return
    inputs = [SMALL, SMALL[::-1]][: ufunc.nin]
    if ufunc in BITWISE:
        inputs = [x > 0 for x in inputs]
    elif ufunc in LOGICAL:
        inputs = [np.round(x) for x in inputs]
    elif ufunc is np.arccosh:
        inputs = [POSITIVE + 1]
    elif ufunc.__name__.startswith(("log", "sqrt", "pow")):
        inputs = [np.abs(x) for x in inputs]
    dtype = "bool" if ufunc in BITWISE else "float32"
    check(ufunc, *["M K"] * ufunc.nin, inputs=inputs, dtype=dtype)


NUMPY: dict[Any, list[Function]] = {
    np.sum: [lambda x: np.sum(x), lambda x: np.sum(x, axis=(0, 2), keepdims=True)],
    np.prod: [lambda x: np.prod(x, 1), lambda x: np.prod(x)],
    np.max: [lambda x: np.max(x, -1), lambda x: np.max(x)],
    np.amax: [lambda x: np.amax(x, 0)],
    np.min: [lambda x: np.min(x, axis=-2), lambda x: np.min(x)],
    np.amin: [lambda x: np.amin(x, 0)],
    np.mean: [lambda x: np.mean(x), lambda x: np.mean(x, (0, -1)), lambda x: np.mean(x, 1)],
    np.where: [lambda x: np.where(x > 0, x, 1.0)],
    np.clip: [lambda x: np.clip(x, -1, 1)],
    np.round: [lambda x: np.round(x)],
    np.around: [lambda x: np.around(x)],
    np.transpose: [lambda x: np.transpose(x), lambda x: np.transpose(x, (1, -1, 0))],
    np.swapaxes: [lambda x: np.swapaxes(x, 0, -1)],
    np.expand_dims: [
        lambda x: np.expand_dims(x, 1) * 2.0,
        lambda x: np.expand_dims(x.sum(-1), -1) - x,
    ],
    np.squeeze: [lambda x: np.squeeze(x[:, None]), lambda x: np.squeeze(x[None, ..., None], 0)],
    np.sort: [lambda x: np.sort(x), lambda x: np.sort(x, axis=0)],
    np.cumprod: [lambda x: np.cumprod(x, 1), lambda x: np.cumprod(x, axis=-1)],
    np.cumsum: [lambda x: np.cumsum(x, 1), lambda x: np.cumsum(x, axis=-1)],
    np.take: [lambda x: np.take(x, (x.sum(0) > 0).astype(np.int64), axis=1)],
    np.take_along_axis: [lambda x: np.take_along_axis(x, (x > 0).astype(np.int64), -1)],
}


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_numpy_functions(check: Check, function: Any) -> None:
    for fn in NUMPY[function]:
        check(fn, "M K N", sizes={"N": 5})


# ---------------------------------------------------------------- reductions


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean"])
@pytest.mark.parametrize("axis", [None, 0, 1, -1, (0,), (0, 2), (-1, -2), (0, 1, 2), [1, 0], ()])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions(check: Check, name: str, axis: Any, keepdims: bool) -> None:
    meant = tuple(axis) if isinstance(axis, list) else axis
    check(
        lambda x: getattr(x, name)(axis, keepdims=keepdims),
        "M K D",
        reference=lambda x: getattr(x, name)(meant, keepdims=keepdims),
    )
    check(
        lambda x: x * getattr(ops, name)(x, axis, keepdims=True),
        "M K D",
        reference=lambda x: x * getattr(x, name)(meant, keepdims=True),
    )


def test_reductions_without_an_axis_go_over_all() -> None:
    program = bb.trace(lambda x: x.sum(), "M K")
    assert [str(dict(op.attributes)["axis"]) for op in program.operators] == ["K", "M"]
    assert program.outputs[0].axes == ()


def test_reductions_of_scalars_and_of_axes_of_length_1(check: Check) -> None:
    check(lambda x: (x.sum(), x.max(), x.mean()), "", inputs=[np.float64(2.5)])
    check(lambda x: (x[:, None].sum(1), x[None].prod(0), x[None, :].mean((0, 1))), "M")


@pytest.mark.parametrize("dtype", ["bool", "int32", "int64"])
def test_reductions_of_integers(check: Check, dtype: str) -> None:
    x = RANDOM.integers(0, 3, (5, 7)).astype(dtype)
    every = lambda x: (x.sum(), x.sum(0), x.prod(1), x.max(0), x.min(), x[:, None].sum(1))  # noqa: E731
    program = check(every, "M K", inputs=[x], dtype=dtype)
    kinds = [str(program.type(out.value).dtype) for out in program.outputs]
    assert kinds == ["int64", "int64", "int64", dtype, dtype, "int64"]  # as NumPy has it
    means = bb.evaluate(bb.trace(lambda x: x.mean(0), "M K", dtype=dtype), {"x": x})
    np.testing.assert_allclose(means["O"], x.mean(0), rtol=1e-6)


def test_running_sums_of_masks_count(check: Check) -> None:
    check(lambda x: np.cumsum(x > 0, axis=1), "M K")


# ---------------------------------------------------------------- products

SHAPES = {1: ["K"], 2: ["M K"], 3: ["B M K", "1 M K"], 4: ["B H M K", "B 1 M K", "1 H M K"]}
OTHERS = {1: ["K"], 2: ["K N"], 3: ["H K N", "1 K N"], 4: ["B H K N", "B 1 K N", "1 H K N"]}


def fits(x: str, y: str) -> bool:
    """True if the batch axes of the operands broadcast."""
    left, right = x.split()[:-2], y.split()[:-2]
    pairs = zip(reversed(left), reversed(right), strict=False)
    return all(a == b or "1" in (a, b) for a, b in pairs)


MATMULS = [
    (x, y)
    for i, j in product(SHAPES, OTHERS)
    for x, y in product(SHAPES[i], OTHERS[j])
    if fits(x, y)
]


@pytest.mark.parametrize(("x", "y"), MATMULS)
def test_matmul_of_any_ranks(check: Check, x: str, y: str) -> None:
    check(lambda x, y: x @ y, x, y)


@pytest.mark.parametrize(("x", "y"), MATMULS)
def test_matmul_of_plain_extents(check: Check, x: str, y: str) -> None:
    from_names = {"B": 2, "H": 3, "M": 3, "K": 3, "N": 2, "1": 1}  # M and K are equally long
    shapes = [tuple(from_names[name] for name in spec.split()) for spec in (x, y)]
    check(lambda x, y: np.matmul(x, y), *shapes)


def test_matmul_with_axes_of_length_1(check: Check) -> None:
    check(lambda x, y: x[:, None] @ y[None, :], "M", "N")
    check(lambda x: x[:, None] @ x[None, :], "M")
    check(lambda x, y: (x.sum(1, keepdims=True) @ y[None], y[None] @ y[:, None]), "M K", "N")
    check(lambda x, y: x[:, None] @ y, "M", (1, 6))
    check(lambda x, y: x @ y, (1,), (1, 6))


def test_matmul_whose_batch_axis_is_a_row_elsewhere(check: Check) -> None:
    check(lambda x, y: x @ y, "M K", "M K N")
    check(lambda x, y: x @ y, "M K", "N K M")
    check(lambda x: x @ x.transpose(1, 2, 0), "M:4 K:4 N:4")
    check(lambda x: x @ x.transpose(1, 2, 0), (4, 4, 4))


def test_products_of_an_array_with_itself(check: Check) -> None:
    check(lambda x: x @ x.T, "M K")
    check(lambda x: x.T @ x, "M K")
    check(lambda x: x @ x.T @ x, "M K")
    check(lambda x: x @ x.swapaxes(1, 2), "B M K")
    check(lambda x: (x @ x, x @ x.T, x + x.T), (4, 4))
    check(lambda x: x @ x, "K")


@pytest.mark.parametrize("dtype", ["int32", "int64", "bool"])
def test_matmul_of_integers(check: Check, dtype: str) -> None:
    x, y = (RANDOM.integers(0, 3, shape).astype(dtype) for shape in ((5, 7), (7, 6)))
    check(lambda x, y: x @ y, "M K", "K N", inputs=[x, y], dtype=dtype)


# ---------------------------------------------------------------- broadcasting

SPECS = ["", "N", "1", "M N", "1 N", "M 1", "D M N", "1 M 1", "D 1 N", "B D M N", "B 1 1 N"]


@pytest.mark.parametrize(("x", "y"), list(product(SPECS, SPECS)))
def test_broadcasting_by_name(check: Check, x: str, y: str) -> None:
    check(lambda x, y: x * 2.0 + y, x, y)


@pytest.mark.parametrize(("x", "y"), list(product(SPECS, SPECS)))
def test_broadcasting_of_plain_extents(check: Check, x: str, y: str) -> None:
    extents = {"B": 2, "D": 3, "M": 3, "N": 3, "1": 1}
    shapes = [tuple(extents[name] for name in spec.split()) for spec in (x, y)]
    check(lambda x, y: x - y, *shapes)


def test_broadcasting_of_three(check: Check) -> None:
    check(lambda c, x, y: np.where(c[:, None] > 0, x, y[..., None]), "M", "B 1 K", "B M")
    # positions that are only about to meet in the result must not be taken for one axis
    check(lambda c, v: np.where(c[:, None] > 0, v[None, :], v[:, None]), (4,), (4,))
    check(lambda c, v: np.where(v[:, None] > 0, c[None, :], v), (4,), (4,))


def test_one_axis_at_two_positions(check: Check) -> None:
    check(lambda v: v[:, None] - v[None, :], "M")
    check(lambda v: v[:, None] * v + v[:, None], "M")
    check(lambda x: x + x.T, "M:4 N:4")
    check(lambda x: (x + x.T) @ x, (4, 4))


@pytest.mark.parametrize(
    "index",
    ["...", "None", ":, None", "..., None", ":, None, :, None", "None, ..., None", "None, None"],
)
def test_new_axes(check: Check, index: str) -> None:
    check(lambda x: eval(f"x[{index}]") * 2.0, "M K")


# ---------------------------------------------------------------- along an axis


@pytest.mark.parametrize("axis", [-1, 0, 1, -3])
def test_softmax(check: Check, axis: int) -> None:
    check(lambda x: ops.softmax(x, axis), "M K N", reference=lambda x: softmax(x, axis))
    logs = lambda x: np.log(softmax(x, axis))  # noqa: E731
    check(lambda x: ops.log_softmax(x, axis), "M K N", reference=logs)


@pytest.mark.parametrize("weight", [False, True])
@pytest.mark.parametrize(("axis", "along_axis"), [(-1, "N"), (0, "M"), (-2, "K")])
def test_rmsnorm(check: Check, weight: bool, axis: int, along_axis: str) -> None:
    check(
        lambda x, w: ops.rmsnorm(x, w if weight else None, 1e-3, axis),
        *("M K N", along_axis),
        reference=lambda x, w: rmsnorm(x, axis, 1e-3) * (along(axis, w, x) if weight else 1),
    )


@pytest.mark.parametrize("weight", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("axis", "along_axis"), [(-1, "N"), (0, "M")])
def test_layernorm(check: Check, weight: bool, bias: bool, axis: int, along_axis: str) -> None:
    check(
        lambda x, w, b: ops.layernorm(x, w if weight else None, b if bias else None, axis=axis),
        *("M K N", along_axis, along_axis),
        reference=lambda x, w, b: (
            layernorm(x, axis) * (along(axis, w, x) if weight else 1)
            + (along(axis, b, x) if bias else 0)
        ),
    )


def test_norms_of_plain_extents(check: Check) -> None:
    both = lambda x, w: layernorm(x) * w + w  # noqa: E731
    check(lambda x, w: ops.layernorm(x, w, w), (4, 4), (4,), reference=both)
    check(
        lambda x, w: ops.rmsnorm(x + x.T, w),
        (4, 4),
        (4,),
        reference=lambda x, w: rmsnorm(x + x.T) * w,
    )


def test_norms_of_integers(check: Check) -> None:
    check(
        lambda x: (ops.layernorm(x), ops.softmax(x), ops.rmsnorm(x)),
        *("M K",),
        reference=lambda x: (layernorm(x), softmax(x), rmsnorm(x)),
        inputs=[RANDOM.integers(0, 9, (5, 7)).astype(np.int32)],
        dtype="int32",
    )


# ---------------------------------------------------------------- positions and sizes


def test_masks_from_positions(check: Check) -> None:
    def causal(x: Any) -> Any:
        return ops.where(ops.index(x, -1) <= ops.index(x, -2), x, -1.0)

    rows, columns = np.arange(5)[:, None], np.arange(7)
    check(causal, "M K", reference=lambda x: np.where(columns <= rows, x, -1.0))
    check(causal, "B M K", reference=lambda x: np.where(columns <= rows, x, -1.0))
    check(
        lambda x: (ops.index(x, 0), ops.index(x, 1) * 2 - ops.index(x, 0)),
        *("M K",),
        reference=lambda x: (np.arange(5), columns * 2 - rows),
    )
    check(
        lambda x: ops.where(ops.index(x, 0) == ops.index(x, 0).T, 1.0, 0.0),
        *("M K",),
        reference=lambda x: np.eye(5),
    )
    check(
        lambda x: x * (ops.index(x, 1) % 3 == 0) + ops.index(x, 1) // 2,
        *("M K",),
        reference=lambda x: x * (columns % 3 == 0) + columns // 2,
    )


def test_positions_that_are_reduced_and_sorted(check: Check) -> None:
    check(
        lambda x: (ops.index(x, 1).sum(), ops.index(x, 0).max(0)),
        *("M K",),
        reference=lambda x: (np.arange(7).sum(), np.array([4])),
    )
    check(lambda x: np.cumsum(ops.index(x, 0)), "M", reference=lambda x: np.cumsum(np.arange(5)))


def test_sizes(check: Check) -> None:
    def scaled(x: Any) -> Any:
        return (
            x * x.shape[1] ** -0.5,
            x / np.sqrt(x.shape[0]),
            x.shape[1] * x + x.shape[0],
            2 ** x.shape[0] - x,
            x * (7 % x.shape[0]) + 9 // x.shape[1],
            np.float64(3) * x.shape[0] + x,
            np.where(x > x.shape[0] / 5 - 1, x, x.shape[1]),
        )

    check(scaled, "M K")
    check(scaled, "M:5 K")
    check(scaled, (5, 7))
    check(
        lambda x: x * ops.size(x, -1) + ops.sqrt(ops.size(x, 0)),
        "M K",
        reference=lambda x: x * 7 + np.sqrt(5),
    )


def test_sizes_of_integers_stay_exact(check: Check) -> None:
    check(
        lambda x: (ops.index(x, 0) + x.shape[0], ops.where(x > 0, x.shape[0], 0)),
        *("M",),
        reference=lambda x: (np.arange(5) + 5, np.where(x > 0, 5, 0)),
    )
    graph = bb.lower(bb.trace(lambda x: ops.index(x, 0) * ops.sqrt(x.shape[0]), "M"))
    (found,) = bb.interpret(graph, [np.zeros(5)])
    np.testing.assert_allclose(found, np.arange(5) * np.sqrt(5))


def test_transposing_costs_nothing(check: Check) -> None:
    check(lambda x: (x.T, x.transpose(1, 2, 0), x.transpose((2, 0, 1)), x.swapaxes(0, -1)), "M K N")
    program = bb.trace(lambda x: ops.transpose(ops.swapaxes(x, 0, 1), (1, 0)).transpose(), "M K")
    assert program.operators == ()


def test_one_expression_of_several_arrays(check: Check) -> None:
    program = check(
        lambda x, y: ops.elementwise(lambda a, b, c: ops.exp(-a) * b + c, x, y, 2.0),
        *("M K", "K"),
        reference=lambda x, y: np.exp(-x) * y + 2.0,
    )
    assert len(program.operators) == 1
    check(
        lambda x: ops.elementwise(lambda a, b: a * b, x, x.T), (4, 4), reference=lambda x: x * x.T
    )


# ---------------------------------------------------------------- dtypes


@pytest.mark.parametrize("dtype", ["bool", "int32", "int64", "float32"])
@pytest.mark.parametrize("name", SCALARS)
def test_every_scalar_function_of_every_dtype(name: str, dtype: str) -> None:
    """Bools and integers are computed or refused by the same functions as in NumPy."""
    function = SCALARS[name]
    inputs = [RANDOM.integers(1, 3, (5, 7)).astype(dtype) for _ in range(function.arity)]
    if name == "where":
        inputs[0] = inputs[0] > 1

    def traced(*arrays: Any) -> Any:
        return ops.elementwise(lambda *elements: call(name, *elements), *arrays)

    specs = [bb.array("M K", dtype=x.dtype) for x in inputs]
    wide = [x.astype(float) if function.result == "float" else x for x in inputs]
    try:
        with np.errstate(all="ignore"):
            wanted = np.asarray(function.numpy(*wide))
    except TypeError:
        with pytest.raises(bb.BlockbusterError, match=f"{name} of bools is not defined: cast them"):
            bb.trace(traced, *specs)
        return
    program = bb.trace(traced, *specs)
    names = [given.name for given in program.inputs]
    found = bb.interpret(bb.lower(program), inputs, tiles={"M": 2, "K": 3})["O"]
    np.testing.assert_array_equal(
        found, bb.evaluate(program, dict(zip(names, inputs, strict=True)))["O"]
    )
    np.testing.assert_allclose(found, wanted, rtol=3e-7 if found.dtype.kind == "f" else 0)
    # of bools NumPy makes int8, and its older versions floats of integers that they round
    if dtype != "bool" and name not in ("floor", "ceil", "trunc"):
        assert found.dtype.kind == wanted.dtype.kind


# ---------------------------------------------------------------- misc operators


def test_misc_operators_run(check: Check) -> None:
    check(lambda x: ops.sort(x * 2.0, 0) + x, "M K", reference=lambda x: np.sort(x * 2, 0) + x)
    check(
        lambda x: ops.softmax(ops.cumsum(x.T, 0).T) @ x.T,
        *("M K",),
        reference=lambda x: softmax(np.cumsum(x, 1)) @ x.T,
    )
    check(
        lambda x, y: ops.misc("numpy", "linalg.solve", x, y, axes=y.axes),
        *((4, 4), (4, 3)),
        reference=np.linalg.solve,
    )


def test_a_misc_operator_with_axes_of_its_own(check: Check) -> None:
    check(
        lambda x: ops.misc("numpy", "argmax", x, axes=x.axes[:1], dtype="int64", axis=1),
        *("M K",),
        reference=lambda x: np.argmax(x, 1),
    )
    for axis in ("T", "T:14", 14):
        check(
            lambda x, axis=axis: (
                ops.misc("numpy", "concatenate", x, x, axes=(x.axes[0], axis), axis=1) * 2
            ),
            *("M K",),
            reference=lambda x: np.concatenate([x, x], axis=1) * 2,
        )


def test_an_operand_of_a_misc_operator_is_laid_out_as_it_was_traced(check: Check) -> None:
    check(
        lambda x: ops.misc("numpy", "triu", x.T, k=1),
        *("M K",),
        reference=lambda x: np.triu(x.T, 1),
    )


def test_what_misc_operators_refuse() -> None:
    def refused(fn: Function, sentence: str) -> None:
        with pytest.raises(bb.BlockbusterError, match=sentence):
            bb.trace(fn, "M K")

    refused(lambda x: ops.misc("numpy", "sort"), "numpy.sort: needs at least one array")
    refused(lambda x: ops.misc("numpy", "sort", x, axis=np.ones(2)), "is a number, a string, None")
    refused(lambda x: ops.misc("numpy", "sort", np.ones(3)), "numpy.sort: got ndarray, not an arr")
    refused(lambda x: ops.misc("numpy", "sort", x[None]), "take it out with squeeze first")
    refused(lambda x: ops.misc("numpy", "sort", x, axes=[x.axes[0]] * 2), "an axis twice: M, M")
    refused(lambda x: ops.misc("numpy", "sort", x, axes=["M,K"]), "'M,K' is no axis")
    refused(lambda x: ops.misc("numpy", "sort", x, dtype="int8"), "'int8' is not one of float64")
    refused(lambda x: ops.cumsum(x), r"scan by add: say along which axis of Array\[M K\]")
    refused(lambda x: ops.sort(x, 2), "there is no axis 2")


def test_what_a_misc_operator_declares_is_checked() -> None:
    x = {"x": np.ones((5, 7))}
    wrong = bb.trace(lambda x: ops.misc("numpy", "concatenate", x, x, axis=1), "M K")
    nobody = bb.trace(lambda x: ops.misc("nowhere", "f", x), "M K")
    for run in (bb.evaluate, lambda program, x: bb.interpret(bb.lower(program), x)):
        with pytest.raises(BadResult, match=r"numpy\.concatenate: .*axis K has 14 elements"):
            run(wrong, x)
        with pytest.raises(NoExecutor, match=r"nowhere\.f has no executor"):
            run(nobody, x)


# ---------------------------------------------------------------- evaluate's own checks


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        ({"x": np.ones((2, 3))}, "input y: is missing; the inputs are x, y"),
        ({"x": np.ones((2, 3)), "y": 1.0, "z": 1.0}, "input z: there is no such input"),
        ({"x": np.ones((2, 3)), "y": np.ones(4)}, "input y: axis K has 4 elements, but axis K of"),
        (
            {"x": np.ones(2), "y": np.ones(2)},
            r"has the shape \(2,\), and the program wants",
        ),
        ({"x": np.full((2, 3), "a"), "y": np.ones(3)}, "input x: has the dtype"),
    ],
)
def test_bad_inputs(inputs: dict[str, Any], sentence: str) -> None:
    program = bb.trace(lambda x, y: x + y, "M K", "K")
    with pytest.raises(BadInput, match=sentence):
        bb.evaluate(program, inputs)
