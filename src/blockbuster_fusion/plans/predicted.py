"""A choice for a program with its predicted time, for sizes that are known."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from blockbuster_fusion.choice import Choice
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.buffered import buffered
from blockbuster_fusion.ir.tiling import Extents, Tiling
from blockbuster_fusion.machine.machine import Machine
from blockbuster_fusion.nest.analysis.traffic import traffic_of
from blockbuster_fusion.nest.nest import Buffer, Launchable, Nest
from blockbuster_fusion.schedule.cost import Seconds, predicted

Bytes = dict[Buffer, int]


def touched(launched: Launchable, tiling: Tiling) -> tuple[Bytes, Bytes]:
    """The bytes of each array in memory that a launch reads, and of each that it writes."""
    found = traffic_of(launched, tiling).touched
    read = {buffer: loaded for buffer, (loaded, _) in found.items() if loaded}
    return read, {buffer: stored for buffer, (_, stored) in found.items() if stored}


@dataclass(frozen=True)
class Predicted:
    """A choice for a program on a machine, and the lengths of its axes."""

    choice: Choice
    extents: Extents
    machine: Machine

    @cached_property
    def scheduled(self) -> tuple[Nest, Mapping[Dim, int]]:
        return self.choice.scheduled()

    @property
    def nest(self) -> Nest:
        return self.scheduled[0]

    @property
    def tiling(self) -> Tiling:
        return Tiling(self.extents, self.scheduled[1])

    @cached_property
    def seconds(self) -> Seconds | None:
        """The predicted time; None if there are no kernels."""
        try:
            return predicted(self.nest, self.tiling, self.machine, self.choice.schedule)
        except BlockbusterError:
            return None

    @cached_property
    def stored(self) -> int:
        """The number of intermediates in memory."""
        return len(buffered(self.choice.graph))
