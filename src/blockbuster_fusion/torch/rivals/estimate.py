"""The time of the kernels of a part, before they are compiled."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch.fx import Node

from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.torch.capture.called import called
from blockbuster_fusion.torch.capture.nodes import name_of
from blockbuster_fusion.torch.groups import LibraryChoice
from blockbuster_fusion.torch.rivals.composites import Composite


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
    is_kept: bool = False
    """True if it is from the user's database, not from a seed."""


def library_entry(
    nodes: Sequence[Node],
    region: str,
    composites: Sequence[Composite],
    library: Seconds,
    estimate: Estimate,
) -> LibraryChoice:
    """A part as `explain` lists it, with the times of PyTorch's operators and of kernels."""
    return LibraryChoice(
        operators=tuple(map(name_of, nodes)),
        region=region,
        library=library,
        kernels=estimate.seconds,
        basis=estimate.basis,
        config=estimate.config,
        recognised=tuple(str(x.operator) for x in composites),
        obstacle=estimate.obstacle,
        nodes=tuple(n.name for n in nodes),
        called=tuple(map(called, nodes)),
    )
