"""Building graphs node by node, with types inferred on the way."""

from collections.abc import Callable, Iterator, Sequence
from itertools import count

from blockbuster_fusion.ir.axis import Axis, Dim
from blockbuster_fusion.ir.combiner import Mode
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.infer import infer
from blockbuster_fusion.ir.ops import Input, Into, Map, Node, Op, Output, Value
from blockbuster_fusion.ir.types import Type


class Builder:
    """Collects nodes in order; `build` returns the graph.

    `ids` is shared with the builders of inner graphs, so that ids are unique in a program.
    """

    def __init__(self, ids: Iterator[int] | None = None) -> None:
        self.ids = ids if ids is not None else count()
        self.nodes: dict[int, Node] = {}
        self.inputs: list[int] = []
        self.outputs: list[Output] = []

    def input(self, name: str, kind: Type) -> Value:
        """A new input of the graph."""
        (value,) = self.add(Input(name, kind))
        self.inputs.append(value.node)
        return value

    def add(self, op: Op, *operands: Value) -> tuple[Value, ...]:
        """A new node; its results."""
        types = infer(op, [self.type(v) for v in operands])
        node = next(self.ids)
        self.nodes[node] = Node(op, operands, types)
        return tuple(Value(node, port) for port in range(len(types)))

    def one(self, op: Op, *operands: Value) -> Value:
        """A new node with one result."""
        (value,) = self.add(op, *operands)
        return value

    def map(
        self,
        dim: Dim,
        iterate: Sequence[Value],
        whole: Sequence[Value],
        body: Callable[..., Sequence[tuple[Value, Mode]]],
    ) -> tuple[Value, ...]:
        """A new map; `body(builder, elements of iterate…, whole…)` gives outputs and modes."""
        inner = Builder(self.ids)
        ports = [
            *(inner.input(self.name(v), self.type(v).iterate(dim)) for v in iterate),
            *(inner.input(self.name(v), self.type(v)) for v in whole),
        ]
        results = body(inner, *ports)
        for value, _ in results:
            inner.output("", value)
        iterated = (True,) * len(iterate) + (False,) * len(whole)
        op = Map(dim, inner.build(), iterated, tuple(mode for _, mode in results))
        return self.add(op, *iterate, *whole)

    def nest(
        self, dims: Sequence[Dim], operands: Sequence[Value], innermost: Callable[..., Value]
    ) -> Value:
        """`innermost(builder, elements…)` inside maps over `dims`, outermost first.

        Operands that are lists over a dim are iterated by its map, the others taken whole.
        """
        if not dims:
            return innermost(self, *operands)
        unique = list(dict.fromkeys(operands))
        walked = [v for v in unique if self.type(v).list_dim(dims[0]) is not None]
        whole = [v for v in unique if v not in walked]

        def body(inner: "Builder", *ports: Value) -> list[tuple[Value, Mode]]:
            inside = dict(zip([*walked, *whole], ports, strict=True))
            return [(inner.nest(dims[1:], [inside[v] for v in operands], innermost), None)]

        (made,) = self.map(dims[0], walked, whole, body)
        return made

    def output(
        self, name: str, value: Value, axes: Sequence[Axis] = (), into: Into | None = None
    ) -> None:
        """A new output of the graph."""
        self.outputs.append(Output(name, value, tuple(axes), into))

    def type(self, value: Value) -> Type:
        return self.nodes[value.node].types[value.port]

    def name(self, value: Value) -> str:
        """The name of a value that is an input, or ""."""
        op = self.nodes[value.node].op
        return op.name if isinstance(op, Input) else ""

    def build(self) -> Graph:
        return Graph(self.nodes, self.inputs, self.outputs)


class Sketch(Builder):
    """A builder of nodes that are to be added to a graph; operands may be values of the graph."""

    def __init__(self, graph: Graph, ids: Iterator[int]) -> None:
        super().__init__(ids)
        self.graph = graph

    def type(self, value: Value) -> Type:
        return super().type(value) if value.node in self.nodes else self.graph.type(value)

    def name(self, value: Value) -> str:
        """The name of a new input; values of the graph have none."""
        return super().name(value) if value.node in self.nodes else ""
