"""The plan of a graph: kernels and PyTorch's own operators, run one after the other."""

import math
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import torch

from blockbuster_fusion.array.axes import Length, Size
from blockbuster_fusion.ir.axis import Symbol
from blockbuster_fusion.messages import log
from blockbuster_fusion.runtime.compiled import Compiled
from blockbuster_fusion.runtime.ranges import Ranges
from blockbuster_fusion.runtime.recently_used import RecentlyUsed
from blockbuster_fusion.torch.capture.sizes import SymbolSource
from blockbuster_fusion.torch.plan.assembling import Assembly, device_of
from blockbuster_fusion.torch.plan.operator_properties import PLAIN
from blockbuster_fusion.torch.plan.placement import EmptyArrays, Untaped
from blockbuster_fusion.torch.plan.steps import BoundStep, KernelStep, PlanStep, Slot, bound
from blockbuster_fusion.torch.plan.tape import TensorTape
from blockbuster_fusion.torch.plan.tape_text import fitting

MOST_BINDINGS = 64
"""The number of different sizes for which a plan, and each of its steps, keeps what it derived."""
MOST_REPEATS = 64
"""The number of calls with the same sizes after which these get a tape of their own."""
MOST_REPEATS_ON_GPU = 4
"""The same on a GPU, where a tape of known sizes saves more of a call."""


NONE: Mapping[int, tuple[int, ...]] = MappingProxyType({})


class Noting(Protocol):
    """An observer that is notified of each step after it ran."""

    def note(self, bound: BoundStep, values: list[Any]) -> None: ...


