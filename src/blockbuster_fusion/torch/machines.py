"""The machine that a model runs on."""

from functools import cache

import torch

from blockbuster_fusion.machine.machine import Machine, known
from blockbuster_fusion.runtime.machines import this_cpu


def machine_for(target: str, threads: int | None = None) -> Machine:
    """The CPU with some number of threads, by default PyTorch's; or the GPU."""
    if target == "cpu":
        return _cpu(threads or torch.get_num_threads())
    return _gpu(torch.cuda.get_device_name() if torch.cuda.is_available() else "H200")


@cache
def _cpu(threads: int) -> Machine:
    return this_cpu(threads)


@cache
def _gpu(name: str) -> Machine:
    """A GPU by its name; of one that is not known, the figures of the most like it."""
    machines = known().values()
    exact = [m for m in machines if m.name.split()[-1].lower() in name.lower()]
    return exact[0] if exact else known()["a100"]
