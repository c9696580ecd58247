"""The steps of a model's plan, and what each is once the sizes are known: a function of values."""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from blockbuster_fusion.array.axes import Size
from blockbuster_fusion.array.records import Layout
from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.runtime.executable import Bound, Compiled, Executable
from blockbuster_fusion.runtime.torch_arrays import kit_on

MOST_PROGRAMS = 16
"""For how many strides of its arrays a step remembers what follows from them."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A value of the plan, in an argument."""

    number: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a larger array along one dimension."""

    slot: int
    dim: int
    before: tuple[Size, ...]
    """The lengths of the pieces before it."""
    length: Size

    @property
    def lengths(self) -> tuple[Size, ...]:
        return (*self.before, self.length)


@dataclass(frozen=True)
class KernelStep:
    """A fused part: its executable, and where its arrays come from and go to."""

    name: str
    executable: Executable
    inputs: tuple[tuple[int, Layout, torch.dtype | None], ...]
    """Slot, layout, and the dtype to convert a number to."""
    outputs: tuple[tuple[int, Layout, Piece | None], ...]
    """Slot, layout, and the array that it is stored into as a piece."""
    sizes: tuple[tuple[Axis, Size], ...]
    """The axes whose lengths depend on the model's sizes."""
    device: torch.device

    @property
    def reads(self) -> Iterator[int]:
        return (slot for slot, _, _ in self.inputs)

    @property
    def lengths(self) -> Iterator[Size]:
        layouts = [layout for _, layout, _ in (*self.inputs, *self.outputs)]
        yield from (size for x in layouts for position in x.positions for size, _ in position)
        yield from (size for _, size in self.sizes)
        yield from (size for _, _, x in self.outputs if x is not None for size in x.lengths)


