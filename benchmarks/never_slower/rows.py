"""Cases of reductions, norms, softmax and losses."""

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from never_slower.case import Case, Family, by_name, chances, normal, places, uniform
from never_slower.modules import RMSNorm

ELEMENTS = {"cpu": (3_000_000, 1_000_000, 10_000_000), "cuda": (100_000, 16_000_000, 256_000_000)}
"""The second number is that of the other reductions of all elements, too."""
ROWS = {
    "cpu": ((10_000, 100), (1000, 1000), (100, 10_000), (10, 100_000), (2, 1_000_000)),
    "cuda": ((200_000, 100), (20_000, 1000), (2000, 10_000), (200, 100_000), (20, 1_000_000)),
}
"""Numbers of rows and their lengths."""
COLUMNS = {
    "cpu": ((10_000, 100), (1000, 1000), (100, 10_000)),
    "cuda": ((100_000, 256), (4096, 4096), (256, 100_000)),
}
NORMS = {
    "cpu": ((2000, 100), (512, 768), (256, 1024), (64, 4096), (333, 1023), (8, 16384)),
    "cuda": ((50_000, 100), (8192, 768), (4096, 4096), (1024, 16384), (3333, 1023), (1, 4096)),
}
IMAGES = {"cpu": (4, 64, 56, 56), "cuda": (16, 256, 56, 56)}
SOFTMAX = {
    "cpu": ((10_000, 10), (2000, 100), (300, 1000), (64, 4096), (8, 32_000), (2, 128_256)),
    "cuda": (
        (100_000, 10), (50_000, 100), (16_384, 1000), (8192, 4096), (512, 32_000), (64, 128_256),
    ),
}  # fmt: skip
CLASSES = {
    "cpu": ((256, 1000), (16, 32_000)),
    "cuda": ((8192, 1000), (2048, 32_000)),
}
PAIRS = {"cpu": (500, 1000), "cuda": (8192, 4096)}


def reductions(device: str) -> Iterator[Case]:
    family = Family("reductions", device)
    for count in ELEMENTS[device]:
        name = f"sum of all {count}"
        yield family.function(name, lambda x: x.sum(), uniform(count))
    count = ELEMENTS[device][1]
    yield family.function(f"maximum of all {count}", lambda x: x.amax(), normal(count))
    yield family.function(
        f"mean of squares of all {count}", lambda x: x.square().mean(), normal(count)
    )
    for shape in ROWS[device]:
        yield family.function(f"sum of rows {by_name(shape)}", lambda x: x.sum(-1), uniform(*shape))
    shape = ROWS[device][1]
    for word, function in (
        ("mean", lambda x: x.mean(-1)),
        ("maximum", lambda x: x.amax(-1)),
        ("variance", lambda x: x.var(-1)),
        ("length", lambda x: torch.linalg.vector_norm(x, dim=-1)),
        ("logsumexp", lambda x: x.logsumexp(-1)),
        ("mean and variance", lambda x: (x.mean(-1), x.var(-1, correction=0))),
    ):
        yield family.function(f"{word} of rows {by_name(shape)}", function, uniform(*shape))
    for shape in COLUMNS[device]:
        yield family.function(
            f"sum of columns {by_name(shape)}", lambda x: x.sum(0), uniform(*shape)
        )
    shape = COLUMNS[device][1]
    yield family.function(
        f"maximum of columns {by_name(shape)}", lambda x: x.amax(0), normal(*shape)
    )
    shape = IMAGES[device]
    yield family.function(
        f"mean of images {by_name(shape)}", lambda x: x.mean((2, 3)), uniform(*shape)
    )
    yield family.function(f"sum of channels {by_name(shape)}", lambda x: x.sum(1), uniform(*shape))
    if device == "cuda":
        shape = ROWS[device][1]
        yield family.function(
            f"sum of rows {by_name(shape)}",
            lambda x: x.sum(-1),
            uniform(*shape),
            dtype=torch.float32,
        )


