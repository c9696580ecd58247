"""A layer of a Llama that is sharded over ranks, and its parts."""

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional as F

Cache = tuple[Tensor, Tensor] | None
"""Keys and values of words before, in a static cache."""


class Norm(nn.Module):
    """RMSNorm, written out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Attention(nn.Module):
    """Causal attention with grouped heads and rotary embeddings; its heads may be sharded."""

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.size = width // heads
        self.q, self.o = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(width, groups * self.size, bias=False) for _ in range(2))

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, cache: Cache = None, at: Tensor | None = None
    ) -> Tensor:
        shape = (*x.shape[:2], -1, self.size)
        q, k, v = (f(x).view(shape).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        if cache is None or at is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            k, v = (kept.index_copy_(2, at, new) for kept, new in zip(cache, (k, v), strict=True))
            mask = torch.arange(k.shape[2])[None] <= at[:, None]
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        return self.o(y.transpose(1, 2).flatten(2))


class Perceptron(nn.Module):
    """A gated perceptron."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    """Attention and a perceptron, each behind a norm and with a residual."""

    def __init__(self, width: int = 64, heads: int = 4, groups: int = 2, inner: int = 96) -> None:
        super().__init__()
        self.n1, self.n2 = Norm(width), Norm(width)
        self.attention = Attention(width, heads, groups)
        self.perceptron = Perceptron(width, inner)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, cache: Cache = None, at: Tensor | None = None
    ) -> Tensor:
        x = x + self.attention(self.n1(x), cos, sin, cache, at)
        return x + self.perceptron(self.n2(x))


class ThreeHeads(nn.Module):
    """Attention whose weights have an axis of heads, which may be sharded unevenly."""

    def __init__(self, width: int = 48, heads: int = 3) -> None:
        super().__init__()
        size = width // heads
        self.qkv = nn.ParameterList(torch.randn(heads, width, size) / 7 for _ in range(3))
        self.o = nn.Parameter(torch.randn(heads, size, width) / 7)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (torch.einsum("btc,hcd->bhtd", x, w) for w in self.qkv)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.einsum("bhtd,hdc->btc", y, self.o)


def shard(layer: nn.Module, mesh: DeviceMesh) -> None:
    """Shards heads and inner width; rows and norms are on every rank."""
    wide, long = ColwiseParallel(use_local_output=False), RowwiseParallel()
    plan: dict[str, ParallelStyle] = {f"attention.{name}": ColwiseParallel() for name in "qkv"}
    plan |= {"perceptron.gate": wide, "perceptron.up": wide}  # DTensors, which may be uneven
    plan |= {"attention.o": long, "perceptron.down": long}
    parallelize_module(layer, mesh, plan)


def shard_rows_too(layer: nn.Module, mesh: DeviceMesh) -> None:
    """Shards the sequence between products as well: norms are on their rows alone.

    The layer takes its own rows, and gives them.
    """
    whole = (Shard(1), *[None] * 4), (Replicate(), *[None] * 4)
    rows = RowwiseParallel(output_layouts=Shard(1))
    plan: dict[str, ParallelStyle] = {
        "n1": SequenceParallel(use_local_output=True),
        "n2": SequenceParallel(use_local_output=True),
        "attention": PrepareModuleInput(input_layouts=whole[0], desired_input_layouts=whole[1]),
        "perceptron": PrepareModuleInput(
            input_layouts=whole[0][:1], desired_input_layouts=whole[1][:1]
        ),
        **{f"attention.{name}": ColwiseParallel() for name in "qkv"},
        **{f"perceptron.{name}": ColwiseParallel() for name in ("gate", "up")},
        "attention.o": rows,
        "perceptron.down": rows,
    }
    parallelize_module(layer, mesh, plan)
