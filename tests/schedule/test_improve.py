"""Choices for ranges of sizes: few, and only where they are predicted to be much faster."""

from collections.abc import Mapping
from typing import Any

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.improve import MOST_RANGED, Elsewhere, Improver, Points, by_lengths
from blockbuster_fusion.ir.axis import Axis, Symbol
from blockbuster_fusion.runtime.executable import Sizes
from helpers.machines import FOUR_CORES

M = Symbol("MM")
AXIS = Axis("M", M)
Times = Mapping[str, Mapping[int, float]]
"""The seconds of each choice by length; 1 where nothing is said."""


class Scripted(Improver):
    """An improver of choices that are names, with the times that a test gives them."""

    def __init__(self, times: Times) -> None:
        super().__init__((), FOUR_CORES)
        self.times, self.searched = times, list[int]()

    def seconds(self, choice: Any, sizes: Sizes) -> float:
        return self.times[choice].get(sizes[0][1], 1.0)

    def best(self, sizes: Sizes) -> list[Any]:
        self.searched.append(sizes[0][1])
        return sorted(self.times, key=lambda name: self.seconds(name, sizes))


def points(*lengths: int, usual: int = 16) -> Points:
    return Points(M, tuple(((AXIS, n),) for n in lengths), lengths.index(usual))


def found(times: Times, *along: Points) -> tuple[Elsewhere, list[int]]:
    improver = Scripted(times)
    usual: Any = "usual"
    return improver.elsewhere(usual, along), improver.searched


ALONG = points(1, 4, 16, 64, 256, 1024, 4096)


@pytest.mark.parametrize("gain", [1.0, 1.2, 1.29])
def test_a_gain_within_the_error_of_predictions_is_none(gain: float) -> None:
    made, searched = found({"usual": {}, "other": {4096: 1 / gain, 1: 1 / gain}}, ALONG)
    assert made == Elsewhere()
    assert searched == [1, 4096]  # nothing in between


def test_a_gain_of_less_than_microseconds_is_none() -> None:
    times = {"usual": {4096: 8e-6}, "other": {4096: 4e-6}}
    assert found(times, ALONG)[0] == Elsewhere()


def test_ranges_meet_where_the_other_choice_begins_to_pay() -> None:
    longer = {256: 0.5, 1024: 0.5, 4096: 0.5}
    made, _ = found({"usual": {}, "long": longer}, ALONG)
    assert made.choices == ("long",)
    assert [*made.ranges] == [("MM up to 127", 0), ("MM from 128", 1)]


def test_neighbours_within_the_error_share_a_choice() -> None:
    times = {
        "usual": {},
        "long": {256: 0.5, 1024: 0.5, 4096: 0.5},
        "middle": {64: 0.5, 256: 0.45, 1024: 0.6},
    }
    made, _ = found(times, ALONG)
    assert made.choices == ("long", "middle")
    assert [*made.ranges] == [("MM up to 31", 0), ("MM from 32 to 127", 2), ("MM from 128", 1)]


def test_there_are_only_a_few() -> None:
    lengths = (16, 64, 256, 1024, 4096, 16384, 65536)
    times = {"usual": dict[int, float]()} | {f"for {n}": {n: 0.1} for n in lengths[1:]}
    made, _ = found(times, points(*lengths))
    assert len(made.choices) == MOST_RANGED - 1
    (scale,) = made.ranges.scales
    assert scale.numbers[0] == 0


def test_a_choice_of_one_size_serves_another() -> None:
    times = {"usual": {}, "long": {4096: 0.5, 1: 0.5}, "short": {1: 0.45}}
    made, _ = found(times, points(1, 16), points(16, 4096))
    assert made.choices == ("short", "long")
    made, _ = found(times, points(16, 4096), points(1, 16))
    assert made.choices == ("long",)


def test_a_usual_choice_that_cannot_run_elsewhere() -> None:
    made, _ = found({"usual": {4096: float("inf")}, "long": {}}, ALONG)
    assert made.choices == ("long",)
    made, _ = found({"usual": {4096: float("inf")}}, ALONG)  # nothing else can, either
    assert made == Elsewhere()


def test_of_equals_the_one_that_serves_other_sizes_is_the_usual_one() -> None:
    times = {"first": {}, "steady": {16: 1.02, 4096: 0.9}, "other": {16: 1.1, 4096: 0.1}}
    assert Scripted(times).steady([*times], [ALONG])[0] == "steady"  # type: ignore[list-item]
    assert Scripted(times).steady([*times], [])[0] == "first"  # type: ignore[list-item]


def test_long_sums_are_split_and_short_ones_are_not() -> None:
    choices = choose(Request(lambda X: {"S": bb.ops.sum(X * X, (0, 1))}, named={"X": "M N"}))
    best, made = by_lengths(choices, {"M": (16, 4096), "N": (64,)}, FOUR_CORES)
    assert not best[0].schedule.split
    axes = {dim.name: dim.axis for dim in best[0].graph.dims}
    for length, is_split in ((16, False), (17, False), (5000, True)):
        chosen = made.choice(best[0], ((axes["M"], length), (axes["N"], 64)))
        assert bool(chosen.schedule.split) == is_split
