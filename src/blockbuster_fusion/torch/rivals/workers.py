"""Compiles configurations at the same time, before they are measured.

Only compiling is shared: the result lies in the cache of kernels, where the measuring process finds
it, and nothing is measured meanwhile. The C compiler is a process of its own, and a thread waits
for each. Triton's compiler is Python, so each thread has a worker process for it. A configuration
that fails here is compiled again when it is measured, and the reason is seen there.
"""

import json
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial

import torch
from torch.utils._python_dispatch import _disable_current_modes

from blockbuster_fusion.choice import Choice
from blockbuster_fusion.compiler import capability_of, executable_of
from blockbuster_fusion.errors import BlockbusterError, WorkerFailed, WrongKind
from blockbuster_fusion.messages import log
from blockbuster_fusion.runtime.c.compiler import compile_c, stopping
from blockbuster_fusion.runtime.c.kernels import source_of
from blockbuster_fusion.runtime.compiled import Compiled
from blockbuster_fusion.runtime.executable import Sizes
from blockbuster_fusion.runtime.worker_process import WorkerProcess

VARIABLE = "BLOCKBUSTER_WORKERS"
MOST_USUAL = 16
"""The most workers where nothing is said: each has an interpreter of its own."""
TRITON_WORKER = "blockbuster_fusion.runtime.triton.ahead"

Task = Callable[[], object]


def usual_workers() -> int:
    """The number of workers: $BLOCKBUSTER_WORKERS, or one for each core."""
    given = os.environ.get(VARIABLE, "")
    if given.isascii() and given.isdigit():
        return int(given)
    if given:
        wanted, remedy = "a whole number", "1 compiles in the process itself"
        raise WrongKind(function=VARIABLE, wanted=wanted, given=repr(given), remedy=remedy)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(cores or 1, MOST_USUAL)


def check_workers(count: object) -> None:
    """WrongKind if something is no number of workers."""
    if type(count) is not int or count < 0:
        remedy = "leave it out for one for each core"
        wanted, given = "a number of workers from 0 on", repr(count)
        raise WrongKind(function="tune", wanted=wanted, given=given, remedy=remedy)


class Workers:
    """Threads that compile, and their processes: started when there is work for several."""

    def __init__(self, count: int) -> None:
        """With a count of 0 or 1, all is compiled when it is measured."""
        check_workers(count)
        self.count = max(count, 1)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._own = threading.local()
        self._processes: list[WorkerProcess] = []

    def compile(
        self,
        choices: Sequence[Choice],
        inputs: Sequence[torch.Tensor],
        sizes: Sizes,
        seconds: float,
    ) -> None:
        """Compiles kernels for inputs like these; what takes too long is given up."""
        if self.count < 2 or len(choices) < 2 or self._stop.is_set():
            return
        tasks: dict[str, Task] = {}
        with _disable_current_modes(), torch.no_grad():
            for choice in choices:
                tasks |= self.tasks(choice, inputs, sizes)
        if len(tasks) < 2:
            return
        pool = self._started()
        waiting = [pool.submit(_tried, task) for task in tasks.values()]
        if wait(waiting, timeout=min(seconds, threading.TIMEOUT_MAX)).not_done:
            self.close()

    def tasks(
        self, choice: Choice, inputs: Sequence[torch.Tensor], sizes: Sizes
    ) -> dict[str, Task]:
        """The compilations for a choice, by the text that each depends on."""
        try:
            if choice.target == "cpu":
                source = source_of(*choice.scheduled(), choice.schedule.chunk, choice.schedule.past)
                return {source: partial(compile_c, source)}
            capability, runner = capability_of(choice.target), executable_of([choice]).runner
            if capability is None or not isinstance(runner, Compiled):
                return {}
            from blockbuster_fusion.runtime.triton.ahead import kernel_jobs

            texts = [job.to_json() for job in kernel_jobs(runner, inputs, sizes, capability)]
            return {text: partial(self.ask, text) for text in texts}
        except BlockbusterError as error:  # there is no kernel, which measuring finds too
            log.debug("not compiled ahead: %s", error)
            return {}

    def ask(self, job: str) -> None:
        """Has the worker process of this thread compile a kernel."""
        process = self._process()
        try:
            answer = json.loads(process.ask(job))
        except WorkerFailed as error:
            self._own.process = None
            if not process.has_answered and not self._stop.is_set():  # nor will another one
                self._stop.set()
                log.warning("kernels are compiled one at a time: a worker fails: %s", error)
            raise
        if answer != "done":
            log.debug("not compiled ahead: %s", answer)

    def close(self) -> None:
        """Ends all compilers and processes."""
        with self._lock:
            self._stop.set()
            for process in self._processes:
                process.end()
            self._processes.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _started(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(
                self.count, "blockbuster", initializer=stopping.set, initargs=(self._stop,)
            )
        return self._pool

    def _process(self) -> WorkerProcess:
        """The process of this thread."""
        with self._lock:
            if self._stop.is_set():
                raise WorkerFailed(problem="it was stopped")
            if getattr(self._own, "process", None) is None:
                self._own.process = WorkerProcess(TRITON_WORKER)
                self._processes.append(self._own.process)
            process: WorkerProcess = self._own.process
            return process


def _tried(task: Task) -> None:
    """Runs a task; one that fails is run again, by the process that measures."""
    try:
        task()
    except Exception as error:  # whatever a compiler raises
        log.debug("not compiled ahead: %s", error)
