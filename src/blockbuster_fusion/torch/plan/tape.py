"""Runs an assembled call, for inputs with the shapes and strides that it was assembled for.

Inputs whose sizes vary may have any placement: what depends on them is computed in each call.

All kernels up to the next of PyTorch's own operators are one call, and arrays that only kernels see
share one arena. Results of a call are tensors of their own, and no memory that a call writes to is
kept. So several threads may run one tape.
"""

import ctypes
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from blockbuster_fusion.nest.shapes import contiguous
from blockbuster_fusion.runtime.triton.library_calls import LibraryCall, Release, tensor_of
from blockbuster_fusion.torch.plan.assembling import Assembly
from blockbuster_fusion.torch.plan.c_tape import ALIGNED, Address, Tape, packed
from blockbuster_fusion.torch.plan.gpu_tape import GpuTape
from blockbuster_fusion.torch.plan.placement import (
    Base,
    Launched,
    Placement,
    Ran,
    has_driver,
)
from blockbuster_fusion.torch.plan.regions import Regions
from blockbuster_fusion.torch.plan.sized import SizedLength, fixed_shape
from blockbuster_fusion.torch.plan.steps import BoundOperator, Slot, named_range
from blockbuster_fusion.torch.plan.tape_text import ARENA, calling
from blockbuster_fusion.torch.plan.views import ViewStep

MOST_ARENA, MOST_ON_GPU = 4 << 20, 1 << 30
"""The size of the longest arena in bytes. Kernels over more take so long that an arena gains
nothing, and arrays that are freed one by one take less memory."""


def most_arena(device: torch.device) -> int:
    """The bytes of the longest arena on a device."""
    return MOST_ON_GPU if has_driver(device) else MOST_ARENA


_View = tuple[Any, ...]
"""Shape, strides and offset; if the shape depends on sizes, that and the order in memory."""


@dataclass(frozen=True, slots=True)
class Fresh:
    """A tensor to allocate, and the slots that it, or a view of it, is put into."""

    base: int
    shape: tuple[SizedLength, ...]
    dtype: torch.dtype
    shown: tuple[tuple[int, _View | None], ...]
    is_sized: bool

    def made(self, values: list[Any], empty: Callable[..., torch.Tensor]) -> torch.Tensor:
        """The tensor of a shape that depends on sizes, which is put into its slots."""
        shape = _lengths(self.shape, values)
        x = empty(tuple(shape), contiguous(shape), self.dtype)
        for slot, view in self.shown:
            values[slot] = x if view is None else _turned(x, view[0], view[1], values)
        return x


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive kernels, or a step that PyTorch runs."""

    fresh: tuple[Fresh, ...]
    tape: Tape | GpuTape | None
    step: Callable[[list[Any]], None] | None
    run: Callable[[list[Any]], None] | None
    """The step as a plain function."""
    made: tuple[tuple[int, int], ...]
    """The slots of the step's results, and the bases that they are."""
    dead: tuple[int, ...]
    """The slots that are not read later."""
    taken: tuple[tuple[int, int], ...] = ()
    """The slots of results of calls from C, and the numbers of their handles."""
    names: tuple[str, ...] = ()
    """The names of the kernels, for a profiler."""

    def profile(self, addresses: Any, values: list[Any]) -> None:
        """Runs the kernels one by one, in ranges with their names."""
        assert self.tape is not None
        for name, launch in zip(self.names, self.tape.apart(values), strict=True):
            with named_range(name):
                launch(addresses)


class TensorTape:
    """A plan for inputs with given shapes and strides.

    Called with them and with what evaluates the sizes of a call, it gives the results. These are
    None if arrays are empty, for which other kernels run, or if the arena would be large.
    """

    def __init__(
        self, assembly: Assembly, inputs: int, fits: Callable[[Sequence[Any]], bool]
    ) -> None:
        """`inputs` is the number of inputs, which are in the first slots; `fits` tests them."""
        made = _Parts(assembly)
        self.parts, self.arena, self.regions = made.parts, made.arena, made.regions
        self.handles = [*made.handles.values()]
        self.addresses, self.given = made.addresses, made.given
        self.device, self.most = assembly.device, most_arena(assembly.device)
        self.template = [assembly.kept.get(slot) for slot in range(len(assembly.layouts.values))]
        self.lengths = tuple(assembly.sizes.slots.items())
        self.derived = tuple(assembly.sizes.derived)
        self.outputs = tuple(assembly.outputs)
        self.seen, self.met = assembly.seen, made.met
        """The strides of results that were not as PyTorch tells: known before, and met in calls."""
        self.inputs, self.fits = inputs, fits
        self.call = calling(self)

    def release(self, addresses: Any) -> None:
        """Drops the results of calls from C that are left after a failure."""
        for handle in self.handles:
            if addresses[handle]:
                tensor_of(addresses[handle])


