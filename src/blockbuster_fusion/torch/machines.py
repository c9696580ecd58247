"""The machine that a model runs on."""

import re
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch

from blockbuster_fusion.errors import BadMachine
from blockbuster_fusion.machine.machine import Machine, known
from blockbuster_fusion.runtime.c.topology import topology
from blockbuster_fusion.runtime.machines import kept_machine, this_cpu

USUAL_GPU = "h200"
"""The machine that kernels for GPUs are chosen for where there is no GPU."""
SHARE = "mig"
"""A word in the name of a share of a GPU, which is a machine of its own."""


def machine_for(target: str, threads: int | None = None) -> Machine:
    """The CPU with some number of threads, by default PyTorch's; or the GPU."""
    if target == "cpu":
        return _cpu(threads or torch.get_num_threads())
    if not torch.cuda.is_available():
        return known()[USUAL_GPU]
    return _gpu(gpu_name(), torch.cuda.current_device())


def gpu_of(examples: Iterable[Any]) -> torch.device | None:
    """The GPU that holds the inputs of a call, or None."""
    arrays = (x for x in examples if isinstance(x, torch.Tensor))
    return next((x.device for x in arrays if x.is_cuda), None)


def as_current(device: torch.device) -> AbstractContextManager[object]:
    """Makes a GPU the current one, for which kernels are chosen and on which they are timed."""
    is_gpu = device.type == "cuda" and torch.cuda.is_available()
    return torch.cuda.device(device) if is_gpu else nullcontext()


def gpu_name() -> str:
    """The name of the current GPU; an empty text where there is none."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else ""


@cache
def _cpu(threads: int) -> Machine:
    """More threads than CPUs take turns: the machine is that of all CPUs."""
    return this_cpu(min(threads, topology().cpus))


@cache
def _gpu(name: str, device: int) -> Machine:
    return known_gpu(name) or this_gpu()


def known_gpu(name: str) -> Machine | None:
    """The machine that comes with the package for a GPU, by a word of its name."""
    words = re.findall("[a-z0-9]+", name.lower())
    if SHARE in words:
        return None
    return next((m for m in known().values() if m.name.split()[-1].lower() in words), None)


def this_gpu(*, measure: bool = False) -> Machine:
    """The current GPU: measured once, or again with `measure`, and kept."""
    try:
        from blockbuster_fusion.runtime.triton.probe import probe_gpu
    except ImportError as error:
        problem = f"it is measured with {error.name}, which is not installed"
        raise BadMachine(name="cuda", problem=problem) from error
    if not torch.cuda.is_available():
        return probe_gpu()  # says that there is none
    number = torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(number)
    wanted = (properties.name, properties.multi_processor_count)
    return kept_machine(
        f"cuda {properties.name}",
        f"cuda:{number}",
        lambda kept: (kept.name, kept.processors) == wanted,
        probe_gpu,
        measure=measure,
    )
