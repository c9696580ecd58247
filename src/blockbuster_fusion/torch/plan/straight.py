"""A bound program as the list of what a call of it does: allocations and launches.

A `Bound` finds arrays by their buffers, and serves arrays of any library. Where a call is repeated
with tensors of the same shapes and strides, all that is known beforehand.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from blockbuster_fusion.nest.nest import Buffer, Call, Clear
from blockbuster_fusion.runtime.bound import Bound, Room
from blockbuster_fusion.runtime.tensors import STORED, TorchArrays

Work = Callable[[list[torch.Tensor]], None]
"""Adds an array to those of a call, or launches a kernel on some of them."""


class StraightProgram:
    """A program that has been run before, for tensors on one device."""

    def __init__(self, work: Sequence[Work], results: Sequence[int]) -> None:
        self.work, self.results = tuple(work), tuple(results)

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        arrays = [*inputs]
        for each in self.work:
            each(arrays)
        return [arrays[at] for at in self.results]


def straight(bound: Bound, library: TorchArrays) -> StraightProgram | None:
    """A program straightened; None where it calls operators or gives an array twice."""
    nest = bound.owner.nest
    if any(isinstance(step, Call) for step in nest.steps):
        return None
    made = _Straightened(nest.inputs, library)
    for step, launch in zip(nest.steps, bound.launches, strict=True):
        if launch is None:
            return None
        for room in launch.rooms:
            made.allocate(room)
        if isinstance(step, Clear):
            made.clear(step.buffer)
        elif launch.function is None:
            return None
        else:
            made.launch(launch.function, launch.buffers)
    results = [
        made.outputs.get(b) if is_first else None for b, _, is_first in bound.owner.given_back
    ]
    found = [at for at in results if at is not None]
    return StraightProgram(made.work, found) if len(found) == len(results) else None


class _Straightened:
    """A program in the making: the number of each buffer's array, and the work so far."""

    def __init__(self, inputs: Sequence[Buffer], library: TorchArrays) -> None:
        self.places = {buffer: number for number, buffer in enumerate(inputs)}
        self.count = len(self.places)
        self.library = library
        self.outputs: dict[Buffer, int] = {}
        self.work: list[Work] = []

    def allocate(self, room: Room) -> None:
        """Adds an array for a buffer, and its axes in the buffer's order if these differ."""
        if room.buffer in self.places:
            return
        shape, dtype, device = room.shape, STORED[room.buffer.dtype], self.library.device

        def allocated(arrays: list[torch.Tensor]) -> None:
            arrays.append(torch.empty(shape, dtype=dtype, device=device))

        self.places[room.buffer] = self.add(allocated)
        if room.is_output:
            self.outputs[room.buffer] = self.places[room.buffer]
        if room.turned is not None:
            order = room.turned
            self.places[room.buffer] = self.add(
                lambda arrays: arrays.append(arrays[-1].permute(order))
            )

    def add(self, work: Work) -> int:
        """Adds work that gives an array, and returns the array's number."""
        self.work.append(work)
        self.count += 1
        return self.count - 1

    def clear(self, buffer: Buffer) -> None:
        at = self.places[buffer]

        def cleared(arrays: list[torch.Tensor]) -> None:
            arrays[at].zero_()

        self.work.append(cleared)

    def launch(self, function: Callable[[Sequence[Any]], None], buffers: Sequence[Buffer]) -> None:
        places, handle = [self.places[b] for b in buffers], self.library.handle

        def launched(arrays: list[torch.Tensor]) -> None:
            function([arrays[at] for at in places])

        def launched_on_addresses(arrays: list[torch.Tensor]) -> None:
            function([handle(arrays[at]) for at in places])

        self.work.append(launched_on_addresses if self.library.handles else launched)
