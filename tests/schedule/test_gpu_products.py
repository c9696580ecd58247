"""Predicted times choose good kernels for products on a GPU."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.choice import Choice
from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.improve import Improver
from blockbuster_fusion.ir.tiling import Extents, Tiling
from blockbuster_fusion.machine.machine import Machine, known
from blockbuster_fusion.printers.triton.launch_plan import options_of
from blockbuster_fusion.schedule.config import Config
from blockbuster_fusion.schedule.cost import predicted
from blockbuster_fusion.schedule.count_work import work_of
from blockbuster_fusion.schedule.gpu import residents, runs_ahead
from blockbuster_fusion.schedule.schedule import Schedule
from blockbuster_fusion.schedule.space import Space
from blockbuster_fusion.schedule.work import Work
from helpers.shared_kernels import rotated_attention

H200 = known()["h200"]
KEPT = Path(__file__).parents[2] / "benchmarks" / "results"
RESULTS = [
    KEPT / f"{name}_h200.json"
    for name in ("schedule_ranking", "product_forms", "product_descriptors")
]
o = bb.ops


def gated(X: Any, W: Any, V: Any) -> Any:
    return o.silu(X @ W.T) * (X @ V.T)


def gated_row(X: Any, W: Any, V: Any) -> Any:
    return o.silu(W @ X) * (V @ X)


PROGRAMS: Mapping[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "product": (lambda X, Y: X @ Y, ("M K", "K N")),
    "product, gelu": (lambda X, Y: o.gelu(X @ Y), ("M K", "K N")),
    "gated product": (lambda X, W, V: o.silu(X @ W) * (X @ V), ("M K", "K N", "K N")),
    "norm, product": (lambda X, W: o.rmsnorm(X) @ W, ("M K", "K N")),
    "vector": (lambda W, X: W @ X, ("N K", "K")),
    "turned": (lambda X, W: X @ W.T, ("M K", "N K")),
    "row": (lambda X, W: X @ W, ("K", "K N")),
    "batched": (lambda X, W: X @ W, ("B M K", "B K N")),
    "gated rows": (gated, ("M K", "N K", "N K")),
    "one row, gated rows": (gated_row, ("K", "N K", "N K")),
    "norm, gated rows": (
        lambda X, G, W, V: gated(o.rmsnorm(X, G, eps=1e-5), W, V),
        ("M K", "K", "N K", "N K"),
    ),
    "one row, norm, gated rows": (
        lambda X, G, W, V: gated_row(o.rmsnorm(X, G, eps=1e-5), W, V),
        ("K", "K", "N K", "N K"),
    ),
    "gate, product": (lambda G, X, V: o.silu(G) * (X @ V.T), ("M N", "M K", "N K")),
    "product, sum": (lambda X, W, Y: Y + X @ W.T, ("M K", "N K", "M N")),
    "one row, product, sum": (lambda X, W, Y: Y + W @ X, ("K", "N K", "N")),
    "layer norm, product": (
        lambda X, G, H, W: o.layernorm(X, G, H, eps=1e-5) @ W.T,
        ("M K", "K", "K", "N K"),
    ),
}


def choices(name: str, **sizes: int) -> list[Choice]:
    function, specs = PROGRAMS[name]
    program = bb.trace(function, *specs)
    return choose(Request(program, target="cuda", sizes=sizes, dtype="bfloat16", capability=90))


def apart(choice: Choice) -> Choice:
    return replace(choice, schedule=Schedule(apart=True))


def best(name: str, **sizes: int) -> Choice:
    return Improver(choices(name, **sizes), H200).best(())[0]


def tiles_of(choice: Choice) -> dict[str, int]:
    return {dim.name: tile for dim, tile in choice.scheduled()[1].items()}


def programs_of(choice: Choice) -> int:
    nest, tiles = choice.scheduled()
    return max(work_of(k, Tiling(Extents(), tiles), "cuda").programs for k in nest.kernels)


def _work(name: str, tiles: Mapping[str, int], **sizes: int) -> Work:
    """The work of a program's first snapshot with some tiles."""
    first = choices(name, **sizes)[0]
    nest, usual = first.scheduled()
    own = {dim: tiles.get(dim.name, tile) for dim, tile in usual.items()}
    return work_of(nest.kernels[0], Tiling(Extents(), own), "cuda")


