"""Triton kernels compiled before their launch, into the cache that the launch reads.

Triton's compiler is Python, and threads take turns in Python. So worker processes compile kernels
at the same time (kernel_job.py), and this process finds them in the cache.
"""

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from threading import BoundedSemaphore, Lock
from typing import Any

import torch

from blockbuster_fusion.errors import WorkerFailed
from blockbuster_fusion.ir.axis import Symbol
from blockbuster_fusion.nest.nest import Launchable
from blockbuster_fusion.runtime.bound import Bound, Kernels, ScratchPool
from blockbuster_fusion.runtime.compiled import Compiled
from blockbuster_fusion.runtime.executable import Sizes
from blockbuster_fusion.runtime.tensors import TorchArrays
from blockbuster_fusion.runtime.triton.device import capability
from blockbuster_fusion.runtime.triton.driver import load_library
from blockbuster_fusion.runtime.triton.kernel_job import SMALLEST, KernelJob, smallest
from blockbuster_fusion.runtime.triton.launch import FittingLaunch, TritonKernels
from blockbuster_fusion.runtime.triton.modules import load
from blockbuster_fusion.runtime.workers import shared_workers


def launches_of(
    compiled: Compiled, inputs: Sequence[torch.Tensor], sizes: Sizes
) -> list[FittingLaunch]:
    """The launches of a program in a run with such inputs; nothing is run.

    There are none for a program with operators on the host: sizes may depend on their results.
    """
    if not compiled.is_static or not isinstance(compiled.kernels, TritonKernels):
        return []
    library = _Shapes()
    given = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta") for x in inputs]
    number = compiled.ranges.number(Bound(compiled.program, library, given, sizes).extents.sizes)
    program = compiled.programs[number]
    recorder = _Recorder(program.kernels)
    program = replace(program, kernels=recorder, scratch=ScratchPool())
    Bound(program, library, given, sizes).launched(library, given, {}, {})
    return recorder.launches


_STARTING, _STARTED = Lock(), dict[torch.device, "Future[None]"]()
"""The devices for which Triton has started, each once."""
_COMPILERS = BoundedSemaphore(max(2, os.cpu_count() or 1))
"""As many compilations as there are processors run at a time."""


def start(device: torch.device) -> "Future[None]":
    """Has a thread start Triton, its driver and ours, which takes more than a second.

    Threads that compile at the same time would each do much of that by themselves.
    """
    with _STARTING:
        if device not in _STARTED:
            pool = ThreadPoolExecutor(1)
            _STARTED[device] = pool.submit(_start, device)
            pool.shutdown(wait=False)
        return _STARTED[device]


def _start(device: torch.device) -> None:
    # a kernel that is needed tells what is wrong
    with contextlib.suppress(Exception), torch.cuda.device(device):
        workers, number = shared_workers(), capability()
        if workers is not None and number is not None:
            workers.job(smallest(number).data()).result()  # it is found in the cache then
        load(SMALLEST).smallest.warmup(torch.float32, grid=(1,))
        load_library()


def compile_ahead(
    compiled: Compiled,
    runs: Sequence[tuple[Sequence[torch.Tensor], Sizes]],
    device: torch.device,
) -> None:
    """Compiles the kernels of some runs at the same time, and launches none."""
    compile_launches(
        [x for inputs, sizes in runs for x in launches_of(compiled, inputs, sizes)], device
    )


def compile_launches(launches: Sequence[FittingLaunch], device: torch.device) -> None:
    """Compiles the kernels of some launches at the same time, and launches none.

    If there are workers, this process loads what they have compiled.
    """

    def compile_one(launch: FittingLaunch) -> None:
        with _COMPILERS, torch.cuda.device(device):  # a thread has one of its own
            launch.compile()

    if device.type != "cuda":
        return
    start(device).result()
    workers, number = shared_workers(), capability(device)
    if workers is not None and number is not None:
        jobs = [workers.job(_job(x, number).data()) for x in launches if x.is_new]
        for job in jobs:
            with contextlib.suppress(WorkerFailed):  # this process tells what is wrong
                job.result()
    with ThreadPoolExecutor() as pool:
        list(pool.map(compile_one, launches))


def kernel_jobs(
    compiled: Compiled, inputs: Sequence[torch.Tensor], sizes: Sizes, capability: int
) -> list[KernelJob]:
    """The kernels of a program as a run with such inputs launches them."""
    return [_job(x, capability) for x in launches_of(compiled, inputs, sizes)]


def _job(launch: FittingLaunch, capability: int) -> KernelJob:
    """The kernel of a launch, with dtypes in place of tensors."""
    launcher, plan = launch.launcher, launch.plan
    function, arguments = launcher.form(plan, launch.strides)
    scratch = [buffer for buffer, _ in plan.scratch]
    places = [*launcher.pointers, *launcher.scratch]
    for at, buffer in zip(places, [*launcher.buffers, *scratch], strict=True):
        if at is not None:
            arguments[at] = str(buffer.dtype)
    taken = [p.name for p in function.params if p.do_not_specialize]
    name, options = launcher.launched.name, dict(plan.options)
    matrices = {
        str(at): [[*x.shape], [*x.strides], [*x.block]]
        for at, x in launcher.matrices(plan, launch.strides).items()
    }
    source = launcher.source
    return KernelJob(source, name, arguments, matrices, options, capability, taken)


class _Recorder:
    """Notes launches instead of making them."""

    def __init__(self, kernels: Kernels) -> None:
        self.kernels, self.source = kernels, kernels.source
        self.launches: list[FittingLaunch] = []

    def bind(
        self,
        kernel: Launchable,
        strides: Sequence[Sequence[int]],
        sizes: Mapping[Symbol, int],
        *,
        elements: int,
    ) -> Callable[[Sequence[Any]], None]:
        launch = self.kernels.bind(kernel, strides, sizes, elements=elements)
        if isinstance(launch, FittingLaunch) and launch.plan.grid[0]:
            self.launches.append(launch)
        return lambda tensors: None


class _Shapes(TorchArrays):
    """Tensors that have shapes and strides, and no numbers."""

    def __init__(self) -> None:
        super().__init__(torch.device("meta"), handles=False)

    def handle(self, x: torch.Tensor) -> torch.Tensor:
        return x
