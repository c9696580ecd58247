"""Workers: threads that each have a worker process, for Python code that takes long.

Threads of one process take turns in Python, so such code is shared among processes. A job that
fails is done again by the caller, who sees the reason.
"""

import contextlib
import json
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from blockbuster_fusion.errors import WorkerFailed, WrongKind
from blockbuster_fusion.messages import log
from blockbuster_fusion.runtime.worker_process import WorkerProcess
from blockbuster_fusion.worker import PREPARE

T = TypeVar("T")
_Task = tuple[Future[Any], Callable[[], Any]]

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
        wanted, remedy = "a whole number", "1 does all work in the process itself"
        raise WrongKind(function=VARIABLE, wanted=wanted, given=repr(given), remedy=remedy)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(cores or 1, MOST_USUAL)


def check_workers(count: object) -> None:
    """WrongKind if something is no number of workers."""
    if type(count) is not int or count < 0:
        remedy = "leave it out for one for each core"
        wanted, given = "a number of workers from 0 on", repr(count)
        raise WrongKind(function="tune", wanted=wanted, given=given, remedy=remedy)


class _Shared:
    """The workers that all models of this process share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.is_known = False
        self.workers: Workers | None = None


_SHARED = [_Shared()]
"""One; a process that is forked has another one."""


def shared_workers() -> "Workers | None":
    """The workers of this process, which start now; None if there are few processors.

    Processes of one distributed run share the processors.
    """
    shared = _SHARED[0]
    with shared.lock:
        if not shared.is_known:
            beside = os.environ.get("LOCAL_WORLD_SIZE", "")
            processes = int(beside) if beside.isascii() and beside.isdigit() else 1
            count = min(usual_workers() // max(processes, 1) - 1, MOST_SHARED)
            if count >= FEWEST:
                shared.workers = Workers(count, {"task": PREPARE})
                shared.workers.start()
            shared.is_known = True
        return shared.workers


def forget_shared_workers() -> None:
    """Has the next caller of `shared_workers` start others."""
    _SHARED[0] = _Shared()


if hasattr(os, "register_at_fork"):  # the pipes of workers belong to one process
    os.register_at_fork(after_in_child=forget_shared_workers)


class Workers:
    """Threads, and a process of each: started when there is work.

    Threads do not keep the interpreter from its end, and processes end with their input.
    """

    def __init__(self, count: int, first: Mapping[str, Any] | None = None) -> None:
        """Each process does the first job before all others."""
        check_workers(count)
        self.count, self.first = max(count, 1), first
        self.stop = threading.Event()
        """Is set when all is to end."""
        self._lock = threading.Lock()
        self._tasks = SimpleQueue[_Task | None]()
        self._given = 0
        """The tasks that are not done yet."""
        self._threads: list[threading.Thread] = []
        self._own = threading.local()
        self._processes: list[WorkerProcess] = []

    def start(self) -> None:
        """Starts all threads and processes, before there is work."""
        with self._lock:
            while len(self._threads) < self.count and not self.stop.is_set():
                thread = threading.Thread(target=self._work, name="blockbuster", daemon=True)
                self._threads.append(thread)
                thread.start()

    def job(self, job: Mapping[str, Any]) -> "Future[Any]":
        """The result of a job, which a process does; WorkerFailed if it fails."""
        return self.run(lambda: self.ask(job))

    def run(self, task: Callable[[], T]) -> "Future[T]":
        """The result of a task that a thread runs."""
        made: Future[T] = Future()
        self.start()
        if self.stop.is_set():
            made.set_exception(WorkerFailed(problem="it was stopped"))
        else:
            with self._lock:
                self._given += 1
            made.add_done_callback(self._taken)
            self._tasks.put((made, task))
        return made

    @property
    def free(self) -> int:
        """The workers that have nothing to do."""
        return max(0, self.count - self._given)

    def _taken(self, _: object) -> None:
        with self._lock:
            self._given -= 1

    def ask(self, job: Mapping[str, Any]) -> Any:
        """The result of a job, which the process of this thread does; WorkerFailed if it fails."""
        process = self._process()
        try:
            answer = json.loads(process.ask(json.dumps(job)))
        except (WorkerFailed, ValueError) as error:  # it has ended, maybe while it wrote
            self._own.process = None
            process.end()
            if not process.has_answered and not self.stop.is_set():  # nor will another one
                self.stop.set()
                told = "schedules are searched and kernels compiled in this process"
                log.warning("%s: a worker fails: %s", told, error)
            if isinstance(error, WorkerFailed):
                raise
            raise WorkerFailed(problem=f"its answer is none: {error}") from error
        if "failure" in answer:
            raise WorkerFailed(problem=f"its job fails: {answer['failure']}")
        return answer["result"]

    def close(self) -> None:
        """Ends all threads and processes; what is not begun fails."""
        with self._lock:
            self.stop.set()
            for process in self._processes:
                process.end()
            self._processes.clear()
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()
        while not self._tasks.empty():  # put by others meanwhile
            self._refuse(self._tasks.get())

    def _work(self) -> None:
        if self.first is not None:
            with contextlib.suppress(WorkerFailed):  # the next job tells what is wrong
                self.ask(self.first)
        while (item := self._tasks.get()) is not None:
            made, task = item
            if self.stop.is_set():
                self._refuse(item)
            elif made.set_running_or_notify_cancel():
                try:
                    made.set_result(task())
                except BaseException as error:
                    made.set_exception(error)

    def _refuse(self, item: _Task | None) -> None:
        if item is not None and item[0].set_running_or_notify_cancel():
            item[0].set_exception(WorkerFailed(problem="it was stopped"))

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
