"""A model's plan: kernels and PyTorch's own operators, run one after the other on tensors."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from blockbuster_fusion.array.axes import Size
from blockbuster_fusion.array.records import Layout
from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.runtime.executable import Bound, Compiled, Executable
from blockbuster_fusion.runtime.torch_arrays import kit_on

MOST_SHAPES = 256
"""For how many different sizes a plan remembers the shapes that follow from them."""


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


@dataclass(frozen=True)
class OperatorStep:
    """One of PyTorch's own operators."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]
    output: int


@dataclass(frozen=True)
class RoomStep:
    """Room for an array that others fill piece by piece."""

    slot: int
    shape: tuple[Size, ...]
    dtype: torch.dtype
    device: torch.device
    order: tuple[int, ...] | None = None
    """The dimensions from the outermost in memory to the innermost."""


@dataclass(frozen=True)
class CopyStep:
    """A piece that no kernel stores in its place."""

    source: int
    piece: Piece


Step = KernelStep | OperatorStep | RoomStep | CopyStep


@dataclass(frozen=True)
class SymbolSource:
    """Where the value of a symbol is found: an input, or a dimension of it."""

    symbol: str
    slot: int
    dim: int | None


class Plan:
    """The steps of a model, ready to be called with its inputs in order."""

    def __init__(
        self,
        steps: Sequence[Step],
        slots: int,
        inputs: Sequence[int],
        outputs: Sequence[Any],
        symbols: Sequence[SymbolSource],
        evaluate: Callable[[str, Mapping[str, int]], int],
    ) -> None:
        self.steps, self.slots = tuple(steps), slots
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.symbols, self.evaluate = tuple(symbols), evaluate
        self.known: dict[Hashable, list[_Bound]] = {}
        self.last_uses = _last_uses(self.steps, self.outputs)

    def __call__(self, *given: Any) -> list[Any]:
        values: list[Any] = [None] * self.slots
        for slot, x in zip(self.inputs, given, strict=True):
            values[slot] = x.resolve_neg() if type(x) is torch.Tensor and x.is_neg() else x
        for bound, dead in zip(self.bound(values), self.last_uses, strict=True):
            bound(values)
            for slot in dead:
                values[slot] = None
        return [values[x.number] if isinstance(x, Slot) else x for x in self.outputs]

    def bound(self, values: Sequence[Any]) -> list["_Bound"]:
        """The steps for inputs of these sizes that lie in memory like these."""
        numbers = [
            values[s.slot] if s.dim is None else values[s.slot].shape[s.dim] for s in self.symbols
        ]
        seen = [
            (x.shape, x.stride(), x.dtype, x.device) if isinstance(x, torch.Tensor) else type(x)
            for x in (values[slot] for slot in self.inputs)
        ]
        key = (*numbers, *seen)
        found = self.known.get(key)
        if found is None:
            # the length of a nested tensor's ragged dimension is no number
            known = zip(self.symbols, numbers, strict=True)
            sizes = {s.symbol: n for s, n in known if isinstance(n, int)}
            found = self.bind(sizes)
            while len(self.known) >= MOST_SHAPES:
                self.known.pop(next(iter(self.known)), None)
            self.known[key] = found
        return found

    def bind(self, sizes: Mapping[str, int]) -> list["_Bound"]:
        def length(size: Size) -> int:
            made = size.number
            for symbol in size.symbols:
                made *= self.evaluate(symbol, sizes)
            return made

        return [_bound(step, length) for step in self.steps]


_Bound = Callable[[list[Any]], None]
Length = Callable[[Size], int]


def _bound(step: Step, length: Length) -> _Bound:
    match step:
        case KernelStep():
            return _BoundKernel(step, length)
        case OperatorStep():
            return _BoundOperator(step)
        case RoomStep():
            order = step.order or tuple(range(len(step.shape)))
            shape = tuple(length(step.shape[d]) for d in order)
            back = tuple(order.index(d) for d in range(len(order)))

            def make_room(values: list[Any]) -> None:
                room = torch.empty(shape, dtype=step.dtype, device=step.device)
                values[step.slot] = room if step.order is None else room.permute(back)

            return make_room
        case CopyStep():
            place = _Place(step.piece, length)

            def copy(values: list[Any]) -> None:
                place(values).copy_(values[step.source])

            return copy


