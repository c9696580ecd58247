"""Graphs: immutable, closed, in topological order; an edit gives a new graph."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from blockbuster_fusion.errors import CyclicGraph, WrongKind
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.derived import derived
from blockbuster_fusion.ir.digest import Digest, compute_digest
from blockbuster_fusion.ir.expr import Expr
from blockbuster_fusion.ir.infer import infer, map_types
from blockbuster_fusion.ir.ops import (
    Dot,
    Elementwise,
    Input,
    Iota,
    Map,
    Misc,
    Node,
    Op,
    Output,
    Pick,
    Reduce,
    Scan,
    Value,
)
from blockbuster_fusion.ir.substitute import substituted
from blockbuster_fusion.ir.types import Type

T = TypeVar("T", bound=Op)
OpClass = type[T]
Path = tuple[int, ...]
"""The maps to go through from the program's graph to an inner graph."""


class Graph:
    """A block program, or the body of a map in one.

    `nodes` is in topological order (operands first), and the graph's inputs are nodes as well.
    Ids are unique in a program and stay with a node from rewrite to rewrite. `touched` is for the
    result of an edit: the nodes that it changed and their neighbours, or None for all nodes.

    A graph never changes. Derived attributes, and `results`, are caches.
    """

    def __init__(
        self,
        nodes: Mapping[int, Node],
        inputs: Sequence[int],
        outputs: Sequence[Output],
        touched: frozenset[int] | None = None,
    ) -> None:
        self.nodes = nodes
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.touched = touched

    # ---------------------------------------------------------------- looking

    def __getitem__(self, node: int) -> Node:
        return self.nodes[node]

    def op(self, node: int) -> Op:
        return self.nodes[node].op

    def type(self, value: Value) -> Type:
        """The type of a value."""
        return self.nodes[value.node].types[value.port]

    def type_of_input(self, port: int) -> Type:
        """The type of input number `port`."""
        return self.nodes[self.inputs[port]].types[0]

    def maps(self) -> Iterator[tuple[int, Map]]:
        """The maps of this graph, not those inside them."""
        for i, node in self.nodes.items():
            if isinstance(node.op, Map):
                yield i, node.op

    def map(self, node: int) -> Map:
        """The map with this id."""
        return self.op_as(node, Map)

    def input(self, node: int) -> Input:
        """The input with this id."""
        return self.op_as(node, Input)

    def op_as(self, node: int, kind: OpClass[T]) -> T:
        """The operator of a node that is known to be of this kind."""
        op = self.nodes[node].op
        if not isinstance(op, kind):
            raise TypeError(f"node %{node} is {type(op).__name__}, not {kind.__name__}")
        return op

    def __getstate__(self) -> dict[str, Any]:
        """The attributes that are copied and pickled: not the kept results of analyses."""
        return {name: x for name, x in self.__dict__.items() if name != "results"}

    def is_source(self, node: int) -> bool:
        """True if the node is an input or a generator."""
        return isinstance(self.nodes[node].op, Input | Iota)

    @derived
    def results(self) -> dict[object, Any]:
        """Results of analyses of this graph, by function and arguments: see `analysis`."""
        return {}

    @derived
    def users(self) -> dict[int, tuple[int, ...]]:
        """The nodes that use each node, each once."""
        users: dict[int, list[int]] = {i: [] for i in self.nodes}
        for i, node in self.nodes.items():
            for producer in dict.fromkeys(v.node for v in node.inputs):
                users[producer].append(i)
        return {i: tuple(found) for i, found in users.items()}

    @derived
    def sole(self) -> int | None:
        """The one node that is not an input, if there is only one and it makes all outputs."""
        if len(self.nodes) != len(self.inputs) + 1:
            return None
        found = next(i for i, node in self.nodes.items() if not isinstance(node.op, Input))
        return found if all(out.value.node == found for out in self.outputs) else None

    @derived
    def sole_expr(self) -> Expr | None:
        """The expression of the one node that is not an input, if it is elementwise."""
        op = None if self.sole is None else self.nodes[self.sole].op
        return op.expr if isinstance(op, Elementwise) else None

    @derived
    def holds_dot(self) -> bool:
        """True if there is a dot in this graph or in a map of it."""
        ops = (node.op for node in self.nodes.values())
        return any(isinstance(op, Dot) or (isinstance(op, Map) and op.body.holds_dot) for op in ops)

    @derived
    def open_scans(self) -> frozenset[Dim]:
        """The dims of the map around this graph along whose blocks scans of it go on."""
        ops = (node.op for node in self.nodes.values())
        return frozenset(op.dim for op in ops if isinstance(op, Scan) and not op.dim.unit)

    @derived
    def holds_misc(self) -> bool:
        """True if there is a misc operator in this graph or in a map of it."""
        ops = (node.op for node in self.nodes.values())
        return any(
            isinstance(op, Misc) or (isinstance(op, Map) and op.body.holds_misc) for op in ops
        )

    @derived
    def loops(self) -> frozenset[Dim]:
        """The dims of the maps in this graph, at any depth."""
        found: set[Dim] = set()
        for _, op in self.maps():
            found |= {op.dim} | op.body.loops
        return frozenset(found)

    @derived
    def output_values(self) -> frozenset[Value]:
        return frozenset(out.value for out in self.outputs)

    @derived
    def position(self) -> dict[int, int]:
        """The position of each node in the order."""
        return {i: at for at, i in enumerate(self.nodes)}

    def uses(self, value: Value) -> list[tuple[int, int]]:
        """Each use of a value by a node: (node, operand number). Graph outputs are not listed."""
        return [
            (user, port)
            for user in self.users[value.node]
            for port, operand in enumerate(self.nodes[user].inputs)
            if operand == value
        ]

    def reaches(self, start: int, end: int, *, indirectly: bool = False) -> bool:
        """True if a path leads from `start` to `end`; `indirectly`: one with a node between."""
        position, limit = self.position, self.position[end]
        stack = list(self.users[start])
        if indirectly:
            stack = [i for i in stack if i != end]
        seen: set[int] = set()
        while stack:
            i = stack.pop()
            if i == end:
                return True
            if position[i] < limit and i not in seen:
                seen.add(i)
                stack.extend(self.users[i])
        return False

    def at(self, path: Path) -> "Graph":
        """The inner graph at the end of `path`."""
        graph = self
        for node in path:
            graph = graph.map(node).body
        return graph

    def walk(self) -> Iterator[tuple[Path, "Graph"]]:
        """This graph and all inner ones, breadth first."""
        queue: list[tuple[Path, Graph]] = [((), self)]
        for path, graph in queue:
            yield path, graph
            queue.extend(((*path, i), m.body) for i, m in graph.maps())

    @derived
    def max_id(self) -> int:
        """The highest id in this graph and inside its maps."""
        own = max(self.nodes, default=-1)
        return max([own, *(m.body.max_id for _, m in self.maps())])

    @derived
    def dims(self) -> frozenset[Dim]:
        """Every dim that this graph or a map in it mentions."""
        found: set[Dim] = set()
        for node in self.nodes.values():
            for t in node.types:
                found.update(t.lists, t.items)
            if isinstance(node.op, Map | Pick | Reduce):
                found.add(node.op.dim)  # over a free list, no type has it
            if isinstance(node.op, Map):
                found |= node.op.body.dims
        return frozenset(found)

    @derived
    def structure(self) -> Digest:
        """The digest with the dims, axes and symbols that it numbers."""
        return compute_digest(self)

    @property
    def digest(self) -> str:
        """A hash of the structure, blind to ids and to the names of inputs, axes and dims."""
        return self.structure.hex

    def __repr__(self) -> str:
        return f"<Graph of {len(self.nodes)} nodes, {self.digest[:8]}>"

    def without_dead_nodes(self) -> "Graph":
        """This graph and its maps without the nodes that no output needs; inputs stay."""
        needed, stack = set(self.inputs), [out.value.node for out in self.outputs]
        while stack:
            i = stack.pop()
            if i not in needed:
                needed.add(i)
                stack.extend(v.node for v in self.nodes[i].inputs)
        dead = [i for i in self.nodes if i not in needed]
        bodies = {i: op.body.without_dead_nodes() for i, op in self.maps() if i in needed}
        smaller = {
            i: with_body(self.nodes[i], body)
            for i, body in bodies.items()
            if body is not self.map(i).body
        }
        return self.edit(drop=dead, add=smaller) if dead or smaller else self

    # ---------------------------------------------------------------- editing

    def edit(
        self,
        *,
        drop: Iterable[int] = (),
        add: Mapping[int, Node] | None = None,
        redirect: Mapping[Value, Value] | None = None,
    ) -> "Graph":
        """A new graph without the nodes `drop`, with `add`, and each value in `redirect` replaced.

        A node in `add` whose id exists replaces that node; nodes in `add` are not redirected. The
        order is restored only between the first and the last changed node; the rest is copied.
        """
        gone, redirect = set(drop).difference(add or ()), redirect or {}
        fresh: dict[int, Node] = dict(add or {})
        for user in {u for value in redirect for u in self.users[value.node]}:
            if user not in gone and user not in fresh:
                moved = _redirected(self.nodes[user], redirect)
                if moved is not self.nodes[user]:
                    fresh[user] = moved
        outputs = self.outputs
        if any(out.value in redirect for out in outputs):
            outputs = tuple(
                replace(out, value=redirect.get(out.value, out.value)) for out in outputs
            )
        users = self._updated_users(gone, fresh)
        producers = {v.node for i in (*gone, *fresh) if i in self.nodes for v in self[i].inputs}
        producers |= {v.node for node in fresh.values() for v in node.inputs}
        consumers = {u for i in fresh for u in users[i]}
        touched = frozenset((producers | consumers | fresh.keys()) - gone)
        made = Graph(self._reordered(gone, fresh), self.inputs, outputs, touched)
        made.__dict__["users"] = users
        if "max_id" in self.__dict__:
            inner = (n.op.body.max_id for n in fresh.values() if isinstance(n.op, Map))
            made.__dict__["max_id"] = max([self.max_id, *fresh, *inner])
        return made

    def touched_everywhere(self) -> "Graph":
        """This graph with every node marked as touched."""
        made = Graph(self.nodes, self.inputs, self.outputs)
        made._inherit(self, "users", "position", "output_values", "max_id")
        return made

    def _reordered(self, gone: set[int], fresh: Mapping[int, Node]) -> dict[int, Node]:
        position, nodes = self.position, self.nodes
        touched = [position[i] for i in (*gone, *fresh) if i in position]
        touched += [
            position[v.node] for n in fresh.values() for v in n.inputs if v.node in position
        ]
        low, high = min(touched, default=len(nodes)), max(touched, default=len(nodes) - 1)
        order = list(nodes)
        window = [i for i in order[low : high + 1] if i not in gone]
        # new nodes take the position of the last dropped one, unless a user comes earlier
        place = max((position[i] for i in gone if i in position), default=high) - low
        before = [i for i in order[low : low + place + 1] if i not in gone]
        window = [*before, *(i for i in fresh if i not in position), *window[len(before) :]]
        current = {i: fresh.get(i) or nodes[i] for i in window}
        made = {i: nodes[i] for i in order[:low]}
        made.update((i, current[i]) for i in _topological(window, current))
        made.update((i, nodes[i]) for i in order[high + 1 :])
        return made

    def _updated_users(
        self, gone: set[int], fresh: Mapping[int, Node]
    ) -> dict[int, tuple[int, ...]]:
        users = dict(self.users)
        for i in gone:
            users.pop(i, None)
        for i in (*gone, *fresh):
            if i in self.nodes:
                for producer in {v.node for v in self.nodes[i].inputs}:
                    if producer in users:
                        users[producer] = tuple(u for u in users[producer] if u != i)
        for i in fresh:
            users.setdefault(i, ())
        for i, node in fresh.items():
            for producer in dict.fromkeys(v.node for v in node.inputs):
                users[producer] = (*users[producer], i)
        return users

    def replace(self, path: Path, inner: "Graph") -> "Graph":
        """This graph with the inner graph at `path` replaced by one of the same interface."""
        graphs = [self]
        for node in path:
            graphs.append(graphs[-1].map(node).body)
        made = inner
        for graph, i in zip(reversed(graphs[:-1]), reversed(path), strict=True):
            made = graph._with_node(i, with_body(graph.nodes[i], made))
        return made

    def _with_node(self, i: int, node: Node) -> "Graph":
        """Node `i` replaced by one with the same operands: order and users stay."""
        nodes = dict(self.nodes)
        nodes[i] = node
        made = Graph(nodes, self.inputs, self.outputs)
        made._inherit(self, "users", "position", "output_values")
        return made

    def _inherit(self, other: "Graph", *names: str) -> None:
        """Copies derived attributes of a graph of the same shape."""
        self.__dict__.update((n, other.__dict__[n]) for n in names if n in other.__dict__)

    def substitute(self, mapping: Mapping[Dim, Dim]) -> "Graph":
        """This graph with dims replaced everywhere; nodes that do not mention them are shared."""
        if not mapping or self.dims.isdisjoint(mapping):
            return self
        nodes = {i: substituted(node, mapping) for i, node in self.nodes.items()}
        made = Graph(nodes, self.inputs, self.outputs)
        made._inherit(self, "users", "position", "output_values", "max_id")
        return made

    def retype(self, inputs: Sequence[Type]) -> "Graph":
        """This graph for inputs of other types; dependent types are inferred again."""
        nodes: dict[int, Node] = dict(self.nodes)
        changed: set[int] = set()
        for port, i in enumerate(self.inputs):
            old = self.input(i)
            if old.type is not inputs[port]:
                nodes[i] = Node(Input(old.name, inputs[port]), (), (inputs[port],))
                changed.add(i)
        for i, node in self.nodes.items():
            if changed.isdisjoint(v.node for v in node.inputs):
                continue
            operands = [nodes[v.node].types[v.port] for v in node.inputs]
            op = node.op
            if isinstance(op, Map):
                seen = [
                    t.iterate(op.dim) if iterated else t
                    for t, iterated in zip(operands, op.iterated, strict=True)
                ]
                op = Map(op.dim, op.body.retype(seen), op.iterated, op.modes, op.first)
            nodes[i] = Node(op, node.inputs, infer(op, operands))
            changed.add(i)
        return Graph(nodes, self.inputs, self.outputs) if changed else self


