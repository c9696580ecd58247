"""A Llama of any shape: with weights that take no memory, to be planned, or to be run."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Norm(nn.Module):
    """RMSNorm, written out as models have it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x if x.dtype is torch.float64 else x.float()  # an exact model stays exact
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * wide.to(x.dtype)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class SwiGlu(nn.Module):
    """RMSNorm and a gated layer."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm = Norm(width)
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return self.down(functional.silu(self.gate(h)) * self.up(h))


class Layer(nn.Module):
    """Attention with grouped heads, and a gated layer; with a cache, of one word for each text."""

    def __init__(self, width: int, heads: int, groups: int, inner: int) -> None:
        super().__init__()
        self.heads, self.groups, self.head = heads, groups, width // heads
        self.norm, self.mlp = Norm(width), SwiGlu(width, inner)
        self.q, self.o = (nn.Linear(width, width, bias=False) for _ in range(2))
        narrow = groups * self.head
        self.k, self.v = (nn.Linear(width, narrow, bias=False) for _ in range(2))

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, cache: tuple[Tensor, Tensor] | None, at: Tensor
    ) -> Tensor:
        texts, words, _ = x.shape
        h = self.norm(x)
        q = self.q(h).view(texts, words, self.heads, self.head).transpose(1, 2)
        k = self.k(h).view(texts, words, self.groups, self.head).transpose(1, 2)
        v = self.v(h).view(texts, words, self.groups, self.head).transpose(1, 2)
        q, k, mask = rotated(q, cos, sin), rotated(k, cos, sin), None
        if cache is not None:
            cache[0].index_copy_(2, at, k)
            cache[1].index_copy_(2, at, v)
            k, v = cache
            mask = torch.arange(k.shape[2], device=x.device)[None] <= at[:, None]
        is_causal = cache is None
        y = functional.scaled_dot_product_attention(q, k, v, mask, 0.0, is_causal, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(texts, words, -1))
        return x + self.mlp(x)


class Llama(nn.Module):
    """Words, layers and a head."""

    def __init__(
        self, layers: int, width: int, heads: int, groups: int, inner: int, vocabulary: int
    ) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(vocabulary, width), Norm(width)
        self.layers = nn.ModuleList(Layer(width, heads, groups, inner) for _ in range(layers))
        self.output = nn.Linear(width, vocabulary, bias=False)
        self.register_buffer("frequencies", torch.ones(width // heads // 2))

    def forward(
        self, words: Tensor, at: Tensor, caches: list[tuple[Tensor, Tensor]] | None = None
    ) -> Tensor:
        angles = torch.outer(at.float(), self.frequencies.float())
        angles = torch.cat((angles, angles), -1)
        x = self.embed(words)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for number, layer in enumerate(self.layers):
            x = layer(x, cos, sin, None if caches is None else caches[number], at)
        return self.output(self.norm(x[:, -1:]))


LLAMA_1B = {"width": 2048, "heads": 32, "groups": 8, "inner": 8192, "vocabulary": 128256}
"""The shape of Llama 3.2 1B."""
SMALL = {"width": 768, "heads": 12, "groups": 12, "inner": 2048, "vocabulary": 32000}
"""A shape for a CPU."""
ROOM = 1024
"""The words of a cache."""
LLAMA_8B = {"width": 4096, "heads": 32, "groups": 8, "inner": 14336, "vocabulary": 128256}
"""The shape of Llama 3.1 8B."""


def hollow(model: nn.Module, dtype: torch.dtype = torch.bfloat16) -> nn.Module:
    """A model made on the meta device, with weights that are never written, so they take no memory.

    Linux gives memory to an array when it is written first.
    """
    return model.to(dtype).to_empty(device="cpu").eval().requires_grad_(False)


def runnable(layers: int, shape: dict[str, int], device: str) -> Llama:
    """A Llama with random weights, in bfloat16 on a GPU."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    return Llama(layers, **shape).to(device, dtype).eval().requires_grad_(False)


def call_of(model: Llama, shape: dict[str, int], rows: int, words: int) -> tuple[Any, ...]:
    """The inputs of a call: so many words of one text, or one of each of some texts if 0."""
    weight = model.output.weight
    device, made = weight.device, torch.Generator(weight.device).manual_seed(1)
    texts = (1, words) if words else (rows, 1)
    ids = torch.randint(0, shape["vocabulary"], texts, device=device, generator=made)
    if words:
        return ids, torch.arange(words, device=device)
    random = partial(torch.randn, device=device, dtype=weight.dtype, generator=made)
    caches = caches_of(len(model.layers), shape, rows, random)
    return ids, torch.tensor([ROOM * 2 // 3], device=device), caches


def caches_of(
    layers: int, shape: dict[str, int], rows: int, make: Callable[[tuple[int, ...]], Tensor]
) -> list[tuple[Tensor, Tensor]]:
    """The keys and values of each layer for some texts, whose addresses stay the same."""
    size = (rows, shape["groups"], ROOM, shape["width"] // shape["heads"])
    caches = [(make(size), make(size)) for _ in range(layers)]
    for cache in (x for pair in caches for x in pair):
        torch._dynamo.mark_static_address(cache)
    return caches


def llama(layers: int, rows: int, *, decodes: bool) -> tuple[nn.Module, Any]:
    """A Llama of 8B's shape, and a call: one word of each of some texts, or the words of one."""
    with torch.device("meta"):
        made = Llama(layers, **LLAMA_8B)
    model = hollow(made)
    if not decodes:
        return model, (torch.zeros(1, rows, dtype=torch.long), torch.arange(rows))
    caches = caches_of(layers, LLAMA_8B, rows, partial(torch.empty, dtype=torch.bfloat16))
    return model, (torch.zeros(rows, 1, dtype=torch.long), torch.tensor([ROOM // 2]), caches)
