"""Searches the schedule space by predicted cost: one dim at a time, from several starts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.tiling import Extents, Tiling
from blockbuster_fusion.machine.machine import Machine
from blockbuster_fusion.nest.nest import Nest
from blockbuster_fusion.schedule.cost import Seconds, predicted
from blockbuster_fusion.schedule.schedule import Schedule
from blockbuster_fusion.schedule.space import GRIDS, Space
from blockbuster_fusion.schedule.work import work_of

SWEEPS = 2
GAIN = 0.97
"""The share of the time that a change must leave to be worth it."""


@dataclass(frozen=True)
class Found:
    """A schedule with tiles, and its predicted time."""

    seconds: Seconds
    schedule: Schedule
    tiles: Mapping[Dim, int]


Lower = Callable[[Schedule], tuple[Nest, Mapping[Dim, int]]]
"""Gives the nest of a schedule, and the usual tiles of its dims."""


def searched(lower: Lower, usual: Schedule, extents: Extents, machine: Machine) -> list[Found]:
    """All points that a search has visited, the best first; the usual schedule is among them."""
    search = _Search(lower, extents, machine)
    forms = [replace(usual, grid=grid) for grid in (usual.grid, *GRIDS)]
    forms += [replace(form, apart=True) for form in forms if search.has_prologue(form)]
    for schedule in dict.fromkeys(forms):
        best = search.visit(schedule)
        if best is not None:
            for split in search.splits(best):
                search.visit(split)
    return sorted(search.visited, key=lambda x: x.seconds.device)


class _Search:
    """The points that have been visited so far."""

    def __init__(self, lower: Lower, extents: Extents, machine: Machine) -> None:
        self.lower, self.extents, self.machine = lower, extents, machine
        self.visited: list[Found] = []
        self.known: dict[object, Found] = {}

    def has_prologue(self, schedule: Schedule) -> bool:
        """True if a kernel of its own can compute a prologue."""
        try:
            whole, apart = (self.lower(replace(schedule, apart=x))[0] for x in (False, True))
        except BlockbusterError:
            return False
        return len(apart.kernels) > len(whole.kernels)

    def splits(self, best: Found) -> list[Schedule]:
        """The schedules that share the reductions of one that leaves the machine idle.

        On a GPU, also of one that would do so with long rows, which are read faster.
        """
        nest, _ = self.lower(best.schedule)
        space, target = Space(nest, self.extents, self.machine), self.machine.target
        rows = [{**best.tiles, **space.long_rows}] if target == "cuda" else []
        tilings = [Tiling(self.extents, tiles) for tiles in (best.tiles, *rows)]
        fewest = min(
            work_of(k, tiling, target).programs for k in nest.kernels for tiling in tilings
        )
        splits = space.splits(fewest)
        return [replace(best.schedule, split=split) for split in splits]

    def visit(self, schedule: Schedule) -> Found | None:
        """The best tiles for a schedule, or None if the program cannot be run so."""
        try:
            nest, usual = self.lower(schedule)
            space = Space(nest, self.extents, self.machine)
            starts = [{**usual, **space.long_rows}, space.shortened(usual)]
            found = [self.descend(schedule, space, start) for start in starts]
        except BlockbusterError:
            return None
        return min(found, key=lambda x: x.seconds.device)

    def descend(self, schedule: Schedule, space: Space, tiles: Mapping[Dim, int]) -> Found:
        """The tiles of the least predicted time, from a start, changed one dim at a time."""
        best = self.point(schedule, space.nest, tiles)
        for _ in range(SWEEPS):
            before = best
            for dim in space.dims:
                for tile in space.tiles(dim):
                    changed = {**best.tiles, dim: tile}
                    if tile == best.tiles.get(dim) or not space.fits(changed):
                        continue
                    other = self.point(schedule, space.nest, changed)
                    if other.seconds.device < best.seconds.device * GAIN:
                        best = other
            if best is before:
                break
        return best

    def point(self, schedule: Schedule, nest: Nest, tiles: Mapping[Dim, int]) -> Found:
        """A point of the space with its predicted time; sweeps and starts meet again."""
        key = (schedule, frozenset(tiles.items()))
        if key not in self.known:
            seconds = predicted(nest, Tiling(self.extents, tiles), self.machine, schedule)
            self.known[key] = Found(seconds, schedule, dict(tiles))
        self.visited.append(self.known[key])
        return self.known[key]
