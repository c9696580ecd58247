"""Values of a call without their contents, so that the results of steps are known before they run.

A tensor is one of the meta device, with the shape, strides and dtype that it has in calls like
this one. Two share a storage if they share memory in the call. Views and copies lie alike on all
devices. The results of PyTorch's other operators are those of its fake tensors.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses import FakeTensor, FakeTensorMode

from blockbuster_fusion.messages import log
from blockbuster_fusion.torch.capture.results import SAME_STRIDES
from blockbuster_fusion.torch.plan.operator_properties import is_plain
from blockbuster_fusion.torch.plan.steps import OperatorStep, Slot

META = torch.device("meta")


class Unknown:
    """A value of which nothing is known before the call."""


UNKNOWN = Unknown()


class Layouts:
    """The values in the slots of a call, and the devices of tensors."""

    def __init__(self, given: Sequence[Any], room: int) -> None:
        """`given` are the inputs, and `room` is the number of other values."""
        self.values: list[Any] = [*map(layout_of, given), *[None] * room]
        tensors = ((slot, x) for slot, x in enumerate(given) if isinstance(x, torch.Tensor))
        self.devices = {slot: x.device for slot, x in tensors}
        self.fakes = FakeTensorMode()

    def new_slot(self, value: Any = None) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def tensor(self, slot: int) -> torch.Tensor | None:
        """The tensor in a slot, if there is one."""
        found = self.values[slot]
        return found if isinstance(found, torch.Tensor) else None

    def allocate(
        self, slot: int, shape: Sequence[int], dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Puts a dense array of its own into a slot."""
        self.values[slot] = made = torch.empty(tuple(shape), dtype=dtype, device=META)
        self.devices[slot] = device
        return made

    def evaluate(self, step: OperatorStep, strides: tuple[int, ...] | None = None) -> Any:
        """The result of a step, which is put into its slot; `strides` are its own, if given."""
        slots = [x.number for x in _leaves(_given(step)) if isinstance(x, Slot)]
        made: Any = UNKNOWN
        if not any(self.values[slot] is UNKNOWN for slot in slots):
            try:
                is_view = not isinstance(step.function, OpOverload) or step.function.is_view
                made = self.viewed(step, slots) if is_view else self.faked(step)
            except RuntimeError as error:  # so PyTorch tells that it has no fake result
                log.info("the result of %s is not known before it runs: %s", step.name, error)
        if strides is not None and isinstance(made, torch.Tensor):
            made = torch.empty_strided(made.shape, strides, dtype=made.dtype, device=META)
        self.values[step.output] = made
        return made

    def viewed(self, step: OperatorStep, slots: Sequence[int]) -> Any:
        """The result of a step on tensors without memory."""
        made = evaluated(step.function, step, self.values.__getitem__, META)
        explicit = [x for x in _given(step) if isinstance(x, torch.device)]
        tensors = [x.device for x in _leaves([made]) if isinstance(x, torch.Tensor)]
        found = [*explicit, *(x for x in tensors if x != META)]
        found += [self.devices[slot] for slot in slots if slot in self.devices]
        if found:
            self.devices[step.output] = found[0]
        return made if all(x == META for x in tensors) else layout_of(made)

    def faked(self, step: OperatorStep) -> Any:
        """The result of an operator on PyTorch's fake tensors."""
        alike = SAME_STRIDES.get(step.function)
        with self.fakes:
            made = evaluated(alike or step.function, step, self.fake, with_options=alike is None)
        tensors = [x for x in _leaves([made]) if isinstance(x, torch.Tensor)]
        if tensors:
            self.devices[step.output] = tensors[0].device
        return layout_of(made)

    def fake(self, slot: int) -> Any:
        """The value in a slot as a fake one."""

        def faked(x: Any) -> Any:
            if isinstance(x, torch.Tensor):
                return FakeTensor(self.fakes, x, self.devices[slot])
            return type(x)(map(faked, x)) if isinstance(x, list | tuple) else x

        return faked(self.values[slot])


def layout_of(x: Any) -> Any:
    """A value without its contents."""
    if isinstance(x, list | tuple):
        return type(x)(map(layout_of, x))
    if not isinstance(x, torch.Tensor):
        return x
    if x.layout is not torch.strided or not (is_plain(x) or isinstance(x, FakeTensor)):
        return UNKNOWN
    shape, strides, offset = tuple(x.shape), x.stride(), x.storage_offset()
    span = offset + 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    room = torch.empty(span if 0 not in shape else offset, dtype=x.dtype, device=META)
    made = room.as_strided(shape, strides, offset)
    made = made.conj() if x.is_conj() else made
    return torch._neg_view(made) if x.is_neg() else made


def evaluated(
    function: Callable[..., Any],
    step: OperatorStep,
    value: Callable[[int], Any],
    device: torch.device | None = None,
    *,
    with_options: bool = True,
) -> Any:
    """The result of a function with the arguments of a step.

    `value` gives the values in slots, and `device` takes the place of those among the arguments.
    """

    def filled(x: Any) -> Any:
        if isinstance(x, Slot):
            return value(x.number)
        if isinstance(x, list | tuple):
            return type(x)(map(filled, x))
        return device if device is not None and isinstance(x, torch.device) else x

    options = {name: filled(x) for name, x in step.options.items()} if with_options else {}
    return function(*map(filled, step.arguments), **options)


def _given(step: OperatorStep) -> list[Any]:
    return [*step.arguments, *step.options.values()]


def _leaves(given: Sequence[Any]) -> Iterator[Any]:
    """The elements of lists within lists, in order."""
    stack = [*given][::-1]
    while stack:
        x = stack.pop()
        if isinstance(x, list | tuple):
            stack.extend(reversed(x))
        else:
            yield x
