"""Sizes that become known: symbols replaced by numbers all over a program."""

from collections.abc import Mapping

from blockbuster_fusion.ir.axis import Axis, Dim, Symbol
from blockbuster_fusion.ir.combiner import Combiner, Mode, Reduced
from blockbuster_fusion.ir.expr import Expr, postorder
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import (
    BlockReduce,
    Dot,
    Elementwise,
    Input,
    Iota,
    Join,
    Map,
    Misc,
    Node,
    Op,
    Output,
    Pick,
    Reduce,
    Rename,
    Take,
)
from blockbuster_fusion.ir.types import Type


def with_sizes(graph: Graph, sizes: Mapping[Symbol, int]) -> Graph:
    """The program for these sizes: the axes that have them are of fixed length."""
    return _Sizes(sizes).graph(graph) if sizes else graph


class _Sizes:
    """One substitution."""

    def __init__(self, sizes: Mapping[Symbol, int]) -> None:
        self.sizes = sizes

    def graph(self, graph: Graph) -> Graph:
        nodes = {
            i: Node(self.op(node.op), node.inputs, tuple(self.type(t) for t in node.types))
            for i, node in graph.nodes.items()
        }
        outputs = [
            Output(out.name, out.value, tuple(self.axis(a) for a in out.axes))
            for out in graph.outputs
        ]
        return Graph(nodes, graph.inputs, outputs)

    def op(self, op: Op) -> Op:
        match op:
            case Input():
                return Input(op.name, self.type(op.type))
            case Elementwise():
                return Elementwise(self.expr(op.expr))
            case Map():
                modes = tuple(self.mode(mode) for mode in op.modes)
                return Map(self.dim(op.dim), self.graph(op.body), op.iterated, modes, op.first)
            case BlockReduce() | Reduce():
                return type(op)(self.dim(op.dim), self.combiner(op.combiner))
            case Dot() | Join() | Iota():
                return type(op)(self.dim(op.dim))
            case Pick():
                return Pick(self.dim(op.dim), op.index)
            case Take():
                return Take(self.axis(op.axis))
            case Rename():
                return Rename(self.axis(op.old), self.axis(op.new))
            case Misc():
                results = tuple(self.type(t) for t in op.results)
                layouts = tuple(tuple(self.axis(a) for a in layout) for layout in op.layouts)
                return Misc(op.namespace, op.name, op.attributes, results, layouts)

    def axis(self, axis: Axis) -> Axis:
        if isinstance(axis.extent, Symbol) and axis.extent in self.sizes:
            return Axis(axis.name, self.sizes[axis.extent])
        return axis

    def dim(self, dim: Dim) -> Dim:
        return Dim(self.axis(dim.axis), dim.index, dim.packed, dim.unit)

    def type(self, kind: Type) -> Type:
        lists = tuple(self.dim(d) for d in kind.lists)
        return Type(lists, tuple(self.dim(d) for d in kind.items), kind.dtype, kind.virtual)

    def expr(self, expr: Expr) -> Expr:
        made: dict[Expr, Expr] = {}
        for node in postorder(expr):
            value = self.axis(node.value) if isinstance(node.value, Axis) else node.value
            made[node] = Expr(node.op, tuple(made[a] for a in node.args), value)
        return made[expr]

    def combiner(self, combiner: Combiner) -> Combiner:
        combine = tuple(self.expr(e) for e in combiner.combine)
        return Combiner(combiner.name, combiner.identity, combine)

    def mode(self, mode: Mode) -> Mode:
        return mode and Reduced(self.combiner(mode.combiner), mode.component)
