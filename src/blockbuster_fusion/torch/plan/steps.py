"""The steps of a plan, and for known sizes the functions of values that they are."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch.autograd import profiler

from blockbuster_fusion.array.axes import Length, Size, product
from blockbuster_fusion.array.records import FrameworkLayout
from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.nest.shapes import contiguous
from blockbuster_fusion.runtime.bound import Bound
from blockbuster_fusion.runtime.compiled import Compiled
from blockbuster_fusion.runtime.executable import Executable
from blockbuster_fusion.runtime.recently_used import RecentlyUsed
from blockbuster_fusion.runtime.tensors import library_on
from blockbuster_fusion.torch.plan.bindings import fastest

named_range = torch._C._profiler._RecordFunctionFast
"""A range of time with a name that torch.profiler shows."""

MOST_PROGRAMS = 16
"""The number of strides of its arrays for which a step keeps its program."""


@dataclass(frozen=True, slots=True)
class Slot:
    """The number of a value of the plan, as an argument."""

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
    """A fused part: its executable, with the slots of its inputs and outputs."""

    names: Mapping[str, str]
    """The names of its kernels in the model, which are distinct, by those in its source."""
    executable: Executable
    inputs: tuple[tuple[int, FrameworkLayout, torch.dtype | None], ...]
    """Slot, layout, and the dtype to convert a number to."""
    outputs: tuple[tuple[int, FrameworkLayout, Piece | None], ...]
    """Slot, layout, and the larger array that it is stored into, if any."""
    sizes: tuple[tuple[Axis, Size], ...]
    """The axes whose lengths depend on the model's sizes."""
    device: torch.device
    updates: Mapping[int, int] = field(default_factory=dict)
    """The outputs that are written into inputs, each with the number of its input."""

    @property
    def name(self) -> str:
        return "+".join(self.names.values()) or "program"

    @property
    def reads(self) -> Iterator[int]:
        return (slot for slot, _, _ in self.inputs)

    @property
    def written(self) -> Iterator[int]:
        """The slots of the inputs that it writes into."""
        return (self.inputs[at][0] for at in self.updates.values())

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
        stack: list[Any] = [*self.arguments]
        while stack:
            x = stack.pop()
            if isinstance(x, Size):
                yield x
            elif isinstance(x, list | tuple):
                stack.extend(x)

    def sized(self, length: Callable[[Size], Any]) -> "OperatorStep":
        """The step with numbers for the sizes among its arguments."""

        def filled(x: Any) -> Any:
            if isinstance(x, Size):
                return length(x)
            return type(x)(map(filled, x)) if isinstance(x, list | tuple) else x

        has_sizes = next(self.lengths, None) is not None
        return replace(self, arguments=filled(self.arguments)) if has_sizes else self


@dataclass(frozen=True)
class AllocateStep:
    """The allocation of an array that other steps fill."""

    slot: int
    shape: tuple[Size, ...]
    dtype: torch.dtype
    device: torch.device
    strides: tuple[Size, ...] | None = None
    """None for a contiguous array."""

    @property
    def reads(self) -> Iterator[int]:
        return iter(())

    @property
    def lengths(self) -> Iterator[Size]:
        return iter((*self.shape, *(self.strides or ())))


@dataclass(frozen=True)
class CopyStep:
    """The copy of a piece that no kernel stores in its place."""

    source: int
    piece: Piece

    @property
    def reads(self) -> Iterator[int]:
        return iter((self.source,))

    @property
    def lengths(self) -> Iterator[Size]:
        return iter(self.piece.lengths)


PlanStep = KernelStep | OperatorStep | AllocateStep | CopyStep
"""All have `reads`, the slots that they read, and `lengths`, the sizes that they depend on."""


# ---------------------------------------------------------------- steps for known sizes


