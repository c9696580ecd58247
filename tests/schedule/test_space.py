"""The schedule space, its search, and the predicted times of its points."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.choice import Choice
from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.errors import BadConfig
from blockbuster_fusion.improve import improved
from blockbuster_fusion.ir.tiling import Extents, Tiling
from blockbuster_fusion.machine.machine import Machine, known
from blockbuster_fusion.schedule.cost import predicted
from blockbuster_fusion.schedule.gpu import residents
from blockbuster_fusion.schedule.schedule import Schedule
from blockbuster_fusion.schedule.search import searched
from blockbuster_fusion.schedule.space import Config, Space
from blockbuster_fusion.schedule.work import Work, work_of

o = bb.ops
H200 = next(machine for machine in known().values() if machine.name == "NVIDIA H200")
LAUNCHED = Schedule(
    grid="outer", split={"K": 4}, atomic=True, apart=True, warps=8, stages=2, group=4
)


def choices(
    function: Any, *specs: str, dtype: str | None = "bfloat16", **sizes: int
) -> list[Choice]:
    program = bb.trace(function, *specs)
    return choose(Request(program, target="cuda", sizes=sizes, dtype=dtype, capability=90))


def work(choice: Choice) -> list[Work]:
    nest, tiles = choice.scheduled()
    return [work_of(kernel, Tiling(Extents(), tiles), "cuda") for kernel in nest.kernels]


# ------------------------------------------------------------------- configurations


@pytest.mark.parametrize(
    "config",
    [
        Config(),
        Config(1, {"M.0": 32}),
        Config(2, {"K.0": 64}, LAUNCHED),
        Config(0, {}, Schedule(threads=2)),
    ],
    ids=str,
)
def test_a_configuration_is_data(config: Config) -> None:
    assert Config.from_data(config.data()) == config


def test_configurations_that_differ_print_differently() -> None:
    """Tuning knows configurations by their text: none may be taken for another."""
    changes: list[dict[str, Any]] = [
        {},
        {"grid": "outer"},
        {"split": {"K": 2}},
        {"split": {"K": 2}, "atomic": True},
        {"apart": True},
        *({name: number} for name in ("warps", "stages", "group", "threads") for number in (1, 2)),
    ]
    texts = [str(Config(0, {"M.0": 16}, replace(Schedule(), **change))) for change in changes]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"warps": 3}, "3 is not a power of two"),
        ({"warps": True}, "True is not a power of two"),
        ({"stages": 0}, "0 is not a number above 0"),
        ({"group": "8"}, "'8' is not a number above 0"),
        ({"colour": 1}, "unknown; known are"),
    ],
)
def test_a_bad_configuration_is_refused(data: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadConfig, match=sentence):
        Config.from_data(data)


def test_a_given_configuration_reaches_the_kernels() -> None:
    """Threads are an option of the schedule: results do not depend on them."""
    program = bb.trace(lambda X: o.softmax(X), "M N")
    x = np.random.default_rng(0).normal(size=(37, 50)).astype("float32")
    usual = bb.compile(program)(x)
    given = bb.compile(program, config={"tiles": {"M.0": 8}, "grid": "outer", "threads": 1})(x)
    assert usual.keys() == given.keys()
    for name, found in given.items():
        np.testing.assert_allclose(found, usual[name], rtol=1e-6, atol=1e-7)


# --------------------------------------------------------------------------- search


def test_a_search_visits_the_usual_schedule_and_prologues_apart() -> None:
    choice = choices(lambda X, W: o.rmsnorm(X) @ W, "M K", "K N", M=512, K=1024, N=1024)[-1]
    points = searched(
        lambda schedule: replace(choice, schedule=schedule).scheduled(),
        choice.schedule,
        Extents(),
        H200,
    )
    times = [point.seconds.device for point in points]
    assert times == sorted(times)
    assert any(point.schedule == choice.schedule for point in points)
    forms = {(point.schedule.grid, point.schedule.apart) for point in points}
    assert {("all", False), ("outer", False)} <= forms


def test_improved_choices_are_distinct_and_the_best_first() -> None:
    usual = choices(lambda X: o.softmax(X), "M N", M=8192, N=4096)
    best = improved(usual, (), H200, most=6)
    assert len(best) == 6 + len(usual)
    nests = [choice.scheduled() for choice in best[:6]]
    times = [
        predicted(nest, Tiling(Extents(), tiles), H200, choice.schedule).device
        for (nest, tiles), choice in zip(nests, best[:6], strict=True)
    ]
    assert times == sorted(times)
    forms = {
        (choice.snapshot, str(choice.schedule), frozenset(tiles.items()))
        for choice, (_, tiles) in zip(best[:6], nests, strict=True)
    }
    assert len(forms) == 6


def test_rows_are_held_as_a_whole_on_a_gpu() -> None:
    """A row that is read twice is loaded once if a program holds it: measured, 35 µs, not 60."""
    best = improved(choices(lambda X: o.softmax(X), "M N", M=8192, N=4096), (), H200)[0]
    assert {dim.name: tile for dim, tile in best.scheduled()[1].items()}["N"] >= 2048


def test_products_have_large_tiles_on_a_gpu() -> None:
    best = improved(choices(lambda X, Y: X @ Y, "M K", "K N", M=4096, K=4096, N=4096), (), H200)[0]
    tiles = {dim.name: tile for dim, tile in best.scheduled()[1].items()}
    assert tiles["M"] * tiles["N"] >= 128 * 128


def test_a_sum_over_everything_is_split() -> None:
    best = improved(choices(lambda X: o.sum(X, (0, 1)), "M N", M=8192, N=4096), (), H200)[0]
    assert best.schedule.split


def test_launches_are_for_gpus_alone(this_machine: Machine) -> None:
    choice = choices(lambda X: o.softmax(X), "M N", M=64, N=64)[0]
    nest, _ = choice.scheduled()
    assert {name for launch in Space(nest, Extents(), H200).launches for name in launch} == {
        "warps",
        "stages",
        "group",
    }
    assert Space(nest, Extents(), this_machine).launches == []


@pytest.fixture
def this_machine() -> Machine:
    return replace(H200, target="cpu")


# ----------------------------------------------------------------------- predictions


def test_the_dtype_of_a_product_is_that_of_its_arrays() -> None:
    narrow, wide = (
        choices(lambda X, Y: X @ Y, "M K", "K N", dtype=dtype, M=256, K=256, N=256)[0]
        for dtype in ("bfloat16", None)
    )
    assert [w.dtype for w in work(narrow)] == ["bfloat16"]
    assert [w.dtype for w in work(wide)] == ["float32"]


def test_what_a_program_moves_counts_once_and_again() -> None:
    """A softmax in two passes reads each row twice: half of it a program has seen before."""
    snapshot = choices(lambda X: o.softmax(X), "M N", M=1024, N=2048)
    outer = [replace(choice, schedule=Schedule(grid="outer")) for choice in snapshot]
    found = [w for choice in outer for w in work(choice) if w.moved > w.arrays]
    assert found
    for w in found:
        assert w.own * w.programs == pytest.approx(w.arrays)


def test_programs_share_a_processor_as_far_as_it_goes() -> None:
    work = Work(programs=10_000, held=4096, staged=32_768, multiplying=64, steps=64)
    usual = residents(work, H200, Schedule())
    assert (usual.warps, usual.stages, usual.programs) == (4, 3, 2)
    assert residents(work, H200, Schedule(warps=8)).programs <= usual.programs
    assert residents(work, H200, Schedule(stages=6)).programs == 1
    assert residents(replace(work, held=128 * 256), H200, Schedule()).warps == 8
    assert residents(replace(work, held=128 * 256), H200, Schedule(warps=1)).spilled > 3


def test_spilled_registers_cost() -> None:
    """Measured: 256 by 64 elements in four warps take ten times as long as in eight."""
    choice = choices(lambda X, Y: X @ Y, "M K", "K N", M=4096, K=4096, N=4096)[0]
    large = {dim: 64 if dim.name == "K" else 256 for dim in choice.tiles}
    nest, tiles = replace(choice, tiles=large).scheduled()
    tiling = Tiling(Extents(), tiles)
    times = [predicted(nest, tiling, H200, Schedule(warps=warps)).device for warps in (1, 8)]
    assert times[0] > 5 * times[1]


# ------------------------------------------------------------------------ neighbours


def test_schedules_near_another_differ_in_one_option() -> None:
    choice = choices(lambda X: o.sum(X, (0, 1)), "M N", M=8192, N=4096)[0]
    nest, _ = choice.scheduled()
    space = Space(nest, Extents(), H200)
    start = Schedule(grid="outer", split={"M": 4}, warps=4)
    near = [*space.near(start)]
    assert start not in near
    assert len({str(Config(0, {}, schedule)) for schedule in near}) == len(near)
    assert {schedule.grid for schedule in near} == {"outer", "all"}
    assert {tuple(schedule.split.items()) for schedule in near} == {
        (("M", 2),),
        (("M", 4),),
        (("M", 8),),
        (),
    }
    assert {schedule.atomic for schedule in near} == {False, True}
    assert {schedule.warps for schedule in near} >= {1, 2, 4, 8}
    assert not [schedule for schedule in near if schedule.atomic and not schedule.split]


def test_a_cpu_has_no_options_of_launches(this_machine: Machine) -> None:
    choice = choices(lambda X: o.softmax(X), "M N", M=64, N=64)[0]
    near = [*Space(choice.scheduled()[0], Extents(), this_machine).near(Schedule())]
    assert near == [Schedule(grid="outer"), Schedule(apart=True)]
