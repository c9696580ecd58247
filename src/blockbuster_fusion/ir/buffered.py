"""Interior buffered edges: the intermediates that go through global memory."""

from dataclasses import dataclass

from blockbuster_fusion.ir.graph import Graph, Path, check_graph
from blockbuster_fusion.ir.ops import Input, Node, Pick, Rename, Value
from blockbuster_fusion.ir.types import Type


@dataclass(frozen=True, slots=True)
class Edge:
    """A list that one node of a graph computes and another iterates."""

    path: Path
    value: Value
    consumer: int
    type: Type

    def __str__(self) -> str:
        where = "/".join(f"%{i}" for i in self.path) or "top"
        return f"{where}: {self.value} -> %{self.consumer} {self.type}"


def buffered(graph: Graph) -> list[Edge]:
    """The edges between two nodes of one graph, at any depth, that carry a list.

    Edges at inputs and outputs cannot be avoided and do not count. Renames are transparent: their
    users read the buffer that they rename.
    """
    check_graph("buffered", graph)
    return [
        Edge(path, value, consumer, inner.type(value))
        for path, inner in graph.walk()
        for consumer, node in inner.nodes.items()
        if not _is_alias(node)
        for value in dict.fromkeys(node.inputs)
        if inner.type(value).is_buffered and not isinstance(_source(inner, value), Input)
    ]


def _is_alias(node: Node) -> bool:
    """True if a node only renames a list, or picks a list from it."""
    return isinstance(node.op, Rename) or (isinstance(node.op, Pick) and node.types[0].is_list)


def _source(graph: Graph, value: Value) -> object:
    """The producer of a value, behind renames and picks."""
    op = graph.op(value.node)
    while isinstance(op, Rename | Pick):
        (value,) = graph[value.node].inputs
        op = graph.op(value.node)
    return op
