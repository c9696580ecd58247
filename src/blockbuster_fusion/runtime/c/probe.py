"""Measures this CPU: arithmetic rates, the bandwidth of each memory, the cost of a call.

Each figure is the best of several runs: a busy machine only makes runs slower. One thread is timed
by its own time on a CPU, which leaves out the turns of other programs.
"""

import ctypes
import math
import os
import platform
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

from blockbuster_fusion.errors import BadMachine
from blockbuster_fusion.machine.machine import UNITS, Machine, Memory
from blockbuster_fusion.progress import doing
from blockbuster_fusion.runtime.c.compiler import compile_c, compiler
from blockbuster_fusion.runtime.c.library import load_library
from blockbuster_fusion.runtime.c.probe_source import SOURCE
from blockbuster_fusion.runtime.c.topology import Cache, topology

SECONDS = 0.02
"""The shortest run that is timed."""
RUNS = 7
CALLS = 200
LONGEST_WAKE = 50e-6
"""Waking all threads takes less on an idle machine; on a busy one they wait for their turns."""
BEYOND = 4
"""Main memory is measured with so many times the last caches; with many of them, twice."""
MANY_BYTES = 256 << 20
ALIGNED = 64
"""The address of a vector is a multiple of this."""


def probe_cpu(threads: int) -> Machine:
    """This CPU, measured on so many threads, of which some may share a core."""
    found = topology(threads=threads)
    library = _library()
    with doing("measuring this machine", 4 + len(found.caches)) as task:
        rates = {}
        for dtype, size in (("float32", 4), ("float64", 8)):
            count = 10 * library.vector_bytes() // size
            rates[f"vector.{dtype}"] = _peak(library, dtype, count, threads)
            task.step()
        for unit, count in dot_units().items():  # bfloat16 can be widened to float32
            one = _peak(library, unit, count, threads)
            rates[f"{unit}.bfloat16"] = max(one, rates["vector.float32"])
        memories = []
        for cache in found.caches:
            memories.append(_cache(library, cache, threads))
            task.step()
        memories.append(_main(library, found.caches[-1].total, threads))
        task.step()
        launch = _best(lambda rounds: [library.nothing() for _ in range(rounds)])
        wake = min(_shortest(lambda: library.all_threads(threads)), LONGEST_WAKE)
        task.step()
    return Machine(
        cpu_name(),
        "cpu",
        threads,
        tuple(memories),
        rates,
        launch,
        0.0,
        wake=wake,
        instructions=library.instructions().decode("ascii"),
        source=f"measured {time.strftime('%Y-%m-%d')}, threads: {threads}",
    )


def dot_units() -> dict[str, int]:
    """The units of this CPU that multiply bfloat16, and the multiply-adds of a round of their peak.

    The compiler has to know their instructions, and the system to grant them.
    """
    return dict(_dot_units(compiler()))


