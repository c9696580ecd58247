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

_state = threading.Lock()
_held: dict[str, int] = {}
"""The open lock files of this process, by device."""
_depths: dict[str, int] = {}
"""The number of measurements of this process that go on, by device."""


@contextlib.contextmanager
def measuring(device: str, longest: float = LONGEST) -> Iterator[None]:
    """Holds the lock of a device. Measurements of one process do not wait for each other."""
    with _state:
        if not _depths.get(device):
            _acquire(device, longest)
        _depths[device] = _depths.get(device, 0) + 1
    try:
        yield
    finally:
        with _state:
            _depths[device] = max(0, _depths.get(device, 0) - 1)
            if not _depths[device]:
                _release(device)


def _acquire(device: str, longest: float) -> None:
    if fcntl is None:
        return
    try:
        _held[device] = os.open(lock_file(device), FLAGS, 0o600)
        _wait(_held[device], device, longest)
    except OSError as error:
        log.debug("measured without a lock: %s", error)
    except BaseException:  # broken off while it waits
        _release(device)
        raise


def _release(device: str) -> None:
    lock = _held.pop(device, None)
    if lock is not None:
        os.close(lock)


def _in_child() -> None:
    """A forked process holds no lock: else it would hold that of its parent as long as it runs."""
    global _state
    _state = threading.Lock()
    for device in [*_held]:
        _release(device)
    _depths.clear()


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
                log.warning("%s: another process has been measuring for %g s", device, longest)
                return
            time.sleep(PAUSE)


def lock_file(device: str) -> Path:
    """The file whose lock stands for a device."""
    user = os.getuid() if hasattr(os, "getuid") else "user"
    numbered = device if ":" in device or device == "cpu" else f"{device}:0"
    name = "".join(c if c.isalnum() else "-" for c in numbered)
    return Path(tempfile.gettempdir()) / f"blockbuster-{user}-{name}.lock"
