"""Known sizes: symbols replaced by numbers in a whole program."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from blockbuster_fusion.ir.axis import Axis, Dim, Symbol
from blockbuster_fusion.ir.expr import Expr, rewrite, size
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.map_op import map_op
from blockbuster_fusion.ir.ops import Into, Node, Op
from blockbuster_fusion.ir.types import Type


def with_sizes(graph: Graph, sizes: Mapping[Symbol, int]) -> Graph:
    """The program for these sizes: the axes that have them are of fixed length."""
    return _Sizes(sizes).graph(graph) if sizes else graph


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The substitution of sizes in each part of a program."""

    sizes: Mapping[Symbol, int]

    def graph(self, graph: Graph) -> Graph:
        nodes = {
            i: Node(self.op(node.op), node.inputs, tuple(map(self.type, node.types)))
            for i, node in graph.nodes.items()
        }
        outputs = [
            replace(out, axes=tuple(map(self.axis, out.axes)), into=self.into(out.into))
            for out in graph.outputs
        ]
        return Graph(nodes, graph.inputs, outputs)

    def into(self, into: Into | None) -> Into | None:
        return None if into is None else replace(into, axis=self.axis(into.axis))

    def op(self, op: Op) -> Op:
        return map_op(
            op, dim=self.dim, axis=self.axis, kind=self.type, expr=self.expr, body=self.graph
        )

    def axis(self, axis: Axis) -> Axis:
        if isinstance(axis.extent, Symbol) and axis.extent in self.sizes:
            return Axis(axis.name, self.sizes[axis.extent])
        return axis

    def dim(self, dim: Dim) -> Dim:
        return Dim(self.axis(dim.axis), dim.index, dim.packed, dim.unit)

    def type(self, kind: Type) -> Type:
        lists, items = tuple(map(self.dim, kind.lists)), tuple(map(self.dim, kind.items))
        return Type(lists, items, kind.dtype, kind.virtual)

    def expr(self, expr: Expr) -> Expr:
        return rewrite(expr, lambda node: size(self.axis(node.axis)) if node.op == "size" else node)
