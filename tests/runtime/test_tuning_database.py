"""The tuning database: the best of what was measured, for all faults of processes and files."""

import json
import logging
import math
import os
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockbuster_fusion.errors import BadRecord, BlockbusterError
from blockbuster_fusion.runtime import disk_cache, tuning_database, tuning_file
from blockbuster_fusion.runtime.generator import generator_version
from blockbuster_fusion.runtime.tuning_database import (
    VARIABLE,
    Key,
    LibraryTime,
    Record,
    TuningDatabase,
    database,
)

KEY = Key("d" * 64, (("N", 128), ("M", 64)), "a CPU", 4, (("torch", "2.11"), ("cc", "gcc 12")))
OLD, NEW = "2026-01-01T00:00:00+00:00", "2026-02-01T00:00:00+00:00"


def record(seconds: float = 1.0, error: float = 0.0, **config: object) -> Record:
    return Record(config, seconds, 0.9 * seconds, 1.1 * seconds, error, 1e-3, 7)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tuning.sqlite3"


@pytest.fixture
def store(file: Path) -> Iterator[TuningDatabase]:
    with TuningDatabase(file) as opened:
        yield opened


def asides(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.damaged-*"))


# ------------------------------------------------------------------------ records


def test_what_is_put_is_found_by_its_key_and_configuration(store: TuningDatabase) -> None:
    first, second = record(2.0, tile=[32, 64]), record(1.0, tile=[64, 64], unroll={"K": 4})
    store.put(KEY, first)
    store.put(KEY, second)
    assert store.all(KEY) == [second, first]
    assert store.best(KEY) == second
    assert store.known(KEY, {"tile": (32, 64)}) == first
    assert store.known(KEY, {"tile": [32]}) is None
    assert store.keys() == [KEY]
    assert store.count() == 2


@pytest.mark.parametrize(
    "other",
    [
        replace(KEY, digest="e"),
        replace(KEY, sizes=(("M", 64), ("N", 129))),
        replace(KEY, machine="another"),
        replace(KEY, threads=1),
        replace(KEY, versions=(("torch", "2.12"), ("cc", "gcc 12"))),
        replace(KEY, generator="0"),
    ],
)
def test_every_part_of_a_key_counts(other: Key, store: TuningDatabase) -> None:
    store.put(KEY, record())
    assert store.best(other) is None
    store.put(other, record(3.0))
    assert [store.best(key).seconds for key in (KEY, other)] == [1.0, 3.0]
    assert set(store.keys()) == {KEY, other}


def test_the_order_of_sizes_and_versions_does_not_count(store: TuningDatabase) -> None:
    turned = replace(KEY, sizes=KEY.sizes[::-1], versions=KEY.versions[::-1])
    assert turned == KEY
    store.put(KEY, record())
    assert store.best(turned) is not None


def test_a_record_replaces_that_of_the_same_configuration(store: TuningDatabase) -> None:
    store.put(KEY, replace(record(1.0, tile=32), made=NEW))
    store.put(KEY, replace(record(2.0, tile=32), made=OLD))
    assert [found.seconds for found in store.all(KEY)] == [2.0]


@pytest.mark.parametrize("error", [1.1e-3, math.inf, math.nan])
def test_a_wrong_configuration_is_never_the_best(error: float, store: TuningDatabase) -> None:
    wrong = record(0.1, error, tile=8)
    assert not wrong.ok
    store.put(KEY, wrong)
    assert store.best(KEY) is None
    store.put(KEY, record(5.0, 1e-3, tile=16))
    assert store.best(KEY).config == {"tile": 16}
    assert store.known(KEY, {"tile": 8}) == wrong
    assert store.all(KEY)[-1] == wrong


def test_a_configuration_that_cannot_run_is_never_the_best(store: TuningDatabase) -> None:
    store.put(KEY, record(math.inf))
    assert store.best(KEY) is None
    assert store.known(KEY, {}).seconds == math.inf


def test_infinite_errors_are_not_within_an_infinite_bar(store: TuningDatabase) -> None:
    store.put(KEY, replace(record(error=math.nan), bar=math.inf))
    assert store.best(KEY) is None


def test_numbers_of_numpy_are_taken(store: TuningDatabase) -> None:
    key = replace(KEY, sizes=(("M", np.int64(64)),), threads=np.int32(2))
    store.put(key, replace(record(np.float32(0.5)), rounds=np.int64(3)))
    assert store.best(key).rounds == 3
    assert store.keys() == [replace(KEY, sizes=(("M", 64),), threads=2)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"digest": ""}, "digest: is '', but must be a text of 1 to 1000"),
        ({"machine": "a\nb"}, "machine: is 'a\\nb', but must be"),
        ({"machine": "\ud800"}, "machine: is '\\ud800', but must be"),
        ({"threads": 0}, "threads: is 0, but must be a whole number from 1"),
        ({"threads": True}, "threads: is True, but must be"),
        ({"sizes": (("M", 1.5),)}, "sizes.M: is 1.5, but must be a whole number"),
        ({"sizes": (("M", 10**5000),)}, "sizes.M: is a large int, but must be"),
        ({"sizes": (("M", 1), ("M", 2))}, "sizes: M is there twice"),
        ({"sizes": "MN"}, "sizes: is 'MN', but must be pairs"),
        ({"versions": ("ab",)}, "versions: is 'ab', but must be a pair"),
        ({"versions": (("cc", 12),)}, "versions.cc: is 12, but must be a text"),
    ],
)
def test_bad_keys_get_a_sentence(change: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRecord) as raised:
        replace(KEY, **change)
    assert str(raised.value).startswith(said)


