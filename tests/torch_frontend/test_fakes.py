"""Fake results of a known form are as PyTorch makes them: shape, strides, dtype and memory."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from blockbuster_fusion.torch.capture.fakes import fake_result
from blockbuster_fusion.torch.capture.nodes import storages_of

aten = torch.ops.aten
CALLS: dict[str, tuple[Callable[..., Any], Callable[[Node, Node], tuple[Any, ...]]]] = {
    "sum": (aten.add.Tensor, lambda x, y: (x, y)),
    "slice": (aten.slice.Tensor, lambda x, y: (x, 1, 2, 5)),
    "select": (aten.select.int, lambda x, y: (y, 0, 3)),
    "permuted": (aten.permute.default, lambda x, y: (y, [1, 0])),
    "reshaped": (torch.Tensor.reshape, lambda x, y: (x, [14, 3])),
    "reshaped slice": (torch.Tensor.reshape, lambda x, y: (y, [42])),
    "cast": (aten._to_copy.default, lambda x, y: (x,)),
    "joined": (aten.cat.default, lambda x, y: ([x, y], 1)),
    "constant": (aten.full.default, lambda x, y: ([3, 5], 1.0)),
}


def node(graph: Graph, value: torch.Tensor) -> Node:
    made = graph.placeholder("x")
    made.meta["val"] = value
    return made


@pytest.mark.parametrize("name", CALLS)
def test_a_known_form_is_made_as_pytorch_makes_it(name: str) -> None:
    mode, graph = FakeTensorMode(shape_env=ShapeEnv()), Graph()
    target, arguments = CALLS[name]
    options = {"dtype": torch.bfloat16} if name == "cast" else {}
    made = []
    for _ in range(2):  # the second one is made by its form
        with mode:
            x, y = torch.empty(7, 6), torch.empty(7, 12)[:, 1:7]
        given = [node(graph, x), node(graph, y)]
        found = fake_result(target, arguments(given[0], given[1]), given[0], options)
        memory = found.untyped_storage()._cdata
        shown = [n for n, own in enumerate(given) if memory in storages_of(own)]
        form = (found.shape, found.stride(), found.storage_offset(), found.dtype, found.device)
        assert found.fake_mode is mode
        made.append((form, shown))
    assert made[0] == made[1]


def test_results_of_one_form_have_memory_of_their_own() -> None:
    mode, graph = FakeTensorMode(shape_env=ShapeEnv()), Graph()
    with mode:
        x = node(graph, torch.empty(7, 6))
    made = [fake_result(aten.add.Tensor, (x, x), x) for _ in range(3)]
    assert len({y.untyped_storage()._cdata for y in made}) == 3


def test_numbers_and_strides_tell_calls_apart() -> None:
    mode, graph = FakeTensorMode(shape_env=ShapeEnv()), Graph()
    with mode:
        x, y = node(graph, torch.empty(6, 6)), node(graph, torch.empty(6, 6).t())
    sums = [fake_result(aten.add.Tensor, (n, 1), n).stride() for n in (x, y)]
    assert sums == [(6, 1), (1, 6)]
    ends = [fake_result(aten.slice.Tensor, (x, 0, 0, n), x).shape[0] for n in (2, 3)]
    assert ends == [2, 3]
