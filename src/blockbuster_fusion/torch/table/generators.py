"""Generators: arrays that are made from numbers."""

from collections.abc import Sequence
from typing import Any

import torch

from blockbuster_fusion.array.axes import Size
from blockbuster_fusion.array.positional import PositionalBuilder
from blockbuster_fusion.array.records import Operand, PositionalArray
from blockbuster_fusion.errors import NotExpressible
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.torch.table.pointwise import converted, is_number
from blockbuster_fusion.torch.table.row import DTYPES, generator


@generator("full")
def _full(
    p: PositionalBuilder, sizes: Sequence[Size], value: Any, **options: Any
) -> PositionalArray:
    return p.constant(_number(value), sizes, _dtype_of(value, options))


@generator("full_like")
def _full_like(
    p: PositionalBuilder, sizes: Sequence[Size], value: Any, dtype: torch.dtype
) -> PositionalArray:
    return p.constant(_number(value), sizes, computed(dtype))


@generator("scalar_tensor")
def _scalar_tensor(p: PositionalBuilder, value: Any, **options: Any) -> PositionalArray:
    return p.constant(_number(value), (), _dtype_of(value, options))


@generator("zeros", "ones", "zeros_like", "ones_like", "empty")
def _unknown(p: PositionalBuilder, *_: object, **__: object) -> PositionalArray:
    raise NotExpressible(what="an array of no known value")


@generator("arange")
def _arange(p: PositionalBuilder, *bounds: Any, **options: Any) -> PositionalArray:
    raise NotExpressible(what="an arange of no known length")


def counted(
    p: PositionalBuilder, extent: Size, start: Operand, step: Operand, dtype: DType
) -> PositionalArray:
    """The array start, start + step, …"""
    made = p.counting(extent)
    if not is_number(step, 1):
        made = p.elementwise(lambda t, s: t * s, made, step)
    if not is_number(start, 0):
        made = p.elementwise(lambda t, s: t + s, made, start)
    return converted(p, made, dtype)


def _number(value: Any) -> int | float | bool:
    if isinstance(value, PositionalArray | Size):
        raise NotExpressible(what="a constant that is known only when the model runs")
    return value  # type: ignore[no-any-return]


def computed(dtype: torch.dtype) -> DType:
    """The dtype that kernels compute with for a dtype in memory."""
    made = DTYPES[dtype]
    return DType.float32 if made in (DType.float16, DType.bfloat16) else made


def _dtype_of(value: Any, options: dict[str, Any]) -> DType:
    wanted = options.get("dtype")
    if wanted is not None:
        return computed(wanted)
    if isinstance(value, bool):
        return DType.bool_
    return DType.int64 if isinstance(value, int) else DType.float32
