"""A shift and a function of its result: what the rules that look through a shift share."""

from collections.abc import Collection, Iterator

from blockbuster_fusion.ir.expr import Expr
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import Value, item_expr
from blockbuster_fusion.rules.linear import SHIFTS, broadcast_operation
from blockbuster_fusion.rules.listwise import listwise
from blockbuster_fusion.rules.rule import Guard, Match, Rule


def shifted_uses(
    rule: Rule, graph: Graph, node: int, functions: Collection[Expr]
) -> Iterator[Match]:
    """Sites (u, v): u a shift of a list, v one of `functions` of every item of its result."""
    shift = broadcast_operation(graph, node, SHIFTS)
    if shift is None:
        return
    for user in graph.users[node]:
        if item_expr(graph.op(user)) not in functions:
            continue
        found = listwise(graph, user)
        if found is not None and found.operands == (Value(node),):
            yield Match(rule, graph, (node, user), shift.dim)


def same_dtype(graph: Graph, match: Match) -> bool:
    shift = broadcast_operation(graph, match.nodes[0], SHIFTS)
    assert shift is not None
    return graph.type(shift.a).dtype is graph.type(Value(match.nodes[0])).dtype


SAME_DTYPE = Guard("same_dtype", "the shift changes the dtype", same_dtype)
