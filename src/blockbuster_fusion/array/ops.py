"""The operators that a traced function may use, beside Python's and NumPy's own.

Each records one entry of the lookup table; NumPy functions of the same name are traced too.
Imported under their own names, `elementwise`, `matmul`, `mean`, `misc`, `sort`, `take`
and `take_along_axis` too.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from blockbuster_fusion.array.arrays import (
    FUNCTIONS,
    UFUNCS,
    Array,
    AxisNumbers,
    apply,
    broadcast,
    of_masks,
    one_trace,
    reduce,
    scan,
)
from blockbuster_fusion.array.arrays import elementwise as elementwise
from blockbuster_fusion.array.arrays import matmul as matmul
from blockbuster_fusion.array.arrays import mean as mean
from blockbuster_fusion.array.lookups import numpy_take
from blockbuster_fusion.array.lookups import take as take
from blockbuster_fusion.array.lookups import take_along_axis as take_along_axis
from blockbuster_fusion.array.misc import misc as misc
from blockbuster_fusion.array.misc import sort as sort
from blockbuster_fusion.array.program import Attribute
from blockbuster_fusion.errors import TraceError
from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.ir.combiner import ADD, LOGADDEXP, MAX, MIN, MUL
from blockbuster_fusion.ir.expr import FUNCTIONS as SCALAR_FUNCTIONS
from blockbuster_fusion.ir.expr import Expr, call, is_scalar
from blockbuster_fusion.ir.types import DType

# ---------------------------------------------------------------- one function of every element


def _scalar(name: str) -> Callable[..., Any]:
    """The scalar function called `name`: of arrays, or of sizes and of elements inside a lambda."""

    def of_one(x: Any) -> Any:
        return call(name, x) if is_scalar(x) else apply(name, x)

    def of_two(x: Any, y: Any) -> Any:
        return call(name, x, y) if is_scalar(x) and is_scalar(y) else apply(name, x, y)

    function = of_one if SCALAR_FUNCTIONS[name].arity == 1 else of_two
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"`{name.rstrip('_')}` of every element."
    return function


exp = _scalar("exp")
exp2 = _scalar("exp2")
expm1 = _scalar("expm1")
log = _scalar("log")
log2 = _scalar("log2")
log10 = _scalar("log10")
log1p = _scalar("log1p")
sqrt = _scalar("sqrt")
cbrt = _scalar("cbrt")
sin = _scalar("sin")
cos = _scalar("cos")
tan = _scalar("tan")
arcsin = _scalar("arcsin")
arccos = _scalar("arccos")
arctan = _scalar("arctan")
arctan2 = _scalar("arctan2")
sinh = _scalar("sinh")
cosh = _scalar("cosh")
tanh = _scalar("tanh")
arcsinh = _scalar("arcsinh")
arccosh = _scalar("arccosh")
arctanh = _scalar("arctanh")
erf = _scalar("erf")
abs = _scalar("abs")
sign = _scalar("sign")
floor = _scalar("floor")
ceil = _scalar("ceil")
trunc = _scalar("trunc")
round = _scalar("round")
maximum = _scalar("maximum")
minimum = _scalar("minimum")
isnan = _scalar("isnan")
isinf = _scalar("isinf")
logical_and = _scalar("and_")
logical_or = _scalar("or_")
logical_not = _scalar("not_")


def where(condition: Any, x: Any, y: Any) -> Any:
    """`x` where the condition holds, `y` elsewhere."""
    if all(map(is_scalar, (condition, x, y))):
        return call("where", condition, x, y)
    if isinstance(condition, Array) and condition.dtype is not DType.bool_:
        return elementwise(lambda c, a, b: call("where", call("ne", c, 0), a, b), condition, x, y)
    return apply("where", condition, x, y)


def isfinite(x: Array) -> Array:
    """True where an element is neither infinite nor NaN."""
    return elementwise(lambda t: ~(call("isnan", t) | call("isinf", t)), x)


def logical_xor(x: Any, y: Any) -> Array:
    """True where exactly one of the two is true."""
    return elementwise(lambda a, b: call("ne", ~a, ~b), x, y)


def relu(x: Array) -> Array:
    """`max(x, 0)`."""
    return elementwise(lambda t: call("maximum", t, 0), x)


def square(x: Array) -> Array:
    """`x ** 2`."""
    return elementwise(lambda t: t**2, x)


def reciprocal(x: Array) -> Array:
    """`1 / x`."""
    return elementwise(lambda t: 1 / t, x)


def rsqrt(x: Array) -> Array:
    """`1 / sqrt(x)`."""
    return elementwise(lambda t: 1 / call("sqrt", t), x)


def sigmoid(x: Array) -> Array:
    """`1 / (1 + exp(-x))`."""
    return elementwise(lambda t: 1 / (1 + call("exp", -t)), x)


def swish(x: Array) -> Array:
    """`x * sigmoid(x)`, also called silu."""
    return elementwise(lambda t: t / (1 + call("exp", -t)), x)


silu = swish


def softplus(x: Array) -> Array:
    """`log(1 + exp(x))`."""
    return elementwise(lambda t: call("log1p", call("exp", t)), x)


def gelu(x: Array, approximate: str = "none") -> Array:
    """The Gaussian error linear unit; `approximate="tanh"` for the usual approximation."""
    if approximate == "none":
        return elementwise(lambda t: 0.5 * t * (1 + call("erf", t * 2**-0.5)), x)
    if approximate != "tanh":
        raise TraceError(op="gelu", problem=f"approximate is 'none' or 'tanh', not {approximate!r}")
    c = 2 * (2 / np.pi) ** 0.5  # 0.5 * (1 + tanh(u)) is the sigmoid of 2u
    return elementwise(lambda t: t / (1 + call("exp", -c * (t + 0.044715 * t**3))), x)


def leaky_relu(x: Array, slope: Any = 0.01) -> Array:
    """`x` where positive, `slope * x` elsewhere."""
    return elementwise(lambda t, s: call("where", t > 0, t, s * t), x, slope)


def elu(x: Array, alpha: Any = 1.0) -> Array:
    """`x` where positive, `alpha * (exp(x) - 1)` elsewhere."""
    return elementwise(lambda t, a: call("where", t > 0, t, a * call("expm1", t)), x, alpha)


def clip(x: Any, a_min: Any = None, a_max: Any = None) -> Array:
    """`x` kept between two bounds, each a number, an array or None."""
    bounds = [(n, b) for n, b in (("maximum", a_min), ("minimum", a_max)) if b is not None]
    if not bounds:
        raise TraceError(op="clip", problem="both bounds are None: give one")

    def clipped(t: Expr, *limits: Expr) -> Expr:
        for (name, _), limit in zip(bounds, limits, strict=True):
            t = call(name, t, limit)
        return t

    return elementwise(clipped, x, *(b for _, b in bounds), name="clip")


def cast(x: Array, dtype: str | DType) -> Array:
    """`x` converted to `dtype`."""
    one_trace("cast", x)
    return x.astype(dtype)


# ---------------------------------------------------------------- along axes


def sum(x: Array, axis: AxisNumbers = None, keepdims: bool = False) -> Array:
    """The sum along one axis, several, or all of them."""
    return reduce(x, ADD, axis, keepdims)


def prod(x: Array, axis: AxisNumbers = None, keepdims: bool = False) -> Array:
    """The product along one axis, several, or all of them."""
    return reduce(x, MUL, axis, keepdims)


def max(x: Array, axis: AxisNumbers = None, keepdims: bool = False) -> Array:
    """The maximum along one axis, several, or all of them."""
    return reduce(x, MAX, axis, keepdims)


def min(x: Array, axis: AxisNumbers = None, keepdims: bool = False) -> Array:
    """The minimum along one axis, several, or all of them."""
    return reduce(x, MIN, axis, keepdims)


def cumsum(x: Array, axis: int | None = None) -> Array:
    """Running sums along an axis, which may be left out if it is the only one."""
    return scan(x, ADD, axis)


def cumprod(x: Array, axis: int | None = None) -> Array:
    """Running products along an axis, which may be left out if it is the only one.

    Blocks are multiplied by themselves first. So a product is NaN after a 0 if that of a later
    block alone is too large for its dtype.
    """
    return scan(x, MUL, axis)


def cummax(x: Array, axis: int | None = None) -> Array:
    """Running maxima along an axis, which may be left out if it is the only one."""
    return scan(x, MAX, axis)


def cummin(x: Array, axis: int | None = None) -> Array:
    """Running minima along an axis, which may be left out if it is the only one."""
    return scan(x, MIN, axis)


def logcumsumexp(x: Array, axis: int | None = None) -> Array:
    """Logarithms of running sums of exponentials along an axis, or along the only one."""
    return scan(x, LOGADDEXP, axis)


def _axis_of(op: str, x: Array, axis: int) -> Axis:
    one_trace(op, x)
    return x.along(axis, op)


def _rowwise(
    name: str, x: Array, axis: int, parameters: Sequence[Array], **attributes: Attribute
) -> Array:
    normalised = _axis_of(name, x, axis)
    tracing = one_trace(name, x, *parameters)
    aligned = []
    for parameter in parameters:
        if parameter.ndim != 1 or parameter.axes[0] is None:
            problem = f"a weight or bias has one axis, {normalised}, and this is {parameter}"
            raise TraceError(op=name, problem=problem)
        aligned.append(tracing.agree(name, parameter, parameter.axes[0], normalised))
    axis_now = tracing.resolve(normalised)
    value = tracing.record(name, [x, *aligned], axis=axis_now, **attributes)
    return Array(tracing, value, x.axes)


def softmax(x: Array, axis: int = -1) -> Array:
    """`exp(x)` divided by its sum along an axis."""
    return _rowwise("softmax", x, axis, ())


def log_softmax(x: Array, axis: int = -1) -> Array:
    """The logarithm of the softmax along an axis."""
    return _rowwise("log_softmax", x, axis, ())


def rmsnorm(x: Array, weight: Array | None = None, eps: float = 1e-6, axis: int = -1) -> Array:
    """`x / sqrt(mean(x**2) + eps) * weight` along an axis."""
    parameters = [weight] if weight is not None else []
    return _rowwise("rmsnorm", x, axis, parameters, eps=_epsilon("rmsnorm", eps))


def layernorm(
    x: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    axis: int = -1,
) -> Array:
    """`(x - mean) / sqrt(var + eps) * weight + bias` along an axis."""
    parameters = [p for p in (weight, bias) if p is not None]
    return _rowwise(
        "layernorm",
        x,
        axis,
        parameters,
        eps=_epsilon("layernorm", eps),
        weight=weight is not None,
        bias=bias is not None,
    )


def _epsilon(op: str, eps: Any) -> float:
    if not isinstance(eps, int | float | np.floating | np.integer):
        raise TraceError(op=op, problem=f"eps is a number, not {type(eps).__name__}")
    return float(eps)


def index(x: Array, axis: int) -> Array:
    """The position along an axis of `x`, shaped to broadcast with it: masks are made of these."""
    named = _axis_of("index", x, axis)
    value = x.tracing.record("index", [], axis=named)
    return Array(x.tracing, value, [a if a is named else None for a in x.axes])


def size(x: Array, axis: int) -> int | Expr:
    """The extent of an axis: a number, or the symbol that stands for it."""
    one_trace("size", x)
    return x.shape[x.position(axis, "size")]


# ---------------------------------------------------------------- operators by name


def registered(name: str, /, *operands: Array, **attributes: Any) -> Array:
    """The operator that is registered in the lookup table under `name`.

    Operands are aligned as NumPy broadcasts. `axis`, if there is one, is a position in the first.
    """
    if not operands:
        raise TraceError(op=name, problem="needs at least one array")
    tracing = one_trace(name, *operands)
    aligned, axes = broadcast(name, operands)
    if "axis" in attributes:
        attributes["axis"] = _axis_of(name, aligned[0], attributes["axis"])
    value = tracing.record(name, aligned, **attributes)
    left = tracing.types[value].axes
    shown = [a for a in axes if a is None or a in left]
    return Array(tracing, value, shown if set(left) <= set(shown) else left)


# ---------------------------------------------------------------- positions


def transpose(x: Array, axes: Sequence[int] | None = None) -> Array:
    """The positions in another order; reversed when none is given."""
    one_trace("transpose", x)
    return x.transpose(axes)


def swapaxes(x: Array, axis1: int, axis2: int) -> Array:
    """`x` with two positions exchanged."""
    one_trace("swapaxes", x)
    return x.swapaxes(axis1, axis2)


def expand_dims(x: Array, axis: int) -> Array:
    """`x` with a new axis of length 1."""
    one_trace("expand_dims", x)
    at = x[None].position(axis, "expand_dims")
    return x.at((*x.axes[:at], None, *x.axes[at:]))


def squeeze(x: Array, axis: AxisNumbers = None) -> Array:
    """`x` without its axes of length 1, or without those that are given."""
    one_trace("squeeze", x)
    units = [
        at for at, extent in enumerate(x.shape) if not isinstance(extent, Expr) and extent == 1
    ]
    wanted = units if axis is None else x.positions(axis, "squeeze")
    if not set(wanted) <= set(units):
        raise TraceError(op="squeeze", problem=f"not all of the axes {axis} of {x} have length 1")
    return reduce(x, MAX, wanted)


UFUNCS.update(
    {f.numpy: _scalar(f.name) for f in SCALAR_FUNCTIONS.values() if isinstance(f.numpy, np.ufunc)}
)
UFUNCS.update(
    {
        np.matmul: matmul,
        np.square: square,
        np.reciprocal: reciprocal,
        np.rint: round,
        np.isfinite: isfinite,
        np.logical_xor: logical_xor,
        np.bitwise_and: partial(of_masks, "and_"),
        np.bitwise_or: partial(of_masks, "or_"),
        np.bitwise_xor: partial(of_masks, "ne"),
        np.invert: partial(of_masks, "not_"),
        np.positive: lambda x: x,
    }
)
FUNCTIONS.update(
    {
        np.sum: sum,
        np.prod: prod,
        np.max: max,
        np.amax: max,
        np.min: min,
        np.amin: min,
        np.mean: mean,
        np.where: where,
        np.clip: clip,
        np.round: round,
        np.around: round,
        np.transpose: transpose,
        np.swapaxes: swapaxes,
        np.expand_dims: expand_dims,
        np.squeeze: squeeze,
        np.sort: sort,
        np.cumsum: cumsum,
        np.cumprod: cumprod,
        np.take: numpy_take,
        np.take_along_axis: take_along_axis,
    }
)
