"""Ranges of a symbolic size in which kernels win, or PyTorch's operators do: a plan for each.

A crossing is a pair of neighbouring values of a symbol between which the faster one of a part
changes. One crossing below the value of the captured call and one above it divide all values into
at most three ranges. In a range, kernels run a part only if they do not lose at its ends.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from blockbuster_fusion.ir.axis import Symbol
from blockbuster_fusion.runtime.ranges import Scale
from blockbuster_fusion.torch.capture.sizes import ExpectedSizes, Span

LEAST_GAIN = 2e-5
"""The seconds that kernels must win for ranges to be worth compiling."""


@dataclass(frozen=True)
class Crossing:
    """Values of a symbol between which the faster one of a part changes."""

    symbol: str
    lengths: tuple[int, ...]
    """The values that were tried: that of the captured call, and others away from it."""
    at: int
    """The place of the first one for which the faster one is not that of the captured call."""
    gain: float
    """The seconds that kernels win where they do."""
    wins: bool
    """True if kernels win in the captured call."""

    @property
    def first(self) -> int:
        """The value at this place."""
        return self.lengths[self.at]

    @property
    def is_above(self) -> bool:
        return self.lengths[1] > self.lengths[0]

    def is_kept(self, other: "Crossing") -> bool:
        """True if kernels run the part where they win, with ranges that another crossing divides.

        Of the two ranges, that in which they win must not reach beyond this crossing.
        """
        return self.first == other.first or (self.first > other.first) == (
            self.wins == self.is_above
        )


@dataclass(frozen=True)
class Division:
    """All values of a symbol, divided into ranges, of which 0 is that of the captured call."""

    scale: Scale
    spans: tuple[Span, ...]


def divided(crossings: Sequence[Crossing], expected: ExpectedSizes) -> Division | None:
    """The ranges of the symbol with which kernels win most; None if they win too little."""
    gains: dict[str, float] = {}
    for crossing in crossings:
        gains[crossing.symbol] = gains.get(crossing.symbol, 0.0) + crossing.gain
    if max(gains.values(), default=0.0) < LEAST_GAIN:
        return None
    symbol = max(gains, key=gains.__getitem__)
    own = [x for x in crossings if x.symbol == symbol]
    lengths = expected.lengths[symbol]
    numbers, spans = dict.fromkeys(lengths, 0), list[Span]()
    for number, crossing in enumerate(_leading(own), start=1):
        first, tried = crossing.first, crossing.lengths[crossing.at :]
        beyond = [n for n in lengths if (n >= first if crossing.is_above else n <= first)]
        numbers |= dict.fromkeys(beyond, number)
        spans.append(Span(symbol, tuple(beyond), tried[(len(tried) - 1) // 2]))
    usual = expected.hints[symbol]
    home = Span(symbol, tuple(n for n in lengths if not numbers[n]), usual)
    found = tuple(numbers[n] for n in lengths)
    scale = Scale(Symbol(symbol), tuple(lengths), found, lengths.index(usual))
    return Division(scale, (home, *spans))


def _leading(crossings: Sequence[Crossing]) -> Iterator[Crossing]:
    """On each side of the captured call, the crossing with which kernels win most."""
    for is_above in (False, True):
        side = [x for x in crossings if x.is_above == is_above]

        def kept(leading: Crossing, side: Sequence[Crossing] = side) -> float:
            return sum(x.gain for x in side if x.is_kept(leading))

        if side:
            yield max(side, key=kept)