@pytest.mark.parametrize(("summed", "columns"), [(2048, 1024), (2048, 8192), (8192, 2048)])
def test_a_row_is_multiplied_by_many_programs(summed: int, columns: int) -> None:
    """Tiles of 128 rows made 8 programs of a product, and were predicted to be fast."""
    choice = best("vector", K=summed, N=columns)
    assert programs_of(choice) >= 1.9 * H200.processors
    assert tiles_of(choice)["K"] >= 128


@pytest.mark.parametrize("rows", [2, 16])
def test_few_rows_fill_the_processors(rows: int) -> None:
    choice = best("turned", M=rows, K=4096, N=4096)
    assert tiles_of(choice)["M"] == 16
    assert programs_of(choice) >= 0.9 * H200.processors


@pytest.mark.parametrize("name", ["turned", "product"])
def test_large_products_have_large_tiles(name: str) -> None:
    made = tiles_of(best(name, M=4096, K=4096, N=4096))
    assert {made["M"], made["N"]} == {128, 256}
    assert made["K"] == 64


def test_few_columns_are_one_block() -> None:
    """A loop over halves of 64 columns begins the loop of products twice: 29 µs, not 22."""
    choice = best("product", M=65536, K=512, N=64)
    assert tiles_of(choice)["N"] == 64
    nest, tiles = replace(choice, schedule=Schedule(grid="outer")).scheduled()
    halves = {dim: 32 if dim.name == "N" else tile for dim, tile in tiles.items()}
    assert work_of(nest.kernels[0], Tiling(Extents(), halves), "cuda").restarts == 1


def test_long_sums_are_shared() -> None:
    choice = best("turned", M=256, K=65536, N=256)
    assert choice.schedule.split["K"] >= 8


def test_short_sums_of_few_rows_are_shared() -> None:
    """One program for each 16 columns waits for 176 products in a row, on half of the processors.

    Parts of the sums stay in the second cache: 6.2 µs instead of 6.9 were measured.
    """
    choice = best("product, sum", M=16, K=2816, N=1024)
    assert choice.schedule.split["K"] >= 4
    assert not choice.schedule.atomic


def test_memory_that_is_cleared_costs_a_launch() -> None:
    (usual, *_) = choices("product, sum", M=16, K=2816, N=1024)
    improver = Improver([usual], H200)
    parts, sums = (
        improver.seconds(replace(usual, schedule=Schedule(split={"K": 8}, atomic=atomic)), {})
        for atomic in (False, True)
    )
    assert sums > parts + 0.5 * H200.step


@pytest.mark.parametrize("rows", [1024, 4096])
def test_two_products_of_the_same_rows_have_two_programs_at_a_time(rows: int) -> None:
    """One program of eight warps was chosen, whose products wait for each other in each step."""
    choice = best("gated product", M=rows, K=4096, N=14336)
    nest, tiles = choice.scheduled()
    (work,) = (work_of(k, Tiling(Extents(), tiles), "cuda") for k in nest.kernels)
    assert work.has_twins
    assert residents(work, H200, choice.schedule).programs == 2
    assert choice.schedule.warps == 4


@pytest.mark.parametrize("rows", [1024, 4096])
def test_two_products_of_the_same_rows_are_one(rows: int) -> None:
    """One instruction multiplies with 128 columns of each: 2158 µs instead of 2241 for a layer."""
    choice = best("gated rows", M=rows, K=4096, N=14336)
    assert tiles_of(choice) == {"M": 128, "N": 128, "K": 64}
    assert choice.schedule.joined
    assert choice.schedule.programs == H200.processors
    (kernel,) = choice.scheduled()[0].kernels
    assert kernel.is_joined
    assert kernel.programs == H200.processors


@pytest.mark.parametrize(
    ("name", "sizes", "machine"),
    [
        ("gated product", {"M": 4096, "K": 4096, "N": 14336}, H200),  # columns lie otherwise
        ("gated rows", {"M": 4096, "K": 4096, "N": 14336}, replace(H200, instructions="sm_80")),
        ("gated rows", {"M": 16, "K": 1024, "N": 2816}, H200),
        ("turned", {"M": 4096, "K": 4096, "N": 4096}, H200),
    ],
)
def test_other_products_are_not_joined(name: str, sizes: dict[str, int], machine: Machine) -> None:
    choice = Improver(choices(name, **sizes), machine).best(())[0]
    assert not choice.schedule.joined


