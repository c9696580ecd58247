"""The certificate of a partition: its cost, and a bound of all others."""

from dataclasses import dataclass

SLACK = 1e-12
"""The relative difference below which two sums are equal: they may be added in another order."""


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
