"""Measures short calls: seconds of the device, and of the host that launches them."""

import time
from collections.abc import Callable
from statistics import median

import torch

from blockbuster_fusion.schedule.cost import Seconds

SAMPLES = 5
SHORTEST = 4e-4
"""The least seconds of a sample; shorter calls are repeated in it."""
MOST_CALLS = 200
CYCLES = 2_000_000
"""The cycles for which a GPU sleeps while calls are queued: about a millisecond."""


def measured(call: Callable[[], object], device: torch.device) -> Seconds:
    """The time of a call: the median of some samples."""
    call()
    return _on_gpu(call) if device.type == "cuda" else _on_cpu(call)


def _on_cpu(call: Callable[[], object]) -> Seconds:
    once = _wall(call, 1)
    count = min(MOST_CALLS, max(1, int(SHORTEST / max(once, 1e-9))))
    samples = SAMPLES if once * count < 0.02 else 3
    return Seconds(median(_wall(call, count) for _ in range(samples)) if once < 0.5 else once)


def _wall(call: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def _on_gpu(call: Callable[[], object]) -> Seconds:
    """Calls are queued while the GPU sleeps, so that its time is not that of the host."""
    torch.cuda.synchronize()
    call()
    once = _wall(call, 2)
    count = max(1, min(20, int(2e-3 / max(once, 1e-9))))
    devices, hosts = [], []
    for _ in range(SAMPLES):
        begin, end = _event(), _event()
        torch.cuda._sleep(CYCLES)  # type: ignore[no-untyped-call]
        begin.record()
        hosts.append(_wall(call, count))
        end.record()
        torch.cuda.synchronize()
        devices.append(begin.elapsed_time(end) / 1e3 / count)
    return Seconds(median(devices), median(hosts))


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
