"""Records one call of a plan: the kernels that ran, and the placement of their arrays.

Views that only kernels read are offsets and are not run again. Values that are the same in every
call are kept. Values that depend on sizes *vary*: they are tensors in every call, and kernels get
their strides. tape.py makes a tape of a recording.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from blockbuster_fusion.array.axes import Length, Size
from blockbuster_fusion.torch.plan.call_sizes import CallSizes
from blockbuster_fusion.torch.plan.dense import view_of
from blockbuster_fusion.torch.plan.kernel_buffers import KernelBuffers
from blockbuster_fusion.torch.plan.operator_properties import (
    SIZES,
    depends_on_data,
    is_plain,
    is_pure,
    picks_by_mask,
)
from blockbuster_fusion.torch.plan.placement import (
    ALIGNED,
    Base,
    Launched,
    Placement,
    Ran,
    Untaped,
)
from blockbuster_fusion.torch.plan.products import product_of
from blockbuster_fusion.torch.plan.sized import SizedLength, fixed_shape
from blockbuster_fusion.torch.plan.steps import (
    AllocateStep,
    BoundAllocate,
    BoundCopy,
    BoundKernel,
    BoundOperator,
    BoundStep,
    KernelStep,
    OperatorStep,
    Piece,
    PlanStep,
    Slot,
    as_tensor,
)
from blockbuster_fusion.torch.plan.views import View, ViewChains, ViewStep

MOST_KEPT = 1 << 16
"""The size in bytes of the largest tensor that is kept because it is the same in every call."""


class Recording:
    """The actions of one call of a plan, added step by step."""

    def __init__(
        self,
        steps: Sequence[PlanStep],
        outputs: Sequence[Any],
        given: Sequence[Any],
        room: int,
        length: Length,
        varying: Mapping[int, tuple[Size, ...] | None],
    ) -> None:
        """`given` are the inputs, of which those in `varying` have other sizes in other calls.

        If none varies, `length` evaluates all sizes. `room` is the number of other values.
        """
        self.chains = ViewChains(given)
        self.is_fixed = not varying
        self.outputs, self.slots = outputs, len(given) + room
        self.device = device_of(steps)
        self.refusal: Untaped | None = None
        self.exposed = _exposed(steps, outputs)
        self.placements: dict[int, Placement] = {}
        self.views: dict[int, OperatorStep] = {}
        """Views that only kernels have read."""
        self.kept: dict[int, Any] = {}
        """Values that are the same in every call."""
        self.varying = {*varying}
        """The slots whose placements or numbers differ in other calls."""
        self.sizes = CallSizes(length, not varying, self.varying_slot)
        tensors = [x for x in given if isinstance(x, torch.Tensor) and is_plain(x)]
        self.storages = {x.untyped_storage()._cdata for x in tensors}
        self.anywhere: set[int] = set()
        """The slots of results that are parts of other memory."""
        self.actions: list[Launched | Ran] = []
        for slot, x in enumerate(given):
            if isinstance(x, torch.Tensor):
                self.note_placement(slot, x)
            elif isinstance(x, int) and slot not in varying:
                self.kept[slot] = x
        self.given = tuple(self.placements)
        self.shapes = {
            slot: shape
            for slot, shape in varying.items()
            if shape is not None and slot in self.placements and given[slot].is_contiguous()
        }
        """The shapes of inputs that are dense, in calls like this one."""

    def note(self, bound: BoundStep, values: list[Any]) -> None:
        """Adds a step that has just been run."""
        self.chains.note(bound, values)
        if self.refusal is None:
            try:
                self.add(bound, values)
            except Untaped as refusal:
                self.refusal = refusal

    def add(self, bound: BoundStep, values: list[Any]) -> None:
        match bound:
            case BoundKernel():
                self.kernel(bound, values)
            case BoundOperator():
                self.operator(bound.step.sized(self.sizes.length), values[bound.output], values)
            case BoundAllocate() if not self.sizes.knows(bound.step.lengths):
                self.allocate(bound.step)
            case BoundAllocate():
                room = values[bound.slot]
                self.note_placement(
                    bound.slot, room, Base(room.data_ptr(), None, (bound.span,), bound.dtype)
                )
            case BoundCopy():
                place = self.narrowed(bound.step.piece)
                self.do(torch.Tensor.copy_, Slot(place), Slot(bound.source))

    def finish(self) -> list[int]:
        """The slots of the results, which are tensors; or Untaped."""
        if self.refusal is not None:
            raise self.refusal
        results = [x.number for x in self.outputs if isinstance(x, Slot)]
        for slot in results:
            self.materialize(slot)
        return results

    # ---------------------------------------------------------------- placements

    def note_placement(self, slot: int, x: torch.Tensor, base: Base | None = None) -> None:
        """Notes the placement of a tensor; without a base, it is one."""
        if is_plain(x) and x.device == self.device:
            base = base or Base(x.data_ptr(), slot)
            offset = x.data_ptr() - base.address if x.numel() else 0
            self.placements[slot] = Placement(
                base, offset, tuple(x.shape), tuple(x.stride()), x.dtype
            )

    def place(self, slot: int) -> tuple[Base, int]:
        if slot not in self.placements:
            raise Untaped("a kernel takes what is no plain tensor")
        return self.placements[slot].base, self.placements[slot].offset

    def is_aligned(self, base: Base, offset: int) -> bool:
        """True if an address is a multiple of 16 bytes, in calls like this one.

        Views that PyTorch makes may begin anywhere in memory of an input.
        """
        is_own = base.slot is None or base.slot not in self.anywhere
        return is_own and (base.address * (base.slot is not None) + offset) % ALIGNED == 0

    def new_slot(self) -> int:
        self.slots += 1
        return self.slots - 1

    def varying_slot(self) -> int:
        """A slot whose value differs in other calls."""
        slot = self.new_slot()
        self.varying.add(slot)
        return slot

    # ---------------------------------------------------------------- what depends on sizes

    def varies(self, slot: int) -> None:
        """Notes that the tensor in a slot has another placement in other calls."""
        self.varying.add(slot)
        self.placements[slot] = Placement(Base(0, slot), 0, (), (), torch.uint8)

    def do(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        output: int | None = None,
        **options: Any,
    ) -> int:
        """Adds a function whose result is a tensor that varies, and returns its slot."""
        slot = self.new_slot() if output is None else output
        step = OperatorStep(function.__name__, function, arguments, options, slot)
        self.run(BoundOperator(step), tuple(step.reads), slot)
        self.varies(slot)
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
        kind: dict[str, Any] = {"dtype": step.dtype, "device": step.device}
        if step.strides is None:
            self.do(torch.empty, shape, output=step.slot, **kind)
        else:
            strides = [self.sizes.length(size) for size in step.strides]
            self.do(torch.empty_strided, shape, strides, output=step.slot, **kind)

    def narrowed(self, piece: Piece, output: int | None = None) -> int:
        """The slot of a piece of an array."""
        before = [self.sizes.length(size) for size in piece.before]
        known = [n for n in before if isinstance(n, int)]
        start = sum(known) if len(known) == len(before) else self.sizes.number(sum, before)
        where = start, self.sizes.length(piece.length)
        return self.do(torch.narrow, Slot(piece.slot), piece.dim, *where, output=output)

    # ---------------------------------------------------------------- kernels

    def kernel(self, bound: BoundKernel, values: list[Any]) -> None:
        program = bound.program(values)
        if program is None:
            raise Untaped("its kernels are not compiled")
        buffers = KernelBuffers(self, bound.step, program)
        for buffer, (given, layout, dtype) in zip(
            program.owner.nest.inputs, bound.step.inputs, strict=True
        ):
            buffers.read(buffer, self.converted(given, dtype, values), layout)
        merges = [
            merge
            for number, (slot, _, _) in enumerate(bound.step.outputs)
            for merge in buffers.stored(number, values[slot])
        ]
        buffers.allocate_rest()
        for launch in buffers.launches:
            cleared = buffers.cleared(launch)
            if cleared is None:
                self.actions.append(buffers.launched(launch))
            else:
                self.do(torch.Tensor.zero_, Slot(cleared))
        for step in merges:
            self.operator(step, values[step.output], values)

    def converted(self, slot: int, dtype: torch.dtype | None, values: list[Any]) -> int:
        """The slot of an input, as a tensor of the dtype that a kernel wants."""
        if dtype is None:
            return slot
        wanted = (dtype, self.device)
        step = OperatorStep("convert", as_tensor, (Slot(slot), *wanted), {}, self.new_slot())
        self.operator(step, as_tensor(values[slot], *wanted), values)
        return step.output

    # ---------------------------------------------------------------- operators

    def operator(self, step: OperatorStep, made: Any, values: list[Any]) -> None:
        reads = tuple(step.reads)
        if depends_on_data(step.function) or picks_by_mask(step, values):
            raise Untaped(f"data decides how much {step.name} gives")
        is_tensor = isinstance(made, torch.Tensor)
        if is_tensor and (made.is_neg() or made.is_conj()):
            raise Untaped(f"what {step.name} gives is negated where it is read")
        is_varied = not self.varying.isdisjoint(reads)
        if is_pure(step.function) and not is_varied:
            is_same = step.function in SIZES or all(slot in self.kept for slot in reads)
            if is_same and (not is_tensor or self.is_kept(step.output, made)):
                self.kept[step.output] = made
                if is_tensor:
                    self.note_placement(step.output, made)
                return
            source = self.source(made, reads, values) if is_tensor else None
            if source is not None:
                self.views[step.output] = step
                self.note_placement(step.output, made, source)
                return
        if is_tensor and (self.product(step, made) or self.viewed(step)):
            return
        self.run(BoundOperator(step), reads, step.output)
        if is_varied and not (is_tensor and made.dim() == 0):
            self.varying.add(step.output)
        if is_tensor:
            self.note_placement(step.output, made)
            if made.storage_offset() or made.untyped_storage()._cdata in self.storages:
                self.anywhere.add(step.output)

    def product(self, step: OperatorStep, made: torch.Tensor) -> bool:
        """Adds a product of matrices as a call from C, if it can be one."""
        found = product_of(step, made, self)
        if found is not None:
            call, shape, places = found
            base = Base(made.data_ptr(), None, shape, made.dtype)
            if base.is_sized:
                self.dense(step.output, base, shape)
            else:
                self.note_placement(step.output, made, base)
            self.actions.append(Launched(step.name, call, ((base, 0), *places)))
        return found is not None

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
        return slot not in self.exposed and is_plain(x) and x.nbytes <= MOST_KEPT

    def source(self, x: torch.Tensor, reads: Iterable[int], values: list[Any]) -> Base | None:
        """The base of the operand that the result of an operator is a view of, or None."""
        if not is_plain(x):
            return None
        storage = x.untyped_storage()._cdata
        for slot in reads:
            if slot in self.placements and values[slot].untyped_storage()._cdata == storage:
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
            if self.is_allocated(at):
                self.placements[at].base.shown[at] = None
            elif at in self.views:
                step, root = self.views.pop(at), self.root(at)
                if root is None:
                    self.actions.append(Ran(BoundOperator(step), tuple(step.reads), (at,)))
                else:
                    self.actions.append(Ran(ViewStep(root, at), (root.root,), (at,)))

    def root(self, slot: int) -> View | None:
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
        return View(at, shape, found.stride, found.offset // found.dtype.itemsize)

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
