"""The search for the schedules of a program, as a job for a worker process.

A job has a program, the dtypes and sizes of its arrays, and a machine. The answer has the points of
the schedule space of the least predicted times, and the time of the first. They are the same
wherever they are searched.
"""

from collections.abc import Hashable, Mapping, Sequence
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
from blockbuster_fusion.improve import Improver
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
        return cls(request, data["mirrored"], sizes, from_mapping(data["machine"], "a job"))


class SearchesAhead:
    """Searches that workers do while this process does other work, by key."""

    def __init__(self) -> None:
        self.waiting: dict[Hashable, Future[Data]] = {}

    def forecast(self, key: Hashable) -> "Forecast | None":
        """The time of the best kernels of a program that a worker has searched, if one has."""
        waiting = self.waiting.get(key)
        try:
            answer = None if waiting is None else waiting.result()
        except BlockbusterError as error:
            log.debug("searched again: %s", error)
            return None
        if answer is None or not answer["points"]:
            return None
        device, host = answer["seconds"]
        config = Config.from_data(answer["points"][0]["config"])
        return Forecast(config, Seconds(device, host), answer["error"])

    def start(self, jobs: Mapping[Hashable, SearchJob]) -> None:
        """Has workers do some jobs at the same time; a single one is left to this process."""
        new = {key: job for key, job in jobs.items() if key not in self.waiting}
        workers = shared_workers() if len(new) > 1 else None
        if workers is not None:
            self.waiting |= {key: workers.job(job.data()) for key, job in new.items()}

    def result(self, key: Hashable, improver: Improver, sizes: Sizes) -> list[Choice]:
        """The choices of the least predicted times, from a worker or searched here."""
        waiting = self.waiting.pop(key, None)
        if waiting is not None:
            try:
                return found(waiting.result()["points"], improver.choices)
            except BlockbusterError as error:
                log.debug("searched again: %s", error)
        return improver.searched(sizes)


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
    """The best points of a program's schedule space and the time of the first, as plain data."""
    job = SearchJob.from_data(data)
    best = Improver(job.choices(), job.machine).searched(job.sizes)
    answer: Data = {"points": [_point(choice) for choice in best]}
    if best:
        made = forecast(best[0], job.sizes, job.machine)
        answer |= {"seconds": [made.seconds.device, made.seconds.host], "error": made.error}
    return answer


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


def _point(choice: Choice) -> Data:
    tiles = [[_dim_data(dim), tile] for dim, tile in choice.tiles.items()]
    return {"config": choice.config.data(), "tiles": tiles}


def _dim_data(dim: Dim) -> list[Any]:
    return [*axis_data(dim.axis), dim.index, dim.packed, dim.unit]


def _dim(data: Sequence[Any]) -> Dim:
    name, extent, index, packed, unit = data
    return Dim(axis_from_data((name, extent)), index, packed, unit=unit)
