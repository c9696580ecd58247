"""PyTorch's operators that write into known memory, as calls from C in a tape of a GPU."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload

from blockbuster_fusion.runtime.triton.library_calls import At, named_call
from blockbuster_fusion.torch.plan.placement import Launched, has_driver
from blockbuster_fusion.torch.plan.products import known_placement, operand_of
from blockbuster_fusion.torch.plan.steps import Slot

if TYPE_CHECKING:
    from blockbuster_fusion.torch.plan.assembling import Assembly

aten = torch.ops.aten
UPDATING = frozenset({aten.copy_.default, aten.index_put_.default})
"""Operators that give back their first operand, which they have written."""


def write_of(
    operator: OpOverload, arguments: Sequence[Any], assembly: "Assembly"
) -> Launched | None:
    """The call of an operator that writes into an operand; None if C cannot call it."""
    if not has_driver(assembly.device):
        return None
    numbers: dict[int, At] = {}

    def numbered(x: Any) -> Any:
        if isinstance(x, Slot):
            return numbers.setdefault(x.number, At(len(numbers)))
        return [*map(numbered, x)] if isinstance(x, list | tuple) else x

    given = [*map(numbered, arguments)]
    found = [x for slot in numbers if (x := known_placement(assembly, slot)) is not None]
    if len(found) != len(numbers):
        return None
    operands = tuple(operand_of(x, assembly.layouts.values) for x in found)
    call = named_call(operator, given, operands, assembly.device)
    places = tuple((x.base, x.offset) for x in found)
    return None if call is None else Launched(str(operator), call, places)
