"""Costs of candidates that depend on their structure alone, so that equal layers cost the same."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.select.candidates import Window
from blockbuster_fusion.select.units import Units


def share(*given: object) -> float:
    """A number from 0 to 1 that some data tell."""
    digest = hashlib.sha256(repr(given).encode()).digest()
    return int.from_bytes(digest[:6], "big") / (1 << 48)


@dataclass(frozen=True)
class StructuredCosts:
    """A cost for each candidate of a window: about that of its units, less or more."""

    seed: int
    has_host: bool

    def price(self, window: Window, part: int) -> Seconds:
        key = (self.seed, window.key_of[part])
        each = sum(1 + 9 * share(*key, n) for n in range(part.bit_count()))
        factor = 1.0 if part.bit_count() == 1 else 0.5 + share("device", *key)
        host = 2 + 8 * share("host", *key) if self.has_host else 0.0
        return Seconds(each * factor, host)

    def floor(self, window: Window, part: int) -> Seconds:
        return self.price(window, part) * (
            0.3 + 0.7 * share("floor", self.seed, window.key_of[part])
        )


@dataclass(frozen=True)
class FlooredCosts:
    """Costs above floors that are given, by a factor of the candidate."""

    floor: Callable[[Window, int], Seconds]

    def price(self, window: Window, part: int) -> Seconds:
        floor = self.floor(window, part)
        key = window.key_of[part]
        device = 1.0 + share("device", key)
        return Seconds(floor.device * device, floor.host * (1 + share(key)))


def joined(
    units: Units, found: Sequence[Window], costs: StructuredCosts | FlooredCosts
) -> tuple[Window, dict[int, Seconds]]:
    """All windows of some units as one, and the costs of its candidates."""
    kept = {
        part << window.first: costs.price(window, part)
        for window in found
        for part in window.candidates
    }
    needed = tuple(map(units.order.needed, kept))
    keys = tuple(map(str, kept))
    return Window(0, len(units.members), "all", tuple(kept), needed, keys), kept
