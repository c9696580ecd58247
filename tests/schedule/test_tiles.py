"""The tiles, unit axes and snapshot that programs get by default."""

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.compiler import with_known_sizes
from blockbuster_fusion.schedule.defaults import (
    default_tiles,
    has_few_rows,
    peak_local,
    unit_axes,
)
from blockbuster_fusion.schedule.target_model import TARGET_MODELS


def fixed(name: str, **sizes: int) -> bb.Graph:
    return with_known_sizes(bb.lower(bb.examples.find(name)), sizes)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("name", bb.examples.EXAMPLES)
def test_what_lives_at_a_time_fits(name: str, target: str) -> None:
    for graph in bb.fuse(bb.examples.find(name)).snapshots:
        tiles = default_tiles(graph, target)
        assert set(tiles) == {d for d in graph.dims if d.packed and not d.is_free and not d.unit}
        assert all(16 <= tile <= 256 and tile & (tile - 1) == 0 for tile in tiles.values())
        smallest = all(tile == 16 for tile in tiles.values())
        assert peak_local(graph, tiles) <= TARGET_MODELS[target].local or smallest


def test_short_axes_have_one_block() -> None:
    assert unit_axes(fixed("attention", D=64, L=80), "cpu") == ("D", "L")
    assert unit_axes(fixed("attention", D=64, L=80), "cuda") == ("D",)  # 80 is no power of two
    assert unit_axes(fixed("attention", D=64, N=512), "cpu") == ("D",)  # beside the rows, D is
    assert unit_axes(fixed("attention", D=512, L=64), "cuda") == ("L",)
    assert unit_axes(fixed("attention"), "cpu") == ()
    assert unit_axes(fixed("attention", M=64), "cpu") == ()  # rows run in parallel


def test_rows_that_a_gpu_reduces_have_one_block() -> None:
    """Up to some length: longer ones, products and columns are cut."""
    assert unit_axes(fixed("softmax", N=1000), "cuda") == ("N",)
    assert unit_axes(fixed("softmax", N=16_385), "cuda") == ()
    assert unit_axes(fixed("layernorm-matmul", K=1024), "cuda") == ()
    columns = bb.trace(lambda X: {"Y": X - bb.ops.max(X, axis=0)}, X="N M")
    assert unit_axes(with_known_sizes(bb.lower(columns), {"N": 1000}), "cuda") == ()
    added = bb.trace(lambda X: {"Y": X + 1.0}, X="M N")
    assert unit_axes(with_known_sizes(bb.lower(added), {"N": 1000}), "cuda") == ()


def test_what_is_given_stays() -> None:
    graph = bb.fuse(bb.examples.attention()).snapshots[-1]
    (rows,) = (d for d in graph.dims if d.name == "M" and not d.is_free)
    assert default_tiles(graph, "cpu", {rows: 7})[rows] == 7


def test_tiles_are_no_longer_than_they_need_to_be() -> None:
    graph = fixed("matmul-relu", K=20)
    tiles = {dim.name: tile for dim, tile in default_tiles(graph, "cpu").items()}
    assert tiles == {"M": 256, "N": 128, "K": 32}
    assert default_tiles(fixed("matmul-relu", K=0), "cpu")


def test_few_rows_have_long_tiles() -> None:
    """Weights are read in place, so local memory does not limit them; computed ones are tiles."""
    kernel = bb.compile(
        bb.examples.rmsnorm_swiglu(), sizes={"M": 3, "D": 4096, "K": 9000, "N": 500}
    )
    tiles = {dim.name: tile for dim, tile in kernel.tiles.items()}
    assert tiles == {"M": 4, "K": 1024, "N": 512}
    assert {d.name for d in kernel.graph.dims if d.unit} == {"D"}
    scaled = bb.trace(lambda X, W, S: X @ (W * S).T, X="M K", W="N K", S="N K")
    graph = with_known_sizes(bb.lower(scaled), {"M": 3, "K": 4096, "N": 9000})
    assert not has_few_rows(bb.fuse(graph).snapshots[-1], "cpu")
    assert not has_few_rows(fixed("matmul-relu", M=17), "cpu")
    assert not has_few_rows(fixed("matmul-relu", M=16), "cuda")


def test_columns_of_a_product_are_cut_on_a_gpu() -> None:
    """With few rows, one block of 64 columns would leave most processors idle."""
    product = bb.lower(bb.trace(lambda X, W: X @ W.T, "M K", "N K"))
    sizes = {"M": 16, "K": 2048, "N": 64}
    assert unit_axes(with_known_sizes(product, sizes), "cuda") == ()
    assert unit_axes(with_known_sizes(product, sizes), "cpu") == ("N",)
    assert unit_axes(with_known_sizes(product, {**sizes, "K": 64}), "cuda") == ("K",)


def test_too_many_unit_axes_are_given_up() -> None:
    kernel = bb.compile(bb.examples.rmsnorm_swiglu(), sizes={"D": 256, "K": 256}, target="cpu")
    assert peak_local(kernel.graph, kernel.tiles) <= TARGET_MODELS["cpu"].local
