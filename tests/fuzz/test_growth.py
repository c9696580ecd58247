"""Programs that grow while they are fused: scales and shifts that pass contractions."""

from itertools import pairwise

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.array.arrays import Array
from helpers.growth import allowed, allowed_steps, largest, passages, size


def in_a_row(count: int, readers: int, *, shifts: bool) -> bb.Graph:
    """So many shifts or scales one after the other, whose result so many matmuls read."""

    def program(X: Array, *others: Array) -> dict[str, Array]:
        for c in others[:count]:
            X = X + c[:, None] if shifts else X * c[:, None]
        return {f"O{i}": X @ Y for i, Y in enumerate(others[count:])}

    specs = ["M K", *["M"] * count, *(f"K N{i}" for i in range(readers))]
    return bb.lower(bb.trace(program, *specs))


def squared_products(stages: int) -> bb.Graph:
    """(X·Y)ᵀ·(X·Z), again and again, of a scaled X: there are two ways through each stage."""

    def program(X: Array, c: Array, *others: Array) -> Array:
        X = X * c[:, None, None]
        for Y, Z in zip(others[::2], others[1::2], strict=True):
            X = (X @ Y).swapaxes(-1, -2) @ (X @ Z)
        return X

    columns = ["K", *(f"R{i}" for i in range(stages))]
    weights = (f"{k} {new}" for k, r in pairwise(columns) for new in (f"L{r}", r))
    return bb.lower(bb.trace(program, "B M K", "B", *weights))


def assert_bounded(graph: bb.Graph) -> bb.Fusion:
    for unit in ((), {d.name for d in graph.dims if d.packed and not d.is_free}):
        fusion = bb.fuse(graph, "extended", unit=unit)
        assert largest(fusion) <= allowed(fusion)
        assert len(fusion.trace) <= allowed_steps(fusion)
    return fusion


@pytest.mark.parametrize("shifts", [False, True], ids=["scales", "shifts"])
@pytest.mark.parametrize(("count", "readers"), [(1, 1), (3, 2), (2, 8), (8, 2), (16, 16)])
def test_each_of_a_row_passes_each_reader(count: int, readers: int, shifts: bool) -> None:
    graph = in_a_row(count, readers, shifts=shifts)
    assert passages(graph) == count * readers
    assert_bounded(graph)


def test_the_passages_are_needed_in_the_bound() -> None:
    """Twice the initial size is not enough; the paper's rules move any shift."""
    fusion = bb.fuse(in_a_row(16, 16, shifts=True), "paper")
    assert largest(fusion) > 3 * size(fusion.initial)
    assert len(fusion.trace) > 5 * size(fusion.initial)


@pytest.mark.parametrize("stages", range(1, 7))
def test_every_way_counts(stages: int) -> None:
    """A scale goes both ways, and comes out twice: the ways double from stage to stage."""
    graph = squared_products(stages)
    assert passages(graph) == 4 * (2**stages - 1)
    fusion = assert_bounded(graph)
    swaps = [step for step in fusion.trace if step.rule == "swap_scale_dot"]
    assert len(swaps) == passages(graph)
