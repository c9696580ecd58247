"""The options of a caller for the compilation of a model."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, fields

import torch
from torch.fx import Node

from blockbuster_fusion.plans.plan import Plan
from blockbuster_fusion.select.constraints import Wishes
from blockbuster_fusion.torch.capture.nodes import tensors_of
from blockbuster_fusion.torch.rivals.custom import CustomOperator


@dataclass(frozen=True)
class Options:
    """The options of a caller for the compilation of a model."""

    target: str | None = None
    """"cpu", "cuda" or "interpret"; by default, the device of the model's tensors."""
    strict: bool = False
    """Keep every conversion where the model has it, and raise instead of running eagerly."""
    threads: int | None = None
    plan: Plan | None = None
    """The plan to run by: then nothing is weighed or searched."""
    together: tuple[tuple[str, ...], ...] = ()
    """Operators that one part holds, by name: `[("mm", "add")]`; `*` stands for anything."""
    apart: tuple[tuple[str, ...], ...] = ()
    """Operators no two of which one part holds."""
    materialise: tuple[str, ...] = ()
    """Operators whose results are stored, and not fused with their readers."""
    operators: tuple[CustomOperator, ...] = ()
    """The caller's own operators, from `bb.custom_operator`: each may run what it computes."""
    candidates: int = 16
    """The most sets of operators that are fused and searched; with more, the plan may be better."""
    library: str = field(default_factory=lambda: os.environ.get("BLOCKBUSTER_LIBRARY", "auto"))
    """"auto" runs PyTorch's operators where they are faster than kernels, "never" does not."""
    early: bool | None = None
    """Start kernels of a GPU before the one before them has ended; by default, where it pays."""
    time_model: bool = True
    """Run the compiled model and the captured one in turns when compiling, and keep the faster."""
    freeze: bool = False
    """Compute what depends on weights alone once; writes to weights through `.data` are unseen."""
    seconds: float = 600.0
    """The seconds after which tuning measures one configuration of each part only."""
    workers: int | None = None
    """The number of configurations that tuning compiles at a time; by default one for each core."""
    ray: str | None = None
    """The address of a Ray cluster that tunes: "auto", "local" or HOST:PORT."""

    @property
    def wishes(self) -> Wishes:
        """The constraints on parts."""
        return Wishes(self.together, self.apart, self.materialise)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in fields(cls))

    def target_of(self, nodes: Iterable[Node]) -> str:
        """The target of some nodes: the caller's, or the type of the device that they run on."""
        return self.target or device_of(nodes).type


def device_of(nodes: Iterable[Node]) -> torch.device:
    """The device that nodes run on: that of their results, which may be single numbers.

    A number on the CPU goes with tensors on any device, so it counts only if all are there.
    """
    devices = (t.device for n in nodes for t in tensors_of(n))
    return next((d for d in devices if d.type != "cpu"), torch.device("cpu"))
