"""Assembles the actions of a plan's call, from the shapes and strides of its inputs alone.

Views that only kernels read are offsets, and are not run. Values that are the same in every call
are computed once. Values that depend on sizes *vary*: they are tensors in every call, and kernels
get their strides. tape.py makes a tape of the actions.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import getitem
from typing import Any

import torch

from blockbuster_fusion.array.axes import Length, Size
from blockbuster_fusion.torch.plan import calls_from_c
from blockbuster_fusion.torch.plan.call_sizes import CallSizes
from blockbuster_fusion.torch.plan.dense import view_of
from blockbuster_fusion.torch.plan.kernel_buffers import KernelBuffers
from blockbuster_fusion.torch.plan.layouts import UNKNOWN, Layouts, evaluated, layout_of
from blockbuster_fusion.torch.plan.named_calls import picked_results
from blockbuster_fusion.torch.plan.operator_properties import (
    SIZES,
    depends_on_data,
    is_pure,
    picks_by_mask,
)
from blockbuster_fusion.torch.plan.placement import Base, Launched, Placement, Ran, Untaped
from blockbuster_fusion.torch.plan.sized import SizedLength, fixed_shape
from blockbuster_fusion.torch.plan.steps import (
    AllocateStep,
    BoundOperator,
    CopyStep,
    KernelStep,
    OperatorStep,
    Piece,
    PlanStep,
    Slot,
    as_tensor,
)
from blockbuster_fusion.torch.plan.views import ViewStep

aten = torch.ops.aten

MOST_KEPT = 1 << 16
"""The size in bytes of the largest tensor that is kept because it is the same in every call."""


class Assembly:
    """The actions of a call, for inputs that lie in memory as given ones do."""

    def __init__(
        self,
        steps: Sequence[PlanStep],
        outputs: Sequence[Any],
        given: Sequence[Any],
        room: int,
        length: Length,
        varying: Mapping[int, tuple[Size, ...] | None],
        seen: Mapping[int, tuple[int, ...]],
    ) -> None:
        """`given` are the inputs, of which those in `varying` have other sizes in other calls.

        If none varies, `length` evaluates all sizes. `room` is the number of other values. `seen`
        are strides of results that were met in calls. Untaped if data decides what a call does.
        """
        self.seen = seen
        self.layouts = Layouts(given, room)
        self.is_fixed = not varying
        self.outputs, self.device = outputs, device_of(steps)
        self.exposed = _exposed(steps, outputs)
        self.placements: dict[int, Placement] = {}
        self.views: dict[int, OperatorStep] = {}
        """Views that only kernels have read."""
        self.kept: dict[int, Any] = {}
        """Values that are the same in every call."""
        self.picked = picked_results(steps, outputs)
        self.elements: dict[tuple[Any, ...], Base] = {}
        """Single results of operators that C calls, by what takes them from several."""
        self.varying = {*varying}
        """The slots whose placements or numbers differ in other calls."""
        self.sizes = CallSizes(length, not varying, self.layouts.values, self.varying_slot)
        self.actions: list[Launched | Ran] = []
        for slot, x in enumerate(given):
            if isinstance(x, torch.Tensor):
                self.note_placement(slot)
            elif isinstance(x, int) and slot not in varying:
                self.kept[slot] = x
        self.given = tuple(self.placements)
        self.shapes = {
            slot: shape
            for slot, shape in varying.items()
            if shape is not None and slot in self.placements and given[slot].is_contiguous()
        }
        """The shapes of inputs that are dense, in calls like this one."""
        for step in steps:
            self.add(step)
        self.results = [x.number for x in outputs if isinstance(x, Slot)]
        """The slots of the results, which are tensors."""
        for slot in self.results:
            self.materialize(slot)

    def add(self, step: PlanStep) -> None:
        match step:
            case KernelStep():
                self.kernel(step)
            case OperatorStep():
                self.operator(step.sized(self.sizes.length))
            case AllocateStep():
                self.allocate(step)
            case CopyStep():
                self.copy(step)

    # ---------------------------------------------------------------- placements

    def note_placement(self, slot: int, base: Base | None = None) -> None:
        """Notes the placement of the tensor in a slot; without a base, it is one."""
        x = self.layouts.tensor(slot)
        if x is None or x.is_conj() or x.is_neg():  # its numbers are not those in memory
            return
        if self.layouts.devices.get(slot) == self.device:
            start = int(x.storage_offset()) * x.dtype.itemsize
            base = base or Base(slot, start=start)
            offset = start - base.start if x.numel() else 0
            self.placements[slot] = Placement(
                base, offset, tuple(x.shape), tuple(x.stride()), x.dtype
            )

    def place(self, slot: int) -> tuple[Base, int]:
        if slot not in self.placements:
            raise Untaped("a kernel takes what is no plain tensor")
        return self.placements[slot].base, self.placements[slot].offset

    def varying_slot(self, value: Any = None) -> int:
        """A slot whose value differs in other calls; the value is that of one call."""
        slot = self.layouts.new_slot(value)
        self.varying.add(slot)
        return slot

    # ---------------------------------------------------------------- what depends on sizes

    def do(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        output: int | None = None,
        **options: Any,
    ) -> int:
        """Adds a function whose result is a tensor that varies, and returns its slot."""
        slot = self.layouts.new_slot() if output is None else output
        step = OperatorStep(function.__name__, function, arguments, options, slot)
        self.layouts.evaluate(step)
        self.run(BoundOperator(step), tuple(step.reads), slot)
        self.varying.add(slot)
        self.placements[slot] = Placement(Base(slot), 0, (), (), torch.uint8)
        return slot

    def dense(
        self, slot: int, base: Base, shape: Sequence[SizedLength], order: tuple[int, ...] = ()
    ) -> None:
        """Notes that the tensor in a slot is all of a base, in a shape that depends on sizes."""
        self.varying.add(slot)
        self.placements[slot] = Placement(base, 0, tuple(shape), None, base.dtype, order)

    def is_dense(self, slot: int) -> bool:
        """True if the tensor in a slot is all of a base whose shape depends on sizes."""
        shape = self.shapes.pop(slot, None)
        if shape is not None:
            base = self.placements[slot].base
            base.shape, base.dtype = (
                tuple(map(self.sizes.length, shape)),
                self.placements[slot].dtype,
            )
            if base.is_sized:
                self.dense(slot, base, base.shape)
        return slot in self.placements and self.placements[slot].stride is None

    def allocate(self, step: AllocateStep) -> None:
        shape = [self.sizes.length(size) for size in step.shape]
        strides = None if step.strides is None else [*map(self.sizes.length, step.strides)]
        kind: dict[str, Any] = {"dtype": step.dtype, "device": step.device}
        made = (torch.empty, shape) if strides is None else (torch.empty_strided, shape, strides)
        if not self.sizes.knows(step.lengths):
            self.do(*made, output=step.slot, **kind)
            return
        room = self.layouts.evaluate(OperatorStep("empty", made[0], made[1:], kind, step.slot))
        span = room.untyped_storage().nbytes() // step.dtype.itemsize
        self.note_placement(step.slot, Base(None, (span,), step.dtype))

    def copy(self, step: CopyStep) -> None:
        """Adds the copy of a piece to its place."""
        slot = self.piece(step.piece)
        if not calls_from_c.add_write(self, aten.copy_.default, (Slot(slot), Slot(step.source))):
            self.do(torch.Tensor.copy_, Slot(slot), Slot(step.source))

    def piece(self, piece: Piece, output: int | None = None) -> int:
        """The slot of a piece of an array."""
        before = [self.sizes.length(size) for size in piece.before]
        known = [n for n in before if isinstance(n, int)]
        start = sum(known) if len(known) == len(before) else self.sizes.number(sum, before)
        cut = Slot(piece.slot), piece.dim, start, self.sizes.length(piece.length)
        is_placed = piece.slot in self.placements and piece.slot not in self.varying
        if not is_placed or not self.sizes.knows(piece.lengths):
            return self.do(torch.narrow, *cut, output=output)
        slot = self.layouts.new_slot() if output is None else output
        self.layouts.evaluate(OperatorStep("narrow", torch.narrow, cut, {}, slot))
        self.note_placement(slot, self.place(piece.slot)[0])
        return slot

    # ---------------------------------------------------------------- kernels

    def kernel(self, step: KernelStep) -> None:
        given = [self.converted(slot, dtype) for slot, _, dtype in step.inputs]
        buffers = KernelBuffers(self, step, given)
        merges = [
            merge for number, _ in enumerate(step.outputs) for merge in buffers.stored(number)
        ]
        buffers.allocate_rest()
        for launch in buffers.launches:
            cleared = buffers.cleared(launch)
            if cleared is None:
                self.actions.append(buffers.launched(launch))
            else:
                self.do(torch.Tensor.zero_, Slot(cleared))
        for merge in merges:
            self.operator(merge)

    def converted(self, slot: int, dtype: torch.dtype | None) -> int:
        """The slot of an input, as a tensor of the dtype that a kernel wants."""
        if dtype is None:
            return slot
        arguments, made = (Slot(slot), dtype, self.device), self.layouts.new_slot()
        self.operator(OperatorStep("convert", as_tensor, arguments, {}, made))
        return made

    # ---------------------------------------------------------------- operators

    def operator(self, step: OperatorStep) -> None:
        reads = tuple(step.reads)
        if depends_on_data(step.function) or picks_by_mask(step, self.layouts.values):
            raise Untaped(f"data decides how much {step.name} gives")
        made = self.layouts.evaluate(step, self.seen.get(step.output))
        is_tensor = isinstance(made, torch.Tensor)
        if is_tensor and (made.is_neg() or made.is_conj()):
            raise Untaped(f"what {step.name} gives is negated where it is read")
        if step.function is getitem and isinstance(step.arguments[1], int):
            element = self.elements.get(step.arguments)
            if element is not None:
                self.note_result(step.output, element)
                return
        is_varied = not self.varying.isdisjoint(reads)
        if is_pure(step.function) and not is_varied and made is not UNKNOWN:
            is_same = step.function in SIZES or all(slot in self.kept for slot in reads)
            if is_same and (not is_tensor or self.is_kept(step.output, made)):
                is_size = step.function in SIZES
                value = made if is_size else evaluated(step.function, step, self.kept.__getitem__)
                self.kept[step.output] = value
                if is_tensor and not is_size:  # its strides may be others than PyTorch tells
                    self.layouts.values[step.output] = layout_of(value)
                self.note_placement(step.output)
                return
            source = self.source(made, reads) if is_tensor else None
            if source is not None:
                self.views[step.output] = step
                self.note_placement(step.output, source)
                return
        if is_tensor and self.viewed(step):
            return
        if calls_from_c.add(self, step, made, is_varied=is_varied):
            return
        is_varied = is_varied and not (is_tensor and made.dim() == 0)
        is_known = is_tensor and not is_varied
        self.run(BoundOperator(step, made.stride() if is_known else None), reads, step.output)
        if is_varied:
            self.varying.add(step.output)
        self.note_placement(step.output)

    def note_result(self, slot: int, base: Base) -> None:
        """Notes the placement of a result of a call from C."""
        base.start = self.layouts.values[slot].storage_offset() * self.layouts.values[slot].itemsize
        self.note_placement(slot, base)

    def viewed(self, step: OperatorStep) -> bool:
        """Notes another shape of a dense array, if a step is no more than that."""
        source = step.arguments[0] if step.arguments else None
        if not isinstance(source, Slot) or not self.is_dense(source.number):
            return False
        sizes = {slot: size for size, slot in self.sizes.slots.items()}
        found = view_of(step, self.placements[source.number], sizes)
        if found is not None:
            self.dense(step.output, self.placements[source.number].base, *found)
            self.views[step.output] = step
        return found is not None

    def is_kept(self, slot: int, x: torch.Tensor) -> bool:
        return slot not in self.exposed and x.nbytes <= MOST_KEPT

    def source(self, x: torch.Tensor, reads: Iterable[int]) -> Base | None:
        """The base of the operand that the result of an operator is a view of, or None."""
        storage = x.untyped_storage()._cdata
        for slot in reads:
            operand = self.layouts.tensor(slot)
            is_placed = operand is not None and slot in self.placements
            if operand is not None and is_placed and operand.untyped_storage()._cdata == storage:
                return self.placements[slot].base
        return None

    def run(self, step: Callable[[list[Any]], None], reads: tuple[int, ...], *makes: int) -> None:
        for slot in reads:
            self.materialize(slot)
        self.actions.append(Ran(step, reads, makes))

    def materialize(self, slot: int) -> None:
        """Makes sure that there is a tensor in a slot: views are run when they are read."""
        wanted = [slot]
        for at in wanted:
            if at in self.views and not self.is_allocated(at) and self.root(at) is None:
                wanted.extend(self.views[at].reads)
        for at in reversed(wanted):
            base = self.placements[at].base if at in self.placements else None
            if base is not None and base.slot is not None and base.is_called:
                base.shown[base.slot] = None
            if self.is_allocated(at):
                self.placements[at].base.shown[at] = None
            elif at in self.views:
                step, root = self.views.pop(at), self.root(at)
                if root is None:
                    self.actions.append(Ran(BoundOperator(step), tuple(step.reads), (at,)))
                else:
                    self.actions.append(Ran(root, (root.root,), (at,)))

    def root(self, slot: int) -> ViewStep | None:
        """The view of a tensor in another slot that a slot holds, if it has the same dtype."""
        found = self.placements.get(slot)
        at = None if found is None else found.base.slot
        if found is None or at is None or at == slot or at not in self.placements:
            return None
        if self.placements[at].dtype != found.dtype or at in self.varying:
            return None
        if found.stride is None:
            return None
        shape = fixed_shape(found.shape)
        return ViewStep(at, shape, found.stride, found.offset // found.dtype.itemsize, slot)

    def is_allocated(self, slot: int) -> bool:
        """True if the tape allocates it, so that it is a tensor without running anything."""
        found = self.placements.get(slot)
        return found is not None and found.base.slot is None and found.base.dtype is found.dtype


def device_of(steps: Sequence[PlanStep]) -> torch.device:
    """The device of a plan's kernels."""
    found = (step.device for step in steps if isinstance(step, KernelStep))
    return next(found, torch.device("cpu"))


def _exposed(steps: Sequence[PlanStep], outputs: Sequence[Any]) -> set[int]:
    """The slots whose tensors may leave the call or be written to."""
    found = {x.number for x in outputs if isinstance(x, Slot)}
    for step in reversed(steps):
        if isinstance(step, KernelStep):
            found.update(step.written)
        if not isinstance(step, OperatorStep):
            continue
        if step.output in found or not is_pure(step.function):
            found.update(step.reads)
    return found
