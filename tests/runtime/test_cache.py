"""The cache: whole entries or none, whatever happens to processes and files."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from blockbuster_fusion.runtime import cache
from blockbuster_fusion.runtime.cache import cached, digest, discard


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


class Maker:
    """Writes a text and counts how often."""

    def __init__(self, text: str = "made") -> None:
        self.text, self.count = text, 0

    def __call__(self, path: Path) -> None:
        self.count += 1
        path.write_text(self.text)


def left_over(folder: Path) -> list[Path]:
    return list(folder.glob(".making-*"))


def test_made_once(folder: Path) -> None:
    make = Maker()
    first, second = (cached("k" * 64, ".txt", make) for _ in range(2))
    assert first == second
    assert first.read_text() == "made"
    assert first.suffix == ".txt"
    assert make.count == 1
    assert folder in first.parents
    assert not left_over(folder)


def test_keys_and_suffixes_differ() -> None:
    files = [cached(k * 64, s, Maker(k + s)) for k in "ab" for s in (".c", ".so")]
    assert [f.read_text() for f in files] == ["a.c", "a.so", "b.c", "b.so"]


def test_a_digest_keeps_its_parts_apart() -> None:
    assert digest("ab", "c") != digest("a", "bc") != digest("abc")


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: os.truncate(file, 2),
        lambda file: os.truncate(file, 0),
        lambda file: file.write_bytes(b"\xff\xfe\x00garbage"),
        lambda file: file.unlink(),
        lambda file: (file.parent / "sha256").unlink(),
        lambda file: (file.parent / "sha256").write_bytes(b"\xff\xff"),
    ],
    ids=["truncated", "empty", "garbage", "no file", "no checksum", "bad checksum"],
)
def test_a_damaged_entry_is_made_again_once(damage, folder: Path) -> None:
    make = Maker()
    file = cached("k" * 64, ".txt", make)
    damage(file)
    assert cached("k" * 64, ".txt", make).read_text() == "made"
    assert cached("k" * 64, ".txt", make).read_text() == "made"
    assert make.count == 2
    assert not left_over(folder)


def test_an_entry_that_is_a_plain_file_gives_way(folder: Path) -> None:
    folder.mkdir()
    (folder / ("k" * 64 + ".txt")).write_text("not a folder")
    assert cached("k" * 64, ".txt", Maker()).read_text() == "made"


def test_discarded(folder: Path) -> None:
    make = Maker()
    discard(cached("k" * 64, ".txt", make))
    cached("k" * 64, ".txt", make)
    assert make.count == 2


def test_a_failure_leaves_nothing(folder: Path) -> None:
    def fail(path: Path) -> None:
        path.write_text("half")
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        cached("k" * 64, ".txt", fail)
    assert list(folder.iterdir()) == []
    assert cached("k" * 64, ".txt", Maker()).read_text() == "made"


def test_where_nothing_can_be_written_files_last_as_long_as_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "file" / "below"))
    make = Maker()
    first, second = (cached("k" * 64, ".txt", make) for _ in range(2))
    assert first == second
    assert first.read_text() == "made"
    assert make.count == 1


def test_old_temporary_folders_are_swept(folder: Path) -> None:
    for name, age in ((".making-old", 2 * cache.STALE_SECONDS), (".making-new", 60)):
        (folder / name).mkdir(parents=True)
        (folder / name / "half").write_text("half")
        then = time.time() - age
        os.utime(folder / name, (then, then))
    cached("k" * 64, ".txt", Maker())
    assert [path.name for path in left_over(folder)] == [".making-new"]


HANGING = """
import sys, time
from blockbuster_fusion.runtime.cache import cached
def make(path):
    path.write_text("half")
    print("started", flush=True)
    time.sleep(60)
cached("k" * 64, ".txt", make)
"""


def test_a_killed_process_costs_one_more_making(folder: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", HANGING], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == "started\n"
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert len(left_over(folder)) == 1
    make = Maker()
    assert cached("k" * 64, ".txt", make).read_text() == "made"
    assert make.count == 1


RACING = """
import sys, time
from blockbuster_fusion.runtime.cache import cached
def make(path):
    path.write_text(sys.argv[1] * 1000)
    time.sleep(0.2)
print(cached("k" * 64, ".txt", make).read_text()[:1])
"""


def test_several_processes_at_once(folder: Path) -> None:
    children = [
        subprocess.Popen([sys.executable, "-c", RACING, str(n)], stdout=subprocess.PIPE, text=True)
        for n in range(3)
    ]
    printed = [child.communicate()[0].strip() for child in children]
    assert all(child.returncode == 0 for child in children)
    assert len(printed) == 3
    kept = cached("k" * 64, ".txt", Maker()).read_text()
    assert len(set(kept)) == 1
    assert len(kept) == 1000
    assert not left_over(folder)
