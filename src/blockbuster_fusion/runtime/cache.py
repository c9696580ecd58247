"""The cache of compiled kernels: files named by what they were made from.

An entry is a folder with the file and its checksum, put in place by one rename: it is whole, or it
is not there. What a killed compiler leaves is a folder with a temporary name, swept after an hour.
"""

import atexit
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

VARIABLE = "BLOCKBUSTER_CACHE"
STALE_SECONDS = 3600
_CHECKSUM = "sha256"
_TEMPORARY = ".making-"


def digest(*parts: str) -> str:
    """A key for an entry that is made from these texts."""
    made = hashlib.sha256()
    for part in parts:
        text = part.encode()
        made.update(f"{len(text)}:".encode() + text)
    return made.hexdigest()


def cached(key: str, suffix: str, make: Callable[[Path], None]) -> Path:
    """The file that `make` writes for this key: from the cache, or made now.

    `make` is given the path to write to. An entry that does not fit its checksum is thrown away
    and made again. Where the folder cannot be written, files last as long as the process.
    """
    folder = cache_folder()
    found = _intact(folder, key, suffix)
    if found is not None:
        return found
    try:
        made = _temporary(folder)
    except OSError:
        folder = _process_folder()
        found = _intact(folder, key, suffix)
        if found is not None:
            return found
        made = _temporary(folder)
    try:
        file = made / _file_name(key, suffix)
        make(file)
        (made / _CHECKSUM).write_text(_checksum(file), encoding="ascii")
        return _put(made, folder / f"{key}{suffix}") / file.name
    finally:
        shutil.rmtree(made, ignore_errors=True)


def discard(file: Path) -> None:
    """Throw away the entry of a file that `cached` gave."""
    _remove(file.parent)


def cache_folder() -> Path:
    """Where entries are kept: $BLOCKBUSTER_CACHE, or ~/.cache/blockbuster."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    try:
        return Path.home() / ".cache" / "blockbuster"
    except RuntimeError:  # nobody's home
        return _process_folder()


@cache
def _process_folder() -> Path:
    """A folder that goes with the process."""
    folder = Path(tempfile.mkdtemp(prefix="blockbuster-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _file_name(key: str, suffix: str) -> str:
    return f"{key[:16]}{suffix}"


def _intact(folder: Path, key: str, suffix: str) -> Path | None:
    """The file of an entry that is as it was written; one that is not is removed."""
    entry = folder / f"{key}{suffix}"
    file = entry / _file_name(key, suffix)
    try:
        if (entry / _CHECKSUM).read_text(encoding="ascii") == _checksum(file):
            return file
    except (OSError, UnicodeDecodeError):
        pass
    _remove(entry)
    return None


def _checksum(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _temporary(folder: Path) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _sweep(folder)
    return Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=folder))


def _sweep(folder: Path) -> None:
    """Remove what was left behind by processes that did not end well."""
    old = time.time() - STALE_SECONDS
    for left in folder.glob(f"{_TEMPORARY}*"):
        try:
            if left.stat().st_mtime < old:
                shutil.rmtree(left, ignore_errors=True)
        except OSError:
            continue  # somebody else was faster


def _put(made: Path, entry: Path) -> Path:
    """Move a finished folder to its place; where another process has been faster, its entry."""
    try:
        made.rename(entry)
    except OSError:
        if not (entry / _CHECKSUM).exists():
            raise
    return entry


def _remove(entry: Path) -> None:
    """Take an entry away at once, so that nobody sees half of it."""
    aside = entry.with_name(f"{_TEMPORARY}{os.getpid()}-{time.monotonic_ns()}")
    try:
        entry.rename(aside)
    except OSError:
        return
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside, ignore_errors=True)
    else:
        aside.unlink(missing_ok=True)
