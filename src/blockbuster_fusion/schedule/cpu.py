"""The predicted time of a kernel on a CPU.

A grid that does not fill the machine wastes the rest of it, and one program alone has the
bandwidth of one core. Memory is read before it is written.
"""

import math
from dataclasses import dataclass

from blockbuster_fusion.machine.machine import Machine, Memory
from blockbuster_fusion.schedule.work import Work

MATRIX = 0.95
"""The share of a machine's rate that products reach, beside the transposing of operands."""
MATRIX_OF_FEW = 0.6
"""The share that products of few rows reach."""
TRANSPOSED = 0.19
"""The bytes of operands that are transposed in the time of one operation of a product."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The pace of all but products in a kind of kernels, as shares of a machine's rates."""

    simple: float
    function: float
    memory: float
    overlap: float
    """The share of the shorter of computing and moving that is hidden behind the longer."""
    row: float
    """Seconds to begin a row of a tile."""


PROGRAM = 4e-8
"""Seconds to begin a program."""
STREAM = Pace(1.0, 0.35, 1.0, 0.8, 2e-9)
"""Without products values stay in registers, and arrays are read where they lie."""
JUMP = 1.3e-7
"""Seconds until main memory gives what does not lie where the last row ended."""
TILES = Pace(0.17, 0.17, 0.6, 0.3, 4e-9)
"""With products every statement reads and writes tiles."""
FEW_ROWS = Pace(0.17, 0.17, 0.9, 0.8, 4e-9)
"""With products of few rows these are tiles, and weights are read where they lie."""
ALONE = 1 << 14
"""The number of elements up to which a kernel runs on one thread of a CPU."""


def cpu_seconds(work: Work, machine: Machine, threads: int | None = None) -> float:
    """The time of one kernel on a CPU, with the threads that are chosen or those of the rule."""
    is_small = work.arrays <= ALONE * 4
    room = min(threads or (1 if is_small else machine.full), machine.full)
    programs = max(1.0, work.programs * work.busy)
    busy = programs / math.ceil(programs / room)
    scalar = machine.rate("float32", processors=1) / 2
    pace = _pace(work)
    computing = work.functions / (scalar * pace.function) + work.statements * pace.row
    computing += work.programs * PROGRAM
    computing += (work.operations - work.functions) / (scalar * pace.simple)
    share = MATRIX_OF_FEW if work.has_few_rows else MATRIX
    rate = machine.rate(work.dtype, matrix=not work.has_few_rows, processors=1)
    computing += work.products / (rate * share)
    computing += work.transposed / (machine.rate("float32", processors=1) * TRANSPOSED)
    home = machine.memory_for(work.arrays)
    cache = _cache(work, machine) if pace is STREAM else _next_to(home, machine)
    moving = (work.arrays + work.written) / _bandwidth(home.each, home.total, busy)
    moving += max(work.passed - work.arrays, 0.0) / _bandwidth(cache.each, cache.total, busy)
    copies = next((m for m in machine.memories if work.turning <= m.size / 2), machine.main)
    moving += 2 * work.turned / _bandwidth(copies.each, copies.total, busy)
    moving /= pace.memory
    if pace is STREAM and home is machine.main:
        moving += work.jumps * JUMP / busy
    computing /= busy
    longer, shorter = max(moving, computing), min(moving, computing)
    wake = 0.0 if room == 1 else machine.wake
    return longer + (1 - pace.overlap) * shorter + wake


def _pace(work: Work) -> Pace:
    if not work.products:
        return STREAM
    return FEW_ROWS if work.has_few_rows else TILES


def _next_to(home: Memory, machine: Machine) -> Memory:
    """The cache before some memory."""
    return machine.memories[max(0, machine.memories.index(home) - 1)]


def _cache(work: Work, machine: Machine) -> Memory:
    """The memory in which a program finds what it has read or written before."""
    return next((m for m in machine.memories if work.own <= m.size), machine.main)


def _bandwidth(each: float, total: float, processors: float) -> float:
    return min(each * processors, total)
