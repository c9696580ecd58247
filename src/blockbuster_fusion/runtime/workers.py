"""Workers: threads that each have a worker process, for Python code that takes long.

Threads of one process take turns in Python, so such code is shared among processes. A job that
fails is done again by the caller, who sees the reason.
"""

import json
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

from blockbuster_fusion.errors import WorkerFailed, WrongKind
from blockbuster_fusion.messages import log
from blockbuster_fusion.runtime.worker_process import WorkerProcess
from blockbuster_fusion.worker import PREPARE

T = TypeVar("T")

VARIABLE = "BLOCKBUSTER_WORKERS"
MOST_USUAL = 16
"""The most workers where nothing is said: each has an interpreter of its own."""
FEWEST, MOST_SHARED = 3, 12
"""The fewest workers that are worth their start, and the most, that all models share."""
WORKER = "blockbuster_fusion.worker"


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


@cache
def shared_workers() -> "Workers | None":
    """The workers of this process, which start now; None if there are few processors.

    Processes of one distributed run share the processors.
    """
    processes = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    count = min(usual_workers() // processes - 1, MOST_SHARED)
    if count < FEWEST:
        return None
    made = Workers(count)
    for _ in range(count):
        made.job({"task": PREPARE})
    return made


if hasattr(os, "register_at_fork"):  # the pipes of workers belong to one process
    os.register_at_fork(after_in_child=shared_workers.cache_clear)


class Workers:
    """Threads, and a process of each: started when there is work."""

    def __init__(self, count: int) -> None:
        check_workers(count)
        self.count = max(count, 1)
        self.stop = threading.Event()
        """Is set when all is to end."""
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._own = threading.local()
        self._processes: list[WorkerProcess] = []

    def job(self, job: Mapping[str, Any]) -> "Future[Any]":
        """The result of a job, which a process does; WorkerFailed if it fails."""
        return self.run(lambda: self.ask(job))

    def each(self, job: Mapping[str, Any]) -> "list[Future[Any]]":
        """The results of a job that every process does: none begins before all threads are free."""
        gate = threading.Barrier(self.count)

        def one() -> Any:
            gate.wait()
            return self.ask(job)

        return [self.run(one) for _ in range(self.count)]

    def run(self, task: Callable[[], T]) -> "Future[T]":
        """The result of a task that a thread runs."""
        return self._started().submit(task)

    def ask(self, job: Mapping[str, Any]) -> Any:
        """The result of a job, which the process of this thread does; WorkerFailed if it fails."""
        process = self._process()
        try:
            answer = json.loads(process.ask(json.dumps(job)))
        except WorkerFailed as error:
            self._own.process = None
            if not process.has_answered and not self.stop.is_set():  # nor will another one
                self.stop.set()
                log.warning("kernels are compiled one at a time: a worker fails: %s", error)
            raise
        if "failure" in answer:
            raise WorkerFailed(problem=f"its job fails: {answer['failure']}")
        return answer["result"]

    def close(self) -> None:
        """Ends all threads and processes."""
        with self._lock:
            self.stop.set()
            for process in self._processes:
                process.end()
            self._processes.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _started(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.count, "blockbuster")
            return self._pool

    def _process(self) -> WorkerProcess:
        """The process of this thread."""
        with self._lock:
            if self.stop.is_set():
                raise WorkerFailed(problem="it was stopped")
            if getattr(self._own, "process", None) is None:
                self._own.process = WorkerProcess(WORKER)
                self._processes.append(self._own.process)
            process: WorkerProcess = self._own.process
            return process
