"""Copies of graphs under new ids."""

from collections.abc import Iterator
from dataclasses import replace

from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import Map, Node, Value


def copied(graph: Graph, ids: Iterator[int]) -> Graph:
    """A copy of a graph with new ids for its nodes and those of its maps."""
    new = {i: next(ids) for i in graph.nodes}
    nodes = {
        new[i]: copied_node(node, [Value(new[v.node], v.port) for v in node.inputs], ids)
        for i, node in graph.nodes.items()
    }
    outputs = [
        replace(out, value=Value(new[out.value.node], out.value.port)) for out in graph.outputs
    ]
    return Graph(nodes, [new[i] for i in graph.inputs], outputs)


def copied_node(node: Node, operands: list[Value], ids: Iterator[int]) -> Node:
    """A copy of a node with other operands, and new ids in its body."""
    op = node.op
    if isinstance(op, Map):
        op = Map(op.dim, copied(op.body, ids), op.iterated, op.modes, op.first)
    return Node(op, tuple(operands), node.types)
