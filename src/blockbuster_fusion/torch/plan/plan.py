"""A model's plan: kernels and PyTorch's own operators, run one after the other on tensors."""

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from blockbuster_fusion.array.axes import Size
from blockbuster_fusion.messages import log
from blockbuster_fusion.runtime.recently_used import RecentlyUsed
from blockbuster_fusion.torch.plan.placement import Untaped
from blockbuster_fusion.torch.plan.recording import Recording
from blockbuster_fusion.torch.plan.steps import BoundStep, Length, PlanStep, Slot, bound
from blockbuster_fusion.torch.plan.tape import TensorTape

MOST_BINDINGS = 64
"""For how many different sizes a plan, and each of its steps, remembers what follows from them."""
MOST_REPEATS = 64
"""How often the same sizes come in a row until they have a tape of their own."""


@dataclass(frozen=True)
class SymbolSource:
    """Where the value of a symbol is found: an input, or a dimension of it."""

    symbol: str
    slot: int
    dim: int | None


class Noting(Protocol):
    """Something that is told of each step after it ran."""

    def note(self, bound: BoundStep, values: list[Any]) -> None: ...


class ModelPlan:
    """The steps of a model, ready to be called with its inputs, which lie in the first slots.

    The first call with inputs of one form runs step by step and is recorded; later ones run on its
    tape, whatever their sizes. Sizes that come again and again are recorded once more, for a tape
    that works out nothing. Where there is no tape, calls run step by step.
    """

    def __init__(
        self,
        steps: Sequence[PlanStep],
        slots: int,
        inputs: Sequence[int],
        outputs: Sequence[Any],
        symbols: Sequence[SymbolSource],
        evaluate: Callable[[str, Mapping[str, int]], int],
        weights: Collection[int] = (),
        varying: Collection[int] = (),
    ) -> None:
        """`weights` are inputs that lie in memory as they did in the first call, in each;
        `varying` are those with sizes or strides that depend on symbols."""
        self.steps, self.outputs = tuple(steps), tuple(outputs)
        self.room = [None] * (slots - len(inputs))
        self.inputs, self.weights = len(inputs), frozenset(weights)
        self.changing = [slot for slot in inputs if slot not in weights]
        self.varying = frozenset(self.changing).intersection(varying)
        self.symbols, self.evaluate = tuple(symbols), evaluate
        self.sized = [_Sized(step) for step in steps]
        self.last_uses = _last_uses(self.steps, self.outputs)
        self.known = RecentlyUsed[list[BoundStep]](MOST_BINDINGS)
        self.tapes = RecentlyUsed[TensorTape | Untaped](MOST_BINDINGS)
        self.last: tuple[Hashable, int] = (None, 0)

    def __call__(self, *given: Any) -> list[Any]:
        values = [*given]
        for slot in self.changing:
            if isinstance(values[slot], torch.Tensor) and values[slot].is_neg():
                values[slot] = values[slot].resolve_neg()
        key: Hashable = self.key(values)
        varying = frozenset[int]()
        tape = self.tapes.get(key)
        if tape is None and self.varying and not self.is_repeated(key):
            key, varying = self.form(values), self.varying
            tape = self.tapes.get(key)
        length = self.length(values)
        if isinstance(tape, TensorTape):
            return tape(values, length)
        if tape is not None:
            return self.run(values, length)
        room = len(self.room)
        recording = Recording(self.steps, self.outputs, values, room, length, varying)
        made = self.run(values, length, recording)
        self.tapes.put(key, self.taped(recording))
        return made

    def is_repeated(self, key: Hashable) -> bool:
        """Whether a call is like those before it."""
        last, count = self.last
        self.last = (key, count + 1 if key == last else 1)
        return self.last[1] > MOST_REPEATS

    def taped(self, recording: Recording) -> TensorTape | Untaped:
        try:
            return TensorTape(recording)
        except Untaped as reason:
            log.debug("a plan has no tape: %s", reason)
            return reason

    def run(
        self, given: Sequence[Any], length: Length, recording: Noting | None = None
    ) -> list[Any]:
        """The results, step by step."""
        values, sizes = [*given, *self.room], tuple(self.sizes(given))
        steps = self.known.get(sizes)
        if steps is None:
            steps = [step.bound(length) for step in self.sized]
            self.known.put(sizes, steps)
        for step, dead in zip(steps, self.last_uses, strict=True):
            step(values)
            if recording is not None:
                recording.note(step, values)
            for slot in dead:
                values[slot] = None
        return [values[x.number] if isinstance(x, Slot) else x for x in self.outputs]

    def form(self, values: Sequence[Any]) -> Hashable:
        """What is the same in calls with other sizes: how inputs lie that do not vary."""
        return tuple(
            [
                _kind(values[slot]) if slot in self.varying else _seen(values[slot])
                for slot in self.changing
            ]
        )

    def key(self, values: Sequence[Any]) -> tuple[Hashable, ...]:
        """What a call depends on beside the numbers in its inputs: how these lie in memory."""
        return (*self.sizes(values), *[_seen(values[slot]) for slot in self.changing])

    def sizes(self, values: Sequence[Any]) -> list[Any]:
        """The values of the symbols."""
        return [
            values[s.slot] if s.dim is None else values[s.slot].shape[s.dim] for s in self.symbols
        ]

    def length(self, values: Sequence[Any]) -> Length:
        """What tells how long sizes are in a call."""
        named = zip(self.symbols, self.sizes(values), strict=True)
        # the length of a nested tensor's ragged dimension is no number
        sizes = {s.symbol: n for s, n in named if isinstance(n, int)}
        evaluate = self.evaluate

        def length(size: Size) -> int:
            return math.prod([size.number, *[evaluate(symbol, sizes) for symbol in size.symbols]])

        return length


def _seen(x: Any) -> Hashable:
    """How an input lies in memory."""
    if isinstance(x, torch.Tensor):
        return type(x), x.shape, x.stride(), x.dtype, x.device
    if isinstance(x, int):
        return x
    return type(x).__name__


def _kind(x: Any) -> Hashable:
    """What an input is, however it lies in memory."""
    if isinstance(x, torch.Tensor):
        return type(x), x.dim(), x.dtype, x.device, x.layout
    return type(x).__name__


class _Sized:
    """A step, bound once for each of the lengths that it depends on itself."""

    def __init__(self, step: PlanStep) -> None:
        self.step = step
        self.lengths = tuple(dict.fromkeys(size for size in step.lengths if size.symbols))
        self.known = RecentlyUsed[BoundStep](MOST_BINDINGS)

    def bound(self, length: Length) -> BoundStep:
        key = tuple([length(size) for size in self.lengths])
        found = self.known.get(key)
        if found is None:
            found = bound(self.step, length)
            self.known.put(key, found)
        return found


def _last_uses(steps: Sequence[PlanStep], outputs: Sequence[Any]) -> list[tuple[int, ...]]:
    """For each step, the slots that nobody reads after it."""
    kept = {x.number for x in outputs if isinstance(x, Slot)}
    made: list[tuple[int, ...]] = []
    for step in reversed(steps):
        dead = tuple(s for s in dict.fromkeys(step.reads) if s not in kept)
        kept.update(dead)
        made.append(dead)
    return made[::-1]
