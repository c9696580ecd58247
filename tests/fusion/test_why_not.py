"""Why an intermediate is left, as data and as sentences; and the alternatives, measured."""

import blockbuster_fusion as bb
from blockbuster_fusion.fusion.pareto import alternatives, unit_sets


def test_nothing_left_needs_no_reason() -> None:
    assert bb.fuse(bb.examples.attention(), rules="extended").why_not() == []


def test_self_attention_says_what_stands_in_the_way(golden) -> None:
    fusion = bb.fuse(bb.examples.self_attention(), rules="extended")
    golden("\n".join(str(reason) for reason in fusion.why_not()) + "\n")


def test_every_edge_that_is_left_has_a_reason() -> None:
    for name in bb.examples.EXAMPLES:
        for rules in ("paper", "extended"):
            fusion = bb.fuse(bb.examples.find(name), rules)
            for number, snapshot in enumerate(fusion.snapshots):
                reasons = fusion.why_not(number)
                assert [reason.edge for reason in reasons] == bb.buffered(snapshot)
                assert all(reason.refusals or reason.barrier for reason in reasons[-1:])


def test_refusals_name_rule_and_guard() -> None:
    (reason,) = bb.fuse(bb.examples.softmax(), "paper").why_not()
    assert ("fuse_consecutive_maps", 1, "only_direct_edges") in [
        (r.rule, r.number, r.guard) for r in reason.refusals
    ]
    assert "compute the list again" in reason.remedy


def test_alternatives_are_measured() -> None:
    graph = bb.lower(bb.examples.rmsnorm_swiglu_residual())
    sizes = dict.fromkeys(["MM", "DD", "KK"], 256)
    rows = alternatives(graph, "extended", sizes, {})
    assert len(unit_sets(graph)) == 8
    assert {row.unit for row in rows} == set(unit_sets(graph))
    assert any(row.best and row.edges == 0 and row.flops <= 1.25 for row in rows)
    assert not all(row.best for row in rows)


BARRIER = {"decoder-layer": 3, "self-attention": 2}
"""Edges that a rename keeps in memory, whatever has one block."""


def test_unit_dims_leave_nothing_but_renames() -> None:
    """With one block along every axis but the rows, no work is done twice."""
    for name in bb.examples.EXAMPLES:
        graph = bb.lower(bb.examples.find(name))
        rows = {out.axes[-2].name for out in graph.outputs if len(out.axes) > 1}
        unit = {d.name for d in graph.dims if d.packed and not d.is_free} - rows
        snapshots = bb.fuse(graph, unit=unit, rules="extended").snapshots
        least = min(len(bb.buffered(snapshot)) for snapshot in snapshots)
        assert least <= BARRIER.get(name, 0), name
