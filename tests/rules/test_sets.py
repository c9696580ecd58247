"""Rule sets: their contents, and the rules that a set must share with its base."""

from dataclasses import replace

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.errors import LacksBase
from blockbuster_fusion.rules.drop_softmax_shift import DropSoftmaxShift
from blockbuster_fusion.rules.expand_square import ExpandSquare
from blockbuster_fusion.rules.extend_map import ExtendMap
from blockbuster_fusion.rules.fuse_map_reduce import FuseMapReduce

PAPER, EXTENDED = bb.RULE_SETS["paper"], bb.RULE_SETS["extended"]


def test_a_base_is_among_the_rules() -> None:
    local = (ExpandSquare(), *PAPER.local)
    made = bb.RuleSet("mine", local, PAPER.extending, base=PAPER)
    assert [rule.name for rule in made.beyond] == ["expand_square_of_shift"]


def test_a_local_rule_of_the_base_may_not_be_missing() -> None:
    with pytest.raises(LacksBase, match="'mine': its local rules lack fuse_sibling_maps of its"):
        bb.RuleSet("mine", PAPER.local[:-1], PAPER.extending, base=PAPER)


def test_an_extending_rule_of_the_base_may_not_be_missing() -> None:
    with pytest.raises(LacksBase, match="extending rules lack extend_map of its base 'paper'"):
        bb.RuleSet("mine", PAPER.local, (), base=PAPER)


def test_a_rule_of_the_same_kind_is_not_the_base_s_own() -> None:
    others = tuple(
        FuseMapReduce() if isinstance(rule, FuseMapReduce) else rule for rule in PAPER.local
    )
    with pytest.raises(LacksBase, match="local rules lack fuse_map_with_reduction"):
        bb.RuleSet("mine", others, PAPER.extending, base=PAPER)


def test_the_base_s_rules_keep_their_order() -> None:
    with pytest.raises(LacksBase, match="in another order"):
        bb.RuleSet("mine", PAPER.local[::-1], PAPER.extending, base=PAPER)


def test_without_safety_nothing_is_left_that_needs_it() -> None:
    """Neither among local and extending rules nor in the base."""

    class Extending(ExtendMap):
        needs_safety = True

    drop, unsafe = DropSoftmaxShift(), Extending()
    base = replace(PAPER, name="base", local=(drop, *PAPER.local))
    own = bb.RuleSet("mine", (ExpandSquare(), *base.local), (unsafe, *base.extending), base=base)
    safe = own.without_safety
    assert safe.base is not None
    assert (safe.local, safe.extending) == (PAPER.local, PAPER.extending)
    assert safe.base.local == PAPER.local
    assert not any(rule.needs_safety for rule in (*safe, *safe.base))
    assert bb.fuse(bb.examples.find("attention"), own, safe=False).trace.rules == safe


def test_the_extended_set_without_safety_has_the_paper_s_rules_as_its_base() -> None:
    assert EXTENDED.without_safety.base == PAPER
