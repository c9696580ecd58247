"""The collectives of a model, with their predicted times."""

from collections.abc import Iterator
from dataclasses import dataclass

from blockbuster_fusion.plans.amounts import amount, counted
from blockbuster_fusion.torch.capture.collectives import (
    is_collective,
    is_wait,
    transfer_of,
    waits_for,
)
from blockbuster_fusion.torch.capture.sizes import captured_length
from blockbuster_fusion.torch.compiled_graph import CompiledGraph
from blockbuster_fusion.torch.rivals.collective_times import transfer_seconds


@dataclass(frozen=True)
class CollectiveReport:
    """A transfer between the ranks of a group, which PyTorch runs between kernels."""

    operator: str
    """The name of the collective: `all_reduce`."""
    node: str
    region: str
    bytes: int
    """The size of the whole array, in the captured call."""
    ranks: int | None
    """The size of the group; None if this process does not know the group."""
    seconds: float | None
    """The predicted time from its start to its end; None if the link is not known."""
    waits: tuple[str, ...]
    """The nodes that wait for it, where the time is spent."""

    def __str__(self) -> str:
        where = f" in {self.region}" if self.region else ""
        among = "an unknown group" if self.ranks is None else counted(self.ranks, "rank")
        spent = "time unknown" if self.seconds is None else f"{self.seconds * 1e6:.4g} µs predicted"
        at = f", waited for at {', '.join(self.waits)}" if self.waits else ""
        return f"{self.operator} ({self.node}{where}): {amount(self.bytes)}, {among}; {spent}{at}"


def collectives_of(graph: CompiledGraph) -> Iterator[CollectiveReport]:
    """The collectives of a graph, in the order in which every rank calls them."""
    length = captured_length(graph.analysis)
    nodes = [u.node for u in graph.unfused if is_collective(u.node.target)]
    for node in (n for n in nodes if not is_wait(n.target)):
        moved = transfer_of(node, length)
        yield CollectiveReport(
            moved.operator,
            node.name,
            graph.analysis.regions[node],
            moved.bytes,
            moved.ranks,
            transfer_seconds(node, length),
            tuple(wait.name for wait in waits_for(node)),
        )
