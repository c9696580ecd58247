"""Verification: finds where a graph breaks the rules of block programs, and says why.

Bodies are checked before the maps around them. A sound body is not checked again: graphs never
change, and a rewrite shares the bodies that it does not touch.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from weakref import WeakKeyDictionary, WeakSet

from blockbuster_fusion.errors import IllTyped, InvalidGraph
from blockbuster_fusion.ir.axis import Axis, Dim, Symbol
from blockbuster_fusion.ir.combiner import ANY, Combiner, Reduced
from blockbuster_fusion.ir.expr import Expr
from blockbuster_fusion.ir.graph import Graph, check_graph
from blockbuster_fusion.ir.infer import infer
from blockbuster_fusion.ir.ops import (
    BlockReduce,
    Dot,
    Elementwise,
    Input,
    Into,
    Iota,
    Join,
    Map,
    Misc,
    Node,
    Op,
    Pick,
    Plain,
    Reduce,
    Rename,
    Scan,
    Take,
    Value,
)
from blockbuster_fusion.ir.text.writer import node_line
from blockbuster_fusion.ir.types import DType, Type
from blockbuster_fusion.ir.verify_expr import axes_of, combiner_problem, dtype_problem

_NEIGHBOURS = 8
"""The number of operands, and of users, that an error shows."""


def verify(graph: Graph) -> None:
    """Raises InvalidGraph, with the node and its neighbours, if the program breaks a rule."""
    check_graph("verify", graph)
    if graph in _programs:
        return
    waiting = [_Check(graph)]
    for check in waiting:
        for i, op in check.graph.maps():
            if check.is_inside(op.body):
                raise check.error(i, "its body is a graph that it stands in: bodies are trees")
            if op.body not in _sound:
                waiting.append(_Check(op.body, around=check, place=f"map %{i} ({op.dim})"))
    for check in reversed(waiting):
        contents = check.run()
        if check.around:
            _sound[check.graph] = contents
    _programs.add(graph)


@dataclass(slots=True)
class _Contents:
    """Ids and dims of a sound graph and its maps, which must not clash with those outside."""

    ids: set[int] = field(default_factory=set)
    axes: dict[str, Axis] = field(default_factory=dict)


_programs: WeakSet[Graph] = WeakSet()
"""Programs that were found sound; graphs never change."""

_sound: WeakKeyDictionary[Graph, _Contents] = WeakKeyDictionary()
_infer_again = lru_cache(maxsize=4096)(infer)


class _Check:
    """The check of one graph, whose inner graphs are sound."""

    def __init__(self, graph: Graph, around: "_Check | None" = None, place: str = "") -> None:
        self.graph = graph
        self.around = around
        self.place = place
        self.contents = _Contents()
        self.earlier: dict[int, Node] = {}
        self.types: set[Type] = set()
        self.dims: set[Dim] = set()
        self.partial: dict[Value, Dim] = {}

    def is_inside(self, graph: Graph) -> bool:
        """True if this is a check of `graph` or of something in it."""
        check: _Check | None = self
        while check is not None:
            if check.graph is graph:
                return True
            check = check.around
        return False

    def run(self) -> _Contents:
        for i, node in self.graph.nodes.items():
            self.check_node(i, node)
            self.earlier[i] = node
        self.check_inputs()
        self.check_outputs()
        return self.contents

    # ---------------------------------------------------------------- nodes

    def check_node(self, i: int, node: Node) -> None:
        op = node.op
        self.check_id(i)
        operands = self.operands(i, node)
        self.check_op(i, op)
        inferred = self.infer(i, op, operands)
        if isinstance(op, Elementwise):
            unknown = dtype_problem(op.expr, tuple(t.dtype for t in operands))
            if unknown is not None:
                raise self.error(i, unknown)
        if node.types != inferred:
            found, wanted = _listed(node.types), _listed(inferred)
            problem = f"its results have the types {found}, but its operands give {wanted}"
            raise self.error(i, f"{problem}: infer them again")
        for t in node.types:
            if t not in self.types:
                self.check_type(i, t)

    def infer(self, i: int, op: Op, operands: list[Type]) -> tuple[Type, ...]:
        try:
            if isinstance(op, Elementwise | BlockReduce | Scan | Dot):
                return _infer_again(op, tuple(operands))
            return infer(op, operands)
        except IllTyped as problem:
            raise self.error(i, str(problem.problem)) from problem

    def check_id(self, i: int) -> None:
        if not isinstance(i, int) or i < 0:
            raise self.error(i, "its id is not a number from 0 upwards")
        if i in self.contents.ids:
            remedy = "ids are unique in a program, take those above max_id"
            raise self.error(i, f"another node inside a map has its id: {remedy}")
        self.contents.ids.add(i)

    def operands(self, i: int, node: Node) -> list[Type]:
        """The types of the operands, which must come before the node."""
        types: list[Type] = []
        for port, value in enumerate(node.inputs):
            producer = self.earlier.get(value.node)
            if producer is None:
                raise self.error(i, self.misplaced(i, port, value))
            if not 0 <= value.port < len(producer.types):
                has = f"%{value.node} has {len(producer.types)} result(s)"
                raise self.error(i, f"operand {port} is result {value.port}, but {has}")
            types.append(producer.types[value.port])
            if self.partial and value in self.partial:
                self.check_partial_use(i, node, port, value)
        return types

    def misplaced(self, i: int, port: int, value: Value) -> str:
        """The reason why an operand is not among the nodes before its user."""
        nodes = self.graph.nodes
        if value.node not in nodes:
            problem = f"operand {port} is %{value.node}, which is not in this graph"
            if any(value.node in check.graph.nodes for check in self.outwards()):
                remedy = "list it as an operand of the map and use the body's input"
                problem += f" but outside its map, and a body is closed: {remedy}"
            return problem
        stack, seen = [value.node], set[int]()
        while stack:
            at = stack.pop()
            if at == i:
                return (
                    f"operand {port} is %{value.node}, which depends on it in a cycle: "
                    "a block program has no loops but maps"
                )
            if at in nodes and at not in seen:
                seen.add(at)
                stack.extend(v.node for v in nodes[at].inputs)
        return (
            f"operand {port} is %{value.node}, which stands after it: order operands before users"
        )

    def check_partial_use(self, i: int, node: Node, port: int, value: Value) -> None:
        dim = self.partial[value]
        if not (isinstance(node.op, Join) and port == 1 and node.op.dim is dim):
            raise self.error(i, f"operand {port} is {value}, {_partial(dim)}")

    def check_op(self, i: int, op: Op) -> None:
        match op:
            case Elementwise():
                self.check_exprs(i, (op.expr,))
            case Map():
                self.check_map(i, op)
            case BlockReduce() | Scan() | Reduce():
                self.check_dim(i, op.dim)
                self.check_combiner(i, op.combiner)
                if isinstance(op, BlockReduce | Scan) and op.combiner.arity != 1:
                    problem = f"a block is reduced to one value, and {op.combiner} gives"
                    raise self.error(i, f"{problem} {op.combiner.arity}: reduce each by itself")
                if isinstance(op, Scan):
                    self.check_scan(i, op)
                if isinstance(op, Reduce):
                    self.check_reduced(i, op.dim, self.graph.nodes[i].types)
            case Dot() | Join():
                self.check_dim(i, op.dim)
            case Pick():
                self.check_dim(i, op.dim)
                if not isinstance(op.index, int) or op.index < 0:
                    raise self.error(i, f"the element {op.index!r} is not a number from 0 upwards")
            case Input() | Iota():
                if self.graph.nodes[i].inputs:
                    raise self.error(i, "it takes no operands and has some: drop them")
                if isinstance(op, Iota):
                    self.check_dim(i, op.dim)
            case Take():
                self.check_axis(i, op.axis)
            case Rename():
                self.check_axis(i, op.old)
                self.check_axis(i, op.new)
            case Misc():
                self.check_attributes(i, op)
            case _:
                raise self.error(i, f"{type(op).__name__} is no operator of block programs")

    def check_exprs(self, i: int, exprs: tuple[Expr, ...]) -> None:
        for expr in exprs:
            axes = axes_of(expr)
            if isinstance(axes, str):
                raise self.error(i, axes)
            for axis in axes:
                self.check_axis(i, axis)

    def check_map(self, i: int, op: Map) -> None:
        self.check_dim(i, op.dim)
        if op.first not in (0, 1):
            problem = f"its loop starts at block {op.first!r}: only 0, or 1 after peeling, is known"
            raise self.error(i, problem)
        for port, mode in enumerate(op.modes):
            if isinstance(mode, Reduced):
                self.check_combiner(i, mode.combiner)
            elif mode is not None:
                raise self.error(i, f"output {port}: {mode!r} is no mode: use None or Reduced")
            elif op.first:
                self.partial[Value(i, port)] = op.dim
        for dim in op.body.open_scans:
            if dim is not op.dim or op.first:
                problem = f"a scan in its body goes on from block to block of {dim.label}"
                raise self.error(i, f"{problem}: it belongs right in a map over all of them")
        types = self.graph.nodes[i].types
        self.check_reduced(i, op.dim, [t for t, m in zip(types, op.modes, strict=False) if m])
        inner = _sound[op.body]
        if not inner.ids.isdisjoint(self.contents.ids):
            twice = min(inner.ids & self.contents.ids)
            problem = f"%{twice} in its body is the id of another node as well"
            raise self.error(i, f"{problem}: ids are unique in a program, take those above max_id")
        self.contents.ids |= inner.ids
        for axis in inner.axes.values():
            self.check_axis(i, axis)

    def check_scan(self, i: int, op: Scan) -> None:
        if op.combiner is ANY:
            raise self.error(i, "any keeps one of equal values, and a scan has different ones")
        if self.around is None and not op.dim.unit:
            problem = f"it goes on from block to block of {op.dim.label}, and no map is around it"
            raise self.error(i, f"{problem}: put it in the body of a map over {op.dim.label}")

    def check_reduced(self, i: int, dim: Dim, kinds: Iterable[Type]) -> None:
        for kind in kinds:
            if dim in kind.items:
                problem = f"it reduces items {kind} over {dim.label}, whose blocks differ"
                raise self.error(i, f"{problem}: reduce each block along {dim} first")

    def check_combiner(self, i: int, combiner: Combiner) -> None:
        self.check_exprs(i, combiner.combine)
        problem = combiner_problem(combiner)
        if problem is not None:
            raise self.error(i, f"combiner {combiner}: {problem}")

    def check_attributes(self, i: int, op: Misc) -> None:
        for key, value in op.attributes:
            if not isinstance(key, str) or not _is_plain(value):
                remedy = "use numbers, strings, None and tuples of these"
                raise self.error(i, f"attribute {key!r} is {value!r}, not plain data: {remedy}")
        operands = self.graph[i].inputs
        if op.layouts and len(op.layouts) != len(operands):
            counts = f"{len(op.layouts)} layouts for {len(operands)} operands"
            raise self.error(i, f"{counts}: give one for each, or none at all")
        for port, layout in enumerate(op.layouts):
            axes = self.graph.type(operands[port]).axes
            if sorted(layout, key=id) != sorted(axes, key=id):
                problem = f"layout {port} is ({', '.join(map(str, layout))})"
                raise self.error(i, f"{problem}, and the operand has ({', '.join(map(str, axes))})")

    def check_type(self, i: int, t: Type) -> None:
        self.types.add(t)
        for dims in (t.dims, t.items):
            axes = [dim.axis for dim in dims]
            if len(set(axes)) < len(axes):
                twice = next(axis for axis in axes if axes.count(axis) > 1)
                raise self.error(i, f"its type {t} has the axis {twice} twice: rename one of them")
        for dim in t.dims:
            self.check_dim(i, dim)
        if not isinstance(t.dtype, DType):
            raise self.error(i, f"its dtype {t.dtype!r} is not a DType")
        if t.virtual and not t.lists:
            raise self.error(i, f"its type {t} is virtual and no list: only lists are virtual")

    def check_dim(self, i: int, dim: Dim) -> None:
        if dim in self.dims:
            return
        self.dims.add(dim)
        if dim.index is not None and not (isinstance(dim.index, int) and dim.index >= 0):
            problem = f"the dim {dim.label} must have a number from 0 upwards, or None when free"
            raise self.error(i, problem)
        self.check_axis(i, dim.axis)

    def check_axis(self, i: int, axis: Axis) -> None:
        known = self.contents.axes.setdefault(axis.name, axis)
        if known is not axis:
            extents = f"{known.extent} and {axis.extent}"
            problem = f"two axes of the program are called {axis} and have the extents {extents}"
            raise self.error(i, f"{problem}: call one of them otherwise")
        extent = axis.extent
        if isinstance(extent, Symbol):
            return
        if not isinstance(extent, int) or isinstance(extent, bool) or extent < 0:
            problem = f"the extent of axis {axis} is {extent!r}"
            raise self.error(i, f"{problem}: use a number from 0 upwards, or a Symbol")

    # ---------------------------------------------------------------- inputs and outputs

    def check_inputs(self) -> None:
        nodes, listed = self.graph.nodes, self.graph.inputs
        for port, i in enumerate(listed):
            if i not in nodes:
                raise self.graph_error(f"input {port} is %{i}, which is not in this graph")
            if not isinstance(nodes[i].op, Input):
                raise self.error(i, f"it is listed as input {port} of the graph, but is no Input")
        known = set(listed)
        if len(known) < len(listed):
            twice = next(i for i in listed if listed.count(i) > 1)
            raise self.error(twice, "it is listed twice among the inputs of the graph")
        for i, node in nodes.items():
            if isinstance(node.op, Input) and i not in known:
                problem = "it is an Input that the graph does not list among its inputs"
                raise self.error(i, f"{problem}: list it or drop it")
        if self.around is None:
            names = set[str]()
            for i in listed:
                if (name := self.graph.input(i).name) in names:
                    problem = f"another input of the program is called {name!r} as well"
                    raise self.error(i, f"{problem}: inputs are passed by name")
                names.add(name)

    def check_outputs(self) -> None:
        names = set[str]()
        for port, out in enumerate(self.graph.outputs):
            place = f"output {out.name!r}" if out.name else f"output {port}"
            producer = self.earlier.get(out.value.node)
            if producer is None:
                raise self.graph_error(f"its value {out.value} is not in this graph", place)
            if not 0 <= out.value.port < len(producer.types):
                has = f"%{out.value.node} has {len(producer.types)} result(s)"
                raise self.graph_error(
                    f"its value is {out.value}, but {has}", place, out.value.node
                )
            if out.value in self.partial:
                problem = f"its value is {out.value}, {_partial(self.partial[out.value])}"
                raise self.graph_error(problem, place, out.value.node)
            axes = producer.types[out.value.port].axes
            if out.axes and (len(out.axes) != len(axes) or set(out.axes) != set(axes)):
                given, own = (" ".join(map(str, a)) or "none" for a in (out.axes, axes))
                problem = f"it is laid out as {given}, but its value has the axes {own}"
                raise self.graph_error(f"{problem}: list each once", place, out.value.node)
            if out.into is not None:
                self.check_into(out.into, axes, place)
            if self.around is not None:
                continue
            if not out.name:
                raise self.graph_error("it has no name: outputs are returned by name", place)
            if out.name in names:
                raise self.graph_error("another output of the program has its name", place)
            names.add(out.name)

    def check_into(self, into: Into, axes: Sequence[Axis], place: str) -> None:
        """Checks the place of an output in an input: its axes, and that nothing reads that."""
        if self.around is not None:
            raise self.graph_error("only outputs of the program are written into inputs", place)
        base, index = (self.graph.type_of_input(i) for i in (into.base, into.index))
        given = self.graph.inputs[into.base]
        if self.graph.users[given] or Value(given) in self.graph.output_values:
            raise self.graph_error("the array that it is written into is read as well", place)
        if index.dtype not in (DType.int64, DType.int32):
            raise self.graph_error(f"its index is {index.dtype}, not whole numbers", place)
        kept = {axis for axis in base.axes if axis is not into.axis}
        if into.axis not in base.axes or into.axis in index.axes:
            raise self.graph_error(f"its index is not one of positions on {into.axis}", place)
        if kept | {*index.axes} != {*axes}:
            wanted = " ".join(map(str, (*kept, *index.axes)))
            raise self.graph_error(f"it has not the axes {wanted} of its place", place)

    # ---------------------------------------------------------------- errors

    def outwards(self) -> Iterator["_Check"]:
        """The checks of the graphs around this one, from the inside out."""
        check = self.around
        while check is not None:
            yield check
            check = check.around

    def path(self) -> str:
        """The path of maps from the program to this graph."""
        return " / ".join(reversed([c.place for c in (self, *self.outwards()) if c.place]))

    def error(self, i: int, problem: str) -> InvalidGraph:
        """The error of a problem with a node."""
        node = f"node %{i} ({_title(self.graph.nodes[i].op)})"
        place = ", ".join(part for part in (self.path(), node) if part)
        return InvalidGraph(place=place, problem=problem, neighbours=self.neighbours(i))

    def graph_error(self, problem: str, part: str = "", i: int | None = None) -> InvalidGraph:
        """The error of a problem with the graph, or with a part of it that node `i` gives."""
        place = ", ".join(part for part in (self.path() or "program", part) if part)
        neighbours = "" if i is None else self.neighbours(i)
        return InvalidGraph(place=place, problem=problem, neighbours=neighbours)

    def neighbours(self, i: int) -> str:
        """A line for the node, for each of its operands before it, and for each user after it."""
        nodes = self.graph.nodes
        operands = list(dict.fromkeys(v.node for v in nodes[i].inputs if v.node != i))
        users = [at for at, node in nodes.items() if any(v.node == i for v in node.inputs)]
        outputs = [
            f"output {out.name or port!r}"
            for port, out in enumerate(self.graph.outputs)
            if out.value.node == i
        ]
        lines = [
            *_cut([node_line(o, nodes[o]) if o in nodes else f"%{o} is missing" for o in operands]),
            f"> {node_line(i, nodes[i])}",
            *_cut([*(node_line(u, nodes[u]) for u in users if u != i), *outputs]),
        ]
        return "".join(f"\n  {line if line[0] == '>' else '  ' + line}" for line in lines)


def _cut(lines: list[str]) -> list[str]:
    if len(lines) <= _NEIGHBOURS:
        return lines
    return [*lines[:_NEIGHBOURS], f"… and {len(lines) - _NEIGHBOURS} more"]


def _listed(types: tuple[Type, ...]) -> str:
    return ", ".join(map(str, types)) or "none"


def _partial(dim: Dim) -> str:
    return (
        f"a list over {dim.label} without its first element, because its map starts at block 1: "
        "only a Join that puts the first element before it may use it"
    )


def _is_plain(value: Plain) -> bool:
    """True if a value is made of numbers, strings, None and tuples of these."""
    stack: list[object] = [value]
    while stack:
        part = stack.pop()
        if type(part) is tuple:
            stack.extend(part)
        elif part is not None and type(part) not in (int, float, bool, str):
            return False
    return True


def _title(op: Op) -> str:
    """A short description of an operator."""
    match op:
        case Input():
            return f"input {op.name!r}" if op.name else "input"
        case Elementwise():
            return "elementwise"
        case BlockReduce():
            return f"block {op.combiner} over {op.dim.label}"
        case Scan():
            return f"scan {op.combiner} over {op.dim.label}"
        case Reduce():
            return f"reduce {op.combiner} over {op.dim.label}"
        case Dot() | Map() | Pick() | Join() | Iota():
            return f"{type(op).__name__.lower()} over {op.dim.label}"
        case Take():
            return f"take along {op.axis}"
        case Rename():
            return f"rename {op.old}->{op.new}"
        case Misc():
            return f"misc {op.namespace}.{op.name}"
        case _:
            return type(op).__name__
