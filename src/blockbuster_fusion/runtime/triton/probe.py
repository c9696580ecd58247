"""Measures a GPU: rates, the bandwidth of each memory, the cost of a kernel.

A `Gauge` measures, and `gpu_machine` makes a machine of what was measured and of the properties
that PyTorch tells. Each time is the best of several: other work only makes runs slower.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from blockbuster_fusion.errors import BadMachine
from blockbuster_fusion.machine.machine import Machine, Memory
from blockbuster_fusion.progress import doing
from blockbuster_fusion.runtime.triton import probe_kernels
from blockbuster_fusion.runtime.triton.device import NO_GPU, has_gpu

DTYPES = ("float32", "float64", "float16", "bfloat16")
RUNS = 5
SECONDS = 1e-3
"""The least time of a run; shorter calls are repeated in it."""
MOST_CALLS = 100
CYCLES = 4_000_000
"""The cycles for which the GPU sleeps while calls are queued: about two milliseconds."""
LARGE = 1 << 30
"""Bytes of an array that no cache holds."""
SMALLEST, LARGEST = 2048, 8192
"""The lengths of the square matrices that are multiplied."""
THREADS = 256
"""The threads of a program: usual kernels have so many, and a full processor several of them."""
RESERVED = 1024
"""Bytes of shared memory that the system keeps for each program."""
SHARED_BYTES = 128
"""Bytes of shared memory that a processor moves in a cycle."""
USUAL_L2 = 4 << 20
"""The size that is assumed where the driver tells none."""
OPERATORS = 0.75
"""The cost of a launch for the host, in calls of one small operator that are repeated."""
BETWEEN = 2 / 3
"""The share of a small operator's time that is the wait between two kernels."""


@dataclass(frozen=True)
class Figures:
    """The figures of a GPU, in bytes, operations and cycles per second, and in seconds."""

    clock: float
    main: float
    """Copies of a large array: bytes read and written, by all processors."""
    main_each: float
    """The same by one program."""
    l2: float
    l2_each: float
    vector: dict[str, float]
    """Operations of all processors by dtype: multiply-adds in registers."""
    matrix: dict[str, float]
    """Operations of all processors by dtype: products of matrices, of float32 as TF32."""
    operator: float
    """Seconds of the host for a small operator."""
    step: float
    """Seconds of the device for a small operator, among others that are queued."""
    latency: float
    """Seconds of a load that waits for the one before."""


def probe_gpu() -> Machine:
    """The current GPU, measured."""
    if not has_gpu():
        raise BadMachine(name="cuda", problem=NO_GPU)
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    with doing("measuring this GPU"), torch.no_grad():
        figures = measured(Gauge(), l2_bytes(properties), properties.multi_processor_count)
    torch.cuda.empty_cache()
    return gpu_machine(properties, figures)


