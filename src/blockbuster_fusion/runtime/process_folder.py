"""A folder for this process alone, removed at its end."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

_made: dict[int, Path | None] = {}


def process_folder(*, make: bool = True) -> Path | None:
    """The folder, or None if it cannot be created. A forked child has its own."""
    own = os.getpid()
    folder = _made.get(own)
    if folder is None or not os.path.isdir(folder):  # noqa: PTH112 (which raises nothing)
        if not make:
            return None
        try:
            folder = Path(tempfile.mkdtemp(prefix="blockbuster-"))
        except OSError:
            return None
        _made[own] = folder
        atexit.register(_remove, own, folder)
    return folder


def _remove(owner: int, folder: Path) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
