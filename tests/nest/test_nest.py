"""Loop nests: the lowering of block programs, and the rules that nests keep."""

from dataclasses import replace

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.errors import InvalidNest, NoKernel
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.listing import show_nest
from blockbuster_fusion.nest.nest import (
    Compute,
    Contract,
    Fill,
    Fold,
    For,
    Index,
    Kernel,
    Load,
    Nest,
    Store,
    read,
)
from blockbuster_fusion.nest.verify import verify_nest
from blockbuster_fusion.safety.pipeline import make_safe
from blockbuster_fusion.safety.storage import stored_as
from blockbuster_fusion.schedule.schedule import Schedule, scheduled
from helpers.nest_text import read_back

GOLDEN = [
    ("attention", (), Schedule()),
    ("layernorm-matmul", (), Schedule()),
    ("rmsnorm-swiglu", (), Schedule()),
    ("multi-head-attention", ("D", "L"), Schedule()),
    ("causal-grouped-query-attention", ("D", "L"), Schedule()),
    ("sliding-window-attention", ("D", "L"), Schedule()),
    ("layernorm-linear", (), Schedule(apart=True)),
    ("rmsnorm-swiglu-residual", (), Schedule(grid="outer")),
    ("attention", ("D", "L"), Schedule(split={"N": 4})),
    ("rmsnorm-swiglu", ("N",), Schedule(split={"K": 4}, atomic=True)),
]


def nest_of(
    name: str, unit: tuple[str, ...] = (), schedule: Schedule | None = None, snapshot: int = -1
) -> Nest:
    graph = bb.fuse(bb.lower(bb.examples.find(name)), unit=unit).snapshots[snapshot]
    return scheduled(graph, name.replace("-", "_"), schedule)


def words(schedule: Schedule) -> str:
    parts = [schedule.grid, *(["apart"] * schedule.apart), *(f"split {a}" for a in schedule.split)]
    return " ".join([*parts, *(["atomic"] * schedule.atomic)])


@pytest.mark.parametrize(
    ("name", "unit", "schedule"), GOLDEN, ids=[f"{n} {words(s)}" for n, _, s in GOLDEN]
)
def test_listing(name, unit, schedule, golden):
    golden(show_nest(read_back(nest_of(name, unit, schedule))))


def test_listing_of_sixteen_bits(golden):
    """Casts beside loads and stores are in the buffers' dtypes: tiles are computed with."""
    raw = bb.fuse(bb.lower(bb.examples.find("attention")), unit=("D", "L")).fused[-1]
    nest = scheduled(make_safe(stored_as(raw, DType.bfloat16)).graph, "attention")
    golden(show_nest(read_back(nest)))


@pytest.mark.sweep(2, reason="other examples by the same passes")
@pytest.mark.parametrize("name", bb.examples.EXAMPLES)
def test_every_snapshot_is_lowered_and_keeps_the_rules(name):
    for graph in bb.fuse(bb.lower(bb.examples.find(name))).snapshots:
        for schedule in (Schedule(), Schedule(grid="outer"), Schedule(apart=True)):
            verify_nest(scheduled(graph, "k", schedule))
        one = scheduled(graph, "k", Schedule(grid="one"))
        verify_nest(one)
        assert [kernel.grid for kernel in one.kernels] == [()], "one program runs all loops"


def test_contractions_add_straight_into_accumulators():
    (kernel,) = nest_of("attention", ("D", "L")).kernels
    contracts = [s for s in kernel.statements if isinstance(s, Contract)]
    (loop,) = [s for s in kernel.body if isinstance(s, For)]
    gathered = {tile for _, tiles in loop.gathered for tile in tiles}
    assert contracts[1].tile in gathered, "the second contraction sums into the loop's accumulator"


def test_blocks_are_loaded_before_loops_that_they_do_not_vary_in():
    (kernel,) = nest_of("multi-head-attention", ("D", "L")).kernels
    outside = [s.source.buffer.name for s in kernel.body if isinstance(s, Load)]
    assert outside == ["Q"]


def test_windows_of_masks():
    for name, low, high in (
        ("multi-head-attention", None, 0),
        ("sliding-window-attention", -63, 0),
        ("attention", None, None),
    ):
        (kernel,) = nest_of(name, ("D", "L")).kernels
        (loop,) = [s for s in kernel.body if isinstance(s, For)]
        found = (None, None)
        if loop.window is not None:
            edges = (loop.window.low, loop.window.high)
            found = tuple(None if e is None else e.value for e in edges)
        assert found == (low, high), name


def test_a_mask_that_is_only_stored_narrows_nothing():
    """A block that is masked out still has to be written."""

    def program(Q, K):
        scores = Q @ K.T
        visible = bb.ops.index(scores, 1) <= bb.ops.index(scores, 0)
        return {"S": bb.ops.where(visible, scores, -1e30)}

    graph = bb.fuse(bb.lower(bb.trace(program, Q="M D", K="N D"))).snapshots[-1]
    for kernel in scheduled(graph).kernels:
        assert all(s.window is None for s in kernel.statements if isinstance(s, For))


