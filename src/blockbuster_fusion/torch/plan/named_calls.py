"""PyTorch's operators that C calls by name, in a tape of a GPU.

Some write into known memory. The others have PyTorch allocate their results, which C keeps until
nothing reads them any more.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from operator import getitem
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload

from blockbuster_fusion.runtime.triton.library_calls import At, Result, named_call
from blockbuster_fusion.torch.plan.placement import Launched, has_driver
from blockbuster_fusion.torch.plan.products import known_placement, operand_of
from blockbuster_fusion.torch.plan.steps import OperatorStep, PlanStep, Slot, as_tensor

if TYPE_CHECKING:
    from blockbuster_fusion.torch.plan.assembling import Assembly

aten = torch.ops.aten
UPDATING = frozenset({aten.copy_.default, aten.index_put_.default})
"""Operators that give back their first operand, which they have written."""
COPYING = frozenset(
    {
        *(aten.clone.default, aten._to_copy.default, as_tensor),
        *(torch.Tensor.clone, torch.Tensor.contiguous, torch.Tensor.reshape),
    }
)
"""Functions whose result, if it is no view, has the elements of the first argument in order."""
COMPOSITES = frozenset({"scaled_dot_product_attention", "_fused_rms_norm"})
"""Operators that PyTorch computes by others, and that never give back an operand."""

Picked = Mapping[int, Mapping[int, int]]
"""For slots of several results: the slots that single results are put into, by their numbers."""


def call_by_name(
    operator: OpOverload,
    arguments: Sequence[Any],
    assembly: "Assembly",
    results: tuple[Result, ...] = (),
) -> Launched | None:
    """The call of an operator; None if C cannot make it. `results` are those that are kept."""
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
    call = named_call(operator, given, operands, assembly.device, results)
    places = tuple((x.base, x.offset) for x in found)
    return None if call is None else Launched(str(operator), call, places)


def allocating_call(
    step: OperatorStep, made: Any, assembly: "Assembly"
) -> tuple[Launched, tuple[Result, ...]] | None:
    """The call of an operator that has PyTorch allocate its results, with those that are kept.

    None if C cannot make it. `made` are all results, without their contents.
    """
    function = step.function
    if not isinstance(function, OpOverload) or not makes_arrays(function):
        return None
    results = _results(step, made, assembly)
    rest = function._schema.arguments[len(step.arguments) :]
    given = [*step.arguments, *(step.options.get(x.name, x.default_value) for x in rest)]
    found = call_by_name(function, given, assembly, results) if results else None
    return None if found is None else (found, results)


def _results(step: OperatorStep, made: Any, assembly: "Assembly") -> tuple[Result, ...]:
    """The results of a step that are read later; () if one has no memory that is known."""
    several = made if isinstance(made, tuple) else (made,)
    slots = {0: step.output} if several is not made else assembly.picked.get(step.output, {})
    kept = [several[number] for number in slots]
    if any(not isinstance(x, torch.Tensor) or not x.numel() for x in kept):
        return ()
    if assembly.layouts.devices.get(step.output) != assembly.device:
        return ()
    return tuple(
        Result(number, tuple(x.shape), assembly.seen.get(slot, tuple(x.stride())), x.dtype, slot)
        for (number, slot), x in zip(slots.items(), kept, strict=True)
    )


@cache
def makes_arrays(operator: OpOverload) -> bool:
    """True if the results of an operator are arrays of their own, and it writes to no operand."""
    schema, name = operator._schema, operator._schema.name.removeprefix("aten::")
    if operator.namespace != "aten" or schema.is_mutable:
        return False
    if any(x.alias_info is not None for x in schema.returns):
        return False
    key = "CompositeImplicitAutograd"
    full = f"{schema.name}.{schema.overload_name}".removesuffix(".")
    is_composite = torch._C._dispatch_has_kernel_for_dispatch_key(full, key)
    return name in COMPOSITES or not is_composite


def picked_results(steps: Sequence[PlanStep], outputs: Sequence[Any]) -> Picked:
    """The single results that steps take from several, unless others read all of them."""
    found: dict[int, dict[int, int]] = {}
    whole = {x.number for x in outputs if isinstance(x, Slot)}
    for step in steps:
        if isinstance(step, OperatorStep) and step.function is getitem:
            (several, number), slot = step.arguments, step.output
            if isinstance(several, Slot) and isinstance(number, int):
                found.setdefault(several.number, {}).setdefault(number, slot)
                continue
        whole.update(step.reads)
    return {slot: picks for slot, picks in found.items() if slot not in whole}
