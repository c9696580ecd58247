"""Times of a case: all contenders in one process, in rounds, each round in another order."""

import gc
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

from blockbuster_fusion.runtime.measuring import measuring
from never_slower.case import Case
from never_slower.contenders import (
    BEST,
    EAGER,
    OURS,
    Call,
    allowed,
    contender,
    counts,
    errors,
    exact_results,
    results,
)

SHORTEST = 1e-3
"""The length of a sample in seconds, at least."""
FEWEST, USUAL = 11, 50
"""Rounds: at least, and as many as are aimed at."""
WARM_CALLS = 5
"""Calls before any counts; replays and tapes are recorded in the first three."""
CONFIDENCE = 0.95
REPLAYS = "CUDA events around replays of CUDA graphs"
"""The clock of a run in which the host's work does not count."""
LATE = "not measured"
"""The first words of the reason where the time limit was over."""

Result = dict[str, Any]


class DeviceLost(Exception):
    """A device that answers every call with an error, as CUDA does after a wrong access."""

    def __init__(self, result: Result) -> None:
        super().__init__("the device is out of order")
        self.result = result


@dataclass(frozen=True)
class Effort:
    """The effort with which a case is measured."""

    device: str
    names: Sequence[str]
    threads: int
    seconds: float
    """For each contender."""
    limit: float
    """For the whole case, compiling too; the fewest rounds are run all the same."""
    tuning: float
    """The seconds in which max-autotune tunes a case."""
    replays: bool = False
    """True to capture the call of each contender as a CUDA graph, and to time its replays."""

    @property
    def clock(self) -> str:
        """The time that counts; that of the process leaves out what else runs on a CPU."""
        if self.device == "cuda":
            return REPLAYS if self.replays else "CUDA events"
        return "CPU time of the process" if self.threads == 1 else "time of the clock"

    def sampler(self) -> Callable[[Call, int], float]:
        """A function that gives the seconds that a call takes, as one of a number of calls."""
        if self.device == "cuda":
            return by_events
        clock = time.process_time if self.threads == 1 else time.perf_counter
        return lambda call, number: by_clock(call, number, clock)


