"""A shift and a function of its result: common parts of the rules on shifted lists."""

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


def within(graph: Graph, match: Match) -> bool:
    """Without the shift, or with it outside the sum, the list keeps its axes."""
    shift = broadcast_operation(graph, match.nodes[0], SHIFTS)
    assert shift is not None
    a = graph.type(shift.a)
    seen = a if shift.dim is None else a.iterate(shift.dim)
    return set(graph.type(shift.c).items) <= set(seen.items)


def same_float_dtype(graph: Graph, match: Match) -> bool:
    """For truth values + is "or"; squares of whole numbers may be too large for their dtype."""
    shift = broadcast_operation(graph, match.nodes[0], SHIFTS)
    assert shift is not None
    dtypes = {graph.type(x).dtype for x in (shift.a, shift.c, Value(match.nodes[0]))}
    return len(dtypes) == 1 and dtypes.pop().is_float


WITHIN = Guard("within", "the shift has axes that the list lacks", within)
SAME_FLOAT_DTYPE = Guard(
    "same_float_dtype",
    "the shift changes the dtype, or is not on floating-point numbers",
    same_float_dtype,
)
