"""Elementwise operators, including conversions."""

import math
from collections.abc import Callable

import torch

from blockbuster_fusion.array.axes import ONE, product
from blockbuster_fusion.array.positional import PositionalBuilder
from blockbuster_fusion.array.records import Operand, PositionalArray
from blockbuster_fusion.errors import NotExpressible
from blockbuster_fusion.ir.expr import Expr, call, const
from blockbuster_fusion.ir.expr import cast as cast_expr
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.torch.table.row import DTYPES, EmitFunction, pointwise


def _simple(names: str, make: Callable[..., Expr], cheap: bool = True) -> None:
    def entry(p: PositionalBuilder, *operands: Operand) -> PositionalArray:
        return p.elementwise(make, *operands)

    for name in names.split():
        pointwise(name, cheap=cheap)(entry)


def function(name: str) -> Callable[..., Expr]:
    return lambda *x: call(name, *x)


for _cheap in [
    "abs",
    "neg",
    "floor",
    "ceil",
    "trunc",
    "round",
    "maximum",
    "minimum",
    "sqrt",
    "isnan",
    "isinf",
]:
    _simple(_cheap, function(_cheap))
for _name in [
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sin",
    "cos",
    "tan",
    "tanh",
    "sinh",
    "cosh",
    "erf",
]:
    _simple(_name, function(_name), cheap=False)
for _theirs, _ours in (
    ("asin", "arcsin"), ("acos", "arccos"), ("atan", "arctan"), ("asinh", "arcsinh"),
    ("acosh", "arccosh"), ("atanh", "arctanh"), ("atan2", "arctan2"),
):  # fmt: skip
    _simple(_theirs, function(_ours), cheap=False)
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _simple(_name, function(_name))

_simple("reciprocal", lambda t: 1 / t)
_simple("rsqrt", lambda t: t**-0.5)
_simple("sigmoid", lambda t: 1 / (1 + call("exp", -t)), cheap=False)
_simple("relu", lambda t: call("maximum", t, 0))  # of equals the first: relu(-0.0) is -0.0
_simple("relu6", lambda t: call("minimum", call("maximum", t, 0), 6))
_simple("square", lambda t: t**2)
_simple("hardswish", lambda t: t * call("minimum", call("maximum", t + 3, 0), 6) / 6)
_simple("hardsigmoid", lambda t: call("minimum", call("maximum", t + 3, 0), 6) / 6)
_simple("logical_not", lambda t: ~_truth(t))
_simple("isfinite", lambda t: ~(call("isnan", t) | call("isinf", t)))


def _truth(t: Expr) -> Expr:
    return call("ne", t, 0)


def _is_bool(x: Operand) -> bool:
    return isinstance(x, bool) or (isinstance(x, PositionalArray) and x.dtype is DType.bool_)


def _logical(name: str) -> EmitFunction:
    def entry(p: PositionalBuilder, x: Operand, y: Operand) -> PositionalArray:
        def made(a: Expr, b: Expr) -> Expr:
            left = a if _is_bool(x) else _truth(a)
            right = b if _is_bool(y) else _truth(b)
            return call(name, left, right)

        return p.elementwise(made, x, y)

    return entry


for _word, _ours in (("and", "and_"), ("or", "or_"), ("xor", "ne")):
    pointwise(f"logical_{_word}")(_logical(_ours))


def _bitwise(name: str) -> EmitFunction:
    def entry(p: PositionalBuilder, *operands: Operand) -> PositionalArray:
        if not all(map(_is_bool, operands)):
            raise NotExpressible(what="bit arithmetic on whole numbers")
        return p.elementwise(function(name), *operands)

    return entry


for _word, _ours in (("and", "and_"), ("or", "or_"), ("xor", "ne"), ("not", "not_")):
    pointwise(f"bitwise_{_word}")(_bitwise(_ours))


def is_number(x: object, wanted: float) -> bool:
    if isinstance(x, PositionalArray):
        return x.constant is const(wanted) or x.constant is const(int(wanted))
    return isinstance(x, int | float) and not isinstance(x, bool) and x == wanted


def _same(p: PositionalBuilder, x: PositionalArray, y: Operand) -> bool:
    """True if an operator with `y` as its neutral element gives `x` as it is."""
    return not isinstance(y, PositionalArray) or (
        y.dtype is x.dtype and all(s == ONE for s in y.sizes)
    )


def _is_zero(x: PositionalArray, y: Operand, sign: int) -> bool:
    """True if `y` is the zero with a sign; integers have one zero."""
    if not is_number(y, 0):
        return False
    number = y.constant.value if isinstance(y, PositionalArray) and y.constant is not None else y
    assert isinstance(number, int | float)
    return not x.dtype.is_float or math.copysign(1, number) == sign