def check_graph(function: str, graph: object) -> None:
    """Raises WrongKind if the argument is not a block program."""
    if not isinstance(graph, Graph):
        given = type(graph).__name__
        remedy = "an array program is lowered first, with bb.lower"
        raise WrongKind(function=function, wanted="a block program", given=given, remedy=remedy)


def with_body(node: Node, body: Graph) -> Node:
    """A map with another body, whose inputs and outputs are the same."""
    match node.op:
        case Map() as old:
            op = Map(old.dim, body, old.iterated, old.modes, old.first)
            return Node(op, node.inputs, map_types(op))
    raise TypeError(f"{type(node.op).__name__} has no body")


def _redirected(node: Node, redirect: Mapping[Value, Value]) -> Node:
    if not any(v in redirect for v in node.inputs):
        return node
    return Node(node.op, tuple(redirect.get(v, v) for v in node.inputs), node.types)


def _topological(order: Sequence[int], nodes: Mapping[int, Node]) -> list[int]:
    """`order`, changed only if an operand would come after its user."""
    made: dict[int, None] = {}
    waiting: dict[int, None] = {}
    for start in order:
        stack = [start]
        while stack:
            i = stack[-1]
            if i in made:
                stack.pop()
                continue
            missing = [v.node for v in nodes[i].inputs if v.node in nodes and v.node not in made]
            if not missing:
                made[i] = None
                waiting.pop(i, None)
                stack.pop()
                continue
            waiting[i] = None
            if any(m in waiting for m in missing):
                raise CyclicGraph(nodes=", ".join(f"%{w}" for w in waiting))
            stack.extend(missing)
    return list(made)
