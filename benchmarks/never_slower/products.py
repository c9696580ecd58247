"""Cases of matrix products: alone, with what follows them, and of a few rows."""

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from never_slower.case import Case, Family, by_name, normal, uniform, weight

Sizes = tuple[tuple[int, ...], ...]

PLAIN: dict[str, Sizes] = {
    "cpu": (
        (256, 256, 256), (512, 512, 512), (768, 768, 768), (1024, 1024, 1024), (2048, 2048, 2048),
        (4096, 256, 64), (8192, 64, 64), (64, 256, 4096), (513, 257, 129), (1000, 333, 777),
        (127, 1023, 511), (32, 16384, 32), (64, 8192, 64), (8, 32768, 8),
    ),
    "cuda": (
        (256, 256, 256), (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048),
        (4096, 4096, 4096), (8192, 8192, 8192), (65536, 512, 64), (32768, 128, 128),
        (64, 512, 32768), (8205, 2949, 5921), (1000, 3333, 777), (4095, 4097, 1023),
        (64, 65536, 64), (128, 32768, 128), (16, 131072, 16),
    ),
}  # fmt: skip
"""Rows, summed elements and columns."""

BATCHED: dict[str, Sizes] = {
    "cpu": ((16, 128, 64, 128), (64, 64, 64, 64), (8, 256, 256, 256), (256, 16, 32, 16)),
    "cuda": ((64, 512, 128, 512), (1024, 64, 64, 64), (16, 1024, 1024, 1024), (4096, 16, 32, 16)),
}
VECTORS: dict[str, Sizes] = {
    "cpu": ((1024, 1024), (4096, 2048), (100, 20000)),
    "cuda": ((4096, 4096), (16384, 8192), (128, 262144)),
}
LINEAR: dict[str, Sizes] = {
    "cpu": ((128, 768, 3072), (512, 1024, 1024), (300, 500, 700)),
    "cuda": ((2048, 4096, 4096), (512, 4096, 14336), (1000, 1500, 3000)),
}
FOLLOWED: dict[str, Sizes] = {
    "cpu": ((128, 768, 1536), (256, 512, 512), (33, 257, 513)),
    "cuda": ((2048, 4096, 4096), (512, 1024, 4096), (333, 2570, 1025)),
}
FEW_ROWS: dict[str, Sizes] = {
    "cpu": ((768, 3072), (2048, 2048), (4096, 1024)),
    "cuda": ((4096, 4096), (4096, 14336), (14336, 4096)),
}
HEAD = {"cpu": (512, 8000), "cuda": (4096, 128256)}
"""Width and vocabulary of the last layer of a language model."""


def products(device: str) -> Iterator[Case]:
    family = Family("products", device)
    for m, k, n in PLAIN[device]:
        name = f"product {by_name((m, k, n))}"
        yield family.function(name, lambda a, b: a @ b, normal(m, k), normal(k, n, scale=k**-0.5))
    for m, k, n in LINEAR[device]:
        make = partial(nn.Linear, k, n, bias=False)
        yield family.module(f"linear {by_name((m, k, n))}", make, normal(m, k))
    m, k, n = LINEAR[device][1]
    a, b = normal(k, m), normal(k, n, scale=k**-0.5)
    yield family.function(
        f"product of a transposed matrix {by_name((m, k, n))}", lambda a, b: a.T @ b, a, b
    )
    for m, k in VECTORS[device]:
        name = f"matrix times vector {by_name((m, k))}"
        yield family.function(name, lambda a, x: a @ x, weight(m, k), normal(k))
        if m == k:
            name = f"vector times matrix {by_name((m, k))}"
            yield family.function(name, lambda x, a: x @ a, normal(m), weight(m, k))
    for batch, m, k, n in BATCHED[device]:
        name = f"batched product {by_name((batch, m, k, n))}"
        given = normal(batch, m, k), normal(batch, k, n, scale=k**-0.5)
        yield family.function(name, lambda a, b: a @ b, *given)
    batch, m, k, n = BATCHED[device][0]
    given = normal(batch, m, k), normal(k, n, scale=k**-0.5)
    name = f"batch times one matrix {by_name((batch, m, k, n))}"
    yield family.function(name, lambda a, b: a @ b, *given)
    given = normal(batch, m, k), normal(batch, n, k, scale=k**-0.5)
    name = f"einsum of a batch {by_name((batch, m, k, n))}"
    yield family.function(name, lambda a, b: torch.einsum("bmk,bnk->bmn", a, b), *given)
    if device == "cuda":
        for m, k, n in PLAIN[device][2:4]:
            given = normal(m, k), normal(k, n, scale=k**-0.5)
            name = f"product {by_name((m, k, n))}"
            yield family.function(name, lambda a, b: a @ b, *given, dtype=torch.float32)