def as_graph(call: Call) -> tuple[Call, list[torch.Tensor]]:
    """A call as a CUDA graph to be replayed, and the results of its first replay."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(WARM_CALLS):
            call()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = call()
    graph.replay()
    torch.cuda.synchronize()
    return graph.replay, results(made)


def by_clock(call: Call, number: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(number):
        call()
    return (clock() - start) / number


def by_events(call: Call, number: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(number):
        call()
    end.record()
    end.synchronize()
    return 1e-3 * begin.elapsed_time(end) / number


@dataclass
class Race:
    """The contenders of one case that still run, and what is known of all."""

    case: Case
    effort: Effort
    known: dict[str, Result] = field(default_factory=dict)
    calls: dict[str, Call] = field(default_factory=dict)
    start: float = field(default_factory=time.perf_counter)

    def is_late(self) -> bool:
        return time.perf_counter() - self.start > self.effort.limit

    def leave(self, name: str, reason: str) -> None:
        self.known.setdefault(name, {})["failed"] = reason
        self.calls.pop(name, None)

    def check(self) -> None:
        """Compiles every contender, and compares its results with those of float64."""
        model, inputs = self.case.build(self.effort.device)
        exact = exact_results(model, inputs)
        usual = results(model(*inputs))
        limits = allowed(errors(usual, exact, usual), exact, self.case.dtype)
        for name in self.effort.names:
            if self.is_late():
                self.leave(name, f"{LATE}: the case took more than {self.effort.limit:g} s")
                continue
            graphs: list[Any] = []
            begin = time.perf_counter()
            own = self.case.best if name == BEST else model
            if own is None:
                continue
            try:
                effort = self.effort
                call = contender(
                    name, own, inputs, graphs.append, effort.tuning, replays=effort.replays
                )
                made = results(call())
                if self.effort.replays:
                    call, made = as_graph(call)
                found = errors(made, exact, usual)
            except Exception as fault:  # whatever it is, the other contenders run
                self.leave(name, sentence(fault))
                self.check_device()
                continue
            pairs = list(zip(found, limits, strict=True))
            self.known[name] = {
                "first_call_seconds": round(time.perf_counter() - begin, 3),
                "error": as_number(max(found, default=0.0)),
                "allowed_error": as_number(max(limits, default=0.0)),
                "is_wrong": not all(own <= limit for own, limit in pairs),
                **(counted(graphs) if name.startswith(OURS) else {}),
            }
            self.calls[name] = call

    def check_device(self) -> None:
        """Raises DeviceLost if nothing can be run any more."""
        if self.effort.device != "cuda":
            return
        try:
            torch.cuda.synchronize()
        except RuntimeError as fault:
            for name in self.effort.names:
                if name not in self.known:
                    self.leave(name, "not run: the device was out of order")
            raise DeviceLost(self.result({})) from fault

    def times(self) -> dict[str, list[float]]:
        """Seconds of each contender, round by round."""
        sample = self.effort.sampler()
        length = max(SHORTEST, self.effort.seconds / USUAL)
        numbers: dict[str, int] = {}
        for name, call in [*self.calls.items()]:
            try:
                numbers[name] = warmed_up(sample, call, length)
            except Exception as fault:
                self.leave(name, sentence(fault))
                self.check_device()
        times: dict[str, list[float]] = {name: [] for name in self.calls}
        order, shuffled = [*self.calls], random.Random(0)
        begin = time.perf_counter()
        gc.collect()
        gc.disable()
        try:
            while order:
                is_over = time.perf_counter() - begin > self.effort.seconds * len(order)
                if len(times[order[0]]) >= FEWEST and (is_over or self.is_late()):
                    break
                shuffled.shuffle(order)
                for name in order:
                    times[name].append(sample(self.calls[name], numbers[name]))
        finally:
            gc.enable()
        return times

    def result(self, times: Mapping[str, Sequence[float]]) -> Result:
        """The data of the case that are kept."""
        for name, own in times.items():
            self.known[name]["microseconds"] = 1e6 * median(own)
        ours = [name for name in times if name.startswith(OURS)]
        others = [name for name in times if not name.startswith(OURS)]
        return {
            "case": self.case.name,
            "family": self.case.family,
            "device": self.effort.device,
            "dtype": str(self.case.dtype).removeprefix("torch."),
            "threads": self.effort.threads if self.effort.device == "cpu" else None,
            "clock": self.effort.clock,
            "rounds": min(map(len, times.values()), default=0),
            "seconds": round(time.perf_counter() - self.start, 2),
            "limit": self.effort.limit,
            "tuning": self.effort.tuning,
            "contenders": {n: self.known[n] for n in self.effort.names if n in self.known},
            "ratios": {
                name: {other: compared(times[other], times[name]) for other in others}
                for name in ours
            },
        }


def measured(case: Case, effort: Effort) -> Result:
    """One case: its errors, its times and the ratios of these."""
    torch._dynamo.reset()
    gc.collect()
    if effort.device == "cuda":
        torch.cuda.empty_cache()
    race = Race(case, effort)
    try:
        race.check()
        with measuring(effort.device):  # shards on one machine take turns
            times = race.times()
    except DeviceLost:
        raise
    except Exception as fault:  # eager fails, or float64 does: nothing is measured
        race.leave(EAGER, sentence(fault))
        race.check_device()
        times = {}
    return race.result(times)


def warmed_up(sample: Callable[[Call, int], float], call: Call, length: float) -> int:
    """The number of calls that take about so long, found by running them."""
    for _ in range(WARM_CALLS):
        call()
    number = 1
    while True:
        own = max(sample(call, number), 1e-9)
        if own * number >= 0.7 * length or number > 1 << 20:
            return number
        number = min(10 * number, math.ceil(length / own))


def compared(others: Sequence[float], ours: Sequence[float]) -> Result:
    """How many times as long another takes as we do, with the interval of the median."""
    ratios = sorted(other / own for other, own in zip(others, ours, strict=True))
    low, high = interval_of_median(len(ratios))
    return {"ratio": median(ratios), "interval": [ratios[low], ratios[high]]}


def interval_of_median(count: int) -> tuple[int, int]:
    """The places of the ordered values between which the median lies, with 95% confidence.

    Each value is below the true median with chance one half, so a binomial law gives the places.
    """
    chance, place = 0.0, 0
    while place < count // 2:
        chance += math.comb(count, place) / 2**count
        if chance > (1 - CONFIDENCE) / 2:
            break
        place += 1
    low = max(place - 1, 0)
    return low, count - 1 - low


def counted(graphs: Sequence[Any]) -> Result:
    """The counts of what was compiled, where there are some."""
    try:
        return dict(counts(graphs))
    except Exception:  # a count is not worth a case
        return {}


def as_number(error: float) -> float | None:
    """An error as JSON has it; one without bound, or NaN, is null."""
    return error if math.isfinite(error) else None


def sentence(fault: BaseException) -> str:
    """The kind and the first two lines of an error; PyTorch names its reason in the second."""
    lines = [text.strip() for text in str(fault).splitlines() if text.strip()]
    return f"{type(fault).__name__}: {' '.join(lines[:2])}"[:300]
