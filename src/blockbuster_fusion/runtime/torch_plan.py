"""A model's plan: kernels and PyTorch's own operators, run one after the other on tensors."""

import logging
import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from blockbuster_fusion.array.axes import Size
from blockbuster_fusion.runtime.torch_recording import Recording, Untaped
from blockbuster_fusion.runtime.torch_steps import BoundStep, Length, Slot, Step, bound
from blockbuster_fusion.runtime.torch_tape import TensorTape

MOST_BINDINGS = 64
"""For how many different sizes a plan, and each of its steps, remembers what follows from them."""

log = logging.getLogger("blockbuster_fusion")


@dataclass(frozen=True)
class SymbolSource:
    """Where the value of a symbol is found: an input, or a dimension of it."""

    symbol: str
    slot: int
    dim: int | None


class Plan:
    """The steps of a model, ready to be called with its inputs, which lie in the first slots."""

    def __init__(
        self,
        steps: Sequence[Step],
        slots: int,
        inputs: Sequence[int],
        outputs: Sequence[Any],
        symbols: Sequence[SymbolSource],
        evaluate: Callable[[str, Mapping[str, int]], int],
        weights: Collection[int] = (),
    ) -> None:
        """`weights` are inputs that lie in memory as they did in the first call, in each."""
        self.steps, self.outputs = tuple(steps), tuple(outputs)
        self.room = [None] * (slots - len(inputs))
        self.inputs, self.weights = len(inputs), frozenset(weights)
        self.changing = [slot for slot in inputs if slot not in weights]
        self.symbols, self.evaluate = tuple(symbols), evaluate
        self.sized = [_Sized(step) for step in steps]
        self.last_uses = _last_uses(self.steps, self.outputs)
        self.known: dict[Hashable, _Binding] = {}

    def __call__(self, *given: Any) -> list[Any]:
        values = [*given]
        for slot in self.changing:
            if isinstance(values[slot], torch.Tensor) and values[slot].is_neg():
                values[slot] = values[slot].resolve_neg()
        return self.binding(values)(values)

    def key(self, values: Sequence[Any]) -> tuple[Hashable, ...]:
        """What a call depends on beside the numbers in its inputs: how these lie in memory."""
        return (
            *[
                values[s.slot] if s.dim is None else values[s.slot].shape[s.dim]
                for s in self.symbols
            ],
            *[_seen(values[slot]) for slot in self.changing],
        )

    def binding(self, values: Sequence[Any]) -> "_Binding":
        """The plan for inputs that lie in memory like these."""
        key = self.key(values)
        found = self.known.get(key)
        if found is None:
            # the length of a nested tensor's ragged dimension is no number
            named = zip(self.symbols, key, strict=False)
            found = _Binding(self, {s.symbol: n for s, n in named if isinstance(n, int)})
            while len(self.known) >= MOST_BINDINGS:
                self.known.pop(next(iter(self.known)), None)
            self.known[key] = found
        return found


def _seen(x: Any) -> Hashable:
    """What a plan's binding depends on, of an input."""
    if isinstance(x, torch.Tensor):
        return type(x), x.shape, x.stride(), x.dtype, x.device
    if isinstance(x, int):
        return x
    return type(x).__name__


class _Sized:
    """A step, bound once for each of the lengths that it depends on itself."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.lengths = tuple(dict.fromkeys(size for size in step.lengths if size.symbols))
        self.known: dict[tuple[int, ...], BoundStep] = {}

    def bound(self, length: Length) -> BoundStep:
        key = tuple(length(size) for size in self.lengths)
        found = self.known.get(key)
        if found is None:
            found = bound(self.step, length)
            while len(self.known) >= MOST_BINDINGS:
                self.known.pop(next(iter(self.known)), None)
            self.known[key] = found
        return found


class _Binding:
    """A plan for inputs that lie in memory in a certain way.

    The first call runs step by step; sizes that come once, as those of a growing cache do, cost
    no more. The second one is recorded, and from the third on there is a tape.
    """

    def __init__(self, plan: Plan, sizes: Mapping[str, int]) -> None:
        @cache
        def length(size: Size) -> int:
            return math.prod([size.number, *(plan.evaluate(s, sizes) for s in size.symbols)])

        self.plan, self.calls = plan, 0
        self.tape: TensorTape | None = None
        self.steps = [step.bound(length) for step in plan.sized]

    def __call__(self, given: list[Any]) -> list[Any]:
        if self.tape is not None:
            return self.tape(given)
        if self.calls != 1:
            made = self.run(given)
            self.calls += 1
            return made
        recording = Recording(self.plan.steps, self.plan.outputs, given, len(self.plan.room))
        made = self.run(given, recording)
        self.calls += 1
        try:
            self.tape = TensorTape(recording)
        except Untaped as reason:
            log.debug("a plan has no tape: %s", reason)
        return made

    def run(self, given: list[Any], recording: Recording | None = None) -> list[Any]:
        """The results, step by step."""
        values = [*given, *self.plan.room]
        for step, dead in zip(self.steps, self.plan.last_uses, strict=True):
            step(values)
            if recording is not None:
                recording.note(step, values)
            for slot in dead:
                values[slot] = None
        return [values[x.number] if isinstance(x, Slot) else x for x in self.plan.outputs]


def _last_uses(steps: Sequence[Step], outputs: Sequence[Any]) -> list[tuple[int, ...]]:
    """For each step, the slots that nobody reads after it."""
    kept = {x.number for x in outputs if isinstance(x, Slot)}
    made: list[tuple[int, ...]] = []
    for step in reversed(steps):
        dead = tuple(s for s in dict.fromkeys(step.reads) if s not in kept)
        kept.update(dead)
        made.append(dead)
    return made[::-1]
