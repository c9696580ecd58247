"""Seeds: measurements that come with the package, for users whose own database has none yet.

They are looked up after the user's own measurements, and never copied into them. Kernels do not
depend on the version of PyTorch, so a seed serves all of them. The seed of a GPU is found by its
name. CPUs have too many names: theirs is found by the vector instructions and the number of
threads, and its times are those of another CPU, so only the configuration is used. A seed serves
as long as its kernels are made as they were: their source has a digest.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from blockbuster_fusion.errors import BadRecord
from blockbuster_fusion.machine.machine import Machine
from blockbuster_fusion.runtime.machines import file_label
from blockbuster_fusion.runtime.tuning_records import FORMAT, Key, Record, entries, to_entry


@dataclass(frozen=True, slots=True)
class Seed:
    """A measurement that comes with the package."""

    record: Record
    counts: bool
    """True if its time is that of the same kernel on the same machine."""


def seed_name(machine: Machine) -> str:
    """The name of a machine in seeds: its own, or that of all CPUs with its instructions."""
    return f"CPU {machine.instructions}" if machine.target == "cpu" else machine.name


def seed_for(key: Key, machine: Machine) -> Seed | None:
    """The measurement in the machine's seed for a key, or None."""
    found = None if _left_out else seeds(seed_name(machine)).get(_place(key))
    return None if found is None else Seed(found[1], counts=machine.target != "cpu")


@contextmanager
def seeds_left_out() -> Iterator[None]:
    """No seed is found meanwhile: a new one is to be better than choices without any."""
    _left_out.append(True)
    try:
        yield
    finally:
        _left_out.pop()


_left_out: list[bool] = []


def seed_folder() -> Traversable:
    """The folder of the seeds in the package."""
    return resources.files("blockbuster_fusion.runtime").joinpath("seeds")


def seed_file(name: str) -> str:
    """The name of the file of a machine's seed."""
    return f"{file_label(name)}.json"


@cache
def seeds(name: str) -> dict[Any, tuple[Key, Record]]:
    """The measurements of a machine's seed; none if there is no such seed."""
    file = seed_folder().joinpath(seed_file(name))
    if not file.is_file():
        return {}
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadRecord(place=file.name, problem=f"is no JSON: {error}") from None
    records, _ = entries(file.name, data)
    return {_place(key): (key, record) for key, record in records if key.machine == name}


def _place(key: Key) -> tuple[object, ...]:
    return (key.digest, key.sizes, key.threads)


def made_seed(
    best: Iterable[tuple[Key, Record]],
    machine: Machine,
    before: object = None,
    *,
    is_part: bool = False,
) -> dict[str, Any]:
    """The best measurements of a machine as its seed, with those of a seed that was there.

    New ones replace old ones of the same computation; while only a part is measured, faster ones
    do. What is of another machine is left out.
    """
    name = seed_name(machine)
    kept = entries("the seed", before)[0] if before is not None else []
    own = [(replace(key, machine=name), record) for key, record in best]
    found: dict[tuple[object, ...], tuple[Key, Record]] = {}
    for key, record in (*kept, *own):
        known = found.get(_place(key))
        if key.machine == name and not (is_part and known and known[1].seconds < record.seconds):
            found[_place(key)] = (key, record)
    ordered = sorted(found.values(), key=lambda pair: (pair[0].threads, pair[1].made))
    return {
        "format": FORMAT,
        "about": f"{name}: measured on {machine.name}",
        "records": [to_entry(*pair) for pair in ordered],
    }
