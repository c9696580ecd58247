"""The schedule space, its search, and the predicted times of its points."""

import json
from collections.abc import Callable
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
from blockbuster_fusion.nest.analysis.thread_blocks import Sharing, sharing
from blockbuster_fusion.nest.nest import For, Load
from blockbuster_fusion.printers.triton.launch_plan import KernelPlanner
from blockbuster_fusion.schedule.config import Config
from blockbuster_fusion.schedule.cost import predicted
from blockbuster_fusion.schedule.count_work import work_of
from blockbuster_fusion.schedule.gpu import gpu_seconds, residents, stream_warps
from blockbuster_fusion.schedule.schedule import LAUNCH, Schedule
from blockbuster_fusion.schedule.search import searched
from blockbuster_fusion.schedule.space import Space
from blockbuster_fusion.schedule.times import CountedKernels
from blockbuster_fusion.schedule.work import Work
from helpers.machines import FOUR_CORES

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
        Config(0, {}, Schedule(order=("N.0", "M.0"), threads=2, chunk=16)),
    ],
    ids=str,
)
def test_a_configuration_is_data(config: Config) -> None:
    assert Config.from_data(config.data()) == config
    assert Config.from_data(json.loads(json.dumps(config.data()))) == config


def test_a_configuration_prints() -> None:
    schedule = Schedule(grid="outer", order=("N.0", "M.0"), threads=2, chunk=16)
    expected = "snapshot 1; tiles M.0=8; outer grid; order N.0, M.0; threads 2; chunk 16"
    assert str(Config(0, {"M.0": 8}, schedule)) == expected


@pytest.mark.parametrize(
    "change", [{"order": ("N.0", "M.0")}, {"chunk": 4}, {"threads": 1}], ids=str
)
def test_the_data_of_two_configurations_differ_in_what_was_changed(change: dict[str, Any]) -> None:
    usual, changed = (Config(0, {"M.0": 8}, Schedule(**x)).data() for x in ({}, change))
    ((name, value),) = change.items()
    assert changed == {**usual, name: list(value) if name == "order" else value}


