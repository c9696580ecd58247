"""Rule 4: a scale moves behind the dot that it feeds."""

from collections.abc import Iterator

from blockbuster_fusion.ir.analysis import analysis
from blockbuster_fusion.ir.builder import Sketch
from blockbuster_fusion.ir.expr import arg
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import Dot, Elementwise, Map, Value
from blockbuster_fusion.rules.linear import (
    SCALES,
    SCALES_AND_SHIFTS,
    Broadcast,
    Contracted,
    broadcast_operation,
    contraction,
    replace_operand,
    use_count,
)
from blockbuster_fusion.rules.rule import Guard, Match, Rule


def parts(graph: Graph, match: Match) -> tuple[Broadcast, Contracted]:
    """The scale or shift, and the contraction of its result."""
    u, v = match.nodes
    return _parts(graph, u, v)


@analysis
def _parts(graph: Graph, u: int, v: int) -> tuple[Broadcast, Contracted]:
    broadcast = broadcast_operation(graph, u, SCALES_AND_SHIFTS)
    contracted = contraction(graph, Value(u), v)
    assert broadcast is not None
    assert contracted is not None
    return broadcast, contracted


def used_once(graph: Graph, match: Match) -> bool:
    return use_count(graph, Value(match.nodes[0])) == 1


def one_operand(graph: Graph, match: Match) -> bool:
    return parts(graph, match)[1].once


def nothing_but_the_dot(graph: Graph, match: Match) -> bool:
    return parts(graph, match)[1].alone


def summed(graph: Graph, match: Match) -> bool:
    return parts(graph, match)[1].summed


def item_without_contracted_axis(graph: Graph, match: Match) -> bool:
    broadcast, contracted = parts(graph, match)
    c, a = graph.type(broadcast.c), graph.type(broadcast.a)
    allowed = set(a.items if broadcast.dim is None else a.iterate(broadcast.dim).items)
    return not c.is_list and set(c.items) <= allowed - {contracted.dim}


def same_float_dtype(graph: Graph, match: Match) -> bool:
    """The law holds for real numbers: not for integers, nor with different rounding."""
    broadcast, contracted = parts(graph, match)
    dtype = graph.type(broadcast.a).dtype
    other = graph.type(contracted.other).dtype
    made = graph.type(Value(match.nodes[0])).dtype
    return dtype.is_float and dtype is made is other


SWAPPABLE = (
    Guard("one_operand", "the dot uses the list as more than one operand", one_operand),
    Guard(
        "nothing_but_the_dot",
        "the consumer holds more than the dot and its reduction",
        nothing_but_the_dot,
    ),
    Guard("summed", "the products are not summed over the contracted dim", summed),
    Guard(
        "item_without_contracted_axis",
        "the factor changes along the contracted axis",
        item_without_contracted_axis,
    ),
    Guard(
        "same_float_dtype",
        "the operation changes the dtype, or is not on floating-point numbers",
        same_float_dtype,
    ),
)
"""The guards of a swap for one use of a scale or shift."""

USED_ONCE = Guard("used_once", "the list is used elsewhere too", used_once)


ANCHORS = (Map, Elementwise, Dot)


def contracted_uses(
    rule: Rule, graph: Graph, node: int, operations: frozenset[str]
) -> Iterator[Match]:
    """Sites (u, v): u a scale or shift among `operations`, v a contraction of its result."""
    for u, v, found in _pairs(graph, node):
        if found.op in operations:
            yield Match(rule, graph, (u, v), found.dim)


@analysis
def _pairs(graph: Graph, node: int) -> list[tuple[int, int, Broadcast]]:
    """Scales and shifts with contractions of them, found from either; three rules ask for them."""
    op = graph.op(node)
    scaled = [node]
    if isinstance(op, Dot) or (isinstance(op, Map) and op.body.holds_dot):
        # a dot may change without its operand
        scaled += {value.node: None for value in graph[node].inputs}
    return [
        (u, v, found)
        for u in scaled
        if (found := broadcast_operation(graph, u, SCALES_AND_SHIFTS)) is not None
        for v in (graph.users[node] if u == node else (node,))
        if contraction(graph, Value(u), v)
    ]


class SwapScaleDot(Rule):
    """Rule 4: diag(c)·X·Y  =>  diag(c)·(X·Y).

    map[K]{X_k·c} -> map…{map[K]{dot} ⊕}  =>  map…{map[K]{dot} ⊕} -> map…{·c}, at any depth of maps
    around the dot, none included, and for either of its operands.
    """

    name = "swap_scale_dot"
    number = 4
    anchors = ANCHORS
    guards = (USED_ONCE, *SWAPPABLE)

    def sites(self, graph: Graph, node: int) -> Iterator[Match]:
        return contracted_uses(self, graph, node, SCALES)

    def rewrite(self, graph: Graph, match: Match) -> Graph:
        u, v = match.nodes
        scale, dot = parts(graph, match)
        sketch = Sketch(graph, match.ids())
        # the dot is the first operand, so that the layout of the result does not change
        operation = Elementwise(scale.of(arg(0), arg(1)))
        operands = [dot.result, scale.c]
        made = sketch.nest(dot.dims, operands, lambda inner, *xs: inner.one(operation, *xs))
        # the scale keeps its id
        add = {u if i == made.node else i: node for i, node in sketch.nodes.items()}
        add[v] = replace_operand(graph, v, Value(u), scale.a)
        return graph.edit(drop={u}, add=add, redirect={dot.result: Value(u)})