def _nested(depth: int) -> dict[str, Any]:
    return {"deeper": _nested(depth - 1)} if depth else {}


def _cyclic() -> dict[str, Any]:
    made: dict[str, Any] = {}
    made["again"] = [made]
    return made


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seconds": -1.0}, "seconds: is -1.0, but must be a number that is not negative"),
        ({"seconds": math.nan}, "seconds: is nan"),
        ({"seconds": "fast"}, "seconds: is 'fast'"),
        ({"bar": 10**400}, "bar: is"),
        ({"low": 2.0}, "low, seconds and high: are 2.0, 1.0 and 1.1, but must be"),
        ({"rounds": 1.0}, "rounds: is 1.0"),
        ({"made": "yesterday"}, "made: is 'yesterday', but must be a date in ISO form"),
        ({"made": "0001-01-01T00:00:00+23:00"}, "made: is"),
        ({"config": [1]}, "config: is [1], but must be a mapping"),
        ({"config": {1: 2}}, "config: has the name 1; names are texts"),
        ({"config": {"a": [{None: 2}]}}, "config: has the name None"),
        ({"config": {"a": math.nan}}, "config: is no plain data"),
        ({"config": {"a": b"x"}}, "config: is no plain data"),
        ({"config": _nested(900)}, "config: is no plain data"),
        ({"config": _cyclic()}, "config: is no plain data"),
        ({"config": {"a": "x" * 200_000}}, "config: has 200008 characters as JSON"),
    ],
)
def test_bad_records_get_a_sentence(change: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRecord) as raised:
        replace(record(), **change)
    assert str(raised.value).startswith(said)
    assert len(str(raised.value)) < 250


def test_times_are_kept_in_one_form() -> None:
    same = {
        replace(record(), made=t).made for t in ("2026-03-01T12:00:00", "2026-03-01T13:00+01:00")
    }
    assert same == {"2026-03-01T12:00:00.000000+00:00"}
    assert replace(record(), made="2026-03-01").made == "2026-03-01T00:00:00.000000+00:00"


# ------------------------------------------------------------------------ libraries


def test_times_of_libraries(store: TuningDatabase) -> None:
    versions = (("torch", "2.11"),)
    store.put_library("matmul 64x64", "H200", 1, versions, 1e-5, 2e-5)
    store.put_library("matmul 64x64", "H200", 1, versions, 3e-5, 4e-5)
    found = store.library("matmul 64x64", "H200", 1, versions)
    assert (found.seconds_device, found.seconds_host) == (3e-5, 4e-5)
    assert store.libraries() == [found]
    for other in (("matmul", "H200", 1, versions), ("matmul 64x64", "H200", 2, versions)):
        assert store.library(*other) is None
    assert store.library("matmul 64x64", "H200", 1, (("torch", "2.12"),)) is None
    with pytest.raises(BadRecord, match="seconds_host: is -1"):
        store.put_library("matmul", "H200", 1, versions, 1e-5, -1)


# ------------------------------------------------------------------------ data


