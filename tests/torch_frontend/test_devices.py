"""The device that a part of a model runs on."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph

from blockbuster_fusion.torch.options import device_of


def part_of(*devices: tuple[str, tuple[int, ...]]) -> list[torch.fx.Node]:
    """Nodes whose results have these devices and shapes."""
    graph, made = Graph(), []
    with FakeTensorMode():
        for device, shape in devices:
            node = graph.call_function(torch.ops.aten.relu.default)
            node.meta["val"] = torch.empty(shape, device=device)
            made.append(node)
    return made


@pytest.mark.parametrize(
    ("devices", "wanted"),
    [
        ([("cuda", ())], "cuda"),
        ([("cuda", ()), ("cuda", (3,))], "cuda"),
        ([("cpu", ()), ("cuda", ())], "cuda"),
        ([("cpu", (3,))], "cpu"),
        ([("cpu", ())], "cpu"),
    ],
)
def test_a_part_whose_results_are_numbers_runs_where_they_are(
    devices: list[tuple[str, tuple[int, ...]]], wanted: str
) -> None:
    """A loss is one number on the GPU: a part that makes only that was compiled for the CPU."""
    assert device_of(part_of(*devices)).type == wanted
