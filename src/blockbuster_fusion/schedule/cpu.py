"""The predicted time of a kernel on a CPU.

A grid that does not fill the machine wastes the rest of it, and one program alone has the
bandwidth of one core. Memory is read before it is written.
"""

import math

from blockbuster_fusion.machine.machine import Machine
from blockbuster_fusion.schedule.work import Work

VECTOR, MATRIX, MEMORY = 0.17, 0.6, 0.6
"""The shares of a machine's rates that generated kernels reach."""
OVERLAP = 0.3
"""The share of the shorter of computing and moving that is hidden behind the longer."""
ROW = 4e-9
"""Seconds to begin a row of a tile."""
ALONE = 1 << 14
"""The number of elements up to which a kernel runs on one thread of a CPU."""


def cpu_seconds(work: Work, machine: Machine) -> float:
    """The time of one kernel on a CPU."""
    is_alone = work.arrays <= ALONE * 4
    room = 1 if is_alone else machine.full
    programs = max(1.0, work.programs * work.busy)
    busy = programs / math.ceil(programs / room)
    scalar = machine.rate("float32", processors=1) / 2
    computing = work.operations / (scalar * VECTOR) + work.statements * ROW
    computing += work.products / (machine.rate(work.dtype, matrix=True, processors=1) * MATRIX)
    home = machine.memory_for(work.arrays)
    cache = machine.memories[max(0, machine.memories.index(home) - 1)]
    moving = (work.arrays + work.written) / _bandwidth(home.each, home.total, busy)
    moving += max(work.moved - work.arrays, 0.0) / _bandwidth(cache.each, cache.total, busy)
    moving /= MEMORY
    computing /= busy
    longer, shorter = max(moving, computing), min(moving, computing)
    wake = 0.0 if is_alone or machine.processors == 1 else machine.wake
    return longer + (1 - OVERLAP) * shorter + wake


def _bandwidth(each: float, total: float, processors: float) -> float:
    return min(each * processors, total)
