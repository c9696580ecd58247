"""Operators of PyTorch as the functions that its own Python code calls, which cost the host less.

An operator of `torch.ops` looks up its arguments by a schema at run time, about a microsecond in
each call. The functions below were compiled for theirs, and call the same operator.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

aten = torch.ops.aten

BINDINGS: dict[Any, Callable[..., Any]] = {
    aten.linear.default: torch._C._nn.linear,
    aten.mm.default: torch.mm,
    aten.bmm.default: torch.bmm,
    aten.addmm.default: torch.addmm,
    aten.cat.default: torch.cat,
    aten.cumsum.default: torch.cumsum,
    aten.embedding.default: torch.embedding,
    aten.gather.default: torch.gather,
    aten.convolution.default: torch.convolution,
    aten.copy_.default: torch.Tensor.copy_,
    aten.clone.default: torch.clone,
    aten.mul.Tensor: torch.mul,
    aten._softmax.default: torch._softmax,
}
"""Each takes the arguments of its operator, in the same order."""


def fastest(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that does the same as an operator, at the least cost of a call."""
    if function in BINDINGS:
        return BINDINGS[function]
    return function._op if isinstance(function, OpOverload) else function
