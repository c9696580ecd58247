"""Axes, which index arrays, and dims, which are the tilings of axes by loops."""

from dataclasses import dataclass

from blockbuster_fusion.ir.interned import InternedValue


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Symbol(InternedValue):
    """A size that is known only when the program runs."""

    name: str

    def __str__(self) -> str:
        return self.name


Extent = int | Symbol


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Axis(InternedValue):
    """A name and an extent: one index of an array."""

    name: str
    extent: Extent

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Dim(InternedValue):
    """One tiling of an axis: a loop over the blocks of `axis` has a Dim of its own.

    A dim without an index is *free*: the list is a plain array in memory, and a loop over any dim
    of the axis may iterate it. Graph inputs, misc operators and renames give free lists, so that
    the loops over them have independent tiles.

    An unpacked dim (batch, head) has tiles of size 1 that leave no axis in the item. A unit dim
    has one block, the whole axis, and so needs no loop.
    """

    axis: Axis
    index: int | None = 0
    packed: bool = True
    unit: bool = False

    @property
    def name(self) -> str:
        """The name of the axis, which the paper calls a dimension."""
        return self.axis.name

    @property
    def label(self) -> str:
        """The axis's name and the dim's number, unique in a program: `K.1`; `K.*` when free."""
        return f"{self.axis.name}.{'*' if self.index is None else self.index}"

    @property
    def is_free(self) -> bool:
        return self.index is None

    @property
    def free(self) -> "Dim":
        """The free dim of the same axis."""
        return Dim(self.axis, None, self.packed)

    @property
    def as_unit(self) -> "Dim":
        """The unit dim of the same axis, with one block."""
        return Dim(self.axis, 0, self.packed, unit=True)

    def iterates(self, other: "Dim") -> bool:
        """True if a loop over this dim may iterate a list over `other`."""
        same = self.axis is other.axis and self.packed == other.packed
        return self is other or (other.index is None and same)

    def __str__(self) -> str:
        return self.name
