"""Measures the time of each step of a plan."""

import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import torch

from blockbuster_fusion.torch.plan.plan import ModelPlan
from blockbuster_fusion.torch.plan.steps import BoundKernel, BoundStep, KernelStep

RUNS = 5
"""The number of runs; the shortest counts."""

T = TypeVar("T")


class TimedPlan(ModelPlan):
    """A plan that measures its kernels in the first call, on copies of the inputs."""

    def __init__(self, plan: ModelPlan) -> None:
        self.__dict__ |= plan.__dict__
        self.measured: dict[int, float] = {}
        """The shortest time of each kernel step, by its id."""

    def __call__(self, *given: Any) -> list[Any]:
        if not self.measured:
            for _ in range(RUNS):
                values = [x.clone() if isinstance(x, torch.Tensor) else x for x in given]
                self.run(values, self.length(values), _Clock(self.measured))
        return super().__call__(*given)

    def parts(self, parts: Sequence[T]) -> Iterator[tuple[T, float]]:
        """Each part with its time; they are in the order of the kernel steps."""
        steps = [step for step in self.steps if isinstance(step, KernelStep)]
        for step, part in zip(steps, parts, strict=True):
            if id(step) in self.measured:
                yield part, self.measured[id(step)]


class _Clock:
    """Measures the time between steps."""

    def __init__(self, measured: dict[int, float]) -> None:
        self.measured, self.last = measured, time.perf_counter()

    def note(self, bound: BoundStep, values: list[Any]) -> None:
        tensors = (x for x in values if isinstance(x, torch.Tensor))
        if any(x.is_cuda for x in tensors):
            torch.cuda.synchronize()
        now = time.perf_counter()
        if isinstance(bound, BoundKernel):
            key = id(bound.step)
            self.measured[key] = min(now - self.last, self.measured.get(key, now - self.last))
        self.last = time.perf_counter()
