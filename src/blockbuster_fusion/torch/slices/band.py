"""Parts of a dimension: plain slices, slices with a step, and slices of one factor of a view.

All three are *bands*: of every `period` places along a dimension those from `start` to `stop`. A
plain slice has one period, `x[1::2]` has a period of two, and the half of every head, seen in the
dimension that all heads share, has the length of a head. So a band of a view is a band of what is
viewed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch

Place = Any
"""A number of places: an expression of sympy's, of the sizes that are known when a model runs."""


@dataclass(frozen=True, slots=True)
class Band:
    """Of every period of places along a dimension, those from `start` to `stop`."""

    dim: int
    start: Place
    stop: Place
    period: Place | None = None
    """None for the whole dimension."""

    @property
    def width(self) -> Place:
        return self.stop - self.start

    def length(self, extent: Place) -> Place:
        """How long the dimension is that is left."""
        return self.width if self.period is None else extent / self.period * self.width

    def is_all(self, extent: Place) -> bool:
        return bool(self.start == 0 and self.stop == (self.period or extent))

    def within(self, other: "Band") -> "Band | None":
        """This band of what another band of the same dimension leaves, as one band."""
        if self.period is None and other.period is None:
            return replace(other, start=other.start + self.start, stop=other.start + self.stop)
        if other.period is not None and self.period == other.width:
            return replace(other, start=other.start + self.start, stop=other.start + self.stop)
        return None

    def meets(self, other: "Band") -> bool:
        """Whether two bands of a dimension may have places in common."""
        if self.period != other.period:
            return True
        apart = self.stop - other.start, other.stop - self.start
        return not any(gap.is_nonpositive for gap in apart)


Bands = tuple[Band, ...]
"""Bands of several dimensions, in their order; of one dimension, each of what the last one left."""


def place(x: Any) -> Place:
    """A length or a position as an expression."""
    return x.node.expr if isinstance(x, torch.SymInt) else sympy.Integer(int(x))


def extents(tensor: torch.Tensor) -> list[Place]:
    """The lengths of a tensor's dimensions."""
    return [place(s) for s in tensor.shape]


def bands_of(found: Iterable[Band]) -> Bands:
    return tuple(sorted(found, key=lambda band: band.dim))


def lengths_of(lengths: Sequence[Place], bands: Bands) -> list[Place]:
    """How long the dimensions are that bands leave."""
    made = [*lengths]
    for band in bands:
        made[band.dim] = band.length(made[band.dim])
    return made


def meet(one: Bands, other: Bands) -> bool:
    """Whether two parts of an array may have elements in common."""
    for dim in {b.dim for b in one} & {b.dim for b in other}:
        pairs = zip(
            (b for b in one if b.dim == dim), (b for b in other if b.dim == dim), strict=False
        )
        first = next(((a, b) for a, b in pairs if a != b), None)
        if first is not None and not first[0].meets(first[1]):
            return False
    return True


def bands_through_view(
    bands: Bands, shown: Sequence[Place], viewed: Sequence[Place]
) -> Bands | None:
    """The bands of a view as bands of what is viewed, where they are that."""
    shown, viewed = [*shown], [*viewed]
    made: list[Band] = []
    for band in bands:
        moved = through_view(band, shown, viewed)
        if moved is None:
            return None
        made.append(moved)
        shown[band.dim] = band.length(shown[band.dim])
        viewed[moved.dim] = moved.length(viewed[moved.dim])
    return bands_of(made)


def through_view(band: Band, shown: Sequence[Place], viewed: Sequence[Place]) -> Band | None:
    """A band of a view as a band of what is viewed, where it is one."""
    first, last = _run(shown, viewed, band.dim)
    if first is None or last is None:
        return None
    (a, b), (c, d) = first, last
    whole, inner = sympy.prod(shown[a:b]), sympy.prod(shown[band.dim + 1 : b])
    period = (shown[band.dim] if band.period is None else band.period) * inner
    start, stop = band.start * inner, band.stop * inner
    for dim in range(c, min(d, len(viewed))):
        step = sympy.prod(viewed[dim + 1 : d])
        parts = [x / step for x in (start, stop, period)]
        times = viewed[dim] * step / period
        if all(_is_whole(x) for x in (*parts, times)):
            is_plain = times == 1 or period == whole
            return Band(dim, parts[0], parts[1], None if is_plain else parts[2])
    return None


Span = tuple[int, int]


def _run(
    shown: Sequence[Place], viewed: Sequence[Place], dim: int
) -> tuple[Span | None, Span | None]:
    """The dimensions around `dim`, and those of what is viewed, that hold the same elements."""
    at, a, c = 0, 0, 0
    while at < len(shown) or c < len(viewed):
        a, b, d = at, at + 1, c + 1
        left = sympy.prod(shown[a:b])
        right = sympy.prod(viewed[c:d])
        while left != right:
            grows_left = _is_whole(right / left) and b < len(shown)
            if not grows_left and d >= len(viewed):
                return None, None
            b, d = (b + 1, d) if grows_left else (b, d + 1)
            left, right = sympy.prod(shown[a:b]), sympy.prod(viewed[c:d])
        if dim < b:
            return (a, b), (c, d)
        at, c = b, d
    return None, None


def _is_whole(x: Place) -> bool:
    """Whether a quotient is a number or a product of sizes, and no fraction."""
    return bool(sympy.denom(x) == 1)
