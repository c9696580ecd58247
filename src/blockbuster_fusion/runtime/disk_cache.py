"""The cache of compiled kernels: files named by hashes of their sources.

An entry is a folder with one file, whose name is the hash of its key and its content. The folder is
put in place by one rename: it is whole, or it is not there. What a killed process leaves is a
folder with a temporary name, removed after an hour. The cache is used only where nobody else can
write (trust.py); a file is opened once, and what was hashed is what is given. Entries that were not
used for longest are removed where there are too many. Where anything cannot be read or written,
files last as long as the process.
"""

import contextlib
import errno
import hashlib
import logging
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from blockbuster_fusion.errors import CacheFailed, WrongKind
from blockbuster_fusion.runtime.process_folder import process_folder
from blockbuster_fusion.runtime.trust import distrust, is_trusted

VARIABLE, LIMIT_VARIABLE = "BLOCKBUSTER_CACHE", "BLOCKBUSTER_CACHE_LIMIT"
DEFAULT_LIMIT = 1 << 30
STALE_SECONDS = 3600
_TEMPORARY = ".making-"
_LARGEST = 1 << 28
_KEPT = 0.9
"""The fraction of the limit that is kept when entries are removed, to remove them rarely."""
_DAMAGED = (errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.EMLINK)
"""Errors of opening an entry that is something else than a folder with a file."""
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)

log = logging.getLogger("blockbuster_fusion")


@dataclass(frozen=True)
class CacheEntry:
    """The content of a file as it was read or made; `file` is its path, if it was stored."""

    content: bytes
    file: Path | None = None


def digest(*parts: str) -> str:
    """A key for an entry that is made from these texts."""
    made = hashlib.sha256()
    for part in parts:
        text = part.encode("utf-8", "surrogatepass")
        made.update(f"{len(text)}:".encode() + text)
    return made.hexdigest()


def cached(key: str, suffix: str, make: Callable[[Path], None]) -> CacheEntry:
    """The file that `make` writes for this key: from the cache, or made now.

    `make` is given the path to write to. An entry that is damaged is made again. OSError in `make`
    means that the folder is at fault: it is called once more with the process's own.
    """
    found = find(key, suffix)
    if found is not None:
        return found
    problem: OSError | None = None
    for folder in _folders():
        try:
            with _making(folder) as place:
                file = place / f"made{suffix}"
                make(file)
                content = _content(file)
        except OSError as error:
            problem = error
            _note(folder, f"cannot be written ({error.strerror or error})")
            continue
        return CacheEntry(content, _stored(key, suffix, content))
    reason = problem.strerror or problem if problem is not None else "there is no folder for it"
    raise CacheFailed(folder=cache_folder(), problem=reason)


def find(key: str, suffix: str) -> CacheEntry | None:
    """The entry of a key, or None; a damaged entry is removed."""
    for folder in (usable_folder(), process_folder(make=False)):
        if folder is None:
            continue
        entry = folder / f"{key}{suffix}"
        found = _read(entry)
        if found is not None:
            with contextlib.suppress(OSError):
                os.utime(entry)  # the oldest are removed first
            return found
    return None


def discard(entry: CacheEntry) -> None:
    """Removes an entry that `cached` returned."""
    if entry.file is not None:
        _remove(entry.file.parent)


def cache_folder() -> Path | None:
    """The folder of the entries: $BLOCKBUSTER_CACHE, or ~/.cache/blockbuster."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    with contextlib.suppress(RuntimeError):  # a user without a home
        return Path.home() / ".cache" / "blockbuster"
    return None


def usable_folder() -> Path | None:
    """The cache's folder, created if necessary; None, with a log message, if it is unsafe."""
    folder = cache_folder()
    if folder is None:
        return None
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        _note(folder, f"cannot be made ({getattr(error, 'strerror', None) or error})")
        return None
    reason = distrust(folder)
    if reason is not None:
        _note(folder, f"is not used: {reason}", "make it yours alone (chmod go-w)")
        return None
    return folder


def _folders() -> Iterator[Path]:
    """The cache's folder and that of the process, if they can be used."""
    own = usable_folder()
    if own is not None:
        yield own
    fallback = process_folder()  # made only where the other fails
    if fallback is not None:
        yield fallback


_noted: set[tuple[Path, str]] = set()


def _note(folder: Path, problem: str, remedy: str = "free space there") -> None:
    """Logs once that a folder is not used."""
    if (folder, problem) not in _noted:
        _noted.add((folder, problem))
        log.warning(
            "blockbuster: the kernel cache %s %s; kernels are kept for this process only: "
            "%s, or name another folder in %s",
            *(folder, problem, remedy, VARIABLE),
        )


# ------------------------------------------------------------------------ entries


def file_name(entry: str, content: bytes) -> str:
    """The name of an entry's file: the hash of both, so that no other entry's file fits."""
    made = hashlib.sha256(f"{entry}:".encode() + content)
    return f"{made.hexdigest()}{Path(entry).suffix}"


def _read(entry: Path) -> CacheEntry | None:
    """The content of an entry's only file, if its name is the right hash."""
    try:
        content, name = _opened(entry)
        if name == file_name(entry.name, content):
            return CacheEntry(content, entry / name)
    except OSError as error:
        if error.errno not in _DAMAGED:
            return None  # it is not there, or cannot be read now
    except ValueError:
        pass
    _remove(entry)
    return None


