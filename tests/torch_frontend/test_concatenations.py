"""Concatenations of many pieces: few kernels on a GPU, none of them large."""

from collections.abc import Callable
from functools import partial
from unittest import mock

import pytest
import torch

from blockbuster_fusion.nest.passes.merge_kernels import MOST_STATEMENTS
from blockbuster_fusion.torch.backend import backend
from blockbuster_fusion.torch.compile_parts import PartCompiler
from blockbuster_fusion.torch.compiled_graph import CompiledGraph
from helpers.effort import part

pytest.importorskip("triton")

from blockbuster_fusion.runtime.triton import device as triton_device

PIECES = 80


def joined(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x[:, n : n + 1] * (n + 1) for n in range(x.shape[1])], 1).sin()


def nested(x: torch.Tensor) -> torch.Tensor:
    made = x[:, :1]
    for n in range(1, x.shape[1]):
        made = torch.cat((made, x[:, n : n + 1] + n), 1)
    return made * 2


def planned(function: Callable[..., torch.Tensor], x: torch.Tensor) -> CompiledGraph:
    """The plan for a GPU; nothing is launched."""
    graphs: list[CompiledGraph] = []
    options = {"target": "cuda", "strict": True}
    watched = partial(backend, options=options, watcher=graphs.append)
    stop = RuntimeError("nothing is launched")
    with (
        mock.patch.object(triton_device, "can_launch", return_value=True),
        mock.patch.object(PartCompiler, "try_out"),
        mock.patch("blockbuster_fusion.torch.plan.plan.ModelPlan.__call__", side_effect=stop),
        torch.no_grad(),
        pytest.raises(RuntimeError, match="nothing is launched"),
    ):
        torch.compile(function, backend=watched)(x)
    return graphs[0]


@pytest.mark.parametrize("function", [joined, nested])
def test_kernels_are_few_and_small(function: Callable[..., torch.Tensor]) -> None:
    """There was a kernel for each piece, or one that chose from all of them."""
    nests = [part.executable.nest for part in planned(function, torch.randn(8, PIECES)).fused]
    kernels = [kernel for nest in nests if nest is not None for kernel in nest.kernels]
    assert len(kernels) <= 6
    assert max(sum(1 for _ in kernel.statements) for kernel in kernels) <= MOST_STATEMENTS


@pytest.mark.parametrize("function", [joined, nested])
def test_pieces_are_right(function: Callable[..., torch.Tensor]) -> None:
    x = torch.randn(8, part(PIECES))
    with torch.no_grad():
        made = torch.compile(function, backend="blockbuster", options={"strict": True})(x)
        torch.testing.assert_close(made, function(x))
