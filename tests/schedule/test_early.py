"""Kernels that start before the one before them has ended: the pass, and where it is chosen."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from blockbuster_fusion.choice import Choice
from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.errors import BadConfig, BadMachine
from blockbuster_fusion.improve import improved
from blockbuster_fusion.ir.tiling import Extents, Tiling
from blockbuster_fusion.machine.machine import from_mapping, known
from blockbuster_fusion.nest.nest import Clear, Grids, Kernel
from blockbuster_fusion.nest.passes.join_grids import join_grids
from blockbuster_fusion.nest.passes.start_early import start_early
from blockbuster_fusion.nest.text import nest_from_text, nest_to_text
from blockbuster_fusion.nest.verify import verify_nest
from blockbuster_fusion.printers.triton.kernel import print_triton
from blockbuster_fusion.printers.triton.launch_plan import LaunchPlanner
from blockbuster_fusion.schedule.config import Config
from blockbuster_fusion.schedule.cost import Seconds, predicted, predicted_launch
from blockbuster_fusion.schedule.early import LONGEST, may_be_early
from blockbuster_fusion.schedule.schedule import FLAGS, Schedule
from blockbuster_fusion.schedule.work import Work
from helpers.early_kernels import CASES
from helpers.together import TOGETHER

H200 = replace(known()["h200"], early=0.0)
HASTY = replace(H200, early=0.6e-6)
"""The machine, if early kernels save that much, and not nothing."""


def test_all_launches_of_a_nest_start_early() -> None:
    nest = join_grids(TOGETHER["added"].nest())
    kinds = [type(step) for step in nest.steps]
    assert {Clear, Grids} <= set(kinds)
    early = start_early(nest)
    verify_nest(early)
    assert [type(step) for step in early.steps] == kinds
    assert all(launched.early for launched in early.launches)
    assert not any(launched.early for launched in nest.launches)
    text = nest_to_text(early)
    assert "early=True" in text
    assert nest_to_text(nest_from_text(text)) == text


def test_printed(golden: Callable[[str], None]) -> None:
    """The wait is the first line of each kernel; kernels that are not launched have none."""
    nest = TOGETHER["one row"].nest()
    apart = print_triton(start_early(nest))
    together = print_triton(start_early(join_grids(nest)))
    for source, launches in ((apart, 3), (together, 1)):
        assert source.count("gdc_wait()  #") == launches
        assert source.count("gdc_launch_dependents()  #") == launches
    golden(together)
    assert "gdc" not in print_triton(nest)


def test_launches_say_so() -> None:
    case = TOGETHER["one row"]
    for nest, is_early in ((case.nest(), False), (start_early(case.nest()), True)):
        plan = LaunchPlanner(nest.launches[0]).plan({}, case.tiles(nest), {})
        assert plan.options.get("launch_pdl", False) is is_early


def test_kernels_in_turns_wait_once() -> None:
    """Both lines are before the loop over blocks."""
    nest, _ = CASES["in turns"].choice().scheduled()
    source = print_triton(nest)
    wait, signal = (source.index(f"{x}()  #") for x in ("gdc_wait", "gdc_launch_dependents"))
    assert wait < signal < source.index("for pid in tl.range(")


def test_a_configuration_tells_it() -> None:
    config = Config(schedule=Schedule(early=True))
    assert config.data()["early"] is True
    assert Config.from_data(config.data()) == config
    assert "launched early" in str(config)
    assert "early" not in Config().data()
    assert "early" not in str(Config())


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("wrong", ["soon", 1, None, [True]])
def test_other_values_of_flags_are_refused(name: str, wrong: Any) -> None:
    with pytest.raises(BadConfig, match=f"{name}: .* is neither True nor False"):
        Config.from_data({name: wrong})
    with pytest.raises(BadConfig, match=f"{name}: .* is neither True nor False"):
        Schedule(**{name: wrong})


def best(capability: int, machine: Any) -> Choice:
    case = CASES["sixteen rows"]
    specs = {"dtype": "bfloat16", "sizes": case.sizes, "target": "cuda"}
    program = case.program()
    return improved(choose(Request(program, **specs, capability=capability)), (), machine)[0]


def test_short_kernels_are_early_where_it_pays() -> None:
    usual, hasty = best(90, H200), best(90, HASTY)
    assert (usual.schedule.early, hasty.schedule.early) == (False, True)
    nest, tiles = hasty.scheduled()
    assert all(x.early for x in nest.launches)
    extents = Tiling(Extents(), tiles)
    late = predicted(nest, extents, HASTY, replace(hasty.schedule, early=False))
    early = predicted(nest, extents, HASTY, hasty.schedule)
    saved = len(nest.launches) * HASTY.early
    assert late.device - early.device == pytest.approx(saved)


def test_a_gpu_without_such_launches_has_none() -> None:
    """The schedule may ask for it: another GPU has measured it, or the caller wants it."""
    choice = best(80, HASTY)
    asked = replace(choice, schedule=replace(choice.schedule, early=True))
    assert not any(x.early for x in asked.scheduled()[0].launches)


def test_long_kernels_are_not_early() -> None:
    short, long = Seconds(LONGEST / 2), Seconds(LONGEST * 2)
    assert may_be_early([short, short], HASTY)
    assert not may_be_early([short, long], HASTY)
    assert not may_be_early([short], H200)


def test_a_machine_saves_no_negative_time() -> None:
    with pytest.raises(BadMachine, match="early"):
        from_mapping({**H200.data(), "early": -1e-6}, "a test")


def test_kernels_of_other_targets_are_not_early() -> None:
    program = CASES["sum"].program()
    choice = choose(Request(program, target="cpu", schedule=Schedule(early=True)))[0]
    kernels = choice.scheduled()[0].kernels
    assert all(isinstance(x, Kernel) and not x.early for x in kernels)


@pytest.mark.parametrize(("programs", "is_faster"), [(100, True), (2000, True), (25_000, False)])
def test_programs_of_later_rounds_wait_and_signal(programs: int, is_faster: bool) -> None:
    works = [Work(programs=programs, largest=1024.0)]
    late, early = (predicted_launch(works, HASTY, Schedule(early=x)).device for x in (False, True))
    assert (early < late) is is_faster