def _opened(entry: Path) -> tuple[bytes, str]:
    """The content and the name of an entry's only file, or ValueError if it is not ours."""
    place = os.open(entry, _FLAGS | getattr(os, "O_DIRECTORY", 0))
    try:
        (name,) = os.listdir(place)  # noqa: PTH208 (a descriptor)
        file = os.open(name, _FLAGS | getattr(os, "O_NONBLOCK", 0), dir_fd=place)
        with os.fdopen(file, "rb") as opened:
            status = os.fstat(file)
            if not is_trusted(status) or not is_trusted(os.fstat(place)):
                raise ValueError("others can write to it")
            if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
                raise ValueError("it is no file of ours")
            return opened.read(_LARGEST + 1), name
    finally:
        os.close(place)


def _content(file: Path) -> bytes:
    """The bytes of a new file, which the compiler or this process wrote."""
    with os.fdopen(os.open(file, _FLAGS | getattr(os, "O_NONBLOCK", 0)), "rb") as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            raise OSError(None, "it is no file")
        return opened.read(_LARGEST + 1)


def _stored(key: str, suffix: str, content: bytes) -> Path | None:
    """Puts an entry in its place; the entry of a faster process stays."""
    name = file_name(f"{key}{suffix}", content)
    for folder in _folders():
        entry = folder / f"{key}{suffix}"
        try:
            with _making(folder) as place:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
                with os.fdopen(os.open(place / name, flags, 0o600), "wb") as opened:
                    opened.write(content)
                try:
                    place.rename(entry)
                except OSError:
                    found = _read(entry)
                    if found is not None:
                        return found.file
                    place.rename(entry)
        except OSError as error:
            _note(folder, f"cannot be written ({error.strerror or error})")
            continue
        _keep_small(folder, len(content))
        return entry / name
    return None


@contextlib.contextmanager
def _making(folder: Path) -> Iterator[Path]:
    """A temporary folder."""
    place = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=folder))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Removes the temporary folders of processes that were killed."""
    old = time.time() - STALE_SECONDS
    found: list[Path] = []
    with contextlib.suppress(OSError):
        found = [*folder.glob(f"{_TEMPORARY}*")]
    for left in found:
        with contextlib.suppress(OSError):  # somebody else was faster
            if left.lstat().st_mtime < old:
                _delete(left)


def _remove(entry: Path) -> None:
    """Removes an entry atomically, so that nobody sees a part of it."""
    aside = entry.with_name(f"{_TEMPORARY}{os.getpid()}-{time.monotonic_ns()}")
    with contextlib.suppress(OSError):
        entry.rename(aside)
        _delete(aside)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


# ------------------------------------------------------------------------ its size


@dataclass(frozen=True)
class Usage:
    """The entries of a folder, the oldest first: (when each was last used, its size, its path)."""

    entries: tuple[tuple[float, int, Path], ...]

    @property
    def size(self) -> int:
        return sum(size for _, size, _ in self.entries)


def usage(folder: Path) -> Usage:
    """The entries of a cache's folder."""
    found: list[tuple[float, int, Path]] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # removed meanwhile
                if entry.name.startswith(_TEMPORARY) or not entry.is_dir(follow_symlinks=False):
                    continue
                with os.scandir(entry.path) as files:
                    size = sum(file.stat(follow_symlinks=False).st_size for file in files)
                used = entry.stat(follow_symlinks=False).st_mtime
                found.append((used, size, Path(entry.path)))
    return Usage(tuple(sorted(found)))


def shrink(folder: Path, limit: float) -> int:
    """Removes the least recently used entries until the rest fits; returns their number."""
    found = usage(folder)
    left, gone = found.size, 0
    for _, size, path in found.entries:
        if left <= limit:
            break
        _remove(path)
        left, gone = left - size, gone + 1
    return gone


def size_limit() -> float:
    """The size limit of the cache in bytes: $BLOCKBUSTER_CACHE_LIMIT, or 1 GiB."""
    given = os.environ.get(LIMIT_VARIABLE, "")
    return parsed_size(LIMIT_VARIABLE, given) if given else DEFAULT_LIMIT


def parsed_size(option: str, text: str) -> int:
    """A number of bytes, which may end in K, M, G or T."""
    number, unit = text.strip().upper().removesuffix("B").removesuffix("I"), 0
    if number[-1:] in "KMGT" and number[-1:]:
        number, unit = number[:-1], "KMGT".index(number[-1]) + 1
    if not number.isascii() or not number.isdigit() or len(number) > 15:
        wanted, remedy = "a size such as 500M or 2G", "a plain number is in bytes"
        raise WrongKind(function=option, wanted=wanted, given=repr(text[:40]), remedy=remedy)
    return int(number) << (10 * unit)


_stored_since: dict[Path, float] = {}


def _keep_small(folder: Path, size: int) -> None:
    """Checks the size of a folder at the first entry, and then from time to time."""
    limit = size_limit()
    since = _stored_since.get(folder, float("inf")) + size
    if since > limit / 32:
        since = 0
        _sweep(folder)
        if usage(folder).size > limit:
            shrink(folder, _KEPT * limit)
    _stored_since[folder] = since
