"""The cheapest partition of operators into parts, with a proof.

A chain of ideals, from the empty one to all operators, is a partition whose parts can be run one
after the other. So a dynamic program over ideals finds the cheapest partition:

    best[I] = min over J ⊂ I with I∖J a candidate: best[J] + cost(I∖J)

To know the cost of a candidate, it has to be fused and its schedules searched: that takes long. But
each candidate has a *floor*, which no implementation is cheaper than. Candidates count with their
floors first. Those of the cheapest partition are priced, and the partition is sought again, until
all of its parts are priced: then none is cheaper. Most candidates are never fused. Before that,
guesses stand for the floors: they lead to a cheap partition soon, if they prove nothing.

A cost has two sums, of the device and of the host that launches. The larger one is what a run
takes, so partial sums are compared in both.

Windows are solved one after the other. A state between two windows is the set of units that have
run beyond the border; all before it have. From a state, equal windows lead to the same states at
the same costs, so that equal layers are solved once.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace

from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.select.candidates import Window
from blockbuster_fusion.select.certificate import SLACK, Certificate
from blockbuster_fusion.select.ideals import (
    Caps,
    Ideals,
    Label,
    Layer,
    TooManyIdeals,
    TooManyLabels,
    Weights,
)
from blockbuster_fusion.select.order import members

HALVINGS = 12
"""The weights of device and host that are tried, each between two others."""
BEYOND = "candidates that need units beyond the border of their window"
"""A limit of the search."""
NEVER = Seconds(math.inf, math.inf)
"""The cost of a part that nothing can run."""


@dataclass(frozen=True)
class Partition:
    """Parts in an order in which they can be run."""

    parts: tuple[int, ...]
    cost: Seconds
    certificate: Certificate


Placed = tuple[Window, int]
"""A candidate: its window, and its units there."""


@dataclass(frozen=True, slots=True)
class _Way:
    """A way to run all units before a border, by the labels of each window."""

    cost: Seconds
    window: int = 0
    label: Label | None = None
    previous: "_Way | None" = None


@dataclass
class _Search:
    """The best partition so far, and a bound of the cheapest one."""

    parts: list[Placed]
    cost: Seconds
    bound: float = 0.0
    rounds: int = 0


@dataclass
class Partitioner:
    """Looks for the cheapest partition of the units of some windows into candidates.

    `total` is the time of a run by the two sums; it must not fall where one of them grows.
    """

    windows: Sequence[Window]
    floor: Callable[[Window, int], Seconds]
    """A cost that no implementation of a candidate is below."""
    price: Callable[[Window, int], Seconds]
    """The cost of a candidate; NEVER if nothing can run it."""
    guess: Callable[[Window, int], Seconds] | None = None
    """A cost that is to be expected, not below the floor."""
    sure: Callable[[Window, int], Seconds] | None = None
    """A cost that is known without pricing, or NEVER: not below the price."""
    is_light: Callable[[Window, int], bool] | None = None
    """True for a candidate that takes little time to price."""
    total: Callable[[Seconds], float] = Seconds.total
    caps: Caps = field(default_factory=Caps)
    expect: Callable[[Sequence[Placed]], None] | None = None
    """Is told which candidates are priced next, one after the other."""
    order: Callable[[Sequence[int]], Sequence[int] | None] | None = None
    """Puts parts in an order in which they can be run; gives None if they need each other."""
    priced: dict[str, Seconds] = field(default_factory=dict)
    """The costs that are known; a caller may know some before."""

    def __post_init__(self) -> None:
        self.distinct = {window.digest: window for window in self.windows}
        self.places: dict[str, Placed] = {}
        """A window and a part for each key."""
        for window in self.distinct.values():
            for part, key in window.key_of.items():
                self.places.setdefault(key, (window, part))
        self.floors = {key: self.floor(*place) for key, place in self.places.items()}
        self.unpriced = self.floors
        """The costs of candidates that are not priced yet."""
        self.reached: dict[tuple[str, int, Weights | None], Layer] = {}
        """The labels at the end of a window, from a state at its beginning."""
        self.most = self.caps.priced
        self.within = Ideals(self.total, self.caps)
        self.is_free = False
        """True if candidates need nothing beyond their windows: then parts may need each other."""
        self.narrow, self.reasons = set[str](), dict[str, None]()
        """The digests of windows with too many ideals, and the limits that were reached."""
        if any(window.is_cut for window in self.windows):
            self.reasons["more candidates than the limits allow"] = None
        if any(window.looks_ahead for window in self.windows):
            self.reasons[BEYOND] = None

    def cheapest(self, incumbent: Sequence[int], known: Seconds | None = None) -> Partition:
        """The cheapest partition; `incumbent` is one that can be run.

        Its parts are priced first, unless a cost of it is known.
        """
        best = [self.placed(part) for part in incumbent]
        if known is None:
            self.ask(best)
        self.most = len(self.priced) + self.caps.priced
        search = _Search(best, self.sum(best) if known is None else known)
        if self.guess is not None:
            self.suppose(self.guess)
            self.rounds(search)
        search.bound = 0.0
        self.suppose(self.floor)
        self.rounds(search)
        if self.narrow:  # what was sought narrowly is no bound
            search.bound = self.shared_bound()
        elif any(window.looks_ahead for window in self.windows):
            self.look_ahead(search)
        reasons = tuple(self.reasons)  # what is proven does not depend on what follows
        if reasons and self.sure is not None:
            if self.spent in self.reasons:
                self.price_light(search, self.sure)
            self.suppose(self.sure)
            self.take(search)
        best, cost, bound, rounds = search.parts, search.cost, search.bound, search.rounds
        counts = (self.within.visited, len(self.floors), len(self.priced), rounds)
        value = self.total(cost)
        certificate = Certificate(value, min(bound, value), *counts, reasons)
        return Partition(tuple(part << w.first for w, part in best), cost, certificate)

    def rounds(self, search: "_Search") -> None:
        """Prices the parts of the cheapest partition until all of them are priced."""
        while True:
            found, least = self.solved()
            search.rounds += 1
            if found is None:  # nothing can run all units
                return
            search.bound = max(search.bound, least)
            if search.bound >= self.total(search.cost) * (1 - SLACK):
                return  # nothing is below the incumbent
            parts = self.parts(found)
            unknown = [part for part in parts if self.key(*part) not in self.priced]
            if unknown and len(self.priced) >= self.most:
                self.reasons[self.spent] = None
                return
            self.ask(unknown)
            cost = self.sum(parts)
            if self.total(cost) < self.total(search.cost):
                ordered = self.ordered(parts)
                if ordered is not None:
                    search.parts, search.cost = ordered, cost
            if not unknown:
                return

    def suppose(self, cost: Callable[[Window, int], Seconds]) -> None:
        """Has candidates that are not priced count with some cost."""
        self.unpriced = {key: cost(*place) for key, place in self.places.items()}
        self.reached.clear()

    @property
    def spent(self) -> str:
        """The limit of the candidates that are priced."""
        told = f"the search works out the times of {self.caps.priced} candidates at most"
        goes_on = self.is_light is not None and self.caps.light
        return f"{told}, and of {self.caps.light} without products" if goes_on else told

    def price_light(self, search: "_Search", sure: Callable[[Window, int], Seconds]) -> None:
        """Goes on with some candidates that take little time to price.

        All others count with what is known for sure, so that nothing here is a bound.
        """
        is_light, expected = self.is_light, self.guess or self.floor
        if is_light is None:
            return
        self.suppose(lambda *place: (expected if is_light(*place) else sure)(*place))
        most = len(self.priced) + self.caps.light
        while len(self.priced) < most:
            found, _ = self.solved()
            search.rounds += 1
            if found is None or self.total(found.cost) >= self.total(search.cost) * (1 - SLACK):
                return
            light = [part for part in self.parts(found) if is_light(*part)]
            unknown = {self.key(*part): part for part in light}
            new = [part for key, part in unknown.items() if key not in self.priced]
            if not new:
                return
            self.ask(new[: most - len(self.priced)])

    def take(self, search: "_Search") -> None:
        """Takes the cheapest partition of all that is known for sure, if it is cheaper."""
        found, _ = self.solved()
        if found is not None and self.total(found.cost) < self.total(search.cost):
            search.parts, search.cost = self.parts(found), found.cost

    def placed(self, part: int) -> Placed:
        """A set of units in the window of the least one."""
        least = (part & -part).bit_length() - 1
        window = next(w for w in self.windows if least < w.first + w.size)
        return window, part >> window.first

    def key(self, window: Window, part: int) -> str:
        return window.key_of[part]

    def ask(self, parts: Iterable[Placed]) -> None:
        """Prices the parts whose cost is not known; one of those that are equal."""
        new: dict[str, Placed] = {}
        for part in parts:
            if (key := self.key(*part)) not in self.priced:
                new.setdefault(key, part)
        if self.expect is not None:
            self.expect([*new.values()])
        for key, part in new.items():
            self.set(key, self.price(*part))

    def set(self, key: str, cost: Seconds) -> None:
        """Notes the cost of a candidate; ways through windows that have it are sought again."""
        self.priced[key] = cost
        having = {digest for digest, w in self.distinct.items() if key in w.key_of.values()}
        for known in [x for x in self.reached if x[0] in having]:
            del self.reached[known]

    def sum(self, parts: Iterable[Placed]) -> Seconds:
        return sum((self.priced[self.key(*part)] for part in parts), Seconds(0.0))

    def parts(self, way: _Way) -> list[Placed]:
        """The parts of a way, in order."""
        found = list[list[Placed]]()
        at: _Way | None = way
        while at is not None and at.label is not None:
            window = self.windows[at.window]
            found.append([(window, part) for part in at.label.parts()])
            at = at.previous
        return [part for own in reversed(found) for part in own]

    def solved(self) -> tuple[_Way | None, float]:
        """The cheapest way by the costs that are known, and by floors, and a bound of its time.

        The device alone decides, or the host alone, if the other one is not longer by that way.
        """
        for weights in ((1.0, 0.0), (0.0, 1.0)):
            way = self.way(weights)
            if way is None:
                return None, math.inf
            least = weights[0] * way.cost.device + weights[1] * way.cost.host
            if self.total(way.cost) <= least * (1 + SLACK):
                return way, self.total(way.cost)
        try:
            way = self.way(None)
            return way, math.inf if way is None else self.total(way.cost)
        except TooManyLabels:
            return self.weighted()

    def weighted(self) -> tuple[_Way | None, float]:
        """A cheap way by weighted sums, and the largest of their bounds.

        No way takes less than its weighted sum, if the weights add up to one.
        """
        best: _Way | None = None
        bound, low, high = 0.0, 0.0, 1.0
        for _ in range(HALVINGS):
            share = (low + high) / 2
            way = self.way((share, 1 - share))
            if way is None:  # sought narrowly, none may be found
                break
            bound = max(bound, share * way.cost.device + (1 - share) * way.cost.host)
            if best is None or self.total(way.cost) < self.total(best.cost):
                best = way
            low, high = (share, high) if way.cost.device > way.cost.host else (low, share)
        return best, bound

    def way(self, weights: Weights | None) -> _Way | None:
        """The cheapest way by a weighted sum, or by the longer one of both sums."""
        ways: dict[int, list[_Way]] = {0: [_Way(Seconds(0.0))]}
        for number, window in enumerate(self.windows):
            new: dict[int, list[_Way]] = {}
            for state, own in ways.items():
                for end, labels in self.through(window, state, weights).items():
                    into = new.setdefault(end >> window.size, [])
                    for way in own:
                        for label in labels:
                            device = way.cost.device + label.cost.device
                            host = way.cost.host + label.cost.host
                            if self.within.is_kept(into, device, host, weights):
                                into.append(_Way(Seconds(device, host), number, label, way))
            ways = new
        return min(ways.get(0, ()), key=lambda way: self.total(way.cost), default=None)

    def through(self, window: Window, state: int, weights: Weights | None) -> Layer:
        """The labels of the ideals that a window ends with, from a state at its beginning."""
        key = (window.digest, state, weights)
        if key not in self.reached:
            self.reached[key] = self.ends(window, state, weights)
        return self.reached[key]

    def ends(self, window: Window, state: int, weights: Weights | None) -> Layer:
        """The same, not known yet; a window with too many ideals is searched narrowly from then on.

        Others are still searched in full.
        """
        given = (window, state, self.cost, weights)
        if window.digest not in self.narrow:
            try:
                return self.within.ends(*given)
            except TooManyIdeals:
                self.narrow.add(window.digest)
                several = f"a window of {window.size} units has more than {self.caps.ideals} ideals"
                self.reasons[f"{several}: the cheapest are followed"] = None
        return self.within.ends(*given, is_narrow=True)

    def cost(self, key: str) -> Seconds:
        """The cost that a candidate counts with now."""
        return self.priced.get(key) or self.unpriced[key]

    def ordered(self, parts: Sequence[Placed]) -> list[Placed] | None:
        """Parts in an order in which they can be run; None if they need each other."""
        if not self.is_free:
            return [*parts]
        whole = [part << window.first for window, part in parts]
        found = None if self.order is None else self.order(whole)
        return None if found is None else [self.placed(part) for part in found]

    def look_ahead(self, search: "_Search") -> None:
        """Goes on with candidates that need units of the next window.

        They are free to run before these, so that the bound is one for all partitions. The
        cheapest one is taken if its parts can be put in order.
        """
        free = copy(self)
        own = [tuple(needed & w.all for needed in w.needed) for w in self.windows]
        pairs = zip(self.windows, own, strict=True)
        free.windows = [replace(w, needed=needed, looks_ahead=False) for w, needed in pairs]
        free.distinct = {window.digest: window for window in free.windows}
        free.reached, free.narrow, free.reasons = {}, set(), {}
        free.is_free = True
        search.bound = 0.0
        free.rounds(search)
        self.reasons |= free.reasons
        if free.narrow:
            search.bound = self.shared_bound()
        if self.total(search.cost) <= search.bound * (1 + SLACK):
            del self.reasons[BEYOND]

    def shared_bound(self) -> float:
        """A bound for any search: each unit has a share of the cheapest part that may have it."""
        shares: dict[int, float] = {}
        for window in self.windows:
            for part, key in window.key_of.items():
                own = (self.priced.get(key) or self.floors[key]).device / part.bit_count()
                for n in members(part << window.first):
                    shares[n] = min(own, shares.get(n, math.inf))
        return self.total(Seconds(sum(shares.values())))
