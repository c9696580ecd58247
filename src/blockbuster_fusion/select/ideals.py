"""The ways through a window: a dynamic program over its ideals.

An ideal is extended by one part after the other. Independent parts may run in any order, of which
one is enough. The first unit that has not run is in some part. If that part can be run now, it
comes next. Else a part comes next that it waits for, directly or through others.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.select.candidates import Following, Placing, Window
from blockbuster_fusion.select.order import members

MOST_FOLLOWED = 1 << 16
"""The most ideals of a window of which it is kept what follows them."""
NARROWEST = 8
"""The ideals of each size that are kept at least."""


@dataclass(frozen=True, slots=True)
class Caps:
    """The limits of a search."""

    priced: int = 1 << 20
    """The most candidates that are priced, beside those of the incumbent."""
    light: int = 8
    """The most that are priced after them, of those that take little time."""
    ideals: int = 1 << 18
    """The most ideals of a window."""
    tries: int = 1 << 18
    """The most candidates that are tried behind the ideals of a window."""
    labels: int = 24
    """The most ways to run an ideal that are kept: each is the cheapest for some host."""
    beam: int = 128
    """The most ideals of each size that are kept in a window that has too many, the cheapest."""


@dataclass(frozen=True, slots=True)
class Label:
    """A way to run the units of an ideal: the last part, and the ones before."""

    cost: Seconds
    part: int = 0
    """The units of the last part, numbered from the first unit of the window."""
    previous: "Label | None" = None

    def parts(self) -> list[int]:
        found, label = list[int](), self
        while label.previous is not None:
            found.append(label.part)
            label = label.previous
        return found[::-1]


class TooManyIdeals(Exception):
    """There are more ideals than a search may visit."""


class TooManyLabels(Exception):
    """There are more ways to run an ideal than are kept, each the cheapest for some host."""


Weights = tuple[float, float]
"""The weights of device and host in a sum that is to be small; none if both are compared."""
Layer = dict[int, list[Label]]
"""Ideals with the ways to run them."""


@dataclass
class Ideals:
    """Finds the ways through windows."""

    total: Callable[[Seconds], float]
    caps: Caps
    visited: int = 0
    """The ideals that were visited, in all windows."""

    def ends(
        self,
        window: Window,
        state: int,
        cost: Callable[[str], Seconds],
        weights: Weights | None,
        *,
        is_narrow: bool = False,
    ) -> Layer:
        """The ideals that a window ends with, from a state at its beginning.

        `cost` is that of a candidate, by its key. With `is_narrow`, few ideals of each size are
        kept; else TooManyIdeals is raised if there are more than the caps allow.
        """
        size = state.bit_count()
        layers: dict[int, Layer] = {size: {state: [Label(Seconds(0.0))]}}
        found: Layer = {}
        visited = tries = 0
        while layers:
            layer = layers.pop(size, {})
            size += 1
            if is_narrow:
                layer = self.best(layer, self.width(window), weights)
            visited += len(layer)
            self.visited += len(layer)
            for ideal, labels in layer.items():
                is_over = visited > self.caps.ideals or tries > self.caps.tries
                if is_over and not is_narrow:
                    raise TooManyIdeals
                if not window.all & ~ideal:
                    found[ideal] = labels
                    continue
                parts, tried = _followed(window, ideal)
                tries += tried
                for part, _, key in parts:
                    own = cost(key)
                    whole = ideal | part
                    into = layers.setdefault(whole.bit_count(), {}).setdefault(whole, [])
                    for label in labels:
                        device = label.cost.device + own.device
                        host = label.cost.host + own.host
                        if self.is_kept(into, device, host, weights):
                            into.append(Label(Seconds(device, host), part, label))
        return {ideal: labels for ideal, labels in found.items() if labels}

    def width(self, window: Window) -> int:
        """The ideals of each size that are kept, so that not many more are tried than allowed."""
        most = 4 * self.caps.tries // (window.size * len(window.candidates))
        return max(NARROWEST, min(most, self.caps.beam))

    def best(self, layer: Layer, count: int, weights: Weights | None) -> Layer:
        """The cheapest ideals of some of one size."""
        if len(layer) <= count:
            return layer

        def value(labels: list[Label]) -> float:
            if weights is None:
                return min((self.total(x.cost) for x in labels), default=math.inf)
            device, host = weights
            sums = (device * x.cost.device + host * x.cost.host for x in labels)
            return min(sums, default=math.inf)

        kept = sorted(layer, key=lambda ideal: (value(layer[ideal]), ideal))[:count]
        return {ideal: layer[ideal] for ideal in kept}

    def is_kept(
        self, known: list[Any], device: float, host: float, weights: Weights | None
    ) -> bool:
        """True if no way that is known is as cheap; drops those that the new one beats."""
        if device == math.inf:
            return False
        if weights is not None:
            value = weights[0] * device + weights[1] * host
            for x in known:
                own = weights[0] * x.cost.device + weights[1] * x.cost.host
                if own < value or (own == value and self.is_no_longer(x.cost, device, host)):
                    return False
            known.clear()
            return True
        if any(x.cost.device <= device and x.cost.host <= host for x in known):
            return False
        known[:] = [x for x in known if x.cost.device < device or x.cost.host < host]
        if len(known) >= self.caps.labels:
            raise TooManyLabels
        return True

    def is_no_longer(self, cost: Seconds, device: float, host: float) -> bool:
        """True if a cost is at most as long as other seconds."""
        return self.total(cost) <= self.total(Seconds(device, host))


def _followed(window: Window, ideal: int) -> Following:
    """The parts that may follow an ideal: found once, as they do not depend on costs."""
    found = window.following.get(ideal)
    if found is None:
        found = _next(window, ideal)
        if len(window.following) < MOST_FOLLOWED:
            window.following[ideal] = found
    return found


def _next(window: Window, ideal: int) -> Following:
    """The parts that may come next, and the number that was looked at.

    They have the first unit that has not run, or what is needed before it.
    """
    left = window.all & ~ideal
    first = (left & -left).bit_length() - 1
    wanted = waiting = 0
    for part, needed, _ in window.by_least.get(first, ()):
        if not part & ideal:
            waiting |= needed & ~ideal
    while waiting:
        least = waiting & -waiting
        wanted |= least
        waiting |= window.needed_with[least.bit_length() - 1]
        waiting &= ~(wanted | ideal)
    found, tried = list[Placing](), 0
    for least in members(left) if wanted else (first,):
        own = window.by_least.get(least, ())
        tried += len(own)
        for placing in own:
            part, needed, _ = placing
            if not (part & ideal or needed & ~ideal) and (least == first or part & wanted):
                found.append(placing)
    return found, tried
