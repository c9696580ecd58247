"""Edge cases on a GPU, each checked against eager PyTorch and float64; under three minutes.

    python benchmarks/gpu_check.py [--only WORD]

One line for each check: `ok` or `WRONG`, its error, what is allowed, the time of compiling. What is
allowed is twice eager's own error against float64, with a floor of 4 eps of the sum of the terms'
sizes, in norm over the output. Exit code 1 where a check fails, 2 without a GPU.
"""

import argparse
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from library_steps import by_pytorch

import blockbuster_fusion as bb

bb.register_backend()  # the package may lie in a checkout
os.environ.setdefault("BLOCKBUSTER_LIBRARY", "never")  # kernels are measured, faster or not

Function = Callable[..., Any]
EPS = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
CLASSES, ROWS = 1000, 64


@dataclass(frozen=True)
class Check:
    """A function with its inputs; `size` is the sum of its terms' sizes over its result's."""

    name: str
    function: Function
    inputs: Sequence[torch.Tensor]
    size: float = 1.0
    seconds: float | None = None
    """The most that compiling it may take."""


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, device="cuda", generator=generator).to(dtype)


def rand(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.rand(shape, device="cuda", generator=generator).to(dtype)


def losses() -> list[Check]:
    logits, targets = randn(ROWS, CLASSES), torch.arange(ROWS, device="cuda") * 7
    some = targets.clone()
    some[::3] = -100
    x, truths = randn(ROWS, 50), rand(ROWS, 50, seed=1) > 0.5
    return [
        Check("cross entropy", F.cross_entropy, [logits, targets]),
        Check("cross entropy, ignored rows", F.cross_entropy, [logits, some]),
        Check(
            "cross entropy, smoothed",
            lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1),
            [logits, targets],
        ),
        Check("nll", lambda x, t: F.nll_loss(F.log_softmax(x, -1), t), [logits, targets]),
        Check(
            "bce with logits, bool targets",
            lambda x, t: F.binary_cross_entropy_with_logits(x, t.to(x.dtype)),
            [x, truths],
        ),
        Check(
            "bce with logits, int targets",
            lambda x, t: F.binary_cross_entropy_with_logits(x, t.to(x.dtype)),
            [x, truths.long()],
        ),
        Check("mse of int targets", lambda x, t: F.mse_loss(x, t.to(x.dtype)), [x, truths.int()]),
    ]


