"""Searches the schedule space by predicted cost: one dim at a time, from several starts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.tiling import Extents, Tiling
from blockbuster_fusion.machine.machine import Machine
from blockbuster_fusion.nest.nest import Nest
from blockbuster_fusion.schedule.cost import Seconds, predicted, work_of
from blockbuster_fusion.schedule.schedule import Schedule
from blockbuster_fusion.schedule.space import GRIDS, Space

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
    """Schedules with their best tiles, the best first; the usual one is among them."""
    found: list[Found] = []
    schedules = [usual, *(replace(usual, grid=grid) for grid in GRIDS if grid != usual.grid)]
    for schedule in schedules:
        made = _best_tiles(lower, schedule, extents, machine)
        if made is None:
            continue
        found.append(made)
        nest, _ = lower(schedule)
        space = Space(nest, extents, machine)
        tiling = Tiling(extents, made.tiles)
        fewest = min(work_of(k, tiling, machine.target).programs for k in nest.kernels)
        for split in space.splits(fewest):
            shared = _best_tiles(lower, replace(schedule, split=split), extents, machine)
            found += [] if shared is None else [shared]
    return sorted(found, key=lambda x: x.seconds.device)


def _best_tiles(
    lower: Lower, schedule: Schedule, extents: Extents, machine: Machine
) -> Found | None:
    """The best tiles for a schedule, or None if the program cannot be run so."""
    try:
        return _tiled(lower, schedule, extents, machine)
    except BlockbusterError:
        return None


def _tiled(lower: Lower, schedule: Schedule, extents: Extents, machine: Machine) -> Found:
    """A schedule with the tiles of the least predicted time."""
    nest, usual = lower(schedule)
    space = Space(nest, extents, machine)
    best, tiles = _descended(space, {**usual, **space.long_rows})
    other, changed = _descended(space, usual)
    if other.device < best.device * GAIN:
        best, tiles = other, changed
    return Found(best, schedule, tiles)


def _descended(space: Space, start: Mapping[Dim, int]) -> tuple[Seconds, dict[Dim, int]]:
    """The tiles of the least predicted time, from a start, changed one dim at a time."""
    nest, extents, machine, tiles = space.nest, space.extents, space.machine, dict(start)
    best = predicted(nest, Tiling(extents, tiles), machine)
    for _ in range(SWEEPS):
        before = dict(tiles)
        for dim in space.dims:
            for tile in space.tiles(dim):
                changed = {**tiles, dim: tile}
                if tile == tiles.get(dim) or not space.fits(changed):
                    continue
                seconds = predicted(nest, Tiling(extents, changed), machine)
                if seconds.device < best.device * GAIN:
                    best, tiles = seconds, changed
        if tiles == before:
            break
    return best, tiles
