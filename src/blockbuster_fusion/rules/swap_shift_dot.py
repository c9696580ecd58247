"""Rule 5: a shift moves behind the dot that it feeds, as an outer product."""

from collections.abc import Iterator

from blockbuster_fusion.ir.builder import Builder, Sketch
from blockbuster_fusion.ir.combiner import ADD
from blockbuster_fusion.ir.expr import arg
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import BlockReduce, Elementwise, Reduce, Value
from blockbuster_fusion.rules.linear import SHIFTS, replace_operand
from blockbuster_fusion.rules.rule import Match, Rule
from blockbuster_fusion.rules.swap_scale_dot import (
    ANCHORS,
    SWAPPABLE,
    USED_ONCE,
    contracted_uses,
    parts,
)


class SwapShiftDot(Rule):
    """Rule 5: (X + c·1ᵀ)·Y  =>  X·Y + c·(1ᵀ·Y).

    map[K]{X_k+c} -> map[N]{map[K]{dot} ⊕}  =>  four maps over N: the dot, the row sums of Y, their
    outer product with c, and the sum of the two.
    """

    name = "swap_shift_dot"
    number = 5
    anchors = ANCHORS
    moves_shifts = True
    guards = (USED_ONCE, *SWAPPABLE)

    def sites(self, graph: Graph, node: int) -> Iterator[Match]:
        return contracted_uses(self, graph, node, SHIFTS)

    def rewrite(self, graph: Graph, match: Match) -> Graph:
        u, v = match.nodes
        shift, dot = parts(graph, match)
        sketch = Sketch(graph, match.ids())

        def row_sum(inner: Builder, y: Value) -> Value:
            block = BlockReduce(dot.dim, ADD)
            if not dot.looped:
                return inner.one(block, y)
            sums = inner.nest([dot.dim], [y], lambda deepest, y_k: deepest.one(block, y_k))
            return inner.one(Reduce(dot.dim, ADD), sums)

        y_dims = [d for d in dot.dims if graph.type(dot.other).list_dim(d) is not None]
        sums = sketch.nest(y_dims, [dot.other], row_sum)
        product = Elementwise(arg(0) * arg(1))
        outer = sketch.nest(y_dims, [shift.c, sums], lambda inner, *xs: inner.one(product, *xs))
        # the dot is the first operand, so that the layout of the result does not change
        total = arg(1) + arg(0) if shift.op == "add" else arg(0) - arg(1)
        made = sketch.nest(
            dot.dims, [dot.result, outer], lambda inner, *xs: inner.one(Elementwise(total), *xs)
        )
        add = {u if i == made.node else i: node for i, node in sketch.nodes.items()}
        add[v] = replace_operand(graph, v, Value(u), shift.a)
        return graph.edit(drop={u}, add=add, redirect={dot.result: Value(u)})
