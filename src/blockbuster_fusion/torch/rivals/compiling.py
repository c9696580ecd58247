"""Compiles configurations at the same time, before they are measured.

Only compiling is shared: the result lies in the cache of kernels, where the measuring process finds
it, and nothing is measured meanwhile. The C compiler is a process of its own, and a thread waits
for each. Triton's compiler is Python, so each thread has a worker process for it. A configuration
that fails here is compiled again when it is measured, and the reason is seen there.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from functools import partial

import torch
from torch.utils._python_dispatch import _disable_current_modes

from blockbuster_fusion.choice import Choice
from blockbuster_fusion.compiler import capability_of, executable_of
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.messages import log
from blockbuster_fusion.runtime.c.compiler import compile_c, stopping
from blockbuster_fusion.runtime.c.kernels import source_of
from blockbuster_fusion.runtime.compiled import Compiled
from blockbuster_fusion.runtime.executable import Sizes
from blockbuster_fusion.runtime.workers import Workers

Task = Callable[[], object]


def compile_choices(
    workers: Workers,
    choices: Sequence[Choice],
    inputs: Sequence[torch.Tensor],
    sizes: Sizes,
    seconds: float,
) -> None:
    """Compiles kernels for inputs like these; what takes too long is given up.

    With one worker, all is compiled when it is measured.
    """
    if workers.count < 2 or len(choices) < 2 or workers.stop.is_set():
        return
    tasks: dict[object, Task] = {}
    with _disable_current_modes(), torch.no_grad():
        for choice in choices:
            tasks |= _tasks(workers, choice, inputs, sizes)
    if len(tasks) < 2:
        return
    waiting = [workers.run(partial(_tried, workers, task)) for task in tasks.values()]
    if wait(waiting, timeout=min(seconds, threading.TIMEOUT_MAX)).not_done:
        workers.close()


def _tasks(
    workers: Workers, choice: Choice, inputs: Sequence[torch.Tensor], sizes: Sizes
) -> dict[object, Task]:
    """The compilations for a choice, by all that each depends on."""
    try:
        if choice.target == "cpu":
            source = source_of(*choice.scheduled(), choice.schedule.chunk, choice.schedule.past)
            return {source: partial(compile_c, source)}
        capability, runner = capability_of(choice.target), executable_of([choice]).runner
        if capability is None or not isinstance(runner, Compiled):
            return {}
        from blockbuster_fusion.runtime.triton.ahead import kernel_jobs

        jobs = kernel_jobs(runner, inputs, sizes, capability)
        return {str(job): partial(workers.ask, job.data()) for job in jobs}
    except BlockbusterError as error:  # there is no kernel, which measuring finds too
        log.debug("not compiled ahead: %s", error)
        return {}


def _tried(workers: Workers, task: Task) -> None:
    """Runs a task; one that fails is run again, by the process that measures."""
    stopping.set(workers.stop)
    try:
        task()
    except Exception as error:  # whatever a compiler raises
        log.debug("not compiled ahead: %s", error)