def filled(path: Path | None = None) -> TuningDatabase:
    made = TuningDatabase(path)
    for tile in (8, 16):
        made.put(KEY, replace(record(1 / tile, tile=tile), made=OLD))
    made.put(replace(KEY, generator="0"), replace(record(math.inf, math.nan), made=NEW))
    made.put_library("matmul", "a CPU", 4, (), 1.0, 2.0)
    return made


def test_what_is_exported_is_merged(store: TuningDatabase) -> None:
    text = filled().to_json()
    data = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert store.merge(data) == 4
    assert store.export() == data == json.loads(store.to_json())
    assert store.merge(data) == 0
    assert store.known(replace(KEY, generator="0"), {}).error == math.inf


def test_the_newer_of_two_measurements_is_kept(store: TuningDatabase) -> None:
    data = filled().export()
    store.put(KEY, replace(record(9.0, tile=8), made=NEW))
    store.put(KEY, replace(record(9.0, tile=16), made="2025-12-31"))
    assert store.merge(data) == 3
    assert [found.seconds for found in store.all(KEY)] == [1 / 16, 9.0]
    data["libraries"][0] |= {"seconds_device": 5.0, "made": "2030-01-01"}
    assert store.merge(data) == 1
    assert store.library("matmul", "a CPU", 4, ()).seconds_device == 5.0


def test_more_measurements_than_fit_into_one_transaction(store: TuningDatabase) -> None:
    data = filled().export()
    one = data["records"][0]
    data["records"] = [{**one, "config": {"tile": n}} for n in range(1201)]
    assert store.merge(data) == 1202
    assert store.count() == 1201


def _entry(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], object]:
    return lambda data: change(data["records"][1])


