"""Products of matrices that PyTorch runs, as calls from C in a tape of a GPU."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from blockbuster_fusion.nest.shapes import contiguous
from blockbuster_fusion.runtime.triton.library_calls import LibraryCall, Operand, library_call
from blockbuster_fusion.torch.plan.placement import Base, Placement, has_driver
from blockbuster_fusion.torch.plan.sized import SizedLength, fixed_shape
from blockbuster_fusion.torch.plan.steps import OperatorStep, Slot

if TYPE_CHECKING:
    from blockbuster_fusion.torch.plan.assembling import Assembly

aten = torch.ops.aten
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MATRICES = {aten.mm.default: 0, aten.addmm.default: 1, aten.bmm.default: 0, aten.baddbmm.default: 1}
"""The place of the first factor among the operands."""
CALLED_FROM_C = frozenset({*MATRICES, aten.linear.default})
"""The operators that C calls between kernels."""

Found = tuple[LibraryCall, tuple[SizedLength, ...], list[tuple[Base, int]]]
"""A call, the shape of its result, and the bases and offsets of its operands."""


def product_of(step: OperatorStep, made: torch.Tensor, assembly: "Assembly") -> Found | None:
    """The call that a step is; None if it is none.

    `made` is the result, without its contents. The call writes it into memory of the tape.
    """
    is_layer = step.function is aten.linear.default
    if step.function not in CALLED_FROM_C or not has_driver(assembly.device):
        return None
    if made.dtype not in DTYPES or not made.is_contiguous() or not made.numel() or step.options:
        return None
    slots = [x.number for x in step.arguments if isinstance(x, Slot)]
    if len(slots) != sum(x is not None for x in step.arguments):
        return None
    found = [x for slot in slots if (x := known_placement(assembly, slot)) is not None]
    if len(found) != len(slots) or any(x.dtype is not made.dtype for x in found):
        return None
    made_of = _layer(found, assembly) if is_layer else _matrices(step.function, found)
    if made_of is None:
        return None
    function, shape, flat, found = made_of
    numbers = assembly.layouts.values
    operands = [operand_of(x, numbers) for x in found]
    result = operand_of(Placement(found[0].base, 0, flat, None, made.dtype), numbers)
    call = library_call(function, (result, *operands), assembly.device)
    return None if call is None else (call, shape, [(x.base, x.offset) for x in found])


def known_placement(assembly: "Assembly", slot: int) -> Placement | None:
    """The placement of an operand, unless it is a tensor that has another one in each call."""
    is_opaque = not assembly.is_dense(slot) and slot in assembly.varying
    found = assembly.placements.get(slot)
    return None if found is None or is_opaque or 0 in found.shape else found


def _matrices(
    function: Any, found: Sequence[Placement]
) -> tuple[Any, tuple[SizedLength, ...], tuple[SizedLength, ...], list[Placement]]:
    left, right = found[MATRICES[function] :]
    shape = (*left.shape[:-1], right.shape[-1])
    return function, shape, shape, [*found]


def _layer(
    found: Sequence[Placement], assembly: "Assembly"
) -> tuple[Any, tuple[SizedLength, ...], tuple[SizedLength, ...], list[Placement]] | None:
    """A linear layer as a product of two matrices, if its input lies as one."""
    x, weight, *bias = found
    if weight.stride is None or len(weight.shape) != 2:
        return None
    wide, columns = fixed_shape(weight.shape)
    if len(x.shape) != 2:
        is_dense = not x.order
        if x.stride is not None:
            is_dense = x.stride == contiguous(fixed_shape(x.shape))
        if not is_dense:
            return None
        rows = _product(x.shape[:-1], assembly)
        stride = None if x.stride is None else (columns, 1)
        flat = Placement(x.base, x.offset, (rows, columns), stride, x.dtype)
    else:
        rows, flat = x.shape[0], x
    turned = Placement(
        weight.base, weight.offset, (columns, wide), weight.stride[::-1], weight.dtype
    )
    function = aten.addmm.default if bias else aten.mm.default
    return function, (*x.shape[:-1], wide), (rows, wide), [*bias, flat, turned]


def _product(shape: Sequence[SizedLength], assembly: "Assembly") -> SizedLength:
    if any(isinstance(n, Slot) for n in shape):
        return shape[0] if len(shape) == 1 else assembly.sizes.number(math.prod, [*shape])
    return math.prod(fixed_shape(shape))


def operand_of(x: Placement, numbers: Sequence[int]) -> Operand:
    """An operand of a call from C; `numbers` are the values in slots in one call."""
    now = tuple(numbers[n.number] if isinstance(n, Slot) else n for n in x.shape)
    slots = tuple(n.number if isinstance(n, Slot) else None for n in x.shape)
    given = slots if any(slot is not None for slot in slots) else ()
    return Operand(now, x.stride, x.dtype, given, x.order)
