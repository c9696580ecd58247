"""Looks up earlier tuning for the parts of models: keys, configurations and records."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace

import torch

from blockbuster_fusion.array.lower import lower
from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.choice import Choice
from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.machine.machine import Machine
from blockbuster_fusion.messages import log
from blockbuster_fusion.runtime.executable import Sizes
from blockbuster_fusion.runtime.recently_used import RecentlyUsed
from blockbuster_fusion.runtime.tuning_database import Key, Record, database, uses_seeds
from blockbuster_fusion.runtime.tuning_records import NO_KERNELS, config_text
from blockbuster_fusion.runtime.tuning_seeds import Seed, seed_for, seed_name, seeds
from blockbuster_fusion.schedule.config import Config
from blockbuster_fusion.search_job import forecast
from blockbuster_fusion.source_digest import source_digest
from blockbuster_fusion.version import __version__

_SOURCES = RecentlyUsed[str](256)
"""The digests of kernels that seeds have configurations of."""


def tuning_key(
    program: ArrayProgram, storage: Mapping[str, DType], sizes: Sizes, machine: Machine
) -> Key:
    """The key of a program's measurements on a machine."""
    arrays = [(given.name, given.type.axes) for given in program.inputs]
    arrays += [(out.name, program.type(out.value).axes) for out in program.outputs]
    # Tiles are named after axes; the names of arrays say nothing.
    stored = ",".join(f"{' '.join(map(str, axes))}:{storage[name]}" for name, axes in arrays)
    text = f"{lower(program).digest} {stored} {machine.target}"
    return Key(
        hashlib.sha256(text.encode()).hexdigest(),
        tuple((str(axis), length) for axis, length in sizes),
        machine.name,
        machine.processors if machine.target == "cpu" else 1,
        versions(),
    )


def versions() -> tuple[tuple[str, str], ...]:
    """The versions of the software that measurements depend on."""
    return (("blockbuster-fusion", __version__), ("torch", str(torch.__version__)))


def measured_before(request: Request, key: Key, machine: Machine) -> Record | None:
    """The best measurement on this machine: the user's own, or that of the machine's seed."""
    found = database().best(key)
    if found is None and (seed := known_seed(request, key, machine)) is not None and seed.counts:
        return seed.record
    return found


def tuned_choices(
    request: Request, key: Key, machine: Machine, usual: Choice, sizes: Sizes
) -> list[Choice]:
    """The choice that was the best in earlier tuning, here or on a machine of this kind.

    What was not measured here has to be as fast as is predicted of the usual choice, but for the
    error of predictions: by the measurement elsewhere, and by its own prediction.
    """
    record, seed = measured_before(request, key, machine), known_seed(request, key, machine)
    try:
        if record is not None:
            return _with_config(request, record)
        if seed is None:
            return []
        found = _with_config(request, seed.record)
        expected = forecast(usual, sizes, machine)
        limit = expected.seconds.device * expected.error
        if seed.record.seconds > limit:  # the generator makes faster kernels since
            return []
        return [x for x in found if forecast(x, sizes, machine).seconds.device <= limit]
    except BlockbusterError as problem:  # the generator has changed since
        log.debug("a tuned configuration is left out: %s", problem)
        return []


def has_measurements(machine: Machine) -> bool:
    """True if there are measurements of kernels, the user's own or in the machine's seed."""
    return bool(database().count()) or (uses_seeds() and bool(seeds(seed_name(machine))))


def known_seed(request: Request, key: Key, machine: Machine) -> Seed | None:
    """The measurement that comes with the package for a machine of this kind.

    None if there is none, or if other kernels are made for its configuration by now.
    """
    seed = seed_for(key, machine) if uses_seeds() else None
    if seed is None:
        return None
    place = (key, config_text(seed.record.config))
    source = _SOURCES.get(place)
    if source is None:
        source = _source(request, seed.record)
        _SOURCES.put(place, source)
    return seed if source == seed.record.source != NO_KERNELS else None


def _source(request: Request, record: Record) -> str:
    """The digest of the kernels of a configuration, as they are made now."""
    try:
        return source_digest(_with_config(request, record)[0])
    except BlockbusterError as problem:  # the generator has changed since
        log.debug("a seed is left out: %s", problem)
        return NO_KERNELS


def _with_config(request: Request, record: Record) -> list[Choice]:
    """The choice of a configuration that was measured."""
    return choose(replace(request, config=Config.from_data(record.config)))
