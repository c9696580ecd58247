"""Adds steps to an assembly as calls of PyTorch's operators from C, in a tape of a GPU."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload

from blockbuster_fusion.torch.plan.named_calls import (
    COPYING,
    UPDATING,
    allocating_call,
    call_by_name,
)
from blockbuster_fusion.torch.plan.placement import Base, Launched
from blockbuster_fusion.torch.plan.products import product_of
from blockbuster_fusion.torch.plan.steps import OperatorStep, Slot

if TYPE_CHECKING:
    from blockbuster_fusion.torch.plan.assembling import Assembly

aten = torch.ops.aten


def add(assembly: "Assembly", step: OperatorStep, made: Any, *, is_varied: bool) -> bool:
    """Adds a step as a call from C; False if it cannot be one.

    `made` is its result, without contents. `is_varied` if it depends on the sizes of a call.
    """
    if isinstance(made, torch.Tensor) and (
        _product(assembly, step, made) or _update(assembly, step)
    ):
        return True
    if is_varied:
        return False
    is_dense = isinstance(made, torch.Tensor) and made.is_contiguous()
    if is_dense and (_joined(assembly, step, made) or _copied(assembly, step, made)):
        return True
    return _called(assembly, step, made)


def add_write(assembly: "Assembly", operator: OpOverload, arguments: Sequence[Any]) -> bool:
    """Adds an operator that writes into an operand; False if it cannot be a call from C."""
    found = call_by_name(operator, arguments, assembly)
    if found is not None:
        assembly.actions.append(found)
    return found is not None


def _product(assembly: "Assembly", step: OperatorStep, made: torch.Tensor) -> bool:
    """Adds a product of matrices."""
    found = product_of(step, made, assembly)
    if found is not None:
        call, shape, places = found
        base = Base(None, shape, made.dtype)
        if base.is_sized:
            assembly.dense(step.output, base, shape)
        else:
            assembly.note_placement(step.output, base)
        assembly.actions.append(Launched(step.name, call, ((base, 0), *places)))
    return found is not None


def _update(assembly: "Assembly", step: OperatorStep) -> bool:
    """Adds an update of an array, which is the result."""
    if step.options or step.function not in UPDATING:
        return False
    assert isinstance(step.function, OpOverload)
    if not add_write(assembly, step.function, step.arguments):
        return False
    (target, *_), slot = step.arguments, step.output
    assembly.placements[slot] = assembly.placements[target.number]
    assembly.varying |= {slot} if target.number in assembly.varying else set()
    assembly.views[slot] = OperatorStep(step.name, _itself, (target,), {}, slot)
    return True


def _itself(x: torch.Tensor) -> torch.Tensor:
    return x


def _joined(assembly: "Assembly", step: OperatorStep, made: torch.Tensor) -> bool:
    """Adds a concatenation, into memory of the tape."""
    if step.options or step.function is not aten.cat.default:
        return False
    assembly.note_placement(step.output, Base(None, tuple(made.shape), made.dtype))
    dim = step.arguments[1] if len(step.arguments) > 1 else 0
    return add_write(assembly, aten.cat.out, (step.arguments[0], dim, Slot(step.output)))


def _copied(assembly: "Assembly", step: OperatorStep, made: torch.Tensor) -> bool:
    """Adds a copy into memory of the tape, if a step is no more than that."""
    if step.function not in COPYING or not isinstance(step.arguments[0], Slot):
        return False
    x = assembly.layouts.tensor(step.arguments[0].number)
    if x is None or assembly.layouts.devices.get(step.output) != assembly.device:
        return False
    base, into = Base(None, tuple(made.shape), made.dtype), assembly.layouts.new_slot()
    assembly.layouts.allocate(into, x.shape, made.dtype, assembly.device)
    assembly.note_placement(into, base)
    if not add_write(assembly, aten.copy_.default, (Slot(into), step.arguments[0])):
        return False
    assembly.note_placement(step.output, base)
    return True


def _called(assembly: "Assembly", step: OperatorStep, made: Any) -> bool:
    """Adds an operator that has PyTorch allocate its results."""
    found = allocating_call(step, made, assembly)
    if found is None:
        return False
    action, results = found
    bases = {x.number: Base(x.key, is_called=True) for x in results}
    assembly.actions.append(replace(action, makes=tuple(bases.values())))
    if isinstance(made, tuple):
        assembly.elements |= {(Slot(step.output), n): base for n, base in bases.items()}
    else:
        assembly.note_result(step.output, bases[0])
    return True
