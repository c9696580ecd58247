"""The search for the schedules of a program, as a job for a worker process.

A job has a program, the dtypes and sizes of its arrays, and a machine. The answer has the points of
the schedule space of the least predicted times, and the time of the first. They are the same
wherever they are searched.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from blockbuster_fusion.array.data import (
    Data,
    axis_data,
    axis_from_data,
    program_data,
    program_from_data,
)
from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.choice import Choice
from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.errors import BlockbusterError, WorkerFailed
from blockbuster_fusion.improve import MOST_SEARCHED, Improver, Ranked, merged
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.tiling import Extents, Tiling
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.machine.machine import Machine, from_mapping
from blockbuster_fusion.messages import log
from blockbuster_fusion.runtime.executable import Sizes
from blockbuster_fusion.runtime.workers import shared_workers
from blockbuster_fusion.schedule.config import Config
from blockbuster_fusion.schedule.cost import Seconds, error_of, predicted
from blockbuster_fusion.worker import SEARCH


@dataclass(frozen=True)
class SearchJob:
    """A program whose schedules are to be searched."""

    request: Request
    """An array program with the dtypes of its arrays in memory, and its target."""
    mirrored: bool
    """True if the program reads an array and its transpose."""
    sizes: Sizes
    machine: Machine
    only: int | None = None
    """The number of the snapshot that is searched, if there are so many; None for all of them."""

    def choices(self) -> list[Choice]:
        """The snapshots of the program, with default tiles and schedules."""
        found = choose(self.request)
        return [choice.mirrored for choice in found] if self.mirrored else found

    def data(self) -> Data:
        """The job as plain data."""
        request, program = self.request, self.request.program
        assert isinstance(program, ArrayProgram)
        assert isinstance(request.stored, Mapping)
        return {
            "task": SEARCH,
            "program": program_data(program),
            "storage": {name: str(dtype) for name, dtype in request.stored.items()},
            "target": request.target,
            "capability": request.capability,
            "mirrored": self.mirrored,
            "sizes": [[*axis_data(axis), length] for axis, length in self.sizes],
            "machine": self.machine.data(),
            "only": self.only,
        }

    @classmethod
    def from_data(cls, data: Data) -> "SearchJob":
        """The job that `data` wrote."""
        request = Request(
            program_from_data(data["program"]),
            target=data["target"],
            dtype={name: DType(dtype) for name, dtype in data["storage"].items()},
            capability=data["capability"],
        )
        sizes = tuple((axis_from_data(axis), length) for *axis, length in data["sizes"])
        machine = from_mapping(data["machine"], "a job")
        return cls(request, data["mirrored"], sizes, machine, data["only"])

    def shared(self) -> "list[SearchJob]":
        """The same search as several jobs, each for one snapshot."""
        return [replace(self, only=number) for number in range(MOST_SEARCHED)]


class SearchesAhead:
    """Searches that workers do while this process does other work, by key."""

    def __init__(self) -> None:
        self.waiting: dict[Hashable, list[Future[Data]]] = {}
        """The jobs of each search: one, or one for each snapshot."""

    def forecast(self, key: Hashable) -> "Forecast | None":
        """The time of the best kernels of a program that workers have searched, if they have."""
        try:
            points = self.points(self.waiting.get(key, ()))
        except BlockbusterError as error:
            log.debug("searched again: %s", error)
            return None
        if not points or "spent" not in points[0]:  # an answer tells the time of its own best
            return None
        device, host = points[0]["spent"]
        return Forecast(
            Config.from_data(points[0]["config"]), Seconds(device, host), points[0]["error"]
        )

    def start(self, jobs: Mapping[Hashable, SearchJob]) -> None:
        """Has workers do some jobs at the same time; a single one may be left to this process.

        If enough workers are free, each snapshot is a job of its own.
        """
        new = {key: job for key, job in jobs.items() if key not in self.waiting}
        workers = shared_workers() if new else None
        if workers is None:
            return
        is_shared = workers.free >= MOST_SEARCHED * len(new)
        if len(new) > 1 or is_shared:
            for key, job in new.items():
                own = job.shared() if is_shared else [job]
                self.waiting[key] = [workers.job(x.data()) for x in own]

    def result(self, key: Hashable, improver: Improver, sizes: Sizes) -> list[Choice]:
        """The choices of the least predicted times, from workers or searched here."""
        waiting = self.waiting.pop(key, None)
        if waiting is not None:
            try:
                return found(self.points(waiting), improver.choices)
            except BlockbusterError as error:
                log.debug("searched again: %s", error)
        return improver.searched(sizes)

    def points(self, waiting: Iterable[Future[Data]]) -> list[Data]:
        """The best points of all answers, of which the best comes first."""
        found = []
        for job in waiting:
            for point in job.result()["points"]:
                seconds, usual = point["ranked"]
                found.append(Ranked[Data](seconds, usual, point))
        return [x.choice for x in merged([found])]


@dataclass(frozen=True)
class Forecast:
    """The predicted time of kernels."""

    config: Config
    seconds: Seconds
    error: float
    """The factor within which the time will be."""


def forecast(choice: Choice, sizes: Sizes, machine: Machine) -> Forecast:
    """The predicted time of a choice for some sizes."""
    nest, tiles = choice.scheduled()
    tiling = Tiling(Extents.of_sizes(sizes, "the captured call"), tiles)
    seconds = predicted(nest, tiling, machine, choice.schedule)
    return Forecast(choice.config, seconds, error_of(nest, machine))


def prepare() -> None:
    """Does nothing: all is imported."""


def run_job(data: Data) -> Data:
    """The best points of a program's schedule space, and the time of the first, as plain data."""
    job = SearchJob.from_data(data)
    own = merged(Improver(job.choices(), job.machine).by_snapshot(job.sizes, only=job.only))
    points = [_point(x) for x in own]
    if own:
        made = forecast(own[0].choice, job.sizes, job.machine)
        points[0] |= {"spent": [made.seconds.device, made.seconds.host], "error": made.error}
    return {"points": points}


def found(points: Sequence[Data], choices: Sequence[Choice]) -> list[Choice]:
    """The choices that the points of an answer stand for."""
    by_snapshot = {choice.snapshot: choice for choice in choices}
    made = []
    for point in points:
        config = Config.from_data(point["config"])
        tiles = {_dim(dim): tile for dim, tile in point["tiles"]}
        base = by_snapshot.get(config.snapshot)
        if base is None:
            raise WorkerFailed(
                problem=f"it has found snapshot {config.snapshot}, which is not here"
            )
        made.append(replace(base, schedule=config.schedule, tiles=tiles))
    return made


def _point(found: Ranked[Choice]) -> Data:
    tiles = [[_dim_data(dim), tile] for dim, tile in found.choice.tiles.items()]
    ranked = [found.seconds, found.usual]
    return {"config": found.choice.config.data(), "tiles": tiles, "ranked": ranked}


def _dim_data(dim: Dim) -> list[Any]:
    return [*axis_data(dim.axis), dim.index, dim.packed, dim.unit]


def _dim(data: Sequence[Any]) -> Dim:
    name, extent, index, packed, unit = data
    return Dim(axis_from_data((name, extent)), index, packed, unit=unit)