class _Parts:
    """The parts of a tape in the making."""

    def __init__(self, assembly: Assembly) -> None:
        self.placements = assembly.placements
        self.actions, self.device = assembly.actions, assembly.device
        steps = [action.step for action in self.actions if isinstance(action, Ran)]
        self.met: dict[int, tuple[int, ...]] = {}
        self.roots = {step.root for step in steps if isinstance(step, ViewStep)}
        self.spans: dict[Base | int, tuple[int, int]] = {}
        """The first and the last action that use each base or slot."""
        for at, action in enumerate(self.actions):
            for thing in self.used(action):
                self.spans[thing] = (self.spans.get(thing, (at, at))[0], at)
        own = [base for base in self.spans if isinstance(base, Base) and base.slot is None]
        sized = [base for base in own if base.is_sized and not base.shown]
        hidden = [base for base in own if not base.is_sized and not base.shown]
        offsets, end = packed([(base.bytes, *self.spans[base]) for base in hidden])
        self.is_large = end > most_arena(self.device)
        if self.is_large:
            for large in hidden:
                self.show(large, assembly.layouts.new_slot())
            hidden, offsets, end = [], [], 0
        self.arena = -(-end // ALIGNED) * ALIGNED
        shown = dict.fromkeys(x.base for x in self.placements.values() if x.base.shown)
        self.address = {base: Address(ARENA, at) for base, at in zip(hidden, offsets, strict=True)}
        launched = [x for a in self.actions if isinstance(a, Launched) for x in self.used(a)]
        tensors = [x for x in launched if isinstance(x, Base) and x.slot is not None]
        others = dict.fromkeys([*shown, *tensors])
        self.address |= {base: Address(n, 0) for n, base in enumerate(others, start=ARENA + 1)}
        first = len(others) + 1
        self.regions = Regions([(base, *self.spans[base]) for base in sized], first)
        self.address |= {base: Address(self.regions.numbers[base], 0) for base in sized}
        called = [base for base in self.address if base.is_called]
        after = first + len(self.regions.bytes)
        self.handles = {base: n for n, base in enumerate(called, start=after)}
        """The numbers of the handles of results of calls from C."""
        self.addresses = (ctypes.c_void_p * (after + len(called)))()
        for slot, x in assembly.kept.items():  # these never change
            for _, base in self.held_at(slot):
                self.addresses[base] = x.data_ptr()
        self.given = [pair for slot in assembly.given for pair in self.held_at(slot)]
        stay = {*assembly.results, *assembly.given, *assembly.kept}
        self.parts = [*self.assembled([*shown], stay)]

    def show(self, base: Base, slot: int) -> None:
        """Makes a base a tensor of its own, in a slot."""
        shape = fixed_shape(base.shape)
        self.placements[slot] = Placement(base, 0, shape, contiguous(shape), base.dtype)
        base.shown[slot] = None

    def used(self, action: Launched | Ran) -> Iterator[Base | int]:
        if isinstance(action, Launched):
            return iter((*(base for base, _ in action.places), *action.makes))
        return (self.thing(slot) for slot in (*action.reads, *action.makes))

    def thing(self, slot: int) -> Base | int:
        """The base of the tensor in a slot; or the slot, if it holds no plain tensor."""
        return self.placements[slot].base if slot in self.placements else slot

    def held_at(self, slot: int) -> list[tuple[int, int]]:
        """The slot with the number of the base that its tensor is, if a launch uses that."""
        base = self.thing(slot)
        is_own = isinstance(base, Base) and base.slot == slot and base in self.address
        return [(slot, self.address[base].base)] if isinstance(base, Base) and is_own else []

    def assembled(self, shown: Sequence[Base], stay: Collection[int]) -> Iterator[Part]:
        """The parts; the slots in `stay` are needed to the end."""
        held = [slot for base in shown for slot in base.shown]
        held += [
            slot for action in self.actions if isinstance(action, Ran) for slot in action.makes
        ]
        begins = {base: self.spans.get(base, (0, 0))[0] for base in shown}
        ends = {slot: self.spans[self.thing(slot)][1] for slot in held if slot not in stay}
        start = 0
        for row in [[x] for x in self.actions] if self.is_large else _rows(self.actions):
            now = range(start, start + len(row))
            start = now.stop
            new = [base for base, at in begins.items() if at in now]
            fresh = tuple(self.fresh(base) for base in new if not base.is_called)
            dead = tuple(slot for slot, at in ends.items() if at in now)
            action = row[0]
            if isinstance(action, Ran):
                made = tuple(pair for slot in action.makes for pair in self.held_at(slot))
                yield Part(fresh, None, action.step, self.runner(action), made, dead)
            else:
                launches = [*self.launches(row, now.start)]
                names = tuple(f"blockbuster::{x.name}" for x in launches)
                tape = self.tape([(x.launch, self.located(x)) for x in launches])
                taken = tuple(
                    (slot, self.handles[b]) for b in new for slot in b.shown if b.is_called
                )
                yield Part(fresh, tape, None, None, (), dead, taken, names)

    def launches(self, row: Sequence[Launched | Ran], first: int) -> Iterator[Launched]:
        """The launches of a row; after each, the results that it was the last to read end."""
        for at, action in enumerate(row, start=first):
            assert isinstance(action, Launched)
            made = {
                base.slot: (self.address[base].base, self.handles[base]) for base in action.makes
            }
            if isinstance(action.launch, LibraryCall):
                yield replace(action, launch=action.launch.placed(made.__getitem__))
            else:
                yield action
            ended = [n for b, n in self.handles.items() if self.spans[b][1] == at and not b.shown]
            if ended:
                release = Release(tuple(ended))
                yield Launched(release.name, release, ())

    def runner(self, action: Ran) -> Callable[[list[Any]], None]:
        """A step as a plain function; its result is guarded if kernels or views rely on it."""
        step = action.step
        if not isinstance(step, BoundOperator):
            return step
        is_read = step.output in self.roots or bool(self.held_at(step.output))
        is_guarded = is_read and step.strides is not None
        return step.guarded(self.met) if is_guarded else step.run

    def tape(self, launches: Sequence[tuple[Any, list[Address]]]) -> Tape | GpuTape:
        """Consecutive launches as one call."""
        if has_driver(self.device):
            return GpuTape(launches, self.device, self.met)
        return Tape(launches)

    def located(self, action: Launched) -> list[Address]:
        found = [(self.address[base], offset) for base, offset in action.places]
        return [Address(place.base, place.offset + offset) for place, offset in found]

    def fresh(self, base: Base) -> Fresh:
        """The tensor for a base, in the shape of a tensor that is all of it, if there is one."""
        shown = {slot: self.placements[slot] for slot in base.shown}
        if base.is_sized:
            plain = [x.shape for x in shown.values() if not x.order]
            whole = next(iter(plain), base.shape)
            sized = tuple((slot, _dense_view(x, whole)) for slot, x in shown.items())
            return Fresh(self.address[base].base, whole, base.dtype, sized, True)
        shape = next((x.shape for x in shown.values() if x.is_whole), base.shape)
        views = tuple((slot, _view(x, shape)) for slot, x in shown.items())
        return Fresh(self.address[base].base, shape, base.dtype, views, False)


def _view(x: Placement, shape: tuple[SizedLength, ...]) -> _View | None:
    if x.is_whole and x.shape == shape:
        return None
    assert x.stride is not None
    return fixed_shape(x.shape), x.stride, x.offset // x.dtype.itemsize


def _dense_view(x: Placement, whole: tuple[SizedLength, ...]) -> _View | None:
    return None if x.shape == whole and not x.order else (x.shape, x.order)


def _turned(
    x: torch.Tensor, shape: Sequence[SizedLength], order: Sequence[int], values: Sequence[Any]
) -> torch.Tensor:
    """All of a dense array in another shape, with its dimensions in some order in memory."""
    lengths = _lengths(shape, values)
    if not order:
        return x.view(lengths)
    found = x.view([lengths[at] for at in order])
    return found.permute([order.index(at) for at in range(len(order))])


def _lengths(shape: Sequence[Any], values: Sequence[Any]) -> list[int]:
    """A shape in a call."""
    return [values[n.number] if isinstance(n, Slot) else n for n in shape]


def _rows(actions: Sequence[Launched | Ran]) -> list[list[Launched | Ran]]:
    """Actions in groups: consecutive launches together, and each of the others alone."""
    rows: list[list[Launched | Ran]] = []
    for action in actions:
        if rows and isinstance(action, Launched) and isinstance(rows[-1][0], Launched):
            rows[-1].append(action)
        else:
            rows.append([action])
    return rows
