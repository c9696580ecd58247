"""Ranges of symbolic sizes, each served by one of several programs that compute the same."""

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise

from blockbuster_fusion.ir.axis import Symbol


@dataclass(frozen=True)
class Scale:
    """Lengths of one size that stand for those near them, and the program that serves each."""

    symbol: Symbol
    lengths: tuple[int, ...]
    """In ascending order."""
    numbers: tuple[int, ...]
    """The number of the program for each length."""
    home: int
    """The place of the usual length, which program 0 serves."""

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The first length of each range but the first: halfway between lengths, by factors."""
        return tuple(math.isqrt(a * b - 1) + 1 for a, b in pairwise(self.lengths))

    def place(self, length: int) -> int:
        """The place of the length that stands for this one."""
        return bisect_right(self.starts, length)

    @property
    def ranges(self) -> Iterator[tuple[str, int]]:
        """The ranges in words, neighbours with one program together, each with its number."""
        begins = [0, *self.starts]
        places = range(len(self.lengths))
        for number, together in groupby(places, key=lambda at: self.numbers[at]):
            first, *rest = together
            after = (rest or [first])[-1] + 1
            low, high = begins[first], begins[after] - 1 if after < len(begins) else None
            if high is None:
                yield (f"{self.symbol} from {low}" if low else f"any {self.symbol}"), number
            elif not low:
                yield f"{self.symbol} up to {high}", number
            else:
                yield f"{self.symbol} from {low} to {high}", number


@dataclass(frozen=True)
class Ranges:
    """Chooses a program by sizes: of several, the one that is farthest from usual decides."""

    scales: tuple[Scale, ...] = ()

    @property
    def symbols(self) -> tuple[Symbol, ...]:
        return tuple(scale.symbol for scale in self.scales)

    def number(self, sizes: Mapping[Symbol, int]) -> int:
        """The number of the program for some sizes."""
        farthest, found = 0, 0
        for scale in self.scales:
            at = scale.place(sizes[scale.symbol])
            distance = abs(at - scale.home)
            if distance > farthest:
                farthest, found = distance, scale.numbers[at]
        return found

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """All ranges in words, each with the number of its program."""
        for scale in self.scales:
            yield from scale.ranges
