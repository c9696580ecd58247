"""The predicted time of a kernel on a GPU.

A processor runs several programs at a time: as many as its warps, registers and shared memory
hold. The time of a kernel has two parts. One is the longer of moving and computing. The other is
waiting: each step of a loop waits for memory once, unless its loads run ahead in stages, and the
programs go in rounds. `benchmarks/schedule_ranking.py` measures how well this ranks schedules.
"""

import math
from dataclasses import dataclass

from blockbuster_fusion.machine.machine import Machine, Memory
from blockbuster_fusion.nest.analysis.thread_blocks import VECTOR_BYTES, Sharing
from blockbuster_fusion.schedule.schedule import Schedule
from blockbuster_fusion.schedule.waves import from_main
from blockbuster_fusion.schedule.work import WARPS, Work

MOST_WARPS, MOST_PROGRAMS = 64, 32
"""The warps and programs that a processor holds."""
REGISTERS = 65536
"""The registers of a processor."""
MOST_REGISTERS = 255
"""The registers of a thread; what it holds beyond that is spilled to memory."""
USED, PER_ELEMENT = 20, 0.8
"""The registers of a thread beside its elements, and those for each of them."""
IN_ONE_STEP = 0.25
"""The share of the accumulators of products with vectors that threads hold in a program of one
step: they add up what they load at once, and keep no addresses for a next step."""
BESIDE, BESIDE_DESCRIBED = 56, 28
"""The registers of a thread beside the accumulators of products; and if descriptors load their
operands, so that a thread keeps no addresses."""
DESCRIBED = {False: 0.985, True: 1.05}
"""The share of the time of products that is left then, if their rows are multiplied in groups: by
whether a descriptor loads less than a line of a row, which takes it as many steps."""
FETCHING = 0.15e-6
"""The seconds until a kernel has its descriptors."""
DESCRIBING = 90
"""The compute capability from which on GPUs have tensor descriptors."""
ACCUMULATED = 72
"""The elements of a thread beyond which a program has eight warps instead of four."""
PER_THREAD = {**dict.fromkeys(Sharing, 16), Sharing.OWN: 8, Sharing.FOLDED: 32}
"""The elements of a thread in a kernel without products: one load of 16 bytes, in 16 bits. Threads
have more if they are busy with functions of them, if loads are narrow, if they pass blocks on, and
if they fold them: fewer wait for others. By 16 elements, gelu of 8192x4096 takes 33.4 µs instead of
35.0, and tanh 34.3 instead of 37.1."""
FEW_PROGRAMS = 264
"""The most programs that have so much room on a GPU that folding threads have fewer elements: two
on a processor of an H200."""
AT_ONCE = 1 << 20
"""The most elements of a kernel that a GPU has threads for at one time, four for each."""
MOST_STREAM_WARPS, MOST_OWN_WARPS = 16, 8
"""The most warps of a program without products, and of one whose threads do not meet."""
STAGES = 3
KEPT_BUSY = 15
"""The warps with which a processor computes at its full rate."""
KEPT_BUSY_BY_PRODUCTS = 8
"""The same for programs with accumulators: each thread has many elements."""
AHEAD, FAR = 3.6, 1.3
"""The waiting for the first bytes of a block that is loaded ahead, in steps; and how much longer it
is if they come from main memory.

It is hidden behind products, unless operands are computed with in the same step."""
UNROLLED = 2
"""The blocks of rows that a streaming loop without stages loads at a time, into registers."""
MEETING = 8e-9
"""The seconds that a warp adds to a step of such a loop with stages, in few programs: all warps of
a program wait until its block is in shared memory, and no other goes on."""
SOONER = 0.4
"""The steps by which blocks arrive sooner from the second cache if descriptors load them: no thread
asks for its share. Those from main memory do not."""
BLOCKS = 4.0
"""A step waits for the main memory if one of its blocks comes from there: as often as a byte does,
times this number."""
LATE = 2.6
"""The waiting for a vector that is not loaded ahead, which most programs read from a cache."""
TRANSPOSED = 0.97
"""The share of the time of products with few rows that their transposes take: all warps read the
same few columns, and each has rows of its own."""
UNGROUPED = 0.6
"""The share of the rate of tensor cores with fewer than 64 rows."""
IN_A_ROW = 18.5e-9
"""The seconds until tensor cores have added a product of few rows, some 33 cycles at the clock of
short kernels."""
EXACT, EACH_EXACT = {False: 0.78, True: 0.4}, 32
"""The share of the vector rate that exact products reach, by whether an operand is computed, and
the accumulators of a thread with which they do. With fewer, a thread reads more operands; with
more, its registers are spilled."""
BY_WORDS = 8e9
"""The bytes per second that a processor loads if rows are aligned to words only: number by number,
and nothing ahead."""
WORD = 4
"""The bytes that a thread copies ahead at least."""
CUT, LONG_PIECE = 0.15, 512
"""The share of time that a stream of short pieces of rows takes longer, and their bytes. It holds
if programs that run at a time do not read neighbouring pieces."""
BROKEN, BROKEN_AHEAD, LINE = 1.2, 0.3, 128
"""The same for pieces that are shorter than what the memory reads at a time, without and with
blocks that are loaded ahead; and the bytes of that."""
CUT_BESIDE = 0.02
"""The same if they do, in kernels that load nothing ahead."""
TAIL = 0.2
"""The share of the bytes of all programs that run at a time for which the memory is not busy, in
kernels without loops and folds, or with one step of products with vectors: the first programs only
load, and the last ones only compute and store."""
HIDDEN = {False: 0.8, True: 0.98}
"""The share of the waiting for blocks, or of the rest, that the other hides: by whether several
blocks are being loaded at a time."""
MIXED = 1.0
"""The waiting of a step that computes with operands: they go from registers to shared memory, and
products wait for all threads. Blocks are loaded meanwhile."""
FLOODED, MOST_AHEAD = 1.04, 128 << 10
"""The factor for products with few rows whose blocks on their way to one processor have more bytes
than this."""
CROWDED = 1.1
"""The factor for a launch that asks for more stages than shared memory holds: it gets fewer."""
TOGETHER = 0.93
"""The share of the shorter time of tensor cores and of their memory that is hidden."""
PROGRAM, WARP = 0.62e-9, 0.15e-9
"""The seconds from the start of a program without products to that of the next, and of a warp, on
all processors."""
BEGUN = 0.01
"""The share of the starts of programs without loops that nothing hides."""
ENDS = {False: 1.5, True: 1.0}
"""The blocks of a product with vectors that nothing hides: the first one comes, and the last one is
multiplied. By whether the program has one step: its block does not go through shared memory."""
EACH_STEP = 50
"""The additions that a thread could do while it loads its share of such a block, and waits for the
others: addresses, copies and a barrier, however few its elements are."""
THROUGH_SHARED = 1.0
"""The waiting of the first block for that, in steps."""
START = 2.0
"""The waiting of a program to begin and to end, in steps."""
FIRST = 0.7
"""The share of the waiting for the first block of a program with products that nothing hides."""
PARTS = 1.08
"""The factor for products of which programs store parts."""
STILL_HELD = 0.5
"""The share of the bytes of parts that stay in the second cache, where the next kernel reads them.
"""
TURNS, LARGE = 0.04, 128 * 256
"""The share of time that products take longer if programs compute their blocks in turns, as one
loop counts all steps; and the elements of a block for which it holds. With smaller ones steps are
shorter, and more of them. With descriptors it is nothing: threads compute no addresses."""
SERIAL, HELD_IN_TURNS = 1.45, 4
"""The factor for kernels in turns that do more than to sum one product, whose products wait for
each other; and for the registers of what they hold over the loop."""
TWINS = 0.06
"""The share of time that products of the same rows in a step take longer, unless they are joined:
tensor cores wait between steps until both are there. They go on with another program, if no group
of four warps waits for another one of its own."""
STORING = 2.0
"""The waiting of a step for the product that it stores, in steps."""
EACH_START = 4e-10
"""The seconds between the starts of two programs that load blocks ahead; with products, while the
processors are filled."""
GATHERING = 2.0
"""The time in which the loads of a step arrive that meets no other thread, in steps."""
FOLDING = 0.3
"""The waiting of threads for each other in a fold, in steps."""
CROSSED, OF_A_WARP = 1.05e-9, 256
"""The seconds in which a processor hands over a column of a sum across rows from one warp to
another; and the columns of a warp, beside which others have columns of their own."""
COMMON = 0.3
"""The share of the first cache that what all programs read may fill."""
CACHED = 0.6
"""The share of the second cache that what one round reads again may fill."""
VECTOR, POINTWISE = 0.6, 0.9
"""The shares of the rate of vectors that are reached: in most kernels, and in pointwise ones that
run long enough, as their arrays are in main memory."""
MULTIPLIED, READ, WRITTEN = 0.97, 1.06, 0.94
"""The shares of the rate of main memory that are reached: by products, and by other kernels where
they read and where they write. The rate is that of a copy."""
OVERLAP = {False: 0.95, True: 0.98}
"""The share of the shorter time of moving and computing that is hidden, without and with dots."""


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


