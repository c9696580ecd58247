"""Every guard of the rules beyond the paper is needed, as those of the paper's rules are.

Where a rule's rewrite is right anyhow, its guards forbid waste, or a fusion without an end.
"""

from collections.abc import Callable

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion import ops
from blockbuster_fusion.array.arrays import Array
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import Value
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.rules.rederive import derivations
from blockbuster_fusion.rules.rule import Match, Rule
from helpers.effort import part
from helpers.extensions import (
    EXP,
    SQUARE,
    columns_of_two,
    exp_into_columns,
    large_whole_numbers_squared,
    large_whole_numbers_weighted,
    one_after_the_other,
    outer_softmax,
    outer_squares,
    product_by_its_sum,
    rows_and_columns,
    running_sums_by_their_sum,
    scaled_rows_by_column,
    shifted_block,
    shifted_softmax,
    squares,
    sums_of_the_two_before,
    weighted,
    weighted_by_a_wider_list,
    weighted_by_all,
    weighted_by_running_sums,
    weighted_into_columns,
    weighted_item,
    whole_k,
    whole_list_and_its_sum,
)
from helpers.mutants import changed, grows, harm, never_ends, waste, without
from helpers.programs import Case
from helpers.rewriting import exhaust, lowered, matches

EXTENDED = bb.RULE_SETS["extended"]
NEW = [rule for rule in EXTENDED if rule.number is None]


def running_sums_into_columns() -> Graph:
    """A misc operator stands between the map and the node that could move into it."""

    def program(X: Array, Y: Array) -> Array:
        e = ops.exp(X)
        return (e @ Y.T) + ops.sort(e) @ Y.T

    return exhaust(lowered(program, X="K", Y="N K"), *bb.RULE_SETS["paper"].local)


def running_totals_into_columns() -> Graph:
    """A scan along the loop around stands between the map and the node that could move into it."""

    def program(X: Array, Y: Array, W: Array) -> Array:
        e = ops.exp(X[:, None] * Y)
        return (e @ W.T) * ops.cumsum(e.sum(axis=1))[:, None]

    return exhaust(lowered(program, X="K", Y="N", W="M N"), *bb.RULE_SETS["paper"].local)


def sums_of_running_sums() -> Graph:
    """The loops of a scan could change places for the sum along the other axis."""
    return lowered(lambda X: ops.cumsum(X, axis=1).sum(axis=0), X="M K")


CAUGHT: dict[tuple[str, str], tuple[Callable[[], Graph], str]] = {
    ("extend_map_over_producers", "iterates_nothing_pulled"): (
        lambda: exp_into_columns(iterated=True),
        "error",
    ),
    ("extend_map_over_producers", "moves_no_misc"): (running_sums_into_columns, "waste"),
    ("extend_map_over_producers", "moves_no_scan"): (running_totals_into_columns, "unsound"),
    ("extend_map_over_producers", "only_items_escape"): (
        lambda: exp_into_columns(again=True),
        "unsound",
    ),
    ("recompute_producer", "same_dim"): (scaled_rows_by_column, "fusion without an end"),
    ("recompute_producer", "walks_a_list"): (whole_list_and_its_sum, "endless"),
    ("recompute_producer", "rule_1_is_blocked"): (one_after_the_other, "endless"),
    ("recompute_producer", "cheap"): (product_by_its_sum, "waste"),
    ("recompute_producer", "small"): (lambda: sums_of_the_two_before(16), "growth"),
    ("recompute_producer", "lists_at_hand"): (running_sums_by_their_sum, "waste"),
    ("rederive_list", "reads_the_source"): (lambda: weighted_into_columns(source=False), "waste"),
    ("rederive_list", "nobody_else_reads_it"): (
        lambda: weighted_into_columns(again=True),
        "unsound",
    ),
    ("rederive_list", "lists_at_hand"): (weighted_by_running_sums, "waste"),
    ("swap_row_column_scale", "used_once"): (lambda: weighted(again=True), "wrong"),
    ("swap_row_column_scale", "towards_a_dot"): (weighted_item, "endless"),
    ("swap_row_column_scale", "same_dtypes"): (large_whole_numbers_weighted, "wrong"),
    ("swap_row_column_scale", "within"): (weighted_by_a_wider_list, "unsound"),
    ("interchange_loops", "only_stacks"): (lambda: columns_of_two(turned=True), "wrong"),
    ("interchange_loops", "scans_nothing"): (sums_of_running_sums, "unsound"),
    ("interchange_loops", "iterated_by_all"): (rows_and_columns, "endless"),
    ("drop_softmax_shift", "used_once"): (lambda: shifted_softmax(again="shifted"), "unsound"),
    ("drop_softmax_shift", "normalised_exp"): (lambda: shifted_softmax(again="e"), "wrong"),
    ("drop_softmax_shift", "constant_along_the_sum"): (
        lambda: shifted_block((whole_k,), EXP),
        "wrong",
    ),
    ("drop_softmax_shift", "within"): (outer_softmax, "unsound"),
    ("drop_softmax_shift", "same_float_dtype"): (
        lambda: shifted_softmax(dtype=DType.bfloat16),
        "unsound",
    ),
    ("expand_square_of_shift", "only_summed"): (lambda: squares(again="squares"), "unsound"),
    ("expand_square_of_shift", "constant_along_the_sum"): (
        lambda: shifted_block((whole_k,), SQUARE, divided=False),
        "wrong",
    ),
    ("expand_square_of_shift", "within"): (outer_squares, "unsound"),
    ("expand_square_of_shift", "same_float_dtype"): (large_whole_numbers_squared, "wrong"),
}
"""For each guard, a program in which its rule does harm without it."""

