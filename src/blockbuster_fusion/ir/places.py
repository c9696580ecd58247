"""Placement of the values of a block program: in arrays, in local memory, or not yet loaded.

An innermost map stores the lists that the maps around it stack. So the place of each output of a
graph comes from outside, and determines the places in which its own lists are built.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from blockbuster_fusion.ir.axis import Axis, Dim
from blockbuster_fusion.ir.combiner import SIMPLE, Combiner
from blockbuster_fusion.ir.graph import Graph, Path
from blockbuster_fusion.ir.ops import (
    BlockReduce,
    Dot,
    Elementwise,
    Join,
    Map,
    Misc,
    Output,
    Scan,
    Value,
)
from blockbuster_fusion.ir.paper_names import Functional
from blockbuster_fusion.ir.types import Type


@dataclass(slots=True)
class MemoryArray:
    """An array in global memory, or a virtual one; a buffer is named when it is first printed."""

    name: str = ""
    axes: tuple[Axis, ...] | None = None  # of its items, as they were stored
    virtual: bool = False


@dataclass(frozen=True, slots=True)
class ArraySlice:
    """An array with some of its indices given; a Dim denotes an open one."""

    array: MemoryArray
    indices: tuple[str | Dim, ...]

    @property
    def open(self) -> tuple[Dim, ...]:
        return tuple(i for i in self.indices if isinstance(i, Dim))

    def at(self, dim: Dim, index: str) -> "ArraySlice":
        return ArraySlice(self.array, tuple(index if i is dim else i for i in self.indices))


@dataclass(slots=True)
class Item:
    """An item in local memory; without a name, it is not yet loaded from its source."""

    axes: tuple[Axis, ...]
    name: str = ""
    source: ArraySlice | None = None


Location = ArraySlice | Item


@dataclass(frozen=True, slots=True)
class Accumulation:
    """An accumulation: `values` of each iteration into `accumulators`."""

    combiner: Combiner
    values: tuple[Value, ...]
    accumulators: tuple[Item, ...]


@dataclass(slots=True)
class ListingScope:
    """A graph, the loops around it, and the places of its values."""

    graph: Graph
    places: dict[Value, Location]
    loops: tuple[str, ...] = ()  # their variables, outermost first
    axes: tuple[Axis, ...] = ()  # the axes of these loops
    path: Path = ()  # the maps that the graph is in
    homes: dict[Value, ArraySlice] = field(default_factory=dict)  # where lists are built
    stores: dict[Value, list[ArraySlice]] = field(default_factory=dict)  # other places of values
    folds: dict[int, list[Accumulation]] = field(
        default_factory=dict
    )  # by the node that completes them
    inlined: dict[int, Functional] = field(default_factory=dict)  # parts of an accumulation
    joined: set[int] = field(default_factory=set)  # joins whose operands are built in place

    @property
    def depth(self) -> int:
        return len(self.loops)

    def home(self, value: Value) -> ArraySlice:
        """The place in which a list is built: the one requested, or a buffer of its own."""
        if value not in self.homes:
            lists = self.graph.type(value).lists
            self.homes[value] = ArraySlice(MemoryArray(), (*self.loops, *lists))
        return self.homes[value]

    def send(self, value: Value, target: ArraySlice) -> None:
        """Builds the value in `target`, or stores it there if that is not possible."""
        op, kind = self.graph.op(value.node), self.graph.type(value)
        builds = isinstance(op, Map | Join) or (isinstance(op, Misc) and target.open == kind.lists)
        if kind.is_list and builds and value not in self.homes:
            self.homes[value] = target
        else:
            self.stores.setdefault(value, []).append(target)

    def join_in_place(self) -> None:
        """Builds the operands of joins in place, if a map computes the rest of the list."""
        for i in reversed(list(self.graph.nodes)):
            op = self.graph.op(i)
            if not isinstance(op, Join):
                continue
            home, (first, rest) = self.home(Value(i)), self.graph[i].inputs
            maker = self.graph.op(rest.node)
            if not isinstance(maker, Map) or rest in self.homes:
                continue
            if maker.dim is op.dim and maker.first != 1:
                continue  # it would overwrite the first element
            self.joined.add(i)
            self.homes[rest] = home
            self.send(first, home.at(op.dim, "0"))

    def accumulate(self, fold: Accumulation, *, inline: bool) -> None:
        """Plans an accumulation after the last of its values; `inline` includes its operator."""
        last = max((v.node for v in fold.values), key=self.graph.position.__getitem__)
        self.folds.setdefault(last, []).append(fold)
        if not inline or fold.combiner not in SIMPLE.values() or self.graph.users[last]:
            return
        if [out.value for out in self.graph.outputs].count(fold.values[0]) != 1:
            return
        match self.graph.op(last):
            case Elementwise() | BlockReduce() | Scan() | Dot() as op:
                self.inlined[last] = op

    def iterated(self, value: Value, dim: Dim, index: str) -> Location:
        """The part of a list that one iteration over `dim` reads."""
        return element(self.slice_at(value, dim, index), self.graph.type(value).iterate(dim))

    def slice_at(self, value: Value, dim: Dim, index: str) -> ArraySlice:
        """The slice of a list at one index along `dim`."""
        match self.places[value], self.graph.type(value).list_dim(dim):
            case ArraySlice() as part, Dim() as walked:
                return part.at(walked, index)
        raise TypeError(f"{value} is not a list over {dim.label}")


def element(part: ArraySlice, kind: Type) -> Location:
    """A part of an array: still a list, or an item to be loaded."""
    return part if kind.is_list else Item(item_axes(kind), source=part)


def bind(graph: Graph, ports: Sequence[Location]) -> dict[Value, Location]:
    """The places of a graph's inputs."""
    return {Value(i): place for i, place in zip(graph.inputs, ports, strict=True)}


def item_axes(kind: Type) -> tuple[Axis, ...]:
    """The axes of a type's items."""
    return tuple(dim.axis for dim in kind.items)


def laid_out(graph: Graph, out: Output) -> tuple[Dim, ...]:
    """The list dims of an output in the order of its array."""
    lists = graph.type(out.value).lists
    return tuple(sorted(lists, key=lambda d: (*out.axes, d.axis).index(d.axis)))


def inputs_read(graph: Graph, known: dict[Graph, frozenset[int]]) -> frozenset[int]:
    """The inputs of a graph, by number, that a node or output uses; `known` caches bodies."""
    if graph not in known:
        used = {out.value.node for out in graph.outputs}
        for node in graph.nodes.values():
            inner = inputs_read(node.op.body, known) if isinstance(node.op, Map) else None
            used |= {v.node for p, v in enumerate(node.inputs) if inner is None or p in inner}
        known[graph] = frozenset(p for p, i in enumerate(graph.inputs) if i in used)
    return known[graph]
