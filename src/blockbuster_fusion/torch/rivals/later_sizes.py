"""Weighs kernels against PyTorch's operators for the sizes that later calls may have."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch.fx import Node
from torch.utils._python_dispatch import _disable_current_modes

from blockbuster_fusion.array.axes import Length
from blockbuster_fusion.choice import Choice
from blockbuster_fusion.compiler import executable_of
from blockbuster_fusion.ir.tiling import Extents, Tiling
from blockbuster_fusion.machine.machine import Machine
from blockbuster_fusion.messages import log
from blockbuster_fusion.runtime.executable import Sizes
from blockbuster_fusion.schedule.cost import Seconds, error_of, predicted
from blockbuster_fusion.torch.capture.sizes import ExpectedSizes
from blockbuster_fusion.torch.capture.touched import bytes_of
from blockbuster_fusion.torch.compile_parts import PartCompiler
from blockbuster_fusion.torch.groups import LibraryChoice
from blockbuster_fusion.torch.options import device_of
from blockbuster_fusion.torch.rivals.composites import Composite
from blockbuster_fusion.torch.rivals.crossings import Crossing
from blockbuster_fusion.torch.rivals.least import least
from blockbuster_fusion.torch.rivals.library import LibraryTimes
from blockbuster_fusion.torch.rivals.timing import launcher, timed
from blockbuster_fusion.torch.rivals.weighing import MEASURED, Weighing
from blockbuster_fusion.torch.to_array_program import PartProgram

MOST_BYTES = 1 << 23
"""The bytes of the largest array that PyTorch's operators are measured with."""
MOST_SECONDS = 0.01
"""The longest that kernels may take, at least, for sizes that are tried in search of a crossing."""


@dataclass(frozen=True)
class Later:
    """The times of a part for the sizes of a later call."""

    sizes: Sizes
    library: Seconds
    kernels: Seconds
    config: str
    """The configuration of the kernels."""
    error: float
    """The factor by which these may be slower."""
    basis: str
    """The source of their time: predicted, or measured."""

    def described(self, choice: LibraryChoice) -> LibraryChoice:
        """A choice of PyTorch's operators, with the times for these sizes."""
        sizes = ", ".join(f"{axis}={length}" for axis, length in self.sizes)
        basis = f"{self.basis} for {sizes}"
        return replace(
            choice, library=self.library, kernels=self.kernels, basis=basis, config=self.config
        )


