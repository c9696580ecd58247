"""Extension beyond the paper: a shift that cancels in a normalised exponential is dropped."""

from collections.abc import Iterator
from dataclasses import dataclass

from blockbuster_fusion.ir.expr import Expr, arg, call
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.infer import infer
from blockbuster_fusion.ir.ops import Elementwise, Map, Value, item_expr
from blockbuster_fusion.rules.linear import (
    SHIFTS,
    Broadcast,
    broadcast_operation,
    replace_operand,
    use_count,
)
from blockbuster_fusion.rules.listwise import Listwise, listwise, sum_of, uses_of
from blockbuster_fusion.rules.rule import Guard, Match, Rule
from blockbuster_fusion.rules.shifted import SAME_FLOAT_DTYPE, WITHIN, shifted_uses

_EXP = call("exp", arg(0))
_INVERSE = 1 / arg(0)
_SUMS = (arg(0) + arg(1), arg(1) + arg(0))


@dataclass(frozen=True, slots=True)
class Quotient:
    """`e / (Σe + g)`: the sum of e, and the exponentials g beside it, each with its shift."""

    total: Value
    beside: tuple[tuple[int, int], ...] = ()


def quotient(graph: Graph, shift: Broadcast, e: Value) -> Quotient | None:
    """The sum of a list and the one quotient with that sum, if the list has no other uses.

    Exponentials with the same shift may be added to the sum: exp(z + c), an attention sink.
    """
    sums: list[Value] = []
    quotients: list[Listwise] = []
    for i in uses_of(graph, e):
        total = _sum_made_by(graph, i, e)
        found = listwise(graph, i)
        if total is not None:
            sums.append(total)
        elif found is not None and isinstance(found.op, Elementwise):
            quotients.append(found)
        else:
            return None
    if len(sums) != 1 or len(quotients) != 1 or e in graph.output_values:
        return None
    denominator, beside = sums[0], []
    while (more := _added(graph, shift, denominator)) is not None:
        denominator, *pair = more
        beside.append((pair[0], pair[1]))
    if not _is_quotient(graph, quotients[0], e, denominator):
        return None
    return Quotient(sums[0], tuple(beside))


def _added(graph: Graph, shift: Broadcast, total: Value) -> tuple[Value, int, int] | None:
    """The sum of `total` and an exponential with the same shift: (it, the shift, the exp)."""
    if use_count(graph, total) != 1 or total in graph.output_values:
        return None
    ((user, port),) = graph.uses(total)
    op = graph.op(user)
    if not isinstance(op, Elementwise) or op.expr not in _SUMS:
        return None
    other = graph[user].inputs[1 - port]
    if item_expr(graph.op(other.node)) is not _EXP or use_count(graph, other) != 1:
        return None
    exp = graph.op(other.node)
    (moved,) = graph[other.node].inputs
    if not isinstance(exp, Elementwise) or use_count(graph, moved) != 1:
        return None
    own = graph.op(moved.node)
    if not isinstance(own, Elementwise) or not _same_shift(graph, moved.node, own.expr, shift):
        return None
    (z,) = (x for x in graph[moved.node].inputs if x != shift.c)
    kinds = {total: graph.type(total), other: infer(exp, [graph.type(z)])[0]}
    if infer(op, [kinds[x] for x in graph[user].inputs]) != graph[user].types:
        return None  # the shift widens it or changes its layout
    return Value(user), moved.node, other.node


def _same_shift(graph: Graph, node: int, expr: Expr, shift: Broadcast) -> bool:
    """True if an operator on items is z + c, or z - c, for the c of a shift."""
    if expr.op != shift.op or any(x.op != "arg" for x in expr.args):
        return False
    ordered = [graph[node].inputs[x.value] for x in expr.args if isinstance(x.value, int)]
    if len(set(ordered)) != 2 or shift.c not in ordered:
        return False
    return expr.op == "add" or ordered[1] == shift.c


def _sum_made_by(graph: Graph, node: int, e: Value) -> Value | None:
    """The sum of a list that a node computes, with its reduction."""
    for candidate in (Value(node), *(Value(i) for i in graph.users[node])):
        found = sum_of(graph, candidate)
        if found is not None and found[0] == e and graph.type(candidate).lists == ():
            return candidate
    return None


