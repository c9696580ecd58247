"""What a front end has said of a model: operators over factors, before axes have names."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blockbuster_fusion.array.axes import Factor, Position, Size
from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.ir.combiner import Combiner
from blockbuster_fusion.ir.expr import Expr
from blockbuster_fusion.ir.types import DType

SizeOf = Callable[[Sequence[Factor]], Expr]
"""How many elements some factors have, as an expression of sizes."""


@dataclass(frozen=True, slots=True)
class Given:
    """An array that comes from outside, with what each of its positions stands for."""

    name: str
    positions: tuple[Position, ...]


@dataclass(frozen=True, slots=True)
class Pointwise:
    """An expression for every element; it may ask for sizes."""

    make: Callable[[SizeOf], Expr]
    expr: Expr | None = None
    """The expression, where it asks for none."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A reduction over some factors."""

    factors: tuple[Factor, ...]
    combiner: Combiner


@dataclass(frozen=True, slots=True)
class Contraction:
    """A sum of products over some factors."""

    factors: tuple[Factor, ...]


@dataclass(frozen=True, slots=True)
class Counting:
    """0, 1, 2, … along a position."""

    factors: tuple[Factor, ...]


@dataclass(frozen=True, slots=True)
class Lookup:
    """The elements of a table at places along one factor that are data."""

    factors: tuple[Factor, ...]


@dataclass(frozen=True, slots=True)
class Renamed:
    """The same array with some factors under other names."""

    old: tuple[Factor, ...]
    new: tuple[Factor, ...]


Made = Given | Pointwise | Summary | Contraction | Counting | Lookup | Renamed


@dataclass(frozen=True, slots=True)
class Record:
    """One operator, with the axes that its result really has."""

    made: Made
    operands: tuple[int, ...]
    axes: tuple[Factor, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class PositionalArray:
    """An array as the framework sees it: what each position stands for.

    A position may have factors that the recorded array lacks: it is broadcast along these. A
    `constant` is no array at all.
    """

    positions: tuple[Position, ...]
    sizes: tuple[Size, ...]
    dtype: DType
    record: int = -1
    constant: Expr | None = None


@dataclass(frozen=True, slots=True)
class FrameworkLayout:
    """How an array of the program lies in the framework's: along each position some axes, of which
    the framework's array may be broadcast along those that the program's lacks."""

    name: str
    source: str
    positions: tuple[tuple[tuple[Size, bool], ...], ...]
    """For each position its factors: their sizes, and whether the program's array has them."""

    @property
    def is_plain(self) -> bool:
        """Whether the two arrays have the same shape."""
        return all(len(p) == 1 and p[0][1] for p in self.positions)


@dataclass(frozen=True, slots=True)
class PositionalProgram:
    """The array program, and what its inputs and outputs are to the framework."""

    program: ArrayProgram
    inputs: tuple[FrameworkLayout, ...]
    outputs: tuple[FrameworkLayout, ...]
    sizes: tuple[tuple[Axis, Size], ...]
    """The axes whose lengths are known only when the program runs."""


Operand = PositionalArray | int | float | bool