@pointwise("add")
def _add(p: PositionalBuilder, x: Operand, y: Operand, alpha: float = 1) -> PositionalArray:
    if isinstance(x, PositionalArray) and _is_zero(x, y, -1) and _same(p, x, y):
        return x  # -0.0 + 0.0 is 0.0
    if _is_bool(x) and _is_bool(y):
        return p.elementwise(function("or_"), x, y)
    return p.elementwise(lambda a, b: a + (b if alpha == 1 else alpha * b), x, y)


@pointwise("sub")
def _sub(p: PositionalBuilder, x: Operand, y: Operand, alpha: float = 1) -> PositionalArray:
    if isinstance(x, PositionalArray) and _is_zero(x, y, 1) and _same(p, x, y):
        return x
    return p.elementwise(lambda a, b: a - (b if alpha == 1 else alpha * b), x, y)


@pointwise("rsub")
def _rsub(p: PositionalBuilder, x: Operand, y: Operand, alpha: float = 1) -> PositionalArray:
    return _sub(p, y, x, alpha=alpha)


@pointwise("mul")
def _mul(p: PositionalBuilder, x: Operand, y: Operand) -> PositionalArray:
    for one, other in ((x, y), (y, x)):
        if isinstance(other, PositionalArray) and is_number(one, 1) and _same(p, other, one):
            return other
    if _is_bool(x) and _is_bool(y):
        return p.elementwise(function("and_"), x, y)
    if isinstance(x, PositionalArray) and x == y:
        return p.elementwise(lambda a: a**2, x)  # one form for a square, however it is written
    return p.elementwise(lambda a, b: a * b, x, y)


