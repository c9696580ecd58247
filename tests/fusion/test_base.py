"""The fusion by the base of a rule set alone, and the alternatives that it adds."""

from collections.abc import Sequence

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.compiler import Request, choose
from helpers.effort import part
from helpers.programs import Case, random_unit

PROGRAMS = part(120, of=8)


def digests(graphs: Sequence[bb.Graph]) -> list[str]:
    return [graph.digest for graph in graphs]


@pytest.mark.parametrize("unit", [False, True], ids=["blocks", "unit dims"])
def test_the_base_is_what_its_rules_alone_give(unit: bool) -> None:
    """Step for step, although the two runs share the steps before the first rule beyond."""
    differs = 0
    for seed in range(PROGRAMS):
        case = Case(seed, extended=seed % 2 == 1)
        dims = random_unit(case.program, seed) if unit else ()
        fusion = bb.fuse(case.program, "extended", unit=dims)
        paper = bb.fuse(case.program, "paper", unit=dims)
        found = fusion if fusion.base is None else fusion.base
        assert digests(found.fused) == digests(paper.fused), f"seed {seed}"
        assert found.trace.to_json() | {"rules": "paper"} == paper.trace.to_json(), f"seed {seed}"
        differs += fusion.base is not None
    assert PROGRAMS // 2 < differs < PROGRAMS


def test_there_is_a_base_exactly_where_a_rule_beyond_it_fired() -> None:
    beyond = {rule.name for rule in bb.RULE_SETS["extended"].beyond}
    assert beyond == {rule.name for rule in bb.RULE_SETS["extended"] if rule.number is None}
    for seed in range(PROGRAMS):
        fusion = bb.fuse(Case(seed, extended=seed % 2 == 1).program, "extended")
        fired = {step.rule for step in fusion.trace}
        assert (fusion.base is None) == beyond.isdisjoint(fired), f"seed {seed}"


def test_its_trace_leads_to_its_snapshots() -> None:
    for seed in range(PROGRAMS // 2):
        fusion = bb.fuse(Case(seed, extended=True).program, "extended")
        if fusion.base is not None:
            trace = bb.Trace.from_json(fusion.base.trace.to_json())
            found = [trace.program_after(steps) for steps in trace.snapshots]
            assert digests(found) == digests(fusion.base.fused), f"seed {seed}"
            assert trace.rules is bb.RULE_SETS["paper"]
            assert fusion.base.initial is fusion.initial


def test_what_the_paper_does_has_no_base() -> None:
    fusion = bb.fuse(bb.examples.softmax(), "paper")
    assert fusion.base is None
    assert fusion.alternatives == fusion.snapshots


def test_alternatives_are_the_snapshots_and_what_else_the_base_has() -> None:
    fusion = bb.fuse(bb.examples.rmsnorm_swiglu_residual())
    assert fusion.base is not None
    own = len(fusion.fused)
    assert fusion.alternatives[:own] == fusion.snapshots
    others = fusion.alternatives[own:]
    assert others
    assert set(digests(others)) <= set(digests(fusion.base.snapshots))
    assert len(set(digests(fusion.alternatives))) == len(fusion.alternatives)


def test_every_alternative_computes_the_same() -> None:
    for seed in range(part(40, of=8)):
        case = Case(seed, extended=True)
        for number, graph in enumerate(bb.fuse(case.program).alternatives):
            case.check(graph, f"alternative {number}")


def test_without_safety_the_base_is_the_same() -> None:
    for seed in range(part(30, of=2)):
        program = Case(seed, extended=True).program
        fusion, paper = bb.fuse(program, safe=False), bb.fuse(program, "paper", safe=False)
        found = fusion if fusion.base is None else fusion.base
        assert digests(found.fused) == digests(paper.fused), f"seed {seed}"


def test_the_default_is_chosen_from_the_base_as_well() -> None:
    """In this program the rules of the base alone give the least estimated time."""
    program = Case(140, extended=True).program
    unit: tuple[str, ...] = ()
    fusion = bb.fuse(program, unit=unit)
    chosen = choose(Request(program, unit=unit))[0].graph
    assert chosen.digest in digests(fusion.alternatives)
    assert chosen.digest not in digests(fusion.snapshots)
    first = choose(Request(program, unit=unit, snapshot=0))[0]
    assert first.graph.digest == fusion.snapshots[0].digest
