"""The fusers of a captured graph: our rules' kernels, PyTorch's own operators, and a user's."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from torch.fx import Node

from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.messages import log
from blockbuster_fusion.schedule.cost import ERRORS, Seconds
from blockbuster_fusion.select.floors import Floors
from blockbuster_fusion.select.fusers import Offer
from blockbuster_fusion.select.order import members
from blockbuster_fusion.select.units import Units
from blockbuster_fusion.torch.rivals.composites import Composite
from blockbuster_fusion.torch.rivals.custom import Custom
from blockbuster_fusion.torch.rivals.estimate import Estimate

FLOOR = "at least"
"""The basis of a time that is a floor."""
KERNELS, LIBRARY, CUSTOM = "kernels", "library", "custom"
Attitude = tuple[float, float]
"""The powers of their error with which predictions count, without and with products."""
CAREFUL, EVEN, HOPEFUL = (1.0, 1.0), (0.0, 0.0), (-1.0, -1.0)
"""Predictions have to win by more than their error, or as they are, or may even lose by it."""
TRYING, TRYING_ROWS = (0.25, 0.25), (0.25, 1.0)
"""Those that are measured once they have won have to win by some of it: all, or but products."""
USUAL, CHAINED, WHOLE = 1.15, 1.6, 4.0
"""The factors of kernels over their floor: usual ones, those with a product that reads what the
same part computes by a reduction or by another product, those that hold whole rows of a product."""


def _nothing(parts: Iterable[Sequence[Node]]) -> None:
    """Does nothing with the parts that come next."""


@dataclass
class KernelFuser:
    """Kernels that our rules make of the operators of a part."""

    units: Units
    nodes: Sequence[Node]
    """The operators of the graph."""
    floors: Floors
    estimate: Callable[[Sequence[Node]], Estimate]
    """The time of the kernels of some operators; BlockbusterError if there are none."""
    expect: Callable[[Iterable[Sequence[Node]]], None] = _nothing
    """Is told which operators are asked about next."""
    attitude: Attitude = CAREFUL
    refused: set[tuple[Node, ...]] = field(default_factory=set)
    """The parts that kernels are not to run."""
    measured: set[tuple[str, ...]] = field(default_factory=set)
    """The forms of parts whose kernels are measured: these need no margin."""

    name, is_exact = KERNELS, False

    def candidates(self) -> list[int]:
        return []

    def of(self, part: int) -> list[Node]:
        """The operators of a part."""
        return [self.nodes[i] for i in self.units.operators_in(part)]

    def is_misc(self, part: int) -> bool:
        return any(self.units.is_misc(n) for n in members(part))

    def floor(self, part: int) -> Seconds | None:
        if self.is_misc(part):
            return None
        if self.is_measured(part):  # its time is known, whatever was predicted
            return Seconds(0.0)
        has_product = self.floors.has_product(part)
        error = ERRORS[self.floors.machine.target][has_product]
        return self.floors.of(part) * math.pow(error, self.attitude[has_product])

    def is_measured(self, part: int) -> bool:
        """True if the kernels of a part are measured, or those of an equal one."""
        return bool(self.measured) and self.forms(part) in self.measured

    def forms(self, part: int) -> tuple[str, ...]:
        """The forms of the operators of a part: those of equal parts are equal."""
        return tuple(self.units.operators[i].form for i in self.units.operators_in(part))

    def guess(self, part: int) -> Seconds | None:
        floor = self.floor(part)
        if floor is None:
            return None
        factor = WHOLE if self.floors.whole_rows(part) else 1.0
        return floor * (USUAL * factor * (CHAINED if self.floors.is_chained(part) else 1.0))

    def ahead(self, parts: Iterable[int]) -> None:
        asked = (self.of(part) for part in parts if not self.is_misc(part))
        self.expect(nodes for nodes in asked if tuple(nodes) not in self.refused)

    def offer(self, part: int) -> Offer | None:
        nodes = self.of(part)
        if self.is_misc(part) or tuple(nodes) in self.refused:
            return None
        try:
            made = self.estimate(nodes)
        except BlockbusterError as error:
            log.debug("no kernels for a part: %s", error)
            return None
        if math.isinf(made.seconds.device):
            return None
        if made.basis == FLOOR:
            least = self.floors.of(part)
            return Offer(self.name, least, least, FLOOR)
        if made.basis == "measured":
            self.measured.add(self.forms(part))
            return Offer(self.name, made.seconds * made.error, made.seconds, made.basis)
        power = self.attitude[self.floors.has_product(part)]
        counted = made.seconds * math.pow(made.error, power)
        return Offer(self.name, counted, made.seconds, made.basis)


@dataclass
class LibraryFuser:
    """PyTorch's operators: each by itself, and those that compute a composite."""

    units: Units
    nodes: Sequence[Node]
    composites: Sequence[Composite]
    """The composites that may be worth it."""
    times: Callable[[Sequence[Node]], Seconds]
    """The time of PyTorch's operators for some nodes, by composites where they are faster."""

    name, is_exact = LIBRARY, True

    def __post_init__(self) -> None:
        number = {node: i for i, node in enumerate(self.nodes)}
        found = [
            self.units.order.closed(
                self.units.covering(number[n] for n in x.members if n in number)
            )
            for x in self.composites
        ]
        self.known = {part for part in found if part and is_runnable(self.units, part)}
        self.floors: dict[int, Seconds | None] = {}
        """The times of parts that were asked for."""

    def candidates(self) -> list[int]:
        return sorted(part for part in self.known if part.bit_count() > 1)

    def captured(self) -> list[tuple[int, Offer]]:
        """All units, each run by PyTorch's operators: the graph as it was captured."""
        parts = (1 << n for n in range(len(self.units.members)))
        made = ((part, self.offer(part)) for part in parts)
        return [(part, offer) for part, offer in made if offer is not None]

    def floor(self, part: int) -> Seconds | None:
        if part not in self.floors:
            self.floors[part] = self._floor(part)
        return self.floors[part]

    def _floor(self, part: int) -> Seconds | None:
        if part.bit_count() > 1 and part not in self.known:
            return None
        if self.units.is_misc((part & -part).bit_length() - 1):
            return Seconds(0.0)
        return self.times([self.nodes[i] for i in self.units.operators_in(part)])

    def guess(self, part: int) -> Seconds | None:
        return self.floor(part)

    def ahead(self, parts: Iterable[int]) -> None:
        """Needs no time for any part."""

    def offer(self, part: int) -> Offer | None:
        seconds = self.floor(part)
        if seconds is None:
            return None
        return Offer(self.name, seconds, seconds, "measured")


