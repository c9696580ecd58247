"""Each rule beyond the paper keeps the meaning of random programs, wherever it may fire.

The programs are the steps of a fusion with the extended rules. Every match of a rule in them is
tried. All programs run in float64 on ragged tiles, as for the paper's rules.
"""

import random
from collections import Counter
from functools import cache

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.rules.rule import Match, Rule
from helpers.effort import part
from helpers.programs import Case, random_unit
from helpers.rewriting import fired, matches

EXTENDED = bb.RULE_SETS["extended"]
NEW = [rule for rule in EXTENDED if rule.number is None]
PROGRAMS = 800
FIRINGS = part(80, of=12)
AT_LEAST = part(50, of=12)
RARE = {"rederive_list", "drop_softmax_shift", "expand_square_of_shift", "swap_row_column_scale"}


@cache
def fused(seed: int, unit: bool) -> tuple[Case, bb.Trace]:
    """A program and the trace of its fusion, which all rules look at."""
    case = Case(seed, extended=True)
    dims = random_unit(case.program, seed) if unit else ()
    return case, bb.fuse(case.program, "extended", unit=dims).trace


def places(rule: Rule, case: Case, trace: bb.Trace) -> list[tuple[bb.Graph, Match]]:
    """Some of the rule's matches: where the driver fires it, and in other programs on the way."""
    rng = random.Random(case.seed)
    taken = [step.index - 1 for step in trace if step.rule == rule.name]
    if not taken and rng.random() < 0.7:
        return []
    others = rng.sample(range(len(trace) + 1), min(len(trace) + 1, 3))
    steps = sorted({*rng.sample(taken, min(len(taken), 2)), *others})
    programs = [trace.program_after(number) for number in steps]
    found = [(program, match) for program in programs for match in matches(rule, program)]
    return rng.sample(found, min(len(found), 4))


def test_the_new_rules_are_these() -> None:
    assert {rule.name for rule in NEW} == {
        "extend_map_over_producers",
        "recompute_producer",
        "rederive_list",
        "swap_row_column_scale",
        "interchange_loops",
        "drop_softmax_shift",
        "expand_square_of_shift",
    }


@pytest.mark.parametrize("unit", [False, True], ids=["blocks", "unit dims"])
@pytest.mark.parametrize("rule", NEW, ids=lambda rule: rule.name)
def test_a_rule_keeps_the_meaning(rule: Rule, unit: bool) -> None:
    firings = 0
    for seed in range(PROGRAMS):
        case, trace = fused(seed, unit)
        for program, match in places(rule, case, trace):
            case.check(fired(match, program), match)
            firings += 1
        if firings >= FIRINGS:
            break
    print(f"{rule.name}: {firings} firings in {seed + 1} programs")
    assert firings >= AT_LEAST


def test_the_rules_may_fire_in_any_order() -> None:
    """Any rule at any of its matches, and again: programs that the driver never comes by."""
    firings: Counter[str] = Counter()
    for seed in range(part(100, of=5)):
        (case, trace), rng, log = fused(seed, False), random.Random(seed), []
        # now and then where the driver fires one of the rarer rules, else anywhere at first
        rare = [step.index - 1 for step in trace if step.rule in RARE]
        steps = rng.choice(rare) if rare and rng.random() < 0.7 else rng.randint(0, len(trace) // 2)
        program = trace.program_after(steps)
        for _ in range(15):
            # a new rule before one of the paper's: those have matches everywhere
            rules = [*rng.sample(NEW, len(NEW)), *rng.sample(list(EXTENDED), len(list(EXTENDED)))]
            if rng.random() < 0.4:
                rules = rules[len(NEW) :]
            found = next((ms for rule in rules if (ms := matches(rule, program))), [])
            if not found:
                break
            match = rng.choice(found)
            log.append(str(match))
            program = fired(match, program)
            case.check(program, log)
            firings[match.rule.name] += 1
    print(firings)
    assert set(firings) >= {rule.name for rule in NEW}


def test_a_peeled_program_is_fused_like_any_other() -> None:
    """Rule 7 leaves maps over a part of a dim, joins and picks for the other rules to meet."""
    (peel,) = EXTENDED.optional
    peeled = 0
    for seed in range(part(120)):
        (case, trace), rng = fused(seed, False), random.Random(seed)
        program = trace.program_after(rng.randint(0, len(trace)))
        if found := matches(peel, program):
            match = rng.choice(found)
            for snapshot in bb.fuse(fired(match, program), "extended").fused:
                case.check(snapshot, match)
            peeled += 1
    assert peeled >= AT_LEAST
