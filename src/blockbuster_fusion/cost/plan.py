"""Plans: the facts about running a graph that are the same for every block."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from blockbuster_fusion.ir.axis import Axis, Dim
from blockbuster_fusion.ir.combiner import Combiner
from blockbuster_fusion.ir.expr import Expr
from blockbuster_fusion.ir.ops import Misc
from blockbuster_fusion.ir.types import DType, Type

# ---------------------------------------------------------------- views of arrays


@dataclass(frozen=True, slots=True)
class Alignment:
    """The transposition and expansion that align a block with the dims of another."""

    order: tuple[int, ...]
    index: tuple[slice | None, ...]


@dataclass(frozen=True, slots=True)
class Walk:
    """The access of a loop over `dim` to one element of a list.

    `axis` is the array axis of the blocks; it is cut where the items have it (`cut`) and indexed
    where they lack it. `order` permutes the rest to the element's dims. An element that is an item
    and is used is loaded; `site` numbers the load in its plan.
    """

    dim: Dim
    axis: int
    cut: bool
    order: tuple[int, ...] | None
    is_item: bool
    bytes: int
    site: int | None


# ---------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class Component:
    """One component of a combiner: its arguments, each aligned to its own dims."""

    expr: Expr
    arguments: tuple[tuple[int, Alignment | None], ...]
    identity: float
    dtype: DType
    operations: int


@dataclass(frozen=True, slots=True)
class Gather:
    """The combination of items by a combiner."""

    combiner: Combiner
    components: tuple[Component, ...]


@dataclass(frozen=True, slots=True)
class DoElementwise:
    expr: Expr
    alignments: tuple[Alignment | None, ...]
    dtype: DType
    operations: int
    spread: tuple[tuple[int, int], ...] | None
    """The operand and axis that give each length, if the used operands do not give all."""


@dataclass(frozen=True, slots=True)
class DoBlockReduce:
    axis: int
    gather: Gather


@dataclass(frozen=True, slots=True)
class DoScan:
    """A scan of a block along an axis; `goes_on` says that it starts from the block before."""

    axis: int
    gather: Gather
    goes_on: bool


@dataclass(frozen=True, slots=True)
class DoDot:
    """A contraction over `axes`; the other numbers are einsum's, for dims that both keep."""

    axes: tuple[int, int]
    left: tuple[int, ...]
    right: tuple[int, ...]
    result: tuple[int, ...]
    shared: bool
    dtype: DType


@dataclass(frozen=True, slots=True)
class DoTake:
    """A lookup along the first axis of a list's array.

    The other axes are those of the result at `kept`; `places` aligns the places with the result.
    """

    axis: Axis
    places: Alignment | None
    kept: tuple[int, ...]
    rank: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Stack:
    """A stacked output: if its element has the loop's axis, `order` brings that to the front."""

    output: int
    order: tuple[int, ...] | None
    is_item: bool
    bytes: int


@dataclass(frozen=True, slots=True)
class DoMap:
    child: int
    """Its number among the maps of its plan."""
    dim: Dim
    first: int
    body: "GraphPlan"
    walks: tuple[Walk | None, ...]
    stacks: tuple[Stack, ...]
    reduced: tuple[tuple[tuple[int, ...], Gather], ...]


@dataclass(frozen=True, slots=True)
class DoReduce:
    dim: Dim
    walks: tuple[Walk, ...]
    gather: Gather


@dataclass(frozen=True, slots=True)
class DoRename:
    stored: int
    """The bytes of an element of an item, which is stored; 0 for a list, which is in memory."""


@dataclass(frozen=True, slots=True)
class DoPick:
    walk: Walk
    index: int


@dataclass(frozen=True, slots=True)
class DoJoin:
    walk: Walk


@dataclass(frozen=True, slots=True)
class DoIota:
    axis: Axis


@dataclass(frozen=True, slots=True)
class DoMisc:
    op: Misc
    operands: tuple[Type, ...]
    orders: tuple[tuple[int, ...], ...]
    """The permutation of each operand's axes to the order that the executor takes."""


Action = (
    DoElementwise
    | DoBlockReduce
    | DoScan
    | DoDot
    | DoTake
    | DoMap
    | DoReduce
    | DoRename
    | DoPick
    | DoJoin
    | DoIota
    | DoMisc
)


# ---------------------------------------------------------------- plans


@dataclass(frozen=True, slots=True)
class PlanStep:
    """A node: the slots of its operands and results, and the items that begin and end to live."""

    action: Action
    operands: tuple[int, ...]
    results: tuple[int, ...]
    loaded: tuple[int, ...]
    """Items from outside that are first used here."""
    made: tuple[int, ...]
    """The results that are items."""
    dead: tuple[int, ...]
    """Items that nobody uses after this."""
    dropped: tuple[int, ...]
    """Values of any kind that nobody uses after this."""


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """The steps of a graph in order, over numbered slots for its values."""

    types: tuple[Type, ...]
    bytes: tuple[int, ...]
    """The bytes of one element of each slot, as declared."""
    labels: tuple[str, ...]
    """The default name of each slot: the value, as text."""
    inputs: tuple[int, ...]
    used: tuple[bool, ...]
    """For each input True if it is used, here or deeper inside."""
    names: tuple[str, ...]
    steps: tuple[PlanStep, ...]
    outputs: tuple[int, ...]
    loaded_last: tuple[int, ...]
    """Items from outside that are only outputs."""
    sites: int
    dims: frozenset[Dim]
    axes: frozenset[Axis]


class PlanFrame:
    """A plan at its place in a program: the names of its buffers, last loads and carries."""

    __slots__ = ("carries", "children", "last", "places", "plan")

    def __init__(self, plan: GraphPlan, names: Sequence[str | None]) -> None:
        self.plan = plan
        self.last: list[object] = [None] * plan.sites
        self.carries: dict[int, Any] = {}
        """For each slot that a scan makes, its last elements in the block before."""
        self.places = list(plan.labels)
        for slot, name in zip(plan.inputs, plan.names, strict=True):
            self.places[slot] = name or self.places[slot]
        for slot, exported in reversed(list(zip(plan.outputs, names, strict=True))):
            self.places[slot] = exported or self.places[slot]
        for step in reversed(plan.steps):
            if isinstance(step.action, DoJoin):  # the other blocks share the place of the list
                self.places[step.operands[1]] = self.places[step.results[0]]
            elif isinstance(step.action, DoRename) and step.results[0] in plan.outputs:
                self.places[step.operands[0]] = self.places[step.results[0]]
        self.children: list[PlanFrame] = []
        for step in plan.steps:
            if isinstance(step.action, DoMap):
                stacked = {stack.output for stack in step.action.stacks}
                inner = [
                    self.places[slot] if output in stacked else None
                    for output, slot in enumerate(step.results)
                ]
                self.children.append(PlanFrame(step.action.body, inner))
