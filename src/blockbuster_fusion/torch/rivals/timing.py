"""Measures short calls: seconds of the device, and of the host that launches them.

The shortest sample counts: other programs hold some up, by milliseconds where threads wait in
loops for one that is not running. On a busy CPU that can go on for dozens of calls, until the
system moves a thread. So samples are taken until one has not waited: its process was running. A GPU
may wait for a busy host: its sample counts if all calls were queued before the first one began.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from blockbuster_fusion.runtime.compiled import Compiled
from blockbuster_fusion.runtime.executable import Executable, Sizes
from blockbuster_fusion.runtime.measuring import measuring
from blockbuster_fusion.runtime.tensors import library_on
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.torch.machines import as_current

SAMPLES = 5
MOST_SAMPLES = 20
LONGEST = 0.03
"""The seconds after which no more than the least number of samples is taken."""
LONG = 0.5
"""The seconds after which a call is not repeated any more."""
PATIENCE, ALL_PATIENCE = 1.5, 5.0
"""The same as long as every sample has waited for other programs, and all that a process spends."""
_left = [ALL_PATIENCE]
"""The seconds that this process may still wait for a quiet CPU."""
RUNNING = 0.9
"""The share of a sample in which the process has to be running, else it has waited."""
SHORTEST = 4e-4
"""The least seconds of a sample; shorter calls are repeated in it."""
MOST_CALLS = 200
CYCLES = 2_000_000
"""The cycles for which a GPU sleeps while calls are queued: about a millisecond."""
LONGER = 16
"""The most by which it sleeps longer, if the host is too busy to queue them in that time."""

RANDOM = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""The dtypes of arrays that random numbers fill."""


@dataclass(frozen=True)
class Timing:
    """The measured time of a call."""

    seconds: Seconds
    is_sure: bool
    """False if every sample has waited for other programs: then the time is not worth keeping."""


def timed(call: Callable[[], object], device: torch.device) -> Timing:
    """The time of a call, and if it is sure."""
    with measuring(str(device)), as_current(device):
        call()
        return _on_gpu(call) if device.type == "cuda" else _on_cpu(call)


def _on_cpu(call: Callable[[], object]) -> Timing:
    best, has_waited = _sample(call, 1)
    if best > LONG:
        return Timing(Seconds(best), not has_waited)
    best = min(best, *(_wall(call, 1) for _ in range(2)))
    count = min(MOST_CALLS, max(1, int(SHORTEST / max(best, 1e-9))))
    spent, number, waits = 0.0, 0, has_waited
    while number < SAMPLES or (number < MOST_SAMPLES and spent < LONGEST) or waits:
        found, waited = _sample(call, count)
        best, has_waited = min(best, found), has_waited and waited
        spent, number = spent + found * count, number + 1
        if has_waited and number > SAMPLES:
            _left[0] -= found * count
        waits = has_waited and spent < PATIENCE and _left[0] > 0
        if spent > LONG and not waits:
            break
    return Timing(Seconds(best), not has_waited)


def _sample(call: Callable[[], object], count: int) -> tuple[float, bool]:
    """The seconds of a call, and True if the process was not running all the time."""
    start, running = time.perf_counter(), time.process_time()
    for _ in range(count):
        call()
    running, wall = time.process_time() - running, time.perf_counter() - start
    return wall / count, running < RUNNING * wall


def _wall(call: Callable[[], object], count: int) -> float:
    return _sample(call, count)[0]


def _on_gpu(call: Callable[[], object]) -> Timing:
    """Calls are queued while the GPU sleeps, so that its time is not that of the host.

    If it wakes before all of them are queued, it sleeps longer the next time. A call that waits for
    the GPU by itself has no sure sample.
    """
    torch.cuda.synchronize()
    call()
    once = _wall(call, 2)
    count = max(1, min(20, int(2e-3 / max(once, 1e-9))))
    sure, others, hosts, longer = list[float](), list[float](), list[float](), 1
    while len(sure) < SAMPLES and longer <= LONGER:
        begin, end = _event(), _event()
        torch.cuda._sleep(longer * CYCLES)  # type: ignore[no-untyped-call]
        begin.record()
        hosts.append(_wall(call, count))
        end.record()
        has_waited = begin.query()  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        samples = others if has_waited else sure
        samples.append(begin.elapsed_time(end) / 1e3 / count)
        longer *= 1 + has_waited
    return Timing(Seconds(min(sure or others), min(hosts)), bool(sure))


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def randomised(x: torch.Tensor, *, is_probability: bool = False) -> torch.Tensor:
    """The array, filled with random numbers if it is one of a GPU that is to be timed.

    Those of probabilities are between 0 and 1.
    """
    if x.is_cuda and x.dtype in RANDOM and x.numel():
        fill_randomly(x, is_probability=is_probability)
    return x


def fill_randomly(x: torch.Tensor, *, is_probability: bool) -> None:
    """Fills an array with random numbers, of a normal distribution or between 0 and 1.

    The numbers are the same in each process, and the user's generator is left alone.
    """
    ends = [(n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True)]
    whole = x.as_strided((1 + sum(ends),), (1,))  # elements may lie in the same place
    generator = torch.Generator(x.device).manual_seed(0)
    if is_probability:
        whole.uniform_(generator=generator)
    else:
        whole.normal_(generator=generator)


def launcher(
    executable: Executable,
    given: Sequence[torch.Tensor],
    sizes: Sizes,
    device: torch.device,
) -> Callable[[], object]:
    """A function that launches the kernels of a part on arrays that are there already."""
    library, runner = library_on(device), executable.runner
    if not isinstance(runner, Compiled) or not runner.is_static:
        return lambda: runner.run(given, sizes, library)
    return runner.bound_for(given, sizes, library).prepared(library, given)
