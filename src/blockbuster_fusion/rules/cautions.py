"""Cautions: guards against a loss of digits that the safety pass could not repair.

A shift that moves out of a sum or a dot leaves a difference of two sums, which loses digits if both
are large. The safety pass repairs that by subtracting the mean of the list first. It can do so if
the shift comes from the sum of the list, as a mean does, and the list can be read twice. Any other
shift is known before the list is read and costs nothing in place.

A shift that does not affect a softmax may still be NaN. It is dropped only if the row that it is
subtracted from has the same NaN.
"""

from collections.abc import Collection, Mapping

from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import BlockReduce, Elementwise, Map, Pick, Reduce, Value
from blockbuster_fusion.rules.drop_softmax_shift import quotient
from blockbuster_fusion.rules.linear import SHIFTS, broadcast_operation
from blockbuster_fusion.rules.listwise import sum_of, uses_of
from blockbuster_fusion.rules.rule import Guard, Match


def comes_from_a_sum_of_the_list(graph: Graph, match: Match) -> bool:
    """The shift is computed from a sum of the list, as a mean is."""
    shift = broadcast_operation(graph, match.nodes[0], SHIFTS)
    assert shift is not None
    return any(
        total.node == shift.c.node or graph.reaches(total.node, shift.c.node)
        for total in _own_sums(graph, shift.a)
    )


def _own_sums(graph: Graph, x: Value) -> list[Value]:
    """The sums of a list that the graph has."""
    made = (
        candidate
        for i in uses_of(graph, x)
        for candidate in (Value(i), *(Value(j) for j in graph.users[i]))
    )
    return [v for v in made if (found := sum_of(graph, v)) is not None and found[0] == x]


def comes_from_the_row(graph: Graph, match: Match) -> bool:
    """The shift is computed from the row that is shifted, as its maximum is."""
    shift = broadcast_operation(graph, match.nodes[0], SHIFTS)
    assert shift is not None
    rows = set(graph.type(shift.a).axes) - set(graph.type(shift.c).axes)
    found = quotient(graph, shift, Value(match.nodes[1]))
    beside = () if found is None else found.beside
    ends = {shift.a, *(x for moved, _ in beside for x in graph[moved].inputs if x != shift.c)}
    return len(rows) == 1 and _is_made_of(graph, shift.c, ends)


def _is_made_of(graph: Graph, value: Value, ends: Collection[Value]) -> bool:
    """True if operators and reductions compute a value from some others alone."""
    pending, seen = [value], set(ends)
    while pending:
        v = pending.pop()
        if v in seen:
            continue
        seen.add(v)
        if not isinstance(graph.op(v.node), Elementwise | BlockReduce | Reduce | Map | Pick):
            return False
        pending += graph[v.node].inputs
    return True


def has_several_blocks(graph: Graph, match: Match) -> bool:
    """The list has several blocks; with one block, the shift costs nothing in place."""
    shift = broadcast_operation(graph, match.nodes[0], SHIFTS)
    assert shift is not None
    return graph.type(shift.a).is_list


def can_be_read_twice(graph: Graph, match: Match) -> bool:
    """No dot computes the list, or it has one block and is kept."""
    shift = broadcast_operation(graph, match.nodes[0], SHIFTS)
    assert shift is not None
    if not graph.type(shift.a).is_list:
        return True
    pending, seen = [shift.a], {shift.a}
    while pending:
        value = pending.pop()
        op, operands = graph.op(value.node), graph[value.node].inputs
        if isinstance(op, Map):
            if op.body.holds_dot:
                return False
            operands = tuple(v for v, walked in zip(operands, op.iterated, strict=True) if walked)
        elif not isinstance(op, Elementwise):
            continue
        pending += [v for v in operands if v not in seen]
        seen.update(operands)
    return True


_SEVERAL_BLOCKS = Guard(
    "has_several_blocks",
    "the list has one block: its shift costs nothing where it stands",
    has_several_blocks,
)
_OF_A_SHIFT = (
    Guard(
        "comes_from_a_sum_of_the_list",
        "the shift does not come from a sum of the list: moving it would only lose digits",
        comes_from_a_sum_of_the_list,
        far=True,
    ),
    Guard(
        "can_be_read_twice",
        "a dot makes the list: reading it once more for its mean would cost too much",
        can_be_read_twice,
        far=True,
    ),
)

CAUTIONS = {
    "swap_shift_dot": (_SEVERAL_BLOCKS, *_OF_A_SHIFT),
    "expand_square_of_shift": _OF_A_SHIFT,
    "drop_softmax_shift": (
        Guard(
            "comes_from_the_row",
            "the shift does not come from the row: where it is NaN, so is the result",
            comes_from_the_row,
            far=True,
        ),
    ),
}
"""Additional guards, by the names of rules."""


def caution(cautions: Mapping[str, tuple[Guard, ...]], match: Match) -> Guard | None:
    """The caution that a firing of a rule at a match would violate, if any."""
    guards = cautions.get(match.rule.name, ())
    return next((guard for guard in guards if not guard.holds(match.graph, match)), None)
