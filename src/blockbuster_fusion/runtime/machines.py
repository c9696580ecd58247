"""The machine that kernels run on: read from a file, or measured once and kept."""

import contextlib
import os
from pathlib import Path

from blockbuster_fusion.errors import BadMachine
from blockbuster_fusion.machine.machine import Machine, known, read
from blockbuster_fusion.runtime.c.probe import available_threads, cpu_name, probe_cpu
from blockbuster_fusion.runtime.disk_cache import usable_folder


def machine_named(name: str) -> Machine:
    """A machine by the name of a file, or of one that comes with the package."""
    found = known()
    if name.lower() in found:
        return found[name.lower()]
    if Path(name).suffix in (".toml", ".json"):
        return read(Path(name))
    choices = ", ".join(found)
    raise BadMachine(name=name, problem=f"unknown; known are {choices}, and .toml or .json files")


def this_cpu(threads: int | None = None, *, measure: bool = False) -> Machine:
    """This CPU with some number of threads: measured once, or again with `measure`, and kept."""
    count = threads or available_threads()
    file = kept_file(count)
    if not measure and file is not None and file.is_file():
        with contextlib.suppress(BadMachine):  # of an older version: measured anew
            kept = read(file)
            if (kept.name, kept.processors) == (cpu_name(), count):
                return kept
    made = probe_cpu(count)
    if file is not None:
        _write(file, made.to_json())
    return made


def kept_file(threads: int) -> Path | None:
    """The file in which a measured CPU is kept, in the folder of the kernel cache."""
    folder = usable_folder()
    return None if folder is None else folder / f"machine-cpu-{threads}.json"


def _write(file: Path, text: str) -> None:
    """Replaces a file at once: another process reads the old text or the new one."""
    part = file.with_name(f".{file.name}-{os.getpid()}")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(file)
    except OSError:  # a full disk: it is measured again next time
        part.unlink(missing_ok=True)
