"""The tuning database: every measurement of a kernel's configurations, kept on disk.

It answers which configuration is the fastest of those whose errors are within their bars. Its
content is data: it is checked when it is read, and never executed. Where the file cannot be used,
measurements last as long as the process.
"""

import json
import os
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

from blockbuster_fusion.errors import BadRecord
from blockbuster_fusion.runtime.disk_cache import usable_folder
from blockbuster_fusion.runtime.tuning_file import VARIABLE, Damaged, TuningFile
from blockbuster_fusion.runtime.tuning_records import (
    FORMAT,
    Key,
    LibraryTime,
    Record,
    checked_versions,
    config_text,
    entries,
    number,
    to_entry,
)

__all__ = ["VARIABLE", "Key", "LibraryTime", "Record", "TuningDatabase", "database"]

VERSION = 2
"""The version of the schema."""
SCHEMA = (
    """CREATE TABLE records (
    digest TEXT, sizes TEXT, machine TEXT, threads INTEGER, versions TEXT, generator TEXT,
    config TEXT, seconds REAL, low REAL, high REAL, error REAL, bar REAL, rounds INTEGER,
    made TEXT, source TEXT, ok INTEGER,
    PRIMARY KEY (digest, sizes, machine, threads, versions, generator, config)
) WITHOUT ROWID""",
    """CREATE TABLE libraries (
    operator TEXT, machine TEXT, threads INTEGER, versions TEXT,
    seconds_device REAL, seconds_host REAL, made TEXT,
    PRIMARY KEY (operator, machine, threads, versions)
) WITHOUT ROWID""",
)
_KEY = "digest, sizes, machine, threads, versions, generator"
_RECORD = "config, seconds, low, high, error, bar, rounds, made, source"
_OF_KEY = (
    "digest = ? AND sizes = ? AND machine = ? AND threads = ? AND versions = ? AND generator = ?"
)
_PUT = f"INSERT OR REPLACE INTO records ({_KEY}, {_RECORD}, ok) VALUES ({'?, ' * 15}?)"
_MERGE = f"""INSERT INTO records ({_KEY}, {_RECORD}, ok) VALUES ({"?, " * 15}?)
ON CONFLICT DO UPDATE SET seconds = excluded.seconds, low = excluded.low, high = excluded.high,
error = excluded.error, bar = excluded.bar, rounds = excluded.rounds, made = excluded.made,
source = excluded.source, ok = excluded.ok WHERE excluded.made > made"""
_PUT_LIBRARY = f"INSERT OR REPLACE INTO libraries VALUES ({'?, ' * 6}?)"
_MERGE_LIBRARY = f"""INSERT INTO libraries VALUES ({"?, " * 6}?)
ON CONFLICT DO UPDATE SET seconds_device = excluded.seconds_device,
seconds_host = excluded.seconds_host, made = excluded.made WHERE excluded.made > made"""
_OF_LIBRARY = "operator = ? AND machine = ? AND threads = ? AND versions = ?"
_TOGETHER = 500
"""Records that one transaction merges: other processes wait for a few milliseconds at most."""

Row = Sequence[Any]


