"""Sizes of a call, and numbers that follow from them, in slots that are filled when it begins."""

from collections.abc import Callable, Hashable, Iterable
from typing import Any

from blockbuster_fusion.array.axes import Length, Size
from blockbuster_fusion.torch.plan.sized import SizedLength
from blockbuster_fusion.torch.plan.steps import BoundOperator, OperatorStep, Slot


class CallSizes:
    """The slots of sizes that differ between calls, in the recording of one."""

    def __init__(self, length: Length, is_fixed: bool, new_slot: Callable[[], int]) -> None:
        """`length` evaluates sizes in the recorded call; they are all known if `is_fixed`."""
        self.length_now, self.is_fixed, self.new_slot = length, is_fixed, new_slot
        self.slots: dict[Size, int] = {}
        self.derived: list[Callable[[list[Any]], None]] = []
        """Put numbers that follow from sizes into slots."""
        self.numbers: dict[int, int] = {}
        """The sizes, and the numbers that follow from them, in the recorded call, by slot."""
        self._functions: dict[Hashable, Slot] = {}

    def at(self, size: Size) -> int:
        """The slot of a size."""
        if size not in self.slots:
            self.slots[size] = self.new_slot()
            self.numbers[self.slots[size]] = self.length_now(size)
        return self.slots[size]

    def knows(self, sizes: Iterable[Size]) -> bool:
        """True if sizes are the same in every call."""
        return self.is_fixed or all(size.is_known for size in sizes)

    def length(self, size: Size) -> SizedLength:
        """A size as an argument."""
        return self.length_now(size) if self.knows([size]) else Slot(self.at(size))

    def number(self, function: Callable[..., int], *arguments: Any) -> Slot:
        """The slot of a number that is a function of sizes."""
        key = (function, repr(arguments))
        if key not in self._functions:
            step = OperatorStep(function.__name__, function, arguments, {}, self.new_slot())
            run = BoundOperator(step).run
            now: list[Any] = [self.numbers.get(slot) for slot in range(step.output + 1)]
            run(now)
            self.numbers[step.output] = now[step.output]
            self.derived.append(run)
            self._functions[key] = Slot(step.output)
        return self._functions[key]
