"""The reason why kernels for two steps were not tried, and what fusing them might save."""

from dataclasses import replace

import pytest

pytest.importorskip("torch")
from blockbuster_fusion.plans.plan import RunnerUp
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.select.certificate import Certificate
from blockbuster_fusion.torch.planned.stored import (
    LEAST,
    NEEDLESS,
    UNTRIED,
    untried,
)

BOUND = RunnerUp("kernels", (), Seconds(216e-6), "at least", "", Seconds(290e-6))
CAPPED = Certificate(2.0, 1.0, 3, 4, 2, 1, ("the search works out the times of 16 at most",))


def test_a_limit_of_the_search_is_told_with_what_fusing_might_save() -> None:
    told = f"{UNTRIED}: {CAPPED.caps[0]}; fusing might save up to 74 µs"
    assert untried(BOUND, CAPPED) == told
    assert untried(replace(BOUND, instead=None), CAPPED) == f"{UNTRIED}: {CAPPED.caps[0]}"


def test_a_bound_above_the_time_now_is_the_reason() -> None:
    for instead in (Seconds(216e-6), Seconds(200e-6)):
        assert untried(replace(BOUND, instead=instead), CAPPED) == LEAST


def test_without_a_limit_the_bounds_are_the_reason() -> None:
    assert untried(BOUND, replace(CAPPED, caps=())) == NEEDLESS
    assert untried(BOUND, None) == UNTRIED
