"""The cores and caches of this host that a process may use, as the system describes them.

Linux has a folder for each CPU: a hardware thread, of which a core may have several. It lists the
CPUs of the same core, and for each cache the CPUs that share it.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

CPUS = Path("/sys/devices/system/cpu")
CORE_FILES = ("core_cpus_list", "thread_siblings_list")
"""The files that list the CPUs of a core: the present one, and that of older systems."""
USUAL_CACHES = (("L1", 32 << 10), ("L2", 1 << 20), ("L3", 16 << 20))
"""Sizes that are assumed where the system does not tell; the last is shared."""
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True)
class Cache:
    """All caches of one level that some cores reach."""

    name: str
    one: int
    """Bytes of the smallest of them."""
    total: int
    """Bytes of all together."""
    shared: bool
    """True if several cores use one of them."""


@dataclass(frozen=True, slots=True)
class Topology:
    """The cores that a process may use, and their data caches, the fastest first."""

    cores: tuple[frozenset[int], ...]
    """The CPUs of each core that the process may use."""
    caches: tuple[Cache, ...]

    @property
    def cpus(self) -> int:
        """The number of hardware threads."""
        return sum(len(core) for core in self.cores)


def topology(
    folder: Path = CPUS, allowed: Iterable[int] | None = None, threads: int | None = None
) -> Topology:
    """The topology that a folder describes, of the CPUs that are allowed.

    With `threads`, it is that of so many threads: one on each core, in the order of their
    numbers, before a core has two.
    """
    usable = frozenset(allowed_cpus() if allowed is None else allowed)
    cores = _cores(folder, usable)
    used = cores if threads is None else cores[: max(1, threads)]
    return Topology(used, _caches(folder, used) or _usual(len(used)))


def allowed_cpus() -> frozenset[int]:
    """The numbers of the CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0)) or frozenset([0])
    return frozenset(range(os.cpu_count() or 1))


def numbers(text: str) -> frozenset[int]:
    """The numbers of a list as the system writes it: "0-3,8"."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _cores(folder: Path, usable: frozenset[int]) -> tuple[frozenset[int], ...]:
    """The usable CPUs by core; a CPU that the system does not describe is a core."""
    found: dict[frozenset[int], None] = {}
    for cpu in sorted(usable):
        place = folder / f"cpu{cpu}" / "topology"
        same = next((cpus for name in CORE_FILES if (cpus := _listed(place / name))), None)
        found[((same or frozenset()) & usable) | {cpu}] = None
    return tuple(found)


def _caches(folder: Path, cores: tuple[frozenset[int], ...]) -> tuple[Cache, ...]:
    """The data caches of some cores, level by level."""
    levels: dict[int, dict[frozenset[int], int]] = {}
    for cpu in sorted(cpu for core in cores for cpu in core):
        for place in _places(folder / f"cpu{cpu}" / "cache"):
            try:
                if (place / "type").read_text().strip() not in ("Data", "Unified"):
                    continue
                level = int((place / "level").read_text())
                size = _bytes((place / "size").read_text().strip())
            except (OSError, ValueError):
                continue
            users = _listed(place / "shared_cpu_list") or frozenset([cpu])
            if size > 0:
                levels.setdefault(level, {})[users] = size
    return tuple(_cache(level, levels[level], cores) for level in sorted(levels))


def _places(folder: Path) -> list[Path]:
    """The folders of the caches of a CPU; none if no more files may be open."""
    try:
        return [*folder.glob("index*")]
    except OSError:
        return []


def _cache(
    level: int, sizes: dict[frozenset[int], int], cores: tuple[frozenset[int], ...]
) -> Cache:
    shared = any(sum(1 for core in cores if core & users) > 1 for users in sizes)
    return Cache(f"L{level}", min(sizes.values()), sum(sizes.values()), shared)


def _usual(cores: int) -> tuple[Cache, ...]:
    *own, (last, size) = USUAL_CACHES
    private = (Cache(name, each, each * cores, False) for name, each in own)
    return (*private, Cache(last, size, size, cores > 1))


def _listed(file: Path) -> frozenset[int] | None:
    """The CPUs that a file lists; None if there is no such list."""
    try:
        return numbers(file.read_text())
    except (OSError, ValueError):
        return None


def _bytes(text: str) -> int:
    return int(text[:-1]) * UNITS[text[-1]] if text[-1:] in UNITS else int(text)