@dataclass
class CustomFuser:
    """Operators that a user has declared, wherever their definitions were found."""

    units: Units
    nodes: Sequence[Node]
    found: Sequence[Custom]
    times: Callable[[Custom], Seconds]
    """The time of a user's operator, with what PyTorch computes for it anew."""

    name, is_exact = CUSTOM, True

    def __post_init__(self) -> None:
        number = {node: i for i, node in enumerate(self.nodes)}
        self.known: dict[int, tuple[Seconds, Custom]] = {}
        """The parts that are just what an operator computes, with the fastest one."""
        for x in self.found:
            part = self.units.covering(number[n] for n in x.members)
            is_all = len(self.units.operators_in(part)) == len(x.members)
            if not is_all or not is_runnable(self.units, part):
                continue
            seconds = self.times(x)
            if part not in self.known or seconds.total() < self.known[part][0].total():
                self.known[part] = (seconds, x)

    def candidates(self) -> list[int]:
        return [part for part in self.known if part.bit_count() > 1]

    def floor(self, part: int) -> Seconds | None:
        return self.known[part][0] if part in self.known else None

    def guess(self, part: int) -> Seconds | None:
        return self.floor(part)

    def ahead(self, parts: Iterable[int]) -> None:
        """Needs no time for any part."""

    def offer(self, part: int) -> Offer | None:
        seconds = self.floor(part)
        return None if seconds is None else Offer(self.name, seconds, seconds, "measured")


def is_runnable(units: Units, part: int) -> bool:
    """True if one operator can run a part at once: nothing in it is misc, or needed in between."""
    return not any(units.is_misc(n) for n in members(part)) and units.order.is_convex(part)


@dataclass(frozen=True)
class LastResort:
    """Whatever runs a unit for which there are no kernels: it costs more than any of them."""

    units: Units

    name, is_exact = LIBRARY, True

    def candidates(self) -> list[int]:
        return []

    def floor(self, part: int) -> Seconds | None:
        if part.bit_count() > 1:
            return None
        is_misc = self.units.is_misc(part.bit_length() - 1)
        return Seconds(0.0) if is_misc else Seconds(1.0)

    def guess(self, part: int) -> Seconds | None:
        return self.floor(part)

    def ahead(self, parts: Iterable[int]) -> None:
        """Needs no time for any part."""

    def offer(self, part: int) -> Offer | None:
        seconds = self.floor(part)
        return None if seconds is None else Offer(self.name, seconds, seconds, "at least")
