"""The contents of a picture, without positions: rows, boxes around them, and lines between them.

A row is an operator on items, a box is a map, and a line is a value that one row makes and others
read. Rows are in the order of the listing, and have its names. So a picture and a listing can be
read side by side. An operator that a rule does not touch keeps its place among the others.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeGuard

from blockbuster_fusion.ir.graph import Graph, Path
from blockbuster_fusion.ir.listing import Labels, labels
from blockbuster_fusion.ir.names import Names
from blockbuster_fusion.ir.ops import (
    Input,
    Iota,
    Join,
    Map,
    Misc,
    Node,
    Op,
    Output,
    Pick,
    Reduce,
    Rename,
    Take,
    Value,
)


@dataclass(frozen=True, slots=True)
class Row:
    """An operator, with the arrays of the program that it loads from and stores to."""

    path: Path
    node: int
    text: str
    loads: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Box:
    """A map around the rows from `first` to `last`."""

    path: Path
    node: int
    label: str
    first: int
    last: int

    @property
    def depth(self) -> int:
        return len(self.path)


@dataclass(frozen=True, slots=True)
class Line:
    """A value from the row that makes it to the rows that read it; `name` if it is in memory."""

    name: str
    source: int
    targets: tuple[int, ...]

    @property
    def in_memory(self) -> bool:
        return bool(self.name)


@dataclass(frozen=True, slots=True)
class Scene:
    """All that a picture of a program shows."""

    rows: tuple[Row, ...]
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]


def scene(graph: Graph) -> Scene:
    """The rows, boxes and lines of a block program."""
    made = _Maker(graph)
    made.walk(graph, (), ())
    made.connect()
    return made.scene()


@dataclass(slots=True)
class _Maker:
    """The parts of a scene so far."""

    program: Graph
    labels: Labels = field(init=False)
    names: Names = field(init=False)
    found: list[tuple[Path, int]] = field(default_factory=list)
    folds: dict[tuple[Path, int], tuple[int, str, tuple[Value, ...]]] = field(default_factory=dict)
    over: list[str] = field(default_factory=list)
    row_of: dict[tuple[Path, int], int] = field(default_factory=dict)
    boxes: list[Box] = field(default_factory=list)
    loads: dict[int, dict[str, None]] = field(default_factory=dict)
    stores: dict[int, dict[str, None]] = field(default_factory=dict)
    targets: dict[tuple[Path, Value], dict[int, None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.labels = labels(self.program)
        self.names = Names(self.program)
        inputs = [self.program.input(i).name or "X" for i in self.program.inputs]
        self.names.own([*inputs, *map(_name_of, self.program.outputs)])  # as the listing does

    def walk(self, graph: Graph, path: Path, loops: tuple[str, ...]) -> None:
        """Adds the rows and boxes of a graph, in the order of the listing."""
        for i, node in graph.nodes.items():
            if isinstance(node.op, Input | Iota):
                continue
            if not isinstance(node.op, Map):
                over = f" over {self.names.variable(node.op.dim, loops)}" if _sums(node.op) else ""
                self.add(path, i, over)
                continue
            first, variable = len(self.found), self.names.variable(node.op.dim, loops)
            self.walk(node.op.body, (*path, i), (*loops, variable))
            self.fold(path, i, node.op)
            if len(self.found) == first:  # a map that only passes its operand on
                self.add(path, i)
            label = f"{'Σ' if node.op.reduces or node.op.scans else '∀'} {variable}"
            self.boxes.append(Box(path, i, label, first, len(self.found) - 1))

    def add(self, path: Path, node: int, over: str = "") -> None:
        self.row_of[path, node] = len(self.found)
        self.found.append((path, node))
        self.over.append(over)

    def fold(self, path: Path, i: int, op: Map) -> None:
        """Adds a row for sums that no statement of the body adds up by itself."""
        ports = [port for port, mode in enumerate(op.modes) if mode is not None]
        folded = [port for port in ports if not self.adds_up(path, i, op, port)]
        if not folded:
            return
        inner = (*path, i)
        sums = ",".join(self.labels.name(path, Value(i, port)) for port in folded)
        values = [op.body.outputs[port].value for port in folded]
        terms = ",".join(self.labels.name(inner, value) for value in values)
        self.folds[path, i] = (len(self.found), f"{sums} ⊕= {terms}", tuple(values))
        self.add(inner, i)

    def adds_up(self, path: Path, i: int, op: Map, port: int) -> bool:
        """True if the row of a result is the statement that adds it up: `t3 += dot(t1,t2)`."""
        value = op.body.outputs[port].value
        own = self.labels.line((*path, i), value)
        maker = op.body.op(value.node)
        return not own and not isinstance(maker, Map | Input | Iota)

    def connect(self) -> None:
        """Finds the values that each row reads, and the arrays that it loads and stores."""
        summed = {row: values for row, _, values in self.folds.values()}
        for number, (path, i) in enumerate(self.found):
            values = summed.get(number) or self.program.at(path)[i].inputs
            for value in dict.fromkeys(values):
                self.read(number, path, value)
        for out in self.program.outputs:
            self.stores.setdefault(self.maker((), out.value), {})[_name_of(out)] = None

    def read(self, row: int, path: Path, value: Value) -> None:
        while True:
            graph = self.program.at(path)
            op = graph.op(value.node)
            if not isinstance(op, Input):
                break
            if not path:
                self.loads.setdefault(row, {})[self.labels.name((), value) or op.name] = None
                return
            port = graph.inputs.index(value.node)
            value, path = self.program.at(path[:-1])[path[-1]].inputs[port], path[:-1]
        if not isinstance(op, Iota):
            self.targets.setdefault((path, value), {})[row] = None

    def maker(self, path: Path, value: Value) -> int:
        """The row that computes a value."""
        while (path, value.node) not in self.row_of:
            op = self.program.at(path).map(value.node)
            if op.modes[value.port] is not None and (path, value.node) in self.folds:
                row, _, values = self.folds[path, value.node]
                if op.body.outputs[value.port].value in values:
                    return row
            path, value, body = (*path, value.node), op.body.outputs[value.port].value, op.body
            if isinstance(body.op(value.node), Input | Iota):  # it passes an operand on
                return self.nearest(path)
        return self.row_of[path, value.node]

    def nearest(self, path: Path) -> int:
        """The last row inside a map."""
        return max(
            (row for (where, _), row in self.row_of.items() if where[: len(path)] == path),
            default=self.row_of.get((path[:-1], path[-1]), 0),
        )

    def lines(self) -> Iterator[Line]:
        for (path, value), targets in self.targets.items():
            source = self.maker(path, value)
            rows = tuple(row for row in targets if row != source)
            stored = self.program.at(path).type(value).is_buffered
            name = (self.labels.name(path, value) or str(value)) if stored else ""
            if rows:
                yield Line(name, source, rows)

    def scene(self) -> Scene:
        rows = [
            Row(
                path,
                i,
                self.text(path, i) + self.over[number],
                tuple(self.loads.get(number, ())),
                tuple(self.stores.get(number, ())),
            )
            for number, (path, i) in enumerate(self.found)
        ]
        boxes = sorted(self.boxes, key=lambda box: (box.first, box.depth))
        return Scene(tuple(rows), tuple(boxes), tuple(self.lines()))

    def text(self, path: Path, i: int) -> str:
        """The statement of a row in the listing, or its operator."""
        if path and (path[:-1], i) in self.folds:
            return self.folds[path[:-1], i][1]
        own = self.labels.line(path, Value(i))
        if own or not path:
            return own or _operator(self.program.at(path)[i])
        outer = self.program.at(path[:-1])
        for port, out in enumerate(outer.map(path[-1]).body.outputs):
            folded = self.labels.line(path[:-1], Value(path[-1], port))
            if out.value.node == i and folded:
                return folded
        return _operator(self.program.at(path)[i])


def _name_of(out: Output) -> str:
    return out.name or "O"


def _sums(op: Op) -> TypeGuard[Reduce]:
    return isinstance(op, Reduce)


def _operator(node: Node) -> str:
    """An operator without a statement of its own."""
    op: Op = node.op
    match op:
        case Reduce():
            return f"{op.combiner}"
        case Rename():
            return f"rename {op.old} to {op.new}"
        case Pick():
            return f"block {op.index} of {op.dim.name}"
        case Join():
            return "join"
        case Take():
            return f"take along {op.axis}"
        case Misc():
            return f"{op.namespace}.{op.name}"
    return type(op).__name__.lower()
