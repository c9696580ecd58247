"""The machine that kernels run on: read from a file, or measured once and kept."""

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path

from blockbuster_fusion.errors import BadMachine, CompilerFailed, NoCompiler
from blockbuster_fusion.machine.machine import Machine, known, read
from blockbuster_fusion.runtime.c.compiler import has_openmp
from blockbuster_fusion.runtime.c.probe import cpu_name, dot_units, probe_cpu
from blockbuster_fusion.runtime.c.topology import topology
from blockbuster_fusion.runtime.disk_cache import usable_folder
from blockbuster_fusion.runtime.measuring import measuring


def machine_named(name: str) -> Machine:
    """A machine by the name of a file, or of one that comes with the package."""
    found = known()
    if name.lower() in found:
        return found[name.lower()]
    if Path(name).suffix in (".toml", ".json"):
        return read(Path(name))
    choices = ", ".join(found)
    problem = f"unknown; known are cpu, cuda, {choices}, and .toml or .json files"
    raise BadMachine(name=name, problem=problem)


def this_cpu(threads: int | None = None, *, measure: bool = False) -> Machine:
    """This CPU with some number of threads: measured once, or again with `measure`, and kept.

    By default each core that the process may use has one thread.
    """
    count = usable_threads(threads)
    wanted = (cpu_name(), count)
    units: set[str] = set()
    with contextlib.suppress(NoCompiler, CompilerFailed):  # told when a kernel is compiled
        units = {f"{unit}.bfloat16" for unit in dot_units()}
    return kept_machine(
        f"cpu-{count}",
        "cpu",
        lambda kept: (
            (kept.name, kept.processors) == wanted
            and bool(kept.instructions)
            and units <= kept.rates.keys()
        ),
        lambda: probe_cpu(count),
        measure=measure,
    )


def usable_threads(threads: int | None = None) -> int:
    """The number of threads that a CPU is measured with; BadMachine if there are fewer CPUs."""
    here = topology()
    count = len(here.cores) if threads is None else threads
    if not 1 <= count <= here.cpus:
        given = f"{count} threads are asked for, and the process may use {here.cpus} CPUs"
        raise BadMachine(name="cpu", problem=f"{given}; give 1 to {here.cpus}")
    with contextlib.suppress(NoCompiler):  # told when a kernel is compiled
        return count if count == 1 or has_openmp() else 1
    return count


def kept_machine(
    label: str,
    device: str,
    fits: Callable[[Machine], bool],
    probe: Callable[[], Machine],
    *,
    measure: bool,
) -> Machine:
    """A machine that was measured before, if it still fits; else, or to `measure`, measured now.

    No other process measures on the device meanwhile.
    """
    file = kept_file(label)
    kept = None if measure else _kept(file, fits)
    if kept is not None:
        return kept
    with measuring(device):
        kept = None if measure else _kept(file, fits)  # by a process that was waited for
        if kept is not None:
            return kept
        made = probe()
        if file is not None:
            _write(file, made.to_json())
    return made


def _kept(file: Path | None, fits: Callable[[Machine], bool]) -> Machine | None:
    """The machine in a file, if there is one that fits."""
    if file is not None and file.is_file():
        with contextlib.suppress(BadMachine):  # of an older version: measured anew
            found = read(file)
            return found if fits(found) else None
    return None


def kept_file(label: str) -> Path | None:
    """The file in which a measured machine is kept, in the folder of the kernel cache."""
    folder = usable_folder()
    return None if folder is None else folder / f"machine-{file_label(label)}.json"


def file_label(text: str) -> str:
    """A text as a part of a file's name: small letters and digits, joined by hyphens."""
    return "-".join(re.findall("[a-z0-9]+", text.lower()))


def _write(file: Path, text: str) -> None:
    """Replaces a file at once: another process reads the old text or the new one."""
    part = file.with_name(f".{file.name}-{os.getpid()}")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(file)
    except OSError:  # a full disk: it is measured again next time
        part.unlink(missing_ok=True)
