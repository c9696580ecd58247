"""The link between the ranks of a group, and the time of a collective over it.

A ring of n ranks passes an array on in n pieces: each rank sends (n - 1) / n of it to gather or to
scatter it, and twice that to reduce it everywhere. This is the least that any algorithm sends over
links between pairs, so the rate is the `busbw` that NCCL's tests print.
"""

from dataclasses import dataclass, field

PASSES = {"all_reduce": 2, "all_reduce_coalesced": 2}
"""The times that a collective passes the array around; others do once."""


@dataclass(frozen=True, slots=True)
class Link:
    """The way between two ranks."""

    name: str
    rate: float
    """Bytes per second that a rank sends, and receives at the same time."""
    latency: float
    """Seconds of a collective over no more than a few bytes."""
    source: str = field(default="", compare=False)
    """The origin of the figures."""

    def seconds(self, collective: str, size: int, ranks: int) -> float:
        """The time of a collective over an array of that many bytes, from its start to its end."""
        sent = PASSES.get(collective, 1) * size * (ranks - 1) / ranks
        return self.latency + sent / self.rate


LOOPBACK = Link(
    "loopback",
    rate=5e8,
    latency=3e-4,
    source="gloo between two processes of one machine with two cores: benchmarks/collectives.py",
)
"""The link between processes on one CPU."""
