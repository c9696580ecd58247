"""Operators as a selection sees them: their kinds, their order, and the arrays that they read.

Front ends describe a model so: PyTorch's graphs and traced functions alike. Views, and cheap
operators that each reader computes anew, do not appear.
"""

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """Kinds of operators, by the relation of their results to their operands."""

    VIEW = "view"
    GENERATOR = "generator"
    POINTWISE = "pointwise"
    REDUCTION = "reduction"
    CONTRACTION = "contraction"
    MISC = "misc"


@dataclass(frozen=True, slots=True)
class Read:
    """An array that an operator reads: of another operator, or of an input."""

    array: str
    bytes: int
    """The bytes that are read: of a slice, its own."""


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator as a selection sees it."""

    name: str
    kind: Kind
    operands: tuple[int, ...] = ()
    """The numbers of earlier operators, seen through views; inputs are left out."""
    reads: tuple[Read, ...] = ()
    """The arrays that it reads from memory if nothing is fused, each once."""
    bytes: int = 0
    """The bytes of its results."""
    flops: float = 0.0
    """The operations of a product."""
    rows: int = 0
    width: int = 0
    """The rows of a product's result, of all batches together, and the length of one."""
    dtype: str = "float32"
    form: str = ""
    """All that its cost depends on beside the arrays that it reads; the same in equal layers."""
    region: str = ""
    """The layer of the model that it belongs to."""
    has_weight: bool = False
    """True if one operand of a contraction is a weight."""
    is_stored: bool = False
    """True if readers need its result in memory: they read slices of it, or look up in it."""
    is_output: bool = False
    factors: frozenset[str] = frozenset()
    """The arrays that a contraction multiplies, seen through views, by name."""