FAULTS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "format": (lambda d: d.update(format="other"), 'it has no measurements of the format "block'),
    "records": (lambda d: d.update(records=5), ", records: is 5, but must be a list"),
    "entry": (lambda d: d["records"].append("x"), ", records[3]: is 'x', but must be a mapping"),
    "missing": (_entry(lambda e: e.pop("bar")), ", records[1]: bar is missing"),
    "unknown": (_entry(lambda e: e.update(code="x")), ", records[1]: 'code' is unknown"),
    "sizes": (_entry(lambda e: e.update(sizes=[])), ", records[1], sizes: is [], but must be"),
    "size": (_entry(lambda e: e["sizes"].update(M="64")), ", records[1], sizes.M: is '64'"),
    "config": (_entry(lambda e: e.update(config="tile")), ", records[1], config: is 'tile'"),
    "error": (_entry(lambda e: e.update(error="0")), ", records[1], error: is '0'"),
    "made": (_entry(lambda e: e.update(made=2026)), ", records[1], made: is 2026"),
    "library": (
        lambda d: d["libraries"][0].update(threads=-1),
        ", libraries[0], threads: is -1, but must be a whole number from 1",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_data_that_do_not_fit_are_refused_as_a_whole(fault: str, store: TuningDatabase) -> None:
    data = filled().export()
    change, said = FAULTS[fault]
    change(data)
    with pytest.raises(BadRecord) as raised:
        store.merge(data, "my.json")
    assert isinstance(raised.value, BlockbusterError)
    assert str(raised.value).startswith("my.json")
    assert said in str(raised.value)
    assert store.count() == 0


@pytest.mark.parametrize("data", [None, [], "x", {"records": []}])
def test_data_of_another_kind_are_refused(data: object, store: TuningDatabase) -> None:
    with pytest.raises(BadRecord, match="the data: it has no measurements of the format"):
        store.merge(data)


def test_old_measurements_and_those_of_other_generators_are_removed(
    store: TuningDatabase,
) -> None:
    def refill() -> None:
        store.clear()
        store.merge(filled().export())
        store.put(KEY, record(tile=99))

    refill()
    assert store.remove() == 0
    assert store.remove(generator_other_than=generator_version()) == 1
    assert store.keys() == [KEY]
    assert store.remove(older_than_days=1) == 2
    assert store.all(KEY)[0].config == {"tile": 99}
    refill()
    assert store.remove(older_than_days=1, generator_other_than=generator_version()) == 3
    assert store.remove(older_than_days=1e9) == store.remove(older_than_days=math.inf) == 0
    assert store.remove(older_than_days=0) == 2
    with pytest.raises(BadRecord, match="older_than_days: is -1"):
        store.remove(older_than_days=-1)


# ------------------------------------------------------------------------ files


def test_it_is_kept(file: Path) -> None:
    with filled(file) as first:
        kept = first.export()
        assert first.path == file
    assert [path.name for path in file.parent.iterdir() if path.suffix != ".lock"] == [file.name]
    with TuningDatabase(str(file)) as second:
        assert second.export() == kept
    (mode,) = sqlite3.connect(file).execute("PRAGMA journal_mode").fetchone()
    assert mode == "wal"


def _sqlite(*statements: str) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        connection = sqlite3.connect(file)
        for statement in statements:
            connection.execute(statement)
        connection.commit()
        connection.close()

    return change


def _overwrite(start: int, content: bytes) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        with file.open("r+b") as opened:
            opened.seek(start)
            opened.write(content)

    return change


DAMAGES: dict[str, Callable[[Path], object]] = {
    "an older schema": _sqlite("PRAGMA user_version = 0"),
    "a newer schema": _sqlite("PRAGMA user_version = 99"),
    "another table": _sqlite("CREATE TABLE other (x)"),
    "a missing table": _sqlite("DROP TABLE libraries"),
    "a trigger": _sqlite("CREATE TRIGGER t AFTER INSERT ON records BEGIN DELETE FROM records; END"),
    "no SQLite": lambda file: file.write_bytes(b"not a database, but a text\n" * 100),
    "the header": _overwrite(16, b"\xff" * 80),
    "a page": _overwrite(4096, b"\xff" * 4096),
    "truncated": lambda file: os.truncate(file, 4096),
    "a text that is no JSON": _sqlite("UPDATE records SET config = 'x' WHERE config LIKE '%16%'"),
    "a text that is no UTF-8": _sqlite(
        "UPDATE records SET config = CAST(x'ff' AS TEXT) WHERE config LIKE '%16%'"
    ),
    "a number that is a text": _sqlite("UPDATE records SET seconds = 'x'"),
    "a missing number": _sqlite("UPDATE records SET made = NULL"),
    "a bad key": _sqlite("UPDATE records SET sizes = '[]'"),
    "a bad library": _sqlite("UPDATE libraries SET versions = '7'"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_moved_aside(
    damage: str, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filled(file).close()
    DAMAGES[damage](file)
    content = file.read_bytes()
    with TuningDatabase(file) as again:
        assert again.export()["records"] == []
        again.put(KEY, record())
        assert again.count() == 1
    (aside,) = asides(file.parent)
    assert aside.startswith(f"{file.name}.damaged-20")
    assert (file.parent / aside).read_bytes() == content
    (said,) = caplog.messages
    assert said.startswith(f"blockbuster: the tuning database {file} cannot be read (")
    assert aside in said
    with TuningDatabase(file) as third:
        assert third.count() == 1


def test_files_that_were_moved_aside_stay(file: Path) -> None:
    for _ in range(3):
        file.write_bytes(b"no database" * 100)
        TuningDatabase(file).close()
    first, second, third = asides(file.parent)
    assert second == f"{first}-2"
    assert third == f"{first}-3"


def test_the_log_of_transactions_goes_with_its_file(file: Path) -> None:
    """The log of another file would be played into the new one."""
    other = sqlite3.connect(file)
    other.execute("PRAGMA journal_mode = WAL")
    other.execute("PRAGMA wal_autocheckpoint = 0")
    other.execute("CREATE TABLE other (x)")
    other.commit()
    with TuningDatabase(file) as again:
        again.put(KEY, record())
        assert again.count() == 1
        other.execute("INSERT INTO other VALUES (1)")
        other.commit()
        other.close()
        again.put(KEY, record(tile=1))
    with TuningDatabase(file) as again:
        assert again.count() == 2
    (aside, *_) = asides(file.parent)
    kept = sqlite3.connect(file.parent / aside)
    assert kept.execute("SELECT x FROM other").fetchall() == [(1,)]
    kept.close()


def test_an_open_database_follows_its_file(file: Path) -> None:
    """Another process may move or remove the file, or clear the folder."""
    with filled(file) as first:
        assert first.count() == 3
        for path in [*file.parent.glob(f"{file.name}*")]:
            path.unlink()
        assert first.count() == 0
        first.put(KEY, record())
        with TuningDatabase(file) as second:
            assert second.count() == 1


def test_an_empty_file_is_a_new_database(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    file.touch()
    with TuningDatabase(file) as opened:
        opened.put(KEY, record())
        assert opened.path == file
    assert caplog.messages == []


def _no_folder(folder: Path) -> Path:
    return folder / "missing" / "file"


def _below_a_file(folder: Path) -> Path:
    (folder / "plain").write_text("")
    return folder / "plain" / "file"


def _a_folder(folder: Path) -> Path:
    (folder / "file").mkdir()
    return folder / "file"


def _pipe(folder: Path) -> Path:
    os.mkfifo(folder / "file")
    return folder / "file"


def _loop(folder: Path) -> Path:
    (folder / "file").symlink_to(folder / "file")
    return folder / "file"


def _read_only(folder: Path) -> Path:
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    if os.access(folder, os.W_OK):  # for root; the kernel's own folders are closed to root, too
        return Path("/proc/sys/file")
    return folder / "file"


@pytest.mark.parametrize("place", [_no_folder, _below_a_file, _a_folder, _pipe, _loop, _read_only])
def test_without_a_folder_it_is_in_memory(
    place: Callable[[Path], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = place(tmp_path)
    with TuningDatabase(path) as opened:
        opened.put(KEY, record())
        opened.put(KEY, record(tile=8))
        assert opened.path is None
        assert opened.count() == 2
    (said,) = caplog.messages
    assert said.startswith(f"blockbuster: the tuning database {path} cannot be used (")
    assert "kept for this process only" in said


def test_a_disk_that_fills_up_is_left_for_memory(
    store: TuningDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """What was known stays known."""
    store.put(KEY, record(0.5, tile=0))
    store._file._connection.execute("PRAGMA max_page_count = 4")
    for number in range(1, 50):
        store.put(KEY, record(tile=number, text="x" * 1000))
    assert store.path is None
    assert store.count() == 50
    assert store.best(KEY).seconds == 0.5
    assert [m.partition("(")[2].partition(")")[0] for m in caplog.messages] == [
        "database or disk is full"
    ]


def test_a_file_that_stays_locked_is_left_for_memory(
    store: TuningDatabase, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = store.path
    monkeypatch.setattr(tuning_file, "BUSY_SECONDS", 0.2)
    store.close()
    store.count()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    store.put(KEY, record())
    assert store.count() == 1
    assert store.path is None
    assert "database is locked" in caplog.text
    other.close()


def test_a_short_lock_is_waited_for(store: TuningDatabase) -> None:
    other = sqlite3.connect(store.path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    timer = threading.Timer(0.2, other.close)
    timer.start()
    store.put(KEY, record())
    timer.join()
    assert store.path is not None
    assert store.count() == 1


def test_a_defect_is_no_fault_of_the_file(store: TuningDatabase) -> None:
    with pytest.raises(sqlite3.OperationalError, match="no such column"):
        store._file.write(lambda connection: connection.execute("SELECT wrong FROM records"))
    store.put(KEY, record())
    assert store.path is not None


def test_an_interrupted_transaction_is_undone(store: TuningDatabase) -> None:
    def interrupted(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO libraries VALUES ('half', 'a CPU', 1, '{}', 1, 1, '2026')")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store._file.write(interrupted)
    assert store.libraries() == []


# ------------------------------------------------------------------------ threads and processes


def test_threads_share_it(store: TuningDatabase) -> None:
    failed: list[BaseException] = []

    def work(own: int) -> None:
        try:
            for number in range(40):
                store.put(KEY, record(1 + own + number, thread=own, number=number))
                assert store.best(KEY) is not None
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(own,)) for own in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert store.count() == 240
    assert store.best(KEY).config == {"thread": 0, "number": 0}


BEGIN = """
import os, random, signal, sys, threading, time, types
package = types.ModuleType("blockbuster_fusion")  # the whole package takes a second to import
package.__path__ = [os.environ["PYTHONPATH"] + "/blockbuster_fusion"]
sys.modules[package.__name__] = package
from blockbuster_fusion.runtime.tuning_database import Key, Record, TuningDatabase, database
path = sys.argv[1]
KEY = Key("d", (("M", 64),), "a CPU", 4, ())
def record(**config):
    return Record(config, 1.0, 1.0, 1.0, 0.0, 1e-3, 7)
"""


def python(code: str, *arguments: object, **variables: str) -> "subprocess.Popen[str]":
    source = str(Path(__file__).parents[2] / "src")
    return subprocess.Popen(
        [sys.executable, "-c", BEGIN + code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": source, **variables},
    )


def printed(process: "subprocess.Popen[str]") -> str:
    output, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (0, "")
    return output.strip()


WRITER = """
store = TuningDatabase(path)
for number in range(200):
    store.put(KEY, record(writer=sys.argv[2], number=number))
    if number % 20 == 0:
        store.close()
"""

READER = """
store = TuningDatabase(path)
last = reads = 0
while last < 400:
    found = store.all(KEY)
    assert len(found) >= last
    assert (store.best(KEY) is None) <= (last == 0)
    last = len(found)
    reads += 1
print(reads > 1, store.path == __import__("pathlib").Path(path))
"""


def test_two_processes_write_while_a_third_reads(file: Path) -> None:
    """Writers also open and close the file, which is when SQLite's log comes and goes."""
    reader, *writers = python(READER, file), python(WRITER, file, 1), python(WRITER, file, 2)
    assert [printed(process) for process in (*writers, reader)] == ["", "", "True True"]
    with TuningDatabase(file) as store:
        assert store.count() == 400


KILLED = """
acknowledged = 0
for kill in range(10):
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        store = TuningDatabase(path)
        for number in range(100_000):
            store.put(KEY, record(kill=kill, number=number, text="x" * 500))
            os.write(into, b".")
    os.close(into)
    if kill % 2:  # the others may be killed while they open the file
        os.read(out, 1)
        acknowledged += 1
    time.sleep(random.random() * 0.1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    while got := os.read(out, 1 << 16):
        acknowledged += len(got)
    os.close(out)
print(acknowledged)
"""


def test_a_killed_writer_loses_at_most_the_record_in_flight(file: Path) -> None:
    acknowledged = int(printed(python(KILLED, file)))
    assert acknowledged >= 5
    connection = sqlite3.connect(file)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()
    with TuningDatabase(file) as store:
        assert acknowledged <= store.count() <= acknowledged + 10
    assert asides(file.parent) == []


FORKED = """
def children(work):
    pids = []
    for child in range(4):
        pid = os.fork()
        if pid == 0:
            signal.alarm(30)
            try:
                work(child)
            finally:
                os._exit(0 if sys.exc_info()[0] is None else 1)
        pids.append(pid)
    return [os.waitpid(pid, 0)[1] for pid in pids]

store = database()
store.put(KEY, record(parent=-1))
stop = False
def busy():
    number = 0
    while not stop:
        store.put(KEY, record(parent=number))
        number += 1
    print(number > 0)
thread = threading.Thread(target=busy)
thread.start()
def work(child):
    assert database() is store
    assert store.known(KEY, {"parent": -1}) is not None
    for number in range(20):
        store.put(KEY, record(child=child, number=number))
print(children(work))
stop = True
thread.join()
print(sum("child" in found.config for found in store.all(KEY)), store.path is not None)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_forked_children_write_while_a_thread_of_the_parent_does(file: Path) -> None:
    """SQLite's locks do not outlast a fork: a child that used its parent's could lose records."""
    lines = printed(python(FORKED, file, **{VARIABLE: str(file), "PYTHONWARNINGS": "ignore"}))
    assert lines.splitlines() == ["[0, 0, 0, 0]", "True", "80 True"]
    connection = sqlite3.connect(file)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


IN_TURN = """
store = database()
store.put(KEY, record(turn=0))
(hear, tell), (listen, answer) = os.pipe(), os.pipe()
pid = os.fork()
if pid == 0:
    store.put(KEY, record(turn=1))
    os.write(tell, b".")
    os.read(listen, 1)
    store.put(KEY, record(turn=3))
    os._exit(0)
os.read(hear, 1)
store.close()
store.put(KEY, record(turn=2))
os.write(answer, b".")
os.waitpid(pid, 0)
print(sorted(found.config["turn"] for found in store.all(KEY)))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_parent_does_not_remove_the_log_that_its_child_writes(file: Path) -> None:
    """It did where the child had inherited the connection: the child's locks were the parent's."""
    assert printed(python(IN_TURN, file, **{VARIABLE: str(file)})) == "[0, 1, 2, 3]"


IN_MEMORY = """
store = database()
store.put(KEY, record())
pid = os.fork()
if pid == 0:
    store.put(KEY, record(child=1))
    os._exit(store.count())
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), store.count())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_has_a_copy_of_what_is_in_memory(file: Path) -> None:
    process = python(IN_MEMORY, file, **{VARIABLE: "off", "PYTHONWARNINGS": "ignore"})
    assert printed(process) == "2 1"


def test_a_file_that_another_process_has_just_begun_is_not_moved(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_bytes(b"no database" * 1000)
    others: list[TuningDatabase] = []
    locked, count = tuning_file._locked, iter(range(10))

    def overtaken(path: Path, deadline: float) -> Any:
        if next(count) == 1:  # the first lock is for opening, the second for moving
            monkeypatch.setattr(tuning_file, "_locked", locked)
            others.append(TuningDatabase(file))
            others[0].put(KEY, record(first=1))
        return locked(path, deadline)

    monkeypatch.setattr(tuning_file, "_locked", overtaken)
    with TuningDatabase(file) as late, others[0] as first:
        late.put(KEY, record(late=1))
        assert late.count() == first.count() == 2
    assert len(asides(file.parent)) == 1


def test_files_are_opened_one_at_a_time(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with tuning_file._locked(file, 0):
        timer = threading.Timer(0.1, lambda: TuningDatabase(file).close())
        timer.start()
        time.sleep(0.2)
        assert not file.exists()
    timer.join()
    assert file.exists()
    monkeypatch.setattr(tuning_file, "BUSY_SECONDS", 0.05)
    with tuning_file._locked(file, 0), TuningDatabase(file) as late:
        assert late.path is None
    assert "another process has locked it" in caplog.text


MOVERS = """
while time.time() < float(sys.argv[2]):
    time.sleep(0.001)
store = TuningDatabase(path)
store.put(KEY, record(own=sys.argv[3]))
print(store.path is not None)
"""


def test_processes_that_find_a_damaged_file_at_once_move_it_once(file: Path) -> None:
    """The second one must not move the file that the first one has begun."""
    file.write_bytes(b"no database" * 1000)
    together = time.time() + 1
    processes = [python(MOVERS, file, together, own) for own in range(4)]
    output = [process.communicate(timeout=60) for process in processes]
    assert [out.strip() for out, _ in output] == ["True"] * 4
    assert len("".join(error for _, error in output).splitlines()) == 1
    assert len(asides(file.parent)) == 1
    with TuningDatabase(file) as store:
        assert store.count() == 4


# ------------------------------------------------------------------------ the user's own


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the kernel cache; databases of the test are closed."""
    monkeypatch.setenv(disk_cache.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(disk_cache, "_noted", set())
    opened: dict[Path | None, TuningDatabase] = {}
    monkeypatch.setattr(tuning_database, "_own", opened)
    yield tmp_path / "cache"
    for store in opened.values():
        store.close()


def test_the_users_database_lies_beside_the_kernels(own: Path) -> None:
    store = database()
    assert store.path == own / "tuning-2.sqlite3"
    assert database() is store
    store.put(KEY, record())
    assert disk_cache.shrink(own, 0) == 0
    assert database().count() == 1


def test_a_variable_names_another_file(own: Path, file: Path, monkeypatch) -> None:
    monkeypatch.setenv(VARIABLE, str(file))
    assert database().path == file
    assert not own.exists()


def test_it_can_be_off(own: Path, monkeypatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv(VARIABLE, "off")
    database().put(KEY, record())
    assert database().path is None
    assert database().count() == 1
    assert not own.exists()
    assert caplog.messages == []


def test_a_folder_that_others_can_write_is_not_used(
    own: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own.mkdir()
    own.chmod(0o777)
    with caplog.at_level(logging.WARNING):
        assert database().path is None
    assert list(own.iterdir()) == []
    assert len(caplog.messages) == 1


def test_threads_open_one_database(own: Path) -> None:
    found: list[TuningDatabase] = []
    threads = [threading.Thread(target=lambda: found.append(database())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(map(id, found))) == 1


def test_a_time_of_a_library_is_data() -> None:
    time = LibraryTime("matmul", "a CPU", 1, (("torch", "2"), ("mkl", "1")), 1, 2, OLD)
    assert time.versions == (("mkl", "1"), ("torch", "2"))
    assert time.made == "2026-01-01T00:00:00.000000+00:00"