@cache
def _dot_units(command: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    """The same, in code by a compiler."""
    library = _library()
    counts = {unit: getattr(library, f"dots_{unit}")() for unit in UNITS}
    return tuple((unit, count) for unit, count in counts.items() if count)


def dot_unit() -> str | None:
    """The fastest unit for products of bfloat16; None if float32 is faster. Measured once."""
    rates = _dot_rates(compiler())
    return max(rates, key=lambda unit: rates[unit], default=None)


@cache
def _dot_rates(command: tuple[str, ...]) -> dict[str, float]:
    """The rates of the units that are faster than float32, in code by a compiler."""
    library, units = _library(), dot_units()
    if not units:
        return {}
    least = 10 * library.vector_bytes() // 4 / _soon(library.peak_float32)
    rates = {u: count / _soon(getattr(library, f"peak_{u}")) for u, count in units.items()}
    return {unit: rate for unit, rate in rates.items() if rate > least}


def _soon(run: Callable[[int], object]) -> float:
    """Seconds per round, measured while a kernel waits for it to be compiled."""
    return _best(run, seconds=SECONDS / 8)


def _library() -> ctypes.CDLL:
    library = load_library(compile_c(SOURCE).content)
    for name in ("float32", "float64", *UNITS):
        one, every = (getattr(library, f"{kind}_{name}") for kind in ("peak", "time_of_all"))
        one.argtypes, one.restype = [ctypes.c_int64], ctypes.c_double
        every.argtypes, every.restype = [ctypes.c_int64] * 2, ctypes.c_double
    for unit in UNITS:
        getattr(library, f"dots_{unit}").restype = ctypes.c_int64
    library.read_all.argtypes = [ctypes.c_void_p, *[ctypes.c_int64] * 3]
    library.read_all.restype = ctypes.c_double
    library.all_threads.argtypes = [ctypes.c_int64]
    library.vector_bytes.restype = ctypes.c_int64
    library.instructions.restype = ctypes.c_char_p
    return library


def _peak(library: ctypes.CDLL, name: str, count: int, threads: int) -> float:
    """Operations per second of a thread while all compute: some may share a core, or its heat.

    `count` are the multiply-adds of a round.
    """
    operations, one = 2.0 * count, _best(getattr(library, f"peak_{name}"))
    if threads == 1:
        return operations / one
    rounds = max(1, int(SECONDS / one))
    every = getattr(library, f"time_of_all_{name}")
    return float(operations * rounds / min(every(rounds, threads) for _ in range(RUNS)))


def _cache(library: ctypes.CDLL, cache: Cache, threads: int) -> Memory:
    """Caches, read by one thread and by all; half of each, since other data is in it too."""
    one = _bandwidth(library, cache.one // 2, 1)
    every = _bandwidth(library, cache.total // 2, threads)
    size = cache.total if cache.shared else cache.total // threads
    return Memory(cache.name, size, one, max(one, every), cache.shared)


def _main(library: ctypes.CDLL, last: int, threads: int) -> Memory:
    installed = _installed()
    size = min(max(min(BEYOND * last, MANY_BYTES), 2 * last), installed // 4)
    one, every = (_bandwidth(library, size, count) for count in (1, threads))
    return Memory("main", installed, one, max(one, every))


def _bandwidth(library: ctypes.CDLL, size: int, threads: int) -> float:
    buffer = (ctypes.c_char * (size + ALIGNED))()
    ctypes.memset(buffer, 0, size + ALIGNED)
    begin = -(-ctypes.addressof(buffer) // ALIGNED) * ALIGNED
    clock = time.thread_time if threads == 1 else time.perf_counter
    return size / _best(lambda rounds: library.read_all(begin, size, rounds, threads), clock)


def _best(
    run: Callable[[int], object],
    clock: Callable[[], float] = time.thread_time,
    seconds: float = SECONDS,
) -> float:
    """Seconds per round of a function that takes a number of rounds: the best of several runs."""
    rounds = 1
    while True:
        began = clock()
        run(rounds)
        taken = clock() - began
        if taken >= seconds or rounds > 1 << 40:
            break
        rounds = max(2 * rounds, int(1.2 * rounds * seconds / max(taken, 1e-7)))
    best = taken
    for _ in range(RUNS - 1):
        began = clock()
        run(rounds)
        best = min(best, clock() - began)
    return best / rounds


def _shortest(run: Callable[[], object]) -> float:
    """Seconds of the shortest of many calls: other programs may hold up nearly all of them."""
    shortest = math.inf
    for _ in range(CALLS):
        began = time.perf_counter()
        run()
        shortest = min(shortest, time.perf_counter() - began)
    return shortest


# ---------------------------------------------------------------- what the system tells


def _installed() -> int:
    """Bytes of main memory."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 8 << 30


def cpu_name() -> str:
    """The name of the CPU, as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model", "Hardware") and value.strip():
            return value.strip()
    name = platform.processor() or platform.machine()
    if not name:
        raise BadMachine(name="of this host", problem="the system does not name its CPU")
    return name
