"""Each rule keeps the meaning of random programs, wherever it may fire.

The programs are those on the way from an initial program to its last snapshot; the matches are all
that a rule has in them, not only those that the driver takes. Everything runs in float64 on ragged
tiles, and is compared with the array program that the block program came from.
"""

import random
from collections import Counter

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.rules.rule import Match, Rule
from helpers.effort import part
from helpers.programs import Case
from helpers.rewriting import fired, matches

PAPER = bb.RULE_SETS["paper"]
PROGRAMS = 250
FIRINGS = part(100)
AT_LEAST = part(50)


def places(rule: Rule, case: Case) -> list[tuple[bb.Graph, Match]]:
    """Some of the rule's matches: in the initial program, and in others on the way."""
    trace = bb.fuse(case.program, "paper").trace
    rng = random.Random(case.seed)
    later = rng.sample(range(1, len(trace) + 1), min(len(trace), 7))
    programs = [trace.program_after(steps) for steps in (0, *sorted(later))]
    found = [(program, match) for program in programs for match in matches(rule, program)]
    return rng.sample(found, min(len(found), 4))


@pytest.mark.parametrize("rule", tuple(PAPER), ids=lambda rule: rule.name)
def test_a_rule_keeps_the_meaning(rule: Rule) -> None:
    firings = 0
    for seed in range(PROGRAMS):
        case = Case(seed)
        for program, match in places(rule, case):
            case.check(fired(match, program), match)
            firings += 1
        if firings >= FIRINGS:
            break
    assert firings >= AT_LEAST


def test_the_rules_may_fire_in_any_order() -> None:
    """Any rule at any of its matches, and again: programs that the driver never comes by."""
    firings: Counter[str] = Counter()
    for seed in range(part(80, of=2)):
        case, rng = Case(seed), random.Random(seed)
        program, log = bb.lower(case.program), []
        for _ in range(15):
            rules = rng.sample(list(PAPER), len(list(PAPER)))
            found = next((ms for rule in rules if (ms := matches(rule, program))), [])
            if not found:
                break
            match = rng.choice(found)
            log.append(str(match))
            program = fired(match, program)
            case.check(program, log)
            firings[match.rule.name] += 1
    assert set(firings) == {rule.name for rule in PAPER}


def test_a_peeled_program_is_fused_like_any_other() -> None:
    """Rule 7 leaves maps over a part of a dim, joins and picks for the other rules to meet."""
    (peel,) = PAPER.optional
    peeled = 0
    for seed in range(part(100)):
        case, rng = Case(seed), random.Random(seed)
        trace = bb.fuse(case.program, "paper").trace
        program = trace.program_after(rng.randint(0, len(trace)))
        if found := matches(peel, program):
            match = rng.choice(found)
            for snapshot in bb.fuse(fired(match, program), "paper").fused:
                case.check(snapshot, match)
            peeled += 1
    assert peeled >= AT_LEAST
