"""Tuning on another machine: a job is data, and so are the records that come back.

A job has a program, the forms of its inputs, and configurations. The machine that runs it makes
inputs of its own, measures and checks each configuration as usual, and searches their neighbours.
The keys of its records name that machine.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from blockbuster_fusion.array.data import (
    Data,
    axis_data,
    axis_from_data,
    program_data,
    program_from_data,
)
from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.choice import Choice
from blockbuster_fusion.compiler import Request, capability_of, check_target, choose
from blockbuster_fusion.errors import BadData, BlockbusterError
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.messages import log
from blockbuster_fusion.runtime.executable import Sizes
from blockbuster_fusion.runtime.tensors import STORED
from blockbuster_fusion.runtime.tuning_records import FORMAT, to_entry
from blockbuster_fusion.schedule.config import Config
from blockbuster_fusion.torch.machines import machine_for
from blockbuster_fusion.torch.part_inputs import counted_like
from blockbuster_fusion.torch.rivals.tuning import Subject, Tuner

Form = tuple[tuple[int, ...], tuple[int, ...]]
"""The shape and the strides of an array."""


@dataclass(frozen=True)
class Job:
    """Configurations of a program that are to be measured."""

    program: ArrayProgram
    storage: Mapping[str, DType]
    """The dtypes in memory of inputs and outputs."""
    inputs: Sequence[Form]
    sizes: Sizes
    target: str
    threads: int | None
    """The threads of kernels on a CPU."""
    configs: Sequence[Config]
    seconds: float

    @classmethod
    def of(cls, subject: Subject, configs: Sequence[Config], seconds: float) -> "Job":
        """Some configurations of a subject, without its machine."""
        return cls(
            subject.program,
            subject.storage,
            [(tuple(x.shape), tuple(x.stride())) for x in subject.inputs],
            subject.sizes,
            subject.machine.target,
            subject.threads,
            configs,
            seconds,
        )

    def data(self) -> Data:
        """The job as plain data."""
        return {
            "program": program_data(self.program),
            "storage": {name: str(dtype) for name, dtype in self.storage.items()},
            "inputs": [[[*shape], [*strides]] for shape, strides in self.inputs],
            "sizes": [[*axis_data(axis), length] for axis, length in self.sizes],
            "target": self.target,
            "threads": self.threads,
            "configs": [config.data() for config in self.configs],
            "seconds": self.seconds if math.isfinite(self.seconds) else None,
        }

    @classmethod
    def from_data(cls, data: Data) -> "Job":
        """The job that `data` wrote, or BadData."""
        try:
            return cls._read(data)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            problem = f"{type(error).__name__}: {error}"
            raise BadData(what="a job", problem=problem) from error

    @classmethod
    def _read(cls, data: Data) -> "Job":
        return cls(
            program_from_data(data["program"]),
            {name: DType(dtype) for name, dtype in data["storage"].items()},
            [(tuple(shape), tuple(strides)) for shape, strides in data["inputs"]],
            tuple((axis_from_data(axis), length) for *axis, length in data["sizes"]),
            data["target"],
            data["threads"],
            [Config.from_data(config) for config in data["configs"]],
            math.inf if data["seconds"] is None else data["seconds"],
        )

    def subject(self) -> Subject:
        """The subject on this machine."""
        check_target(self.target)
        machine = machine_for(self.target, self.threads)
        names = [given.name for given in self.program.inputs]
        inputs = [
            _array(form, STORED[self.storage[name]], self.target)
            for name, form in zip(names, self.inputs, strict=True)
        ]
        for number in self.program.places:
            inputs[number] = counted_like(inputs[number])
        return Subject(
            self.program, self.storage, self.choices(), inputs, self.sizes, machine, self.threads
        )

    def choices(self) -> list[Choice]:
        """The configurations that this machine's compiler has kernels for."""
        target = self.target
        request = Request(
            self.program, target=target, dtype=self.storage, capability=capability_of(target)
        )
        found: list[Choice] = []
        for config in self.configs:
            try:
                found += choose(replace(request, config=config))
            except BlockbusterError as error:
                log.debug("%s is left out: %s", config, error)
        return found


def run_job(data: Data) -> dict[str, Any]:
    """Runs a job on this machine: all records of its program here, as `merge` takes them."""
    job = Job.from_data(data)
    subject = job.subject()
    with Tuner(job.seconds, workers=job.threads) as tuner:
        tuner.best(subject)
        records = tuner.database.all(subject.key)
    return {"format": FORMAT, "records": [to_entry(subject.key, record) for record in records]}


def _array(form: Form, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Random numbers in an array of a form; zeros if they are whole, which are places too."""
    shape, strides = form
    reach = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    flat = torch.zeros(1 + max(0, reach), dtype=dtype, device=device)
    if dtype.is_floating_point:
        flat.normal_()
    return flat.as_strided(shape, strides)
