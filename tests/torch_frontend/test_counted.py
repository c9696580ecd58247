"""The bytes that kernels of models are predicted to move, against counters compiled into them."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blockbuster_fusion.nest.analysis.traffic import traffic_of
from blockbuster_fusion.runtime.c.counted import counted
from blockbuster_fusion.torch.backend import backend
from blockbuster_fusion.torch.compiled_graph import CompiledGraph

Model = Callable[..., Tensor]


class Gated(nn.Module):
    """A norm and a gated perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.gate, self.up = nn.RMSNorm(24), nn.Linear(24, 50), nn.Linear(24, 50)
        self.down = nn.Linear(50, 24, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def patches(size: int) -> nn.Module:
    """A convolution of patches that do not overlap, as vision transformers begin with."""
    return nn.Sequential(nn.Conv2d(3, 20, size, stride=size), nn.Flatten(2))


MODELS: dict[str, tuple[Callable[[], Model], tuple[int, ...]]] = {
    "patches": (lambda: patches(4), (2, 3, 28, 36)),
    "patches and a norm": (lambda: nn.Sequential(patches(7), nn.LayerNorm(20)), (2, 3, 28, 35)),
    "pixels": (lambda: nn.Conv2d(5, 33, 1), (2, 5, 9, 11)),
    "gated perceptron": (Gated, (3, 37, 24)),
    "slices": (lambda: lambda x: torch.cat([x[:, 7:] * 2, -x[:, :7]], 1), (37, 41)),
    "group norm": (lambda: nn.GroupNorm(4, 20), (3, 20, 37)),
    "running sum": (lambda: partial(torch.cumsum, dim=1), (5, 300)),
}


@pytest.mark.parametrize("name", MODELS)
def test_predicted_bytes_are_those_that_kernels_count(name: str) -> None:
    torch.manual_seed(0)
    make, shape = MODELS[name]
    graphs: list[CompiledGraph] = []
    compiler = partial(backend, options={"library": "never", "threads": 1}, watcher=graphs.append)
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(make(), backend=compiler, dynamic=False)(torch.randn(shape))
    programs = [fused.executable for graph in graphs for fused in graph.fused]
    assert programs
    for program in programs:
        assert program.nest is not None
        lengths = [[axis.dim.axis.extent for axis in b.axes] for b in program.nest.inputs]
        _, counts, tiling = counted(program, *[np.ones(x, np.float32) for x in lengths])
        for kernel in program.nest.kernels:
            assert counts[kernel.name] == traffic_of(kernel, tiling)
