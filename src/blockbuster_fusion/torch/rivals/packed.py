"""Packs the constant weights of linear layers that PyTorch runs on a CPU.

Its linear layer arranges a weight in blocks in each call, or reads it as it lies. Of a weight that
is constant there may be a copy that is arranged once, as `mkldnn` wants it. The copy takes as much
memory as the weight, so it counts only where the layer was measured to be faster with it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes

from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.capture.nodes import tensor_of
from blockbuster_fusion.torch.freeze import Constants
from blockbuster_fusion.torch.rivals.composites import Calling
from blockbuster_fusion.torch.rivals.linears import Linear, found_linears
from blockbuster_fusion.torch.rivals.tuning import distance

DTYPES = (torch.float32, torch.bfloat16)
LAYER = torch.ops.mkldnn._linear_pointwise.default
PLAIN: tuple[Any, ...] = ("none", [], "")
"""The arguments of a layer that nothing follows."""


@dataclass(frozen=True)
class PackedLinear(Linear):
    """A linear layer whose weight is packed once."""

    constants: Constants | None = None
    rows: int | None = None
    """The number of rows in a call, for which the weight is arranged; None if it changes."""

    least_gain = 0.03

    @property
    def operator(self) -> torch._ops.OpOverload:
        return LAYER

    @property
    def form(self) -> tuple[object, ...]:
        return ("packed", self.rows)

    def computed(self, calling: Calling, *operands: Any) -> Any:
        return calling(self.operator, (*operands, *PLAIN))

    def prepared(self, *operands: Any) -> tuple[Any, ...]:
        x, weight, bias = operands
        return x, packed(weight, self.rows), bias

    def placed(self, graph: Graph, *operands: Any) -> tuple[Any, ...]:
        x, weight, bias = operands
        assert self.constants is not None
        return x, self.constants.derived(graph, weight, packed, self.rows), bias


def packed(weight: torch.Tensor, rows: int | None) -> torch.Tensor:
    """A weight as PyTorch's linear layer on a CPU wants it."""
    made: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), rows)
    return made


def found_packed(analysis: Analysis, constants: Constants | None) -> Iterator[PackedLinear]:
    """The linear layers of a graph whose weights may be packed."""
    if constants is None or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return
    for found in found_linears(analysis):
        if constants.holds(found.weight) and _may_be_packed(found):
            rows = tensor_of(found.members[0]).shape[0]
            yield PackedLinear(
                found.result,
                found.members,
                found.x,
                found.weight,
                found.bias,
                constants,
                rows if isinstance(rows, int) else None,
            )


def _may_be_packed(found: Linear) -> bool:
    """True if PyTorch has a packed form for a layer: on a CPU, of floats that it computes with."""
    operands = [tensor_of(n) for n in found.operands if isinstance(n, Node)]
    dtype = operands[0].dtype
    is_plain = all(x.dtype is dtype and x.device.type == "cpu" and x.numel() for x in operands)
    if not is_plain or dtype not in DTYPES or operands[0].shape[-1] != operands[1].shape[1]:
        return False
    if dtype is torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    return is_exact(operands[1].shape[1], dtype)


@cache
def is_exact(length: int, dtype: torch.dtype) -> bool:
    """True if sums of some length by a packed layer have at most twice the error of the usual one.

    The errors are those of one product of random numbers.
    """
    with _disable_current_modes(), torch.no_grad():
        numbers = torch.Generator().manual_seed(0)
        x, weight = (torch.randn(64, length, generator=numbers).to(dtype) for _ in range(2))
        exact = [functional.linear(x.double(), weight.double())]
        usual = [functional.linear(x, weight).double()]
        found = [LAYER(x, packed(weight, len(x)), None, *PLAIN).double()]
        bar = 2 * distance(usual, exact) + 4 * torch.finfo(dtype).eps
        return distance(found, exact) <= bar
