"""Makes a seed: tunes parts of common models, and keeps the best configuration of each."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from blockbuster_fusion.compiler import check_target
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.machine.machine import Machine
from blockbuster_fusion.runtime.generator import generator_version
from blockbuster_fusion.runtime.machines import usable_threads
from blockbuster_fusion.runtime.tuning_database import Key, Record, TuningDatabase, database
from blockbuster_fusion.runtime.tuning_seeds import made_seed, seeds_left_out
from blockbuster_fusion.torch.machines import machine_for
from blockbuster_fusion.torch.seed_cases import DTYPES, SeedCase
from blockbuster_fusion.torch.tune import tune

GAIN = 1.05
"""The factor by which a configuration is to be faster than the usual one, for other CPUs."""


def tuned_seed(
    cases: Sequence[SeedCase],
    target: str,
    seconds: float,
    threads: int | None = None,
    *,
    before: object = None,
    tell: Callable[[str], None] = print,
) -> dict[str, Any]:
    """The seed of this machine, from the cases that are tuned into the database, each so long.

    Measurements of a seed from before stay, unless there are new ones. `threads` are those of a
    CPU, by default PyTorch's.
    """
    check_target(target)
    if threads is not None:
        torch.set_num_threads(usable_threads(threads))
    machine = machine_for(target)
    with seeds_left_out():
        for number, case in enumerate(cases, 1):
            known = database().count()
            said = _tuned(case, target, seconds)
            said = said or f"{database().count() - known} configurations"
            tell(f"[{number}/{len(cases)}] {case.name}: {said}")
    return made_seed(best_of(database(), machine), machine, before)


def best_of(kept: TuningDatabase, machine: Machine) -> list[tuple[Key, Record]]:
    """The best measurement of each kernel on a machine by this generator.

    Of a CPU, those that are clearly faster than the usual choice, which is measured first. In all
    other cases another CPU is better off with its own usual choice.
    """
    threads = machine.processors if machine.target == "cpu" else 1
    wanted, found = (machine.name, threads, generator_version()), []
    keys = kept.keys()
    for key in keys:
        if (key.machine, key.threads, key.generator) != wanted:
            continue
        records = kept.all(key)
        best, first = records[0], min(records, key=lambda record: record.made)
        gain = GAIN if machine.target == "cpu" else 1.0
        if best.ok and best.seconds * gain <= first.seconds:
            found.append((key, best))
    return found


def _tuned(case: SeedCase, target: str, seconds: float) -> str:
    """Tunes a case; what went wrong, or an empty text."""
    torch._dynamo.reset()  # else sizes that differ from the case before are taken for unknown
    made = torch.Generator(device=target).manual_seed(0)
    dtype = DTYPES[target]
    try:
        inputs = [
            torch.randn(shape, generator=made, device=target, dtype=dtype) for shape in case.shapes
        ]
        tune(case.function, *inputs, seconds=seconds)
    except (BlockbusterError, RuntimeError) as error:
        return f"left out: {error}"
    return ""