class _Place:
    """A piece of an array, for sizes that are known."""

    def __init__(self, piece: Piece, length: Length) -> None:
        self.slot, self.dim = piece.slot, piece.dim
        self.start, self.length = sum(map(length, piece.before)), length(piece.length)

    def __call__(self, values: Sequence[Any]) -> torch.Tensor:
        found: torch.Tensor = values[self.slot].narrow(self.dim, self.start, self.length)
        return found


class _BoundOperator:
    """An operator, called with what lies in its slots."""

    def __init__(self, step: OperatorStep) -> None:
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


class _BoundKernel:
    """A kernel for sizes that are known: how each tensor is to be seen is worked out."""

    def __init__(self, step: KernelStep, length: Length) -> None:
        self.runner = step.executable.runner
        self.program: Bound | None = None
        self.sizes = tuple((axis, length(size)) for axis, size in step.sizes)
        self.kit = kit_on(step.device)
        self.inputs = [
            (slot, None if layout.is_plain else _atoms(layout, length), dtype)
            for slot, layout, dtype in step.inputs
        ]
        self.outputs = [
            (slot, None if layout.is_plain else _Shown(layout, length))
            for slot, layout, _ in step.outputs
        ]
        self.pieces = [
            (number, _Place(piece, length), _atoms(layout, length))
            for number, (_, layout, piece) in enumerate(step.outputs)
            if piece is not None
        ]

    def __call__(self, values: list[Any]) -> None:
        given = []
        for slot, shape, dtype in self.inputs:
            x = values[slot]
            if dtype is not None:
                x = torch.as_tensor(x, dtype=dtype)
            given.append(x if shape is None else x.view(shape))
        places = {number: (place(values), shape) for number, place, shape in self.pieces}
        into = {number: x.view(shape) for number, (x, shape) in places.items()}
        made = self.run(given, into)
        for number, ((slot, shown), x) in enumerate(zip(self.outputs, made, strict=True)):
            if number in places:
                values[slot] = places[number][0]
            else:
                values[slot] = x if shown is None else shown(x)

    def run(self, given: list[Any], into: dict[int, torch.Tensor]) -> Sequence[Any]:
        """The results. All tensors lie as they did in the first call: the plan sees to that."""
        if self.program is not None:
            return self.program.run(self.kit, given, into)
        made = self.runner.run(given, self.sizes, self.kit, into)
        if isinstance(self.runner, Compiled) and self.runner.is_static:
            self.program = self.runner.bound_for(given, self.sizes, self.kit, into)
        return made


def _atoms(layout: Layout, length: Length) -> tuple[int, ...]:
    """The shape of an input with a dimension for each of its axes."""
    return tuple(length(size) for position in layout.positions for size, _ in position)


class _Shown:
    """A result of a kernel as the model sees it: merged, and broadcast along what it lacks."""

    def __init__(self, layout: Layout, length: Length) -> None:
        factors = [(length(size), has) for position in layout.positions for size, has in position]
        self.inner = tuple(n if has else 1 for n, has in factors)
        self.wide = tuple(n for n, _ in factors)
        self.shape = tuple(
            _product(length(size) for size, _ in position) for position in layout.positions
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.inner != self.wide:
            x = x.view(self.inner).expand(self.wide)
        return x.reshape(self.shape)


def in_order(x: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """`x` dense in memory, with its dimensions in this order; itself if it lies so."""
    turned = x.permute(tuple(order))
    if turned.is_contiguous():
        return x
    return turned.contiguous().permute([order.index(d) for d in range(len(order))])


def _product(lengths: Any) -> int:
    made = 1
    for length in lengths:
        made *= length
    return made


def _last_uses(steps: Sequence[Step], outputs: Sequence[Any]) -> list[tuple[int, ...]]:
    """For each step, the slots that nobody reads after it."""
    kept = {x.number for x in outputs if isinstance(x, Slot)}
    made: list[tuple[int, ...]] = []
    for step in reversed(steps):
        dead = tuple(s for s in dict.fromkeys(_read(step)) if s not in kept)
        kept.update(dead)
        made.append(dead)
    return made[::-1]


def _read(step: Step) -> list[int]:
    match step:
        case KernelStep():
            return [slot for slot, _, _ in step.inputs]
        case CopyStep():
            return [step.source]
        case RoomStep():
            return []
    found: list[int] = []
    stack: list[Any] = [*step.arguments, *step.options.values()]
    while stack:
        x = stack.pop()
        if isinstance(x, Slot):
            found.append(x.number)
        elif isinstance(x, list | tuple):
            stack.extend(x)
    return found
