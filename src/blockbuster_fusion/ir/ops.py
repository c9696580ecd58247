"""The operators of a block program, on one screen.

Functional operators work on items in local memory; `Map` and `Reduce` iterate lists; `Rename`,
`Pick`, `Join` and `Iota` are structural nodes, which the paper draws as edges or omits; `Misc` is
every other operator. An operator holds no edges: a `Node` joins it to its operands.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from blockbuster_fusion.ir.axis import Axis, Dim
from blockbuster_fusion.ir.combiner import Combiner, Mode
from blockbuster_fusion.ir.expr import Expr
from blockbuster_fusion.ir.types import DType, Type

if TYPE_CHECKING:
    from blockbuster_fusion.ir.graph import Graph


@dataclass(frozen=True, slots=True)
class Input:
    """An input of the graph: an array of the program, or a port of the map around it."""

    name: str
    type: Type


@dataclass(frozen=True, slots=True)
class Elementwise:
    """An expression for every element; operands broadcast along the axes that they lack."""

    expr: Expr


@dataclass(frozen=True, slots=True)
class BlockReduce:
    """A reduction inside a block over one of its axes (`row_sum`)."""

    dim: Dim
    combiner: Combiner


@dataclass(frozen=True, slots=True)
class Scan:
    """The inclusive scan of a block along one of its axes (`row_cumsum`).

    It goes on from block to block: in the body of a map over `dim`, each block begins with what
    the blocks before it give together. A block of a unit dim is the whole axis.
    """

    dim: Dim
    combiner: Combiner


@dataclass(frozen=True, slots=True)
class Dot:
    """A contraction of two blocks over the axis that both have.

    `rounds_to` is the dtype in which the program multiplies: no operand is rounded to a less exact
    one. Without, operands may be rounded to what the other one is stored as.
    """

    dim: Dim
    rounds_to: DType | None = None


@dataclass(frozen=True, slots=True)
class Take:
    """A gather: elements of a list in memory, looked up along `axis` at indices: `W[ids]`.

    The operands are the table, a list over `axis` alone, and the indices, an item of integers from
    0 upwards. The result has the axes of the indices, then those that only the table's items have.
    Along axes of both, each index looks into its own part of the table.
    """

    axis: Axis


@dataclass(frozen=True, slots=True)
class Map:
    """`forall x in range(X)`: the body for every block of a dim.

    The body is closed: its inputs are the map's operands in order, each iterated (the body sees one
    element) or whole; its outputs are the map's results in order, each stacked or reduced.
    `first` is the block at which the loop starts: 1 after peeling.
    """

    dim: Dim
    body: "Graph"
    iterated: tuple[bool, ...]
    modes: tuple[Mode, ...]
    first: int = 0

    @property
    def reduces(self) -> bool:
        return any(mode is not None for mode in self.modes)

    @property
    def scans(self) -> bool:
        """True if a scan goes on from block to block, so that blocks come in order."""
        return bool(self.body.open_scans)


@dataclass(frozen=True, slots=True)
class Reduce:
    """A reduction of a list over `dim` to one item; one operand per component of the combiner."""

    dim: Dim
    combiner: Combiner


@dataclass(frozen=True, slots=True)
class Rename:
    """The same list under another axis: it stays in global memory, with independent tiles."""

    old: Axis
    new: Axis


@dataclass(frozen=True, slots=True)
class Pick:
    """One element of a list."""

    dim: Dim
    index: int


@dataclass(frozen=True, slots=True)
class Join:
    """A list over `dim` from its first element and the list of the others."""

    dim: Dim


@dataclass(frozen=True, slots=True)
class Iota:
    """The positions along an axis, as a virtual list, which is computed when it is iterated."""

    dim: Dim


Plain = int | float | bool | str | None | tuple["Plain", ...]
"""The value of an attribute: data that can be printed and read back."""


@dataclass(frozen=True, slots=True)
class Misc:
    """Any other operator, known by name; executors are registered per namespace.

    `layouts` gives the order of axes of each operand; empty means the order of its type.
    """

    namespace: str
    name: str
    attributes: tuple[tuple[str, Plain], ...]
    results: tuple[Type, ...]
    layouts: tuple[tuple[Axis, ...], ...] = ()


Op = (
    Input
    | Elementwise
    | BlockReduce
    | Scan
    | Dot
    | Take
    | Map
    | Reduce
    | Rename
    | Pick
    | Join
    | Iota
    | Misc
)


def item_expr(op: Op) -> Expr | None:
    """The expression of every item, if an operator or the body of a map is just that."""
    if isinstance(op, Map):
        return op.body.sole_expr
    return op.expr if isinstance(op, Elementwise) else None


class Value(NamedTuple):
    """Result number `port` of a node."""

    node: int
    port: int = 0

    def __str__(self) -> str:
        return f"%{self.node}" if self.port == 0 else f"%{self.node}.{self.port}"


@dataclass(frozen=True, slots=True)
class Node:
    """An operator with its operands and the types of its results."""

    op: Op
    inputs: tuple[Value, ...]
    types: tuple[Type, ...]


@dataclass(frozen=True, slots=True)
class Into:
    """The place of an output in the array of an input, which is written in place: a scatter.

    `base` and `index` are numbers of inputs. The index has whole numbers, along some axes of the
    output: the positions of its elements on `axis`, an axis of the base. Negative numbers count
    from its end. The output has the other axes of the base, and those of the index; along axes of
    both, each index has its own part of the base. Nothing else of the program may read or write
    the base.
    """

    base: int
    index: int
    axis: Axis


@dataclass(frozen=True, slots=True)
class Output:
    """A result of the graph; `axes` is the order in which its array is laid out."""

    name: str
    value: Value
    axes: tuple[Axis, ...] = ()
    into: Into | None = None
    """The array that it is written into; None if it has an array of its own."""