def residual_norm(x: Tensor, r: Tensor, g: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    y = x + r
    return y, F.layer_norm(y, g.shape, g, b)


class NormLinear(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(x))


def norms(device: str) -> Iterator[Case]:
    family = Family("norms", device)
    for shape in NORMS[device]:
        size, width = by_name(shape), shape[-1]
        yield family.module(f"layer norm {size}", partial(nn.LayerNorm, width), normal(*shape))
        yield family.module(f"rms norm {size}", partial(nn.RMSNorm, width), normal(*shape))
    shape = NORMS[device][2]
    size, width = by_name(shape), shape[-1]
    yield family.module(f"rms norm written out {size}", partial(RMSNorm, width), normal(*shape))
    given = normal(*shape), normal(*shape), normal(width), normal(width)
    yield family.function(f"residual, layer norm {size}", residual_norm, *given)
    yield family.function(
        f"layer norm without weights {size}",
        lambda x: F.layer_norm(x, x.shape[-1:]),
        normal(*shape),
    )
    yield family.module(f"layer norm, linear {size}", partial(NormLinear, width), normal(*shape))
    yield family.function(
        f"rows of length 1 {size}", lambda x: F.normalize(x, dim=-1), normal(*shape)
    )
    shape = IMAGES[device]
    size, channels = by_name(shape), shape[1]
    x = normal(*shape)
    yield family.module(f"group norm {size}", partial(nn.GroupNorm, 8, channels), x)
    yield family.module(
        f"group norm, silu {size}",
        lambda: nn.Sequential(nn.GroupNorm(8, channels), nn.SiLU()),
        x,
    )
    yield family.module(f"batch norm {size}", partial(nn.BatchNorm2d, channels), x)
    yield family.module(
        f"batch norm, relu {size}", lambda: nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU()), x
    )
    if device == "cuda":
        make, given = partial(nn.LayerNorm, 4096), normal(4096, 4096)
        yield family.module("layer norm 4096x4096", make, given, dtype=torch.float32)


def softmaxes(device: str) -> Iterator[Case]:
    family = Family("softmax", device)
    for shape in SOFTMAX[device]:
        size, x = by_name(shape), normal(*shape)
        yield family.function(f"softmax {size}", lambda x: x.softmax(-1), x)
        yield family.function(f"log softmax {size}", lambda x: x.log_softmax(-1), x)
    shape = COLUMNS[device][1]
    size, x = by_name(shape), normal(*shape)
    yield family.function(f"softmax of columns {size}", lambda x: x.softmax(0), x)
    yield family.function(
        f"softmax with a mask {size}",
        lambda x, mask: x.masked_fill(~mask, -torch.inf).softmax(-1),
        *(x, chances(*shape)),
    )
    yield family.function(
        f"softmax with temperature {size}", lambda x: (x / 0.7).softmax(-1).sqrt(), x
    )
    if device == "cuda":
        yield family.function(f"softmax {size}", lambda x: x.softmax(-1), x, dtype=torch.float32)


def losses(device: str) -> Iterator[Case]:
    family = Family("losses", device)
    for rows, classes in CLASSES[device]:
        size = by_name((rows, classes))
        x, wanted = normal(rows, classes), places(classes, rows)
        yield family.function(
            f"cross entropy {size}", lambda x, wanted: F.cross_entropy(x, wanted), x, wanted
        )
        yield family.function(
            f"nll of log softmax {size}",
            lambda x, wanted: F.nll_loss(x.log_softmax(-1), wanted),
            *(x, wanted),
        )
        yield family.function(
            f"kl_div {size}",
            lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"),
            *(x, x),
        )
    yield family.function(
        f"cross entropy, smoothed {size}",
        lambda x, wanted: F.cross_entropy(x, wanted, label_smoothing=0.1),
        *(x, wanted),
    )
    yield family.function(
        f"cross entropy of each row {size}",
        lambda x, wanted: F.cross_entropy(x, wanted, reduction="none"),
        *(x, wanted),
    )
    size, x = by_name(PAIRS[device]), normal(*PAIRS[device])
    yield family.function(f"mse {size}", lambda x, y: F.mse_loss(x, y), x, x)
    yield family.function(f"smooth_l1 {size}", lambda x, y: F.smooth_l1_loss(x, y), x, x)
    yield family.function(f"l1 {size}", lambda x, y: F.l1_loss(x, y), x, x)
    yield family.function(
        f"binary cross entropy {size}",
        lambda x, y: F.binary_cross_entropy_with_logits(x, y),
        *(x, uniform(*PAIRS[device])),
    )
    yield family.function(
        f"cosine similarity {size}", lambda x, y: F.cosine_similarity(x, y, dim=-1), x, x
    )
