"""Extension beyond the paper: a row scale moves behind a column scale."""

from collections.abc import Iterator

from blockbuster_fusion.ir.builder import Sketch
from blockbuster_fusion.ir.expr import arg
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import Elementwise, Map, Value
from blockbuster_fusion.rules.linear import (
    SCALES,
    broadcast_operation,
    contraction,
    use_count,
)
from blockbuster_fusion.rules.listwise import Listwise, build_listwise, listwise, uses_of
from blockbuster_fusion.rules.rule import Guard, Match, Rule


def column_scale(graph: Graph, node: int, value: Value) -> tuple[Listwise, Value] | None:
    """`value` times another list or block along the same items: (the product, the other)."""
    found = listwise(graph, node)
    if found is None or not isinstance(found.op, Elementwise) or len(found.operands) != 2:
        return None
    expr = found.op.expr
    if expr.op != "mul" or {x.value for x in expr.args} != {0, 1}:
        return None
    if value not in found.operands:
        return None
    at = found.operands.index(value)
    other = found.operands[1 - at]
    if other == value or not (found.dim is None or found.walked[0] == found.walked[1]):
        return None
    return found, other


def used_once(graph: Graph, match: Match) -> bool:
    return use_count(graph, Value(match.nodes[0])) == 1


def same_dtypes(graph: Graph, match: Match) -> bool:
    u, v = match.nodes
    scale = broadcast_operation(graph, u, SCALES)
    assert scale is not None
    kinds = {graph.type(x).dtype for x in (scale.a, Value(u), Value(v))}
    return len(kinds) == 1


def within(graph: Graph, match: Match) -> bool:
    """The factors do not widen the block, so that they can be applied in either order."""
    u, v = match.nodes
    scale = broadcast_operation(graph, u, SCALES)
    assert scale is not None
    a, c, made = graph.type(scale.a), graph.type(scale.c), graph.type(Value(v))
    axes = {d.axis for d in a.items}
    return {d.axis for d in c.items} < axes and {d.axis for d in made.items} == axes


def towards_a_dot(graph: Graph, match: Match) -> bool:
    """A dot contracts the product along an axis that w has and c lacks: after w, c can move on.

    If another dot needs w last for the same reason, the two would be swapped forever.
    """
    u, v = match.nodes
    scale, product = broadcast_operation(graph, u, SCALES), column_scale(graph, v, Value(u))
    assert scale is not None
    assert product is not None
    w, c = graph.type(product[1]), graph.type(scale.c)
    w_axes, c_axes = {d.axis for d in w.items}, {d.axis for d in c.items}
    dots = (contraction(graph, Value(v), i) for i in uses_of(graph, Value(v)))
    contracted = {k.dim.axis for k in dots if k is not None}
    return not contracted.isdisjoint(w_axes - c_axes) and contracted.isdisjoint(c_axes - w_axes)


class SwapScales(Rule):
    """(a·c)·w  =>  (a·w)·c, for an item c and a w that varies along the list.

    The weight of a norm is between the norm and the dot; after it the scale can be swapped again.
    """

    name = "swap_row_column_scale"
    anchors = (Map, Elementwise)
    operations = SCALES
    guards = (
        Guard("used_once", "the scaled list is used elsewhere too", used_once),
        Guard(
            "towards_a_dot", "no dot follows that the scale could be swapped with", towards_a_dot
        ),
        Guard("same_dtypes", "the operation changes the dtype", same_dtypes),
        Guard("within", "a factor has axes that the list lacks", within),
    )

    def sites(self, graph: Graph, node: int) -> Iterator[Match]:
        for v in graph.users[node]:
            yield from self._site(graph, node, v)
        # the dot may change without the scale
        for u in {value.node: None for value in graph[node].inputs}:
            yield from self._site(graph, u, node)

    def _site(self, graph: Graph, u: int, v: int) -> Iterator[Match]:
        scale = broadcast_operation(graph, u, SCALES)
        if scale is not None:
            found = column_scale(graph, v, Value(u))
            if found is not None and found[0].dim is scale.dim:
                yield Match(self, graph, (u, v), scale.dim)

    def rewrite(self, graph: Graph, match: Match) -> Graph:
        u, v = match.nodes
        scale = broadcast_operation(graph, u, SCALES)
        product = column_scale(graph, v, Value(u))
        assert scale is not None
        assert product is not None
        sketch = Sketch(graph, match.ids())
        times = Elementwise(arg(0) * arg(1))
        # the operands keep their order, so that the layout of the product does not change
        factors = [scale.a if x == Value(u) else x for x in product[0].operands]
        first = build_listwise(sketch, times, factors, scale.dim)
        operands = [first, scale.c] if scale.a_first else [scale.c, first]
        operation = Elementwise(scale.form)
        second = build_listwise(sketch, operation, operands, scale.dim)
        names = {first.node: v, second.node: u}
        add = {
            names.get(i, i): type(node)(
                node.op,
                tuple(Value(names.get(x.node, x.node), x.port) for x in node.inputs),
                node.types,
            )
            for i, node in sketch.nodes.items()
        }
        return graph.edit(drop={u, v}, add=add, redirect={Value(v): Value(u)})
