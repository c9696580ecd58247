"""The picture of a block program: boxes for maps, cells for operators and arrays, and edges."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from blockbuster_fusion.cost.counters import Traffic
from blockbuster_fusion.explorer.layout import Cell, Diagram, Link, Row, place
from blockbuster_fusion.explorer.operator_words import statements
from blockbuster_fusion.ir.graph import Graph, Path
from blockbuster_fusion.ir.listing import Listed, listed
from blockbuster_fusion.ir.ops import Input, Map, Pick, Rename, Value
from blockbuster_fusion.ir.places import inputs_read
from blockbuster_fusion.ir.types import Type

LETTER = 6.7
"""The pixels of a letter."""
LONGEST = 34
"""The most letters of a text in a cell; the whole text is in the listing."""
PORT = 8
_DEFINED = re.compile(r"(t\d+(?:,t\d+)*) [+*]?= ")
_INDEXED = re.compile(r"(?:load|store)\((?:t\d+,)?(\w+)(\[[^\]]*\])")


@dataclass
class Drawn:
    """A cell as the page has it: its kind, its text, and names of the listing that it makes."""

    kind: str
    text: str = ""
    parent: str = ""
    names: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Edge:
    link: Link
    name: str
    memory: str


def picture(
    graph: Graph, traffic: Traffic | None = None, found: Listed | None = None
) -> dict[str, Any]:
    """The picture of a program and its listing, as plain data; names are those of `found`.

    `boxes` have a key that stays with a node from step to step. `makers` has the box that makes
    each name of the listing. The lines of the listing refer to boxes, too.
    """
    made = _Picture(graph, listed(graph) if found is None else found, traffic)
    placed = place(made.diagram())
    boxes = [
        {
            "key": key,
            "kind": drawn.kind,
            "text": drawn.text,
            "at": list(placed.rects[key]),
            **({"parent": drawn.parent} if drawn.parent else {}),
            **({"names": list(drawn.names)} if drawn.names else {}),
            **drawn.facts,
        }
        for key, drawn in made.drawn.items()
    ]
    edges = [
        {
            "ends": [
                edge.link.source_port or edge.link.source,
                edge.link.target_port or edge.link.target,
            ],
            "memory": edge.memory,
            **({"name": edge.name} if edge.name else {}),
            "points": list(placed.routes[edge.link]),
        }
        for edge in made.edges
    ]
    lines = [
        [line, key if (key := str(node)) in made.drawn else ""]
        for line, node in zip(made.listed.lines, made.listed.nodes, strict=True)
    ]
    return {
        "size": [placed.width, placed.height],
        "boxes": boxes,
        "edges": edges,
        "lines": lines,
        "makers": made.makers(),
    }


def array_key(value: Value) -> str:
    """The key of the array that holds a list between two nodes."""
    return f"a{value.node}.{value.port}"


class _Picture:
    """The cells of all graphs of a program, in the paper's names."""

    def __init__(self, graph: Graph, found: Listed, traffic: Traffic | None) -> None:
        self.graph, self.listed = graph, found
        self.moved = {} if traffic is None else traffic.by_buffer
        self.drawn: dict[str, Drawn] = {}
        self.edges: list[_Edge] = []
        self.read: dict[Graph, frozenset[int]] = {}
        self.statements = statements(graph, found)
        self.indices: dict[str, str] = {}
        for line in found.lines:
            for name, indices in _INDEXED.findall(line):
                self.indices.setdefault(name, indices)
        own = [op for i in graph.inputs if isinstance(op := graph.op(i), Input)]
        self.border = {
            *(self.name((), Value(i)) for i, _ in zip(graph.inputs, own, strict=True)),
            *(self.name((), out.value) for out in graph.outputs),
        }

    def name(self, path: Path, value: Value) -> str:
        return self.listed.labels.name(path, value)

    # ---------------------------------------------------------------- cells

    def diagram(self) -> Diagram:
        """The diagrams of the program and of its maps, inner ones first."""
        found = list(self.graph.walk())
        made: dict[Path, Diagram] = {}
        drawn: list[tuple[dict[str, Drawn], list[_Edge]]] = []
        for path, graph in reversed(found):
            own, edges = dict[str, Drawn](), list[_Edge]()
            cells = list(self._cells(path, graph, made, own))
            edges += dict.fromkeys(self._edges(path, graph, own))
            made[path] = Diagram(cells, list(dict.fromkeys(edge.link for edge in edges)))
            drawn.append((own, edges))
        for own, edges in reversed(drawn):  # outer ones are drawn first, below the others
            self.drawn |= own
            self.edges += edges
        return made[()]

    def _cells(
        self, path: Path, graph: Graph, made: Mapping[Path, Diagram], own: dict[str, Drawn]
    ) -> Iterator[Cell]:
        parent = str(path[-1]) if path else ""
        used = inputs_read(graph, self.read)
        ports = [i for port, i in enumerate(graph.inputs) if port in used]
        for i in ports:
            yield self._input(path, graph, i, own)
        for i, node in graph.nodes.items():
            if isinstance(node.op, Input):
                continue
            key, text = str(i), self._statement(i, node.op)
            kind = type(node.op).__name__.lower()
            names = dict.fromkeys(self.name(path, Value(i, p)) for p in range(len(node.types)))
            own[key] = Drawn(kind, text, parent, tuple(name for name in names if name))
            if isinstance(node.op, Map):
                yield Cell(key, _width(text.partition(" in ")[0]) + 20, 0, inner=made[(*path, i)])
            else:
                yield Cell(key, _width(text) + 12, 24)
            for port, kind_of in enumerate(node.types):
                value = Value(i, port)
                if _holds_array(graph, value) and graph.uses(value):
                    yield self._array(path, value, kind_of, own)
        for port, out in enumerate(graph.outputs):
            yield self._output(path, graph, port, out.value, out.name, own)

    def _input(self, path: Path, graph: Graph, i: int, own: dict[str, Drawn]) -> Cell:
        value, key = Value(i), str(i)
        kind, name = graph.type(value), self.name(path, value)
        if path:
            outer, iterated = self._operand(path, i)
            loads = iterated and not kind.is_list
            memory = self._memory(self.name(path[:-1], outer), loads or kind.is_buffered)
            facts = {"type": _type_text(kind), "memory": memory}
            own[key] = Drawn("load" if loads else "port", "", str(path[-1]), (name,), facts)
            return Cell(key, PORT, PORT, Row.TOP)
        text = self._indexed(name, kind)
        own[key] = Drawn("input", text, "", (name,), self._facts(name, kind))
        return Cell(key, _width(text) + 22, 24, Row.LATE)

    def _output(
        self, path: Path, graph: Graph, port: int, value: Value, name: str, own: dict[str, Drawn]
    ) -> Cell:
        kind = graph.type(value)
        if not path:
            key = f"out{port}"
            name = self.name(path, value) or name
            text = self._indexed(name, kind)
            own[key] = Drawn("output", text, "", (name,), self._facts(name, kind))
            return Cell(key, _width(text) + 22, 24)
        around, i = self.graph.at(path[:-1]), path[-1]
        outer, key = Value(i, port), f"o{i}.{port}"
        stacked = around.map(i).modes[port] is None
        name = self.name(path[:-1], outer)
        how = "accumulate" if not stacked else "port" if kind.is_list else "store"
        facts = {"type": _type_text(around.type(outer)), "memory": self._memory(name, stacked)}
        own[key] = Drawn(how, "", str(i), (name,), facts)
        return Cell(key, PORT, PORT, Row.BOTTOM)

    def _array(self, path: Path, value: Value, kind: Type, own: dict[str, Drawn]) -> Cell:
        name, key = self.name(path, value), array_key(value)
        facts = self._facts(str(value), kind)
        size = sum(facts.get("moved", ()))
        text = f"{self._indexed(name, kind)}{f'  {bytes_text(size)}' if size else ''}"
        own[key] = Drawn("array", text, str(path[-1]) if path else "", (name,), facts)
        return Cell(key, _width(text) + 22, 24)

    def _indexed(self, name: str, kind: Type) -> str:
        """An array with its indices, as the listing has it where a block of it is moved first."""
        return name + (self.indices.get(name) or _axes(kind))

    def _facts(self, buffer: str, kind: Type) -> dict[str, Any]:
        facts: dict[str, Any] = {"type": _type_text(kind)}
        if buffer in self.moved:
            facts["moved"] = list(self.moved[buffer])
        return facts

    def _statement(self, i: int, op: object) -> str:
        text = self.statements.get(i, "").removesuffix(":")
        return text or type(op).__name__.lower()

    def _operand(self, path: Path, i: int) -> tuple[Value, bool]:
        """The value outside a map that its input is, and True if the map iterates it."""
        around = self.graph.at(path[:-1])
        op = around.map(path[-1])
        port = op.body.inputs.index(i)
        return around[path[-1]].inputs[port], op.iterated[port]

    # ---------------------------------------------------------------- edges

    def _edges(self, path: Path, graph: Graph, own: Mapping[str, Drawn]) -> Iterator[_Edge]:
        for i, node in graph.nodes.items():
            for port in range(len(node.types)):
                value = Value(i, port)
                if array_key(value) in own:
                    source, source_port = _maker(graph, value)
                    link = Link(source, array_key(value), source_port)
                    yield self._edge(path, graph, value, link)
            for port, value in enumerate(node.inputs):
                inner = None
                if isinstance(node.op, Map):
                    if port not in inputs_read(node.op.body, self.read):
                        continue
                    inner = str(node.op.body.inputs[port])
                source, source_port = self._source(graph, value, own)
                link = Link(source, str(i), source_port, inner)
                yield self._edge(path, graph, value, link)
        for port, out in enumerate(graph.outputs):
            target = f"o{path[-1]}.{port}" if path else f"out{port}"
            source, source_port = self._source(graph, out.value, own)
            yield self._edge(path, graph, out.value, Link(source, target, source_port))

    def _source(
        self, graph: Graph, value: Value, own: Mapping[str, Drawn]
    ) -> tuple[str, str | None]:
        key = array_key(value)
        return (key, None) if key in own else _maker(graph, value)

    def _edge(self, path: Path, graph: Graph, value: Value, link: Link) -> _Edge:
        name = self.name(path, value)
        return _Edge(link, name, self._memory(name, graph.type(value).is_buffered))

    def _memory(self, name: str, buffered: bool) -> str:
        if not buffered:
            return "local"
        return "border" if name in self.border else "interior"

    # ---------------------------------------------------------------- names

    def makers(self) -> dict[str, str]:
        """The box that makes each name of the listing."""
        found: dict[str, str] = {}
        for key, drawn in self.drawn.items():
            if drawn.kind in ("array", "input", "output"):
                found.update((name, key) for name in drawn.names)
        found |= self._folded()
        for line, node in zip(self.listed.lines, self.listed.nodes, strict=True):
            match = _DEFINED.match(line.strip())
            if match is not None and str(node) in self.drawn:
                for name in match[1].split(","):
                    found.setdefault(name, str(node))
        return found

    def _folded(self) -> dict[str, str]:
        """The ring of each name in a fold of several values: no operator makes one of these."""
        found: dict[str, str] = {}
        for (path, first), parts in self.listed.labels.parts.items():
            op = self.graph.at(path).op(first.node)
            mode = op.modes[first.port] if isinstance(op, Map) else None
            for port in range(mode.combiner.arity if mode is not None else 0):
                value = Value(first.node, first.port + port)
                found[self.name(path, value)] = f"o{value.node}.{value.port}"
                found |= dict.fromkeys(parts.values(), f"o{first.node}.{first.port}")
        return found


