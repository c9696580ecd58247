"""The SQLite file of the tuning database, safe for many processes and for every fault of a file.

One connection per process serves all threads, one call at a time. It is closed before a fork,
because SQLite's locks do not outlast one; parent and child open their own at the next call. Files
are opened and moved aside under a lock, so that no process moves what another has just begun.
"""

import atexit
import contextlib
import logging
import os
import sqlite3
import stat
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeVar

try:
    import fcntl
except ImportError:  # Windows: files are opened without the lock
    fcntl = None  # type: ignore[assignment]

VARIABLE = "BLOCKBUSTER_DATABASE"
BUSY_SECONDS = 10.0
"""The longest wait for other processes; a transaction takes about a millisecond."""
_PAUSE = 0.005
_WAITS = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_UNUSABLE = (
    *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN),
    *(sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_NOLFS, sqlite3.SQLITE_TOOBIG),
)

T = TypeVar("T")
log = logging.getLogger("blockbuster_fusion")


class Damaged(Exception):
    """The content of the file is not what this package wrote."""


class _Unusable(Exception):
    """The file cannot be opened or locked."""


class TuningFile:
    """A database in a file, or in memory where there is no file that can be used."""

    def __init__(self, path: Path | None, schema: Sequence[str], version: int) -> None:
        self.path = None if path is None else Path(os.path.realpath(path))
        """The file; None if the database is in memory."""
        self._schema, self._version = tuple(schema), version
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._opened: tuple[int, int] | None = None
        with _registry:
            _files.add(self)

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """The result of `work`, which sees one state of the database."""
        return self._done("BEGIN", work)

    def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """The result of `work`; what it writes is kept as a whole or not at all."""
        return self._done("BEGIN IMMEDIATE", work)

    def compact(self) -> None:
        """Gives free space back to the disk, unless another process is busy."""
        with self._lock, contextlib.suppress(sqlite3.Error):
            if self._connection is not None:
                self._connection.execute("VACUUM")

    def close(self) -> None:
        """Closes the connection; a later call opens it again. What is in memory is lost."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def _done(self, begin: str, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            deadline, moved = time.monotonic() + BUSY_SECONDS, False
            while True:
                try:
                    return _transaction(self._connected(deadline), begin, work)
                except (sqlite3.Error, Damaged, _Unusable, OSError) as error:
                    if self.path is None:
                        raise
                    fault = _fault(error)
                    if fault == "busy" and time.monotonic() < deadline:
                        time.sleep(_PAUSE)
                    elif fault == "damaged" and not moved:
                        moved = True
                        self._move_aside(error, deadline)
                    elif fault is not None:
                        self._fall_back(error)
                    else:
                        raise

    # -------------------------------------------------------------------- opening

    def _connected(self, deadline: float) -> sqlite3.Connection:
        """The connection of this process, to the file that is now at the path."""
        if self._connection is not None:
            if self.path is None or self._opened == _identity(self.path):
                return self._connection
            self.close()  # somebody moved or removed the file
        if self.path is None:
            self._connection = self._in_memory()
            return self._connection
        with _locked(self.path, deadline):
            self._opened = _identity(self.path)
            self._connection = self._open(self.path)
            self._opened = _identity(self.path)
        return self._connection

    def _open(self, path: Path) -> sqlite3.Connection:
        """A connection to a file of the right schema, which is made if there is none."""
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(path.stat().st_mode):
                raise _Unusable("it is no file")
        connection = _connection(str(path))
        try:
            connection.execute("PRAGMA trusted_schema = OFF")
            new = self._is_new(connection)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            # an empty transaction tells whether the file can be written
            _transaction(connection, "BEGIN IMMEDIATE", self._make if new else _nothing)
        except BaseException:
            connection.close()
            raise
        return connection

    def _is_new(self, connection: sqlite3.Connection) -> bool:
        """True if the database is empty; Damaged if its schema is another."""
        ((version,),) = connection.execute("PRAGMA user_version").fetchall()
        query = "SELECT sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"
        found = sorted(str(sql) for (sql,) in connection.execute(query).fetchall())
        if version == 0 and not found:
            return True
        if version != self._version:
            raise Damaged(f"it has the schema {version}, and this version needs {self._version}")
        if found != sorted(self._schema):
            raise Damaged("its tables are not those of a tuning database")
        return False

    def _make(self, connection: sqlite3.Connection) -> None:
        if self._is_new(connection):  # without a lock, another process may have been faster
            for statement in self._schema:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {self._version}")

    def _in_memory(self) -> sqlite3.Connection:
        connection = _connection(":memory:")
        _transaction(connection, "BEGIN", self._make)
        return connection

    # -------------------------------------------------------------------- faults

    def _move_aside(self, error: Exception, deadline: float) -> None:
        """Renames a damaged file, unless another process did so and has begun a new one."""
        assert self.path is not None
        self.close()
        try:
            with _locked(self.path, deadline):
                if self._opened is None or self._opened != _identity(self.path):
                    return
                aside = _renamed(self.path)
        except (OSError, _Unusable) as problem:
            self._fall_back(problem)
            return
        log.warning(
            "blockbuster: the tuning database %s cannot be read (%s); it is now %s, and a new one "
            "is begun",
            *(self.path, error, aside.name),
        )

    def _fall_back(self, error: Exception) -> None:
        """Goes on in memory, with what can still be read."""
        memory, connection = self._in_memory(), self._connection
        if connection is not None:
            if _fault(error) == "unusable":  # a copy would wait for a busy process without end
                try:
                    connection.backup(memory)
                except sqlite3.Error:  # half a copy is no database
                    memory.close()
                    memory = self._in_memory()
            connection.close()
        log.warning(
            "blockbuster: the tuning database %s cannot be used (%s); measurements are kept for "
            "this process only: make its folder writable, or name another file in %s",
            *(self.path, getattr(error, "strerror", None) or error, VARIABLE),
        )
        self.path, self._connection = None, memory


def _fault(error: Exception) -> Literal["busy", "damaged", "unusable"] | None:
    """The kind of a fault of the file; None for a defect of the package."""
    if isinstance(error, Damaged):
        return "damaged"
    if isinstance(error, _Unusable | OSError):
        return "unusable"
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:  # a text that is no UTF-8 has no code
        return "damaged" if isinstance(error, sqlite3.OperationalError) else None
    if code & 0xFF in _WAITS:
        return "busy"
    if code & 0xFF in _DAMAGED:
        return "damaged"
    return "unusable" if code & 0xFF in _UNUSABLE else None


def _connection(name: str) -> sqlite3.Connection:
    """A connection whose transactions are begun and ended by us, in any thread."""
    return sqlite3.connect(
        name, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )


def _transaction(
    connection: sqlite3.Connection, begin: str, work: Callable[[sqlite3.Connection], T]
) -> T:
    try:
        connection.execute(begin)
        result = work(connection)
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.rollback()
        raise
    return result


def _nothing(connection: sqlite3.Connection) -> None:
    pass


def _identity(path: Path) -> tuple[int, int] | None:
    """The file at a path, whatever its name was before; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _renamed(path: Path) -> Path:
    """The new name of a file that was moved aside, together with its log of transactions."""
    name = f"{path.name}.damaged-{datetime.now(UTC):%Y-%m-%d}"
    aside, number = path.with_name(name), 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{name}-{number}")
    path.rename(aside)
    for suffix in ("-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    return aside


@contextlib.contextmanager
def _locked(path: Path, deadline: float) -> Iterator[None]:
    """Holds the lock for opening and moving a file; the system frees it if the process ends."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
    lock = os.open(path.with_name(f".{path.name}.lock"), flags, 0o600)
    try:
        while fcntl is not None:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise _Unusable("another process has locked it") from None
                time.sleep(_PAUSE)
        yield
    finally:
        os.close(lock)


# ------------------------------------------------------------------------ forks and the end

_registry = threading.RLock()
_files: weakref.WeakSet[TuningFile] = weakref.WeakSet()
_held: list[TuningFile] = []
"""The files whose locks are held while the process forks."""


def _before_fork() -> None:
    """Waits for the calls of other threads, and closes every file."""
    _registry.acquire()
    for file in [*_files]:
        file._lock.acquire()
        _held.append(file)
        if file.path is not None:
            file.close()


def _in_parent() -> None:
    while _held:
        _held.pop()._lock.release()
    _registry.release()


def _in_child() -> None:
    global _registry
    while _held:
        _held.pop()._lock = threading.RLock()
    _registry = threading.RLock()


def _at_exit() -> None:
    with _registry:
        files = [*_files]
    for file in files:
        if file._lock.acquire(timeout=1):  # a thread that hangs keeps its connection
            file.close()
            file._lock.release()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
