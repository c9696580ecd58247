"""Extension beyond the paper: the sum of a shifted list's squares, from sums of the list."""

from collections.abc import Iterator

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.builder import Sketch
from blockbuster_fusion.ir.expr import arg, size
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import Elementwise, Map, Reduce, Value
from blockbuster_fusion.rules.linear import SHIFTS, broadcast_operation, use_count
from blockbuster_fusion.rules.listwise import build_listwise, build_sum, sum_of, uses_of
from blockbuster_fusion.rules.rule import Guard, Match, Rule
from blockbuster_fusion.rules.shifted import SAME_FLOAT_DTYPE, WITHIN, shifted_uses

SQUARES = (arg(0) ** 2, arg(0) * arg(0), arg(0) ** 2.0)


def total_of(graph: Graph, square: int) -> tuple[Value, Dim] | None:
    """The sum of a list of squares: its value and the dim of the axis."""
    for i in uses_of(graph, Value(square)):
        for candidate in (Value(i), *(Value(j) for j in graph.users[i])):
            found = sum_of(graph, candidate)
            if (
                found is not None
                and found[0] == Value(square)
                and not graph.type(candidate).is_list
            ):
                return candidate, found[1]
    return None


def only_summed(graph: Graph, match: Match) -> bool:
    square = match.nodes[1]
    found = total_of(graph, square)
    return found is not None and use_count(graph, Value(square)) == 1


def constant_along_the_sum(graph: Graph, match: Match) -> bool:
    u, square = match.nodes
    shift, found = broadcast_operation(graph, u, SHIFTS), total_of(graph, square)
    if shift is None or found is None:
        return False
    kind = graph.type(shift.c)
    return not kind.is_list and found[1] not in kind.items


class ExpandSquare(Rule):
    """Σ(x + c)²  =>  Σx² + 2c·Σx + |K|c².

    The two-pass variance becomes the one-pass one. The rule fires only if the program is made
    numerically safe afterwards: the difference of large sums loses precision.
    """

    name = "expand_square_of_shift"
    anchors = (Map, Elementwise)
    operations = SHIFTS
    needs_safety = True
    moves_shifts = True
    guards = (
        Guard("only_summed", "the squares are not only summed", only_summed, far=True),
        Guard(
            "constant_along_the_sum",
            "the shift changes along the axis that is summed",
            constant_along_the_sum,
        ),
        WITHIN,
        SAME_FLOAT_DTYPE,
    )

    def sites(self, graph: Graph, node: int) -> Iterator[Match]:
        return shifted_uses(self, graph, node, SQUARES)

    def rewrite(self, graph: Graph, match: Match) -> Graph:
        u, square = match.nodes
        shift, found = broadcast_operation(graph, u, SHIFTS), total_of(graph, square)
        assert shift is not None
        assert found is not None
        total, along = found
        sketch = Sketch(graph, match.ids())
        squares = build_listwise(sketch, Elementwise(arg(0) ** 2), [shift.a], shift.dim)
        square_sum = build_sum(sketch, squares, along, shift.dim)
        plain_sum = _known_sum(graph, shift.a, along.axis.name) or build_sum(
            sketch, shift.a, along, shift.dim
        )
        sign = 2 if shift.op == "add" else -2
        expr = arg(0) + sign * arg(2) * arg(1) + size(along.axis) * arg(2) ** 2
        made = sketch.one(Elementwise(expr), square_sum, plain_sum, shift.c)
        drop = {square, *_sum_nodes(graph, square, total)}
        if use_count(graph, Value(u)) == 1:
            drop.add(u)
        return graph.edit(drop=drop, add=sketch.nodes, redirect={total: made})


def _known_sum(graph: Graph, x: Value, axis: str) -> Value | None:
    """The sum of `x` along the axis, if the graph has it already, as for a mean."""
    for i in uses_of(graph, x):
        for candidate in (Value(i), *(Value(j) for j in graph.users[i])):
            found = sum_of(graph, candidate)
            is_sum = found is not None and found[0] == x and found[1].name == axis
            if is_sum and not graph.type(candidate).is_list:
                return candidate
    return None


def _sum_nodes(graph: Graph, square: int, total: Value) -> set[int]:
    """The nodes that sum the squares."""
    nodes = {total.node}
    if isinstance(graph.op(total.node), Reduce):
        nodes |= {v.node for v in graph[total.node].inputs}
    return nodes
