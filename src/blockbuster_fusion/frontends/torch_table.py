"""The operator table for PyTorch: what each ATen operator is over positions.

An entry is a function of the program in the making and of the operator's own arguments, with a
`Value` where the operator has a tensor. To add an operator, register one function:

    @pointwise("hardswish")
    def _hardswish(p: Positional, x: Value) -> Value:
        return p.elementwise(lambda t: t * call("minimum", call("maximum", t + 3, 0), 6) / 6, x)

What an entry cannot express, for the arguments that it is given, it refuses by NotExpressible.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from blockbuster_fusion.array.axes import ONE, Size, product
from blockbuster_fusion.array.positional import Positional
from blockbuster_fusion.array.records import Counting, Operand, SizeOf, Value
from blockbuster_fusion.errors import NotExpressible
from blockbuster_fusion.ir.combiner import ADD, MAX, MIN, MUL, Combiner
from blockbuster_fusion.ir.expr import Expr, call, const
from blockbuster_fusion.ir.expr import cast as cast_expr
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.select.parts import Kind

Entry = Callable[..., Any]
E = TypeVar("E", bound=Entry)

DTYPES = {getattr(torch, str(dtype)): dtype for dtype in DType}
"""The dtypes that kernels compute with or store."""


@dataclass(frozen=True)
class Row:
    """A row of the table: how an operator is expressed, and what kind of operator it is."""

    kind: Kind
    emit: Entry
    cheap: bool = False
    """Whether computing it again costs less than storing it."""


TABLE: dict[str, Row] = {}
"""The rows, by the operator's name without its overload: `aten.add`."""


def row_for(target: object) -> Row | None:
    """The row of an operator of a graph."""
    if not isinstance(target, torch._ops.OpOverload):
        return None
    space, name = target.namespace, target._schema.name.split("::")[1]
    exact = TABLE.get(f"{space}.{name}.{target._overloadname}")
    usual = TABLE.get(f"{space}.{name}") if target._overloadname in OVERLOADS else None
    return exact or usual


OVERLOADS = frozenset(
    {
        *("default", "self", "int", "other", "sizes", "memory_format", "correction"),
        *("Tensor", "Scalar", "Tensor_Scalar", "Tensor_Tensor", "Scalar_Tensor", "Scalar_self"),
        *("Tensor_mode", "Scalar_mode", "ScalarSelf", "ScalarOther", "start", "start_step"),
        *("dim", "dims", "dim_int", "dim_IntList"),
    }
)
"""Overloads that differ in the kinds of their arguments alone: `view.dtype` is another operator."""


def _register(kind: Kind, names: Sequence[str], cheap: bool = False) -> Callable[[E], E]:
    def register(entry: E) -> E:
        for name in names:
            full = name if name.startswith(("aten.", "prims.")) else f"aten.{name}"
            TABLE[full] = Row(kind, entry, cheap)
        return entry

    return register


def pointwise(*names: str, cheap: bool = True) -> Callable[[E], E]:
    """Registers an operator that computes every element by itself."""
    return _register(Kind.POINTWISE, names, cheap)


def reduction(*names: str, cheap: bool = False) -> Callable[[E], E]:
    """Registers an operator that combines along some positions."""
    return _register(Kind.REDUCTION, names, cheap)


def contraction(*names: str) -> Callable[[E], E]:
    """Registers an operator that sums products."""
    return _register(Kind.CONTRACTION, names)


def view(*names: str) -> Callable[[E], E]:
    """Registers an operator that only shows an array otherwise."""
    return _register(Kind.VIEW, names, cheap=True)


def generator(*names: str) -> Callable[[E], E]:
    """Registers an operator that makes an array from numbers."""
    return _register(Kind.GENERATOR, names, cheap=True)


# ------------------------------------------------------------------- one element at a time


def _simple(names: str, make: Callable[..., Expr], cheap: bool = True) -> None:
    def entry(p: Positional, *operands: Operand) -> Value:
        return p.elementwise(make, *operands)

    for name in names.split():
        pointwise(name, cheap=cheap)(entry)