def test_configurations_that_differ_print_differently() -> None:
    """Tuning knows configurations by their text: none may be taken for another."""
    changes: list[dict[str, Any]] = [
        {},
        {"grid": "outer"},
        {"split": {"K": 2}},
        {"split": {"K": 2}, "atomic": True},
        {"apart": True},
        {"order": ("M.0", "N.0")},
        {"order": ("N.0", "M.0")},
        *({name: number} for name in LAUNCH for number in (1, 2)),
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
        ({"chunk": 0}, "chunk: 0 is not a number above 0"),
        ({"chunk": 1.5}, "chunk: 1.5 is not a number above 0"),
        ({"chunk": 1 << 31}, "chunk: 2147483648 is above 1073741824"),
        ({"threads": -1}, "threads: -1 is not a number above 0"),
        ({"order": "MN"}, "order: 'MN' is no list of labels"),
        ({"order": ["M.0", 1]}, r"order: \['M.0', 1\] is no list of labels"),
        ({"order": ["M.0", "M.0"]}, "order: M.0 is named twice"),
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


def test_a_label_that_no_grid_has_is_refused() -> None:
    program = bb.trace(lambda X: o.softmax(X), "M N")
    with pytest.raises(BadConfig, match=r"no loop of a grid has the label K.0; known are M.0"):
        bb.compile(program, config={"order": ["K.0", "M.0"]})


def test_a_schedule_cannot_have_what_a_configuration_cannot() -> None:
    with pytest.raises(BadConfig, match="chunk: 0 is not a number above 0"):
        Schedule(chunk=0)
    with pytest.raises(BadConfig, match="order: M is named twice"):
        Schedule(order=("M", "M"))


# --------------------------------------------------------------------------- search


def test_a_search_visits_the_usual_schedule_and_prologues_apart() -> None:
    choice = choices(lambda X, W: o.rmsnorm(X) @ W, "M K", "K N", M=512, K=1024, N=1024)[-1]
    points = searched(
        lambda schedule: replace(choice, schedule=schedule).scheduled(),
        choice.schedule,
        CountedKernels(Extents(), H200),
    )
    times = [point.seconds.device for point in points]
    assert times == sorted(times)
    assert any(point.schedule == choice.schedule for point in points)
    forms = {(point.schedule.grid, point.schedule.apart) for point in points}
    assert {("all", False), ("outer", False)} <= forms


def test_improved_choices_are_distinct_and_the_best_first() -> None:
    usual = choices(lambda X: o.softmax(X), "M N", M=8192, N=40_960)
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
    best = improved(choices(lambda X: o.softmax(X), "M N", M=8192, N=4100), (), H200)[0]
    (kernel,) = best.scheduled()[0].kernels
    assert not any(isinstance(s, For) for s in kernel.statements)
    assert sum(isinstance(s, Load) for s in kernel.statements) == 1


def test_products_have_large_tiles_on_a_gpu() -> None:
    best = improved(choices(lambda X, Y: X @ Y, "M K", "K N", M=4096, K=4096, N=4096), (), H200)[0]
    tiles = {dim.name: tile for dim, tile in best.scheduled()[1].items()}
    assert tiles["M"] * tiles["N"] >= 128 * 128


def test_a_sum_over_everything_is_split() -> None:
    best = improved(choices(lambda X: o.sum(X, (0, 1)), "M N", M=8192, N=4096), (), H200)[0]
    assert best.schedule.split


def test_launches_depend_on_the_target() -> None:
    for machine, expected in (
        (H200, {"warps", "stages"}),
        (FOUR_CORES, {"threads", "chunk", "past"}),
    ):
        space = space_of(lambda X: o.softmax(X), "M N", machine=machine, M=1024, N=8)
        assert {name for launch in space.launches for name in launch} == expected


@pytest.mark.parametrize(
    ("function", "specs", "are_tried"),
    [
        (lambda X: X * 2.0, ("M N",), False),
        (lambda X, R: X * R, ("M N", "N"), False),
        (lambda X: X.T * 2.0, ("M N",), True),
        (lambda X, Y: X @ Y.T, ("M N", "K N"), True),
    ],
    ids=["pointwise", "with a row", "transposed", "product"],
)
def test_groups_are_tried_where_programs_share_blocks(
    function: Any, specs: tuple[str, ...], are_tried: bool
) -> None:
    """A pointwise program would divide by the length of a group before it loads anything."""
    lengths = {"M": 1024, "N": 1000, "K": 1024}
    sizes = {axis: n for axis, n in lengths.items() if any(axis in spec for spec in specs)}
    space = space_of(function, *specs, machine=H200, **sizes)
    assert ("group" in {name for launch in space.launches for name in launch}) is are_tried


def space_of(function: Any, *specs: str, machine: Machine = FOUR_CORES, **sizes: int) -> Space:
    choice = choices(function, *specs, dtype=None, **sizes)[0]
    nest, tiles = choice.scheduled()
    return Space(nest, Extents(), machine, tiles)


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
    snapshot = choices(lambda X: o.softmax(X), "M N", M=1024, N=40_960)
    outer = [replace(choice, schedule=Schedule(grid="outer")) for choice in snapshot]
    found = [w for choice in outer for w in work(choice) if w.moved > w.arrays]
    assert found
    for w in found:
        assert w.own * w.programs == pytest.approx(w.arrays)


def test_what_all_programs_read_comes_from_the_first_cache() -> None:
    """A norm's weights are read by all programs, and cost less than rows of their own."""
    norm = choices(lambda X, W: o.rmsnorm(X) * W, "M N", "N", M=8192, N=4096)
    both = choices(lambda X, W: o.rmsnorm(X) * W, "M N", "M N", M=8192, N=4096)
    (shared,), (own,) = work(norm[0]), work(both[0])
    assert shared.common == 2 * 4096
    assert own.common == 0
    assert gpu_seconds(shared, H200, Schedule()) < 0.8 * gpu_seconds(own, H200, Schedule())


def test_programs_without_products_have_as_many_warps_as_their_rows_need() -> None:
    """Threads that wait for each other have more elements, and fewer if all run at a time."""
    sizes = (1, 256, 512, 1024, 4096, 8192, 1 << 20)
    usual = [1, 1, 1, 2, 8, 16, 16]
    assert [stream_warps(n, 10_000, Sharing.PASSED) for n in sizes] == usual
    assert [stream_warps(n, 100, Sharing.PASSED) for n in sizes] == usual
    assert [stream_warps(n, 100, Sharing.FOLDED) for n in sizes] == usual
    assert [stream_warps(n, 10_000, Sharing.FOLDED) for n in sizes] == [1, 1, 1, 1, 4, 8, 16]
    assert [stream_warps(n, 10_000, Sharing.NARROW) for n in sizes] == [1, 1, 1, 2, 8, 8, 8]
    assert [stream_warps(n, 10_000, Sharing.BUSY) for n in sizes] == [1, 1, 1, 2, 8, 8, 8]
    assert [stream_warps(n, 10_000, Sharing.OWN) for n in sizes] == [1, 1, 2, 4, 8, 8, 8]
    assert [stream_warps(n, 100, Sharing.OWN) for n in sizes] == [1, 2, 4, 8, 8, 8, 8]


SHARINGS = {
    "pointwise": (lambda X, Y: X * Y, ("M N", "M N"), Sharing.OWN),
    "a function": (lambda X: o.gelu(X), ("M N",), Sharing.BUSY),
    "a function of two arrays": (lambda X, Y: o.gelu(X) * Y, ("M N", "M N"), Sharing.OWN),
    "short rows": (lambda X, Y: X * Y, ("N M", "N M"), Sharing.NARROW),
    "vectors": (lambda X, Y, Z: X + Y[:, None] * Z, ("M N", "M", "N"), Sharing.OWN),
    "a transpose": (lambda X, Y: X + Y.T, ("M N", "N M"), Sharing.PASSED),
    "a scan": (lambda X: o.cumsum(X, axis=1), ("M N",), Sharing.PASSED),
    "columns": (lambda X: o.cumsum(X, axis=0), ("M N",), Sharing.PASSED),
    "a fold": (lambda X: o.softmax(X), ("M N",), Sharing.FOLDED),
    "a fold and a scan": (lambda X: o.cumsum(o.softmax(X), axis=1), ("M N",), Sharing.FOLDED),
}


@pytest.mark.parametrize(("function", "axes", "expected"), SHARINGS.values(), ids=SHARINGS)
def test_threads_compute_with_what_they_load_unless_blocks_are_turned_or_folded(
    function: Callable[..., Any], axes: tuple[str, ...], expected: Sharing
) -> None:
    """The work of a kernel and its launch have the same number of warps."""
    choice = choices(function, *axes, M=5001, N=96)[0]
    nest, tiles = choice.scheduled()
    kernel = nest.kernels[0]
    assert sharing(kernel) is expected
    found = residents(work_of(kernel, Tiling(Extents(), tiles), "cuda"), H200, Schedule())
    assert KernelPlanner(kernel).warps({}, tiles, ()) == found.warps


def test_programs_take_time_to_begin() -> None:
    """Measured: 65,536 programs of a GELU take a fifth longer than 32,768 of the same work."""
    few, many = (Work(programs=n, moved=134e6, arrays=134e6, own=134e6 / n) for n in (2**15, 2**16))
    times = [gpu_seconds(w, H200, Schedule(warps=1)) for w in (few, many)]
    assert times[1] > 1.1 * times[0]


def test_loads_of_loops_that_only_gather_run_ahead() -> None:
    """The first step of a loop waits; so does every step that folds a block."""
    (columns,) = work(choices(lambda X: o.sum(X, 0), "M N", M=256, N=100_000)[0])
    assert columns.steps > 1
    assert columns.streaming == columns.steps - 1
    (rows,) = work(choices(lambda X: o.log(o.sum(o.exp(X), 1)), "M N", M=256, N=100_000)[0])
    assert rows.steps > 1
    assert rows.streaming == 0


def test_a_row_for_several_rows_is_handed_over() -> None:
    """Threads that load a block of the same shape use it themselves."""
    choice = choices(lambda X, R, Y: X * R + Y, "M N", "N", "M N", M=8192, N=4096)[0]
    for rows, handed in ((1, 0), (8, 1)):
        tiles = {dim: {"M": rows, "N": 512}[dim.name] for dim in choice.tiles}
        (found,) = work(replace(choice, tiles=tiles))
        assert found.handed_over == handed * found.steps


def test_few_long_rows_are_summed_by_one_kernel_without_stages() -> None:
    """A program sums a row with 16 warps, and loads two long blocks at a time."""
    choice = improved(choices(lambda X: o.sum(X, 1), "M N", M=200, N=100_000), (), H200)[0]
    (kernel,) = choice.scheduled()[0].kernels
    tiles = {dim.name: tile for dim, tile in choice.tiles.items()}
    assert (tiles, choice.schedule.split, choice.schedule.stages) == ({"M": 1, "N": 8192}, {}, 1)
    assert KernelPlanner(kernel).warps({}, choice.tiles, ()) == 16


def test_kernels_of_a_split_have_long_pieces_of_single_rows() -> None:
    """Those that read the parts of sums had blocks of 16 rows, and took a quarter longer."""
    choice = improved(choices(lambda X: o.softmax(X), "M N", M=64, N=128_256), (), H200)[0]
    kernels, tiles = choice.scheduled()[0].kernels, choice.scheduled()[1]
    blocks = {dim.label: tile for dim, tile in tiles.items() if dim.name in "MN"}
    assert (len(kernels), choice.schedule.split) == (2, {"N": 8})
    assert blocks == {"M.0": 1, "N.0": 8192, "M.1": 1, "N.1": 4096}


MEASURED = {
    "few short rows in a program": (
        (lambda X: o.softmax(X), ("M N",), {"M": 200_000, "N": 100}),
        ({"M": 16}, {}),
        ({"M": 4}, {}),
    ),
    "long rows that go through shared memory": (
        (lambda X: o.sum(X, 1), ("M N",), {"M": 200, "N": 100_000}),
        ({"M": 1, "N": 8192}, {"warps": 16, "stages": 1}),
        ({"M": 1, "N": 8192}, {"warps": 16, "stages": 4}),
    ),
    "columns that are not loaded ahead": (
        (lambda X: o.sum(X, 0), ("M N",), {"M": 200, "N": 100_000}),
        ({"M": 16, "N": 64}, {"warps": 1, "stages": 3}),
        ({"M": 16, "N": 64}, {"warps": 1, "stages": 1}),
    ),
}
"""Programs with tiles and options that an H200 runs fast, and others that it runs slower."""


@pytest.mark.parametrize("name", MEASURED)
def test_what_was_measured_to_be_slower_is_predicted_so(name: str) -> None:
    (function, specs, sizes), *points = MEASURED[name]
    choice = improved(choices(function, *specs, **sizes), (), H200)[0]
    times = []
    for tiles, options in points:
        lengths = {dim: tiles.get(dim.name, tile) for dim, tile in choice.tiles.items()}
        schedule = replace(choice.schedule, **options)
        nest, made = replace(choice, tiles=lengths, schedule=schedule).scheduled()
        times.append(predicted(nest, Tiling(Extents(), made), H200, schedule).device)
    assert times[1] > 1.04 * times[0]


@pytest.mark.parametrize(("length", "measured"), [(4096, 19.7), (8192, 76.2)])
def test_what_is_read_again_by_diagonals_comes_from_the_cache(length: int, measured: float) -> None:
    """An H200 adds an array and its transpose in these microseconds."""
    choice = choices(lambda X, Y: X + Y.T, "M N", "N M", M=length, N=length)[0].mirrored
    nest, tiles = replace(choice, tiles=dict.fromkeys(choice.tiles, 64)).scheduled()
    found = predicted(nest, Tiling(Extents(), tiles), H200, choice.schedule).device * 1e6
    assert found == pytest.approx(measured, rel=0.15)
    (kernel,), array = nest.kernels, 2 * length**2
    oblong = {dim: {"M": 64, "N": 32}[dim.name] for dim in tiles}
    arrays = [work_of(kernel, Tiling(Extents(), x), "cuda").arrays for x in (tiles, oblong)]
    assert arrays == [2 * array, 3 * array]


@pytest.mark.parametrize(("length", "side"), [(4096, 64), (8192, 128)])
def test_programs_by_diagonals_have_longer_pieces_of_long_rows(length: int, side: int) -> None:
    """Measured: 128 × 128 is 4% faster than 64 × 64 for 8192 rows, and 7% slower for 4096."""
    choice = choices(lambda X, Y: X + Y.T, "M N", "N M", M=length, N=length)[0].mirrored
    best = improved([choice], (), H200)[0]
    assert {*best.tiles.values()} == {side}
    nest, tiles = best.scheduled()
    assert work_of(nest.kernels[0], Tiling(Extents(), tiles), "cuda").is_scattered


def test_a_number_that_all_threads_load_is_not_handed_over() -> None:
    """It is if they share rows, so that each has several."""
    choice = choices(lambda X, Y: X + Y[:, None], "M N", "M", M=4096, N=4096)[0]
    rows, columns = sorted(choice.tiles, key=lambda dim: dim.label)
    handed = [work(replace(choice, tiles={rows: n, columns: 1024}))[0].handed_over for n in (1, 2)]
    assert handed == [0, 1]


def test_a_sum_of_rows_may_have_a_program_for_each() -> None:
    """Shares that are powers of two left out as many programs as there are rows."""
    space = space_of(lambda X: o.sum(X, (0, 1)), "M N", machine=H200, M=1000, N=64)
    assert {"M": 1000} in [*space.splits(1)]


def test_programs_share_a_processor_as_far_as_it_goes() -> None:
    work = Work(programs=10_000, held=4096, staged=32_768, multiplying=64, steps=64)
    work = replace(work, each_stage=32_768, kept=32_768)
    usual = residents(work, H200, Schedule())
    assert (usual.warps, usual.stages, usual.programs) == (4, 3, 2)
    assert residents(work, H200, Schedule(warps=8)).programs <= usual.programs
    assert residents(work, H200, Schedule(stages=6)).programs == 1
    large = replace(work, held=128 * 256, accumulated=128 * 256)
    assert residents(large, H200, Schedule()).warps == 8
    assert residents(large, H200, Schedule(warps=1)).spilled > 3


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


def test_a_cpu_has_threads_and_chunks() -> None:
    space = space_of(lambda X: o.softmax(X), "M N", M=1024, N=8)
    assert space.chunks[:3] == [None, 1, 4]
    near = [*space.near(Schedule())]
    assert near[:2] == [Schedule(grid="outer"), Schedule(apart=True)]
    assert [x.threads for x in near if x.threads] == [1, 4]
    assert [x.chunk for x in near if x.chunk] == space.chunks[1:]
    back = [*space.near(Schedule(threads=2, chunk=4))]
    assert Schedule(threads=2) in back
    assert Schedule(chunk=4) in back


def test_threads_of_a_cpu_are_one_or_all() -> None:
    """All are what the rule takes for large arrays, so they are no choice there."""
    small, large = ({"M": n, "N": n} for n in (16, 4096))
    for processors, below in ((1, []), (2, [1]), (4, [1]), (6, [1])):
        machine = replace(FOUR_CORES, processors=processors)
        found = [
            space_of(lambda X: o.exp(X), "M N", machine=machine, **sizes).threads
            for sizes in (small, large)
        ]
        expected = [None, *below] if below else []
        assert found == [[*expected, processors] if below else [], expected]


def test_chunks_are_smaller_than_the_grid() -> None:
    found = [space_of(lambda X: X.sum(-1), "M N", M=m, N=8) for m in (1, 1 << 20)]
    assert [space.chunks for space in found] == [[], [None, 1, 4, 16, 64]]


def test_orders_swap_loops_that_follow_each_other() -> None:
    product = space_of(lambda X, Y: X @ Y, "M K", "K N", M=512, K=64, N=512)
    (kernel,) = product.nest.kernels
    slow, fast = (index.dim.label for index in kernel.grid)
    assert [x.order for x in product.near(Schedule()) if x.order] == [(fast, slow)]
    assert Schedule() in product.near(Schedule(order=(fast, slow)))
    for m, n in ((512, 8), (8, 512)):  # the other loop has one block
        single = space_of(lambda X, Y: X @ Y, "M K", "K N", M=m, K=64, N=n)
        assert not [x for x in single.near(Schedule()) if x.order]
    rows = space_of(lambda X: X.sum(-1), "M N", M=512, N=64)
    assert not [x for x in rows.near(Schedule()) if x.order]


def test_other_loops_have_the_order_of_the_program() -> None:
    product = space_of(lambda X, Y: X @ Y, "M K", "K N", M=512, K=64, N=512)
    near = [*product.near(Schedule(order=("N.0", "M.0")))]
    assert not [x for x in near if x.order and (x.grid != "all" or x.apart)]


# --------------------------------------------------------------------------- threads


def test_a_schedule_of_one_thread_is_predicted_so() -> None:
    """Small work is the fastest on one thread, large work on all."""
    machine = replace(FOUR_CORES, wake=1e-5)

    def times(length: int) -> list[float]:
        choice = choices(lambda X: o.exp(X), "M N", dtype=None, M=length, N=length)[0]
        nest, tiles = choice.scheduled()
        tiling = Tiling(Extents(), tiles)
        counts = (None, 1, 4, 100)
        made = [predicted(nest, tiling, machine, Schedule(threads=n)).device for n in counts]
        assert made[2] == made[3]
        return made[:3]

    rule, one, four = times(64)
    assert rule == one < four
    rule, one, four = times(4096)
    assert rule == four < one


def test_blocks_of_weights_may_be_long_where_rows_are_few():
    """They are read in place, so neither the longest dot nor the largest tile limits them."""
    long = {}
    for rows in (16, 32):
        request = Request(bb.examples.matmul_relu(), sizes={"M": rows, "K": 4096, "N": 9000})
        nest, tiles = choose(request)[0].scheduled()
        space = Space(nest, Extents(), FOUR_CORES)
        (columns,) = (dim for dim in space.dims if dim.name == "N")
        long[rows] = space.tiles(columns)[-1], space.fits({**tiles, columns: 4096})
        (kernel,) = nest.kernels
        work = work_of(kernel, Tiling(Extents(), tiles), "cpu")
        assert work.has_few_rows == (rows == 16)
    assert long == {16: (16384, True), 32: (256, False)}


def test_small_arrays_of_a_gpu_take_one_launch() -> None:
    """A norm of one row has no grid: its sum, its scale and its result were three kernels."""

    def norm(x: Any, g: Any) -> Any:
        return x * o.rsqrt(o.mean(x * x, 0) + 1e-5) * g

    def kernels(length: int) -> tuple[str, int]:
        best = improved(choices(norm, "D", "D", D=length), (), H200)[0]
        return best.schedule.grid, len(best.scheduled()[0].kernels)

    assert kernels(2048) == ("one", 1)
    assert kernels(1 << 22)[0] != "one", "one program would take too long"
