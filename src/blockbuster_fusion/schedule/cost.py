"""The predicted time of kernels on a machine: seconds of the device, and of the host.

Each launch is a grid of programs. A program moves blocks and computes with them, so its time is
the longer of both, and a part of the shorter, which does not overlap. Arrays come from the memory
that holds them; blocks that are read again come from a cache. cpu.py and gpu.py have the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from blockbuster_fusion.ir.tiling import Tiling
from blockbuster_fusion.machine.machine import Machine
from blockbuster_fusion.nest.nest import Clear, Nest
from blockbuster_fusion.schedule.count_work import work_of
from blockbuster_fusion.schedule.cpu import cpu_seconds
from blockbuster_fusion.schedule.gpu import gpu_seconds, main_bytes, residents
from blockbuster_fusion.schedule.joined import joined_work
from blockbuster_fusion.schedule.schedule import Schedule
from blockbuster_fusion.schedule.work import Work


@dataclass(frozen=True, slots=True)
class Seconds:
    """A time of the device, and of the host that launches what it runs."""

    device: float
    host: float = 0.0

    def __add__(self, other: "Seconds") -> "Seconds":
        return Seconds(self.device + other.device, self.host + other.host)

    def __mul__(self, factor: float) -> "Seconds":
        return Seconds(self.device * factor, self.host * factor)

    def total(self, *, replayed: bool = False) -> float:
        """The time of a run: the device's if launches are replayed, else the longer of both."""
        return self.device if replayed else max(self.device, self.host)

    def __str__(self) -> str:
        return f"{self.total() * 1e6:.4g} µs"


ERRORS = {"cpu": (1.5, 2.0), "cuda": (1.25, 1.25)}
"""The factor within which 9 of 10 measured times lie, without and with products of matrices.

`benchmarks/cost_error.py` measures it."""

EARLY_PROGRAM = 0.2e-9
"""The seconds that a program of a kernel which starts early takes longer, on all processors of an
H200: it waits and signals once. 16,384 programs took 3 µs longer, and 25,000 small ones 9 µs. Those
of the first round would wait anyway."""


def predicted(
    nest: Nest, tiling: Tiling, machine: Machine, schedule: Schedule | None = None
) -> Seconds:
    """The time of a nest's kernels on a machine."""
    total, schedule = Seconds(0.0, 0.0), schedule or Schedule()
    for launched in nest.launches:
        works = [work_of(kernel, tiling, machine.target) for kernel in launched.kernels]
        total += predicted_launch(works, machine, schedule.of_launch(launched, nest.kernels))
    return total + clearing(machine) * sum(isinstance(step, Clear) for step in nest.steps)


def clearing(machine: Machine) -> Seconds:
    """The time until an array is 0 that kernels add to: on a GPU, that of a launch."""
    if machine.target == "cpu":
        return Seconds(0.0)
    return Seconds(machine.step, machine.launch)


def predicted_launch(works: Sequence[Work], machine: Machine, schedule: Schedule) -> Seconds:
    """The time of one launch on a machine, from the work of its kernels.

    No kernel is faster beside others than alone: a few long programs take their time. Descriptors
    are for single ones. One that starts early does so while the one before it ends, and
    each of its programs waits and signals.
    """
    if machine.target == "cuda":
        if len(works) > 1 and schedule.described:
            schedule = replace(schedule, described=False, joined=False)
        alone = [gpu_seconds(work, machine, schedule) for work in works]
        together = [gpu_seconds(joined_work(works), machine, schedule)] if len(works) > 1 else []
        device = max(*alone, *together, 0.0) + machine.step
        if schedule.early:
            whole = works[0] if len(works) == 1 else joined_work(works)
            late = _in_later_rounds(whole, machine, schedule)
            device += EARLY_PROGRAM * late - machine.early
        return Seconds(device, machine.launch)
    (work,) = works
    device = cpu_seconds(work, machine, schedule.threads)
    return Seconds(device + machine.step + machine.launch)  # the host is the device


def _in_later_rounds(work: Work, machine: Machine, schedule: Schedule) -> int:
    """The programs of a kernel that start when others have ended; none if they take turns."""
    if schedule.programs and work.products:
        return 0
    here = residents(work, machine, schedule).programs
    return max(0, work.programs - machine.processors * here)


def predicted_bytes(
    nest: Nest, tiling: Tiling, machine: Machine, schedule: Schedule | None = None
) -> float:
    """The bytes that a nest's kernels move from the main memory of a GPU and to it."""
    total, schedule = 0.0, schedule or Schedule()
    for launched in nest.launches:
        own = schedule.of_launch(launched, nest.kernels)
        works = (work_of(kernel, tiling, machine.target) for kernel in launched.kernels)
        total += sum(main_bytes(work, machine, residents(work, machine, own)) for work in works)
    return total


def has_products(nest: Nest) -> bool:
    """True if a kernel of a nest multiplies matrices."""
    return any(kernel.multiplies for kernel in nest.kernels)


def error_of(nest: Nest, machine: Machine) -> float:
    """The factor by which the time of a nest may be longer than predicted."""
    return ERRORS[machine.target][has_products(nest)]