class TuningDatabase:
    """Measurements in a file that many threads and processes share.

    `path` is the file; without one, or where it cannot be used, the database is in memory. Every
    method may be called in any thread, and in a forked child.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self._file = TuningFile(None if path is None else Path(path), SCHEMA, VERSION)
        self._file.read(lambda connection: None)  # faults of the file are told now

    @property
    def path(self) -> Path | None:
        """The file; None if the database is in memory."""
        return self._file.path

    def put(self, key: Key, record: Record) -> None:
        """Stores a record, in place of an earlier one of the same key and configuration."""
        self._file.write(lambda connection: connection.execute(_PUT, _row(key, record)))

    def best(self, key: Key) -> Record | None:
        """The fastest record whose error is within its bar, or None."""
        found = self._records(key, "AND ok ORDER BY seconds, config LIMIT 1")
        return found[0] if found else None

    def all(self, key: Key) -> list[Record]:
        """The records of a key: the good ones first, from the fastest to the slowest."""
        return self._records(key, "ORDER BY ok DESC, seconds, config")

    def known(self, key: Key, config: dict[str, Any]) -> Record | None:
        """The record of a configuration, good or not, or None."""
        found = self._records(key, "AND config = ?", config_text(config))
        return found[0] if found else None

    def keys(self) -> list[Key]:
        """The keys that have records."""
        query = f"SELECT DISTINCT {_KEY} FROM records"
        return self._file.read(lambda c: [_key(row) for row in c.execute(query).fetchall()])

    def count(self) -> int:
        """The number of records."""
        query = "SELECT COUNT(*) FROM records"
        return self._file.read(lambda c: int(c.execute(query).fetchone()[0]))

    def _records(self, key: Key, rest: str, *values: object) -> list[Record]:
        query = f"SELECT {_RECORD} FROM records WHERE {_OF_KEY} {rest}"
        given = (*_key_row(key), *values)
        return self._file.read(lambda c: [_record(r) for r in c.execute(query, given).fetchall()])

    # -------------------------------------------------------------------- libraries

    def put_library(
        self,
        operator_key: str,
        machine: str,
        threads: int,
        versions: Iterable[tuple[str, str]],
        seconds_device: float,
        seconds_host: float,
    ) -> None:
        """Stores the seconds of a library for an operator, in place of earlier ones."""
        checked = checked_versions(versions)
        time = LibraryTime(operator_key, machine, threads, checked, seconds_device, seconds_host)
        self._file.write(lambda connection: connection.execute(_PUT_LIBRARY, _library_row(time)))

    def library(
        self, operator_key: str, machine: str, threads: int, versions: Iterable[tuple[str, str]]
    ) -> LibraryTime | None:
        """The seconds of a library for an operator, or None."""
        wanted = LibraryTime(operator_key, machine, threads, checked_versions(versions), 0, 0)
        query, given = f"SELECT * FROM libraries WHERE {_OF_LIBRARY}", _library_row(wanted)[:4]
        found = self._file.read(
            lambda c: [_library(row) for row in c.execute(query, given).fetchall()]
        )
        return found[0] if found else None

    def libraries(self) -> list[LibraryTime]:
        """The times of all libraries."""
        return self._file.read(_libraries)

    # -------------------------------------------------------------------- files

    def export(self) -> dict[str, Any]:
        """All measurements as plain data, which `merge` takes."""
        query = f"SELECT {_KEY}, {_RECORD} FROM records"

        def work(connection: sqlite3.Connection) -> dict[str, Any]:
            rows = connection.execute(query).fetchall()
            return {
                "format": FORMAT,
                "records": [to_entry(_key(row[:6]), _record(row[6:])) for row in rows],
                "libraries": [to_entry(time) for time in _libraries(connection)],
            }

        return self._file.read(work)

    def to_json(self) -> str:
        """All measurements as the text of a file."""
        return json.dumps(self.export(), indent=1, allow_nan=False) + "\n"

    def merge(self, data: object, source: str = "the data") -> int:
        """Takes over measurements that are new, or newer than ours; returns their number.

        All data are checked before anything is stored. BadRecord names the place in `source`.
        """
        records, libraries = entries(source, data)
        return self._merged(_MERGE, [_row(key, record) for key, record in records]) + self._merged(
            _MERGE_LIBRARY, [_library_row(time) for time in libraries]
        )

    def _merged(self, statement: str, rows: list[Row]) -> int:
        def work(connection: sqlite3.Connection) -> int:
            before = connection.total_changes
            connection.executemany(statement, part)
            return connection.total_changes - before

        changed = 0
        for start in range(0, len(rows), _TOGETHER):
            part = rows[start : start + _TOGETHER]
            changed += self._file.write(work)
        return changed

    def remove(
        self, older_than_days: float | None = None, generator_other_than: str | None = None
    ) -> int:
        """Removes what is older, or of another generator; returns the number of measurements."""
        statements: list[tuple[str, str]] = []
        if older_than_days is not None:
            limit = _before(number("older_than_days", older_than_days))
            statements += [(f"DELETE FROM {t} WHERE made < ?", limit) for t in _TABLES]
        if generator_other_than is not None:
            statements.append(("DELETE FROM records WHERE generator != ?", generator_other_than))
        return self._file.write(
            lambda c: sum(
                c.execute(statement, (value,)).rowcount for statement, value in statements
            )
        )

    def clear(self) -> int:
        """Removes everything; returns the number of measurements."""
        gone = self._file.write(
            lambda c: sum(c.execute(f"DELETE FROM {t}").rowcount for t in _TABLES)
        )
        self._file.compact()
        return gone

    def close(self) -> None:
        """Closes the file; a later call opens it again. What is in memory is lost."""
        self._file.close()

    def __enter__(self) -> "TuningDatabase":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


_TABLES = ("records", "libraries")


def _before(days: float) -> str:
    """The time some days ago; a text that sorts before all times if that is before year 1."""
    try:
        return (datetime.now(UTC) - timedelta(days=days)).isoformat(timespec="microseconds")
    except OverflowError:
        return ""


# ------------------------------------------------------------------------ rows


def _json(pairs: Iterable[tuple[str, object]]) -> str:
    return json.dumps(dict(pairs), separators=(",", ":"))


def _key_row(key: Key) -> Row:
    sizes, versions = _json(key.sizes), _json(key.versions)
    return (key.digest, sizes, key.machine, key.threads, versions, key.generator)


def _row(key: Key, record: Record) -> Row:
    r = record
    figures = (r.seconds, r.low, r.high, r.error, r.bar, r.rounds, r.made, r.source, r.ok)
    return (*_key_row(key), config_text(r.config), *figures)


def _library_row(time: LibraryTime) -> Row:
    figures = (time.seconds_device, time.seconds_host, time.made)
    return (time.operator, time.machine, time.threads, _json(time.versions), *figures)


def _key(row: Row) -> Key:
    digest, sizes, machine, threads, versions, generator = row
    try:
        return Key(digest, _pairs(sizes), machine, threads, _pairs(versions), generator)
    except BadRecord as error:
        raise Damaged(f"a key in it: {error}") from None


def _record(row: Row) -> Record:
    config, *figures = row
    try:
        return Record(_data(config), *figures)
    except BadRecord as error:
        raise Damaged(f"a record in it: {error}") from None


def _libraries(connection: sqlite3.Connection) -> list[LibraryTime]:
    return [_library(row) for row in connection.execute("SELECT * FROM libraries").fetchall()]


def _library(row: Row) -> LibraryTime:
    operator, machine, threads, versions, *figures = row
    try:
        return LibraryTime(operator, machine, threads, _pairs(versions), *figures)
    except BadRecord as error:
        raise Damaged(f"the time of a library in it: {error}") from None


def _pairs(text: object) -> tuple[tuple[str, Any], ...]:
    return tuple(_data(text).items())


def _data(text: object) -> dict[str, Any]:
    """The mapping that a text of the file describes."""
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Damaged("a text in it is no JSON")
    return found


# ------------------------------------------------------------------------ the user's own

_own: dict[Path | None, TuningDatabase] = {}
_own_lock = threading.Lock()


def database() -> TuningDatabase:
    """The database of this user: $BLOCKBUSTER_DATABASE, or a file beside the compiled kernels.

    The value "off" means a database in memory: nothing is kept.
    """
    path = database_path()
    with _own_lock:
        if path not in _own:
            _own[path] = TuningDatabase(path)
        return _own[path]


def uses_seeds() -> bool:
    """True unless measurements are off, and with them those that come with the package."""
    return os.environ.get(VARIABLE, "").lower() != "off"


def database_path() -> Path | None:
    """The file of the user's database, or None. Each version of the schema has its own."""
    named = os.environ.get(VARIABLE, "")
    if not uses_seeds():
        return None
    if named:
        return Path(named).absolute()
    folder = usable_folder()
    return None if folder is None else (folder / f"tuning-{VERSION}.sqlite3").absolute()


def _in_child() -> None:
    global _own_lock
    _own_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
