"""Improves choices: the schedules and tiles of the least predicted times on a machine.

Sizes that are known only in a call are predicted for some lengths that stand for those near them.
Where other kernels are predicted to be much faster, these are kept for a range of lengths.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from blockbuster_fusion.choice import Choice, Loops
from blockbuster_fusion.errors import BadExtent, BlockbusterError
from blockbuster_fusion.ir.axis import Axis, Dim, Symbol
from blockbuster_fusion.ir.tiling import Extents, given_extents
from blockbuster_fusion.machine.machine import Machine
from blockbuster_fusion.nest.nest import Nest
from blockbuster_fusion.runtime.executable import Sizes
from blockbuster_fusion.runtime.ranges import Ranges, Scale
from blockbuster_fusion.schedule.early import may_be_early
from blockbuster_fusion.schedule.search import Found, Lower, glanced, searched
from blockbuster_fusion.schedule.times import CountedKernels, total

T = TypeVar("T")

MOST_KEPT = 4
"""The number of searched choices that are tried in turn."""
MOST_SEARCHED = 2
"""The number of snapshots whose schedules are searched."""
CLOSE = 1.02
"""The factor within which an early start does not decide between choices."""
MOST_RANGED = 4
"""The number of choices that serve ranges of sizes, that for the usual sizes included."""
ALIKE = 1.03
"""The factor within which predicted times count as equal."""
WORTH_IT = 1.3
"""The factor by which another choice must be faster to serve a range."""
LEAST_GAIN = 5e-6
"""The seconds by which it must be faster."""


def improved(
    choices: Sequence[Choice], sizes: Sizes, machine: Machine, most: int = MOST_KEPT
) -> list[Choice]:
    """The same programs with the schedules and tiles of the least predicted times, best first.

    `sizes` are the lengths of the axes that are not fixed. The choices as they were come last.
    """
    return Improver(choices, machine).best(sizes, most)


@dataclass(frozen=True)
class Points:
    """The sizes of a program for several lengths of one symbol, in ascending order."""

    symbol: Symbol
    sizes: tuple[Sizes, ...]
    home: int
    """The place of the usual sizes."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """The length of the symbol at each point."""
        found = (Extents.of_sizes(sizes, "a point").sizes for sizes in self.sizes)
        return tuple(lengths[self.symbol] for lengths in found)


def points_of(along: Sequence[Sizes], usual: Sizes) -> Points | None:
    """The points of some sizes, along the first axis that grows; None if there are not several."""
    for number, (axis, _) in enumerate(usual):
        lengths = [sizes[number][1] for sizes in along]
        if len(set(lengths)) > 1 and isinstance(axis.extent, Symbol):
            found = {n: sizes for n, sizes in zip(lengths, along, strict=True) if _is_full(sizes)}
            found[usual[number][1]] = usual
            ordered = sorted(found)
            if len(found) < 2 or not _is_full(usual):
                return None
            sizes = tuple(found[length] for length in ordered)
            return Points(axis.extent, sizes, ordered.index(usual[number][1]))
    return None


def _is_length(number: object) -> bool:
    return type(number) is int and number > 0


def _is_full(sizes: Sizes) -> bool:
    """True if every axis has elements."""
    return all(length > 0 for _, length in sizes)


def points_along(axes: Iterable[Axis], lengths: Mapping[str, Sequence[int]]) -> list[Points]:
    """The points of each size that has lengths, the others at their first; or BadExtent.

    Lengths are by symbol or axis, and every size that is not fixed must have some.
    """
    axes = sorted(axes, key=lambda axis: axis.name)
    for name, given in lengths.items():
        if not isinstance(given, Sequence) or not given or not all(map(_is_length, given)):
            raise BadExtent(name=name, problem=f"{given!r} are no lengths: ints of at least 1")
    usual = {name: given[0] for name, given in lengths.items()}
    made: list[Points] = []
    for name, given in lengths.items():
        ordered = sorted(set(given))
        extents = [given_extents(axes, usual | {name: length}) for length in ordered]
        sizes = tuple(tuple((axis, known.of(axis)) for axis in axes) for known in extents)
        symbol = next(a.extent for a in axes if name in (a.name, str(a.extent)))
        if not isinstance(symbol, Symbol):
            raise BadExtent(name=name, problem=f"it is fixed to {symbol}; leave out its lengths")
        made.append(Points(symbol, sizes, ordered.index(given[0])))
    return made


def by_lengths(
    choices: Sequence[Choice], lengths: Mapping[str, Sequence[int]], machine: Machine
) -> "tuple[list[Choice], Elsewhere]":
    """The best choices for the first of the lengths that each size has, and for the others."""
    points = points_along({dim.axis for dim in choices[0].graph.dims}, lengths)
    improver = Improver(choices, machine)
    best = improver.steady(improver.best(points[0].sizes[points[0].home]), points)
    return best, improver.elsewhere(best[0], points)


@dataclass(frozen=True)
class Elsewhere:
    """The choices for other sizes than the usual ones, with the ranges that they serve."""

    ranges: Ranges = field(default_factory=Ranges)
    choices: tuple[Choice, ...] = ()
    """Those with the numbers 1, 2, … of the ranges; 0 is the choice for the usual sizes."""

    def choice(self, usual: Choice, sizes: Sizes) -> Choice:
        """The choice that serves some sizes."""
        number = self.ranges.number(Extents.of_sizes(sizes, "a call").sizes)
        return (usual, *self.choices)[number]


@dataclass(frozen=True)
class Ranked(Generic[T]):
    """A choice, or its data, with its predicted seconds: as it is, and without an early start."""

    seconds: float
    usual: float
    choice: T


def in_order(found: Iterable[Ranked[T]]) -> list[Ranked[T]]:
    """The choices that can be run, the best first; an early start does not decide by a little."""
    finite = [x for x in found if math.isfinite(x.seconds)]
    least = min((x.seconds for x in finite), default=0.0)
    return sorted(finite, key=lambda x: (x.seconds > least * CLOSE, x.usual))


def merged(found: Iterable[Iterable[Ranked[T]]], most: int = MOST_KEPT) -> list[Ranked[T]]:
    """The best choices of several snapshots."""
    return in_order(x for own in found for x in own)[:most]


class Improver:
    """Searches the schedules of some choices on a machine; nests serve all sizes."""

    def __init__(self, choices: Sequence[Choice], machine: Machine) -> None:
        self.choices, self.machine = choices, machine
        self.loops: dict[object, Loops] = {}
        self.nests: dict[object, tuple[Nest, Mapping[Dim, int]]] = {}

    def best(self, sizes: Sizes, most: int = MOST_KEPT) -> list[Choice]:
        """The choices of the least predicted times for some sizes, and those given."""
        return [*self.searched(sizes, most), *self.choices]

    def searched(self, sizes: Sizes, most: int = MOST_KEPT) -> list[Choice]:
        """The choices of the least predicted times for some sizes."""
        return [x.choice for x in merged(self.by_snapshot(sizes, most), most)]

    def by_snapshot(
        self, sizes: Sizes, most: int = MOST_KEPT, only: int | None = None
    ) -> Iterator[list[Ranked[Choice]]]:
        """The best choices of each snapshot that is searched, or `only` of the one with a number.

        Each may be searched by another process: what is found does not depend on the others.
        """
        kernels = self.kernels(sizes)
        for number, choice in enumerate(self.promising(kernels)):
            if only in (None, number):
                yield self.ranked(choice, kernels, most)

    def ranked(self, choice: Choice, kernels: CountedKernels, most: int) -> list[Ranked[Choice]]:
        """The best choices that differ from one in schedules and tiles, and the one as it is."""
        found: list[Ranked[Choice]] = []
        points = searched(self.lowering(choice), choice.schedule, kernels)
        for best in points[: most * MOST_SEARCHED]:
            made = replace(choice, schedule=best.schedule, tiles=best.tiles)
            usual, made = self.predicted(made, kernels), self.hastened(made, best, kernels)
            found.append(Ranked(self.predicted(made, kernels), usual, made))
        usual = self.predicted(choice, kernels)
        found.append(Ranked(usual, usual, choice))
        kept: dict[object, Ranked[Choice]] = {}
        least = min(found, key=lambda x: x.seconds)  # it may be close to the best of all snapshots
        for x in in_order(found):  # points that are the same once tiles are fitted count once
            tiles = frozenset(self.scheduled(x.choice)[1].items())
            kept.setdefault((str(x.choice.schedule), tiles), x)
            if len(kept) == most:
                break
        others = [x for x in kept.values() if x is not least]
        return [*others, *in_order([least])]

    def hastened(self, choice: Choice, found: Found, kernels: CountedKernels) -> Choice:
        """The choice with kernels that start early, if that is predicted to be faster."""
        if not may_be_early(found.launches, self.machine):
            return choice
        early = replace(choice, schedule=replace(choice.schedule, early=True))
        return min(choice, early, key=lambda x: self.predicted(x, kernels))

    def kernels(self, sizes: Sizes) -> CountedKernels:
        """The kernels of nests for some sizes, none so far."""
        return CountedKernels(Extents.of_sizes(sizes, "the given sizes"), self.machine)

    def promising(self, kernels: CountedKernels) -> Sequence[Choice]:
        """The choices whose schedules are searched: on a GPU, those that are fast at a glance."""
        if self.machine.target != "cuda" or len(self.choices) <= MOST_SEARCHED:
            return self.choices[:MOST_SEARCHED]

        def seconds(choice: Choice) -> float:
            return glanced(self.lowering(choice), choice.schedule, kernels)

        return sorted(self.choices, key=seconds)[:MOST_SEARCHED]

    def lowering(self, choice: Choice) -> Lower:
        """Gives the nests of a choice by schedule."""
        return lambda schedule: self.scheduled(replace(choice, schedule=schedule))

    def scheduled(self, choice: Choice) -> tuple[Nest, Mapping[Dim, int]]:
        """The nest of a choice with its tiles, lowered once; so are the loops of all tiles."""
        key = (choice.snapshot, choice.schedule, tuple(choice.tiles.items()))
        if key not in self.nests:
            loops = (choice.snapshot, choice.schedule.of_loops)
            if loops not in self.loops:
                self.loops[loops] = choice.loops()
            self.nests[key] = choice.scheduled(loops=self.loops[loops])
        return self.nests[key]

    def seconds(self, choice: Choice, sizes: Sizes) -> float:
        """The predicted time of the kernels that a choice becomes; infinite if there are none."""
        return self.predicted(choice, self.kernels(sizes))

    def predicted(self, choice: Choice, kernels: CountedKernels) -> float:
        """The same, for kernels of which some may be known."""
        try:
            nest, tiles = self.scheduled(choice)
            return total(kernels.times(nest).predicted(choice.schedule, tiles)).device
        except BlockbusterError:
            return math.inf

    def steady(self, choices: Sequence[Choice], points: Sequence[Points]) -> list[Choice]:
        """Choices for the usual sizes, that one first which also serves the others best.

        It is one of those that are predicted to be about as fast as the first.
        """
        if not points:
            return [*choices]
        usual = points[0].sizes[points[0].home]
        limit = self.seconds(choices[0], usual) * ALIKE
        alike = [choice for choice in choices if self.seconds(choice, usual) <= limit]
        ends = [along.sizes[at] for along in points for at in (0, -1)]
        first = min(alike, key=lambda x: math.prod(self.seconds(x, sizes) for sizes in ends))
        return [first, *(choice for choice in choices if choice is not first)]

    def elsewhere(self, usual: Choice, points: Sequence[Points]) -> Elsewhere:
        """The choices for other sizes, where the usual one is predicted to be much slower."""
        choices = [usual]
        scales = [self._scale(along, choices) for along in points]
        kept = tuple(scale for scale in scales if any(scale.numbers))
        return Elsewhere(Ranges(kept), tuple(choices[1:]))

    def _scale(self, along: Points, choices: list[Choice]) -> Scale:
        """A choice for each point: a known one, or one that is added.

        The ends are searched first. Between points with one choice, that serves all.
        """
        last, home = len(along.sizes) - 1, along.home
        numbers = {home: 0}
        for end in (0, last):
            if end not in numbers:
                numbers[end] = self._number(along.sizes[end], choices)
        spans = [(0, home), (home, last)]
        while spans:
            low, high = spans.pop()
            if numbers[low] == numbers[high]:
                numbers |= dict.fromkeys(range(low, high), numbers[low])
            elif high - low > 1:
                middle = (low + high) // 2
                numbers[middle] = self._number(along.sizes[middle], choices)
                spans += [(low, middle), (middle, high)]
        ordered = tuple(numbers[at] for at in range(last + 1))
        return Scale(along.symbol, along.lengths, ordered, home)

    def _number(self, sizes: Sizes, choices: list[Choice]) -> int:
        """The number of the first choice that is fast enough, or else of a new one."""
        best = self.best(sizes)[0]
        least = self.seconds(best, sizes)
        limit = max(least * WORTH_IT, least + LEAST_GAIN)
        known = [self.seconds(choice, sizes) for choice in choices]
        for number, seconds in enumerate(known):
            if seconds <= limit:
                return number
        if len(choices) == MOST_RANGED:
            return known.index(min(known))
        choices.append(best)
        return len(choices) - 1
