"""Chains of views as one: what a call does with shapes alone is done once for all calls like it.

A captured graph has many views: a product of matrices comes with three, a head of attention with
five. Each call of one costs the host microseconds. In calls with inputs of one form, the result of
a chain always has the same shape, strides and offset, so one `as_strided` stands for the chain.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import profiler

from blockbuster_fusion.array.axes import Length
from blockbuster_fusion.torch.plan.operator_properties import (
    PLAIN,
    depends_on_data,
    is_pure,
    picks_by_mask,
)
from blockbuster_fusion.torch.plan.steps import (
    BoundAllocate,
    BoundCopy,
    BoundKernel,
    BoundOperator,
    BoundStep,
    Slot,
    merged,
    named_range,
    runner,
)
from blockbuster_fusion.torch.plan.straight import StraightProgram


@dataclass(frozen=True, slots=True)
class View:
    """A view of the tensor in a slot."""

    root: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    """The elements from the first of the root to the first of the view."""


class ViewStep:
    """Makes a view of the tensor in a slot."""

    def __init__(self, view: View, output: int) -> None:
        self.root, self.output = view.root, output
        self.shape, self.stride, self.offset = view.shape, view.stride, view.offset

    def __call__(self, values: list[Any]) -> None:
        x = values[self.root]
        offset = x.storage_offset() + self.offset
        values[self.output] = x.as_strided(self.shape, self.stride, offset)


class KernelCall:
    """The kernels of a part, for tensors that always have the same shapes and strides."""

    def __init__(self, bound: BoundKernel, program: StraightProgram) -> None:
        self.name, self.program = bound.name, program
        self.inputs = [(slot, shape) for slot, shape, _ in bound.inputs]
        self.outputs = bound.outputs

    def __call__(self, values: list[Any]) -> None:
        given = [
            values[slot] if shape is None else values[slot].view(shape)
            for slot, shape in self.inputs
        ]
        if profiler._is_profiler_enabled:
            with named_range(self.name):
                made = self.program(given)
        else:
            made = self.program(given)
        for (slot, how), x in zip(self.outputs, made, strict=True):
            values[slot] = x if how is None else merged(x, *how)


TapeStep = BoundStep | ViewStep | KernelCall


class ViewChains:
    """Notes the steps of one call, and which of their results are views of others."""

    def __init__(self, given: Sequence[Any]) -> None:
        self.steps: list[BoundStep] = []
        self.views: dict[int, View] = {}
        self.programs: dict[BoundKernel, StraightProgram] = {}
        self.is_regular = True
        """False if the shapes of results may differ in calls like this one."""
        self.offsets: dict[int, int] = {}
        for slot, x in enumerate(given):
            self.note_root(slot, x)

    def note_root(self, slot: int, x: Any) -> None:
        if _is_strided(x):
            self.offsets[slot] = x.storage_offset()

    def note(self, bound: BoundStep, values: list[Any]) -> None:
        """Adds a step that has just been run."""
        self.steps.append(bound)
        match bound:
            case BoundOperator():
                self.operator(bound, values)
            case BoundKernel():
                for slot, _, _ in bound.step.outputs:
                    self.note_root(slot, values[slot])
                program = bound.straight(values)
                if program is not None:
                    self.programs[bound] = program
            case BoundAllocate():
                self.note_root(bound.slot, values[bound.slot])
            case BoundCopy():
                pass

    def operator(self, bound: BoundOperator, values: list[Any]) -> None:
        """Notes whether the result of an operator is a view."""
        step, made = bound.step, values[bound.output]
        if depends_on_data(step.function) or picks_by_mask(step, values):
            self.is_regular = False
        view = self.view(bound, made, values) if is_pure(step.function) else None
        if view is None:
            self.note_root(bound.output, made)
        else:
            self.views[bound.output] = view

    def view(self, bound: BoundOperator, made: Any, values: list[Any]) -> View | None:
        """The view that the result of an operator is, if it is one."""
        if not _is_strided(made):
            return None
        storage = made.untyped_storage()._cdata
        for slot in bound.step.reads:
            x = values[slot]
            known = slot in self.offsets or slot in self.views
            if known and x.untyped_storage()._cdata == storage and x.dtype == made.dtype:
                root = self.views[slot].root if slot in self.views else slot
                offset = made.storage_offset() - self.offsets[root]
                return View(root, tuple(made.shape), tuple(made.stride()), offset)
        return None

    def composed(self, results: Collection[int]) -> list[tuple[TapeStep, list[int]]]:
        """The steps that are needed, each with the slots that it reads."""
        needed, made = {*results}, list[tuple[TapeStep, list[int]]]()
        for bound in reversed(self.steps):
            slot = bound.output if isinstance(bound, BoundOperator) else None
            view = None if slot is None else self.views.get(slot)
            if slot is None or view is None:
                reads = _reads(bound)
                made.append((self.called(bound), reads))
            elif slot in needed:
                reads = [view.root]
                made.append((ViewStep(view, slot), reads))
            else:
                continue
            needed.update(reads)
        return made[::-1]

    def called(self, bound: BoundStep) -> TapeStep:
        """A step as a tape calls it."""
        if isinstance(bound, BoundKernel) and bound in self.programs:
            return KernelCall(bound, self.programs[bound])
        return bound


class StepTape:
    """The steps of a plan for inputs of one form: called with them, it gives results."""

    def __init__(self, chains: ViewChains, outputs: Sequence[Any], slots: int) -> None:
        self.outputs, self.slots = tuple(outputs), slots
        results = {x.number for x in outputs if isinstance(x, Slot)}
        kept, dead = {*results}, list[tuple[int, ...]]()
        steps = chains.composed(results)
        for _, reads in reversed(steps):
            last = tuple(slot for slot in dict.fromkeys(reads) if slot not in kept)
            kept.update(last)
            dead.append(last)
        self.steps = [(step, last) for (step, _), last in zip(steps, dead[::-1], strict=True)]
        self.runs = [(runner(step), last) for step, last in self.steps]

    def __call__(self, given: Sequence[Any], length: Length) -> list[Any]:
        values = [*given, *[None] * (self.slots - len(given))]
        for run, dead in self.runs:
            run(values)
            for slot in dead:
                values[slot] = None
        return [values[x.number] if isinstance(x, Slot) else x for x in self.outputs]


def _reads(bound: BoundStep) -> list[int]:
    """The slots that a step reads; a piece is written into the array that it is a part of."""
    match bound:
        case BoundKernel():
            pieces = [piece.slot for _, _, piece in bound.step.outputs if piece is not None]
            return [*bound.step.reads, *pieces]
        case BoundCopy():
            return [*bound.step.reads, bound.step.piece.slot]
        case _:
            return [*bound.step.reads]


def _is_strided(x: Any) -> bool:
    """True for a plain tensor of strides, as it is in memory."""
    is_plain = isinstance(x, torch.Tensor) and type(x) in PLAIN and x.layout is torch.strided
    return is_plain and not x.is_neg() and not x.is_conj()
