"""The bytes that several views show of one array, against the elements themselves."""

import random

import pytest
import torch
from torch.fx import Graph, Node

from blockbuster_fusion.torch.capture.describe import described
from blockbuster_fusion.torch.capture.sizes import captured_length
from blockbuster_fusion.torch.capture.touched import bytes_of, touched
from blockbuster_fusion.torch.options import Options
from blockbuster_fusion.torch.rivals.least import boundary_bytes
from helpers.effort import part
from helpers.offline import captured

aten = torch.ops.aten


def node(graph: Graph, value: torch.Tensor) -> Node:
    made = graph.placeholder("x")
    made.meta["val"] = value
    return made


def length(size: object) -> int:
    return int(str(size))


def counted(base: torch.Tensor, *views: torch.Tensor) -> int:
    graph = Graph()
    first = node(graph, base)
    return touched(first, [first if x is base else node(graph, x) for x in views], length)


def elements(*views: torch.Tensor) -> int:
    """The bytes of the elements of views of an array whose elements are all different."""
    shown = {int(n) for x in views for n in x.flatten()}
    return len(shown) * views[0].dtype.itemsize


def test_halves_are_the_whole() -> None:
    x = torch.arange(8 * 16).reshape(8, 16)
    assert counted(x, x[:, :8], x[:, 8:]) == 8 * 16 * 8
    assert counted(x, x[:, :8], x[:, :8].t()) == 8 * 8 * 8, "the same half, in another order"
    assert counted(x, x[:, :10], x[:, 6:]) == 8 * 16 * 8, "elements in both count once"
    assert counted(x, x[:, :6], x[:, 10:]) == 8 * 12 * 8
    assert counted(x, x[:, ::2], x[:, 1::2]) == 8 * 16 * 8
    assert counted(x, x[:2], x[:2, :4], x[5:6]) == 3 * 16 * 8
    assert counted(x, x[:1].expand(4, 16), x[1:2]) == 2 * 16 * 8, "a broadcast row is read once"
    assert counted(x, x, x[:2]) == 8 * 16 * 8


def test_heads_of_one_projection() -> None:
    """Queries, keys and values are slices of one product, seen by heads."""
    x = torch.arange(4 * 6 * 8).reshape(4, 48)
    q, k, v = (part.view(4, 2, 8).transpose(0, 1) for part in x.split(16, 1))
    assert counted(x, q, k, v) == 4 * 48 * 8
    assert counted(x, q[..., :4], q[..., 4:], k) == 4 * 32 * 8
    assert counted(x, q[..., :4], k[..., :4]) == 4 * 2 * 2 * 4 * 8


def test_views_that_cannot_be_compared_count_by_the_largest() -> None:
    x = torch.arange(24).reshape(4, 6)
    assert counted(x, x[:2].clone(), x[2:3]) == 2 * 6 * 8, "a copy lies elsewhere"
    assert counted(x, x.as_strided((3,), (3,)), x.as_strided((3,), (2,))) == 3 * 8
    several = [x[i : i + 1] for i in range(3)] * 4
    assert counted(x, *several) == 6 * 8, "too many views"


@pytest.mark.parametrize("seed", range(part(400)))
def test_random_views(seed: int) -> None:
    """The count is never above the elements, and that of plain slices is exact."""
    rng = random.Random(seed)
    shape = [rng.choice((1, 2, 3, 4, 6)) for _ in range(rng.randint(1, 3))]
    x = torch.arange(torch.Size(shape).numel()).reshape(shape)
    views = []
    for _ in range(rng.randint(1, 4)):
        view = x
        for dim, size in enumerate(shape):
            start = rng.randrange(size)
            view = view.narrow(dim, start, rng.randint(1, size - start))
        views.append(view.permute(rng.sample(range(len(shape)), len(shape))))
    assert counted(x, *views) == elements(*views)
    stepped = [view[:: rng.choice((1, 2, 3))] for view in views]
    graph = Graph()
    most = max(bytes_of(node(graph, view), length) for view in stepped)
    assert most <= counted(x, *stepped) <= elements(*stepped)


def test_an_operator_that_reads_both_halves_reads_the_whole() -> None:
    def gated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = x @ y
        return h[:, :6] * h[:, 6:]

    (graph,) = captured(gated, torch.ones(4, 8), torch.ones(8, 12))
    analysis = graph.parts(Options(target="interpret")).analysis
    product, gate = described(analysis, captured_length(analysis))
    assert [(r.array, r.bytes) for r in gate.reads] == [(product.name, 4 * 12 * 4)]
    outside = boundary_bytes(analysis, [analysis.operators[1]], captured_length(analysis))
    assert outside == 4 * 12 * 4 + 4 * 6 * 4
