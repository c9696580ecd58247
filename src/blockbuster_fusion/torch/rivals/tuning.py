"""Tunes the kernels of parts: measures configurations, checks each, and keeps what was found.

Configurations are tried in the order of their predicted times, then the neighbours of the best.
Some are compiled at a time, and then measured one after the other. Each is checked against float64
before it may win. Every measurement is stored at once, so that
nothing is lost if tuning is stopped, and no configuration is measured twice.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch.fx import Node
from torch.utils._python_dispatch import _disable_current_modes

from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.choice import Choice
from blockbuster_fusion.compiler import executable_of
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.ir.tiling import Extents
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.machine.machine import Machine
from blockbuster_fusion.messages import log
from blockbuster_fusion.nest.text import nest_to_text
from blockbuster_fusion.progress import Task, doing
from blockbuster_fusion.runtime.executable import Executable, Sizes
from blockbuster_fusion.runtime.measuring import measuring
from blockbuster_fusion.runtime.tensors import library_on
from blockbuster_fusion.runtime.tuning_database import Key, Record, database
from blockbuster_fusion.runtime.tuning_records import NO_KERNELS, now
from blockbuster_fusion.runtime.workers import Workers, usual_workers
from blockbuster_fusion.schedule.config import Config
from blockbuster_fusion.schedule.space import Space
from blockbuster_fusion.source_digest import source_digest
from blockbuster_fusion.torch.compile_parts import PartCompiler
from blockbuster_fusion.torch.from_array_program import torch_program
from blockbuster_fusion.torch.options import device_of
from blockbuster_fusion.torch.rivals.compiling import compile_choices
from blockbuster_fusion.torch.rivals.timing import launcher, timed
from blockbuster_fusion.torch.tuned import tuning_key

MOST_TRIED = 10
"""The number of configurations that are measured in the order of their predictions."""
ROUNDS = 4
"""The times that the best configuration is measured in the end."""
MOST_CONFIRMED = 6
"""The number of configurations that are measured so, each the best before it."""
MOST_STEPS = 3
"""The number of times that all neighbours of the best configuration are tried."""


@dataclass(frozen=True)
class Subject:
    """A program that is tuned, with all that its measurements depend on."""

    program: ArrayProgram
    storage: Mapping[str, DType]
    """The dtypes in memory of inputs and outputs."""
    choices: Sequence[Choice]
    """The choices that may run it, in the order of predicted times."""
    inputs: Sequence[torch.Tensor]
    sizes: Sizes
    machine: Machine
    threads: int | None
    """The threads of kernels on a CPU."""

    @property
    def device(self) -> torch.device:
        return self.inputs[0].device if self.inputs else torch.device("cpu")

    @property
    def leading(self) -> Sequence[Choice]:
        """The choices that are measured whatever is found."""
        return self.choices[:MOST_TRIED]

    @cached_property
    def key(self) -> Key:
        return tuning_key(self.program, self.storage, self.sizes, self.machine)


def subject_of(parts: PartCompiler, nodes: Sequence[Node], machine: Machine) -> Subject:
    """A part as a program to be tuned, with random inputs."""
    part, target = parts.program(nodes), parts.options.target_of(nodes)
    with _disable_current_modes(), torch.no_grad():
        zeros, sizes = parts.examples(part, device_of(nodes))
        distinct = {id(x): x for x in zeros}  # an array may be read twice
        random = {n: torch.randn_like(x) for n, x in distinct.items() if x.is_floating_point()}
        inputs = [random.get(id(x), x) for x in zeros]
    threads = parts.threads if target == "cpu" else None
    choices = parts.choices(part, target)
    program, storage = part.expressed.program, part.storage
    return Subject(program, storage, choices, inputs, sizes, machine, threads)


class Tuner:
    """Finds the fastest configuration of each subject, within a number of seconds for all."""

    def __init__(self, seconds: float = math.inf, workers: int | None = None) -> None:
        self.end = time.monotonic() + seconds
        self.database = database()
        self.count = workers

    @cached_property
    def workers(self) -> Workers:
        """The compilers of configurations; by default, one for each core."""
        return Workers(usual_workers() if self.count is None else self.count)

    def best(self, subject: Subject) -> tuple[Choice, Record] | None:
        """The fastest configuration that is exact enough; None if there is none."""
        known = self.finished(subject)
        if known is not None:
            return known
        trial = _Trial(self, subject)
        with doing(f"tuning {subject.program.name}", 0) as task:
            self.measure(trial, subject.leading, task)
            searched: set[str] = set()
            for _ in range(MOST_STEPS):
                trial.confirm()
                best = trial.best
                if best is None or str(best[0].config) in searched:
                    break
                searched.add(str(best[0].config))
                self.measure(trial, [*neighbours(best[0], subject)], task)
            trial.confirm()
        return trial.best

    def first(self, subject: Subject) -> tuple[Choice, Record] | None:
        """The choice of the least predicted time, measured; None if it is not exact enough."""
        trial = _Trial(self, subject)
        with doing(f"trying {subject.program.name}"):
            trial.measure(subject.choices[0])
        return trial.best

    def compile_first(self, subjects: Sequence[Subject], seconds: float) -> None:
        """Compiles the first choices of some subjects for a CPU at once, for some seconds."""
        choices = [subject.choices[0] for subject in subjects if subject.machine.target == "cpu"]
        compile_choices(self.workers, choices, (), (), min(seconds, self.left))

    def finished(self, subject: Subject) -> tuple[Choice, Record] | None:
        """The result of an earlier search, if it had the time to end."""
        record = self.database.best(subject.key)
        if record is None or record.rounds < ROUNDS:
            return None
        config = str(Config.from_data(record.config))
        return next(((c, record) for c in subject.choices if str(c.config) == config), None)

    def ahead(self, subjects: Iterable[Subject]) -> None:
        """Is told which subjects come next; a cluster measures them at the same time."""

    def measure(self, trial: "_Trial", choices: Sequence[Choice], task: Task) -> None:
        """Compiles as many choices at a time as there are workers, and measures these."""
        task.total = (task.total or 0) + len(choices)
        subject, count = trial.subject, self.workers.count
        for start in range(0, len(choices), count):
            some = choices[start : start + count]
            if self.has_time:
                new = [choice for choice in some if trial.is_new(choice)]
                compile_choices(self.workers, new, subject.inputs, subject.sizes, self.left)
            for choice in some:
                trial.measure(choice)
                task.step()

    @property
    def left(self) -> float:
        """The seconds that are left."""
        return max(0.0, self.end - time.monotonic())

    @property
    def has_time(self) -> bool:
        return self.left > 0

    def close(self) -> None:
        """Ends the workers, if there are any."""
        if "workers" in self.__dict__:
            self.workers.close()

    def __enter__(self) -> "Tuner":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Trial:
    """The measurements of one subject."""

    def __init__(self, tuner: Tuner, subject: Subject) -> None:
        self.tuner, self.subject, self.key = tuner, subject, subject.key
        self.exactness = Exactness(subject)
        self.found: dict[str, tuple[Choice, Record]] = {}
        """The choices that run and are exact enough, that of the least predicted time first."""
        self.seen: set[str] = set()

    def measure(self, choice: Choice) -> None:
        """Measures a choice, unless that is known or there is no time left."""
        config = choice.config
        if str(config) in self.seen:
            return
        self.seen.add(str(config))
        record = self.tuner.database.known(self.key, config.data())
        if record is None:
            if not self.tuner.has_time and self.best is not None:
                return
            record = self.measured(choice, config)
            if record.rounds:
                self.tuner.database.put(self.key, record)
        if record.ok:
            self.found[str(config)] = choice, record

    @property
    def best(self) -> tuple[Choice, Record] | None:
        """The fastest choice so far."""
        return min(self.found.values(), key=lambda pair: pair[1].seconds, default=None)

    def confirm(self) -> None:
        """Measures the best again, in turns with the first: a lucky sample is not to win."""
        for _ in range(MOST_CONFIRMED):
            best = self.best
            if best is None or best[1].rounds >= ROUNDS or not self.tuner.has_time:
                return
            first = next(iter(self.found.values()))
            self.measure_in_turns([best] if best is first else [best, first])

    def measure_in_turns(self, rivals: Sequence[tuple[Choice, Record]]) -> None:
        """Measures some choices several times, and keeps what is found."""
        subject, device = self.subject, self.subject.device
        with _disable_current_modes(), torch.no_grad():
            made = [executable_of([choice], subject.threads) for choice, _ in rivals]
            runs = [launcher(x, subject.inputs, subject.sizes, device) for x in made]
            with measuring(str(device)):
                times = [[timed(run, device) for run in runs] for _ in range(ROUNDS)]
        for number, (choice, before) in enumerate(rivals):
            timings = [row[number] for row in times]
            sure = [timing for timing in timings if timing.is_sure]
            own = sorted(timing.seconds.device for timing in sure or timings)
            seconds, low, high = statistics.median(own), own[0], own[-1]
            record = replace(before, seconds=seconds, low=low, high=high, rounds=ROUNDS, made=now())
            if sure:
                self.tuner.database.put(self.key, record)
            self.found[str(choice.config)] = choice, record

    def is_new(self, choice: Choice) -> bool:
        """True if a choice has not been measured, now or before."""
        config = choice.config
        known = self.tuner.database.known
        return str(config) not in self.seen and known(self.key, config.data()) is None

    def measured(self, choice: Choice, config: Config) -> Record:
        """The measurement of a choice; of one that cannot run, an infinite time.

        One that is not sure has no round.
        """
        source, rounds = NO_KERNELS, 1
        try:
            with _disable_current_modes(), torch.no_grad():
                subject = self.subject
                executable = executable_of([choice], subject.threads)
                source = source_digest(choice)
                with measuring(str(subject.device)):  # float64 keeps a GPU busy, too
                    error, bar = self.exactness.error(executable), self.exactness.bar
                seconds = math.inf
                if error <= bar:
                    device = subject.device
                    run = launcher(executable, subject.inputs, subject.sizes, device)
                    timing = timed(run, device)
                    seconds, rounds = timing.seconds.device, int(timing.is_sure)
        except Exception as problem:  # whatever a compiler or a driver raises
            log.debug("%s: %s", config, problem)
            error, seconds = math.inf, math.inf
        figures = (seconds, seconds, seconds, error, self.exactness.bar)
        return Record(config.data(), *figures, rounds=rounds, source=source)


@dataclass(frozen=True)
class Exactness:
    """Compares results of a subject with those of float64."""

    subject: Subject

    @cached_property
    def _exact(self) -> tuple[list[torch.Tensor], float]:
        """The results in float64, and the largest error that is allowed: twice that of float32."""
        subject = self.subject
        function = torch_program(subject.program)
        with _disable_current_modes(), torch.no_grad():
            exact = [x.double() for x in function(*map(_wide(torch.float64), subject.inputs))]
            plain = function(*map(_wide(torch.float32), subject.inputs))
        stored = [subject.storage[out.name] for out in subject.program.outputs]
        eps = max(_eps(str(dtype)) for dtype in stored)
        return exact, 2 * distance(plain, exact) + 4 * eps

    @property
    def bar(self) -> float:
        """The largest error that is allowed."""
        return self._exact[1]

    def error(self, executable: Executable) -> float:
        """The error of a run."""
        subject = self.subject
        library = library_on(subject.device)
        found = executable.runner.run(subject.inputs, subject.sizes, library)
        return distance(found, self._exact[0])


def neighbours(choice: Choice, subject: Subject) -> Iterator[Choice]:
    """The choices with the next longer or shorter tile, or another option of the schedule."""
    nest, tiles = choice.scheduled()
    extents = Extents.of_sizes(subject.sizes, "the inputs")
    space = Space(nest, extents, subject.machine, tiles)
    for dim in space.dims:
        known = space.tiles(dim)
        longer = [tile for tile in known if tile > tiles[dim]][:1]
        shorter = [tile for tile in known if tile < tiles[dim]][-1:]
        for tile in longer + shorter:
            if dim in choice.tiles and space.fits({**tiles, dim: tile}):
                yield replace(choice, tiles={**choice.tiles, dim: tile})
    forms = {None, nest_to_text(nest)}
    for schedule in space.near(choice.schedule):
        other = replace(choice, schedule=schedule)
        if schedule.atomic and torch.are_deterministic_algorithms_enabled():
            continue
        if other.config.launch != choice.config.launch:
            yield other
        elif (form := _form(other)) not in forms:
            forms.add(form)
            yield other


def _form(choice: Choice) -> str | None:
    """The loop nest of a choice as text; None if there is none."""
    try:
        return nest_to_text(choice.scheduled()[0])
    except BlockbusterError:
        return None


def _wide(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    """Converts arrays of floats to a dtype."""
    return lambda x: x.to(dtype) if x.is_floating_point() else x


def _eps(dtype: str) -> float:
    known = {"float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}
    return known.get(dtype, 2.0**-23)


def distance(found: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> float:
    """The largest distance of a result from the exact one, in norm and relative to it."""
    worst = 0.0
    for x, y in zip(found, exact, strict=True):
        counts = torch.isfinite(y)  # a logarithm of a negative number is no error
        y = torch.where(counts, y, 0.0)
        size = float(y.norm()) or 1.0
        difference = float((torch.where(counts, x.double().reshape(y.shape), 0.0) - y).norm())
        worst = max(worst, difference / size if np.isfinite(difference) else math.inf)
    return worst
