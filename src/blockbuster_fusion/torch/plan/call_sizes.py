"""Sizes of a call, and numbers that follow from them, in slots that are filled when it begins."""

from collections.abc import Callable, Hashable, Iterable
from typing import Any

from blockbuster_fusion.array.axes import Length, Size
from blockbuster_fusion.torch.plan.layouts import evaluated
from blockbuster_fusion.torch.plan.sized import SizedLength
from blockbuster_fusion.torch.plan.steps import BoundOperator, OperatorStep, Slot


class CallSizes:
    """The slots of sizes that differ between calls, in a tape that serves them all."""

    def __init__(
        self, length: Length, is_fixed: bool, values: list[Any], new_slot: Callable[[Any], int]
    ) -> None:
        """`length` evaluates sizes in one call, whose values are given.

        If `is_fixed`, sizes are the same in all calls. `new_slot` makes the slot of a number.
        """
        self.length_now, self.is_fixed = length, is_fixed
        self.values, self.new_slot = values, new_slot
        self.slots: dict[Size, int] = {}
        self.derived: list[Callable[[list[Any]], None]] = []
        """Put numbers that follow from sizes into slots."""
        self._functions: dict[Hashable, Slot] = {}

    def knows(self, sizes: Iterable[Size]) -> bool:
        """True if sizes are the same in every call."""
        return self.is_fixed or all(size.is_known for size in sizes)

    def length(self, size: Size) -> SizedLength:
        """A size as an argument."""
        if self.knows([size]):
            return self.length_now(size)
        if size not in self.slots:
            self.slots[size] = self.new_slot(self.length_now(size))
        return Slot(self.slots[size])

    def number(self, function: Callable[..., int], *arguments: Any) -> Slot:
        """The slot of a number that is a function of sizes."""
        key = (function, repr(arguments))
        if key not in self._functions:
            step = OperatorStep(function.__name__, function, arguments, {}, self.new_slot(None))
            self.values[step.output] = evaluated(function, step, self.values.__getitem__)
            self.derived.append(BoundOperator(step).run)
            self._functions[key] = Slot(step.output)
        return self._functions[key]
