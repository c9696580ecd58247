"""Searches the schedule space by predicted cost: one dim at a time, from several starts."""

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.nest.nest import Nest
from blockbuster_fusion.nest.passes.transpose_products import few_rows_and_columns
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.schedule.schedule import Grid, Schedule
from blockbuster_fusion.schedule.space import Space
from blockbuster_fusion.schedule.times import CountedKernels, Times, total

SWEEPS = 2
GAIN = 0.97
"""The share of the time that a change must leave to be worth it: on a GPU, of the kernels that it
concerns."""
USUAL = 1.01
"""The factor within which an option is left to the rule of thumb."""
LESS = 0.999
"""The share of the time that descriptors, joined products, and other warps for products with
vectors in one step must leave: where they change nothing, there are none."""
MOST_FREE = 6
"""The most stages that are taken if they cost nothing, as no fewer programs run at a time."""


@dataclass(frozen=True)
class Found:
    """A schedule with tiles, and its predicted time."""

    launches: tuple[Seconds, ...]
    """The time of each launch."""
    schedule: Schedule
    tiles: Mapping[Dim, int]

    @cached_property
    def seconds(self) -> Seconds:
        """The time of all launches."""
        return total(self.launches)


Lower = Callable[[Schedule], tuple[Nest, Mapping[Dim, int]]]
"""Gives the nest of a schedule, and the usual tiles of its dims."""


def searched(lower: Lower, usual: Schedule, kernels: CountedKernels) -> list[Found]:
    """All points that a search has visited, the best first; the usual schedule is among them."""
    search, machine = _Search(lower, kernels), kernels.machine
    forms = [replace(usual, grid=grid) for grid in (usual.grid, *search.grids(usual))]
    forms += [more for form in forms if search.adds(form, more := replace(form, apart=True))]
    if machine.target == "cuda":
        own = [form for form in forms if form.grid == usual.grid]
        forms += [more for form in own if search.adds(form, more := replace(form, padded=True))]
    for schedule in search.distinct(forms):
        best = search.visit(schedule)
        if best is not None:
            search.transpose(best)
        if best is not None and schedule.grid != "one":
            search.share(best)
    if machine.target == "cuda":
        for schedule in dict.fromkeys(form for form in forms if form.grid == usual.grid):
            search.join(schedule)
    return sorted(search.visited, key=lambda x: (x.seconds.device, x.schedule.warps is not None))


def glanced(lower: Lower, usual: Schedule, kernels: CountedKernels) -> float:
    """The least predicted seconds of a program with good tiles, its prologue apart or not."""
    least = math.inf
    for schedule in (usual, replace(usual, apart=True)):
        try:
            nest, tiles = lower(schedule)
        except BlockbusterError:
            continue
        space = Space(nest, kernels.extents, kernels.machine)
        rows = {**tiles, **space.long_rows}
        for start in space.starts:
            seconds = kernels.times(nest).predicted(schedule, {**rows, **start})
            least = min(least, total(seconds).device)
    return least


