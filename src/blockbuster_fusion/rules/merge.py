"""Merging: a map absorbs the bodies of other maps, or nodes beside it."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.combiner import Mode
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.infer import map_types
from blockbuster_fusion.ir.ops import Input, Map, Node, Output, Value
from blockbuster_fusion.rules.rule import Match


class Merger:
    """A map under construction; merges equal operands and equal results, and drops unused ones."""

    def __init__(self, graph: Graph, dim: Dim, first: int, ids: Iterator[int]) -> None:
        self.graph, self.dim, self.first, self.ids = graph, dim, first, ids
        self.nodes: dict[int, Node] = {}
        self.inputs: list[int] = []
        self.operands: dict[tuple[Value, bool], Value] = {}
        self.elements: dict[Value, Value] = {}
        """For each list that an absorbed map stacks, the element of this iteration."""
        self.wholes: dict[Value, Value] = {}
        """For each result of an absorbed node, the value in the new body."""
        self.results: list[tuple[Value, Mode, Value]] = []
        """Inner value, mode, and outer value of each result."""

    def port(self, value: Value, iterated: bool, name: str = "", new: int | None = None) -> Value:
        """The input of the body for an operand; an existing one is used again."""
        key = (value, iterated)
        if key not in self.operands:
            kind = self.graph.type(value)
            seen = kind.iterate(self.dim) if iterated else kind
            node = self.fresh_id(new)
            self.nodes[node] = Node(Input(name, seen), (), (seen,))
            self.inputs.append(node)
            self.operands[key] = Value(node)
        return self.operands[key]

    def fresh_id(self, wanted: int | None) -> int:
        """`wanted` if it is free, else a new id."""
        if wanted is not None and wanted not in self.nodes:
            return wanted
        node = next(self.ids)
        while node in self.nodes:
            node = next(self.ids)
        return node

    def absorb_map(self, i: int) -> None:
        """Absorbs the body of a map over the same dim, and its results."""
        node, op = self.graph[i], self.graph.map(i)
        operands = tuple(zip(node.inputs, op.iterated, strict=True))
        if not self.nodes and not self.wholes and len(set(operands)) == len(operands):
            self._begin_with(i, op, operands)
            return
        moved: dict[int, int] = {}
        known: dict[Value, Value] = {}
        for port, (value, iterated) in enumerate(operands):
            inner = Value(op.body.inputs[port])
            made_here = self.elements if iterated else self.wholes
            if value in made_here:
                known[inner] = made_here[value]
            else:
                old = op.body.input(inner.node)
                known[inner] = self.port(value, iterated, old.name, inner.node)
        for j, inner_node in op.body.nodes.items():
            if not isinstance(inner_node.op, Input):
                moved[j] = self._place(j, inner_node, known, moved)
        for port, (out, mode) in enumerate(zip(op.body.outputs, op.modes, strict=True)):
            outer = Value(i, port)
            value = _translated(out.value, known, moved)
            self.results.append((value, mode, outer))
            if mode is None:
                self.elements[outer] = value

    def _begin_with(self, i: int, op: Map, operands: Sequence[tuple[Value, bool]]) -> None:
        """Absorbs the first map, whose body does not change."""
        self.nodes = dict(op.body.nodes)
        self.inputs = list(op.body.inputs)
        self.operands = {key: Value(j) for key, j in zip(operands, self.inputs, strict=True)}
        for port, (out, mode) in enumerate(zip(op.body.outputs, op.modes, strict=True)):
            self.results.append((out.value, mode, Value(i, port)))
            if mode is None:
                self.elements[Value(i, port)] = out.value

    def absorb_node(self, i: int) -> None:
        """Absorbs a node beside the map: every iteration computes it."""
        node = self.graph[i]
        known = {
            v: self.wholes[v] if v in self.wholes else self.port(v, False) for v in node.inputs
        }
        placed = self._place(i, node, known, {})
        for port in range(len(node.types)):
            self.wholes[Value(i, port)] = Value(placed, port)

    def _place(
        self, i: int, node: Node, known: Mapping[Value, Value], moved: Mapping[int, int]
    ) -> int:
        new = self.fresh_id(i)
        operands = tuple(_translated(v, known, moved) for v in node.inputs)
        same = operands == node.inputs
        self.nodes[new] = node if same else Node(node.op, operands, node.types)
        return new

    def finish(self, used: Mapping[Value, bool] | None = None) -> tuple[Node, dict[int, int]]:
        """The map, and for each result number so far its number now; unused results are dropped."""
        outputs: dict[tuple[Value, Mode, int], int] = {}
        renumbered: dict[int, int] = {}
        made: list[tuple[Value, Mode]] = []
        for number, (value, mode, outer) in enumerate(self.results):
            single = mode is None or mode.combiner.arity == 1
            if single and used is not None and not used.get(outer, False):
                continue
            tuple_start = number - mode.component if mode is not None else 0
            key = (value, mode, tuple_start if mode and mode.combiner.arity > 1 else 0)
            if key not in outputs:
                outputs[key] = len(made)
                made.append((value, mode))
            renumbered[number] = outputs[key]
        nodes, inputs = self._pruned([value.node for value, _ in made])
        body = Graph(nodes, inputs, [Output("", value) for value, _ in made])
        kept = {key: v for key, v in self.operands.items() if v.node in nodes}
        op = Map(
            self.dim,
            body,
            tuple(iterated for _, iterated in kept),
            tuple(mode for _, mode in made),
            self.first,
        )
        node = Node(op, tuple(value for value, _ in kept), map_types(op))
        return node, renumbered

    def _pruned(self, roots: list[int]) -> tuple[dict[int, Node], list[int]]:
        """The nodes that the results need, in order."""
        needed: set[int] = set()
        stack = roots
        while stack:
            i = stack.pop()
            if i not in needed:
                needed.add(i)
                stack.extend(v.node for v in self.nodes[i].inputs)
        if len(needed) == len(self.nodes):
            return self.nodes, self.inputs
        nodes = {i: node for i, node in self.nodes.items() if i in needed}
        return nodes, [i for i in self.inputs if i in needed]


def _translated(value: Value, known: Mapping[Value, Value], moved: Mapping[int, int]) -> Value:
    if value in known:
        return known[value]
    return Value(moved.get(value.node, value.node), value.port)


def fuse_maps(match: Match) -> Graph:
    """The graph with the two maps of a match merged; the result has the id of the first."""
    graph, (u, v) = match.graph, match.nodes
    op = graph.map(u)
    merger = Merger(graph, op.dim, op.first, match.ids())
    merger.absorb_map(u)
    merger.absorb_map(v)
    used = {outer: _used_beyond(graph, outer, {u, v}) for _, _, outer in merger.results}
    node, renumbered = merger.finish(used)
    redirect = {
        outer: Value(u, renumbered[number])
        for number, (_, _, outer) in enumerate(merger.results)
        if number in renumbered
    }
    return graph.edit(drop={u, v}, add={u: node}, redirect=redirect)


def without_unused_results(graph: Graph, node: int) -> Graph:
    """The graph without the unused results of a map, and the nodes that only they need."""
    op = graph.map(node)
    used = {
        Value(node, p): _used_beyond(graph, Value(node, p), set()) for p in range(len(op.modes))
    }
    if all(used.values()):
        return graph
    merger = Merger(graph, op.dim, op.first, count(graph.max_id + 1))
    merger.absorb_map(node)
    made, renumbered = merger.finish(used)
    redirect = {Value(node, old): Value(node, new) for old, new in renumbered.items()}
    pruned = graph.edit(add={node: made}, redirect=redirect)
    return pruned.touched_everywhere()  # as the edits before this one touched other nodes


def _used_beyond(graph: Graph, value: Value, inside: set[int]) -> bool:
    if value in graph.output_values:
        return True
    users = (i for i in graph.users[value.node] if i not in inside)
    return any(value in graph[i].inputs for i in users)
