"""Measures the time of each step of a plan."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch

from blockbuster_fusion.torch.machines import gpu_of
from blockbuster_fusion.torch.plan.plan import ModelPlan
from blockbuster_fusion.torch.plan.steps import BoundStep, KernelStep, PlanStep

RUNS = 5
"""The number of runs; the shortest counts."""

T = TypeVar("T")


class TimedPlan(ModelPlan):
    """A plan that measures its steps in the first call, on copies of the inputs."""

    def __init__(self, plan: ModelPlan) -> None:
        self.__dict__ |= plan.__dict__
        self.measured: dict[int, float] = {}
        """The shortest time of each step, by its place."""

    def __call__(self, *given: Any) -> list[Any]:
        if not self.measured:
            gpu = gpu_of(given)
            for _ in range(RUNS):
                values = [x.clone() if isinstance(x, torch.Tensor) else x for x in given]
                self.run(values, self.length(values), _Clock(self.measured, gpu))
        return super().__call__(*given)

    def parts(self, parts: Sequence[T]) -> Iterator[tuple[T, float]]:
        """Each part with its time; they are in the order of the kernel steps."""
        places = [at for at, step in enumerate(self.steps) if isinstance(step, KernelStep)]
        for at, part in zip(places, parts, strict=True):
            if at in self.measured:
                yield part, self.measured[at]

    def operators(self, operated: Mapping[T, PlanStep]) -> Iterator[tuple[T, float]]:
        """Each node that PyTorch runs with the time of its step."""
        places = {id(step): at for at, step in enumerate(self.steps)}
        for node, step in operated.items():
            if places.get(id(step)) in self.measured:
                yield node, self.measured[places[id(step)]]


class _Clock:
    """Measures the time between steps."""

    def __init__(self, measured: dict[int, float], gpu: torch.device | None) -> None:
        """On a GPU, a step has only been launched when its call returns."""
        self.measured, self.place, self.gpu = measured, 0, gpu
        self.last = time.perf_counter()

    def note(self, bound: BoundStep, values: list[Any]) -> None:
        if self.gpu is not None:
            torch.cuda.synchronize(self.gpu)
        spent = time.perf_counter() - self.last
        self.measured[self.place] = min(spent, self.measured.get(self.place, spent))
        self.place += 1
        self.last = time.perf_counter()