def test_rows_of_two_products_are_read_once() -> None:
    """Tensor cores read the columns of both from shared memory, and the rows of one."""
    tiles = {"M": 128, "N": 64, "K": 64}
    both, one = (_work(name, tiles, M=4096, K=4096, N=4096) for name in ("gated rows", "turned"))
    assert both.products == 2 * one.products
    assert both.read_by_cores == 1.5 * one.read_by_cores  # 128 rows, twice 64 columns for 64 rows
    assert both.has_twins
    assert not one.has_twins


@pytest.mark.parametrize(
    ("name", "summed", "columns"),
    [("one row, norm, gated rows", 1024, 2816), ("one row, product, sum", 2816, 1024)],
)
def test_short_vectors_are_multiplied_in_one_step(name: str, summed: int, columns: int) -> None:
    """Programs of several rows in a few steps took a tenth longer, as all wait for the first."""
    choice = best(name, K=summed, N=columns)
    assert programs_of(choice) == columns
    assert tiles_of(choice)["K"] >= summed


@pytest.mark.parametrize(("rows", "columns"), [(16384, 8192), (4096, 4096)])
def test_whole_rows_of_a_matrix_are_multiplied_by_eight_warps(rows: int, columns: int) -> None:
    """Pieces of several rows in stages took 3 and 5% longer."""
    choice = best("vector", K=columns, N=rows)
    assert tiles_of(choice) == {"K": columns, "N": 1}
    assert choice.schedule.warps == 8


def test_one_step_takes_few_registers() -> None:
    """Eight programs of eight warps run on a processor, with 32 registers for each thread."""
    work = _work("vector", {"K": 8192, "N": 1}, K=8192, N=16384)
    assert residents(work, H200, Schedule(warps=8)).programs == 8


def test_long_vectors_are_multiplied_in_steps() -> None:
    """Registers hold a few programs of long rows only, which wait in turns."""
    choice = best("one row, product, sum", K=14336, N=4096)
    assert tiles_of(choice)["K"] <= 1024
    assert tiles_of(choice)["N"] >= 4


def test_a_row_of_a_matrix_is_multiplied_in_long_pieces() -> None:
    """A vector across the rows was loaded number by number, and each step waited for it."""
    choice = best("row", K=4096, N=4096)
    (parts, _), tiles = choice.scheduled()[0].kernels, tiles_of(choice)
    work = work_of(parts, Tiling(Extents(), choice.scheduled()[1]), "cuda")
    assert runs_ahead(work, choice.schedule.warps or 4)
    assert tiles["N"] >= 8
    assert programs_of(choice) >= 1.9 * H200.processors


def test_what_stays_in_shared_memory_leaves_less_room() -> None:
    """A block that all steps multiply with lies beside those that are loaded ahead."""
    (choice, *_) = choices("batched", B=64, M=512, K=128, N=512)
    outer = replace(choice, schedule=Schedule(grid="outer", stages=3))
    (kernel,), tiles = outer.scheduled()[0].kernels, outer.scheduled()[1]
    own = {dim: 64 if dim.name == "N" else 128 for dim in tiles}
    work = work_of(kernel, Tiling(Extents(), own), "cuda")
    # and a block that is in use, and the product that is stored
    assert work.kept == (128 * 128 + 2 * 128 * 64) * 2
    assert residents(work, H200, outer.schedule).programs == 2
    made = tiles_of(best("batched", B=64, M=512, K=128, N=512))
    assert (made["M"], made["N"]) == (128, 64)


def test_large_products_are_computed_in_turns() -> None:
    """Programs store for a long time in between; one round, and small blocks, gain nothing."""
    for sizes in ({"M": 8192, "K": 1024, "N": 4096}, {"M": 4096, "K": 4096, "N": 4096}):
        assert best("turned", **sizes).schedule.programs == H200.processors
    for sizes in ({"M": 2048, "K": 2048, "N": 2048}, {"M": 128, "K": 512, "N": 65536}):
        assert best("turned", **sizes).schedule.programs is None
    assert best("product, sum", M=8192, K=1024, N=4096).schedule.programs is None


