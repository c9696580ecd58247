"""Cases that work element by element, and lookups, scans and heads that choose."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from never_slower.case import Case, Family, by_name, chances, normal, places, uniform
from never_slower.modules import rotated, widened

SHAPE = {"cpu": (512, 2048), "cuda": (8192, 4096)}
SMALL = {"cpu": (256, 1024), "cuda": (256, 1024)}
BATCH = {"cpu": (8, 128, 12, 64), "cuda": (8, 2048, 32, 128)}
"""Batch, length, heads and width of a head."""
TABLE = {"cpu": (10_000, 256), "cuda": (128_256, 4096)}
LOOKED_UP = {"cpu": (8, 128), "cuda": (8, 1024)}
SCANS = {
    "cpu": ((2000, 100), (100, 10_000), (1, 1_000_000)),
    "cuda": ((50_000, 100), (1000, 10_000), (4, 1_000_000)),
}
PICKED = {"cpu": (20_000, 100), "cuda": (200_000, 100)}
CHOICES = {"cpu": ((256, 1000), (8, 32_000)), "cuda": ((8192, 1000), (64, 128_256))}


def long_chain(x: Tensor, y: Tensor) -> Tensor:
    z = x
    for number in range(6):
        z = z * y + x
        z = torch.where(z > number, z * 0.5, z - 0.25)
        z = z.clamp(-4.0, 4.0)
    return z


def transcendental(x: Tensor) -> Tensor:
    return torch.sin(x) + torch.exp(-x.abs()) + torch.log1p(x.square()) + torch.tanh(x)


def fan_out(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    z = x * y
    return z, torch.relu(z), torch.sigmoid(z) + y


def through_float32(x: Tensor, y: Tensor) -> Tensor:
    return (widened(x) * widened(y) + 1.0).to(x.dtype)


def halves(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return rotated(x.transpose(1, 2), cos, sin)


POINTWISE: dict[str, tuple[Callable[..., object], int]] = {
    "sum of two": (lambda x, y: x + y, 2),
    "relu": (lambda x: F.relu(x), 1),
    "gelu": (lambda x: F.gelu(x), 1),
    "silu": (lambda x: F.silu(x), 1),
    "tanh": (lambda x: torch.tanh(x), 1),
    "product and sum": (lambda x, y, z: x * y + z, 3),
    "gelu by tanh, times another": (lambda x, y: F.gelu(x, approximate="tanh") * y, 2),
    "long chain": (long_chain, 2),
    "transcendental functions": (transcendental, 1),
    "root, reciprocal, power": (lambda x: x.abs().add(1).sqrt().reciprocal().pow(3), 1),
    "three results": (fan_out, 2),
    "through float32": (through_float32, 2),
    "halves, silu gate": (halves, 1),
    "every other column": (lambda x: x[:, ::2] + x[:, 1::2], 1),
    "transpose": (lambda x: x.T.contiguous(), 1),
    "two side by side": (lambda x, y: torch.cat((x * 2, y + 1), -1), 2),
    "comparison": (lambda x, y: x > y, 2),
}


def pointwise(device: str) -> Iterator[Case]:
    family = Family("pointwise", device)
    shape = SHAPE[device]
    size, x = by_name(shape), normal(*shape)
    for word, (function, count) in POINTWISE.items():
        yield family.function(f"{word} {size}", function, *[x] * count)
    rows, width = shape
    yield family.function(f"row added {size}", lambda x, b: x + b, x, normal(width))
    yield family.function(
        f"row and column {size}",
        lambda x, a, b: (x - a[:, None]) * b,
        *(x, normal(rows), normal(width)),
    )
    yield family.function(
        f"outer sum {size}", lambda a, b: torch.tanh(a[:, None] + b), normal(rows), normal(width)
    )
    yield family.function(
        f"where by a mask {size}",
        lambda x, y, mask: torch.where(mask, x, y * 2),
        *(x, x, chances(*shape)),
    )
    yield family.function(
        f"sum with a transpose {by_name((width, width))}",
        lambda x, y: x + y.T,
        *(normal(width, width), normal(width, width)),
    )
    small = SMALL[device]
    yield family.function(f"relu {by_name(small)}", lambda x: F.relu(x), normal(*small))
    yield family.function(f"long chain {by_name(small)}", long_chain, *[normal(*small)] * 2)
    batch = BATCH[device]
    length, head = batch[1], batch[3]
    yield family.function(
        f"heads to the front {by_name(batch)}",
        lambda x: x.permute(0, 2, 1, 3).contiguous(),
        normal(*batch),
    )
    given = normal(*batch), uniform(length, head), uniform(length, head)
    yield family.function(f"rotary embedding {by_name(batch)}", rotary, *given)
    if device == "cuda":
        yield family.function(f"gelu {size}", lambda x: F.gelu(x), x, dtype=torch.float32)
        yield family.function(f"long chain {size}", long_chain, x, x, dtype=torch.float32)


class EmbeddedNorm(nn.Module):
    """Words, places and a norm, as BERT begins."""

    def __init__(self, rows: int, width: int, length: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(rows, width), nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: Tensor) -> Tensor:
        at = torch.arange(ids.shape[-1], device=ids.device)
        return self.norm(self.words(ids) + self.places(at))


class Bag(nn.Module):
    """The mean of the rows that each list of numbers names."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(rows, width)

    def forward(self, ids: Tensor) -> Tensor:
        return self.words(ids).mean(-2)