def _maker(graph: Graph, value: Value) -> tuple[str, str | None]:
    """The cell that makes a value, and the place on its border if it is a box."""
    is_map = isinstance(graph.op(value.node), Map)
    return str(value.node), f"o{value.node}.{value.port}" if is_map else None


def _holds_array(graph: Graph, value: Value) -> bool:
    """True if a node makes a list in memory, rather than another view of one."""
    is_view = isinstance(graph.op(value.node), Input | Rename | Pick)
    return graph.type(value).is_buffered and not is_view


def _axes(kind: Type) -> str:
    return f"[{','.join(axis.name for axis in kind.axes)}]" if kind.axes else ""


def _type_text(kind: Type) -> str:
    """A type in words: the list, its items, and the dtype."""
    over = f" over {', '.join(d.name for d in kind.items)}" if kind.items else ""
    word = "block" if len(kind.items) > 1 else "vector" if kind.items else "number"
    if not kind.lists:
        return f"{kind.dtype} {word}{over}"
    return f"list over {', '.join(d.name for d in kind.lists)} of {kind.dtype} {word}s{over}"


def _width(text: str) -> int:
    return round(LETTER * min(len(text), LONGEST))


def bytes_text(size: float) -> str:
    """A number of bytes with a unit: 2.1 MB."""
    if size < 1000:
        return f"{size:.0f} B"
    units = iter(("kB", "MB", "GB", "TB"))
    unit, size = next(units), size / 1000
    while size >= 999.5 and (larger := next(units, None)) is not None:
        unit, size = larger, size / 1000
    return f"{size:.3g} {unit}"
