"""Substituting dims: how two loops over one axis become the same loop."""

from collections.abc import Mapping

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.ops import (
    BlockReduce,
    Dot,
    Input,
    Iota,
    Join,
    Map,
    Misc,
    Node,
    Op,
    Pick,
    Reduce,
)
from blockbuster_fusion.ir.types import Type


def substituted(node: Node, mapping: Mapping[Dim, Dim]) -> Node:
    """The node with dims replaced, or the node itself where it mentions none of them."""
    op = _op(node.op, mapping)
    types = tuple(_type(t, mapping) for t in node.types)
    if op is node.op and all(a is b for a, b in zip(types, node.types, strict=True)):
        return node
    return Node(op, node.inputs, types)


def _type(t: Type, mapping: Mapping[Dim, Dim]) -> Type:
    if any(d in mapping for d in t.lists) or any(d in mapping for d in t.items):
        return t.substitute(mapping)
    return t


def _op(op: Op, mapping: Mapping[Dim, Dim]) -> Op:
    match op:
        case Input():
            kind = _type(op.type, mapping)
            return op if kind is op.type else Input(op.name, kind)
        case Map():
            body, dim = op.body.substitute(mapping), mapping.get(op.dim, op.dim)
            if body is op.body and dim is op.dim:
                return op
            return Map(dim, body, op.iterated, op.modes, op.first)
        case Misc():
            kinds = tuple(_type(t, mapping) for t in op.results)
            return Misc(op.namespace, op.name, op.attributes, kinds, op.layouts)
        case BlockReduce() | Reduce() if op.dim in mapping:
            return type(op)(mapping[op.dim], op.combiner)
        case Dot() | Join() | Iota() if op.dim in mapping:
            return type(op)(mapping[op.dim])
        case Pick() if op.dim in mapping:
            return Pick(mapping[op.dim], op.index)
        case _:
            return op
