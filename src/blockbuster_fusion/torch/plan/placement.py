"""Data types of an assembled call: its actions and memory placements."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from blockbuster_fusion.nest.shapes import contiguous
from blockbuster_fusion.runtime.c.kernels import CpuLaunch
from blockbuster_fusion.runtime.triton.library_calls import LibraryCall, Release
from blockbuster_fusion.torch.plan.sized import (
    GpuKernel,
    SizedKernel,
    SizedLength,
    fixed_shape,
)
from blockbuster_fusion.torch.plan.steps import Slot

if TYPE_CHECKING:  # it needs Triton
    from blockbuster_fusion.runtime.triton.driver import DriverLaunch


def has_driver(device: torch.device) -> bool:
    """True if kernels on a device are launched by the driver of a GPU."""
    return device.type == "cuda"


class Untaped(Exception):
    """The reason why a call has no tape."""


class EmptyArrays(Untaped):
    """Arrays are empty, for which other kernels run; other sizes may have a tape."""


@dataclass(slots=True, eq=False)
class Base:
    """A range of memory: that of a tensor in a slot, or one that the tape allocates."""

    slot: int | None
    shape: tuple[SizedLength, ...] = ()
    dtype: torch.dtype = torch.uint8
    start: int = 0
    """The bytes before it in the storage of its tensor, in the call that was assembled."""
    shown: dict[int, None] = field(default_factory=dict)
    """The slots in memory of the tape, or of a call, that others than kernels read."""
    is_called: bool = False
    """True if its tensor is a result of an operator that C calls."""

    @property
    def is_sized(self) -> bool:
        """True if its shape depends on the sizes of a call."""
        return any(isinstance(n, Slot) for n in self.shape)

    @property
    def bytes(self) -> int:
        """The bytes of one whose shape is known."""
        return math.prod(fixed_shape(self.shape)) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Placement:
    """Base address, byte offset, shape and strides of a tensor."""

    base: Base
    offset: int
    """In bytes."""
    shape: tuple[SizedLength, ...]
    stride: tuple[int, ...] | None
    """None if it is all of its base, and its shape depends on sizes."""
    dtype: torch.dtype
    order: tuple[int, ...] = ()
    """If it has no strides: its dimensions in the order of memory; () if they are in order."""

    @property
    def is_whole(self) -> bool:
        """True if it is all of its base, in order."""
        if self.stride is None or self.base.is_sized:
            return self.stride is None
        shape, whole = fixed_shape(self.shape), fixed_shape(self.base.shape)
        is_dense = contiguous(shape) == self.stride
        return is_dense and not self.offset and math.prod(shape) == math.prod(whole)


@dataclass(frozen=True, slots=True)
class Launched:
    """A kernel to launch, with the base and offset of each buffer."""

    name: str
    """The kernel's name in the model."""
    launch: "CpuLaunch | SizedKernel | DriverLaunch | GpuKernel | LibraryCall | Release"
    places: tuple[tuple[Base, int], ...]
    makes: tuple[Base, ...] = ()
    """The results that PyTorch allocates."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A step that PyTorch runs."""

    step: Callable[[list[Any]], None]
    reads: tuple[int, ...]
    makes: tuple[int, ...]
