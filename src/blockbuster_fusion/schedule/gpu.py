"""The predicted time of a kernel on a GPU.

A processor runs several programs at a time: as many as its warps, registers and shared memory
hold. The time of a kernel has two parts. One is the longer of moving and computing. The other is
waiting: each step of a loop waits for memory once, unless its loads run ahead in stages, and the
programs go in rounds. `benchmarks/schedule_ranking.py` measures how well this ranks schedules.
"""

import math
from dataclasses import dataclass

from blockbuster_fusion.machine.machine import Machine
from blockbuster_fusion.schedule.schedule import Schedule
from blockbuster_fusion.schedule.work import Work

MOST_WARPS, MOST_PROGRAMS = 64, 32
"""The warps and programs that a processor holds."""
REGISTERS = 65536
"""The registers of a processor."""
MOST_REGISTERS = 255
"""The registers of a thread; what it holds beyond that is spilled to memory."""
USED, PER_ELEMENT = 20, 0.8
"""The registers of a thread beside its elements, and those for each of them."""
ACCUMULATED = 72
"""The elements of a thread beyond which a program has eight warps instead of four."""
PER_THREAD = 16
"""The elements of a thread in a kernel without products: two loads of 16 bytes, in 16 bits."""
MOST_STREAM_WARPS = 16
STAGES = 3
KEPT_BUSY = 15
"""The warps with which a processor computes at its full rate."""
START = 2.0
"""The waiting of a program to begin and to end, in steps."""
FOLDING = 0.3
"""The waiting of threads for each other in a fold, in steps."""
COMMON = 0.3
"""The share of the first cache that what all programs read may fill."""
CACHED = 0.6
"""The share of the second cache that what one round reads again may fill."""
VECTOR, MEMORY, OVERLAP = 0.6, 0.97, 0.95
"""The shares of the rates that are reached, and of the shorter time that is hidden."""


@dataclass(frozen=True, slots=True)
class Residents:
    """The programs that a processor runs at a time, and what each of them has."""

    programs: int
    warps: int
    stages: int
    shared: float
    """Bytes of shared memory of one program."""
    spilled: float
    """The elements of a thread, as a multiple of those that registers hold; 1 at least."""


def stream_warps(largest: float) -> int:
    """The warps of a program without products, by the elements of its largest tile."""
    threads = max(32.0, largest / PER_THREAD)
    return int(min(MOST_STREAM_WARPS, 1 << math.ceil(math.log2(threads / 32))))


def residents(work: Work, machine: Machine, schedule: Schedule) -> Residents:
    """The programs of a kernel that a processor runs at a time."""
    room = machine.memories[0].size
    usual = 8 if work.held > ACCUMULATED * 32 * 4 else 4
    multiplies = work.multiplying or work.products
    warps = schedule.warps or (usual if multiplies else stream_warps(work.largest))
    stages = schedule.stages or STAGES
    if work.staged:
        stages = max(1, min(stages, int(room // work.staged)))
    each = work.held / (32 * warps)
    registers = min(MOST_REGISTERS, USED + each * PER_ELEMENT)
    limits = [MOST_PROGRAMS, MOST_WARPS // warps, int(REGISTERS // (32 * warps * registers))]
    limits += [int(room // (work.staged * stages))] if work.staged else []
    spilled = max(1.0, (USED + each) / MOST_REGISTERS)
    return Residents(max(1, min(limits)), warps, stages, work.staged * stages, spilled)


def gpu_seconds(work: Work, machine: Machine, schedule: Schedule) -> float:
    """The time of one kernel on a GPU."""
    here = residents(work, machine, schedule)
    programs = max(1.0, work.programs * work.busy)
    processors = min(float(machine.processors), programs)
    at_a_time = min(here.programs, max(1.0, programs / machine.processors))
    busy = processors * min(1.0, at_a_time * here.warps / KEPT_BUSY)
    computing = work.operations / (machine.rate("float32", processors=1) / 2 * VECTOR * busy)
    rate = machine.rate(work.dtype, matrix=True, processors=1)
    computing += work.products / (rate * processors)
    moving = _moving(work, machine, here, programs, at_a_time)
    longer, shorter = max(moving, computing), min(moving, computing)
    rounds = programs / (machine.processors * here.programs)
    rounds = math.ceil(rounds) if rounds < 4 else rounds
    ahead = work.multiplying / max(1, here.stages - 1)
    steps = work.steps - work.multiplying + ahead + START
    steps += 0.0 if work.multiplying else work.folding * FOLDING
    waiting = rounds * steps * machine.latency
    return (longer + (1 - OVERLAP) * shorter + waiting) * here.spilled**3


def _moving(
    work: Work, machine: Machine, here: Residents, programs: float, at_a_time: float
) -> float:
    """The seconds for bytes: of arrays once, again by other programs, and again by the same.

    What all programs read stays in the first cache, if there is little of it.
    """
    first, cache, main = machine.memories[0], machine.memories[-2], machine.main
    home = machine.memory_for(work.arrays)
    home = cache if home is first else home
    own = work.own * programs
    others = max(0.0, own - work.arrays)
    again = max(0.0, work.moved - max(own, work.arrays))
    near = work.common <= COMMON * first.size
    common = min(others, work.common * (programs - 1)) if near else 0.0
    others -= common
    reach = work.own * at_a_time
    if reach <= first.size - here.shared:
        nearest = first
    else:
        nearest = cache if reach * machine.processors <= cache.size * CACHED else home
    share = {id(main): MEMORY}
    parts = ((work.arrays, home), (others, cache), (common, first), (again, nearest))
    return sum(size / (memory.total * share.get(id(memory), 1.0)) for size, memory in parts)