def _function(name: str) -> Callable[..., Expr]:
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
    _simple(_cheap, _function(_cheap))
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
    _simple(_name, _function(_name), cheap=False)
for _theirs, _ours in (
    ("asin", "arcsin"), ("acos", "arccos"), ("atan", "arctan"), ("asinh", "arcsinh"),
    ("acosh", "arccosh"), ("atanh", "arctanh"), ("atan2", "arctan2"),
):  # fmt: skip
    _simple(_theirs, _function(_ours), cheap=False)
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _simple(_name, _function(_name))

_simple("reciprocal", lambda t: 1 / t)
_simple("rsqrt", lambda t: t**-0.5)
_simple("sigmoid", lambda t: 1 / (1 + call("exp", -t)), cheap=False)
_simple("silu", lambda t: t / (1 + call("exp", -t)), cheap=False)
_simple("relu", lambda t: call("maximum", t, 0))
_simple("relu6", lambda t: call("minimum", call("maximum", t, 0), 6))
_simple("square", lambda t: t**2)
_simple("hardswish", lambda t: t * call("minimum", call("maximum", t + 3, 0), 6) / 6)
_simple("hardsigmoid", lambda t: call("minimum", call("maximum", t + 3, 0), 6) / 6)
_simple("logical_not", lambda t: ~_truth(t))
_simple("isfinite", lambda t: ~(call("isnan", t) | call("isinf", t)))


def _truth(t: Expr) -> Expr:
    return call("ne", t, 0)


def _is_bool(x: Operand) -> bool:
    return isinstance(x, bool) or (isinstance(x, Value) and x.dtype is DType.bool_)


def _logical(name: str) -> Entry:
    def entry(p: Positional, x: Operand, y: Operand) -> Value:
        def made(a: Expr, b: Expr) -> Expr:
            left = a if _is_bool(x) else _truth(a)
            right = b if _is_bool(y) else _truth(b)
            return call(name, left, right)

        return p.elementwise(made, x, y)

    return entry


for _word, _ours in (("and", "and_"), ("or", "or_"), ("xor", "ne")):
    pointwise(f"logical_{_word}")(_logical(_ours))


def _bitwise(name: str) -> Entry:
    def entry(p: Positional, *operands: Operand) -> Value:
        if not all(map(_is_bool, operands)):
            raise NotExpressible(what="bit arithmetic on whole numbers")
        return p.elementwise(_function(name), *operands)

    return entry


for _word, _ours in (("and", "and_"), ("or", "or_"), ("xor", "ne"), ("not", "not_")):
    pointwise(f"bitwise_{_word}")(_bitwise(_ours))


def _is_number(x: object, wanted: float) -> bool:
    if isinstance(x, Value):
        return x.constant is const(wanted) or x.constant is const(int(wanted))
    return isinstance(x, int | float) and not isinstance(x, bool) and x == wanted


def _same(p: Positional, x: Value, y: Operand) -> bool:
    """Whether an operator with `y` as its neutral element gives `x` as it is."""
    return not isinstance(y, Value) or (y.dtype is x.dtype and all(s == ONE for s in y.sizes))


@pointwise("add")
def _add(p: Positional, x: Operand, y: Operand, *, alpha: float = 1) -> Value:
    if isinstance(x, Value) and _is_number(y, 0) and _same(p, x, y):
        return x
    if _is_bool(x) and _is_bool(y):
        return p.elementwise(_function("or_"), x, y)
    return p.elementwise(lambda a, b: a + (b if alpha == 1 else alpha * b), x, y)


@pointwise("sub")
def _sub(p: Positional, x: Operand, y: Operand, *, alpha: float = 1) -> Value:
    if isinstance(x, Value) and _is_number(y, 0) and _same(p, x, y):
        return x
    return p.elementwise(lambda a, b: a - (b if alpha == 1 else alpha * b), x, y)


