"""Extents and tiles: the length of each axis, and the blocks of each dim."""

from collections.abc import Iterable, Mapping

import numpy as np

from blockbuster_fusion.errors import BadExtent, BadTile
from blockbuster_fusion.ir.axis import Axis, Dim, Symbol

DEFAULT_TILE = 64

Tiles = Mapping[Dim | str, int]


class Extents:
    """The extents of axes; a symbol is bound once, and its owner is kept for errors."""

    def __init__(self) -> None:
        self._bound: dict[Symbol, tuple[int, str]] = {}

    @classmethod
    def of_sizes(cls, sizes: Iterable[tuple[Axis, int]], owner: str) -> "Extents":
        """The extents of axes with these lengths, which `owner` gave."""
        made = cls()
        for axis, length in sizes:
            made.bind(axis, length, owner)
        return made

    def of(self, axis: Axis) -> int:
        if isinstance(axis.extent, int):
            return axis.extent
        if axis.extent not in self._bound:
            raise BadExtent(name=axis.extent, problem=f"nothing says how long axis {axis} is")
        return self._bound[axis.extent][0]

    def knows(self, axis: Axis) -> bool:
        return isinstance(axis.extent, int) or axis.extent in self._bound

    @property
    def sizes(self) -> dict[Symbol, int]:
        """The symbols that are bound, with their values."""
        return {symbol: length for symbol, (length, _) in self._bound.items()}

    def bind(self, axis: Axis, length: int, owner: str) -> str | None:
        """Binds the length of `axis` of `owner`; returns the reason if that fails."""
        extent = axis.extent
        if isinstance(extent, int):
            if extent == length:
                return None
            return f"axis {axis} has {length} elements, and its extent is {extent}"
        known, where = self._bound.setdefault(extent, (length, f"axis {axis} of {owner}"))
        if known == length:
            return None
        return f"axis {axis} has {length} elements, but {where} has {known}, and both are {extent}"


def given_extents(axes: Iterable[Axis], given: Mapping[str, int]) -> Extents:
    """Extents from a mapping by symbol or axis name; raises BadExtent if it is wrong."""
    axes = sorted(axes, key=lambda axis: axis.name)
    meant = {axis.name: axis for axis in axes}
    meant |= {axis.extent.name: axis for axis in axes if isinstance(axis.extent, Symbol)}
    extents = Extents()
    for name, length in given.items():
        if name not in meant:
            raise BadExtent(name=name, problem=f"unknown; known are {', '.join(sorted(meant))}")
        if not _is_count(length) or length < 0:
            raise BadExtent(name=name, problem=f"{length!r} is no length: an int of at least 0")
        problem = extents.bind(meant[name], int(length), f"extents[{name!r}]")
        if problem is not None:
            raise BadExtent(name=name, problem=problem)
    return extents


def given_tiles(
    dims: Iterable[Dim], tiles: Tiles | None, *, of_kernels: bool = False
) -> dict[Dim, int]:
    """The tile of each dim that `tiles` names: by the dim, its label, or its axis's name.

    An axis without a loop may be named as well, because fusion changes the loops. With
    `of_kernels`, labels may also be those of dims that only kernels have.
    """
    dims = sorted(dims, key=lambda d: d.label)
    if of_kernels:
        dims += _beyond(dims, [key for key in tiles or {} if isinstance(key, str)])
    loops = [d for d in dims if not d.is_free]
    axes = {d.name for d in dims}
    names = dict.fromkeys([*sorted(axes), *(d.label for d in loops)])
    by_axis: dict[Dim, int] = {}
    made: dict[Dim, int] = {}
    for key, tile in (tiles or {}).items():
        shown = key.label if isinstance(key, Dim) else key
        meant = [d for d in loops if key is d or key in (d.name, d.label)]
        if not meant and key not in axes:
            raise BadTile(name=shown, problem=f"no such dim; known are {', '.join(names)}")
        if not _is_count(tile) or tile < 1:
            raise BadTile(name=shown, problem=f"{tile!r} is no tile: an int of at least 1")
        for dim in meant:
            if not dim.packed and tile != 1:
                raise BadTile(name=shown, problem=f"{dim.label} is unpacked, so its tile is 1")
            if key == dim.name:
                by_axis[dim] = int(tile)
            elif made.setdefault(dim, int(tile)) != tile:
                raise BadTile(name=shown, problem=f"{dim.label} is given as {made[dim]} as well")
    return by_axis | made


def _beyond(dims: Iterable[Dim], labels: Iterable[str]) -> list[Dim]:
    """The dims of labels with an axis that is known, and a number that is not."""
    axes = {dim.name: dim.axis for dim in dims if dim.packed}
    known = {dim.label for dim in dims}
    parts = (label.rpartition(".") for label in labels if label not in known)
    return [
        Dim(axes[name], int(number))
        for name, _, number in parts
        if name in axes and number.isascii() and number.isdigit()
    ]


def _is_count(number: object) -> bool:
    return isinstance(number, int | np.integer) and not isinstance(number, bool)


class Tiling:
    """The blocks of each dim: all of the tile's size except the last, which may be shorter."""

    def __init__(self, extents: Extents, tiles: Mapping[Dim, int]) -> None:
        self.extents = extents
        self.tiles = tiles
        self._blocks: dict[Dim, tuple[slice, ...]] = {}

    def starts(self, dim: Dim) -> range:
        """The start of each block along the axis."""
        extent = self.extents.of(dim.axis)
        if dim.unit:
            return range(0, extent, max(extent, 1))
        return range(0, extent, self.tiles.get(dim, DEFAULT_TILE) if dim.packed else 1)

    def blocks(self, dim: Dim) -> tuple[slice, ...]:
        """The start and the end of each block along the axis."""
        made = self._blocks.get(dim)
        if made is None:
            starts = self.starts(dim)
            made = tuple(slice(at, min(at + starts.step, starts.stop)) for at in starts)
            self._blocks[dim] = made
        return made

    def length(self, dim: Dim, *, in_item: bool) -> int | None:
        """The length of the array axis of a dim; unknown for a free list of items without it."""
        if in_item or not dim.packed:
            return self.extents.of(dim.axis)
        return None if dim.is_free else len(self.starts(dim))


def nothing_to_pick(dim: Dim, index: int, count: int) -> BadTile:
    """The error of a pick of a block that a list does not have."""
    problem = f"there are {count} blocks, and number {index} is picked; make the tile smaller"
    return BadTile(name=dim.label, problem=problem)