class LaterSizes:
    """A part, weighed for other sizes than those of the captured call."""

    def __init__(
        self,
        parts: PartCompiler,
        machine: Machine,
        weighing: Weighing,
        nodes: Sequence[Node],
        cheap: Sequence[Node],
        composites: Sequence[Composite],
    ) -> None:
        """`cheap` are operators that PyTorch would run beside those of the part."""
        self.parts, self.machine, self.nodes = parts, machine, nodes
        self.whole, self.composites = [*cheap, *nodes], composites
        self.weighing = weighing
        self.replayed, self.measures = weighing.replayed, weighing.measures
        self.expected = parts.expected

    def loss(self) -> Later | None:
        """The times for sizes for which kernels lose: the least, or large ones."""
        part = self.parts.program(self.nodes)
        if not self.parts.points(part):
            return None
        for length in self._ends():
            found = self.at(length)
            if found is not None and self._gain(found) < 0:
                return found
        return None

    def _ends(self) -> Iterator[Length]:
        """The least sizes, and the largest whose arrays are not too long to be tried."""
        yield self.expected.shortest
        for length in self.expected.longest:
            if self._bytes(length) <= MOST_BYTES:
                yield length
                return

    def at(self, length: Length) -> Later | None:
        """The times for some sizes, or None if no call can have them."""
        part, target = self.parts.program(self.nodes), self.parts.options.target_of(self.nodes)
        sizes = self.parts.sizes(part, length)
        library = self._library(length)
        if library is None:
            return None
        usual = self.parts.choices(part, target)[0]
        choice = self.parts.elsewhere(part, target).choice(usual, sizes)
        key = (self.parts.key(part, target), sizes, str(choice.config), self.measures)
        if key not in self.parts.later:  # equal layers have equal times
            self.parts.later[key] = self._kernels(part, choice, sizes, length)
        found = self.parts.later[key]
        basis = "measured" if self.measures and found[-1] == MEASURED else "predicted"
        return Later(sizes, library, *found, basis)

    def _kernels(
        self, part: PartProgram, choice: Choice, sizes: Sizes, length: Length
    ) -> tuple[Seconds, str, float]:
        """The time of the kernels of a choice, their configuration, and the factor of its error."""
        nest, tiles = choice.scheduled()
        spent = self._measured(part, choice, length) if self.measures else None
        if spent is None:
            tiling = Tiling(Extents.of_sizes(sizes, "a later call"), tiles)
            seconds = predicted(nest, tiling, self.machine, choice.schedule)
            return seconds, str(choice.config), error_of(nest, self.machine)
        is_cpu = self.machine.target == "cpu"
        host = 0.0 if is_cpu else self.machine.launch * len(nest.launches)
        return Seconds(spent, host), str(choice.config), MEASURED

    def _measured(self, part: PartProgram, choice: Choice, length: Length) -> float | None:
        """The seconds of a choice; None if every sample has waited for other programs."""
        device, threads = device_of(self.nodes), self.parts.threads
        with _disable_current_modes(), torch.no_grad():
            given, sizes = self.parts.examples(part, device, length)
            made = executable_of([choice], threads if device.type == "cpu" else None)
            timing = timed(launcher(made, given, sizes, device), device)
        return timing.seconds.device if timing.is_sure else None

    # ---------------------------------------------------------------- crossings

    def crossings(self, won: float | None) -> Iterator[Crossing]:
        """The values of each symbol between which the faster one changes, others as captured.

        `won` are the seconds that kernels win in the captured call, or None if they lose there.
        Those that win lose elsewhere as soon as they are slower; those that lose win elsewhere if
        they are faster by more than the error of their times.
        """
        for symbol, side in _sides(self.expected):
            tried = [side[0], *self.tried(symbol, side[1:])]
            gain = partial(self.gain_at, symbol, is_sure=won is None)
            found = _crossing(symbol, tried, gain, won)
            if found is not None:
                yield found

    def tried(self, symbol: str, lengths: Sequence[int]) -> Iterator[int]:
        """The values of a symbol, of those given, that change the part and are soon measured."""
        usual = self._shape(self.expected.captured)
        for value in lengths:
            length = self.expected.given({symbol: value})
            is_small = self._bytes(length) <= MOST_BYTES and self._shape(length) != usual
            if is_small and self._least(length)[1].device <= MOST_SECONDS:
                yield value

    def gain_at(self, symbol: str, value: int, *, is_sure: bool) -> float | None:
        """The seconds that kernels win for a value; None if there can be no such call.

        With `is_sure`, they count only if they are more than the error of the kernels' time.
        """
        length = self.expected.given({symbol: value})
        if is_sure and not self._may_win(length):
            return 0.0
        found = self.at(length)
        return None if found is None else self._gain(found, found.error if is_sure else 1.0)

    def _gain(self, found: Later, error: float = 1.0) -> float:
        """The seconds that kernels win if they are slower than predicted by a factor."""
        kernels = found.kernels.total(replayed=self.replayed)
        return found.library.total(replayed=self.replayed) - kernels * error

    def _may_win(self, length: Length) -> bool:
        """True if the least time that kernels could take is short enough."""
        has_product, seconds = self._least(length)
        error = self.weighing.margin(self.machine.target, has_product=has_product)
        library = self._library(length)
        if library is None:
            return True  # the times tell that there is no such call
        limit = library.total(replayed=self.replayed)
        return seconds.total(replayed=self.replayed) * error < limit

    def _least(self, length: Length) -> tuple[bool, Seconds]:
        return least(self.parts.analysis, self.whole, self.machine, length)

    def _library(self, length: Length) -> Seconds | None:
        """The time of PyTorch's operators; None if they refuse such sizes."""
        try:
            return LibraryTimes(self.parts.analysis, length).of(self.whole, self.composites)
        except (RuntimeError, ValueError) as error:
            log.debug("no call can have such sizes: %s", error)
            return None

    def _bytes(self, length: Length) -> int:
        """The bytes of the largest result."""
        return max(bytes_of(node, length) for node in self.nodes)

    def _shape(self, length: Length) -> list[int]:
        """The bytes of all arrays."""
        around = {x: None for n in self.whole for x in (n, *n.all_input_nodes)}
        return [bytes_of(x, length) for x in around]


def joint_crossings(parts: Sequence[LaterSizes], needed: float) -> Iterator[Crossing]:
    """The values of each symbol from which on kernels win a number of seconds together.

    In the captured call they win less. Parts for which a value is not tried count as nothing there.
    """
    for symbol, side in _sides(parts[0].expected) if parts else ():
        tried = [{*part.tried(symbol, side[1:])} for part in parts]

        def gain(value: int, symbol: str = symbol, tried: Sequence[set[int]] = tried) -> float:
            own = [part for part, values in zip(parts, tried, strict=True) if value in values]
            gains = (part.gain_at(symbol, value, is_sure=True) for part in own)
            return sum(max(0.0, x or 0.0) for x in gains) - needed

        values = [n for n in side[1:] if any(n in x for x in tried)]
        found = _crossing(symbol, [side[0], *values], gain, None)
        if found is not None:
            yield found


def _sides(expected: ExpectedSizes) -> Iterator[tuple[str, list[int]]]:
    """The values of each symbol from that of the captured call on: down, and up."""
    for symbol, lengths in expected.lengths.items():
        if lengths[0]:  # or else it was captured without elements
            at = lengths.index(expected.hints[symbol])
            yield symbol, lengths[at::-1]
            yield symbol, lengths[at:]


def _crossing(
    symbol: str, lengths: list[int], gain_at: Callable[[int], float | None], won: float | None
) -> Crossing | None:
    """The crossing along some values, the first of which is that of the captured call."""

    def changes(gain: float | None) -> bool:
        return gain is not None and (gain > 0 if won is None else gain < 0)

    while len(lengths) > 1 and (last := gain_at(lengths[-1])) is None:
        lengths = lengths[:-1]  # no call can have such sizes
    if len(lengths) < 2 or last is None or not changes(last):
        return None
    low, high = 0, len(lengths) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if changes(gain_at(lengths[middle])) else (middle, high)
    return Crossing(symbol, tuple(lengths), high, last if won is None else won, won is not None)