class Chooser(nn.Module):
    """The most likely word after each of some words, with one clear winner."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(rows, width)

    def forward(self, ids: Tensor) -> Tensor:
        return F.linear(self.words(ids), self.words.weight).argmax(-1)


def lookups(device: str) -> Iterator[Case]:
    family = Family("lookups", device)
    rows, width = TABLE[device]
    ids = places(rows, *LOOKED_UP[device])
    size = f"{by_name(TABLE[device])}, ids {by_name(LOOKED_UP[device])}"
    yield family.module(f"embedding {size}", partial(nn.Embedding, rows, width), ids)
    yield family.module(
        f"embedding, places, layer norm {size}",
        partial(EmbeddedNorm, rows, width, LOOKED_UP[device][1]),
        ids,
    )
    yield family.module(f"mean of embeddings {size}", partial(Bag, rows, width), ids)
    shape = PICKED[device]
    yield family.function(
        f"one of each row {by_name(shape)}",
        lambda x, at: x.gather(1, at[:, None]).squeeze(1),
        *(normal(*shape), places(shape[1], shape[0])),
    )
    yield family.function(
        f"rows in another order {by_name(shape)}",
        lambda x, at: x.index_select(0, at) * 2,
        *(normal(*shape), places(shape[0], shape[0])),
    )


def scans_and_choices(device: str) -> Iterator[Case]:
    family = Family("scans and choices", device)
    for shape in SCANS[device]:
        yield family.function(
            f"cumsum of rows {by_name(shape)}", lambda x: x.cumsum(-1), uniform(*shape)
        )
    shape = SCANS[device][1]
    yield family.function(
        f"cumsum of columns {by_name(shape)}", lambda x: x.cumsum(0), uniform(*shape)
    )
    for shape in CHOICES[device]:
        x = normal(*shape)
        yield family.function(
            f"argmax of rows {by_name(shape)}", lambda x: x.argmax(-1), x, dtype=torch.float32
        )
        yield family.function(
            f"five largest of rows {by_name(shape)}", lambda x: x.topk(5).values, x
        )
    yield family.function(
        f"probability of the likeliest {by_name(shape)}", lambda x: x.softmax(-1).amax(-1), x
    )
    rows, width = TABLE[device]
    for words in (1, 16):
        yield family.module(
            f"head, argmax {by_name((words, width, rows))}",
            partial(Chooser, rows, width),
            places(rows, words),
        )
    yield family.function(
        f"head, five largest {by_name((16, width, rows))}",
        lambda x, w: F.linear(x, w).topk(5).values,
        *(normal(16, width), normal(rows, width, scale=width**-0.5)),
    )
