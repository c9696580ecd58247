"""Works that a search does not count again are equal to those that it would count."""

from collections.abc import Callable
from dataclasses import replace

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.choice import Choice
from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.improve import Improver
from blockbuster_fusion.ir.tiling import Extents, Tiling
from blockbuster_fusion.machine.machine import known
from blockbuster_fusion.nest.listing import show_nest
from blockbuster_fusion.schedule.cost import predicted
from blockbuster_fusion.schedule.count_work import work_of
from blockbuster_fusion.schedule.schedule import Schedule
from blockbuster_fusion.schedule.space import Space
from blockbuster_fusion.schedule.times import CountedKernels, total

H200 = known()["h200"]
o = bb.ops


def projections(X, w, A, B):
    x = o.rmsnorm(X, w)
    return {"Q": x @ A.T, "K": x @ B.T}


def attention(q, k, v):
    s = q @ k.T
    return o.softmax(o.where(o.index(s, 1) <= o.index(s, 0), s, float("-inf"))) @ v


PROGRAMS: dict[str, tuple[Callable, tuple[str, ...]]] = {
    "projections": (projections, ("M K", "K", "N K", "P K")),
    "attention": (attention, ("M K", "N K", "N P")),
    "softmax": (lambda X: o.softmax(X), ("M N",)),
    "vector": (lambda W, x: W @ x, ("N K", "K")),
    "scan": (lambda X: o.cumsum(X, 0), ("M N",)),
}
SIZES = {"M": 300, "K": 640, "N": 200, "P": 96}


def chosen(name: str, **options: object) -> Choice:
    function, specs = PROGRAMS[name]
    axes = {axis for spec in specs for axis in spec.split()}
    sizes = {axis: SIZES[axis] for axis in axes}
    request = Request(
        bb.trace(function, *specs), target="cuda", sizes=sizes, dtype="bfloat16", capability=90
    )
    choice = choose(request)[-1]
    return replace(choice, schedule=replace(choice.schedule, **options))


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_changed_tile_gives_the_times_of_all_launches(name: str, together: bool) -> None:
    choice = chosen(name, apart=True, together=together, warps=4)
    nest, tiles = choice.scheduled()
    kernels = CountedKernels(Extents(), H200)
    times, space = kernels.times(nest), Space(nest, Extents(), H200)
    before = times.predicted(choice.schedule, tiles)
    assert len(before) == len(nest.launches)
    for dim in space.dims:
        for tile in space.tiles(dim):
            changed = {**tiles, dim: tile}
            found = times.changed(before, dim, choice.schedule, changed)
            assert found == times.predicted(choice.schedule, changed)
            assert total(found) == predicted(
                nest, Tiling(Extents(), changed), H200, choice.schedule
            )
            for kernel in nest.kernels:
                fresh = work_of(kernel, Tiling(Extents(), changed), "cuda")
                assert kernels.counted(kernel).work(changed) == fresh


@pytest.mark.parametrize("name", PROGRAMS)
def test_loops_serve_all_tiles_and_launches(name: str) -> None:
    """A search has the loops of one schedule once, and fits other tiles to them."""
    usual = chosen(name, apart=True)
    improver = Improver([usual], H200)
    improver.scheduled(usual)
    tiles = usual.scheduled()[1]
    halves = {dim: max(16, tile // 2) for dim, tile in tiles.items()}
    for schedule in (
        replace(usual.schedule, stages=2, warps=8, group=4),
        replace(usual.schedule, together=True),
    ):
        choice = replace(usual, schedule=schedule, tiles=halves)
        found, own = improver.scheduled(choice)
        wanted, fitted = choice.scheduled()
        assert show_nest(found) == show_nest(wanted)
        assert own == fitted
    assert len(improver.loops) == 1


def test_options_that_change_loops_are_told_apart() -> None:
    plain = Schedule()
    beside = Schedule(warps=8, stages=4, group=2, threads=3, chunk=5, past=7, together=True)
    beside = replace(beside, early=True)
    assert beside.of_loops == plain
    for other in (
        Schedule(grid="outer"),
        Schedule(programs=132),
        Schedule(described=True),
        Schedule(split={"K": 2}),
        Schedule(order=("M",)),
        Schedule(apart=True),
        Schedule(transposed=True),
    ):
        assert other.of_loops == other != plain
