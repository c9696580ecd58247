"""Lets one process at a time measure on a device, so that measurements do not disturb each other.

A file lock tells the processes of a user apart; the system frees it if a process ends. A process
that waits too long goes on all the same: a disturbed measurement is better than none.
"""

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from blockbuster_fusion.messages import log

try:
    import fcntl
except ImportError:  # not on Windows: processes measure at the same time there
    fcntl = None  # type: ignore[assignment]

LONGEST = 60.0
"""The seconds after which a process no longer waits for another one."""
PAUSE = 1e-3
"""The seconds between two looks at the lock."""
FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


@dataclass
class _Device:
    """A device, and the measurements of this process that go on there."""

    name: str
    turn: threading.Lock = field(default_factory=threading.Lock)
    """Held by the thread that takes or gives back the lock of the file."""
    file: int | None = None
    """The open file whose lock is held."""
    depth: int = 0

    def begin(self, longest: float) -> None:
        with self.turn:
            if not self.depth:
                self.acquire(longest)
            self.depth += 1

    def end(self) -> None:
        with self.turn:
            self.depth = max(0, self.depth - 1)
            if not self.depth:
                self.release()

    def acquire(self, longest: float) -> None:
        if fcntl is None:
            return
        try:
            self.file = os.open(lock_file(self.name), FLAGS, 0o600)
            _wait(self.file, self.name, longest)
        except OSError as error:
            log.debug("measured without a lock: %s", error)
        except BaseException:  # broken off while it waits
            self.release()
            raise

    def release(self) -> None:
        if self.file is not None:
            os.close(self.file)
            self.file = None


_devices: dict[str, _Device] = {}


@contextlib.contextmanager
def measuring(device: str, longest: float = LONGEST) -> Iterator[None]:
    """Holds the lock of a device. Measurements of one process do not wait for each other."""
    own = _devices.setdefault(device, _Device(device))
    own.begin(longest)
    try:
        yield
    finally:
        own.end()


def _in_child() -> None:
    """A forked process holds no lock: else it would hold that of its parent as long as it runs."""
    for device in _devices.values():
        device.turn, device.depth = threading.Lock(), 0
        device.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def _wait(lock: int, device: str, longest: float) -> None:
    end = time.monotonic() + longest
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                told = "%s is measured although another process has been measuring on it for %g s"
                log.warning(told, device, longest)
                return
            time.sleep(PAUSE)


def lock_file(device: str) -> Path:
    """The file whose lock stands for a device."""
    user = os.getuid() if hasattr(os, "getuid") else "user"
    numbered = device if ":" in device or device == "cpu" else f"{device}:0"
    name = "".join(c if c.isalnum() else "-" for c in numbered)
    return Path(tempfile.gettempdir()) / f"blockbuster-{user}-{name}.lock"
