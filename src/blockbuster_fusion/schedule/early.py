"""Kernels of a GPU that start early: which they are by default (nest/passes/start_early.py)."""

from collections.abc import Sequence

from blockbuster_fusion.machine.machine import Machine
from blockbuster_fusion.schedule.cost import Seconds

LONGEST = 60e-6
"""The seconds of a kernel beside which the time between two kernels does not matter. Programs that
wait take room on processors, which slows large products down."""

FIRST = 90
"""The compute capability from which on GPUs have such launches."""


def can_start_early(capability: int) -> bool:
    """True for GPUs that start kernels before the one before them has ended."""
    return capability >= FIRST


def may_be_early(launches: Sequence[Seconds], machine: Machine) -> bool:
    """True if kernels of these predicted times may save time if they start early."""
    return machine.early > 0 and all(x.device <= LONGEST for x in launches)
