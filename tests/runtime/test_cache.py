"""The cache: whole entries or none, for all faults of processes and files."""

import errno
import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from blockbuster_fusion.errors import CacheFailed, WrongKind
from blockbuster_fusion.runtime import disk_cache, process_folder
from blockbuster_fusion.runtime.disk_cache import cached, digest, discard


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(disk_cache.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(disk_cache, "_noted", set())
    monkeypatch.setattr("blockbuster_fusion.runtime.process_folder._made", {})
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
    assert first.content == b"made"
    assert first.file is not None
    assert first.file.read_bytes() == b"made"
    assert first.file.name == disk_cache.file_name("k" * 64 + ".txt", b"made")
    assert make.count == 1
    assert folder in first.file.parents
    assert not left_over(folder)


def test_the_fallback_is_made_only_where_it_is_needed() -> None:
    cached("k" * 64, ".txt", Maker())
    assert process_folder.process_folder(make=False) is None


def test_keys_and_suffixes_differ() -> None:
    files = [cached(k * 64, s, Maker(k + s)) for k in "ab" for s in (".c", ".so")]
    assert [f.content for f in files] == [b"a.c", b"a.so", b"b.c", b"b.so"]


def test_a_digest_keeps_its_parts_apart() -> None:
    assert digest("ab", "c") != digest("a", "bc") != digest("abc")


def _swap(file: Path) -> None:
    """Another file of the same kind in its place, with its own hash beside it."""
    file.write_bytes(b"other")
    (file.parent / "sha256").write_text(hashlib.sha256(b"other").hexdigest())


def _exchange(file: Path) -> None:
    """The whole entry of another key in its place."""
    other = cached("j" * 64, ".txt", Maker("other")).file
    file.unlink()
    file.parent.rmdir()
    other.parent.rename(file.parent)


def _link(file: Path) -> None:
    other = file.parents[2] / "elsewhere"
    other.write_bytes(file.read_bytes())
    file.unlink()
    file.symlink_to(other)


def _link_entry(file: Path) -> None:
    other = file.parents[2] / "elsewhere"
    file.parent.rename(other)
    file.parent.symlink_to(other)


def _pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


DAMAGES = {
    "truncated": lambda file: os.truncate(file, 2),
    "empty": lambda file: os.truncate(file, 0),
    "garbage": lambda file: file.write_bytes(b"\xff\xfe\x00garbage"),
    "gone": lambda file: file.unlink(),
    "swapped": _swap,
    "another entry": _exchange,
    "two files": lambda file: (file.parent / "more").write_text("more"),
    "a link": _link,
    "a link to an entry": _link_entry,
    "a pipe": _pipe,
    "a folder": lambda file: (file.unlink(), file.mkdir()),
    "open to the group": lambda file: file.chmod(0o620),
    "open to all": lambda file: file.chmod(0o666),
    "an entry open to all": lambda file: file.parent.chmod(0o777),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_entry_is_made_again_once(damage, folder: Path) -> None:
    """Also one that others can write: the hash of a file is only in its name."""
    make = Maker()
    file = cached("k" * 64, ".txt", make).file
    damage(file)
    assert cached("k" * 64, ".txt", make).content == b"made"
    assert cached("k" * 64, ".txt", make).content == b"made"
    assert make.count == 2
    assert not left_over(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("whose", ["file", "entry", "folder", "folder above"])
def test_what_belongs_to_others_is_refused(whose: str, folder: Path, caplog) -> None:
    make = Maker()
    file = cached("k" * 64, ".txt", make).file
    given = {"file": file, "entry": file.parent, "folder": folder, "folder above": folder.parent}
    os.chown(given[whose], 12345, 12345)
    again = cached("k" * 64, ".txt", make)
    os.chown(given[whose], 0, 0)
    assert again.content == b"made"
    assert make.count == 2
    if "folder" in whose:
        assert folder not in again.file.parents
        assert "is not used" in caplog.text
        assert "belongs to the user 12345" in caplog.text


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
def test_a_folder_that_others_can_write_is_not_used(mode: int, folder: Path, caplog) -> None:
    folder.mkdir()
    folder.chmod(mode)
    again = cached("k" * 64, ".txt", Maker())
    assert again.content == b"made"
    assert list(folder.iterdir()) == []
    assert caplog.text.count("blockbuster: the kernel cache") == 1
    assert f"others can write to {folder}" in caplog.text


def test_links_to_folders_of_ones_own_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "disk").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    monkeypatch.setenv(disk_cache.VARIABLE, str(tmp_path / "link" / "cache"))
    file = cached("k" * 64, ".txt", Maker()).file
    assert tmp_path / "disk" in file.resolve().parents


def test_an_entry_that_is_a_plain_file_gives_way(folder: Path) -> None:
    folder.mkdir()
    (folder / ("k" * 64 + ".txt")).write_text("not a folder")
    assert cached("k" * 64, ".txt", Maker()).content == b"made"


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
    assert cached("k" * 64, ".txt", Maker()).content == b"made"


def test_where_nothing_can_be_written_files_last_as_long_as_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(disk_cache.VARIABLE, str(tmp_path / "file" / "below"))
    make = Maker()
    first, second = (cached("k" * 64, ".txt", make) for _ in range(2))
    assert first == second
    assert first.content == b"made"
    assert make.count == 1


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("call", ["mkdtemp", "rename", "open", "make"])
def test_every_write_error_has_a_fallback(
    call: str, code: int, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    """A full or read-only disk ended in a raw error."""
    folder.mkdir(mode=0o700)
    make = Maker()

    def failing(real):
        def called(*given, **named):
            if any(str(folder) in str(one) for one in (*given, *named.values())):
                writes = call != "open" or (len(given) > 1 and given[1] & os.O_CREAT)
                if writes:
                    raise OSError(code, os.strerror(code))
            return real(*given, **named)

        return called

    wrapped = {
        "mkdtemp": (disk_cache.tempfile, "mkdtemp"),
        "rename": (Path, "rename"),
        "open": (disk_cache.os, "open"),
    }
    if call == "make":
        make = failing(make)
    else:
        monkeypatch.setattr(*wrapped[call], failing(getattr(*wrapped[call])))
    made = cached("k" * 64, ".txt", make)
    assert made.content == b"made"
    assert call == "make" or folder not in made.file.parents
    assert f"cannot be written ({os.strerror(code)})" in caplog.text
    assert cached("k" * 64, ".txt", make) == made


def test_without_any_folder_there_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_cache, "process_folder", lambda make=True: None)
    monkeypatch.setattr(disk_cache, "usable_folder", lambda: None)
    with pytest.raises(CacheFailed, match="cannot be written there"):
        cached("k" * 64, ".txt", Maker())


def test_the_oldest_entries_go_where_there_are_too_many(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(disk_cache.LIMIT_VARIABLE, "10K")
    for number in range(9):
        file = cached(str(number) * 64, ".txt", Maker("x" * 1000)).file
        os.utime(file.parent, (number, number))
    assert disk_cache.find("0" * 64, ".txt") is not None  # used now, and so the youngest
    cached("a" * 64, ".txt", Maker("x" * 1500))
    kept = {path.name[0] for path in folder.iterdir()}
    assert kept == {"0", *"345678", "a"}
    assert disk_cache.usage(folder).size <= 10 * 1024


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("17", 17), ("2K", 2048), ("5 M".replace(" ", ""), 5 << 20),
                       ("1GiB", 1 << 30), ("3tb", 3 << 40)]
)  # fmt: skip
def test_sizes(text: str, size: int) -> None:
    assert disk_cache.parsed_size("--limit", text) == size


@pytest.mark.parametrize("text", ["", "M", "-1", "1.5G", "²", "1Q", "9" * 99])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(WrongKind, match="a size such as 500M"):
        disk_cache.parsed_size("--limit", text)


def test_old_temporary_folders_are_swept(folder: Path) -> None:
    for name, age in ((".making-old", 2 * disk_cache.STALE_SECONDS), (".making-new", 60)):
        (folder / name).mkdir(parents=True)
        (folder / name / "half").write_text("half")
        then = time.time() - age
        os.utime(folder / name, (then, then))
    cached("k" * 64, ".txt", Maker())
    assert [path.name for path in left_over(folder)] == [".making-new"]


HANGING = """
import sys, time
from blockbuster_fusion.runtime.disk_cache import cached
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
    assert cached("k" * 64, ".txt", make).content == b"made"
    assert make.count == 1


RACING = """
import sys, time
from blockbuster_fusion.runtime.disk_cache import cached
def make(path):
    path.write_text(sys.argv[1] * 1000)
    time.sleep(0.2)
print(cached("k" * 64, ".txt", make).content.decode()[:1])
"""


def test_several_processes_at_once(folder: Path) -> None:
    children = [
        subprocess.Popen([sys.executable, "-c", RACING, str(n)], stdout=subprocess.PIPE, text=True)
        for n in range(3)
    ]
    printed = [child.communicate()[0].strip() for child in children]
    assert all(child.returncode == 0 for child in children)
    assert len(printed) == 3
    kept = cached("k" * 64, ".txt", Maker()).content.decode()
    assert len(set(kept)) == 1
    assert len(kept) == 1000
    assert not left_over(folder)
