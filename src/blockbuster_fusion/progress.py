"""A progress line on the terminal for work of more than two seconds; none in a pipe."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from blockbuster_fusion.messages import PREFIX, before_messages

PATIENCE = 2.0
"""Seconds of work before anything is shown."""
_EVERY = 0.5
_ERASE = "\r\x1b[K"


class Task:
    """A piece of work in progress."""

    def __init__(self, what: str, total: int | None) -> None:
        self.what, self.total = what, total
        self.done = 0
        self.start = time.monotonic()

    def step(self, count: int = 1) -> None:
        """Adds to the amount of work that is done."""
        self.done += count

    def __str__(self) -> str:
        return self.what if self.total is None else f"{self.what}, {self.done} of {self.total}"


class _Line:
    """The progress line of this process, and the work that it shows, outermost first."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.tasks: list[Task] = []
        self.is_shown = False
        self.wake = threading.Event()
        self.watcher: threading.Thread | None = None

    def begin(self, task: Task) -> None:
        with self.lock:
            self.tasks.append(task)
            if self.watcher is None and _is_terminal():
                self.wake.clear()
                self.watcher = threading.Thread(target=self._watch, daemon=True)
                self.watcher.start()

    def end(self, task: Task) -> None:
        with self.lock:
            self.tasks.remove(task)
            if not self.tasks:
                self._erase()
                self.watcher = None
                self.wake.set()

    def pause(self) -> None:
        """Erases the line before other output; it is printed again later."""
        with self.lock:
            self._erase()

    def _watch(self) -> None:
        wake, me = self.wake, threading.current_thread()
        while not wake.wait(_EVERY):
            with self.lock:
                if self.watcher is not me:
                    return
                passed = time.monotonic() - self.tasks[0].start
                if passed >= PATIENCE:
                    self._draw(passed)

    def _draw(self, passed: float) -> None:
        shown = dict.fromkeys(map(str, self.tasks))  # threads may do the same
        text = f"{PREFIX}{': '.join(shown)} ({passed:.0f} s)"
        width = _columns()
        self._write(_ERASE + (text if len(text) < width else f"{text[: width - 2]}…"))
        self.is_shown = True

    def _erase(self) -> None:
        if self.is_shown:
            self._write(_ERASE)
            self.is_shown = False

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):
            self.is_shown = False  # the terminal is gone


_line = _Line()
before_messages.append(lambda: _line.pause())


def _after_fork() -> None:
    """Resets the state in a child process, which has neither the work nor the thread."""
    global _line
    _line = _Line()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def doing(what: str, total: int | None = None) -> Iterator[Task]:
    """Shows work on the terminal if it takes more than two seconds.

    Nested work, and work in other threads, is shown on the same line.
    """
    task, line = Task(what, total), _line
    line.begin(task)
    try:
        yield task
    finally:
        line.end(task)


def _is_terminal() -> bool:
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except ValueError:
        return False  # it has been closed


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