@pointwise("div")
def _div(
    p: PositionalBuilder, x: Operand, y: Operand, *, rounding_mode: str | None = None
) -> PositionalArray:
    if rounding_mode == "floor":
        return p.elementwise(lambda a, b: a // b, x, y)
    if rounding_mode == "trunc":
        raise NotExpressible(what="division rounded towards zero")
    if _is_narrower(y, x):
        y = p.elementwise(lambda t: 1 / t, y)  # one inverse for a row: a scale, as in softmax
        return p.elementwise(lambda a, b: a * b, x, y)
    return p.elementwise(lambda a, b: a / b, x, y)


def _is_narrower(y: Operand, x: Operand) -> bool:
    """True if one array of floats is broadcast along another."""
    if (
        not isinstance(x, PositionalArray)
        or not isinstance(y, PositionalArray)
        or y.constant is not None
    ):
        return False
    if not x.dtype.is_float or not y.dtype.is_float or len(y.sizes) > len(x.sizes):
        return False
    wide = x.sizes[len(x.sizes) - len(y.sizes) :]
    fits = all(a in (b, ONE) for a, b in zip(y.sizes, wide, strict=True))
    return fits and product(y.sizes) != product(x.sizes)


@pointwise("floor_divide")
def _floor_divide(p: PositionalBuilder, x: Operand, y: Operand) -> PositionalArray:
    return p.elementwise(lambda a, b: a // b, x, y)


@pointwise("remainder")
def _remainder(p: PositionalBuilder, x: Operand, y: Operand) -> PositionalArray:
    return p.elementwise(lambda a, b: a % b, x, y)


@pointwise("pow", cheap=False)
def _pow(p: PositionalBuilder, x: Operand, y: Operand) -> PositionalArray:
    if isinstance(x, PositionalArray) and not x.dtype.is_float and not is_number(y, 2):
        raise NotExpressible(what="a power of whole numbers")
    return p.elementwise(lambda a, b: a**b, x, y)


@pointwise("clamp")
def _clamp(
    p: PositionalBuilder,
    x: PositionalArray,
    low: Operand | None = None,
    high: Operand | None = None,
) -> PositionalArray:
    for name, bound in (("maximum", low), ("minimum", high)):
        if bound is not None:
            x = p.elementwise(function(name), x, bound)
    return x


@pointwise("hardtanh")
def _hardtanh(
    p: PositionalBuilder, x: PositionalArray, low: Operand = -1, high: Operand = 1
) -> PositionalArray:
    return _clamp(p, x, low, high)


@pointwise("clamp_min")
def _clamp_min(p: PositionalBuilder, x: PositionalArray, low: Operand) -> PositionalArray:
    return _clamp(p, x, low)


@pointwise("clamp_max")
def _clamp_max(p: PositionalBuilder, x: PositionalArray, high: Operand) -> PositionalArray:
    return _clamp(p, x, None, high)


@pointwise("sign")
def _sign(p: PositionalBuilder, x: PositionalArray) -> PositionalArray:
    if not x.dtype.is_float:
        return p.elementwise(function("sign"), x)
    return p.elementwise(lambda t: call("where", call("abs", t) > 0, call("sign", t), 0), x)


@pointwise("where")
def _where(
    p: PositionalBuilder, condition: PositionalArray, x: Operand, y: Operand
) -> PositionalArray:
    return p.elementwise(function("where"), condition, x, y)


@pointwise("masked_fill")
def _masked_fill(
    p: PositionalBuilder, x: PositionalArray, mask: PositionalArray, value: Operand
) -> PositionalArray:
    return p.elementwise(function("where"), mask, value, x)


@pointwise("gelu", cheap=False)
def _gelu(
    p: PositionalBuilder, x: PositionalArray, *, approximate: str = "none"
) -> PositionalArray:
    if approximate == "none":
        return p.elementwise(lambda t: 0.5 * t * (1 + call("erf", t * 2**-0.5)), x)
    c = 2 * (2 / math.pi) ** 0.5  # 0.5 * (1 + tanh(u)) is the sigmoid of 2u
    return p.elementwise(lambda t: t / (1 + call("exp", -c * (t + 0.044715 * t**3))), x)


@pointwise("leaky_relu")
def _leaky_relu(p: PositionalBuilder, x: PositionalArray, slope: float = 0.01) -> PositionalArray:
    return p.elementwise(lambda t: call("where", t > 0, t, slope * t), x)


@pointwise("elu", cheap=False)
def _elu(
    p: PositionalBuilder, x: PositionalArray, alpha: float = 1, scale: float = 1, inner: float = 1
) -> PositionalArray:
    def made(t: Expr) -> Expr:
        return scale * call("where", t > 0, t, alpha * call("expm1", inner * t))

    return p.elementwise(made, x)


@pointwise("silu", cheap=False)
def _silu(p: PositionalBuilder, x: PositionalArray) -> PositionalArray:
    sigmoid = p.elementwise(lambda t: 1 / (1 + call("exp", -t)), x)
    return p.elementwise(function("mul"), x, sigmoid)


@pointwise("softplus", cheap=False)
def _softplus(
    p: PositionalBuilder, x: PositionalArray, beta: float = 1, threshold: float = 20
) -> PositionalArray:
    def made(t: Expr) -> Expr:
        scaled = t * beta
        soft = call("log1p", call("exp", call("minimum", scaled, threshold))) / beta
        return call("where", scaled > threshold, t, soft)

    return p.elementwise(made, x)


@pointwise("mish", cheap=False)
def _mish(p: PositionalBuilder, x: PositionalArray) -> PositionalArray:
    return p.elementwise(lambda t, s: t * call("tanh", s), x, _softplus(p, x))


@pointwise("log_sigmoid_forward", cheap=False)
def _log_sigmoid(
    p: PositionalBuilder, x: PositionalArray
) -> tuple[PositionalArray, PositionalArray]:
    """The logarithm of the sigmoid, and the exponential that its gradient needs."""
    small = p.elementwise(lambda t: call("exp", -call("abs", t)), x)
    made = p.elementwise(lambda t, e: call("minimum", t, 0) - call("log1p", e), x, small)
    return made, small


@pointwise("xlogy.Tensor", cheap=False)
def _xlogy(p: PositionalBuilder, x: Operand, y: Operand) -> PositionalArray:
    def made(a: Expr, b: Expr) -> Expr:
        zero = call("eq", a, 0) & ~call("isnan", b)
        return call("where", zero, 0.0, a * call("log", b))

    return p.elementwise(made, x, y)


@pointwise("_to_copy", "prims.convert_element_type", "to.dtype")
def _cast(
    p: PositionalBuilder, x: PositionalArray, dtype: torch.dtype | None = None, **_: object
) -> PositionalArray:
    if dtype is None or dtype not in DTYPES:
        return x
    return converted(p, x, DTYPES[dtype])


def converted(p: PositionalBuilder, x: PositionalArray, wanted: DType) -> PositionalArray:
    """`x` as another dtype, as kernels compute it: 16-bit floats as float32, not rounded here."""
    if wanted in (DType.float16, DType.bfloat16):
        wanted = DType.float32
    if x.dtype is wanted:
        return x
    if wanted is DType.bool_:
        return p.elementwise(_truth, x, dtype=DType.bool_)
    return p.elementwise(lambda t: cast_expr(t, wanted), x, dtype=wanted)
