"""Substitution of dims, by which two loops over one axis become the same loop."""

from collections.abc import Mapping

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.map_op import map_op
from blockbuster_fusion.ir.ops import Node
from blockbuster_fusion.ir.types import Type


def substituted(node: Node, mapping: Mapping[Dim, Dim]) -> Node:
    """The node with dims replaced, or the node itself if it mentions none of them."""

    def replaced(kind: Type) -> Type:
        if mapping.keys().isdisjoint(kind.lists) and mapping.keys().isdisjoint(kind.items):
            return kind
        return kind.substitute(mapping)

    op = map_op(
        node.op,
        dim=lambda dim: mapping.get(dim, dim),
        kind=replaced,
        body=lambda graph: graph.substitute(mapping),
    )
    types = tuple(map(replaced, node.types))
    return node if op is node.op and types == node.types else Node(op, node.inputs, types)
