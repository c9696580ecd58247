"""Lookups in arrays that are computed: they go before what is computed element by element."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import blockbuster_fusion as bb
from blockbuster_fusion.torch.model import CompiledModel

ROWS, CLASSES = 37, 21
Model = Callable[[Tensor, Tensor], Tensor]


def clipped(places: Tensor) -> Tensor:
    return places.clamp(0, CLASSES - 1)


IN_ONE_PART: dict[str, Model] = {
    "cross entropy": F.cross_entropy,
    "sum of cross entropies": lambda x, t: F.cross_entropy(x, t, reduction="sum"),
    "cross entropies": lambda x, t: F.cross_entropy(x, t, reduction="none"),
    "gather of a softmax": lambda x, t: torch.gather(x.softmax(-1), 1, clipped(t)[:, None]),
    "gather of a norm": lambda x, t: torch.gather(
        F.layer_norm(x, x.shape[-1:]), 1, clipped(t)[:, None]
    ),
    "rows of exponentials": lambda x, t: torch.exp(x * 2 + 1)[clipped(t)] - 1,
    "squares of shared parts": lambda x, t: (lambda y: (y * y + y) * (y * y))(x + 1)[clipped(t)],
}
APART: dict[str, Model] = {
    "a sum along the other axis": lambda x, t: x.sum(0)[clipped(t)],
    "a scan": lambda x, t: torch.cummax(x, 0)[0][clipped(t)],
}


def compiled(model: Model) -> tuple[CompiledModel, Tensor, Tensor]:
    torch.manual_seed(0)
    x, places = torch.randn(ROWS, CLASSES), torch.randint(CLASSES, (ROWS,))
    places[3] = -100  # the place that losses ignore
    return bb.compile(model, x, places, library="never"), x, places


@pytest.mark.parametrize("name", [*IN_ONE_PART, *APART])
def test_results_are_those_of_eager(name: str) -> None:
    model = (IN_ONE_PART | APART)[name]
    made, x, places = compiled(model)
    exact = model(x.double(), places)
    error, usual = ((y.double() - exact).norm() for y in (made(x, places), model(x, places)))
    assert error <= 2 * usual + 2.0**-22 * exact.norm()


@pytest.mark.parametrize("name", IN_ONE_PART)
def test_tables_are_computed_where_they_are_read(name: str) -> None:
    made, *_ = compiled(IN_ONE_PART[name])
    (graph,) = made.graphs
    assert len(graph.fused) == 1
    assert not graph.halved


@pytest.mark.parametrize("name", APART)
def test_other_tables_are_stored(name: str) -> None:
    made, *_ = compiled(APART[name])
    (graph,) = made.graphs
    assert len(graph.fused) + len(graph.unfused) > 1
