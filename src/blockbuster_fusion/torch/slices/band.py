"""Bands: plain slices of a dimension, slices with a step, and slices of one factor of a view.

A band takes, of every `period` elements along a dimension, those from `start` to `stop`. A plain
slice has one period, and `x[1::2]` has a period of two. The half of every head, seen in the
dimension that all heads share, has a period of the length of a head. So a band of a view is a band
of the array that is viewed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import sympy
import torch

SymbolicInt = Any
"""A length or a position: an expression of sympy's, in the symbolic sizes of a model."""


@dataclass(frozen=True, slots=True)
class Band:
    """The elements from `start` to `stop` of every period along a dimension."""

    dim: int
    start: SymbolicInt
    stop: SymbolicInt
    period: SymbolicInt | None = None
    """None for the whole dimension."""

    @property
    def width(self) -> SymbolicInt:
        return self.stop - self.start

    def length(self, extent: SymbolicInt) -> SymbolicInt:
        """The number of elements that are left of a dimension."""
        return self.width if self.period is None else extent / self.period * self.width

    def is_whole(self, extent: SymbolicInt) -> bool:
        """True if nothing is left out of a dimension."""
        return bool(self.start == 0 and self.stop == (self.period or extent))

    def within(self, other: "Band") -> "Band | None":
        """This band of what another band of the same dimension leaves, as one band if it is one."""
        if self.period is None and other.period is None:
            return replace(other, start=other.start + self.start, stop=other.start + self.stop)
        if other.period is not None and self.period == other.width:
            return replace(other, start=other.start + self.start, stop=other.start + self.stop)
        return None

    def may_overlap(self, other: "Band") -> bool:
        """True unless two bands of a dimension are known to have no element in common."""
        if self.period != other.period:
            return True
        gaps = self.stop - other.start, other.stop - self.start
        return not any(gap.is_nonpositive for gap in gaps)


Bands = tuple[Band, ...]
"""Bands in the order of their dimensions; of one dimension, each is of what the last one left."""


def symbolic(x: Any) -> SymbolicInt:
    """A length or a position as an expression."""
    return x.node.expr if isinstance(x, torch.SymInt) else sympy.Integer(int(x))


def extents(tensor: torch.Tensor) -> list[SymbolicInt]:
    """The lengths of the dimensions of a tensor."""
    return [_NUMBERS.get(s) or symbolic(s) if type(s) is int else symbolic(s) for s in tensor.shape]


_NUMBERS = {n: sympy.Integer(n) for n in range(1, 4097)}
"""Usual lengths."""


def by_dim(bands: Iterable[Band]) -> Bands:
    """Bands in the order of their dimensions."""
    return tuple(sorted(bands, key=lambda band: band.dim))


def lengths_after(lengths: Sequence[SymbolicInt], bands: Bands) -> list[SymbolicInt]:
    """The lengths of the dimensions that bands leave."""
    found = [*lengths]
    for band in bands:
        found[band.dim] = band.length(found[band.dim])
    return found


def may_overlap(one: Bands, other: Bands) -> bool:
    """True unless two slices of an array are known to have no element in common."""
    for dim in {b.dim for b in one} & {b.dim for b in other}:
        pairs = zip(
            (b for b in one if b.dim == dim), (b for b in other if b.dim == dim), strict=False
        )
        first = next(((a, b) for a, b in pairs if a != b), None)
        if first is not None and not first[0].may_overlap(first[1]):
            return False
    return True


def bands_through_view(
    bands: Bands, shown: Sequence[SymbolicInt], viewed: Sequence[SymbolicInt]
) -> Bands | None:
    """Bands of a view as bands of the array that is viewed, or None if they are none.

    `shown` and `viewed` are the shapes of the view and of the array.
    """
    shown, viewed = [*shown], [*viewed]
    found: list[Band] = []
    for band in bands:
        moved = through_view(band, shown, viewed)
        if moved is None:
            return None
        found.append(moved)
        shown[band.dim] = band.length(shown[band.dim])
        viewed[moved.dim] = moved.length(viewed[moved.dim])
    return by_dim(found)


def through_view(
    band: Band, shown: Sequence[SymbolicInt], viewed: Sequence[SymbolicInt]
) -> Band | None:
    """A band of a view as a band of the array that is viewed, or None if it is none."""
    return _through_view(band, tuple(shown), tuple(viewed))


@lru_cache(maxsize=1024)  # equal layers have equal views
def _through_view(
    band: Band, shown: tuple[SymbolicInt, ...], viewed: tuple[SymbolicInt, ...]
) -> Band | None:
    first, last = _matching_dims(shown, viewed, band.dim)
    if first is None or last is None:
        return None
    (a, b), (c, d) = first, last
    whole, inner = sympy.prod(shown[a:b]), sympy.prod(shown[band.dim + 1 : b])
    period = (shown[band.dim] if band.period is None else band.period) * inner
    start, stop = band.start * inner, band.stop * inner
    for dim in range(c, min(d, len(viewed))):
        step = sympy.prod(viewed[dim + 1 : d])
        scaled = [x / step for x in (start, stop, period)]
        times = viewed[dim] * step / period
        if all(_is_integral(x) for x in (*scaled, times)):
            is_plain = times == 1 or period == whole
            return Band(dim, scaled[0], scaled[1], None if is_plain else scaled[2])
    return None


DimRange = tuple[int, int]


def _matching_dims(
    shown: Sequence[SymbolicInt], viewed: Sequence[SymbolicInt], dim: int
) -> tuple[DimRange | None, DimRange | None]:
    """The dimensions around `dim`, and those of the viewed array that hold the same elements."""
    at, a, c = 0, 0, 0
    while at < len(shown) or c < len(viewed):
        a, b, d = at, at + 1, c + 1
        left = sympy.prod(shown[a:b])
        right = sympy.prod(viewed[c:d])
        while left != right:
            grows_left = _is_integral(right / left) and b < len(shown)
            if not grows_left and d >= len(viewed):
                return None, None
            b, d = (b + 1, d) if grows_left else (b, d + 1)
            left, right = sympy.prod(shown[a:b]), sympy.prod(viewed[c:d])
        if dim < b:
            return (a, b), (c, d)
        at, c = b, d
    return None, None


def _is_integral(x: SymbolicInt) -> bool:
    """True if a quotient is a number or a product of sizes, and no fraction."""
    return bool(sympy.denom(x) == 1)