IMPLIED: dict[tuple[str, str], str] = {
    (
        "interchange_loops",
        "only_direct_edges",
    ): "of a list's users one comes first, and for that one the rule fires at the same nest",
}
"""Guards that state an assumption of a rule; other guards ensure it as well."""

GUARDS = [(rule, guard.name) for rule in NEW for guard in rule.guards]


def cases(known: dict[tuple[str, str], object]) -> list[object]:
    return [
        pytest.param(rule, guard, id=f"{rule.name}-{guard}")
        for rule, guard in GUARDS
        if (rule.name, guard) in known
    ]


def test_every_guard_is_here() -> None:
    known = [*CAUGHT, *IMPLIED]
    assert sorted(known) == sorted((rule.name, guard) for rule, guard in GUARDS)


@pytest.mark.parametrize(("rule", "guard"), cases(CAUGHT))
def test_a_rule_without_the_guard_is_caught(rule: Rule, guard: str) -> None:
    make, kind = CAUGHT[rule.name, guard]
    program, mutant = make(), without(rule, guard)
    if kind == "growth":
        assert not grows(rule, program)
        assert grows(mutant, program)
        return
    assert harm(rule, program) is None
    if kind == "waste":
        assert harm(mutant, program) is None
        assert waste(mutant, program, EXTENDED)
    elif kind == "fusion without an end":
        assert not never_ends(rule, program)
        assert never_ends(mutant, program)
    else:
        assert harm(mutant, program) == kind


def test_a_map_that_walks_the_derived_list_itself_is_caught() -> None:
    """It is another use of the list, although it is the same node's."""

    def nobody_else(graph: Graph, match: Match) -> bool:
        v, u = match.nodes
        value = Value(u, derivations(graph, match)[0].port)
        return {i for i, _ in graph.uses(value)} == {v} and value not in graph.output_values

    rule, program = EXTENDED.rule("rederive_list"), weighted_by_all(walked=True)
    assert harm(rule, program) is None
    assert harm(changed(rule, "nobody_else_reads_it", nobody_else), program) == "error"


@pytest.mark.parametrize(("rule", "guard"), cases(IMPLIED))
def test_a_guard_that_is_implied_changes_nothing(rule: Rule, guard: str) -> None:
    """Wherever the mutant has a match, the rule has one at the same map, with the same rewrite."""
    mutant, more, found = without(rule, guard), 0, 0
    for seed in range(part(150, of=3)):
        trace = bb.fuse(Case(seed, extended=True).program, "extended").trace
        for steps in range(0, len(trace) + 1, 3):
            program = trace.program_after(steps)
            allowed = {(match.path, match.nodes) for match in matches(rule, program)}
            places = {(path, nodes[0]) for path, nodes in allowed}
            for match in matches(mutant, program):
                assert (match.path, match.nodes[0]) in places
                more += (match.path, match.nodes) not in allowed
                found += 1
    assert found > more > 0
