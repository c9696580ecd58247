"""Cases of a CPU in realistic form: the paper's programs, attention, operators, real models."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from never_slower import models, modules, networks
from never_slower.case import Case, Family, by_name, chances, normal, places, uniform
from never_slower.networks import causal, distances, masked, plain

HEADS = (1, 8, 1024, 64)
"""Batch, heads, length and width of a head."""
SHAPE = (512, 2048)
WIDTH, INNER, ATTENTION_HEADS = 768, 3072, 12
"""Those of BERT-base, GPT-2 and ViT-B."""


class NormLinear(nn.Module):
    """The second program of the paper."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, out)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(x))


def programs() -> Iterator[Case]:
    """The paper's three programs."""
    family = Family("the paper's programs", "cpu")
    for shape in ((1, 8, 512, 64), (1, 8, 2048, 64), (1, 8, 2048, 128)):
        yield family.function(f"attention {by_name(shape)}", plain, *[normal(*shape)] * 3)
    for rows in (16, 512):
        size = by_name((rows, 1024, 4096))
        module = partial(NormLinear, 1024, 4096)
        yield family.module(f"layer norm, linear {size}", module, normal(rows, 1024))
    for rows in (1, 16, 128, 512):
        size = by_name((rows, 1024, 2816))
        module = partial(modules.NormSwiGLU, 1024, 2816)
        yield family.module(f"norm, SwiGLU, residual {size}", module, normal(rows, 1024))


def window_at_its_best(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    behind = distances(q, k)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=(behind >= 0) & (behind < 64))


def alibi_at_its_best(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
    behind = distances(q, k)
    bias = -slopes.abs()[:, None, None] * behind
    bias = bias.masked_fill(behind < 0, -torch.inf)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def padded(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
    """Keys from the length of a text on are hidden."""
    seen = torch.arange(k.shape[-2]) < 256 + lengths[:, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None, None, :])


def attentions() -> Iterator[Case]:
    """Ten kinds of masks and scores."""
    family = Family("kinds of attention", "cpu")
    _, heads, length, width = HEADS
    size, given = by_name(HEADS), [normal(*HEADS)] * 3
    few = [normal(1, heads // 4, length, width)] * 2
    made = family.function
    yield made(f"attention {size}", plain, *given)
    yield made(f"causal attention {size}", causal, *given)
    yield made(f"attention, mask {size}", masked, *given, chances(length, length))
    yield made(f"attention, float bias {size}", masked, *given, normal(heads, length, length))
    texts = [normal(2, heads // 2, length, width)] * 3
    yield made(f"attention, padded texts {size}", padded, *texts, places(512, 2))
    yield made(f"attention, grouped heads {size}", networks.grouped, given[0], *few)
    window = networks.sliding_window
    yield made(f"attention, sliding window {size}", window, *given, best=window_at_its_best)
    slopes = normal(heads)
    yield made(f"attention, alibi {size}", networks.alibi, *given, slopes, best=alibi_at_its_best)
    yield made(f"attention, capped {size}", networks.capped, *given)
    yield made(f"attention, relu {size}", networks.relu_attention, *given)


POINTWISE: dict[str, tuple[Callable[..., Tensor], int]] = {
    "sum of two": (torch.add, 2),
    "a x + y": (lambda x, y: 0.5 * x + y, 2),
    "relu": (F.relu, 1),
    "gelu": (F.gelu, 1),
    "gelu by tanh": (partial(F.gelu, approximate="tanh"), 1),
    "silu": (F.silu, 1),
    "sigmoid": (torch.sigmoid, 1),
    "tanh": (torch.tanh, 1),
    "exp": (torch.exp, 1),
    "softplus": (F.softplus, 1),
    "erf": (torch.erf, 1),
    "sin": (torch.sin, 1),
    "where": (lambda x, y: torch.where(x > 0, x, y), 2),
    "clamp": (partial(torch.clamp, min=-1.0, max=1.0), 1),
    "sum with its transpose": (lambda x: x[:, :512] + x[:, :512].t(), 1),
}
ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": partial(torch.softmax, dim=-1),
    "log softmax": partial(torch.log_softmax, dim=-1),
    "sum of rows": partial(torch.sum, dim=-1),
    "mean of columns": partial(torch.mean, dim=0),
    "maximum of rows": partial(torch.amax, dim=-1),
    "sum of all": torch.sum,
    "variance of rows": partial(torch.var, dim=-1),
}


def operators() -> Iterator[Case]:
    """Thirty single operators."""
    family = Family("single operators", "cpu")
    size, x = by_name(SHAPE), normal(*SHAPE)
    rows, width = SHAPE
    for name, (function, count) in POINTWISE.items():
        yield family.function(f"{name} {size}", function, *[x] * count)
    yield family.function(f"log {size}", torch.log, uniform(*SHAPE))
    for name, of_rows in ROWS.items():
        yield family.function(f"{name} {size}", of_rows, x)
    yield family.module(f"layer norm {size}", partial(nn.LayerNorm, width), x)
    yield family.module(f"rms norm {size}", partial(nn.RMSNorm, width), x)
    yield family.function(f"mse {size}", F.mse_loss, x, x)
    yield family.function(f"cross entropy {size}", F.cross_entropy, x, places(width, rows))
    yield family.function("product 512x512x512", torch.matmul, *[normal(512, 512)] * 2)
    for few in (1, 16):
        linear = partial(nn.Linear, 2048, 2048)
        yield family.module(f"linear {few}x2048x2048", linear, normal(few, 2048))


def real_models() -> Iterator[Case]:
    """Models at their real widths, with fewer layers and random weights."""
    family = Family("models at real widths", "cpu")
    shape = (2, WIDTH, ATTENTION_HEADS)
    bert, gpt = partial(models.Bert, *shape, 30_522, 512), partial(models.GPT, *shape, 50_257, 1024)
    yield family.module("BERT-base, 128 words", bert, places(30_522, 1, 128))
    yield family.module("GPT-2, 128 words", gpt, places(50_257, 1, 128))
    yield family.module(
        "ViT-B, an image", partial(models.ViT, *shape, 224, 16), normal(1, 3, 224, 224)
    )


def showcase() -> list[Case]:
    """All of them."""
    return [*programs(), *attentions(), *operators(), *real_models()]
