"""Drafts of graphs in which slices have moved: nodes that stay, and graphs that are not changed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.slices import draft, move_slices
from helpers.offline import captured


def rotated(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def moved(function: Callable[..., Any], *inputs: Tensor) -> tuple[list[str], Analysis]:
    """The names of the operators of a graph, and its analysis after slices have moved."""
    (graph,) = captured(function, *inputs)
    analysis = Analysis(graph.module, frozenset())
    names = [node.name for node in analysis.nodes]
    return names, move_slices(analysis, splits=False)


def test_nodes_that_stay_keep_their_names_and_readers() -> None:
    def model(x: Tensor, y: Tensor) -> Tensor:
        h = (x @ y).relu()
        return rotated(h.exp()) * 2 + (h * 3)[:, :4].sum()

    names, found = moved(model, torch.randn(5, 6), torch.randn(6, 8))
    graph = found.module.graph
    graph.lint()
    left = [node.name for node in graph.nodes]
    assert [name for name in names if name in left] == [n for n in left if n in names]
    assert "mm" in left
    for node in graph.nodes:
        assert [*node.users] == sorted(node.users), "readers are in the order of the graph"


def test_a_graph_stays_as_it_was_if_its_new_nodes_cannot_be_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no form")

    (graph,) = captured(lambda x: rotated(x.exp()) * 2, torch.randn(5, 8))
    analysis, before = Analysis(graph.module, frozenset()), str(graph.module.graph)
    monkeypatch.setattr(draft, "fake_result", broken)
    with pytest.raises(RuntimeError, match="no form"):
        move_slices(analysis, splits=True)
    assert str(graph.module.graph) == before
    monkeypatch.undo()
    assert move_slices(analysis, splits=True) is not analysis
    assert str(graph.module.graph) != before
