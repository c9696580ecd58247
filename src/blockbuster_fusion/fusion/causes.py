"""Causes of buffered edges: the lists that are needed whole, and the statements that need them."""

from collections.abc import Iterator
from dataclasses import dataclass

from blockbuster_fusion.ir.buffered import Edge
from blockbuster_fusion.ir.graph import Graph, Path
from blockbuster_fusion.ir.listing import Labels
from blockbuster_fusion.ir.ops import Elementwise, Map, Pick, Reduce, Rename, Take, Value

_KINDS = {"mul": "factor", "div": "factor", "add": "shift", "sub": "shift"}
_RULES = {"factor": "rule 4", "shift": "rule 5"}
_SUMMARIES = {"add": "a sum", "max": "a maximum", "min": "a minimum", "mul": "a product"}


@dataclass(frozen=True, slots=True)
class ValueInGraph:
    """A value in a graph of the program."""

    path: Path
    graph: Graph
    value: Value

    @property
    def key(self) -> tuple[Path, Value]:
        return self.path, self.value


@dataclass(frozen=True, slots=True)
class Causes:
    """The causes of one edge, with the names of a listing."""

    program: Graph
    edge: Edge
    labels: Labels

    @property
    def graph(self) -> Graph:
        return self.program.at(self.edge.path)

    @property
    def name(self) -> str:
        """The name of the list in the listing."""
        value = self.source
        return self.labels.name(self.edge.path, value) or self._name(self.edge.value)

    @property
    def source(self) -> Value:
        """The list itself, behind renames and picks."""
        value = self.edge.value
        while isinstance(self.graph.op(value.node), Rename | Pick):
            (value,) = self.graph[value.node].inputs
        return value

    def __str__(self) -> str:
        return f"{self.name}, from {self.loop(self.source.node)} to {self.loop(self.edge.consumer)}"

    def loop(self, node: int) -> str:
        """A description of a node of the edge's graph."""
        op, path = self.graph.op(node), self.edge.path
        ports = range(len(self.graph[node].types))
        made = [name for port in ports if (name := self.labels.name(path, Value(node, port)))]
        if isinstance(op, Map):
            results = f" that makes {', '.join(dict.fromkeys(made))}" if made else ""
            return f"the loop over {op.dim}{results}"
        return self.labels.line(path, Value(node)) or " and ".join(made) or "a reader"

    def sentences(self, *, too_dear: bool) -> Iterator[str]:
        """The causes; `too_dear`: recomputing the list would take a dot."""
        found = self._lookup() or self._cycle() or self._whole()
        yield from found
        dot = self._dot() if too_dear else ""
        if dot:
            yield f"to compute {self.name} again where it is read would repeat {dot}"

    # ----------------------------------------------------------------- lookups

    def _lookup(self) -> list[str]:
        for place, node in self._uses():
            if isinstance(place.graph.op(node), Take):
                table, places = place.graph[node].inputs
                if table == place.value:
                    at = self.labels.name(place.path, places) or "places"
                    return [
                        f"{self.name} is looked up at {at}, which is data: any element may be "
                        "wanted, so that all of them have to be there first"
                    ]
        return []

    def _uses(self) -> Iterator[tuple[ValueInGraph, int]]:
        """The operators in the consumer, at any depth, that read the list or an element of it."""
        pending = [(ValueInGraph(self.edge.path, self.graph, self.edge.value), self.edge.consumer)]
        while pending:
            place, node = pending.pop()
            op = place.graph.op(node)
            if not isinstance(op, Map):
                yield place, node
                continue
            for inner in _inside(place, node):
                pending += [(inner, user) for user in reversed(inner.graph.users[inner.value.node])]

    # --------------------------------------------------- a result that comes late

    def _cycle(self) -> list[str]:
        """The cause if the reader iterates the list and also needs a result of all of it."""
        reader, maker = self.graph.op(self.edge.consumer), self.graph.op(self.source.node)
        if not isinstance(reader, Map) or not isinstance(maker, Map):
            return []
        for late in self._late():
            origin = self._origin(late)
            if origin is not None:
                return [self._needed(late, origin, maker), *self._fate(late)]
            if isinstance(self.graph.op(late.node), Rename):
                return [
                    f"{self._name(late)} is complete only after the last step of the loop over "
                    f"{maker.dim}; the reader needs all of it in its first step"
                ]
        return []

    def _late(self) -> Iterator[Value]:
        """Operands of the reader that depend on the producer by another path than the list."""
        graph, maker = self.graph, self.source.node
        for value in dict.fromkeys(graph[self.edge.consumer].inputs):
            if value == self.edge.value or isinstance(graph.op(value.node), Pick):
                continue
            if value.node == maker and graph.type(value).is_buffered:
                continue
            if value.node == maker or graph.reaches(maker, value.node):
                yield value

    def _origin(self, late: Value) -> Value | None:
        """The first reduced value on the path from the producer to a late operand."""
        graph, maker = self.graph, self.source.node
        pending, seen = [late], {late}
        reduced: list[Value] = []
        while pending:
            value = pending.pop()
            op = graph.op(value.node)
            if isinstance(op, Reduce) or (isinstance(op, Map) and op.modes[value.port] is not None):
                reduced.append(value)
            if value.node == maker:
                continue
            for operand in graph[value.node].inputs:
                from_maker = operand.node == maker or graph.reaches(maker, operand.node)
                if from_maker and operand not in seen:
                    seen.add(operand)
                    pending.append(operand)
        return min(reduced, key=lambda v: graph.position[v.node], default=None)

    def _needed(self, late: Value, origin: Value, maker: Map) -> str:
        path = self.edge.path
        made = self.labels.line(path, origin)
        kind = self._summary(origin)
        comes = f": it comes from {made}, {kind}" if late != origin else f": {made}, {kind}"
        used = self._meeting(late)
        line = self.labels.line(*used.key) if used is not None else ""
        in_it = f" ({line})" if line else ""
        return (
            f"{self._name(late)} is complete only after the last step of the loop over {maker.dim}"
            f"{comes if made else ''}; the reader needs it in its first step{in_it}"
        )

    def _summary(self, value: Value) -> str:
        """A description of a reduction."""
        op = self.graph.op(value.node)
        mode = op.modes[value.port] if isinstance(op, Map) else None
        combiner = op.combiner if isinstance(op, Reduce) else mode.combiner if mode else None
        dim = op.dim if isinstance(op, Map | Reduce) else ""
        name = combiner.name if combiner is not None else ""
        return f"{_SUMMARIES.get(name, 'a reduction')} over {dim}"

    def _meeting(self, late: Value) -> ValueInGraph | None:
        """The first operator of the reader that combines an element with the late value."""
        place, node = ValueInGraph(self.edge.path, self.graph, self.edge.value), self.edge.consumer
        other = ValueInGraph(self.edge.path, self.graph, late)
        while isinstance(place.graph.op(node), Map):
            inner, late_inside = _inside(place, node), _inside(other, node)
            if not inner or not late_inside:
                return None
            graph, path = inner[0].graph, inner[0].path
            from_list, from_late = ({p.value.node for p in ps} for ps in (inner, late_inside))
            met = None
            for i, one in graph.nodes.items():
                sources = {v.node for v in one.inputs}
                if sources & from_list and sources & from_late:
                    met = i
                    break
                from_list |= {i} if sources & from_list else set()
                from_late |= {i} if sources & from_late else set()
            if met is None:
                return None
            operands = graph[met].inputs
            place = ValueInGraph(path, graph, next(v for v in operands if v.node in from_list))
            other = ValueInGraph(path, graph, next(v for v in operands if v.node in from_late))
            node = met
        return ValueInGraph(place.path, place.graph, Value(node))

    def _fate(self, late: Value) -> list[str]:
        """The reason why a late factor or shift cannot be applied after the loop."""
        met = None if self.graph.type(late).is_list else self._meeting(late)
        op = None if met is None else met.graph.op(met.value.node)
        if met is None or not isinstance(op, Elementwise) or op.expr.op not in _KINDS:
            return []
        kind, graph, value = _KINDS[op.expr.op], met.graph, met.value
        while True:
            target = self._stored(met.path, graph, value)
            if target:
                return [
                    f"a {kind} can wait until the end of a sum or a dot ({_RULES[kind]}), but "
                    f"nothing is summed here: {target} itself is wanted"
                ]
            users = graph.users[value.node]
            after = graph.op(users[0]) if len(users) == 1 else None
            if not isinstance(after, Elementwise):
                return []
            if after.expr.op not in _KINDS:
                line = self.labels.line(met.path, Value(users[0]))
                return [f"{line} follows, and no {kind} moves past it"] if line else []
            value = Value(users[0])

    def _stored(self, path: Path, graph: Graph, value: Value) -> str:
        """The name of the array that a value of a body is stored in."""
        owner = self.program.at(path[:-1]).op(path[-1]) if path else None
        if not isinstance(owner, Map):
            return ""
        for port, (out, mode) in enumerate(zip(graph.outputs, owner.modes, strict=True)):
            if out.value == value and mode is None:
                return self.labels.name(path[:-1], Value(path[-1], port))
        return ""

    # ------------------------------------------------------------- read as a whole

    def _whole(self) -> list[str]:
        """The cause if each step of the reader reads all of the list along an axis."""
        reader = self.graph.op(self.edge.consumer)
        if not isinstance(reader, Map):
            line = self.labels.line(self.edge.path, Value(self.edge.consumer))
            return [f"{line} reads all of {self.name}"] if line else []
        walked = {
            reader.dim.axis
            for value, iterated in zip(
                self.graph[self.edge.consumer].inputs, reader.iterated, strict=True
            )
            if value == self.edge.value and iterated
        }
        along = [d.axis.name for d in self.edge.type.lists if d.axis not in walked]
        if not along:
            return []
        place, node = next(self._uses(), (None, None))
        line = "" if place is None or node is None else self._statement(place, node)
        how = f" ({line})" if line else ""
        steps = f"every step of the loop over {reader.dim}"
        return [f"{steps} needs all of {self.name} along {', '.join(along)}{how}"]

    def _statement(self, place: ValueInGraph, node: int) -> str:
        """The statement of an operator; an operand of a sum is part of that statement."""
        own = self.labels.line(place.path, Value(node))
        if own or not place.path:
            return own
        for port, out in enumerate(place.graph.outputs):
            if out.value.node == node:
                line = self.labels.line(place.path[:-1], Value(place.path[-1], port))
                if line:
                    return line
        return ""

    def _dot(self) -> str:
        """The statement of a dot in the producer."""
        own = (*self.edge.path, self.source.node)
        for (path, value), line in self.labels.lines.items():
            inside = path[: len(own)] == own or (path == own[:-1] and value.node == own[-1])
            if inside and "dot(" in line:
                return line
        return ""

    def _name(self, value: Value) -> str:
        return self.labels.name(self.edge.path, value) or "a result"


def _inside(place: ValueInGraph, node: int) -> list[ValueInGraph]:
    """A value, or its elements, as the body of a map sees it: the inputs of the body."""
    op = place.graph.map(node)
    return [
        ValueInGraph((*place.path, node), op.body, Value(op.body.inputs[port]))
        for port, value in enumerate(place.graph[node].inputs)
        if value == place.value
    ]
