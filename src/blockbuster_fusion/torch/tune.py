"""`bb.tune`: measures configurations of a model's or a program's kernels, and keeps the best."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.compiler import (
    Request,
    capability_of,
    check_target,
    choose,
    executable_of,
)
from blockbuster_fusion.errors import NoKernel, WrongKind
from blockbuster_fusion.host.inputs import in_order
from blockbuster_fusion.improve import improved
from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.runtime.executable import Executable
from blockbuster_fusion.runtime.tuning_database import database
from blockbuster_fusion.runtime.workers import check_workers
from blockbuster_fusion.schedule.config import Config
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.torch.machines import machine_for
from blockbuster_fusion.torch.rivals.cluster import Cluster, tuner_for
from blockbuster_fusion.torch.rivals.tuning import MOST_TRIED, Subject
from blockbuster_fusion.torch.table.row import DTYPES

if TYPE_CHECKING:
    from blockbuster_fusion.torch.model import CompiledModel

TUNING = "max-autotune-no-cudagraphs"
"""The mode in which a model is compiled to be tuned."""


@dataclass(frozen=True)
class Tuned:
    """The best configuration of a program, compiled."""

    config: Config
    seconds: Seconds
    error: float
    """The error against float64, relative and in norm."""
    tried: int
    """The number of configurations that have been measured, now and before."""
    executable: Executable

    def __str__(self) -> str:
        return f"{self.config}: {self.seconds}, the fastest of {self.tried}"


def tune(
    model: Any,
    *inputs: Any,
    seconds: float = 600.0,
    target: str | None = None,
    workers: int | None = None,
    ray: str | None = None,
    **named: Any,
) -> "Tuned | CompiledModel":
    """A program with its best configuration, or a model with those of all its parts.

    `inputs` are arrays, for a program in the order of its inputs or by name. What is found is
    kept in the tuning database, and later compilations use it.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise _wrong("a number of seconds", repr(seconds), "leave it out for 600")
    if workers is not None:
        check_workers(workers)
    if isinstance(model, ArrayProgram):
        subject = subject_of(model, inputs, named, target)
        return tune_subject(subject, seconds, workers, ray)
    given = [*inputs, *named.values()]
    if given and not isinstance(model, torch.nn.Module) and _are_arrays(given):
        remedy = "trace the function first: bb.tune(bb.trace(function, …), …)"
        raise _wrong("a program for arrays of NumPy", "a function", remedy)
    from blockbuster_fusion.torch.model import CompiledModel  # all that captures models

    options: dict[str, Any] = {"seconds": seconds, "target": target, "workers": workers, "ray": ray}
    with Cluster(ray) if ray is not None else nullcontext():
        made = CompiledModel(model, mode=TUNING, library="auto", **options)
        made(*inputs, **named)
    return made


def subject_of(
    program: ArrayProgram, inputs: tuple[Any, ...], named: Mapping[str, Any], target: str | None
) -> Subject:
    """A program to be tuned for the sizes of some arrays."""
    names = [given.name for given in program.inputs]
    arrays = [_tensor(x) for x in in_order(names, dict(named) if named else list(inputs))]
    kind = target or (arrays[0].device.type if arrays else "cpu")
    check_target(kind)
    arrays = [x.to("cuda") if kind == "cuda" else x for x in arrays]
    sizes = _sizes(program, arrays)
    storage = {name: DTYPES[x.dtype] for name, x in zip(names, arrays, strict=True)}
    narrow = next((d for d in storage.values() if d in (DType.bfloat16, DType.float16)), None)
    outputs = {out.name: program.type(out.value).dtype for out in program.outputs}
    storage |= {n: narrow if narrow and d is DType.float32 else d for n, d in outputs.items()}
    machine = machine_for(kind)
    request = Request(program, target=kind, dtype=storage, capability=capability_of(kind))
    choices = improved(choose(request), sizes, machine, most=MOST_TRIED)
    threads = torch.get_num_threads() if kind == "cpu" else None
    return Subject(program, storage, choices, arrays, sizes, machine, threads)


def tune_subject(subject: Subject, seconds: float, workers: int | None, ray: str | None) -> Tuned:
    """The best configuration of a subject, compiled."""
    with tuner_for(seconds, workers, ray) as tuner:
        tuner.ahead([subject])
        found = tuner.best(subject)
    if found is None:
        remedy = "none of its configurations is exact and runs"
        raise NoKernel(what=subject.program.name, remedy=remedy)
    choice, record = found
    executable = executable_of([choice, *subject.choices], subject.threads)
    tried = len(tuner.database.all(subject.key))
    return Tuned(choice.config, Seconds(record.seconds), record.error, tried, executable)


def kept(subject: Subject) -> str:
    """Says in a sentence what is kept of a subject whose tuning is stopped."""
    own = database()
    count, best = len(own.all(subject.key)), own.best(subject.key)
    place = "in memory" if own.path is None else f"in {own.path}"
    said = f"stopped; {count} configurations measured, kept {place}"
    if best is None:
        return said
    return f"{said}; the fastest: {Config.from_data(best.config)}: {Seconds(best.seconds)}"


def _tensor(x: Any) -> torch.Tensor:
    if isinstance(x, torch.Tensor):
        return x
    try:
        return torch.from_numpy(np.ascontiguousarray(x))
    except TypeError:
        raise _wrong("arrays of numbers", repr(x)[:40], "give arrays or tensors") from None


def _are_arrays(given: Sequence[Any]) -> bool:
    return all(isinstance(x, np.ndarray) for x in given)


def _wrong(wanted: str, given: str, remedy: str) -> WrongKind:
    return WrongKind(function="bb.tune", wanted=wanted, given=given, remedy=remedy)


def _sizes(program: ArrayProgram, arrays: list[torch.Tensor]) -> tuple[tuple[Axis, int], ...]:
    """The lengths of the axes that are not fixed, from the shapes of the inputs."""
    found: dict[Axis, int] = {}
    for given, x in zip(program.inputs, arrays, strict=True):
        axes = " ".join(map(str, given.type.axes))
        if x.dim() != len(given.type.axes) or not x.numel():
            shown = f"{given.name} of shape {tuple(x.shape)}"
            raise _wrong(f"an array with elements along {axes}", shown, "give it one of that form")
        for axis, length in zip(given.type.axes, x.shape, strict=True):
            if not isinstance(axis.extent, int):
                found.setdefault(axis, length)
    return tuple(found.items())
