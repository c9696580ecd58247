"""Fusers: what can run a part of a model, and at what cost.

Our rules are one fuser. The operators of a library are another; a user's own operators too.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from blockbuster_fusion.schedule.cost import Seconds


@dataclass(frozen=True, slots=True)
class Offer:
    """A way to run a part."""

    fuser: str
    cost: Seconds
    """The seconds that it counts with: longer than they are expected to be, by their error."""
    seconds: Seconds
    """The seconds that are expected."""
    basis: str = "predicted"
    """The source of the seconds: predicted, or measured."""


class Fuser(Protocol):
    """Runs parts of a model; a part is a set of units as a number, see select/order.py."""

    @property
    def name(self) -> str:
        """The name that plans show."""

    @property
    def is_exact(self) -> bool:
        """True if its floors are its costs, so that asking it takes no time."""

    def candidates(self) -> list[int]:
        """The parts that it can run beside those that our rules may."""

    def floor(self, part: int) -> Seconds | None:
        """A cost that no offer for a part is below; None if it can't run the part."""

    def guess(self, part: int) -> Seconds | None:
        """A cost that may be expected of the offer, not below the floor."""

    def ahead(self, parts: Iterable[int]) -> None:
        """Is told which parts it is asked about next, unless it is exact."""

    def offer(self, part: int) -> Offer | None:
        """The best way to run a part, or None."""