class _Search:
    """The points that have been visited so far."""

    def __init__(self, lower: Lower, kernels: CountedKernels) -> None:
        self.lower, self.kernels = lower, kernels
        self.extents, self.machine = kernels.extents, kernels.machine
        self.visited: list[Found] = []

    def grids(self, schedule: Schedule) -> tuple[Grid, ...]:
        """The grids that are tried."""
        try:
            return Space(self.lower(schedule)[0], self.extents, self.machine).grids
        except BlockbusterError:
            return ()

    def adds(self, schedule: Schedule, other: Schedule) -> bool:
        """True if another schedule has more kernels: one for a prologue, or some for copies."""
        try:
            few, more = (self.lower(x)[0] for x in (schedule, other))
        except BlockbusterError:
            return False
        return len(more.kernels) > len(few.kernels)

    def distinct(self, forms: Iterable[Schedule]) -> list[Schedule]:
        """The schedules whose nests differ: without nested loops, all grids are one."""
        found: dict[object, Schedule] = {}
        for form in forms:
            grids = self.grids_of(form)
            if grids is not None:
                found.setdefault((grids, replace(form, grid="all")), form)
        return [*found.values()]

    def grids_of(self, schedule: Schedule) -> object:
        """The grids of the kernels of a schedule; None if there are no kernels."""
        try:
            kernels = self.lower(schedule)[0].kernels
        except BlockbusterError:
            return None
        return tuple(tuple(index.dim for index in kernel.grid) for kernel in kernels)

    def join(self, schedule: Schedule) -> None:
        """Looks at kernels that share a launch, with the split that is best for them apart."""
        together = replace(schedule, together=True)
        try:
            nest, _ = self.lower(together)
        except BlockbusterError:
            return
        if len(nest.launches) == len(nest.kernels):
            return
        self.visit(together)
        form = _form(schedule)
        apart = [x for x in self.visited if _form(x.schedule) == form and not x.schedule.together]
        best = min(apart, key=lambda x: x.seconds.device, default=None)
        if best is not None and best.schedule.split:
            self.visit(replace(together, split=best.schedule.split))

    def share(self, best: Found) -> None:
        """Looks at reductions that more and more programs share, until more of them are slower."""
        several: dict[object, list[Schedule]] = {}
        for split in self.splits(best):
            several.setdefault((*split.split, split.apart), []).append(split)
        for splits in several.values():
            least = math.inf
            for split in sorted(splits, key=lambda x: sum(x.split.values())):
                found = self.visit(split)
                if found is None or found.seconds.device > least:
                    break
                least = found.seconds.device

    def splits(self, best: Found) -> list[Schedule]:
        """The schedules that share the reductions of one that leaves the machine idle.

        On a GPU, also of one that would do so with long rows, which are read faster; and with what
        reads the results of the reductions in a kernel of its own.
        """
        nest, _ = self.lower(best.schedule)
        space, target = Space(nest, self.extents, self.machine), self.machine.target
        tiles = [best.tiles, *([{**best.tiles, **space.long_rows}] if target == "cuda" else [])]
        kernels = map(self.kernels.counted, nest.kernels)
        fewest = min(kernel.work(some).programs for kernel in kernels for some in tiles)
        stages = None if best.schedule.stages == 1 else best.schedule.stages
        whole = replace(best.schedule, stages=stages)  # parts of rows are loaded in stages again
        made = [replace(whole, split=split) for split in space.splits(fewest)]
        if target == "cuda" and not best.schedule.apart:
            others = ((self.grids_of(x), replace(x, apart=True)) for x in made)
            made += [x for grids, x in [*others] if self.grids_of(x) not in (None, grids)]
        return made

    def transpose(self, best: Found) -> None:
        """Looks at the transposes of products with few rows, with the same tiles."""
        schedule = replace(best.schedule, transposed=True)
        if any(map(few_rows_and_columns, self.lower(best.schedule)[0].kernels)):
            with contextlib.suppress(BlockbusterError):
                times = self.kernels.times(self.lower(schedule)[0])
                self.point(schedule, times.predicted(schedule, best.tiles), best.tiles)

    def visit(self, schedule: Schedule) -> Found | None:
        """The best tiles for a schedule, or None if the program cannot be run so."""
        try:
            nest, usual = self.lower(schedule)
            space, times = Space(nest, self.extents, self.machine), self.kernels.times(nest)
            starts = [*({**usual, **tiles} for tiles in space.starts)]
            starts += [] if space.streamed else [space.bounded(usual)]
            found = [self.descend(schedule, space, times, start) for start in starts]
        except BlockbusterError:
            return None
        return min(found, key=lambda x: x.seconds.device)

    def descend(
        self, schedule: Schedule, space: Space, times: Times, tiles: Mapping[Dim, int]
    ) -> Found:
        """The tiles of the least predicted time, from a start, changed one dim at a time."""
        best = self.point(schedule, times.predicted(schedule, tiles), tiles)
        for _ in range(SWEEPS):
            before = best
            best = self.launched(best, space, times)
            for dim in space.dims:
                gain = (1 - GAIN) * self.concerned(best, times, dim)
                for tile in space.tiles(dim):
                    changed = {**best.tiles, dim: tile}
                    if tile == best.tiles.get(dim) or not space.fits(changed):
                        continue
                    seconds = times.changed(best.launches, dim, best.schedule, changed)
                    other = self.point(best.schedule, seconds, changed)
                    if other.seconds.device < best.seconds.device - gain:
                        best = other
            if best is before:
                break
        return best

    def concerned(self, point: Found, times: Times, dim: Dim) -> float:
        """The predicted time of the kernels that have a dim; of all, on a CPU."""
        if self.machine.target == "cpu":
            return point.seconds.device
        return times.concerned(point.launches, dim)

    def launched(self, best: Found, space: Space, times: Times) -> Found:
        """The same tiles with other options of launches, where these are predicted to be faster."""
        for change in space.searched_launches:
            schedule = replace(best.schedule, **change)
            other = Found(times.predicted(schedule, best.tiles), schedule, best.tiles)
            if other.seconds.device <= best.seconds.device * _limit(change, best, space):
                best = other
        self.visited.append(best)
        return best

    def point(
        self, schedule: Schedule, launches: tuple[Seconds, ...], tiles: Mapping[Dim, int]
    ) -> Found:
        """A point of the space that is visited."""
        self.visited.append(Found(launches, schedule, tiles))
        return self.visited[-1]


def _form(schedule: Schedule) -> tuple[Grid, bool, bool]:
    return (schedule.grid, schedule.apart, schedule.padded)


def _limit(change: Mapping[str, Any], best: Found, space: Space) -> float:
    """The share of the time that a change of options of launches must leave."""
    if "described" in change:
        return LESS if change["described"] else 1.0
    ((name, value),) = change.items()
    if value is None:
        return USUAL
    if name == "joined":
        return LESS if value else 1.0
    if name == "warps" and space.has_one_step(best.tiles):
        return LESS
    is_free = name == "stages" and 1 < value <= MOST_FREE
    return 1.0 if is_free or (name == "programs" and best.schedule.described) else GAIN
