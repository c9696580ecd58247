"""Mutants: rules without one of their guards, and the harm that they do."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import blockbuster_fusion as bb
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.fusion.driver import Driver
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.rules.rule import Guard, Match, Rule
from helpers.growth import allowed, largest
from helpers.rewriting import EXTENTS, TILES, check, fired, matches

PAPER, EXTENDED = bb.RULE_SETS["paper"], bb.RULE_SETS["extended"]
LIMIT = 25
"""No rule fires as often as this in one of these small programs."""


def without(rule: Rule, guard: str) -> Rule:
    """The rule without one of its guards."""
    mutant = copy.copy(rule)
    mutant.guards = tuple(g for g in rule.guards if g.name != guard)
    assert len(mutant.guards) == len(rule.guards) - 1
    return mutant


def harm(rule: Rule, program: Graph) -> str | None:
    """The fault that appears when the rule fires in a program until it has no match left.

    A mutant fires first where the rule that it was made from may not.
    """
    guarded = EXTENDED.rule(rule.name)
    for _ in range(LIMIT):
        found = sorted(matches(rule, program), key=lambda match: guarded.refusal(match) is None)
        if not found:
            return None
        try:
            made = fired(found[0], program)
        except (BlockbusterError, KeyError, AssertionError):
            return "error"
        try:
            check(program, made)
        except BlockbusterError:
            return "unsound"
        except AssertionError:
            return "wrong"
        program = made
    return "endless"


@dataclass(frozen=True)
class Cost:
    """The costs of a program that fusion can change."""

    moved: int
    flops: int
    local: int

    @classmethod
    def of(cls, program: Graph) -> "Cost":
        known = {d.axis.name for d in program.dims if not isinstance(d.axis.extent, int)}
        walked = {d.name for d in program.dims if d.packed and not d.is_free}
        extents = {name: length for name, length in EXTENTS.items() if name in known}
        tiles = {name: tile for name, tile in TILES[0].items() if name in walked}
        cost = bb.meter(program, extents, tiles)
        return cls(cost.loaded + cost.stored, cost.flops, cost.peak_local)

    def exceeds(self, other: "Cost") -> bool:
        """True if something is more, and nothing is less."""
        pairs = list(zip(vars(self).values(), vars(other).values(), strict=True))
        return all(a >= b for a, b in pairs) and self != other


def with_rule(mutant: Rule, rules: bb.RuleSet = PAPER) -> bb.RuleSet:
    """A set of rules, one of them exchanged."""

    def exchanged(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
        return tuple(mutant if rule.name == mutant.name else rule for rule in rules)

    return bb.RuleSet("mutant", exchanged(rules.local), exchanged(rules.extending))


def waste(mutant: Rule, program: Graph, rules: bb.RuleSet = PAPER) -> bool:
    """True if snapshots of the program that is fused with the mutant cost more, and none less.

    Where there are fewer of them with one of the sets, its last stands for those it lacks.
    """
    found = bb.fuse(program, with_rule(mutant, rules)).fused
    expected = bb.fuse(program, rules).fused
    check(program, found[-1])
    pairs = [
        (found[min(i, len(found) - 1)], expected[min(i, len(expected) - 1)])
        for i in range(max(len(found), len(expected)))
    ]
    costs = [(Cost.of(a), Cost.of(b)) for a, b in pairs]
    return all(a == b or a.exceeds(b) for a, b in costs) and any(a != b for a, b in costs)


def changed(rule: Rule, name: str, holds: Callable[[Graph, Match], bool]) -> Rule:
    """The rule with another condition for one of its guards."""
    mutant = copy.copy(rule)
    mutant.guards = tuple(
        Guard(g.name, g.refusal, holds, g.far) if g.name == name else g for g in rule.guards
    )
    return mutant


class Endless(Exception):
    """The driver has fired more rules than there can be reason for."""


def never_ends(mutant: Rule, program: Graph, rules: bb.RuleSet = EXTENDED) -> bool:
    """True if the driver, with the mutant among its rules, goes on and on."""

    class Limited(Driver):
        def bfs_extend(self) -> bool:
            if len(self.firings) > 10 * LIMIT:
                raise Endless
            return super().bfs_extend()

    try:
        Limited(program, with_rule(mutant, rules)).fuse()
    except Endless:
        return True
    return False


def grows(mutant: Rule, program: Graph, rules: bb.RuleSet = EXTENDED) -> bool:
    """True if the program, fused with the mutant among the rules, becomes larger than any may."""
    fusion = bb.fuse(program, with_rule(mutant, rules))
    return largest(fusion) > allowed(fusion)