def _is_quotient(graph: Graph, found: Listwise, e: Value, total: Value) -> bool:
    """`e / total`, or `e` times a value that is `1 / total`, and nothing else uses the sum."""
    expr = item_expr(found.op)
    if expr is None or len(found.operands) != 2:
        return False
    if any(x.op != "arg" for x in expr.args) or len(expr.args) != 2:
        return False
    ordered = [found.operands[x.index] for x in expr.args]
    if use_count(graph, total) != 1:
        return False
    if expr.op == "div":
        return ordered == [e, total]
    if expr.op != "mul" or e not in ordered:
        return False
    factor = ordered[1 - ordered.index(e)]
    op = graph.op(factor.node)
    is_inverse = isinstance(op, Elementwise) and op.expr is _INVERSE
    return is_inverse and graph[factor.node].inputs == (total,) and use_count(graph, factor) == 1


def used_once(graph: Graph, match: Match) -> bool:
    return use_count(graph, Value(match.nodes[0])) == 1


def normalised_exp(graph: Graph, match: Match) -> bool:
    shift = broadcast_operation(graph, match.nodes[0], SHIFTS)
    assert shift is not None
    return quotient(graph, shift, Value(match.nodes[1])) is not None


def constant_along_the_sum(graph: Graph, match: Match) -> bool:
    """The shift is an item without the axis that is summed."""
    u, v = match.nodes
    shift = broadcast_operation(graph, u, SHIFTS)
    assert shift is not None
    kind = graph.type(shift.c)
    for i in uses_of(graph, Value(v)):
        total = _sum_made_by(graph, i, Value(v))
        if total is not None:
            found = sum_of(graph, total)
            assert found is not None
            return not kind.is_list and found[1] not in kind.items
    return False


class DropSoftmaxShift(Rule):
    """exp(x + c) / Σ exp(x + c)  =>  exp(x) / Σ exp(x), if nothing else uses the exponential.

    The same holds with exp(z + c) added to the sum, for the same c: an attention sink.

    A softmax that is written out safely becomes the plain one. The rule fires only if the program
    is made numerically safe afterwards, because it removes the protection against overflow.
    """

    name = "drop_softmax_shift"
    anchors = (Map, Elementwise)
    operations = SHIFTS
    needs_safety = True
    moves_shifts = True
    guards = (
        Guard("used_once", "the shifted list is used elsewhere too", used_once),
        Guard(
            "normalised_exp",
            "the exponential is not only divided by its sum",
            normalised_exp,
            far=True,
        ),
        Guard(
            "constant_along_the_sum",
            "the shift changes along the axis that is summed",
            constant_along_the_sum,
        ),
        WITHIN,
        SAME_FLOAT_DTYPE,
    )

    def sites(self, graph: Graph, node: int) -> Iterator[Match]:
        return shifted_uses(self, graph, node, (_EXP,))

    def rewrite(self, graph: Graph, match: Match) -> Graph:
        u, v = match.nodes
        shift = broadcast_operation(graph, u, SHIFTS)
        assert shift is not None
        found = quotient(graph, shift, Value(v))
        beside = () if found is None else found.beside
        add = {v: replace_operand(graph, v, Value(u), shift.a)}
        for moved, exp in beside:
            (z,) = (x for x in graph[moved].inputs if x != shift.c)
            add[exp] = replace_operand(graph, exp, Value(moved), z)
        gone = {u, *(moved for moved, _ in beside)}
        kept = {*add, *(value.node for node in add.values() for value in node.inputs)}
        return graph.edit(drop=_with_what_only_they_need(graph, gone, kept), add=add)


def _with_what_only_they_need(graph: Graph, gone: set[int], kept: set[int]) -> set[int]:
    """Nodes, and those whose results nothing else uses, such as the maximum."""
    made, pending = set(gone), list(gone)
    while pending:
        for value in graph[pending.pop()].inputs:
            i = value.node
            used = i in kept or i in made or any(v.node == i for v in graph.output_values)
            if used or graph.is_source(i) or not made.issuperset(graph.users[i]):
                continue
            made.add(i)
            pending.append(i)
    return made
