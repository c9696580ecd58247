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
from pathlib import Path

from blockbuster_fusion.errors import BadMachine
from blockbuster_fusion.machine.machine import Machine, Memory
from blockbuster_fusion.progress import doing
from blockbuster_fusion.runtime.c.compiler import compile_c
from blockbuster_fusion.runtime.c.library import load_library
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

SOURCE = """\
#include <stdint.h>
#include <time.h>

#if defined(__AVX512F__)
#define WIDE 64
#elif defined(__AVX__)
#define WIDE 32
#else
#define WIDE 16
#endif
typedef float float32 __attribute__((vector_size(WIDE)));
typedef double float64 __attribute__((vector_size(WIDE)));

int64_t vector_bytes(void) { return WIDE; }

const char *instructions(void) {
#if defined(__AVX512F__)
    return "AVX-512";
#elif defined(__AVX2__)
    return "AVX2";
#elif defined(__AVX__)
    return "AVX";
#elif defined(__SSE2__)
    return "SSE2";
#elif defined(__ARM_FEATURE_SVE)
    return "SVE";
#elif defined(__ARM_NEON)
    return "NEON";
#else
    return "";
#endif
}

static double own_time(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

/* Ten chains of fused multiply-adds in registers, so that none waits for another. */
#define EACH(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9)
#define START(C) a##C = y * (scalar)C;
#define STEP(C) a##C = a##C * x + y;
#define ADD(C) sum += a##C[0];
#define PEAK(T, S) \\
    double peak_##T(int64_t rounds) { \\
        typedef S scalar; \\
        T x, y, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9; \\
        for (int i = 0; i < (int)(WIDE / sizeof(S)); i++) { x[i] = (S)0.999; y[i] = (S)1e-3; } \\
        EACH(START) \\
        for (int64_t r = 0; r < rounds; r++) { EACH(STEP) } \\
        double sum = 0; \\
        EACH(ADD) \\
        __asm__ volatile("" : "+m"(sum)); /* It is computed before a clock is read. */ \\
        return sum; \\
    } \\
    /* The mean of the threads' own times, which leave out the turns of other programs. */ \\
    double time_of_all_##T(int64_t rounds, int64_t threads) { \\
        double total = 0; \\
        _Pragma("omp parallel num_threads(threads) reduction(+ : total)") \\
        { \\
            const double began = own_time(); \\
            peak_##T(rounds); \\
            total += own_time() - began; \\
        } \\
        return total / threads; \\
    }
PEAK(float32, float)
PEAK(float64, double)

/* Reads an array some number of times; each thread its own part. */
double read_all(const void *from, int64_t bytes, int64_t rounds, int64_t threads) {
    double total = 0;
    #pragma omp parallel for num_threads(threads) reduction(+ : total) schedule(static)
    for (int64_t t = 0; t < threads; t++) {
        const int64_t each = bytes / threads / (8 * WIDE);
        const float32 *x = (const float32 *)from + 8 * each * t;
        float32 a = {0}, b = {0}, c = {0}, d = {0};
        for (int64_t r = 0; r < rounds; r++) {
            for (int64_t i = 0; i < each; i++) {
                a += x[8 * i] + x[8 * i + 4];
                b += x[8 * i + 1] + x[8 * i + 5];
                c += x[8 * i + 2] + x[8 * i + 6];
                d += x[8 * i + 3] + x[8 * i + 7];
            }
            __asm__ volatile("" ::: "memory");
        }
        a += b + c + d;
        total += a[0];
    }
    return total;
}

void nothing(void) {}

void all_threads(int64_t threads) {
    #pragma omp parallel num_threads(threads)
    { __asm__ volatile("" ::: "memory"); }
}
"""


def probe_cpu(threads: int) -> Machine:
    """This CPU, measured on so many threads, of which some may share a core."""
    found = topology(threads=threads)
    library = _library()
    with doing("measuring this machine", 4 + len(found.caches)) as task:
        rates = {}
        for dtype, size in (("float32", 4), ("float64", 8)):
            lanes = library.vector_bytes() // size
            rates[f"vector.{dtype}"] = _peak(library, dtype, lanes, threads)
            task.step()
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
        wake,
        instructions=library.instructions().decode("ascii"),
        source=f"measured {time.strftime('%Y-%m-%d')}, threads: {threads}",
    )


def _library() -> ctypes.CDLL:
    library = load_library(compile_c(SOURCE).content)
    for dtype in ("float32", "float64"):
        one, every = (getattr(library, f"{name}_{dtype}") for name in ("peak", "time_of_all"))
        one.argtypes, one.restype = [ctypes.c_int64], ctypes.c_double
        every.argtypes, every.restype = [ctypes.c_int64] * 2, ctypes.c_double
    library.read_all.argtypes = [ctypes.c_void_p, *[ctypes.c_int64] * 3]
    library.read_all.restype = ctypes.c_double
    library.all_threads.argtypes = [ctypes.c_int64]
    library.vector_bytes.restype = ctypes.c_int64
    library.instructions.restype = ctypes.c_char_p
    return library


def _peak(library: ctypes.CDLL, dtype: str, lanes: int, threads: int) -> float:
    """Operations per second of a thread while all compute: some may share a core, or its heat."""
    operations, one = 2.0 * 10 * lanes, _best(getattr(library, f"peak_{dtype}"))
    if threads == 1:
        return operations / one
    rounds = max(1, int(SECONDS / one))
    every = getattr(library, f"time_of_all_{dtype}")
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


def _best(run: Callable[[int], object], clock: Callable[[], float] = time.thread_time) -> float:
    """Seconds per round of a function that takes a number of rounds: the best of several runs."""
    rounds = 1
    while True:
        began = clock()
        run(rounds)
        taken = clock() - began
        if taken >= SECONDS or rounds > 1 << 40:
            break
        rounds = max(2 * rounds, int(1.2 * rounds * SECONDS / max(taken, 1e-7)))
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
