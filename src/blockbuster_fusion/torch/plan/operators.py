"""What operators do: whether they only compute, and what the size of their result depends on."""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from blockbuster_fusion.torch.plan.steps import OperatorStep, Slot, as_array, with_strides

_DATA_DEPENDENT = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
INDEX = torch.ops.aten.index.Tensor
"""What it gives depends in size on what is in its indices only where these are masks."""
SIZES = (
    torch.ops.aten.sym_size.int,
    torch.ops.aten.sym_stride.int,
    torch.ops.aten.sym_numel.default,
)
"""What depends on how an array lies in memory, and not on what is in it."""
_PURE = (
    *(torch.Tensor.reshape, torch.Tensor.permute, torch.Tensor.unsqueeze, torch.Tensor.expand),
    *(torch.Tensor.clone, as_array, with_strides),
)


def depends_on_data(function: Any) -> bool:
    """Whether the size of what a function gives depends on numbers in what it is given."""
    tags = getattr(function, "tags", ())
    return function is not INDEX and any(tag in _DATA_DEPENDENT for tag in tags)


def picks_by_mask(step: OperatorStep, values: Sequence[Any]) -> bool:
    if step.function is not INDEX:
        return False
    indices = [values[x.number] for x in step.arguments[1] if isinstance(x, Slot)]
    return any(x.dtype in (torch.bool, torch.uint8) for x in indices)


def is_pure(function: Any) -> bool:
    """Whether a function does nothing but give its result, which is the same every time."""
    if isinstance(function, OpOverload):
        is_random = torch.Tag.nondeterministic_seeded in function.tags
        return function.namespace == "aten" and not function._schema.is_mutable and not is_random
    return function in _PURE or getattr(operator, getattr(function, "__name__", ""), 0) is function


PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
"""What tensors are that are nothing but numbers in memory."""


def is_plain(x: torch.Tensor) -> bool:
    """Whether a tensor is nothing but numbers, in the memory of the CPU."""
    return type(x) in PLAIN and x.layout is torch.strided and x.device.type == "cpu"