def integers() -> list[Check]:
    ids, other = torch.arange(-50, 50, device="cuda"), torch.arange(100, device="cuda") % 7
    return [
        Check("integers", lambda a, b: (a * b + 3) // 2, [ids, other]),
        Check("a sum of integers", lambda a: (a * a).sum(), [ids]),
        Check("a mean of integers", lambda a: a.float().mean(), [ids], size=60),
        Check("a sum of bools", lambda a: (a > 3).sum(), [ids]),
    ]


class Decode(torch.nn.Module):
    """One token of each of 16 sequences: a small projection to grouped heads, norms, a cache."""

    def __init__(self, width: int = 2048, heads: int = 8, groups: int = 2, size: int = 64) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, size
        self.q = torch.nn.Linear(width, heads * size, bias=False)
        self.k = torch.nn.Linear(width, groups * size, bias=False)
        self.v = torch.nn.Linear(width, groups * size, bias=False)
        self.o = torch.nn.Linear(heads * size, width, bias=False)

    def forward(self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        rows = x.shape[0]
        q, k, v = (
            layer(x).view(rows, 1, -1, self.size).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        q, k = (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6) for y in (q, k))
        k, v = torch.cat((keys, k), 2), torch.cat((values, v), 2)
        k, v = (y.repeat_interleave(self.heads // self.groups, 1) for y in (k, v))
        out = F.scaled_dot_product_attention(q, k, v)
        return x + self.o(out.transpose(1, 2).reshape(rows, 1, -1))


class Block(torch.nn.Module):
    """A layer of a vision transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).chunk(3, -1)
        q, k, v = (y.view(rows, length, self.heads, -1).transpose(1, 2) for y in parts)
        scores = (q @ k.transpose(-1, -2)) * (width // self.heads) ** -0.5
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(rows, length, width)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Vision(torch.nn.Module):
    """A vision transformer of six layers."""

    def __init__(self, width: int = 384, layers: int = 6) -> None:
        super().__init__()
        self.patches = torch.nn.Conv2d(3, width, 16, 16)
        self.first = torch.nn.Parameter(torch.zeros(1, 1, width))
        self.places = torch.nn.Parameter(torch.randn(1, 197, width) * 0.02)
        self.layers = torch.nn.ModuleList(Block(width, 6) for _ in range(layers))
        self.norm, self.head = torch.nn.LayerNorm(width), torch.nn.Linear(width, 1000)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(len(x), -1, -1), x), 1) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])


def models() -> list[Check]:
    torch.manual_seed(0)
    decode = Decode().cuda().eval()
    cache = [randn(16, 2, 128, 64, seed=n) for n in (1, 2)]
    vision = Vision().cuda().eval()
    return [
        Check("decode, batch 16", decode, [randn(16, 1, 2048), *cache], size=8),
        Check("vision transformer", vision, [randn(2, 3, 224, 224)], size=8, seconds=90),
    ]


def concatenations() -> list[Check]:
    def joined(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[:, n : n + 1] * (n + 1) for n in range(256)], 1).sin()

    def nested(x: torch.Tensor) -> torch.Tensor:
        made = x[:, :1]
        for n in range(1, 256):
            made = torch.cat((made, x[:, n : n + 1] + n), 1)
        return made * 2

    x = randn(8, 256)
    return [Check("256 parts", joined, [x], size=300), Check("256 concatenations", nested, [x])]


def sums() -> list[Check]:
    narrow = torch.bfloat16
    product = [rand(16, 500_000, dtype=narrow), rand(500_000, 16, seed=1, dtype=narrow)]
    return [
        Check("a sum of 100,000", lambda x: x.sum(), [rand(100_000)]),
        Check("rows of 1,000,000", lambda x: x.sum(-1), [rand(5, 1_000_000)]),
        Check("columns of 100,000", lambda x: x.mean(0), [rand(100_000, 16)]),
        Check("a product over 500,000, bfloat16", torch.matmul, product),
        Check("a product over 100,000", torch.matmul, [rand(16, 100_000), rand(100_000, 16)]),
        Check("softmax of 100,000", lambda x: x.softmax(-1), [randn(4, 100_000)], size=4),
        Check("rows of bfloat16", lambda x: x.float().sum(-1), [rand(4, 300_000, dtype=narrow)]),
    ]


def scans() -> list[Check]:
    """Rows in one block, in blocks with a carry, and in shares; columns; other combiners."""
    narrow, inf, nan = torch.bfloat16, math.inf, math.nan
    special = randn(6, 40)
    special[0, 3], special[1, 5], special[2, 7], special[3] = inf, -inf, nan, -inf
    return [
        Check("running sums", lambda x: x.cumsum(-1), [rand(1000, 10_000)]),
        Check("running sums of odd rows", lambda x: x.cumsum(-1), [rand(333, 5921)]),
        Check("running sums of short rows", lambda x: x.cumsum(-1), [rand(50_000, 100)]),
        Check("running sums of few rows", lambda x: x.cumsum(-1), [rand(4, 1_000_001)]),
        Check("running sums of rows of 40,001", lambda x: x.cumsum(-1), [rand(700, 40_001)]),
        Check("running sums of a vector", lambda x: x.cumsum(0), [rand(3_000_001)]),
        Check("running sums of columns", lambda x: x.cumsum(0), [rand(8192, 1000)]),
        Check("running sums along the middle", lambda x: x.cumsum(1), [rand(7, 1000, 33)]),
        Check("running sums in bfloat16", lambda x: x.cumsum(-1), [rand(64, 999, dtype=narrow)]),
        Check(
            "running sums of probabilities",
            lambda x: x.softmax(-1).cumsum(-1),
            [randn(64, 128_256)],
            size=4,
        ),
        Check(
            "a mask by running sums",
            lambda x: torch.where(x.softmax(-1).cumsum(-1) < 2.0, x * 2, -inf),
            [randn(512, 4096)],
        ),
        Check("running sums between", lambda x, y: (x * y).cumsum(-1) + y, [rand(99, 4096)] * 2),
        Check("running products", lambda x: x.cumprod(-1), [1 + rand(99, 999) / 1000], size=999),
        Check("running maxima", lambda x: x.cummax(-1).values, [randn(99, 20_001)]),
        Check("running minima with NaN", lambda x: x.cummin(-1).values, [special]),
        Check("logcumsumexp", lambda x: x.logcumsumexp(-1), [randn(99, 9999)], size=4),
        Check("logcumsumexp with inf and NaN", lambda x: x.logcumsumexp(-1), [special], size=4),
        Check("counts", lambda x: (x > 0).cumsum(-1), [randn(99, 20_001)]),
        Check("a scan of a scan", lambda x: x.cummax(-1).values.cumsum(-1), [rand(3, 40_001)]),
    ]


def edges() -> list[Check]:
    inf, nan = math.inf, math.nan
    zeros = torch.tensor([1.0, -1.0, 0.0, -0.0, nan, inf, -inf], device="cuda")
    rows = randn(6, 40)
    rows[0, 3], rows[1, 5], rows[2, 7], rows[3], rows[4, :20] = inf, -inf, nan, -inf, -inf
    x = torch.tensor([-1e4, -100.0, -20.0, -1.0, 0.0, 1.0, 20.0, 100.0, 1e4], device="cuda")
    row = randn(64, 512) + 1e4
    return [
        Check("divided by -0.0", lambda x: x / -0.0, [zeros]),
        Check("one by what is negated", lambda x: 1 / -x, [zeros]),
        Check("one by relu", lambda x: 1 / torch.relu(x), [zeros]),
        Check("softmax with inf and NaN", lambda x: x.softmax(-1), [rows]),
        Check("log-softmax with inf and NaN", lambda x: x.log_softmax(-1), [rows], size=8),
        Check("logsumexp with inf and NaN", lambda x: x.logsumexp(-1), [rows]),
        Check("maxima with NaN", lambda x: x.amax(-1), [rows]),
        Check("minima with NaN", lambda x: x.amin(-1), [rows]),
        Check("maximum with NaN", lambda x: torch.maximum(x, x.flip(0)), [rows]),
        Check("softplus", F.softplus, [x]),
        Check("logaddexp", lambda x: torch.logaddexp(x, -x), [x]),
        Check("log of exponentials", lambda x: torch.log(1 + torch.exp(x.clamp(max=80))), [x]),
        Check("layer norm at 10,000", lambda x: F.layer_norm(x, (512,)), [row], size=1e4),
        Check("no rows", lambda x: x.softmax(-1) * 2, [randn(0, 5)]),
        Check("nothing to sum", lambda x: x.sum(-1) + 1, [randn(5, 0)]),
        Check("nothing to contract", lambda x, y: x @ y + 1, [randn(5, 0), randn(0, 3)]),
    ]


class CachedStep(torch.nn.Module):
    """A step of attention with a static cache: keys are rotated, and written where they belong.

    What it gives is the attention, and both caches behind it.
    """

    def __init__(self, width: int = 256, heads: int = 8, groups: int = 2, size: int = 64) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, size
        self.q = torch.nn.Linear(width, heads * size, bias=False)
        self.k = torch.nn.Linear(width, groups * size, bias=False)
        self.v = torch.nn.Linear(width, groups * size, bias=False)

    def forward(
        self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, at: torch.Tensor
    ) -> torch.Tensor:
        q, k, v = (
            layer(x).view(*x.shape[:2], -1, self.size).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        angles = at[:, None] / 10 ** torch.linspace(0, 3, self.size // 2, device=x.device)
        angles = torch.cat((angles, angles), -1).to(x.dtype)
        q, k = (rotated(y, angles.cos(), angles.sin()) for y in (q, k))
        keys.index_copy_(2, at, k)
        values[:, :, at] = v
        mask = torch.arange(keys.shape[2], device=x.device) <= at[:, None]
        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=True)
        return torch.cat((out.flatten(), keys.flatten(), values.flatten()))


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def caches() -> list[Check]:
    """Rows that kernels write into static caches, at places that are data."""
    torch.manual_seed(0)
    step = CachedStep().cuda().eval()
    found = []
    for rows, length in ((1, 1000), (1, 8192), (17, 333)):
        at = torch.arange(length // 2, length // 2 + rows, device="cuda")
        given = [randn(3, rows, 256), *(randn(3, 2, length, 64, seed=n) for n in (1, 2)), at]
        found.append(Check(f"a cache of {length}, {rows} new", step, given, size=8))

    def placed(cache: torch.Tensor, new: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        cache[:, at] = new.tanh()
        return cache * 1.0

    def of_each(cache: torch.Tensor, new: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        cache[torch.arange(len(cache), device=cache.device), :, at] = new.tanh()
        return cache * 1.0

    each = [randn(16, 3, 99, 70), randn(16, 3, 70, seed=1), torch.arange(16, device="cuda") * 6]
    found.append(Check("a cache, a place for each", of_each, each))
    cache, new = randn(3, 301, 70), randn(3, 5, 70, seed=1)
    at = torch.tensor([7, -1, 200, -301, 64], device="cuda")
    turned = cache.mT.contiguous().mT
    narrow = [cache.bfloat16(), new.bfloat16()]
    found += [
        Check("a cache, places from the end", placed, [cache.clone(), new, at]),
        Check("a cache with its rows apart", placed, [turned, new, at]),
        Check("a cache of bfloat16", placed, [*narrow, at]),
        Check("a cache, places of 32 bits", placed, [cache.clone(), new, at.int()]),
        Check("a cache, no rows", placed, [cache.clone(), new[:, :0], at[:0]]),
    ]
    return found


CHECKS = (losses, integers, models, caches, concatenations, sums, scans, edges)


# ---------------------------------------------------------------- sizes that change


@dataclass(frozen=True)
class Changing:
    """A function that is called with many lengths; `inputs` makes those of a length."""

    name: str
    function: Function
    inputs: Callable[[int], Sequence[torch.Tensor]]
    by_library: bool = False
    """True if PyTorch runs its products."""


def changing() -> list[Changing]:
    up, down = randn(128, 64, seed=1) / 8, randn(64, 128, seed=2) / 11

    def normed(x: torch.Tensor) -> torch.Tensor:
        h = F.layer_norm(F.gelu((x + x.softmax(-1)) @ up.to(x.dtype).mT), (128,))
        return F.linear(h, down.to(x.dtype)).softmax(0)

    def multiplied(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = F.linear(F.linear(x, up.to(x.dtype), y).tanh() * 0.5, down.to(x.dtype))
        return torch.bmm(h, h.mT).softmax(-1) + 1, h.sin()

    def joined(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        first, second = multiplied(x, y)
        return torch.cat((first.flatten(), second.flatten()))

    def grown(cache: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        cache = torch.cat((cache, new.tanh()), 1)
        return (new @ cache.mT).softmax(-1) @ cache

    def mutated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(y.softmax(-1))
        return x + y.cumsum(0)

    def strided(x: torch.Tensor) -> torch.Tensor:
        return (x.mT @ x).softmax(-1) + x.abs().mean()

    return [
        Changing("20 lengths, a norm and products", normed, lambda n: [randn(n, 64, seed=n)]),
        Changing(
            "20 lengths, a cache that grows",
            grown,
            lambda n: [randn(2, n, 64, seed=n), randn(2, 1, 64, seed=n + 1)],
        ),
        Changing(
            "20 lengths, an input that is written to",
            mutated,
            lambda n: [randn(n, 48, seed=n), randn(n, 48, seed=n + 1)],
        ),
        Changing(
            "20 lengths, products by PyTorch",
            joined,
            lambda n: [randn(2, n, 64, seed=n), randn(128, seed=n + 1)],
            by_library=True,
        ),
        Changing("20 lengths, transposed", strided, lambda n: [randn(40, n, seed=n).mT]),
    ]


LENGTHS = (33, 64, 7, 100, 128, 17, 16, 250, 256, 31, 32, 5, 1000, 1024, 48, 96, 511, 512, 80, 63)


def run_changing(check: Changing) -> bool:
    """Each length, back and forth, at odd addresses too, from two threads with streams of their
    own, and in a captured CUDA graph."""
    torch._dynamo.reset()
    begin = time.perf_counter()
    worst, told = 0.0, ""
    options = {"library": "auto" if check.by_library else "never", "time_model": False}
    wanted = partial(is_product, wanted=check.by_library)
    try:
        compiled = torch.compile(
            check.function, backend="blockbuster", dynamic=True, options=options
        )
        with by_pytorch(wanted):
            compiled(*check.inputs(LENGTHS[0]))

        def checked(length: int, moved: Function = elsewhere, call: Function = compiled) -> float:
            """The error beyond what is allowed, in units of it."""
            inputs = check.inputs(length)
            eager = check.function(*map(torch.clone, inputs))
            exact = wide(check.function, [x.clone() for x in inputs])
            found = call(*map(moved, inputs))
            allowed = max(2 * error(eager, exact), 16 * EPS[found.dtype])
            return error(found, exact) / allowed

        def walked(lengths: Sequence[int]) -> float:
            with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
                return max(checked(n) for n in lengths)

        for lengths in (LENGTHS, LENGTHS[::-1]):
            worst = max(worst, *(checked(n) for n in lengths))
        worst = max(worst, *(checked(n, askew) for n in LENGTHS[:4]))
        with ThreadPoolExecutor(2) as pool:
            worst = max(worst, *pool.map(walked, (LENGTHS, LENGTHS[::-1])))
        worst = max(worst, checked(LENGTHS[3], call=partial(captured, compiled)))
    except Exception as problem:  # every check is to be told of, whatever fails in one
        worst, told = math.inf, f" {type(problem).__name__}: {str(problem)[:2000]}"
    word = "ok    " if worst <= 1 else "WRONG "
    seconds = time.perf_counter() - begin
    print(f"{word} {check.name}: {worst:.2g} of what is allowed, {seconds:.1f} s{told}", flush=True)
    return worst <= 1


def is_product(nodes: Sequence[Any], *, wanted: bool) -> bool:
    return wanted and any("mm" in str(n.target) or "linear" in str(n.target) for n in nodes)


def captured(call: Function, *inputs: torch.Tensor) -> torch.Tensor:
    """The result of a call that is replayed from a CUDA graph."""
    kept = [x.clone() for x in inputs]
    call(*inputs)
    for x, y in zip(inputs, kept, strict=True):
        x.copy_(y)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = call(*inputs)
    graph.replay()
    torch.cuda.synchronize()
    return made


def wide(function: Function, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """The result in float64."""
    given = [x.double() if x.is_floating_point() else x for x in inputs]
    if isinstance(function, torch.nn.Module):
        function.double()
        try:
            return function(*given)
        finally:
            function.float()
    return function(*given)


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The error in norm over the output; infinite where what is no number, or a shape, differs."""
    if found.shape != exact.shape:
        return math.inf
    found, exact = found.double(), exact.double()
    special = ~exact.isfinite()
    same = (found == exact) | (found.isnan() & exact.isnan())
    if not bool(same[special].all()) or not bool(found[~special].isfinite().all()):
        return math.inf
    rest = ~special
    size = float(exact[rest].norm())
    return float((found - exact)[rest].norm()) / (size or 1.0)


def elsewhere(x: torch.Tensor) -> torch.Tensor:
    """The same array in other memory."""
    return x.clone() if isinstance(x, torch.Tensor) and x.is_cuda else x


def askew(x: torch.Tensor) -> torch.Tensor:
    """The same array at an address that is no multiple of 16 bytes."""
    if not isinstance(x, torch.Tensor) or not x.is_cuda or not x.is_contiguous():
        return x
    room = torch.empty(x.numel() + 1, dtype=x.dtype, device=x.device)[1:]
    return room.copy_(x.flatten()).view(x.shape)


MOVES: tuple[Function, ...] = (elsewhere, elsewhere, askew, elsewhere)
"""Later calls run on a tape, with arrays elsewhere; at an odd address they run without one."""


def run(check: Check) -> bool:
    """One check, told in one line: the first call, and calls with arrays in other places."""
    torch._dynamo.reset()
    options = {"strict": True}
    begin = time.perf_counter()
    try:
        compiled = torch.compile(check.function, backend="blockbuster", options=options)
        found = compiled(*check.inputs)
        torch.cuda.synchronize()
        again = [compiled(*map(moved, check.inputs)) for moved in MOVES]
        torch.cuda.synchronize()
    except Exception as problem:  # every check is to be told of, whatever fails in one
        print(f"WRONG  {check.name}: {type(problem).__name__}: {str(problem)[:2000]}", flush=True)
        return False
    seconds = time.perf_counter() - begin
    eager, exact = check.function(*check.inputs), wide(check.function, check.inputs)
    mine = max(error(x, exact) for x in (found, *again))
    theirs = error(eager, exact)
    floor = 4 * EPS.get(found.dtype, 0.0) * check.size
    good = (mine <= max(2 * theirs, floor) or mine == theirs) and found.dtype is eager.dtype
    late = check.seconds is not None and seconds > check.seconds
    word = "ok    " if good and not late else "WRONG "
    note = f", more than {check.seconds:.0f} s" if late else ""
    print(
        f"{word} {check.name}: error {mine:.2g}, eager {theirs:.2g}, {seconds:.1f} s{note}",
        flush=True,
    )
    return good and not late


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="WORD", help="checks with this in their name")
    chosen = parser.parse_args().only
    if not torch.cuda.is_available():
        print("PyTorch finds no GPU here", file=sys.stderr)
        return 2
    logging.getLogger("blockbuster_fusion").setLevel(logging.ERROR)
    torch.backends.cuda.matmul.allow_tf32 = False
    begin = time.perf_counter()
    with torch.no_grad():
        checks = [check for group in CHECKS for check in group() if chosen in check.name]
        results = [run(check) for check in checks]
        results += [run_changing(check) for check in changing() if chosen in check.name]
    seconds = time.perf_counter() - begin
    print(f"{sum(results)} of {len(results)} are right, {seconds:.0f} s")
    return 0 if all(results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
