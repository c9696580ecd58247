"""The time of the kernels of a part, before they are compiled."""

from dataclasses import dataclass

from blockbuster_fusion.schedule.cost import Seconds


@dataclass(frozen=True)
class Estimate:
    """The time of the kernels of a part, and how it is known."""

    seconds: Seconds
    basis: str
    config: str = ""
    error: float = 1.0
    """The factor by which they may be slower."""
    obstacle: str = ""
    """The reason why there are no kernels, if that is so."""