def gpu_machine(properties: Any, figures: Figures) -> Machine:
    """The machine of a GPU's properties and of what was measured."""
    count = properties.multi_processor_count
    shared = SHARED_BYTES * figures.clock
    size = properties.shared_memory_per_multiprocessor - RESERVED
    l2, main = max(figures.l2, figures.main), figures.main
    memories = (
        Memory("shared", size, shared, shared * count, shared=False),
        Memory("L2", l2_bytes(properties), min(figures.l2_each, l2), l2),
        Memory("main", properties.total_memory, min(figures.main_each, main), main),
    )
    rates = {f"vector.{dtype}": rate / count for dtype, rate in figures.vector.items()}
    rates |= {f"matrix.{dtype}": rate / count for dtype, rate in figures.matrix.items()}
    return Machine(
        properties.name,
        "cuda",
        count,
        memories,
        rates,
        launch=OPERATORS * figures.operator,
        step=BETWEEN * figures.step,
        programs=max(1, properties.max_threads_per_multi_processor // THREADS),
        latency=figures.latency,
        instructions=f"sm_{properties.major}{properties.minor}",
        source=f"measured {time.strftime('%Y-%m-%d')}",
    )


def l2_bytes(properties: Any) -> int:
    """The size of the second cache."""
    return int(properties.L2_cache_size) or USUAL_L2


def measured(gauge: "Gauge", l2: int, processors: int) -> Figures:
    """All figures of a GPU with so large a second cache."""
    operator, step = gauge.operator()
    free = gauge.free_bytes()
    large = min(LARGE, free // 8)
    return Figures(
        clock=gauge.clock(),
        main=gauge.copied(large),
        main_each=gauge.read_by_one(large),
        l2=gauge.copied_more(l2 // 8, l2 // 4),
        l2_each=gauge.read_by_one(l2 // 4),
        vector={dtype: gauge.multiply_adds(dtype, processors) for dtype in DTYPES},
        matrix={dtype: gauge.products(dtype) for dtype in DTYPES},
        operator=operator,
        step=step,
        latency=gauge.latency(),
    )


class Gauge:
    """Times calls on the current GPU."""

    def free_bytes(self) -> int:
        """Bytes of main memory that are free."""
        return int(torch.cuda.mem_get_info()[0])

    def clock(self) -> float:
        """Cycles per second: a sleep is a number of cycles."""
        return CYCLES / self.seconds(lambda: _sleep(CYCLES))

    def copied(self, size: int) -> float:
        """Bytes per second that a copy of an array reads and writes."""
        return 2 * size / self._copy(size)

    def copied_more(self, less: int, more: int) -> float:
        """Bytes per second of copies, by the difference of two: what each costs does not count."""
        longer = self._copy(more) - self._copy(less)
        return 2 * (more - less) / longer if longer > 0 else self.copied(more)

    def _copy(self, size: int) -> float:
        x = torch.zeros(size, dtype=torch.uint8, device="cuda")
        y = torch.empty_like(x)
        return self.seconds(lambda: y.copy_(x))

    def read_by_one(self, size: int) -> float:
        """Bytes per second that one program reads of an array, again and again."""
        count = max(1, size // 4 // probe_kernels.BLOCK)
        x = torch.zeros(count * probe_kernels.BLOCK, device="cuda")
        out = torch.zeros(1, device="cuda")
        steps = min(count, 16384)
        seconds = self.seconds(lambda: probe_kernels.read(x, out, count, steps))
        return steps * probe_kernels.BLOCK * 4 / seconds

    def multiply_adds(self, dtype: str, processors: int) -> float:
        """Operations per second of multiply-adds in registers, by all processors."""
        out = torch.zeros(1, dtype=getattr(torch, dtype), device="cuda")
        programs, steps = 16 * processors, 512 if dtype == "float64" else 4096
        seconds = self.seconds(lambda: probe_kernels.multiply_add(out, programs, steps))
        return 2.0 * programs * steps * probe_kernels.BLOCK / seconds

    def products(self, dtype: str) -> float:
        """Operations per second of a product of square matrices; of float32, as TF32."""
        length, best = SMALLEST, 0.0
        with _tf32():
            while length <= LARGEST:
                x = torch.ones(length, length, dtype=getattr(torch, dtype), device="cuda")
                y = torch.empty_like(x)
                seconds = self.seconds(lambda x=x, y=y: torch.mm(x, x, out=y))  # type: ignore[misc]
                best = max(best, 2.0 * length**3 / seconds)
                if seconds > 5 * SECONDS:
                    break
                length *= 2
        return best

    def operator(self) -> tuple[float, float]:
        """Seconds of the host and of the device for a small operator."""
        x = torch.zeros(1, device="cuda")
        hosts: list[float] = []
        device = self.seconds(lambda: x.add_(1), MOST_CALLS, hosts)
        return min(hosts), device

    def latency(self) -> float:
        """Seconds of a load whose place is the result of the load before."""
        places = probe_kernels.places()
        out = torch.zeros(1, dtype=torch.int32, device="cuda")
        less, more = 1 << 10, 1 << 13
        longer = self.seconds(lambda: probe_kernels.chase(places, out, more))
        longer -= self.seconds(lambda: probe_kernels.chase(places, out, less))
        return max(longer, 0.0) / (more - less)

    def seconds(
        self, call: Callable[[], object], calls: int | None = None, hosts: list[float] | None = None
    ) -> float:
        """Seconds of the device for a call: calls are queued while it sleeps."""
        call()
        count = calls or min(MOST_CALLS, max(1, int(SECONDS / max(self._once(call, 1)[0], 1e-9))))
        found = [self._once(call, count) for _ in range(RUNS)]
        if hosts is not None:
            hosts += [host for _, host in found]
        return min(device for device, _ in found)

    def _once(self, call: Callable[[], object], count: int) -> tuple[float, float]:
        """Seconds of the device and of the host for a call, of so many."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        _sleep(CYCLES)
        begin.record()
        start = time.perf_counter()
        for _ in range(count):
            call()
        host = (time.perf_counter() - start) / count
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1e3 / count, host


def _sleep(cycles: int) -> None:
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


@contextmanager
def _tf32() -> Iterator[None]:
    """Products of float32 may round their factors to TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