def test_kernels_that_do_more_take_no_turns() -> None:
    """Beside a product, a gate took turns as well: 4096 rows took 5188 µs, and 2191 without."""
    program = bb.trace(lambda X, W, V, U: gated(X, W, V) @ U.T, "M K", "N K", "N K", "J N")
    sizes = {"M": 1024, "K": 4096, "N": 14336, "J": 4096}
    request = Request(program, target="cuda", sizes=sizes, dtype="bfloat16", capability=90)
    schedule = Schedule(apart=True, programs=132)
    kernels = replace(choose(request)[0], schedule=schedule).scheduled()[0].kernels
    assert [kernel.programs for kernel in kernels] == [0, 132]
    assert [schedule.of_launch(kernel, kernels).programs for kernel in kernels] == [None, 132]


@pytest.mark.parametrize(
    ("name", "rows", "columns", "measured"),
    [("gated rows", 1024, 128, 500.0), ("gate, product", 4096, 256, 3840.0)],
)
def test_other_kernels_are_slow_in_turns(
    name: str, rows: int, columns: int, measured: float
) -> None:
    """The microseconds are those of whole layers, less what the other kernels of them take."""
    choice = choices(name, M=rows, K=4096, N=14336)[0]
    schedule = Schedule(described=True, stages=4, programs=132)
    nest, tiles = replace(choice, schedule=schedule).scheduled()
    own = {dim: {"M": 128, "N": columns, "K": 64}[dim.name] for dim in tiles}
    found = predicted(nest, Tiling(Extents(), own), H200, schedule).device * 1e6
    assert found == pytest.approx(measured, rel=0.25)


@pytest.mark.parametrize(("dtype", "share"), [("bfloat16", 0.5), ("float32", 1.0)])
def test_a_gate_takes_registers_during_the_loop(dtype: str, share: float) -> None:
    """As it is stored: 16 bits fit beside the accumulators of 128 rows and 256 columns."""
    program = bb.trace(lambda G, X, V: o.silu(G) * (X @ V.T), "M N", "M K", "N K")
    sizes = {"M": 4096, "K": 4096, "N": 14336}
    request = Request(program, target="cuda", sizes=sizes, dtype=dtype, capability=90)
    nest, tiles = choose(request)[0].scheduled()
    own = {dim: {"M": 128, "N": 256, "K": 64}[dim.name] for dim in tiles}
    work = work_of(nest.kernels[0], Tiling(Extents(), own), "cuda")
    assert work.held_over == 128 * 256 * share
    rounded = replace(work, is_exact=False)
    assert (residents(rounded, H200, Schedule()).spilled > 1) == (share > 0.5)


def test_short_sums_alone_are_computed_in_turns_without_descriptors() -> None:
    """One loop counts all steps, and threads compute addresses from it."""
    older = replace(H200, instructions="sm_80")

    def turns(**sizes: int) -> int | None:
        choice = Improver(choices("turned", **sizes), older).best(())[0]
        assert not choice.schedule.described
        return choice.schedule.programs

    assert turns(M=8192, K=1024, N=4096) == H200.processors
    assert turns(M=4096, K=4096, N=4096) is None


@pytest.mark.parametrize(
    ("name", "rows", "is_described"),
    [
        ("product", 4096, True),
        ("gated rows", 4096, True),
        ("layer norm, product", 4096, True),
        ("turned", 16, False),  # warps multiply few rows each by themselves
        ("batched", 512, False),  # the arrays are no matrices
    ],
)
def test_descriptors_load_operands_of_large_products(
    name: str, rows: int, is_described: bool
) -> None:
    sizes = {"B": 16} if name == "batched" else {}
    choice = best(name, **sizes, M=rows, K=1024, N=4096)
    assert choice.schedule.described == is_described
    assert any(kernel.is_described for kernel in choice.scheduled()[0].kernels) == is_described


