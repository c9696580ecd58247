"""Properties of operators: purity, and results whose size depends on data."""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from blockbuster_fusion.torch.capture.nodes import is_pure_operator
from blockbuster_fusion.torch.plan.steps import OperatorStep, Slot, as_tensor, with_strides

_DATA_DEPENDENT = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
INDEX = torch.ops.aten.index.Tensor
"""The size of its result depends on the contents of its indices only if these are masks."""
SIZES = (
    torch.ops.aten.sym_size.int,
    torch.ops.aten.sym_stride.int,
    torch.ops.aten.sym_numel.default,
)
"""Operators that depend on the shape and strides of an array, and not on its contents."""
_PURE = (
    *(torch.Tensor.reshape, torch.Tensor.permute, torch.Tensor.unsqueeze, torch.Tensor.expand),
    *(torch.Tensor.clone, torch.Tensor.contiguous, as_tensor, with_strides),
)


def depends_on_data(function: Any) -> bool:
    """True if the size of a function's result depends on the contents of its arguments."""
    tags = getattr(function, "tags", ())
    return function is not INDEX and any(tag in _DATA_DEPENDENT for tag in tags)


def picks_by_mask(step: OperatorStep, values: Sequence[Any]) -> bool:
    """True if a step picks elements by a mask, or by what may be one."""
    if step.function is not INDEX:
        return False
    indices = [values[x.number] for x in step.arguments[1] if isinstance(x, Slot)]
    return any(getattr(x, "dtype", torch.bool) in (torch.bool, torch.uint8) for x in indices)


def is_pure(function: Any) -> bool:
    """True if a function has no effects, and the same result every time."""
    if isinstance(function, OpOverload):
        return is_pure_operator(function)
    return function in _PURE or getattr(operator, getattr(function, "__name__", ""), 0) is function


PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
"""The types of tensors without behaviour of their own."""


def is_plain(x: torch.Tensor) -> bool:
    """True if a tensor is a plain strided array in memory."""
    is_there = x.device.type in ("cpu", "cuda")
    return type(x) in PLAIN and x.layout is torch.strided and is_there
