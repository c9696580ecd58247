"""Selects the parts of a model, and the fuser that runs each: the cheapest set of all."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from blockbuster_fusion.errors import BadConstraint, NoKernel
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.select.candidates import Limits, Window, windows
from blockbuster_fusion.select.certificate import Certificate
from blockbuster_fusion.select.constraints import Constraints
from blockbuster_fusion.select.fusers import Fuser, Offer
from blockbuster_fusion.select.ideals import Caps
from blockbuster_fusion.select.operators import Kind
from blockbuster_fusion.select.partition import NEVER, Partitioner
from blockbuster_fusion.select.units import Units


@dataclass(frozen=True)
class Selected:
    """The parts of a model, in an order in which they can be run, and what runs each."""

    parts: tuple[tuple[int, Offer], ...]
    keys: tuple[str, ...]
    """The keys of the parts: equal parts, as those of equal layers, have equal ones."""
    cost: Seconds
    certificate: Certificate

    def distinct(self, fuser: str) -> list[int]:
        """The parts that a fuser runs, one of those that are equal."""
        found: dict[str, int] = {}
        for (part, offer), key in zip(self.parts, self.keys, strict=True):
            if offer.fuser == fuser:
                found.setdefault(key, part)
        return [*found.values()]


@dataclass
class Selection:
    """Looks for the cheapest set of parts, each run by the fuser that is cheapest for it."""

    units: Units
    fusers: Sequence[Fuser]
    total: Callable[[Seconds], float] = Seconds.total
    caps: Caps = field(default_factory=Caps)
    limits: Limits = field(default_factory=Limits)
    constraints: Constraints = field(default_factory=Constraints)

    def __post_init__(self) -> None:
        more = [part for fuser in self.fusers for part in fuser.candidates()]
        more = [part for part in dict.fromkeys(more) if self.constraints.may_hold(part)]
        self.windows: list[Window] = windows(self.units, self.limits, self.constraints, more)
        self.offers: dict[int, Offer | None] = {}
        """The best offers for parts that were asked for."""
        self.asked: dict[str, Offer | None] = {}
        """The same by the keys of these parts."""

    def cheapest(self, incumbent: Sequence[tuple[int, Offer]] = ()) -> Selected:
        """The cheapest set of parts; `incumbent` is one that can be run, if one is known.

        Else it is that of single units.
        """
        costs = (self._floor, self._price, self._guess, self._sure, self._is_light)
        hooks = (self._expect, self.units.order.in_order)
        partitioner = Partitioner(self.windows, *costs, self.total, self.caps, *hooks)
        offers = dict(incumbent)
        known: Seconds | None = None
        if offers:
            known = sum((offer.cost for offer in offers.values()), Seconds(0.0))
            found = partitioner.cheapest([*offers], known)
        else:
            found = partitioner.cheapest([1 << n for n in range(len(self.units.members))])
        parts = [(part, self.known(part)) for part in found.parts]
        runnable = [(part, offer) for part, offer in parts if offer is not None]
        if len(runnable) < len(parts) or math.isinf(found.cost.device):
            if self.constraints == Constraints():
                raise NoKernel(what="some operators", remedy="PyTorch cannot run them either")
            problem = "nothing runs all operators under these constraints"
            raise BadConstraint(kind="constraints", names="the options", problem=problem)
        keys = tuple(partitioner.key(*partitioner.placed(part)) for part, _ in runnable)
        return Selected(tuple(runnable), keys, found.cost, found.certificate)

    def offer(self, part: int) -> Offer | None:
        """The cheapest offer for a part; a fuser whose floor is above another's is not asked."""
        if part not in self.offers:
            fusers = self.fusers if self.constraints.may_hold(part) else ()
            floors = [(fuser.floor(part), fuser) for fuser in fusers]
            known = [(floor, fuser) for floor, fuser in floors if floor is not None]
            best: Offer | None = None
            for floor, fuser in sorted(known, key=lambda x: (not x[1].is_exact, self._size(x[0]))):
                if best is not None and self._size(floor) >= self._size(best.cost):
                    continue
                offer = fuser.offer(part)
                if offer is not None and (
                    best is None or self._size(offer.cost) < self._size(best.cost)
                ):
                    best = offer
            self.offers[part] = best
        return self.offers[part]

    def _expect(self, places: Sequence[tuple[Window, int]]) -> None:
        """Tells fusers that take time which parts they are asked about next."""
        parts = [part << window.first for window, part in places]
        parts = [part for part in parts if self.constraints.may_hold(part)]
        exact = [fuser for fuser in self.fusers if fuser.is_exact]

        def may_win(fuser: Fuser, part: int) -> bool:
            floor, others = fuser.floor(part), [x.floor(part) for x in exact]
            sizes = (self._size(x) for x in others if x is not None)
            return floor is not None and all(self._size(floor) < size for size in sizes)

        for fuser in (fuser for fuser in self.fusers if not fuser.is_exact):
            fuser.ahead([part for part in parts if may_win(fuser, part)])

    def known(self, part: int) -> Offer | None:
        """The cheapest offer for a part that takes no time to ask for.

        Fusers that take time have made theirs for an equal part, if they were asked.
        """
        if part in self.offers:
            return self.offers[part]
        key = self._key(part)
        equal = None if key is None else self.asked.get(key)
        if equal is not None and not any(f.is_exact for f in self.fusers if f.name == equal.fuser):
            return equal
        made = [fuser.offer(part) for fuser in self.fusers if fuser.is_exact]
        best = min(filter(None, made), key=lambda offer: self._size(offer.cost), default=None)
        return self.offer(part) if best is None and equal is not None else best

    def _key(self, part: int) -> str | None:
        least = (part & -part).bit_length() - 1
        window = next(w for w in self.windows if least < w.first + w.size)
        return window.key_of.get(part >> window.first)

    def _size(self, seconds: Seconds) -> tuple[float, float]:
        return (self.total(seconds), seconds.device)

    def _price(self, window: Window, part: int) -> Seconds:
        if not self.constraints.may_hold(part << window.first):
            return NEVER
        offer = self.offer(part << window.first)
        self.asked[window.key_of[part]] = offer
        return NEVER if offer is None else offer.cost

    def _floor(self, window: Window, part: int) -> Seconds:
        return self._least(part << window.first, [fuser.floor for fuser in self.fusers])

    def _sure(self, window: Window, part: int) -> Seconds:
        own = part << window.first
        offer = self.known(own) if self.constraints.may_hold(own) else None
        return NEVER if offer is None else offer.cost

    def _is_light(self, window: Window, part: int) -> bool:
        """True for parts without products: their kernels have few schedules."""
        operators = self.units.operators_in(part << window.first)
        return all(self.units.operators[i].kind is not Kind.CONTRACTION for i in operators)

    def _guess(self, window: Window, part: int) -> Seconds:
        return self._least(part << window.first, [fuser.guess for fuser in self.fusers])

    def _least(self, part: int, costs: Sequence[Callable[[int], Seconds | None]]) -> Seconds:
        if not self.constraints.may_hold(part):
            return NEVER
        floors = [x for x in (cost(part) for cost in costs) if x is not None]
        if not floors:
            return NEVER
        return Seconds(min(x.device for x in floors), min(x.host for x in floors))
