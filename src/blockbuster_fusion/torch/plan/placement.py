"""What is told of a recorded call: what was done, and where in whose memory arrays lay."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from blockbuster_fusion.nest.shapes import contiguous
from blockbuster_fusion.runtime.c.kernels import CpuLaunch
from blockbuster_fusion.torch.plan.sized import SizedKernel


class Untaped(Exception):
    """Why there is no tape."""


@dataclass(slots=True, eq=False)
class Base:
    """A stretch of memory: a tensor's in a slot, or one that the tape has to make room for."""

    address: int
    """Where it was in the recorded call."""
    slot: int | None
    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.uint8
    shown: dict[int, None] = field(default_factory=dict)
    """The slots in room made by the tape that somebody else than a kernel looks at."""

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Placement:
    """How a tensor lies in memory."""

    base: Base
    offset: int
    """In bytes."""
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @property
    def is_whole(self) -> bool:
        """Whether it is all of its base, in order."""
        is_dense = contiguous(self.shape) == self.stride
        return is_dense and not self.offset and math.prod(self.shape) == math.prod(self.base.shape)


@dataclass(frozen=True, slots=True)
class Launched:
    """A kernel that was launched, and where its buffers lay."""

    name: str
    """The kernel's name in the model."""
    launch: CpuLaunch | SizedKernel
    places: tuple[tuple[Base, int], ...]


@dataclass(frozen=True, slots=True)
class Ran:
    """A step that PyTorch ran."""

    step: Callable[[list[Any]], None]
    reads: tuple[int, ...]
    makes: tuple[int, ...]