@dataclass(frozen=True)
class OperatorStep:
    """One of PyTorch's own operators."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]
    output: int

    @property
    def reads(self) -> Iterator[int]:
        stack: list[Any] = [*self.arguments, *self.options.values()]
        while stack:
            x = stack.pop()
            if isinstance(x, Slot):
                yield x.number
            elif isinstance(x, list | tuple):
                stack.extend(x)

    @property
    def lengths(self) -> Iterator[Size]:
        return iter(())


@dataclass(frozen=True)
class RoomStep:
    """Room for an array that others fill piece by piece."""

    slot: int
    shape: tuple[Size, ...]
    dtype: torch.dtype
    device: torch.device
    order: tuple[int, ...] | None = None
    """The dimensions from the outermost in memory to the innermost."""

    @property
    def reads(self) -> Iterator[int]:
        return iter(())

    @property
    def lengths(self) -> Iterator[Size]:
        return iter(self.shape)


@dataclass(frozen=True)
class CopyStep:
    """A piece that no kernel stores in its place."""

    source: int
    piece: Piece

    @property
    def reads(self) -> Iterator[int]:
        return iter((self.source,))

    @property
    def lengths(self) -> Iterator[Size]:
        return iter(self.piece.lengths)


Step = KernelStep | OperatorStep | RoomStep | CopyStep
"""All have the slots that they `reads`, and the `lengths` that they depend on."""

Length = Callable[[Size], int]
"""How long a size is: what is known once a plan is called."""


# ---------------------------------------------------------------- steps for known sizes


class BoundOperator:
    """An operator, called with what lies in its slots."""

    def __init__(self, step: OperatorStep) -> None:
        self.step = step
        self.function, self.options, self.output = step.function, step.options, step.output
        self.arguments = [
            (i, a) for i, a in enumerate(step.arguments) if _has_slot(a)
        ]  # the others are what they are
        self.template = [*step.arguments]
        self.is_plain = not any(_has_slot(v) for v in step.options.values())

    def __call__(self, values: list[Any]) -> None:
        arguments = self.template.copy()
        for i, argument in self.arguments:
            arguments[i] = _filled(argument, values)
        options = self.options
        if not self.is_plain:
            options = {k: _filled(v, values) for k, v in options.items()}
        values[self.output] = self.function(*arguments, **options)


def _has_slot(argument: Any) -> bool:
    if isinstance(argument, list | tuple):
        return any(map(_has_slot, argument))
    return isinstance(argument, Slot)


def _filled(argument: Any, values: Sequence[Any]) -> Any:
    if isinstance(argument, Slot):
        return values[argument.number]
    if isinstance(argument, list | tuple):
        return type(argument)(_filled(a, values) for a in argument)
    return argument


class BoundRoom:
    """Room of a known shape."""

    def __init__(self, step: RoomStep, length: Length) -> None:
        order = step.order or tuple(range(len(step.shape)))
        self.slot, self.dtype, self.device = step.slot, step.dtype, step.device
        self.shape = tuple(length(step.shape[d]) for d in order)
        self.back = step.order and tuple(order.index(d) for d in range(len(order)))

    def __call__(self, values: list[Any]) -> None:
        room = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        values[self.slot] = room if self.back is None else room.permute(self.back)


class BoundPiece:
    """A piece of an array, for sizes that are known."""

    def __init__(self, piece: Piece, length: Length) -> None:
        self.slot, self.dim = piece.slot, piece.dim
        self.start, self.length = sum(map(length, piece.before)), length(piece.length)

    def __call__(self, values: Sequence[Any]) -> torch.Tensor:
        found: torch.Tensor = values[self.slot].narrow(self.dim, self.start, self.length)
        return found


class BoundCopy:
    """A piece that is copied to its place."""

    def __init__(self, step: CopyStep, length: Length) -> None:
        self.source, self.place = step.source, BoundPiece(step.piece, length)

    def __call__(self, values: list[Any]) -> None:
        self.place(values).copy_(values[self.source])


class BoundKernel:
    """A kernel for sizes that are known: how each tensor is to be seen is worked out."""

    def __init__(self, step: KernelStep, length: Length) -> None:
        self.runner = step.executable.runner
        self.programs: dict[Hashable, Bound] = {}
        self.sizes = tuple((axis, length(size)) for axis, size in step.sizes)
        self.kit = kit_on(step.device)
        self.inputs = [
            (slot, None if layout.is_plain else _atoms(layout, length), dtype)
            for slot, layout, dtype in step.inputs
        ]
        self.outputs = [
            (slot, None if layout.is_plain else Shown(layout, length))
            for slot, layout, _ in step.outputs
        ]
        self.pieces = {
            number: (BoundPiece(piece, length), _atoms(layout, length))
            for number, (_, layout, piece) in enumerate(step.outputs)
            if piece is not None
        }

    def __call__(self, values: list[Any]) -> None:
        given = self.given(values)
        places = {number: place(values) for number, (place, _) in self.pieces.items()}
        into = {number: x.view(self.pieces[number][1]) for number, x in places.items()}
        program = self.programs.get(_strides(given, into))
        if program is None:
            made = self.runner.run(given, self.sizes, self.kit, into)
            self.remember(given, into)
        else:
            made = program.run(self.kit, given, into)
        for number, ((slot, shown), x) in enumerate(zip(self.outputs, made, strict=True)):
            if number in places:
                values[slot] = places[number]
            else:
                values[slot] = x if shown is None else shown(x)

    def given(self, values: list[Any]) -> list[torch.Tensor]:
        """The inputs, with a dimension for each axis."""
        given = []
        for slot, shape, dtype in self.inputs:
            x = values[slot]
            if dtype is not None:
                x = torch.as_tensor(x, dtype=dtype)
            given.append(x if shape is None else x.view(shape))
        return given

    def remember(self, given: list[torch.Tensor], into: dict[int, torch.Tensor]) -> None:
        """Keep the program for tensors with these strides: all else about them is fixed."""
        if isinstance(self.runner, Compiled) and self.runner.is_static:
            if len(self.programs) >= MOST_PROGRAMS:
                self.programs.clear()
            program = self.runner.bound_for(given, self.sizes, self.kit, into)
            self.programs[_strides(given, into)] = program

    def program(self, values: list[Any]) -> Bound | None:
        """What has just been run."""
        places = {number: place(values) for number, (place, _) in self.pieces.items()}
        into = {number: x.view(self.pieces[number][1]) for number, x in places.items()}
        return self.programs.get(_strides(self.given(values), into))


def _strides(given: Sequence[torch.Tensor], into: Mapping[int, torch.Tensor]) -> Hashable:
    return tuple([x.stride() for x in (*given, *into.values())])


def _atoms(layout: Layout, length: Length) -> tuple[int, ...]:
    """The shape of an input with a dimension for each of its axes."""
    return tuple(length(size) for position in layout.positions for size, _ in position)


class Shown:
    """A result of a kernel as the model sees it: merged, and broadcast along what it lacks."""

    def __init__(self, layout: Layout, length: Length) -> None:
        factors = [(length(size), has) for position in layout.positions for size, has in position]
        self.inner = tuple(n if has else 1 for n, has in factors)
        self.wide = tuple(n for n, _ in factors)
        self.shape = tuple(
            math.prod(length(size) for size, _ in position) for position in layout.positions
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.inner != self.wide:
            x = x.view(self.inner).expand(self.wide)
        return x.reshape(self.shape)


BoundStep = BoundKernel | BoundOperator | BoundRoom | BoundCopy


def bound(step: Step, length: Length) -> BoundStep:
    """A step for sizes that are known."""
    match step:
        case KernelStep():
            return BoundKernel(step, length)
        case OperatorStep():
            return BoundOperator(step)
        case RoomStep():
            return BoundRoom(step, length)
        case CopyStep():
            return BoundCopy(step, length)


def in_order(x: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """`x` dense in memory, with its dimensions in this order; itself if it lies so."""
    turned = x.permute(tuple(order))
    if turned.is_contiguous():
        return x
    return turned.contiguous().permute([order.index(d) for d in range(len(order))])
