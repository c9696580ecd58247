"""Products of matrices that PyTorch runs, as calls from C in a tape of a GPU."""

import math
from collections.abc import Mapping

import torch

from blockbuster_fusion.nest.shapes import contiguous
from blockbuster_fusion.runtime.library_calls import LibraryCall, Operand, library_call
from blockbuster_fusion.torch.plan.placement import Base, Placement, has_driver
from blockbuster_fusion.torch.plan.steps import OperatorStep, Slot

aten = torch.ops.aten
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
Places = list[tuple[Base, int]]


def product_of(
    step: OperatorStep,
    made: torch.Tensor,
    placements: Mapping[int, Placement],
    device: torch.device,
) -> tuple[LibraryCall, Places] | None:
    """The call that a step is, with the bases and offsets of its operands; None if it is none.

    `made` is the result, which the call writes into memory of the tape.
    """
    if not has_driver(device) or made.dtype not in DTYPES or step.options or not made.numel():
        return None
    slots = [x.number for x in step.arguments if isinstance(x, Slot)]
    if len(slots) != sum(x is not None for x in step.arguments) or not made.is_contiguous():
        return None
    given = [placements.get(slot) for slot in slots]
    found = [x for x in given if x is not None and x.dtype is made.dtype and 0 not in x.shape]
    if len(found) != len(slots):
        return None
    result = Operand(tuple(made.shape), tuple(made.stride()), made.dtype)
    operands = [Operand(x.shape, x.stride, x.dtype) for x in found]
    function = step.function
    if function is aten.linear.default:
        layer = linear(result, *operands)
        if layer is None:
            return None
        function, result, operands = layer
        found = [found[2], found[0], found[1]] if len(found) == 3 else found
    call = library_call(function, (result, *operands), device)
    return None if call is None else (call, [(x.base, x.offset) for x in found])


def linear(
    result: Operand, x: Operand, weight: Operand, bias: Operand | None = None
) -> tuple[torch._ops.OpOverload, Operand, list[Operand]] | None:
    """A linear layer as a product of two matrices, if its input lies as one."""
    columns = x.shape[-1]
    rows = math.prod(x.shape[:-1])
    if len(x.shape) != 2 and x.strides != contiguous(x.shape):
        return None
    flat = x if len(x.shape) == 2 else Operand((rows, columns), (columns, 1), x.dtype)
    turned = Operand(weight.shape[::-1], weight.strides[::-1], weight.dtype)
    wide = weight.shape[0]
    made = Operand((rows, wide), (wide, 1), result.dtype)
    if bias is None:
        return aten.mm.default, made, [flat, turned]
    return aten.addmm.default, made, [bias, flat, turned]