def stream_warps(largest: float, programs: int, sharing: Sharing) -> int:
    """The warps of a program without products, by the elements of its largest tile.

    Threads have half as many elements if all of them run at a time.
    """
    is_own = sharing in (Sharing.OWN, Sharing.BUSY, Sharing.NARROW)
    has_room = largest * programs <= AT_ONCE if is_own else programs <= FEW_PROGRAMS
    halves = has_room and sharing is not Sharing.PASSED
    threads = max(32.0, largest / PER_THREAD[sharing] * (2 if halves else 1))
    most = MOST_OWN_WARPS if is_own else MOST_STREAM_WARPS
    return int(min(most, 1 << math.ceil(math.log2(threads / 32))))


def has_descriptors(machine: Machine) -> bool:
    """True for a GPU with tensor descriptors."""
    number = machine.instructions.removeprefix("sm_")
    return machine.target == "cuda" and number.isdigit() and int(number) >= DESCRIBING


def loads_by_descriptors(work: Work, machine: Machine, schedule: Schedule) -> bool:
    """True if descriptors load operands of a kernel."""
    return schedule.described and work.is_describable and has_descriptors(machine)


def residents(work: Work, machine: Machine, schedule: Schedule) -> Residents:
    """The programs of a kernel that a processor runs at a time."""
    room = machine.memories[0].size - work.kept
    usual = 8 if work.accumulated > ACCUMULATED * 32 * 4 else 4
    multiplies = work.multiplying or work.products
    if not multiplies:
        usual = stream_warps(work.largest, work.programs, work.sharing)
    warps = schedule.warps or usual
    runs = work.multiplying > 1 or work.streaming  # one step has none ahead
    stages = (schedule.stages or STAGES) + work.further if runs else 1
    if work.each_stage:
        stages = max(1, min(stages, 1 + int(room // work.each_stage)))
    has_turns = bool(schedule.programs and work.products)
    held_over = work.held_over * (HELD_IN_TURNS if has_turns else 1)
    beside_loops = work.accumulated + held_over
    each = max(work.held, beside_loops) / (32 * warps)
    beside = BESIDE_DESCRIBED if loads_by_descriptors(work, machine, schedule) else BESIDE
    own = beside_loops / (32 * warps) + beside if work.accumulated else 0.0
    if work.is_one_step:
        each, own = IN_ONE_STEP * beside_loops / (32 * warps), 0.0
    registers = min(MOST_REGISTERS, max(own, USED + each * PER_ELEMENT))
    limits = [MOST_PROGRAMS, MOST_WARPS // warps, int(REGISTERS // (32 * warps * registers))]
    shared = work.each_stage * (stages - 1) + work.kept
    limits += [int(machine.memories[0].size // shared)] if shared else []
    if schedule.programs and work.products:
        limits.append(schedule.programs // machine.processors)
    spilled = max(1.0, (USED + each * (2 if work.is_exact else 1)) / MOST_REGISTERS)
    return Residents(max(1, min(limits)), warps, stages, shared, spilled)


def runs_ahead(work: Work, warps: int) -> bool:
    """True if the loads of steps with products run ahead.

    A vector does not, if a thread has less than a word of it: the threads share it out. Of one
    across the rows of a block, each thread may have that of its own rows.
    """
    threads = 32 * warps
    of_rows = min(threads, work.along / VECTOR_BYTES)
    across = work.across >= WORD * (threads if of_rows < threads else 1)
    return across and work.beside >= WORD * threads


def gpu_seconds(work: Work, machine: Machine, schedule: Schedule) -> float:
    """The time of one kernel on a GPU."""
    here = residents(work, machine, schedule)
    programs = max(1.0, work.programs * work.busy)
    processors = min(float(machine.processors), programs)
    at_a_time = min(here.programs, max(1.0, programs / machine.processors))
    enough = KEPT_BUSY_BY_PRODUCTS if work.accumulated else KEPT_BUSY
    busy = processors * min(1.0, at_a_time * here.warps / enough)
    meets = (work.folding and not work.gathering) or work.multiplying or work.products
    is_long = machine.memory_for(work.arrays) is machine.main
    reached = POINTWISE if is_long and not meets else VECTOR
    operations = work.operations
    if work.spread:
        operations += EACH_STEP * work.multiplying * programs * 32 * here.warps
    computing = operations / (machine.rate("float32", processors=1) / 2 * reached * busy)
    has_turns = bool(schedule.programs and work.products)
    is_described = loads_by_descriptors(work, machine, schedule)
    is_counted = has_turns and work.accumulated and not is_described
    slower = TURNS * (LARGE / work.accumulated) ** 2 if is_counted else 0.0
    is_joined = is_described and schedule.joined and work.is_joinable
    is_plain = work.is_plain_joined if is_joined else work.is_plain
    slower += SERIAL - 1 if has_turns and not is_plain else 0.0
    is_cut = work.piece < LINE
    share = DESCRIBED[is_cut] if is_described and work.is_grouped else 1.0
    has_twins = work.has_twins and not is_joined
    goes_on = has_twins and at_a_time >= 2 and here.warps <= WARPS
    slower += TWINS if has_twins and not goes_on else 0.0
    computing *= 1 - OVERLAP[True] if goes_on else 1.0  # the other program multiplies meanwhile
    computing += _multiplying(work, machine, here, programs) * (1.0 + slower) * share
    mean_rounds = programs / (machine.processors * here.programs)
    rounds = math.ceil(mean_rounds) if mean_rounds < 4 else mean_rounds
    in_time = runs_ahead(work, here.warps)
    far = min(1.0, BLOCKS * work.arrays / max(work.passed, 1.0))
    sooner = SOONER * (1 - far) if is_described else 0.0
    arriving = (AHEAD - sooner + FAR * far if in_time else LATE) * machine.latency
    arriving += work.staged * at_a_time / machine.memories[-2].each
    stages = max(1, here.stages - 1) if in_time else 1
    if work.streaming and here.stages == 1 and not work.crossed:
        stages = UNROLLED
    running = work.multiplying + work.streaming - bool(work.spread)  # without the first
    ahead = rounds * running * arriving / stages
    if work.is_mixed:
        computing += rounds * running * (MIXED + (0.0 if in_time else LATE)) * machine.latency
    moving = _moving(work, machine, here, programs, at_a_time)
    if work.streaming and programs <= FEW_PROGRAMS and here.stages > 1 and not work.further:
        moving += MEETING * here.warps * running
    gathering = rounds * work.gathering * GATHERING * machine.latency
    *others, longer = sorted((gathering, moving, computing))
    shorter = sum(others)
    if not work.products:
        longer = max(longer, programs * max(PROGRAM, WARP * here.warps))
    is_serial = here.stages == 1 and bool(work.products)
    hidden = 0.0 if is_serial else HIDDEN[stages > 1] * min(longer, ahead)
    longer = (longer + ahead - hidden) * (PARTS if work.has_parts and work.products else 1.0)
    has_turns &= computing > moving  # else the memory has the last word
    starts = START / rounds if has_turns else START
    folding = FOLDING * (work.spread if work.multiplying else work.folding)
    alone = work.steps - running - work.gathering + work.handed_over + STORING * work.storing
    is_streamed = alone <= 1 and not (running or work.multiplying or work.products)
    keeps_busy = is_streamed and machine.memory_for(work.arrays) is machine.main
    # Between the first programs and the last, one waits while others keep the main memory busy.
    waits = min(rounds, 2 + rounds / at_a_time) if keeps_busy else rounds
    if work.is_one_step:  # others load meanwhile, if enough of them run at a time
        longer, waits = max(longer, mean_rounds * (alone + folding) * machine.latency), 1.0
    elif work.spread:  # the same for products with vectors; and what ends makes room for one
        waits = 1 + max(0.0, mean_rounds - 1) / at_a_time
        alone += THROUGH_SHARED if running else 0.0
    waiting = waits * (alone + folding + starts) * machine.latency
    waiting += BEGUN * programs * PROGRAM if keeps_busy else 0.0
    filling = min(programs, machine.processors * here.programs)
    waiting += _crossing(work, here.warps) * programs / machine.processors
    if work.is_one_step:
        waiting += TAIL * work.arrays * filling / programs / machine.main.total
    elif work.spread:
        waiting += ENDS[not running] * work.staged / machine.main.each
    if work.streaming:  # each program waits for the first blocks that it loads ahead
        waiting += EACH_START * programs
    if work.products:
        waiting += (1.0 if has_turns else rounds) * (1.0 + work.restarts) * FIRST * arriving
        waiting += EACH_START * filling
    elif is_streamed and not work.folding:
        main, ends = machine.main, alone + starts
        waiting = ends * machine.latency + BEGUN * programs * PROGRAM
        waiting += work.own * (TAIL * filling / main.total + 1 / main.each)
    if work.multiplying:  # while a program stores, it multiplies nothing
        stored = 1.0 if has_turns and is_described else rounds  # descriptors store beside it
        waiting += stored * work.written / programs / machine.memories[-2].each / at_a_time
    wanted = work.each_stage * ((schedule.stages or 1) - 1) + work.kept
    crowded = CROWDED if wanted > machine.memories[0].size else 1.0
    beside = 0.0 if work.is_one_step else (1 - OVERLAP[bool(work.products)]) * shorter
    waiting += FETCHING if is_described else 0.0
    has_few = work.has_few_columns or not work.is_grouped
    coming = work.staged * (here.stages - 1) * at_a_time
    few = TRANSPOSED if work.has_few_columns else 1.0
    few *= FLOODED if has_few and coming > MOST_AHEAD else 1.0
    return (longer + beside + waiting) * here.spilled**3 * crowded * few


def gpu_floor(size: float, machine: Machine, *, has_products: bool) -> float:
    """The least time of one kernel that moves some bytes: no work takes less by `gpu_seconds`.

    A product may be one with a vector, which reads as fast as a kernel without products.
    """
    memory = machine.main if has_products else machine.memory_for(size)
    memory = machine.memories[-2] if memory is machine.memories[0] else memory
    rate = memory.total * (READ if memory is machine.main else 1.0)
    return size / rate + START * machine.latency


def _reached(work: Work) -> float:
    """The share of the rate of main memory that a kernel reaches."""
    if work.products:
        return MULTIPLIED
    written = min(1.0, work.written / max(work.arrays, 1.0))
    return 1 / ((1 - written) / READ + written / WRITTEN)


def _crossing(work: Work, warps: int) -> float:
    """The seconds that folds across rows take a processor, for each program."""
    across = warps / min(warps, max(1.0, work.crossed / OF_A_WARP))
    return CROSSED * work.crossed * across if across > 1 else 0.0


def _multiplying(work: Work, machine: Machine, here: Residents, programs: float) -> float:
    """The seconds for products of matrices: of tensor cores, or of the memory that they read.

    All processors wait for the one with the most programs. With few rows, a program may wait for
    each product before it can add the next.
    """
    processors = programs / math.ceil(programs / machine.processors)
    if work.is_exact:
        each = max(1.0, work.accumulated / (32 * here.warps)) / EACH_EXACT
        rate = EXACT[work.is_chained] * machine.rate("float32", processors=1)
        rate /= math.sqrt(max(each, 1 / each))
    else:
        rate = machine.rate(work.dtype, matrix=True, processors=1)
        rate *= 1.0 if work.is_grouped else UNGROUPED
    cores = work.products / rate
    rounds = math.ceil(programs / (machine.processors * here.programs))
    waiting = 0.0 if work.is_exact else IN_A_ROW * work.in_a_row * rounds
    memory = (work.read_by_cores + work.staged * work.multiplying * programs) / (
        machine.memories[0].each
    )
    words = work.by_words / BY_WORDS
    longer, shorter = max(cores, memory + words), min(cores, memory + words)
    return max(waiting, (longer + (1 - TOGETHER) * shorter) / processors)


def main_bytes(work: Work, machine: Machine, here: Residents) -> float:
    """The bytes that a kernel moves from main memory and to it."""
    if not work.reads:
        return work.arrays
    at_a_time = min(work.programs * work.busy, machine.processors * here.programs)
    return max(work.arrays, from_main(work.reads, work.order, at_a_time, machine.memories[-2].size))


def _moving(
    work: Work, machine: Machine, here: Residents, programs: float, at_a_time: float
) -> float:
    """The seconds for bytes: of arrays once, again by other programs, and again by the same.

    Few programs do not reach the rates of all processors together. What all programs read stays in
    the first cache, if there is little of it.
    """
    first, cache, main = machine.memories[0], machine.memories[-2], machine.main
    home = machine.memory_for(work.arrays)
    home = cache if home is first else home
    own = work.own * programs
    others = max(0.0, own - work.arrays)
    again = max(0.0, work.passed - work.scratch - max(own, work.arrays))
    # Scratch memory is written and read: half of its bytes are its size.
    is_held = work.arrays + work.scratch / 2 <= cache.size * CACHED
    runs_ahead = bool(work.multiplying or work.streaming)
    near = work.common <= COMMON * first.size and not runs_ahead
    common = min(others, work.common * (programs - 1)) if near else 0.0
    others -= common
    reach = work.own * at_a_time
    if reach <= first.size - here.shared:
        nearest = first
    else:
        nearest = cache if reach * machine.processors <= cache.size * CACHED else home
    # All wait for the processor with the most programs, if blocks are loaded ahead.
    most = math.ceil(programs / machine.processors)
    processors = programs / most if runs_ahead else min(programs, machine.processors)

    def rate(memory: Memory) -> float:
        total = memory.total * (_reached(work) if memory is main else 1.0)
        return min(total, memory.each * processors)

    longer = BROKEN_AHEAD if work.streaming else BROKEN
    broken = 0.0 if work.products else longer * max(0.0, 1 - work.piece / LINE)
    both = runs_ahead or work.is_scattered
    short = max(0.0, 1 - work.piece / LONG_PIECE)
    once = work.arrays * (1 + broken + (0.0 if both else CUT_BESIDE * short))
    parts = [(once, home), (others, cache), (common, first), (again, nearest)]
    parts += [(work.scratch, cache if is_held else main)]
    if both:  # memories are busy at a time
        from_memory = max(once, main_bytes(work, machine, here)) / rate(main)
        if work.has_parts and is_held:
            from_memory -= STILL_HELD * work.written / rate(main)
        from_memory += 0.0 if is_held else work.scratch / rate(main)
        if work.is_scattered or (work.multiplying and not work.products):  # with vectors
            from_memory *= 1 + CUT * short
        return max(from_memory, sum(size for size, _ in parts) / rate(cache))
    return sum(size / rate(memory) for size, memory in parts)
