"""Identities of values: two values with one identity are the same array, block by block.

A fused program may compute a value in several loops. The pass has to know that the maximum from
one loop belongs to the exponents that another loop computes again.
"""

from collections.abc import Hashable
from itertools import islice

from blockbuster_fusion.ir.combiner import ANY
from blockbuster_fusion.ir.expr import Expr, arg, postorder, substitute
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import (
    BlockReduce,
    Dot,
    Elementwise,
    Input,
    Iota,
    Map,
    Node,
    Pick,
    Reduce,
    Scan,
    Take,
    Value,
)

LONGEST = 64
"""The most parts of an identity; the result of a longer expression counts as a new array."""


class Identities:
    """The identity of every value of a program, as an expression over numbered arrays."""

    def __init__(self, program: Graph) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[Value, Expr] = {}
        self._fill(program, [self._array("input", i) for i in program.inputs])

    def of(self, value: Value) -> Expr:
        """The identity of a value at any depth: ids are unique in a program."""
        return self._known[value]

    def _array(self, *key: Hashable) -> Expr:
        return arg(self._numbers.setdefault(key, len(self._numbers)))

    def _fill(self, graph: Graph, inputs: list[Expr]) -> None:
        self._known.update((Value(i), x) for i, x in zip(graph.inputs, inputs, strict=True))
        for i, node in graph.nodes.items():
            if isinstance(node.op, Map):
                self._fill(node.op.body, [self._known[v] for v in node.inputs])
                for port in range(len(node.types)):
                    self._known[Value(i, port)] = self._yielded(node.op, port)
            elif not isinstance(node.op, Input):
                for port in range(len(node.types)):
                    self._known[Value(i, port)] = self._made(i, node, port)

    def _made(self, i: int, node: Node, port: int) -> Expr:
        inner = tuple(self._known[v] for v in node.inputs)
        match node.op:
            case Elementwise(expr=expr):
                made = substitute(expr, inner)
                short = sum(1 for _ in islice(postorder(made), LONGEST + 1)) <= LONGEST
                return made if short else self._array("elementwise", expr, inner)
            case BlockReduce(dim=dim, combiner=combiner) | Reduce(dim=dim, combiner=combiner):
                return self._array("reduced", combiner, dim.axis, port, inner)
            case Scan(dim=dim, combiner=combiner):
                return self._array("scan", combiner, dim.axis, inner)
            case Dot(dim=dim):
                return self._array("dot", dim.axis, inner)
            case Take(axis=axis):
                return self._array("take", axis, inner)
            case Pick(dim=dim, index=index):
                return self._array("pick", dim.axis, index, inner)
            case Iota(dim=dim):
                return self._array("iota", dim.axis)
        return self._array("node", i, port)

    def _yielded(self, op: Map, port: int) -> Expr:
        """The identity of a result of a map, stacked or reduced."""
        made, mode = self._known[op.body.outputs[port].value], op.modes[port]
        if op.first:
            return self._array("rest", op.first, op.dim.axis, str(mode), made)
        if mode is None or mode.combiner is ANY:
            return made
        others = tuple(self._known[out.value] for out in op.body.outputs)
        inner = (made,) if mode.combiner.arity == 1 else others
        return self._array("reduced", mode.combiner, op.dim.axis, mode.component, inner)