class ModelPlan:
    """The steps of a graph, ready to be called with its inputs, which are in the first slots.

    Calls with inputs of one form run on a tape, whatever their sizes. It is assembled from the
    form when that comes first. Sizes that are repeated get a tape of their own, which derives
    nothing from sizes. Without a tape, calls run step by step.
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
        varying: Mapping[int, tuple[Size, ...] | None] | None = None,
    ) -> None:
        """`weights` are inputs with the same shapes, strides and addresses in each call;
        `varying` are those with symbolic sizes or strides, with the shapes of tensors."""
        self.steps, self.outputs = tuple(steps), tuple(outputs)
        self.room = [None] * (slots - len(inputs))
        self.inputs, self.weights = len(inputs), frozenset(weights)
        self.changing = [slot for slot in inputs if slot not in weights]
        self.varying = {n: x for n, x in (varying or {}).items() if n not in weights}
        self.symbols, self.evaluate = tuple(symbols), evaluate
        self.device = device_of(steps)
        self.sized = [_Sized(step) for step in steps]
        self.ranged = [*dict.fromkeys(x for step in steps for x in _ranged(step))]
        """The steps that run other kernels in other ranges of sizes."""
        self.last_uses = _last_uses(self.steps, self.outputs)
        self.known = RecentlyUsed[list[BoundStep]](MOST_BINDINGS)
        self.tapes = RecentlyUsed[TensorTape | Untaped](MOST_BINDINGS)
        self.repeats: dict[Hashable, int] = {}
        """The number of calls with the same sizes. If there are more sizes than tapes, all are
        forgotten: a tape would be gone before its sizes come again."""

        self.usual: tuple[Callable[[Sequence[Any]], bool], TensorTape | None] = _UNUSUAL
        """The tape of the last call of known sizes, and the test of inputs that it is for."""

    def __call__(self, *given: Any) -> list[Any]:
        fits, usual = self.usual
        if usual is not None and fits(given):
            made = usual.call(given, _number)
            if usual.met:
                self.usual = _UNUSUAL
            if made is not None:
                return made
        values = [*given]
        for slot in self.changing:
            if isinstance(values[slot], torch.Tensor) and values[slot].is_neg():
                values[slot] = values[slot].resolve_neg()
        key: Hashable = self.key(values)
        length = self.length(values)
        varying: Mapping[int, tuple[Size, ...] | None] = {}
        tape = self.tapes.get(key)
        if tape is None and self.varying and not self.is_repeated(key):
            key, varying = self.form(values, length), self.varying
            tape = self.tapes.get(key)
        if tape is None and not self.is_captured:
            tape = self.assembled(values, length, varying)
            if not (varying and isinstance(tape, EmptyArrays)):
                self.tapes.put(key, tape)
        if not isinstance(tape, TensorTape):
            return self.run(values, length)
        found = tape.call(values, length)
        if tape.met and not (tape.met.keys() <= tape.seen.keys() or self.is_captured):
            again = self.assembled(values, length, varying, {**tape.seen, **tape.met})
            self.tapes.put(key, again)
        elif not varying and not tape.met:
            if not tape.fits(values):  # it was assembled in another mode of PyTorch's
                tape.fits = fitting(values, self.changing)
            self.usual = tape.fits, tape
        return self.run(values, length) if found is None else found

    @property
    def is_captured(self) -> bool:
        """True while a CUDA graph is captured: what is kept would have no values yet."""
        return self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def is_repeated(self, key: Hashable) -> bool:
        """True if a call is like many before it."""
        count = self.repeats.get(key, 0) + 1
        if count == 1 and len(self.repeats) >= MOST_BINDINGS:
            self.repeats.clear()
        self.repeats[key] = count
        return count > (MOST_REPEATS_ON_GPU if self.device.type == "cuda" else MOST_REPEATS)

    def assembled(
        self,
        given: Sequence[Any],
        length: Length,
        varying: Mapping[int, tuple[Size, ...] | None],
        seen: Mapping[int, tuple[int, ...]] = NONE,
    ) -> TensorTape | Untaped:
        """The tape of calls with inputs like these, or the reason why there is none.

        `seen` are strides of results that were not as PyTorch tells, by slot.
        """
        try:
            room = len(self.room)
            assembly = Assembly(self.steps, self.outputs, given, room, length, varying, seen)
        except Untaped as reason:
            log.debug("a plan has no tape: %s", reason)
            return reason
        if assembly.kept and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # other streams read what is kept
        return TensorTape(assembly, self.inputs, fitting(given, self.changing))

    def run(
        self, given: Sequence[Any], length: Length, observer: Noting | None = None
    ) -> list[Any]:
        """The results, computed step by step."""
        values, sizes = [*given, *self.room], tuple(self.sizes(given))
        steps = self.known.get(sizes)
        if steps is None:
            steps = [step.bound(length) for step in self.sized]
            self.known.put(sizes, steps)
        for step, dead in zip(steps, self.last_uses, strict=True):
            step(values)
            if observer is not None:
                observer.note(step, values)
            for slot in dead:
                values[slot] = None
        return [values[x.number] if isinstance(x, Slot) else x for x in self.outputs]

    def form(self, values: Sequence[Any], length: Length) -> Hashable:
        """The part of the key that is the same in calls with sizes in the same ranges."""
        numbers = [step.number(length) for step in self.ranged]
        seen = [
            _kind(values[slot]) if slot in self.varying else _seen(values[slot])
            for slot in self.changing
        ]
        return (*numbers, *seen)

    def key(self, values: Sequence[Any]) -> tuple[Hashable, ...]:
        """All that a call depends on beside the contents of its inputs."""
        return (*self.sizes(values), *[_seen(values[slot]) for slot in self.changing])

    def sizes(self, values: Sequence[Any]) -> list[Any]:
        """The values of the symbols."""
        return [
            values[s.slot] if s.dim is None else values[s.slot].shape[s.dim] for s in self.symbols
        ]

    def length(self, values: Sequence[Any]) -> Length:
        """The function that evaluates sizes in a call."""
        if not self.symbols:
            return _number
        named = zip(self.symbols, self.sizes(values), strict=True)
        # the length of a nested tensor's ragged dimension is no number
        sizes = {s.symbol: n for s, n in named if isinstance(n, int)}
        evaluate = self.evaluate

        def length(size: Size) -> int:
            return math.prod([size.number, *[evaluate(symbol, sizes) for symbol in size.symbols]])

        return length


_UNUSUAL = ((lambda given: False), None)
"""No tape, and a test that no inputs pass."""


def _number(size: Size) -> int:
    """The number of a size without symbols."""
    assert not size.symbols
    return size.number


def _seen(x: Any) -> Hashable:
    """The shape, strides, dtype and device of an input."""
    if isinstance(x, torch.Tensor):
        return type(x), x.shape, x.stride(), x.dtype, x.device
    if isinstance(x, int):
        return x
    return type(x).__name__


def _kind(x: Any) -> Hashable:
    """The rank, dtype and device of an input, and whether it is contiguous."""
    if isinstance(x, torch.Tensor):
        is_dense = x.layout is torch.strided and type(x) in PLAIN and x.is_contiguous()
        return type(x), x.dim(), x.dtype, x.device, x.layout, is_dense
    return type(x).__name__


@dataclass(frozen=True)
class _Ranged:
    """Ranges of sizes, and the sizes that they are of."""

    ranges: Ranges
    sizes: tuple[tuple[Symbol, Size], ...]

    def number(self, length: Length) -> int:
        """The number of the kernels for the sizes of a call."""
        return self.ranges.number({symbol: length(size) for symbol, size in self.sizes})


def _ranged(step: PlanStep) -> Iterator[_Ranged]:
    """The ranges of a step that has kernels for several."""
    runner = step.executable.runner if isinstance(step, KernelStep) else None
    if isinstance(step, KernelStep) and isinstance(runner, Compiled) and runner.ranges.scales:
        sizes = {axis.extent: size for axis, size in step.sizes}
        yield _Ranged(runner.ranges, tuple((s, sizes[s]) for s in runner.ranges.symbols))


class _Sized:
    """A step, bound once for each value of the lengths that it depends on."""

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
    """For each step, the slots that no later step reads."""
    kept = {x.number for x in outputs if isinstance(x, Slot)}
    made: list[tuple[int, ...]] = []
    for step in reversed(steps):
        dead = tuple(s for s in dict.fromkeys(step.reads) if s not in kept)
        kept.update(dead)
        made.append(dead)
    return made[::-1]
