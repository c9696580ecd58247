"""Data types of programs over positions: arrays, recorded steps, and the finished program."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from blockbuster_fusion.array.axes import ONE, Factor, Position, Size
from blockbuster_fusion.array.primitives import Primitive
from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.ir.expr import Expr
from blockbuster_fusion.ir.types import DType


@dataclass(frozen=True, slots=True)
class Record:
    """One primitive with its operands, and the axes and dtype of its result."""

    primitive: Primitive[Position]
    operands: tuple[int, ...]
    axes: tuple[Factor, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class GivenArray:
    """An array from outside: its name in the framework, and the factors of each position."""

    source: str
    positions: tuple[Position, ...]


@dataclass(frozen=True, slots=True)
class PositionalArray:
    """An array as the framework sees it: the factors and the size of each position.

    The array is broadcast along factors that its record lacks. A `constant` has no record.
    """

    positions: tuple[Position, ...]
    sizes: tuple[Size, ...]
    dtype: DType
    record: int = -1
    constant: Expr | None = None

    def with_rank(self, rank: int) -> "PositionalArray":
        """The array with positions of length 1 put before the others."""
        missing = rank - len(self.positions)
        if not missing:
            return self
        positions = ((),) * missing + self.positions
        return replace(self, positions=positions, sizes=(ONE,) * missing + self.sizes)

    def without(self, at: Sequence[int], *, keep: bool = False) -> "PositionalArray":
        """The array without some positions, or with length 1 there."""
        pairs = [*zip(self.positions, self.sizes, strict=True)]
        made = [
            ((), ONE) if i in at else pair for i, pair in enumerate(pairs) if keep or i not in at
        ]
        return replace(self, positions=tuple(p for p, _ in made), sizes=tuple(s for _, s in made))


@dataclass(frozen=True, slots=True)
class PlacedArray:
    """An output that is written into an input, at places along one position of that.

    The other positions of the two have the same axes; `index` has the places.
    """

    value: PositionalArray
    base: PositionalArray
    index: PositionalArray
    at: int


@dataclass(frozen=True, slots=True)
class FrameworkLayout:
    """The axes of a program's array at each position of the framework's array.

    The framework's array is broadcast along axes that the program's array lacks.
    """

    name: str
    source: str
    positions: tuple[tuple[tuple[Size, bool], ...], ...]
    """For each position the sizes of its axes, each with True if the program's array has it."""

    @property
    def is_plain(self) -> bool:
        """True if the two arrays have the same shape."""
        return all(len(p) == 1 and p[0][1] for p in self.positions)


@dataclass(frozen=True, slots=True)
class PositionalProgram:
    """An array program, with the layouts of its inputs and outputs in the framework."""

    program: ArrayProgram
    inputs: tuple[FrameworkLayout, ...]
    outputs: tuple[FrameworkLayout, ...]
    sizes: tuple[tuple[Axis, Size], ...]
    """The axes whose lengths are known only at run time."""

    @property
    def reads_transposed(self) -> bool:
        """True if an array of the framework is read in two orders of its axes."""
        axes = {given.name: given.type.axes for given in self.program.inputs}
        read = [(layout.source, axes[layout.name]) for layout in self.inputs]
        return any(
            source == other and own != theirs and {*own} == {*theirs}
            for (source, own), (other, theirs) in combinations(read, 2)
        )


Operand = PositionalArray | int | float | bool
