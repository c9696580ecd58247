"""The cheapest partition of operators into parts, with a proof.

A chain of ideals, from the empty one to all operators, is a partition whose parts can be run one
after the other. So a dynamic program over ideals finds the cheapest partition:

    best[I] = min over J ⊂ I with I∖J a candidate: best[J] + cost(I∖J)

To know the cost of a candidate, it has to be fused and its schedules searched: that takes long. But
each candidate has a *floor*, which no implementation is cheaper than. Candidates count with their
floors first. Those of the cheapest partition are priced, and the partition is sought again, until
all of its parts are priced: then none is cheaper. Most candidates are never fused.

A cost has two sums, of the device and of the host that launches. The larger one is what a run
takes, so partial sums are compared in both.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.select.order import Order

SLACK = 1e-12
"""The relative difference below which two sums are equal: they may be added in another order."""
NEVER = Seconds(math.inf, math.inf)
"""The cost of a part that nothing can run."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """The cost of a partition, and what is known of it."""

    value: float
    """The seconds of the partition."""
    bound: float
    """Seconds that no partition into candidates is below."""
    ideals: int
    """The ideals that were visited, in all rounds."""
    candidates: int
    priced: int
    """The candidates whose cost was asked for."""
    rounds: int
    caps: tuple[str, ...] = ()
    """The limits that were reached."""

    @property
    def proven(self) -> bool:
        """True if no partition into candidates is cheaper."""
        return not self.caps and self.value <= self.bound * (1 + SLACK)


@dataclass(frozen=True)
class Partition:
    """Parts in an order in which they can be run."""

    parts: tuple[int, ...]
    cost: Seconds
    certificate: Certificate


@dataclass(frozen=True, slots=True)
class Caps:
    """The limits of a search."""

    seconds: float = math.inf
    ideals: int = 1 << 20
    """The most ideals of a round."""


@dataclass(frozen=True, slots=True)
class _Label:
    """A way to run the operators of an ideal."""

    cost: Seconds
    part: int = 0
    previous: "_Label | None" = None

    def parts(self) -> tuple[int, ...]:
        found, label = [], self
        while label.previous is not None:
            found.append(label.part)
            label = label.previous
        return tuple(reversed(found))


class TooManyIdeals(Exception):
    """There are more ideals than a search may visit."""


@dataclass
class Partitioner:
    """Looks for the cheapest partition of some operators into candidates.

    `total` is the time of a run by the two sums; it must not fall where one of them grows.
    """

    order: Order
    candidates: Sequence[int]
    floor: Callable[[int], Seconds]
    price: Callable[[int], Seconds]
    """The cost of a candidate; NEVER if nothing can run it."""
    total: Callable[[Seconds], float] = Seconds.total
    caps: Caps = field(default_factory=Caps)
    priced: dict[int, Seconds] = field(default_factory=dict)
    """The costs that are known; a caller may know some before."""

    def __post_init__(self) -> None:
        self.floors = {part: self.floor(part) for part in self.candidates}
        self.first: dict[int, list[tuple[int, int]]] = {}
        """The candidates by their least member, each with the operators that it needs."""
        for part in self.candidates:
            least = (part & -part).bit_length() - 1
            self.first.setdefault(least, []).append((part, self.order.needed(part)))
        self.ideals = 0

    def cheapest(self, incumbent: Sequence[int]) -> Partition:
        """The cheapest partition; `incumbent` is one that can be run, and is priced first."""
        end = time.monotonic() + self.caps.seconds
        bound, rounds, caps = 0.0, 0, list[str]()
        self.ask(incumbent)
        best, cost = tuple(incumbent), self.sum(incumbent, self.priced)
        while True:
            try:
                found = self.solved(self.floors | self.priced, self.total(cost))
            except TooManyIdeals:
                caps.append(f"more than {self.caps.ideals} ideals")
                break
            rounds += 1
            if found is None:  # nothing is below the incumbent
                bound = self.total(cost)
                break
            bound = max(bound, self.total(found.cost))
            parts = found.parts()
            unknown = [part for part in parts if part not in self.priced]
            self.ask(unknown)
            own = self.sum(parts, self.priced)
            if self.total(own) < self.total(cost):
                best, cost = parts, own
            if not unknown:
                break
            if time.monotonic() > end:
                caps.append(f"more than {self.caps.seconds:g} seconds")
                break
        counts = (self.ideals, len(self.candidates), len(self.priced), rounds)
        value = self.total(cost)
        return Partition(best, cost, Certificate(value, min(bound, value), *counts, tuple(caps)))

    def ask(self, parts: Iterable[int]) -> None:
        for part in parts:
            if part not in self.priced:
                self.priced[part] = self.price(part)

    def sum(self, parts: Iterable[int], costs: Mapping[int, Seconds]) -> Seconds:
        return sum((costs[part] for part in parts), Seconds(0.0))

    def solved(self, costs: Mapping[int, Seconds], limit: float) -> _Label | None:
        """The cheapest partition by some costs, or None if none is cheaper than a limit."""
        layers: list[dict[int, list[_Label]]] = [{} for _ in range(len(self.order) + 1)]
        layers[0][0] = [_Label(Seconds(0.0))]
        visited = 0
        for layer in layers[:-1]:
            visited += len(layer)
            self.ideals += len(layer)
            if visited > self.caps.ideals:
                raise TooManyIdeals
            for ideal, labels in layer.items():
                for least in self.order.ready(ideal):
                    for part, needed in self.first.get(least, ()):
                        if part & ideal or needed & ~ideal:
                            continue
                        for label in labels:
                            cost = label.cost + costs[part]
                            if self.total(cost) < limit:
                                into = layers[(ideal | part).bit_count()]
                                own = into.setdefault(ideal | part, [])
                                _keep(own, _Label(cost, part, label))
            layer.clear()
        found = layers[-1].get(self.order.all, [])
        return min(found, key=lambda label: self.total(label.cost), default=None)


def _keep(labels: list[_Label], new: _Label) -> None:
    """Adds a label, unless another one is as cheap in both sums; drops those that it beats."""
    device, host = new.cost.device, new.cost.host
    if any(x.cost.device <= device and x.cost.host <= host for x in labels):
        return
    labels[:] = [x for x in labels if x.cost.device < device or x.cost.host < host]
    labels.append(new)