def test_a_mask_that_is_not_neutral_narrows_nothing():
    """A masked score of 0 is not left out of the softmax."""

    def program(Q, K, V):
        scores = Q @ K.T
        visible = bb.ops.index(scores, 1) <= bb.ops.index(scores, 0)
        return bb.ops.softmax(bb.ops.where(visible, scores, 0.0)) @ V

    graph = bb.fuse(bb.lower(bb.trace(program, Q="M D", K="N D", V="N L"))).snapshots[-1]
    for kernel in scheduled(graph).kernels:
        assert all(s.window is None for s in kernel.statements if isinstance(s, For))


def test_split_says_what_cannot_be_split():
    with pytest.raises(NoKernel, match="no kernel gathers along M"):
        nest_of("attention", ("D", "L"), Schedule(split={"M": 4}))
    with pytest.raises(NoKernel, match="gathers more than sums along N"):
        nest_of("attention", ("D", "L"), Schedule(split={"N": 4}, atomic=True))


def test_what_is_no_sum_stays_whole_behind_sums_that_are_added():
    """The mean is added up by several programs; the largest deviation is found by one."""

    def program(X):
        return bb.ops.max((X - bb.ops.mean(X, axis=1, keepdims=True)) ** 2, axis=1)

    graph = bb.fuse(bb.lower(bb.trace(program, X="M N"))).snapshots[-1]
    nest = scheduled(graph, "f", Schedule(split={"N": 3}, atomic=True))
    first, second = nest.kernels
    assert [s.atomic for s in first.statements if isinstance(s, Store)] == [True]
    assert [s.share for s in second.statements if isinstance(s, For)] == [None]


def test_misc_operators_inside_loops_have_no_kernel():
    (kernel,) = nest_of("attention", ("D", "L")).kernels
    assert not [s for s in kernel.statements if isinstance(s, Store) and s.atomic]


# ------------------------------------------------------------------- the verifier


def changed(kernel: Kernel, old, *new) -> Kernel:
    """The kernel with one statement of its body replaced."""
    return replace(kernel, body=tuple(t for s in kernel.body for t in (new if s is old else [s])))


def test_a_tile_is_written_before_it_is_read():
    (kernel,) = nest_of("attention", ("D", "L")).kernels
    load = next(s for s in kernel.body if isinstance(s, Load))
    with pytest.raises(InvalidNest, match="is read before it is written"):
        verify_nest(changed(kernel, load))


def test_programs_do_not_write_the_same_block():
    (kernel,) = nest_of("attention", ("D", "L")).kernels
    extra = Index("q", kernel.grid[0].dim)
    with pytest.raises(InvalidNest, match="programs that differ in q alone write the same block"):
        verify_nest(replace(kernel, grid=(*kernel.grid, extra)))


def test_a_variable_belongs_to_a_loop_around():
    (kernel,) = nest_of("attention", ("D", "L")).kernels
    with pytest.raises(InvalidNest, match="no loop around it has the variable m"):
        verify_nest(replace(kernel, grid=()))


def test_axes_fit():
    (kernel,) = nest_of("layernorm-matmul", ("K",)).kernels
    fold = next(s for s in kernel.statements if isinstance(s, Fold))
    wrong = replace(fold, tile=fold.operand)
    with pytest.raises(InvalidNest, match="the tile has the axes"):
        verify_nest(changed(kernel, fold, wrong))
    compute = next(s for s in kernel.body if isinstance(s, Compute) and len(s.operands) == 2)
    store = next(s for s in kernel.body if isinstance(s, Store))
    with pytest.raises(InvalidNest, match="has axes that"):
        verify_nest(
            changed(kernel, store, replace(compute, operands=(store.tile, store.tile)), store)
        )


def test_accumulators_begin():
    (kernel,) = nest_of("attention", ("D", "L")).kernels
    fill = next(s for s in kernel.body if isinstance(s, Fill))
    readers = [s for s in kernel.statements if fill.tile in read(s)]
    assert readers
    with pytest.raises(InvalidNest, match="is read before it is written"):
        verify_nest(changed(kernel, fill))


@pytest.mark.parametrize("unit", [(), ("M",), ("M", "N")])
def test_one_program_computes_light_items_where_their_sources_are(unit):
    """Items that are cheap to compute again may be made of what the same program picks."""

    def scaled(X, s):
        total = bb.ops.sum(X * X, (-2, -1), keepdims=True)
        return X * bb.ops.exp(s), X * bb.ops.sum(X, -1, keepdims=True) * bb.ops.sqrt(total + s)

    program = bb.trace(scaled, X="M N", s="")
    for graph in bb.fuse(bb.lower(program), unit=unit).snapshots:
        (kernel,) = scheduled(graph, "k", Schedule(grid="one")).kernels
        assert kernel.grid == ()
