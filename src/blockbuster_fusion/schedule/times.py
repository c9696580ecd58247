"""The predicted times of one nest with many tiles and options of launches.

A change of one dim concerns the launches that have it, and the work of a kernel depends on the
tiles of its own dims.
"""

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.tiling import Extents, Tiling
from blockbuster_fusion.machine.machine import Machine
from blockbuster_fusion.nest.nest import Clear, Kernel, Launchable, Nest
from blockbuster_fusion.schedule.cost import Seconds, clearing, predicted_launch
from blockbuster_fusion.schedule.count_work import work_with
from blockbuster_fusion.schedule.kernel_facts import KernelFacts
from blockbuster_fusion.schedule.schedule import Schedule, left_out
from blockbuster_fusion.schedule.work import Work

PREDICTED = ("warps", "stages", "programs", "described", "joined", "early", "threads")
"""The options of a schedule that the time of a launch depends on."""
OwnTiles = tuple[int | None, ...]
"""The tiles of the dims of one kernel; None for a dim that has none."""


def total(times: Iterable[Seconds]) -> Seconds:
    """The time of several launches, one after the other."""
    return sum(times, Seconds(0.0))


class CountedKernel:
    """A kernel whose work is counted once for each choice of its tiles."""

    def __init__(self, kernel: Kernel, extents: Extents, target: str) -> None:
        self.facts, self.extents = KernelFacts(kernel, target), extents
        self.works: dict[OwnTiles, Work] = {}

    def own(self, tiles: Mapping[Dim, int]) -> OwnTiles:
        """The tiles of its own dims, in order."""
        return tuple(map(tiles.get, self.facts.dims))

    def work(self, tiles: Mapping[Dim, int]) -> Work:
        """The work with some tiles."""
        own = self.own(tiles)
        if own not in self.works:
            self.works[own] = work_with(self.facts, Tiling(self.extents, tiles))
        return self.works[own]


class _Launch:
    """One launch of a nest, whose time is predicted once for each choice of its tiles."""

    def __init__(self, kernels: Sequence[CountedKernel], left_out: tuple[str, ...]) -> None:
        """`left_out` are the options that are left to the rule of thumb."""
        self.kernels, self.left_out = kernels, left_out
        self.options = attrgetter(*(name for name in PREDICTED if name not in left_out))
        self.dims = {dim for kernel in kernels for dim in kernel.facts.dims}
        self.known: dict[object, Seconds] = {}

    def seconds(self, schedule: Schedule, tiles: Mapping[Dim, int], machine: Machine) -> Seconds:
        key = (self.options(schedule), *[kernel.own(tiles) for kernel in self.kernels])
        found = self.known.get(key)
        if found is None:
            works = [kernel.work(tiles) for kernel in self.kernels]
            own = schedule.without(self.left_out)
            found = self.known[key] = predicted_launch(works, machine, own)
        return found


class _Clearing:
    """An array that is set to 0 between kernels, which takes the same time whatever the tiles."""

    dims: frozenset[Dim] = frozenset()

    def seconds(self, schedule: Schedule, tiles: Mapping[Dim, int], machine: Machine) -> Seconds:
        return clearing(machine)


class CountedKernels:
    """The kernels of many nests, with arrays of certain sizes; nests may share kernels."""

    def __init__(self, extents: Extents, machine: Machine) -> None:
        self.extents, self.machine = extents, machine
        self.known: dict[Kernel, CountedKernel] = {}
        self.launches: dict[tuple[tuple[CountedKernel, ...], tuple[str, ...]], _Launch] = {}

    def counted(self, kernel: Kernel) -> CountedKernel:
        if kernel not in self.known:
            self.known[kernel] = CountedKernel(kernel, self.extents, self.machine.target)
        return self.known[kernel]

    def times(self, nest: Nest) -> "Times":
        """The times of a nest."""
        clears = [_Clearing() for step in nest.steps if isinstance(step, Clear)]
        return Times([*(self.launch(x, nest) for x in nest.launches), *clears], self.machine)

    def launch(self, launched: Launchable, nest: Nest) -> _Launch:
        """A launch of a nest; nests that share its kernels share what is known of it."""
        kernels = tuple(map(self.counted, launched.kernels))
        own = left_out(launched, nest.kernels)
        return self.launches.setdefault((kernels, own), _Launch(kernels, own))


class Times:
    """Predicts the time of each launch of a nest."""

    def __init__(self, launches: Sequence[_Launch | _Clearing], machine: Machine) -> None:
        self.launches, self.machine = launches, machine

    def predicted(self, schedule: Schedule, tiles: Mapping[Dim, int]) -> tuple[Seconds, ...]:
        """The time of each launch."""
        return tuple(x.seconds(schedule, tiles, self.machine) for x in self.launches)

    def changed(
        self, times: Sequence[Seconds], dim: Dim, schedule: Schedule, tiles: Mapping[Dim, int]
    ) -> tuple[Seconds, ...]:
        """The time of each launch after the tile of one dim has changed."""
        return tuple(
            x.seconds(schedule, tiles, self.machine) if dim in x.dims else before
            for x, before in zip(self.launches, times, strict=True)
        )

    def concerned(self, times: Sequence[Seconds], dim: Dim) -> float:
        """The seconds of the device for the launches that have a dim."""
        pairs = zip(self.launches, times, strict=True)
        return sum(seconds.device for x, seconds in pairs if dim in x.dims)