def test_few_rows_are_multiplied_as_columns() -> None:
    """Tensor cores multiply 64 rows of weights at a time, if a block has so many."""
    choice = best("gated rows", M=16, K=4096, N=14336)
    assert choice.schedule.transposed == (tiles_of(choice)["N"] >= 64)
    assert not best("turned", M=64, K=4096, N=4096).schedule.transposed
    (usual, *_) = choices("gated rows", M=16, K=4096, N=14336)
    for schedule in (Schedule(), Schedule(transposed=True)):
        nest, tiles = replace(usual, schedule=schedule).scheduled()
        own = {dim: {"M": 16, "N": 128, "K": 64}[dim.name] for dim in tiles}
        (kernel,) = nest.kernels
        assert work_of(kernel, Tiling(Extents(), own), "cuda").is_grouped == schedule.transposed


def test_few_rows_have_no_more_on_the_way_than_helps() -> None:
    (choice, *_) = choices("gated rows", M=16, K=4096, N=14336)
    nest, tiles = choice.scheduled()
    own = {dim: {"M": 16, "N": 128, "K": 64}[dim.name] for dim in tiles}
    four, six = (
        predicted(nest, Tiling(Extents(), own), H200, Schedule(stages=stages)).device
        for stages in (4, 6)
    )
    assert four < six  # 63 and 68 µs were measured


def test_rows_that_are_not_aligned_have_no_descriptors() -> None:
    choice = best("turned", M=4096, K=1024 + 4, N=4096)
    assert choice.schedule.described == choice.schedule.padded


def test_warps_of_products_are_theirs_alone() -> None:
    (choice, *_) = choices("layer norm, product", M=64, K=1024, N=512)
    rows, product = (choice := apart(choice)).scheduled()[0].kernels
    schedule = replace(choice.schedule, warps=8)
    assert schedule.of_launch(product, (rows, product)).warps == 8
    assert schedule.of_launch(rows, (rows, product)).warps is None
    assert schedule.of_launch(rows, (rows,)).warps == 8
    given = {"num_warps": 8, "num_stages": 4}
    assert options_of(product, (rows, product), given) == given
    assert options_of(rows, (rows, product), given) == {"num_stages": 4}


def test_a_row_that_one_block_holds_is_loaded_once() -> None:
    choice = best("layer norm, product", M=4096, K=1024, N=4096)
    nest, tiles = choice.scheduled()
    assert len(nest.kernels) == 2
    moved = {}
    for length in (256, 1024):
        own = {dim: {"M.0": 16, "K.0": length}.get(dim.label, tile) for dim, tile in tiles.items()}
        work = work_of(nest.kernels[0], Tiling(Extents(), own), "cuda")
        moved[length] = work.moved - work.written
        assert work.steps == (2 if length == 1024 else 12)  # the weights are loaded late
    assert moved[256] - moved[1024] == 2 * 4096 * 1024 * 2  # else three times, in bfloat16


def test_all_snapshots_are_looked_at() -> None:
    """The third by estimate, with its norm in a kernel of its own, is the fastest."""
    program = bb.trace(
        lambda X, G, W, V: gated(o.cast(o.cast(o.rmsnorm(X, G), "bfloat16"), "float32"), W, V),
        *("M K", "K", "N K", "N K"),
    )
    sizes = {"M": 128, "K": 1024, "N": 2816}
    request = Request(program, target="cuda", sizes=sizes, dtype="bfloat16", capability=90)
    choice = Improver(choose(request), H200).best(())[0]
    assert choice.schedule.apart
    assert len(choice.scheduled()[0].kernels) == 2


def test_no_more_stages_than_fit() -> None:
    for rows in (16, 64, 128, 512, 2048):
        choice = best("turned", M=rows, K=4096, N=4096)
        nest, tiles = choice.scheduled()
        for work in (work_of(k, Tiling(Extents(), tiles), "cuda") for k in nest.kernels):
            ahead = work.each_stage * ((choice.schedule.stages or 1) - 1)
            assert ahead + work.kept <= H200.memories[0].size


def test_rows_that_are_not_aligned_cost_more() -> None:
    """Blocks of such rows are not copied in vectors of 16 bytes."""
    odd, even = (
        Improver(found, H200).seconds(found[0], ())
        for found in (choices("turned", M=4096, K=4096 + more, N=4096) for more in (1, 8))
    )
    assert odd > 1.2 * even


