"""Weighs kernels against PyTorch's operators for the sizes that later calls may have."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch.fx import Node

from blockbuster_fusion.array.axes import Length
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.ir.tiling import Extents, Tiling
from blockbuster_fusion.machine.machine import Machine
from blockbuster_fusion.messages import log
from blockbuster_fusion.runtime.executable import Sizes
from blockbuster_fusion.schedule.cost import Seconds, predicted
from blockbuster_fusion.torch.capture.sizes import ExpectedSizes
from blockbuster_fusion.torch.compile_parts import PartCompiler
from blockbuster_fusion.torch.groups import LibraryChoice
from blockbuster_fusion.torch.rivals.composites import Composite
from blockbuster_fusion.torch.rivals.least import bytes_of
from blockbuster_fusion.torch.rivals.library import LibraryTimes

MOST_BYTES = 1 << 23
"""The bytes of the largest array that PyTorch's operators are measured with."""


@dataclass(frozen=True)
class Loss:
    """Sizes for which PyTorch's operators are faster than kernels."""

    sizes: Sizes
    library: Seconds
    kernels: Seconds
    config: str
    """The configuration of these kernels."""

    def described(self, choice: LibraryChoice) -> LibraryChoice:
        """A choice of PyTorch's operators, with the times for these sizes."""
        basis = "predicted for " + ", ".join(f"{axis}={length}" for axis, length in self.sizes)
        return replace(
            choice, library=self.library, kernels=self.kernels, basis=basis, config=self.config
        )


def later_loss(
    parts: PartCompiler,
    machine: Machine,
    nodes: Sequence[Node],
    cheap: Sequence[Node],
    composites: Sequence[Composite],
    *,
    replayed: bool,
) -> Loss | None:
    """The sizes for which the kernels of a part are predicted to lose: the least, or large ones.

    `cheap` are operators that PyTorch would run beside those of the part.
    """
    part, target = parts.program(nodes), parts.options.target_of(nodes)
    if not parts.points(part):
        return None
    usual, elsewhere = parts.choices(part, target)[0], parts.elsewhere(part, target)
    for length in _ends(parts.expected, nodes):
        sizes = parts.sizes(part, length)
        try:
            library = LibraryTimes(parts.analysis, length).of([*cheap, *nodes], composites)
            choice = elsewhere.choice(usual, sizes)
            nest, tiles = choice.scheduled()
            tiling = Tiling(Extents.of_sizes(sizes, "a later call"), tiles)
            kernels = predicted(nest, tiling, machine, choice.schedule)
        except (BlockbusterError, RuntimeError, ValueError) as error:
            log.debug("no call can have such sizes: %s", error)
            continue
        if kernels.total(replayed=replayed) > library.total(replayed=replayed):
            return Loss(sizes, library, kernels, str(choice.config))
    return None


def _ends(expected: ExpectedSizes, nodes: Sequence[Node]) -> Iterator[Length]:
    """The least sizes, and the largest whose arrays are not too long to be tried."""
    yield expected.shortest
    for length in expected.longest:
        if max(bytes_of(node, length) for node in nodes) <= MOST_BYTES:
            yield length
            return