class BoundOperator:
    """An operator, called with the values in its slots."""

    def __init__(self, step: OperatorStep, strides: tuple[int, ...] | None = None) -> None:
        """`strides` are those that its result should have, if they are known."""
        self.step, self.output, self.strides = step, step.output, strides

    @cached_property
    def run(self) -> Callable[[list[Any]], None]:
        """The operator as a plain function, which is faster."""
        return _run_of(self.step)

    def guarded(self, met: dict[int, tuple[int, ...]]) -> Callable[[list[Any]], None]:
        """The same, and a result with other strides is copied; its strides are noted in `met`."""
        wanted = self.strides
        assert wanted is not None

        def copied(x: torch.Tensor) -> torch.Tensor:
            met[self.output] = tuple(x.stride())
            return with_strides(x, wanted)

        return _run_of(self.step, wanted, copied)

    def __call__(self, values: list[Any]) -> None:
        self.run(values)


def _run_of(
    step: OperatorStep,
    strides: tuple[int, ...] | None = None,
    copied: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> Callable[[list[Any]], None]:
    """A function that puts the operator's result among the values; from text, which is fastest.

    A result with other strides than given ones is copied.
    """
    names: dict[str, Any] = {"function": fastest(step.function), "copied": copied}

    def text(argument: Any) -> str:
        if isinstance(argument, Slot):
            return f"values[{argument.number}]"
        if isinstance(argument, list | tuple):
            inside = "".join(f"{text(a)}, " for a in argument)
            return f"[{inside}]" if isinstance(argument, list) else f"({inside})"
        name = f"x{len(names)}"
        names[name] = argument
        return name

    given = [text(a) for a in step.arguments]
    if step.options:
        options = ", ".join(f"{name!r}: {text(x)}" for name, x in step.options.items())
        given.append(f"**{{{options}}}")
    made_at = f"values[{step.output}]"
    lines = ["def run(values):", f"    {made_at} = x = function({', '.join(given)})"]
    if strides is not None:
        lines.append(f"    if x.stride() != {strides}: {made_at} = copied(x)")
    exec("\n".join(lines), names)
    made: Callable[[list[Any]], None] = names["run"]
    return made


class BoundAllocate:
    """The allocation of an array of known shape."""

    def __init__(self, step: AllocateStep, length: Length) -> None:
        self.step = step
        self.slot, self.dtype, self.device = step.slot, step.dtype, step.device
        self.shape = tuple(map(length, step.shape))
        self.strides = contiguous(self.shape)
        if step.strides is not None:
            self.strides = tuple(map(length, step.strides))

    def __call__(self, values: list[Any]) -> None:
        values[self.slot] = torch.empty_strided(
            self.shape, self.strides, dtype=self.dtype, device=self.device
        )


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
        self.step = step
        self.source, self.place = step.source, BoundPiece(step.piece, length)

    def __call__(self, values: list[Any]) -> None:
        self.place(values).copy_(values[self.source])


def as_tensor(x: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A number, or an array of another dtype, as an array of a dtype on a device."""
    if isinstance(x, torch.Tensor):
        return x.to(device, dtype)
    return torch.tensor(x, dtype=dtype, device=device)


class BoundKernel:
    """A part for known sizes, with the shapes in which its kernels see each tensor."""

    def __init__(self, step: KernelStep, length: Length) -> None:
        self.step, self.runner = step, step.executable.runner
        self.name = f"blockbuster::{step.name}"
        self.programs = RecentlyUsed[Bound](MOST_PROGRAMS)
        self.sizes = tuple((axis, length(size)) for axis, size in step.sizes)
        self.library = library_on(step.device)
        self.inputs = [
            (slot, None if layout.is_plain else atoms(layout, length), dtype)
            for slot, layout, dtype in step.inputs
        ]
        self.outputs = [
            (slot, None if layout.is_plain else merging(layout, length))
            for slot, layout, _ in step.outputs
        ]
        self.pieces = {
            number: (BoundPiece(piece, length), atoms(layout, length))
            for number, (_, layout, piece) in enumerate(step.outputs)
            if piece is not None
        }

    def __call__(self, values: list[Any]) -> None:
        given = self.given(values)
        places = {number: place(values) for number, (place, _) in self.pieces.items()}
        into = self.into(given, places)
        program = self.programs.get(_strides(given, into))
        if profiler._is_profiler_enabled:
            with named_range(self.name):
                made = self.results(program, given, into)
        else:
            made = self.results(program, given, into)
        for number, ((slot, how), x) in enumerate(zip(self.outputs, made, strict=True)):
            if number in places:
                values[slot] = places[number]
            elif number not in self.step.updates:
                values[slot] = x if how is None else merged(x, *how)

    def into(
        self, given: Sequence[torch.Tensor], places: Mapping[int, torch.Tensor]
    ) -> dict[int, torch.Tensor]:
        """The arrays that outputs are stored into: pieces of larger ones, and inputs."""
        pieces = {number: x.view(self.pieces[number][1]) for number, x in places.items()}
        return pieces | {number: given[at] for number, at in self.step.updates.items()}

    def results(
        self, program: Bound | None, given: list[torch.Tensor], into: dict[int, torch.Tensor]
    ) -> Sequence[torch.Tensor]:
        """The results of the kernels, by the program for these strides, known or new."""
        if program is not None:
            return program.run(self.library, given, into)
        made = self.runner.run(given, self.sizes, self.library, into)
        self.remember(given, into)
        return made

    def given(self, values: list[Any]) -> list[torch.Tensor]:
        """The inputs, with a dimension for each axis."""
        given = []
        for slot, shape, dtype in self.inputs:
            x = values[slot]
            if dtype is not None:
                x = as_tensor(x, dtype, self.step.device)
            elif x.is_neg():
                x = x.resolve_neg()
            given.append(x if shape is None else x.view(shape))
        return given

    def remember(self, given: list[torch.Tensor], into: dict[int, torch.Tensor]) -> None:
        """Keeps the program for tensors with these strides: all else about them is fixed."""
        if isinstance(self.runner, Compiled) and self.runner.is_static:
            program = self.runner.bound_for(given, self.sizes, self.library, into)
            if not program.is_empty:
                self.programs.put(_strides(given, into), program)


def _strides(given: Sequence[torch.Tensor], into: Mapping[int, torch.Tensor]) -> Hashable:
    return tuple([x.stride() for x in (*given, *into.values())])


def atoms(layout: FrameworkLayout, length: Callable[[Size], Any]) -> list[Any]:
    """The shape of an array with a dimension for each of its axes."""
    return [length(size) for position in layout.positions for size, _ in position]


def merging(layout: FrameworkLayout, length: Callable[[Size], Any]) -> tuple[list[Any], ...]:
    """The shapes that `merged` needs to turn a result of a kernel into that of the model."""
    factors = [factor for position in layout.positions for factor in position]
    inner = [length(size) if has else 1 for size, has in factors]
    shape = [length(product(size for size, _ in position)) for position in layout.positions]
    return inner, atoms(layout, length), shape


def merged(
    x: torch.Tensor, inner: Sequence[int], wide: Sequence[int], shape: Sequence[int]
) -> torch.Tensor:
    """A result of a kernel, broadcast along the axes that it lacks, and its axes merged."""
    if inner != wide:
        x = x.view(inner).expand(wide)
    return x.reshape(shape)


BoundStep = BoundKernel | BoundOperator | BoundAllocate | BoundCopy


def bound(step: PlanStep, length: Length) -> BoundStep:
    """A step for sizes that are known."""
    match step:
        case KernelStep():
            return BoundKernel(step, length)
        case OperatorStep():
            return BoundOperator(step.sized(length))
        case AllocateStep():
            return BoundAllocate(step, length)
        case CopyStep():
            return BoundCopy(step, length)


def with_strides(x: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """`x` with these strides: itself if it has them, or else a copy."""
    pairs = [*zip(x.shape, x.stride(), strides, strict=True)]
    if not x.numel() or all(have == want for _, have, want in pairs):
        return x
    if all(have == want or n == 1 for n, have, want in pairs):
        return x.as_strided(x.shape, strides)
    wide = [n if step else min(n, 1) for n, step in zip(x.shape, strides, strict=True)]
    made = torch.empty_strided(wide, strides, dtype=x.dtype, device=x.device)
    made.copy_(x.as_strided(wide, x.stride()))
    return made.expand(x.shape)
