"""Measures this CPU: arithmetic rates, the bandwidth of each memory, the cost of a call.

Each figure is the best of several runs: a busy machine only makes runs slower.
"""

import ctypes
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

SECONDS = 0.02
"""The shortest run that is timed."""
RUNS = 7
CALLS = 200
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
USUAL_CACHES = {"L1": 32 << 10, "L2": 1 << 20, "L3": 16 << 20}
"""Sizes that are assumed where the system does not tell."""
BEYOND = 4
"""Main memory is measured with so many times the last cache, or with half of it at least."""
MOST_BYTES = 256 << 20
ALIGNED = 64
"""The address of a vector is a multiple of this."""

SOURCE = """\
#include <stdint.h>

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
        return sum; \\
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


def probe_cpu(threads: int | None = None) -> Machine:
    """This CPU, measured on so many threads: by default, all that the process may use."""
    count = threads or available_threads()
    sizes = cache_sizes()
    library = _library()
    with doing("measuring this machine", 4 + len(sizes)) as task:
        rates = {}
        for dtype, size in (("float32", 4), ("float64", 8)):
            rates[f"vector.{dtype}"] = _peak(library, dtype, library.vector_bytes() // size)
            task.step()
        memories = []
        for name, size, shared in sizes:
            memories.append(_cache(library, name, size, shared, count))
            task.step()
        memories.append(_main(library, sizes[-1][1], count))
        task.step()
        launch = _best(lambda rounds: [library.nothing() for _ in range(rounds)])
        wake = _usual(lambda: library.all_threads(count))
        task.step()
    name, source = cpu_name(), f"measured {time.strftime('%Y-%m-%d')}, {count} threads"
    return Machine(name, "cpu", count, tuple(memories), rates, launch, 0.0, wake, source=source)


def _library() -> ctypes.CDLL:
    library = load_library(compile_c(SOURCE).content)
    for function in (library.peak_float32, library.peak_float64):
        function.argtypes, function.restype = [ctypes.c_int64], ctypes.c_double
    library.read_all.argtypes = [ctypes.c_void_p, *[ctypes.c_int64] * 3]
    library.read_all.restype = ctypes.c_double
    library.all_threads.argtypes = [ctypes.c_int64]
    library.vector_bytes.restype = ctypes.c_int64
    return library


def _peak(library: ctypes.CDLL, dtype: str, lanes: int) -> float:
    """Operations per second of one core."""
    function = getattr(library, f"peak_{dtype}")
    return 2.0 * 10 * lanes / _best(function)


def _cache(library: ctypes.CDLL, name: str, size: int, shared: bool, threads: int) -> Memory:
    """A cache, read by one thread and by all; half of it, since other data is in it too."""
    half = size // 2
    one = _bandwidth(library, half, 1)
    every = _bandwidth(library, half if shared else half * threads, threads)
    return Memory(name, size, one, max(one, every), shared)


def _main(library: ctypes.CDLL, last: int, threads: int) -> Memory:
    size = max(min(BEYOND * last, MOST_BYTES), 2 * last if last < MOST_BYTES else MOST_BYTES)
    one, every = (_bandwidth(library, size, count) for count in (1, threads))
    return Memory("main", _installed(), one, max(one, every))


def _bandwidth(library: ctypes.CDLL, size: int, threads: int) -> float:
    buffer = (ctypes.c_char * (size + ALIGNED))()
    ctypes.memset(buffer, 0, size + ALIGNED)
    begin = -(-ctypes.addressof(buffer) // ALIGNED) * ALIGNED
    return size / _best(lambda rounds: library.read_all(begin, size, rounds, threads))


def _best(run: Callable[[int], object]) -> float:
    """Seconds per round of a function that takes a number of rounds: the best of several runs."""
    rounds = 1
    while True:
        began = time.perf_counter()
        run(rounds)
        taken = time.perf_counter() - began
        if taken >= SECONDS or rounds > 1 << 40:
            break
        rounds = max(2 * rounds, int(1.2 * rounds * SECONDS / max(taken, 1e-7)))
    best = taken
    for _ in range(RUNS - 1):
        began = time.perf_counter()
        run(rounds)
        best = min(best, time.perf_counter() - began)
    return best / rounds


def _usual(run: Callable[[], object]) -> float:
    """Seconds of a short call: the lower quartile, as other programs may hold up some calls."""
    times = []
    for _ in range(CALLS):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return sorted(times)[CALLS // 4]


# ---------------------------------------------------------------- what the system tells


def available_threads() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def cache_sizes() -> list[tuple[str, int, bool]]:
    """The data caches: name, bytes, and True if several cores share it; the fastest first."""
    found = []
    for folder in sorted(CACHES.glob("index*")):
        try:
            kind = (folder / "type").read_text().strip()
            level = int((folder / "level").read_text())
            size = _parsed((folder / "size").read_text().strip())
            shared = (folder / "shared_cpu_list").read_text().strip()
        except (OSError, ValueError):
            continue
        if kind in ("Data", "Unified") and size:
            found.append((f"L{level}", size, level > 2 and shared.isdecimal() is False))
    if not found:
        return [(name, size, name == "L3") for name, size in USUAL_CACHES.items()]
    return sorted(found, key=lambda cache: cache[1])


def _parsed(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1:] in units else int(text)


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
