"""Reductions along some positions: sums, softmax, norms."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from blockbuster_fusion.array.axes import ONE, Size
from blockbuster_fusion.array.positional import PositionalBuilder
from blockbuster_fusion.array.records import Operand, PositionalArray
from blockbuster_fusion.errors import NotExpressible
from blockbuster_fusion.ir.combiner import ADD, MAX, MIN, MUL, Combiner
from blockbuster_fusion.ir.expr import Expr, call, const
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.torch.table.pointwise import converted, function
from blockbuster_fusion.torch.table.row import DTYPES, EmitFunction, pointwise, reduction


def axes_of(x: PositionalArray, dims: int | Sequence[int] | None) -> list[int]:
    """Positions as PyTorch gives them: one, several, from the end, or none for all."""
    rank = len(x.sizes)
    if dims is None or dims == []:
        return [*range(rank)]
    given = [dims] if isinstance(dims, int) else dims
    return [d % rank for d in given] if rank else []


def _summed_as(
    p: PositionalBuilder, x: PositionalArray, dtype: torch.dtype | None
) -> PositionalArray:
    """`x` in the dtype of a sum."""
    if dtype is None:
        return x
    if dtype not in DTYPES:
        raise NotExpressible(what=f"a sum in {dtype}")
    return converted(p, x, DTYPES[dtype])


def _reduced(combiner: Combiner) -> EmitFunction:
    def entry(
        p: PositionalBuilder,
        x: PositionalArray,
        dim: Any = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
    ) -> PositionalArray:
        x = _summed_as(p, x, dtype)
        return p.reduce(combiner, x, axes_of(x, dim), keep=keepdim)

    return entry


reduction("sum")(_reduced(ADD))
reduction("prod")(_reduced(MUL))
reduction("amax")(_reduced(MAX))
reduction("amin")(_reduced(MIN))


@reduction("any", cheap=True)
def _any(
    p: PositionalBuilder, x: PositionalArray, dim: Any = None, keepdim: bool = False
) -> PositionalArray:
    truth = converted(p, x, DType.bool_)
    return p.reduce(MAX, truth, [] if dim == [] else axes_of(x, dim), keep=keepdim)


@reduction("all", cheap=True)
def _all(
    p: PositionalBuilder, x: PositionalArray, dim: Any = None, keepdim: bool = False
) -> PositionalArray:
    truth = converted(p, x, DType.bool_)
    return p.reduce(MIN, truth, [] if dim == [] else axes_of(x, dim), keep=keepdim)


@reduction("mean")
def _mean(
    p: PositionalBuilder,
    x: PositionalArray,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> PositionalArray:
    x, at = _summed_as(p, x, dtype), axes_of(x, dim)
    return average(p, x, at, keep=keepdim)


def average(
    p: PositionalBuilder, x: PositionalArray, at: Sequence[int], *, keep: bool
) -> PositionalArray:
    """The mean; along an axis that `x` lacks, that of equal elements, it is `x` itself."""
    factors = p.present(p.as_array(x), at)
    total = p.reduce(ADD, x, at, keep=keep, distinct=True)
    return p.elementwise(lambda t: t / p.size(factors), total) if factors else total


@reduction("_softmax", "softmax")
def _softmax(p: PositionalBuilder, x: PositionalArray, dim: int, *_: object) -> PositionalArray:
    at = axes_of(x, dim)
    if not p.present(p.as_array(x), at):
        return _of_equals(p, x, at, lambda n: 1 / n)
    e = p.elementwise(function("exp"), x)
    total = p.reduce(ADD, e, at, keep=True)
    return p.elementwise(lambda a, b: a * b, e, p.elementwise(lambda t: 1 / t, total))


@reduction("_log_softmax", "log_softmax")
def _log_softmax(p: PositionalBuilder, x: PositionalArray, dim: int, *_: object) -> PositionalArray:
    at = axes_of(x, dim)
    if not p.present(p.as_array(x), at):
        return _of_equals(p, x, at, lambda n: -call("log", n))
    total = p.reduce(ADD, p.elementwise(function("exp"), x), at, keep=True)
    return p.elementwise(lambda a, b: a - call("log", b), x, total)


def _of_equals(
    p: PositionalBuilder, x: PositionalArray, at: Sequence[int], share: Callable[[Expr], Expr]
) -> PositionalArray:
    """A function of the number of elements of a softmax, all of them equal.

    `x - x` is 0, or NaN where softmax is: of an infinity, and of NaN.
    """
    factors = p.along(x, at)
    if not factors:
        return p.elementwise(lambda t: (t - t) + share(const(1.0)), x)
    return p.elementwise(lambda t: (t - t) + share(p.size(factors)), x)


def _normalised(
    p: PositionalBuilder, x: PositionalArray, at: Sequence[int], eps: Operand
) -> tuple[PositionalArray, PositionalArray, PositionalArray]:
    """`(x - mean) / sqrt(variance + eps)`, the mean and the inverse deviation."""

    def summed(t: PositionalArray) -> PositionalArray:
        return p.reduce(ADD, t, at, keep=True, distinct=True)

    factors = p.present(p.as_array(x), at)
    if not factors:  # every element is the mean
        shifted = p.elementwise(lambda t: t - t, x)
        scale = p.elementwise(lambda t, e: (t + e) ** -0.5, summed(shifted), eps)
        return p.elementwise(lambda a, b: a * b, shifted, scale), summed(x), scale
    minus = p.elementwise(lambda t: -t / p.size(factors), summed(x))
    shifted = p.elementwise(lambda a, b: a + b, x, minus)
    squares = summed(p.elementwise(lambda t: t**2, shifted))
    scale = p.elementwise(lambda s, e: (s / p.size(factors) + e) ** -0.5, squares, eps)
    made = p.elementwise(lambda a, b: a * b, shifted, scale)
    return made, p.elementwise(lambda t: -t, minus), scale


@reduction("native_layer_norm")
def _native_layer_norm(
    p: PositionalBuilder,
    x: PositionalArray,
    shape: Sequence[int],
    weight: PositionalArray | None,
    bias: PositionalArray | None,
    eps: Operand,
) -> tuple[PositionalArray, PositionalArray, PositionalArray]:
    rank = len(x.sizes)
    made, mean, scale = _normalised(p, x, range(rank - len(shape), rank), eps)
    if weight is not None:
        made = p.elementwise(lambda a, b: a * b, made, weight)
    if bias is not None:
        made = p.elementwise(lambda a, b: a + b, made, bias)
    return made, mean, scale


@reduction("layer_norm")
def _layer_norm(
    p: PositionalBuilder,
    x: PositionalArray,
    shape: Sequence[int],
    weight: PositionalArray | None = None,
    bias: PositionalArray | None = None,
    eps: Operand = 1e-5,
    *_: object,
) -> PositionalArray:
    return _native_layer_norm(p, x, shape, weight, bias, eps)[0]


@reduction("rms_norm")
def _rms_norm(
    p: PositionalBuilder,
    x: PositionalArray,
    shape: Sequence[int],
    weight: PositionalArray | None = None,
    eps: Operand | None = None,
) -> PositionalArray:
    return _fused_rms_norm(p, x, shape, weight, eps)[0]


@reduction("_fused_rms_norm")
def _fused_rms_norm(
    p: PositionalBuilder,
    x: PositionalArray,
    shape: Sequence[int],
    weight: PositionalArray | None,
    eps: Operand | None,
) -> tuple[PositionalArray, PositionalArray]:
    rank = len(x.sizes)
    at = range(rank - len(shape), rank)
    factors = p.present(p.as_array(x), at)
    squares = p.reduce(ADD, p.elementwise(lambda t: t**2, x), at, keep=True, distinct=True)
    wide = torch.float64 if x.dtype is DType.float64 else torch.float32
    small = torch.finfo(wide).eps if eps is None else eps
    scale = p.elementwise(lambda s, e: (s / p.size(factors) + e) ** -0.5, squares, small)
    made = p.elementwise(lambda a, b: a * b, x, scale)
    if weight is not None:
        made = p.elementwise(lambda a, b: a * b, made, weight)
    return made, scale


@reduction("native_group_norm")
def _native_group_norm(
    p: PositionalBuilder,
    x: PositionalArray,
    weight: PositionalArray | None,
    bias: PositionalArray | None,
    batch: Size,
    channels: Size,
    places: Size,
    groups: int,
    eps: Operand,
) -> tuple[PositionalArray, PositionalArray, PositionalArray]:
    """Each group of channels is normalised by itself, at all places together."""
    each = x.sizes[1].divided_by(Size(groups))
    if each is None:
        raise NotExpressible(what="groups of an unknown number of channels")
    parted = p.view(x, [x.sizes[0], Size(groups), each, *x.sizes[2:]])
    at = range(2, len(parted.sizes))
    made, mean, scale = _normalised(p, parted, at, eps)
    made = _by_channels(p, p.view(made, x.sizes), weight, bias)
    return made, p.drop(mean, at), p.drop(scale, at)


@pointwise("_native_batch_norm_legit_no_training", cheap=False)
def _batch_norm(
    p: PositionalBuilder,
    x: PositionalArray,
    weight: PositionalArray | None,
    bias: PositionalArray | None,
    mean: PositionalArray,
    variance: PositionalArray,
    momentum: float,
    eps: Operand,
) -> tuple[PositionalArray]:
    """Statistics are given. The other two results of PyTorch's operator are empty."""
    shape = [x.sizes[1], *(ONE for _ in x.sizes[2:])]
    scale = p.elementwise(lambda v, e: (v + e) ** -0.5, variance, eps)
    mean, scale = p.view(mean, shape), p.view(scale, shape)
    made = p.elementwise(lambda a, m, s: (a - m) * s, x, mean, scale)
    return (_by_channels(p, made, weight, bias),)


