"""The predicted time of kernels of one launch."""

import math
from dataclasses import fields, replace

import pytest

from blockbuster_fusion.choice import Choice
from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.improve import Improver
from blockbuster_fusion.ir.tiling import Extents, Tiling
from blockbuster_fusion.machine.machine import known
from blockbuster_fusion.schedule.config import Config
from blockbuster_fusion.schedule.cost import predicted, predicted_launch
from blockbuster_fusion.schedule.count_work import work_of
from blockbuster_fusion.schedule.joined import KEPT, LEAST, OF_A_PROGRAM, SUMMED, joined_work
from blockbuster_fusion.schedule.schedule import Schedule
from blockbuster_fusion.schedule.work import Work
from helpers.together import LARGE, WIDTHS, Together

H200 = known()["h200"]


def best(case: Together) -> Choice:
    sizes = case.lengths()
    request = Request(case.program(), target="cuda", sizes=sizes, dtype="bfloat16", capability=90)
    return Improver(choose(request), H200).best(())[0]


def seconds(choice: Choice) -> float:
    nest, tiles = choice.scheduled()
    return predicted(nest, Tiling(Extents(), tiles), H200, choice.schedule).device


def apart(choice: Choice) -> Choice:
    return replace(choice, schedule=replace(choice.schedule, together=False))


def works(choice: Choice) -> list[Work]:
    nest, tiles = choice.scheduled()
    return [work_of(kernel, Tiling(Extents(), tiles), "cuda") for kernel in nest.kernels]


def test_the_names_are_those_of_work() -> None:
    groups = (SUMMED, OF_A_PROGRAM, LEAST, KEPT)
    assert frozenset().union(*groups) <= {field.name for field in fields(Work)}
    assert sum(map(len, groups)) == len(frozenset().union(*groups))


def test_two_equal_kernels_are_one_with_twice_as_many_programs() -> None:
    work = works(best(Together(("vector",), sizes=WIDTHS)))[0]
    twice = joined_work([work, work])
    for field in fields(Work):
        one, two = getattr(work, field.name), getattr(twice, field.name)
        if field.name in SUMMED:
            assert two == 2 * one
        elif isinstance(one, float) and math.isfinite(one):
            assert two == pytest.approx(one)
        else:
            assert two == one


@pytest.mark.parametrize("name", ["decode 1", "decode 16"])
def test_small_projections_share_a_launch(name: str) -> None:
    """Each alone does not keep the memory busy: together they take two thirds, or less."""
    choice = best(LARGE[name])
    assert choice.schedule.together
    assert len(choice.scheduled()[0].launches) == 1

    assert seconds(choice) < 0.67 * seconds(apart(choice))


def test_what_fills_a_gpu_is_predicted_to_gain_little() -> None:
    """Products with thousands of rows: their programs come in many rounds, together or not."""
    sizes = {"M": 8192, "K": 8192, "N0": 8192, "N1": 8192}
    choice = best(Together(("product",) * 2, sizes=sizes))
    both = [replace(choice, schedule=replace(choice.schedule, together=x)) for x in (True, False)]
    together, separate = map(seconds, both)
    assert 0.9 < together / separate < 1.1


def test_no_kernel_is_faster_beside_others_than_alone() -> None:
    """Ten long programs take their time, though a hundred short ones finish early."""
    short = works(best(Together(("vector",), sizes=WIDTHS)))[0]
    long = replace(short, programs=10, operations=1e12, arrays=1e9, own=1e8)
    times = [predicted_launch(x, H200, Schedule()).device for x in ([long], [long, short])]
    assert times[1] >= times[0]


def test_configurations_have_it() -> None:
    choice = best(LARGE["decode 16"])
    assert Config.from_data(choice.config.data()) == choice.config
    assert "launched together" in str(choice.config)