def gated(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return F.silu(F.linear(x, w)) * F.linear(x, v)


def products_with_more(device: str) -> Iterator[Case]:
    """Products and what is computed of them, element by element or row by row."""
    family = Family("products with more", device)
    for m, k, n in FOLLOWED[device]:
        size = by_name((m, k, n))
        x, w, b, r = normal(m, k), weight(n, k), normal(n), normal(m, n)
        yield family.function(f"linear, bias {size}", lambda x, w, b: F.linear(x, w, b), x, w, b)
        yield family.function(
            f"linear, bias, relu {size}", lambda x, w, b: F.relu(F.linear(x, w, b)), x, w, b
        )
        yield family.function(
            f"linear, bias, gelu {size}", lambda x, w, b: F.gelu(F.linear(x, w, b)), x, w, b
        )
        yield family.function(f"linear, silu gate {size}", gated, x, w, weight(n, k))
        yield family.function(
            f"linear, bias, residual {size}",
            lambda x, w, b, r: r + F.linear(x, w, b),
            *(x, w, b, r),
        )
    m, k, n = FOLLOWED[device][1]
    size = by_name((m, k, n))
    x, w, b, r = normal(m, k), weight(n, k), normal(n), normal(m, n)
    yield family.function(
        f"linear, bias, gelu by tanh, scaled {size}",
        lambda x, w, b: 0.5 * F.gelu(F.linear(x, w, b), approximate="tanh"),
        *(x, w, b),
    )
    yield family.function(
        f"linear, bias, sigmoid, times input {size}",
        lambda x, w, b, r: r * torch.sigmoid(F.linear(x, w, b)),
        *(x, w, b, r),
    )
    yield family.function(
        f"relu, linear {size}", lambda x, w, b: F.linear(F.relu(x), w, b), x, w, b
    )
    yield family.function(
        f"linear, softmax {size}", lambda x, w, b: F.linear(x, w, b).softmax(-1), x, w, b
    )
    yield family.function(
        f"linear, layer norm {size}",
        lambda x, w, b: F.layer_norm(F.linear(x, w, b), b.shape),
        *(x, w, b),
    )
    yield family.function(
        f"product, sum of rows {size}", lambda x, w: F.linear(x, w).sum(-1), uniform(m, k), w
    )
    yield family.function(
        f"chain of three products {size}",
        lambda x, w, v: x @ w.T @ v,
        *(x, w, normal(n, k, scale=n**-0.5)),
    )
    if device == "cuda":
        yield family.function(
            f"linear, bias, gelu {size}",
            lambda x, w, b: F.gelu(F.linear(x, w, b)),
            *(x, w, b),
            dtype=torch.float32,
        )


def few_rows(device: str) -> Iterator[Case]:
    """Linear layers as a model that makes one word at a time calls them."""
    family = Family("few rows", device)
    for rows in (1, 4, 16):
        for k, n in FEW_ROWS[device]:
            make = partial(nn.Linear, k, n, bias=False)
            yield family.module(f"linear {by_name((rows, k, n))}", make, normal(rows, k))
    for rows in (1, 16):
        k, n = FEW_ROWS[device][0]
        yield family.module(
            f"linear, bias, gelu {by_name((rows, k, n))}",
            lambda k=k, n=n: nn.Sequential(nn.Linear(k, n), nn.GELU()),
            normal(rows, k),
        )
        given = normal(rows, k), weight(n, k), weight(n, k)
        yield family.function(f"linear, silu gate {by_name((rows, k, n))}", gated, *given)
    k, n = HEAD[device]
    for rows in (1, 4):
        make = partial(nn.Linear, k, n, bias=False)
        yield family.module(f"head {by_name((rows, k, n))}", make, normal(rows, k))
    if device == "cuda":
        k, n = FEW_ROWS[device][0]
        make = partial(nn.Linear, k, n)
        name = f"linear, bias {by_name((1, k, n))}"
        yield family.module(name, make, normal(1, k), dtype=torch.float32)