def test_tiles_of_single_kernels_are_part_of_a_configuration() -> None:
    """The rows of one product, which the next one sums, have two tiles."""
    program = bb.trace(lambda W, X, V: V @ (W @ X), "N K", "K", "J N")
    sizes = {"N": 2048, "K": 4096, "J": 4096}
    request = Request(program, target="cuda", sizes=sizes, dtype="bfloat16", capability=90)
    choice = Improver(choose(request), H200).best(())[0]
    assert choice.config.tiles["N.0"] < choice.config.tiles["N.1"]
    config = Config.from_data(choice.config.data())
    assert choose(replace(request, config=config))[0].config == choice.config


def recorded() -> list[dict[str, Any]]:
    """Kernels with products whose configurations were measured on an H200."""
    found = [one for file in RESULTS for one in json.loads(file.read_text(encoding="utf-8"))]
    return [kernel for kernel in found if kernel["case"] in PROGRAMS]


def label(kernel: Mapping[str, Any]) -> str:
    return f"{kernel['case']} {'x'.join(map(str, kernel['sizes'].values()))}"


@pytest.mark.sweep(3)
@pytest.mark.parametrize("kernel", recorded(), ids=label)
def test_predictions_rank_what_was_measured(kernel: dict[str, Any]) -> None:
    """The configuration of the least predicted time is nearly the fastest of those measured."""
    usual = {c.snapshot: c for c in choices(kernel["case"], **kernel["sizes"])}

    def microseconds(data: Mapping[str, Any]) -> float:
        config = Config.from_data(data)
        own = replace(usual[config.snapshot], schedule=config.schedule)
        dims = {d.label: d for k in own.scheduled()[0].kernels for d in k.dims}
        tiles = {dims[name]: tile for name, tile in config.tiles.items() if name in dims}
        choice = replace(own, tiles={**own.tiles, **tiles})
        nest, fitted = choice.scheduled()
        return predicted(nest, Tiling(Extents(), fitted), H200, choice.schedule).device * 1e6

    rows = [(microseconds(row["config"]), row["measured"]) for row in kernel["rows"]]
    first, fastest = min(rows), min(measured for _, measured in rows)
    assert first[1] <= 1.17 * fastest
    assert 0.5 <= first[1] / first[0] <= 2


def shared_work(function: Callable[..., object], axes: tuple[str, ...], **sizes: int) -> Work:
    """The work of the first kernel of a program, whose sums over N sixteen programs share."""
    program = bb.trace(function, *axes)
    request = Request(program, target="cuda", sizes=sizes, dtype="bfloat16", capability=90)
    usual = choose(request)[0]
    split = {"N": 16} if "N" in sizes else {}
    nest, tiles = replace(usual, schedule=Schedule(split=split)).scheduled()
    own = {dim: {"M": 16, "N": 256, "P": 16}.get(dim.name, tile) for dim, tile in tiles.items()}
    return work_of(nest.kernels[0], Tiling(Extents(), own), "cuda")


def test_programs_without_blocks_begin_no_loops_again() -> None:
    """Half of the programs are idle: attention was predicted to take 1.2 µs, and took 6."""
    axes = ("H M D", "H M D", "H M D", "H M D", "H N D", "N L")
    work = shared_work(rotated_attention, axes, H=4, M=16, D=64, N=2048, L=64)
    assert work.busy == 0.5
    assert work.restarts >= 0


def test_merged_axes_of_operands_have_bank_conflicts() -> None:
    """The sum over heads and their elements was predicted to take 5 µs, and took 20."""
    plain = shared_work(lambda X, Y: X @ Y.T, ("M K", "P K"), M=16, K=2048, P=2048)
    heads = shared_work(
        lambda X, Y: o.sum(X @ o.transpose(Y, (0, 2, 1)), axis=0),
        ("H M D", "H P D"), H=32, M=16, D=64, P=2048,
    )  # fmt: skip
    assert heads.products == plain.products
    assert heads.read_by_cores == 8 * plain.read_by_cores


def test_products_are_joined_by_descriptors_alone() -> None:
    """Without them, a schedule would have a second name for the same kernels."""
    choice = best("gated rows", M=4096, K=4096, N=14336)
    assert choice.schedule.joined
    space = Space(choice.scheduled()[0], Extents(), H200)
    near = [*space.near(choice.schedule)]
    assert any(not x.described for x in near)
    assert not [x for x in near if x.joined and not x.described]
    assert {"described": False, "joined": False} in space.searched_launches