def _by_channels(
    p: PositionalBuilder,
    x: PositionalArray,
    weight: PositionalArray | None,
    bias: PositionalArray | None,
) -> PositionalArray:
    """`x` times a weight and plus a bias of its channel, the second position."""
    shape = [x.sizes[1], *(ONE for _ in x.sizes[2:])]
    if weight is not None:
        x = p.elementwise(lambda a, b: a * b, x, p.view(weight, shape))
    if bias is not None:
        x = p.elementwise(lambda a, b: a + b, x, p.view(bias, shape))
    return x


def _variance(
    p: PositionalBuilder, x: PositionalArray, dim: Any, less: float, keepdim: bool
) -> tuple[PositionalArray, PositionalArray]:
    at = axes_of(x, dim)
    factors = p.along(x, at)
    mean = average(p, x, at, keep=True)
    if p.present(p.as_array(x), at):
        shifted = p.elementwise(lambda a, b: a - b, x, mean)
    else:  # every element is the mean, also where a compiler contracts products and differences
        shifted = p.elementwise(lambda t: t - t, x)
    total = p.reduce(ADD, p.elementwise(lambda t: t**2, shifted), at, keep=True)

    def corrected(t: Expr, rest: Expr) -> Expr:
        """Subtracts from the squares the error of the rounded mean."""
        count = p.size(factors)
        freedom = call("maximum", count - less, 0.0)  # as PyTorch: never negative
        return (t - rest**2 / count) / freedom

    if not factors:
        variance = p.elementwise(lambda t: t / max(1.0 - less, 0.0), total)
    else:
        variance = p.elementwise(corrected, total, p.reduce(ADD, shifted, at, keep=True))
    if keepdim:
        return variance, mean
    return p.drop(variance, at), p.drop(mean, at)


@reduction("var_mean.correction")
def _var_mean(
    p: PositionalBuilder,
    x: PositionalArray,
    dim: Any = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[PositionalArray, PositionalArray]:
    return _variance(p, x, dim, 1 if correction is None else correction, keepdim)


@reduction("var_mean.dim")
def _var_mean_dim(
    p: PositionalBuilder, x: PositionalArray, dim: Any, unbiased: bool = True, keepdim: bool = False
) -> tuple[PositionalArray, PositionalArray]:
    return _variance(p, x, dim, int(unbiased), keepdim)


@reduction("var_mean.default")
def _var_mean_all(
    p: PositionalBuilder, x: PositionalArray, unbiased: bool = True
) -> tuple[PositionalArray, PositionalArray]:
    return _variance(p, x, None, int(unbiased), keepdim=False)


def _first(entry: EmitFunction) -> EmitFunction:
    return lambda *arguments, **options: entry(*arguments, **options)[0]


reduction("var.correction")(_first(_var_mean))
reduction("var.dim")(_first(_var_mean_dim))
reduction("var.default")(_first(_var_mean_all))
