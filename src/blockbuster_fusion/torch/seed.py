"""Makes a seed: tunes parts of common models, and keeps the best configuration of each."""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

import torch

from blockbuster_fusion.compiler import check_target
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.machine.machine import Machine
from blockbuster_fusion.plans.amounts import counted
from blockbuster_fusion.runtime.generator import generator_version
from blockbuster_fusion.runtime.machines import usable_threads
from blockbuster_fusion.runtime.tuning_database import Key, Record, TuningDatabase, database
from blockbuster_fusion.runtime.tuning_seeds import made_seed, seeds_left_out
from blockbuster_fusion.runtime.workers import VARIABLE, usual_workers
from blockbuster_fusion.torch.machines import machine_for
from blockbuster_fusion.torch.seed_cases import DTYPES, SeedCase, seed_cases
from blockbuster_fusion.torch.tune import tune

GAIN = 1.05
"""The factor by which a configuration is to be faster than the usual one, for other CPUs."""


def tuned_seed(
    cases: Sequence[SeedCase],
    target: str,
    seconds: float,
    threads: int | None = None,
    *,
    processes: int = 1,
    before: object = None,
    tell: Callable[[str], None] = print,
    keep: Callable[[dict[str, Any]], None] = lambda seed: None,
) -> dict[str, Any]:
    """The seed of this machine, from the cases that are tuned into the database, each so long.

    Measurements of a seed from before stay, unless there are new ones. `threads` are those of a
    CPU, by default PyTorch's. Several processes compile at the same time, and measure in turns.
    `keep` gets the seed so far after each case.
    """
    check_target(target)
    if threads is not None:
        torch.set_num_threads(usable_threads(threads))
    machine = machine_for(target)
    known = database().count()
    for number, (case, said) in enumerate(_all_tuned(cases, target, seconds, processes), 1):
        before_it, known = known, database().count()
        said = said or counted(known - before_it, "configuration")
        tell(f"[{number}/{len(cases)}] {case.name}: {said}")
        keep(made_seed(best_of(database(), machine), machine, before, is_part=True))
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


def _all_tuned(
    cases: Sequence[SeedCase], target: str, seconds: float, processes: int
) -> Iterator[tuple[SeedCase, str]]:
    """Tunes all cases; each comes with what went wrong, or an empty text, as soon as it is done."""
    if processes == 1:
        yield from ((case, _tuned(case, target, seconds)) for case in cases)
        return
    each = max(1, usual_workers() // processes)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, _begin, (each,)) as pool:
        jobs = {pool.submit(_tuned_by_name, case.name, target, seconds): case for case in cases}
        yield from ((jobs[job], job.result()) for job in as_completed(jobs))


def _begin(workers: int) -> None:
    """Prepares a process, which has so many workers of its own."""
    os.environ[VARIABLE] = str(workers)


def _tuned_by_name(name: str, target: str, seconds: float) -> str:
    """The same in another process, to which a function cannot be sent."""
    case = next(case for case in seed_cases(target, (name,)) if case.name == name)
    return _tuned(case, target, seconds)


def _tuned(case: SeedCase, target: str, seconds: float) -> str:
    """Tunes a case; what went wrong, or an empty text."""
    torch._dynamo.reset()  # else sizes that differ from the case before are taken for unknown
    made = torch.Generator(device=target).manual_seed(0)
    dtype = DTYPES[target]
    try:
        inputs = [
            torch.randn(shape, generator=made, device=target, dtype=dtype) for shape in case.shapes
        ]
        with seeds_left_out():
            tune(case.function, *inputs, seconds=seconds)
    except (BlockbusterError, RuntimeError) as error:
        return f"left out: {error}"
    return ""