@pointwise("rsub")
def _rsub(p: Positional, x: Operand, y: Operand, alpha: float = 1) -> Value:
    return _sub(p, y, x, alpha=alpha)


@pointwise("mul")
def _mul(p: Positional, x: Operand, y: Operand) -> Value:
    for one, other in ((x, y), (y, x)):
        if isinstance(other, Value) and _is_number(one, 1) and _same(p, other, one):
            return other
    if _is_bool(x) and _is_bool(y):
        return p.elementwise(_function("and_"), x, y)
    if isinstance(x, Value) and x == y:
        return p.elementwise(lambda a: a**2, x)  # one form for a square, however it is written
    return p.elementwise(lambda a, b: a * b, x, y)


@pointwise("div")
def _div(p: Positional, x: Operand, y: Operand, *, rounding_mode: str | None = None) -> Value:
    if rounding_mode == "floor":
        return p.elementwise(lambda a, b: a // b, x, y)
    if rounding_mode == "trunc":
        raise NotExpressible(what="division rounded towards zero")
    if _is_narrower(y, x):
        y = p.elementwise(lambda t: 1 / t, y)  # one inverse for a row: a scale, as in softmax
        return p.elementwise(lambda a, b: a * b, x, y)
    return p.elementwise(lambda a, b: a / b, x, y)


def _is_narrower(y: Operand, x: Operand) -> bool:
    """Whether one array of floats is broadcast along another."""
    if not isinstance(x, Value) or not isinstance(y, Value) or y.constant is not None:
        return False
    if not x.dtype.is_float or not y.dtype.is_float or len(y.sizes) > len(x.sizes):
        return False
    wide = x.sizes[len(x.sizes) - len(y.sizes) :]
    fits = all(a in (b, ONE) for a, b in zip(y.sizes, wide, strict=True))
    return fits and product(y.sizes) != product(x.sizes)


@pointwise("floor_divide")
def _floor_divide(p: Positional, x: Operand, y: Operand) -> Value:
    return p.elementwise(lambda a, b: a // b, x, y)


@pointwise("remainder")
def _remainder(p: Positional, x: Operand, y: Operand) -> Value:
    return p.elementwise(lambda a, b: a % b, x, y)


@pointwise("pow", cheap=False)
def _pow(p: Positional, x: Operand, y: Operand) -> Value:
    if isinstance(x, Value) and not x.dtype.is_float and not _is_number(y, 2):
        raise NotExpressible(what="a power of whole numbers")
    return p.elementwise(lambda a, b: a**b, x, y)


@pointwise("clamp")
def _clamp(
    p: Positional, x: Value, low: Operand | None = None, high: Operand | None = None
) -> Value:
    for name, bound in (("maximum", low), ("minimum", high)):
        if bound is not None:
            x = p.elementwise(_function(name), x, bound)
    return x


@pointwise("hardtanh")
def _hardtanh(p: Positional, x: Value, low: Operand = -1, high: Operand = 1) -> Value:
    return _clamp(p, x, low, high)


@pointwise("clamp_min")
def _clamp_min(p: Positional, x: Value, low: Operand) -> Value:
    return _clamp(p, x, low)


@pointwise("clamp_max")
def _clamp_max(p: Positional, x: Value, high: Operand) -> Value:
    return _clamp(p, x, None, high)


@pointwise("sign")
def _sign(p: Positional, x: Value) -> Value:
    if not x.dtype.is_float:
        return p.elementwise(_function("sign"), x)
    return p.elementwise(lambda t: call("where", call("isnan", t), 0, call("sign", t)), x)


@pointwise("where")
def _where(p: Positional, condition: Value, x: Operand, y: Operand) -> Value:
    return p.elementwise(_function("where"), condition, x, y)


@pointwise("masked_fill")
def _masked_fill(p: Positional, x: Value, mask: Value, value: Operand) -> Value:
    return p.elementwise(_function("where"), mask, value, x)


@pointwise("gelu", cheap=False)
def _gelu(p: Positional, x: Value, *, approximate: str = "none") -> Value:
    if approximate == "none":
        return p.elementwise(lambda t: 0.5 * t * (1 + call("erf", t * 2**-0.5)), x)
    c = (2 / math.pi) ** 0.5
    return p.elementwise(lambda t: 0.5 * t * (1 + call("tanh", c * (t + 0.044715 * t**3))), x)


@pointwise("leaky_relu")
def _leaky_relu(p: Positional, x: Value, slope: float = 0.01) -> Value:
    return p.elementwise(lambda t: call("where", t > 0, t, slope * t), x)


@pointwise("elu", cheap=False)
def _elu(p: Positional, x: Value, alpha: float = 1, scale: float = 1, inner: float = 1) -> Value:
    def made(t: Expr) -> Expr:
        return scale * call("where", t > 0, t, alpha * call("expm1", inner * t))

    return p.elementwise(made, x)


@pointwise("softplus", cheap=False)
def _softplus(p: Positional, x: Value, beta: float = 1, threshold: float = 20) -> Value:
    def made(t: Expr) -> Expr:
        scaled = t * beta
        soft = call("log1p", call("exp", call("minimum", scaled, threshold))) / beta
        return call("where", scaled > threshold, t, soft)

    return p.elementwise(made, x)


# ------------------------------------------------------------------- dtypes


@pointwise("_to_copy", "prims.convert_element_type", "to.dtype")
def _cast(p: Positional, x: Value, dtype: torch.dtype | None = None, **_: object) -> Value:
    if dtype is None or dtype not in DTYPES:
        return x
    return converted(p, x, DTYPES[dtype])


def converted(p: Positional, x: Value, wanted: DType) -> Value:
    """`x` as another dtype, as it is computed: 16-bit floats as float32, rounded by nobody here."""
    if wanted in (DType.float16, DType.bfloat16):
        wanted = DType.float32
    if x.dtype is wanted:
        return x
    if wanted is DType.bool_:
        return p.elementwise(_truth, x, dtype=DType.bool_)
    return p.elementwise(lambda t: cast_expr(t, wanted), x, dtype=wanted)


# ------------------------------------------------------------------- along positions


def axes_of(x: Value, dims: int | Sequence[int] | None) -> list[int]:
    """Positions as PyTorch gives them: one, several, from the end, or none for all."""
    rank = len(x.sizes)
    if dims is None or dims == []:
        return [*range(rank)]
    given = [dims] if isinstance(dims, int) else dims
    return [d % rank for d in given] if rank else []


def _summed_as(p: Positional, x: Value, dtype: torch.dtype | None) -> Value:
    """`x` in the dtype that a sum is asked for in."""
    if dtype is None:
        return x
    if dtype not in DTYPES:
        raise NotExpressible(what=f"a sum in {dtype}")
    return converted(p, x, DTYPES[dtype])


def _reduced(combiner: Combiner) -> Entry:
    def entry(
        p: Positional,
        x: Value,
        dim: Any = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
    ) -> Value:
        x = _summed_as(p, x, dtype)
        if x.dtype is DType.bool_ and combiner in (ADD, MUL):
            x = converted(p, x, DType.int64)
        return p.reduce(combiner, x, axes_of(x, dim), keep=keepdim)

    return entry


reduction("sum")(_reduced(ADD))
reduction("prod")(_reduced(MUL))
reduction("amax")(_reduced(MAX))
reduction("amin")(_reduced(MIN))


@reduction("any", cheap=True)
def _any(p: Positional, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    truth = converted(p, x, DType.bool_)
    return p.reduce(MAX, truth, [] if dim == [] else axes_of(x, dim), keep=keepdim)


@reduction("all", cheap=True)
def _all(p: Positional, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    truth = converted(p, x, DType.bool_)
    return p.reduce(MIN, truth, [] if dim == [] else axes_of(x, dim), keep=keepdim)


@reduction("mean")
def _mean(
    p: Positional,
    x: Value,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Value:
    x, at = _summed_as(p, x, dtype), axes_of(x, dim)
    factors = [f for i in at for f in x.positions[i]]
    total = p.reduce(ADD, x, at, keep=keepdim)
    return p.sized(lambda size_of, t: t / size_of(factors), total) if factors else total


@reduction("_softmax", "softmax")
def _softmax(p: Positional, x: Value, dim: int, *_: object) -> Value:
    e = p.elementwise(_function("exp"), x)
    total = p.reduce(ADD, e, axes_of(x, dim), keep=True)
    return p.elementwise(lambda a, b: a * b, e, p.elementwise(lambda t: 1 / t, total))


@reduction("_log_softmax", "log_softmax")
def _log_softmax(p: Positional, x: Value, dim: int, *_: object) -> Value:
    total = p.reduce(ADD, p.elementwise(_function("exp"), x), axes_of(x, dim), keep=True)
    return p.elementwise(lambda a, b: a - call("log", b), x, total)


def _normalised(
    p: Positional, x: Value, at: Sequence[int], eps: Operand
) -> tuple[Value, Value, Value]:
    """`(x - mean) / sqrt(variance + eps)`, the mean and the inverse deviation."""
    factors = [f for i in at for f in x.positions[i]]
    minus = p.sized(lambda size_of, t: -t / size_of(factors), p.reduce(ADD, x, at, keep=True))
    squares = p.reduce(ADD, p.elementwise(lambda t: t**2, x), at, keep=True)

    def inverse(size_of: SizeOf, s: Expr, m: Expr, e: Expr) -> Expr:
        return (s / size_of(factors) - m**2 + e) ** -0.5

    scale = p.sized(inverse, squares, minus, eps)
    shifted = p.elementwise(lambda a, b: a + b, x, minus)
    made = p.elementwise(lambda a, b: a * b, shifted, scale)
    return made, p.elementwise(lambda t: -t, minus), scale


@reduction("native_layer_norm")
def _native_layer_norm(
    p: Positional,
    x: Value,
    shape: Sequence[int],
    weight: Value | None,
    bias: Value | None,
    eps: Operand,
) -> tuple[Value, Value, Value]:
    rank = len(x.sizes)
    made, mean, scale = _normalised(p, x, range(rank - len(shape), rank), eps)
    if weight is not None:
        made = p.elementwise(lambda a, b: a * b, made, weight)
    if bias is not None:
        made = p.elementwise(lambda a, b: a + b, made, bias)
    return made, mean, scale


@reduction("layer_norm")
def _layer_norm(
    p: Positional,
    x: Value,
    shape: Sequence[int],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: Operand = 1e-5,
    *_: object,
) -> Value:
    return _native_layer_norm(p, x, shape, weight, bias, eps)[0]


@reduction("rms_norm")
def _rms_norm(
    p: Positional,
    x: Value,
    shape: Sequence[int],
    weight: Value | None = None,
    eps: Operand | None = None,
) -> Value:
    rank = len(x.sizes)
    at = range(rank - len(shape), rank)
    factors = [f for i in at for f in x.positions[i]]
    squares = p.reduce(ADD, p.elementwise(lambda t: t**2, x), at, keep=True)
    small = torch.finfo(torch.float32).eps if eps is None else eps
    scale = p.sized(lambda size_of, s, e: (s / size_of(factors) + e) ** -0.5, squares, small)
    made = p.elementwise(lambda a, b: a * b, x, scale)
    return made if weight is None else p.elementwise(lambda a, b: a * b, made, weight)


def _variance(p: Positional, x: Value, dim: Any, less: float, keepdim: bool) -> tuple[Value, Value]:
    at = axes_of(x, dim)
    factors = [f for i in at for f in x.positions[i]]
    mean = p.sized(lambda size_of, t: t / size_of(factors), p.reduce(ADD, x, at, keep=True))
    shifted = p.elementwise(lambda a, b: (a - b) ** 2, x, mean)
    total = p.reduce(ADD, shifted, at, keep=True)
    variance = p.sized(lambda size_of, t: t / (size_of(factors) - less), total)
    if keepdim:
        return variance, mean
    return p.drop(variance, at), p.drop(mean, at)


@reduction("var_mean.correction")
def _var_mean(
    p: Positional,
    x: Value,
    dim: Any = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[Value, Value]:
    return _variance(p, x, dim, 1 if correction is None else correction, keepdim)


@reduction("var_mean.dim")
def _var_mean_dim(
    p: Positional, x: Value, dim: Any, unbiased: bool = True, keepdim: bool = False
) -> tuple[Value, Value]:
    return _variance(p, x, dim, int(unbiased), keepdim)


@reduction("var_mean.default")
def _var_mean_all(p: Positional, x: Value, unbiased: bool = True) -> tuple[Value, Value]:
    return _variance(p, x, None, int(unbiased), keepdim=False)


def _first(entry: Entry) -> Entry:
    return lambda *arguments, **options: entry(*arguments, **options)[0]


reduction("var.correction")(_first(_var_mean))
reduction("var.dim")(_first(_var_mean_dim))
reduction("var.default")(_first(_var_mean_all))


# ------------------------------------------------------------------- sums of products


@contraction("mm")
def _mm(p: Positional, x: Value, y: Value) -> Value:
    return p.contract(x, y, "mk", "kn", "mn")


@contraction("bmm")
def _bmm(p: Positional, x: Value, y: Value) -> Value:
    return p.contract(x, y, "bmk", "bkn", "bmn")


@contraction("addmm")
def _addmm(
    p: Positional, bias: Value, x: Value, y: Value, *, beta: float = 1, alpha: float = 1
) -> Value:
    made = _mm(p, x, y)
    if beta == 0:  # what is not added need not be a number
        return made if alpha == 1 else p.elementwise(lambda a: alpha * a, made)
    return p.elementwise(
        lambda a, b: (a if alpha == 1 else alpha * a) + (b if beta == 1 else beta * b), made, bias
    )


@contraction("baddbmm")
def _baddbmm(
    p: Positional, bias: Value, x: Value, y: Value, *, beta: float = 1, alpha: float = 1
) -> Value:
    made = _bmm(p, x, y)
    if beta == 0:
        return p.elementwise(lambda a: alpha * a, made)
    return p.elementwise(
        lambda a, b: (a if alpha == 1 else alpha * a) + (b if beta == 1 else beta * b), made, bias
    )


@contraction("mv")
def _mv(p: Positional, x: Value, y: Value) -> Value:
    return p.contract(x, y, "mk", "k", "m")


@contraction("dot")
def _dot(p: Positional, x: Value, y: Value) -> Value:
    return p.contract(x, y, "k", "k", "")


@contraction("linear")
def _linear(p: Positional, x: Value, weight: Value, bias: Value | None = None) -> Value:
    batch = "abcdefgh"[: len(x.sizes) - 1]
    made = p.contract(x, weight, f"{batch}k", "nk", f"{batch}n")
    return made if bias is None else p.elementwise(lambda a, b: a + b, made, bias)


@contraction("matmul")
def _matmul(p: Positional, x: Value, y: Value) -> Value:
    if len(x.sizes) < 2 or len(y.sizes) < 2:
        raise NotExpressible(what="a product with a vector")
    rank = max(len(x.sizes), len(y.sizes)) - 2
    letters = "abcdefgh"[:rank]
    own = letters[rank - (len(x.sizes) - 2) :]
    other = letters[rank - (len(y.sizes) - 2) :]
    return p.contract(x, y, f"{own}mk", f"{other}kn", f"{letters}mn")


@contraction("convolution")
def _convolution(
    p: Positional,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Value:
    """A convolution of patches that do not overlap: each patch is multiplied by the weights."""
    window = weight.sizes[2:]
    steps = tuple(Size(s) for s in [*stride] * (len(window) // len(stride)))
    is_plain = groups == 1 and not transposed and not any(padding)
    if not is_plain or steps != window or any(d != 1 for d in dilation):
        raise NotExpressible(what="a convolution whose windows overlap")
    shape = [*x.sizes[:2]]
    for extent, step in zip(x.sizes[2:], steps, strict=True):
        count = extent.divided_by(step)
        if count is None:
            raise NotExpressible(what="a convolution that leaves out a part of its operand")
        shape += [count, step]
    places, inner = "hwd"[: len(window)], "ijk"[: len(window)]
    split = "".join(a + b for a, b in zip(places, inner, strict=True))
    made = p.contract(p.view(x, shape), weight, f"bc{split}", f"oc{inner}", f"bo{places}")
    if bias is None:
        return made
    shaped = p.view(bias, [bias.sizes[0], *(ONE for _ in window)])
    return p.elementwise(lambda a, b: a + b, made, shaped)


# ------------------------------------------------------------------- views


@view("view", "_unsafe_view", "reshape")
def _view(p: Positional, x: Value, shape: Sequence[Size]) -> Value:
    return p.view(x, shape)


@view("permute")
def _permute(p: Positional, x: Value, order: Sequence[int]) -> Value:
    return p.permute(x, [i % len(x.sizes) for i in order])


@view("transpose")
def _transpose(p: Positional, x: Value, a: int, b: int) -> Value:
    order = [*range(len(x.sizes))]
    order[a], order[b] = order[b], order[a]
    return p.permute(x, order)


@view("t")
def _t(p: Positional, x: Value) -> Value:
    return p.permute(x, [*range(len(x.sizes))][::-1])


@view("unsqueeze")
def _unsqueeze(p: Positional, x: Value, at: int) -> Value:
    return p.insert(x, at % (len(x.sizes) + 1))


@view("squeeze")
def _squeeze(p: Positional, x: Value, dims: Any = None) -> Value:
    at = [i for i in axes_of(x, dims) if x.sizes[i] == ONE]
    return p.drop(x, at)


@view("expand")
def _expand(p: Positional, x: Value, sizes: Sequence[Size], **_: object) -> Value:
    return p.expand(x, sizes)


@view("repeat")
def _repeat(p: Positional, x: Value, times: Sequence[int]) -> Value:
    """A copy behind the other along some positions: a broadcast axis before each."""
    if not all(isinstance(t, int) for t in times):
        raise NotExpressible(what="a number of copies that is known only when the model runs")
    sizes = (ONE,) * (len(times) - len(x.sizes)) + x.sizes
    x = p.view(x, sizes)
    for at in reversed(range(len(times))):
        x = p.insert(x, at)
        wanted = [Size(times[at]) if i == at else s for i, s in enumerate(x.sizes)]
        x = p.expand(x, wanted)
        merged = [*x.sizes[:at], x.sizes[at] * x.sizes[at + 1], *x.sizes[at + 2 :]]
        x = p.view(x, merged)
    return x


@view("clone", "alias", "detach", "lift_fresh_copy", "contiguous", "lift_fresh")
def _same_array(p: Positional, x: Value, **_: object) -> Value:
    return x


@view("slice", "select", "split", "split_with_sizes", "unbind", "narrow", "as_strided", "diagonal")
def _indexed(p: Positional, x: Value, *arguments: object, **_: object) -> Value:
    raise NotExpressible(what="a part of an array that is computed in the same kernel")


@pointwise("cat")
def _cat(p: Positional, values: Sequence[Value], dim: int = 0) -> Value:
    return p.stack(values, dim % len(values[0].sizes))  # pieces of one length; others are joined


@view("index")
def _index(p: Positional, x: Value, indices: Sequence[Value | None]) -> Value:
    """`x` at positions that are counted: only another way to write a broadcast."""
    if any(i is None for i in indices) or len(indices) != len(x.sizes):
        raise NotExpressible(what="an index that is data")
    rank = max(len(i.sizes) for i in indices if i is not None)
    positions: list[Any] = [()] * rank
    sizes: list[Size] = [ONE] * rank
    for at, index in enumerate(indices):
        assert index is not None
        wide = [i for i, s in enumerate(index.sizes) if s != ONE]
        if x.sizes[at] == ONE and not wide and _is_number(index, 0):
            continue
        if index.constant is not None or len(wide) != 1 or index.sizes[wide[0]] != x.sizes[at]:
            raise NotExpressible(what="an index that is data")
        if not isinstance(p.records[index.record].made, Counting):
            raise NotExpressible(what="an index that is data")
        place = wide[0] + rank - len(index.sizes)
        if sizes[place] != ONE:
            raise NotExpressible(what="an index along a diagonal")
        x = p.fitted(index, wide[0], x, at)
        positions[place], sizes[place] = x.positions[at], x.sizes[at]
    return Value(tuple(positions), tuple(sizes), x.dtype, x.record, x.constant)


@pointwise("embedding", cheap=False)
def _embedding(p: Positional, table: Value, index: Value, *_: object, **__: object) -> Value:
    return p.take(table, index, 0)


@pointwise("index_select", cheap=False)
def _index_select(p: Positional, x: Value, dim: int, index: Value) -> Value:
    return p.take(x, index, dim % len(x.sizes))


@pointwise("gather", cheap=False)
def _gather(p: Positional, x: Value, dim: int, index: Value, **_: object) -> Value:
    return p.take_along(x, index, dim % len(x.sizes))


def taken(p: Positional, x: Value, indices: Sequence[Value | None]) -> Value:
    """`x` indexed by one array of numbers, which may count from the end."""
    ((at, index),) = ((i, v) for i, v in enumerate(indices) if v is not None)
    factors = x.positions[at]

    def from_start(size_of: Any, i: Expr) -> Expr:
        return call("where", i < 0, i + cast_expr(size_of(factors), DType.int64), i)

    return p.take(x, p.sized(from_start, index, dtype=DType.int64), at)


# ------------------------------------------------------------------- arrays from numbers


@generator("full")
def _full(p: Positional, sizes: Sequence[Size], value: Any, **options: Any) -> Value:
    return p.constant(_number(value), sizes, _dtype_of(value, options))


@generator("full_like")
def _full_like(p: Positional, sizes: Sequence[Size], value: Any, dtype: torch.dtype) -> Value:
    return p.constant(_number(value), sizes, computed(dtype))


@generator("scalar_tensor")
def _scalar_tensor(p: Positional, value: Any, **options: Any) -> Value:
    return p.constant(_number(value), (), _dtype_of(value, options))


@generator("zeros", "ones", "zeros_like", "ones_like", "empty")
def _unknown(p: Positional, *_: object, **__: object) -> Value:
    raise NotExpressible(what="an array of no known value")


@generator("arange")
def _arange(p: Positional, *bounds: Any, **options: Any) -> Value:
    raise NotExpressible(what="an arange of no known length")


def counted(p: Positional, extent: Size, start: Operand, step: Operand, dtype: DType) -> Value:
    """start, start + step, …"""
    made = p.counting(extent)
    if not _is_number(step, 1):
        made = p.elementwise(lambda t, s: t * s, made, step)
    if not _is_number(start, 0):
        made = p.elementwise(lambda t, s: t + s, made, start)
    return converted(p, made, dtype)


def _number(value: Any) -> int | float | bool:
    if isinstance(value, Value | Size):
        raise NotExpressible(what="a constant that is known only when the model runs")
    return value  # type: ignore[no-any-return]


def computed(dtype: torch.dtype) -> DType:
    """As what a dtype is computed with."""
    made = DTYPES[dtype]
    return DType.float32 if made in (DType.float16, DType.bfloat16) else made


def _dtype_of(value: Any, options: dict[str, Any]) -> DType:
    wanted = options.get("dtype")
    if wanted is not None:
        return computed(wanted)
    if isinstance(value, bool):
        return DType.bool_
    return DType.int64 if isinstance(value, int) else DType.float32
