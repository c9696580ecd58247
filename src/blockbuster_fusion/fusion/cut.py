"""Cuts a large program into parts that are fused separately.

The times of a C compiler and of the search for rules grow faster than the length of a program. So
the number of statements of a part is limited; values pass between parts through memory. A small
program is one part.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.expr import count_operations
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import (
    Elementwise,
    Input,
    Iota,
    Map,
    Node,
    Output,
    Pick,
    Rename,
    Value,
)

LARGEST = 128
"""Statements in a part. gcc -O2 takes about 14 ms for each of 64 to 128, 17 ms for each of 256."""
IN_ONE = 16
"""The number of operators of an expression that counts as another statement."""


@dataclass(frozen=True)
class ProgramPart:
    """Some nodes of a program as a program of their own."""

    graph: Graph
    operands: tuple[Value, ...]
    """The value of the whole program for each input."""
    results: tuple[Value, ...]
    """The value of the whole program for each output."""
    shared: frozenset[Dim] = frozenset()
    """Dims of values that pass between parts: they keep their names."""


def cut(program: Graph, largest: int = LARGEST) -> tuple[ProgramPart, ...]:
    """The parts of a program, in an order in which each needs only earlier ones."""
    weights = {i: statements(node) for i, node in program.nodes.items()}
    is_small = sum(weights.values()) <= largest
    groups = [] if is_small else _groups(program, weights, largest)
    if len(groups) < 2:
        inputs = tuple(Value(i) for i in program.inputs)
        return (ProgramPart(program, inputs, tuple(out.value for out in program.outputs)),)
    home = {i: number for number, group in enumerate(groups) for i in group}
    ids = count(program.max_id + 1)
    return tuple(_part(program, group, number, home, ids) for number, group in enumerate(groups))


def joined(program: Graph, parts: Sequence[ProgramPart], made: Sequence[Graph]) -> Graph:
    """The whole program, put together from the rewritten parts."""
    if len(parts) == 1:
        return made[0]
    nodes = {i: program[i] for i in program.inputs}
    known = {Value(i): Value(i) for i in program.inputs}
    for part, graph in zip(parts, made, strict=True):
        here = {Value(i): known[v] for i, v in zip(graph.inputs, part.operands, strict=True)}
        for i, node in graph.nodes.items():
            if Value(i) not in here:
                nodes[i] = _over(node, here)
        for value, out in zip(part.results, graph.outputs, strict=True):
            known[value] = here.get(out.value, out.value)
    outputs = [replace(out, value=known[out.value]) for out in program.outputs]
    return Graph(nodes, program.inputs, outputs)


def statements(node: Node) -> int:
    """The operators of a node, those in its loops included."""
    if isinstance(node.op, Map):
        inner = (n for _, graph in node.op.body.walk() for n in graph.nodes.values())
        return sum(_statements(n) for n in inner)
    return _statements(node)


def _statements(node: Node) -> int:
    if isinstance(node.op, Elementwise):
        return 1 + count_operations(node.op.expr) // IN_ONE
    return 0 if isinstance(node.op, Input | Map) or _is_view(node) else 1


def _is_view(node: Node) -> bool:
    """True if a node computes nothing, so that each part may have a copy."""
    return isinstance(node.op, Iota | Rename | Pick)


def _groups(program: Graph, weights: Mapping[int, int], largest: int) -> list[list[int]]:
    """The nodes that compute, in order, cut at the positions that the fewest values cross."""
    order = [i for i, n in program.nodes.items() if not isinstance(n.op, Input) and not _is_view(n)]
    crossing = _crossing(program, order)
    groups: list[list[int]] = []
    start = 0
    while start < len(order):
        end, weight = start, 0
        while end < len(order) and (end == start or weight + weights[order[end]] <= largest):
            weight += weights[order[end]]
            end += 1
        if end < len(order):
            middle = start + (end - start + 1) // 2
            end = min(range(end, middle - 1, -1), key=lambda at: crossing[at])
        groups.append(order[start:end])
        start = end
    return groups


def _crossing(program: Graph, order: Sequence[int]) -> list[int]:
    """For each position in an order, the number of nodes with users on both sides."""
    place = {i: at for at, i in enumerate(order)}
    changes = [0] * (len(order) + 1)
    for i in order:
        users = _real_users(program, i)
        last = max((place[u] for u in users), default=place[i])
        if last > place[i]:
            changes[place[i] + 1] += 1
            changes[last + 1] -= 1
    crossing, now = [], 0
    for change in changes:
        now += change
        crossing.append(now)
    return crossing


def _real_users(program: Graph, i: int) -> set[int]:
    """The nodes that use the results of a node, directly or through views."""
    found: set[int] = set()
    stack = list(program.users[i])
    while stack:
        user = stack.pop()
        if _is_view(program[user]):
            stack.extend(program.users[user])
        else:
            found.add(user)
    return found


def _part(
    program: Graph, group: Sequence[int], number: int, home: Mapping[int, int], ids: Iterator[int]
) -> ProgramPart:
    """One group as a program with inputs and outputs."""
    copy = _Copy(program, ids)
    for i in group:
        copy.add(i)
    crossing, results = _results(program, group, number, home)
    if home[next(reversed(home))] == number:  # the last part has the views
        values = (out.value for out in program.outputs)
        results += dict.fromkeys(v for v in values if _is_view(program[v.node]))
    outputs = [Output("", copy.value(value)) for value in results]
    graph = Graph(copy.nodes, list(copy.operands.values()), outputs)
    crossing += [v for v in copy.operands if v.node not in program.inputs]
    shared = frozenset(dim for value in crossing for dim in program.type(value).dims)
    return ProgramPart(graph, tuple(copy.operands), tuple(results), shared)


class _Copy:
    """A copy of some nodes of a program; values from elsewhere become inputs."""

    def __init__(self, program: Graph, ids: Iterator[int]) -> None:
        self.program, self.ids = program, ids
        self.nodes: dict[int, Node] = {}
        self.operands: dict[Value, int] = {}
        self.copies: dict[Value, Value] = {}

    def add(self, i: int) -> None:
        """Copies a node under its id."""
        node = self.program[i]
        for value in node.inputs:
            self.value(value)
        self.nodes[i] = _over(node, self.copies)
        self.copies.update((Value(i, port), Value(i, port)) for port in range(len(node.types)))

    def value(self, value: Value) -> Value:
        """The copy of a value; views on the way to it are repeated."""
        program, views, source = self.program, list[int](), value
        while source not in self.copies and _is_view(program[source.node]):
            views.append(source.node)
            if not program[source.node].inputs:
                break
            (source,) = program[source.node].inputs
        if source not in self.copies and not _is_view(program[source.node]):
            self._input(source)
        for view in reversed(views):
            i = next(self.ids)
            self.nodes[i] = _over(program[view], self.copies)
            self.copies[Value(view)] = Value(i)
        return self.copies[value]

    def _input(self, source: Value) -> None:
        kind, old = self.program.type(source), self.program.op(source.node)
        i, name = (source.node, old.name) if isinstance(old, Input) else (next(self.ids), "")
        self.nodes[i] = Node(Input(name, kind), (), (kind,))
        self.operands[source] = i
        self.copies[source] = Value(i)


def _results(
    program: Graph, group: Sequence[int], number: int, home: Mapping[int, int]
) -> tuple[list[Value], list[Value]]:
    """The values of a group that other groups need, and these with the program's outputs."""
    crossing: list[Value] = []
    results: list[Value] = []
    for i in group:
        for port in range(len(program[i].types)):
            value = Value(i, port)
            known = [value]
            """The value and its views."""
            for now in known:
                known += (Value(u) for u, _ in program.uses(now) if _is_view(program[u]))
            users = {u for now in known for u, _ in program.uses(now)}
            if any(home.get(u, number) != number for u in users):
                crossing.append(value)
            if value in crossing[-1:] or not program.output_values.isdisjoint(known):
                results.append(value)
    return crossing, results


def _over(node: Node, known: Mapping[Value, Value]) -> Node:
    """A node with its operands replaced."""
    inputs = tuple(known.get(v, v) for v in node.inputs)
    return node if inputs == node.inputs else Node(node.op, inputs, node.types)
