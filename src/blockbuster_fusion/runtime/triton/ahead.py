"""Triton kernels compiled before their launch, into the cache that the launch reads.

A job is data: a source, and the arguments of a launch with dtypes in place of tensors. Triton
itself makes the key of its cache from them, so no GPU is needed. This file is also the program of a
worker process: it reads a job from each line, and answers with a line.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TextIO

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from blockbuster_fusion.ir.axis import Symbol
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.nest import Kernel
from blockbuster_fusion.runtime.bound import Bound, ScratchPool
from blockbuster_fusion.runtime.compiled import Compiled
from blockbuster_fusion.runtime.executable import Sizes
from blockbuster_fusion.runtime.tensors import STORED, TorchArrays
from blockbuster_fusion.runtime.triton.launch import FittingLaunch, TritonKernels, load


@dataclass(frozen=True, slots=True)
class KernelJob:
    """A kernel to be compiled for a launch."""

    source: str
    """The text of the module."""
    kernel: str
    arguments: list[int | bool | str | None]
    """Numbers, and the dtypes of tensors."""
    options: dict[str, int]
    capability: int
    unspecialised: list[str]
    """The parameters that the kernel takes as they come."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "KernelJob":
        return cls(**json.loads(text))

    def compile(self) -> None:
        """Compiles the kernel as its launch would; there need not be a GPU."""
        driver.set_active(_Target(self.capability))
        given = [STORED[DType(x)] if isinstance(x, str) else x for x in self.arguments]
        function = getattr(load(self.source), self.kernel)
        if self.unspecialised:
            function = triton.jit(function.fn, do_not_specialize=self.unspecialised)
        function.warmup(*given, grid=(1, 1, 1), **self.options)


class _Target:
    """Stands in for the driver of a GPU: kernels are compiled for it and not loaded."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


# ------------------------------------------------------------------------ jobs of a program


def kernel_jobs(
    compiled: Compiled, inputs: Sequence[torch.Tensor], sizes: Sizes, capability: int
) -> list[KernelJob]:
    """The kernels of a program as a run with such inputs launches them; nothing is run.

    There are none for a program with operators on the host: sizes may depend on their results.
    """
    kernels = compiled.kernels
    if not compiled.is_static or not isinstance(kernels, TritonKernels):
        return []
    recorder, library = _Recorder(kernels, capability), _Shapes()
    program = replace(compiled.program, kernels=recorder, scratch=ScratchPool())
    given = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta") for x in inputs]
    Bound(program, library, given, sizes).launched(library, given, {}, {})
    return recorder.jobs


class _Recorder:
    """Notes launches instead of making them."""

    def __init__(self, kernels: TritonKernels, capability: int) -> None:
        self.kernels, self.source, self.capability = kernels, kernels.source, capability
        self.jobs: list[KernelJob] = []

    def bind(
        self,
        kernel: Kernel,
        strides: Sequence[Sequence[int]],
        sizes: Mapping[Symbol, int],
        *,
        elements: int,
    ) -> Callable[[Sequence[Any]], None]:
        launch = self.kernels.bind(kernel, strides, sizes, elements=elements)
        if isinstance(launch, FittingLaunch) and launch.plan.grid[0]:
            self.jobs.append(self.job(launch))
        return lambda tensors: None

    def job(self, launch: FittingLaunch) -> KernelJob:
        """The kernel of a launch, with dtypes in place of tensors."""
        launcher, plan = launch.launcher, launch.plan
        function, arguments = launcher.form(plan, launch.strides)
        scratch = [buffer for buffer, _ in plan.scratch]
        places = [*launcher.pointers, *launcher.scratch]
        for at, buffer in zip(places, [*launcher.buffers, *scratch], strict=True):
            if at is not None:
                arguments[at] = str(buffer.dtype)
        taken = [p.name for p in function.params if p.do_not_specialize]
        name, options = launcher.kernel.name, dict(plan.options)
        return KernelJob(self.source, name, arguments, options, self.capability, taken)


class _Shapes(TorchArrays):
    """Tensors that have shapes and strides, and no numbers."""

    def __init__(self) -> None:
        super().__init__(torch.device("meta"), handles=False)

    def handle(self, x: torch.Tensor) -> torch.Tensor:
        return x


# ------------------------------------------------------------------------ a worker process


def serve(jobs: TextIO, answers: TextIO) -> None:
    """Compiles jobs, a line each, and answers with "done" or with the reason of a failure."""
    for line in jobs:
        try:
            KernelJob.from_json(line).compile()
            answer = "done"
        except Exception as error:  # whatever Triton raises
            answer = f"{type(error).__name__}: {error}"
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever a compiler prints is no answer
    serve(sys.stdin, answers)
