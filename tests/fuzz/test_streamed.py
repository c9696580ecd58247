"""Random pointwise programs, reductions and norms as C kernels against float64.

Lengths lie around those of vectors, lines and runs. Operands may be transposed or strided, results
may go past the caches, and kernels run on one thread or two.
"""

import os
import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from blockbuster_fusion.runtime.c import compiler
from helpers.effort import part

PROGRAMS = part(80, of=4)
LONG = int(os.environ.get("BLOCKBUSTER_FUZZ", "400"))
LENGTHS = (1, 3, 15, 16, 17, 31, 70, 100, 130, 255, 256, 257, 300, 600)
DTYPES = (torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16)
FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": lambda x, y: x + y,
    "gate": lambda x, y: F.silu(x) * y,
    "turned": lambda x, y: (x * 2 + y).transpose(0, 1).contiguous(),
    "softmax": lambda x, y: F.softmax(x + y, -1),
    "log softmax": lambda x, y: F.log_softmax(x, -1),
    "softmax down": lambda x, y: F.softmax(x, 0),
    "layer norm": lambda x, y: F.layer_norm(x + y, x.shape[-1:]),
    "row sums": lambda x, y: (x * y).sum(-1),
    "column sums": lambda x, y: (x + y).sum(0),
    "largest": lambda x, y: x.amax(-1, keepdim=True) - y,
    "least": lambda x, y: (x * y).amin(0),
    "error": F.mse_loss,
    "all": lambda x, y: x.sum() + y,
}


def placed(shape: tuple[int, int], chance: random.Random, dtype: torch.dtype) -> Tensor:
    """A random array that lies in memory in one of several ways."""
    rows, columns = shape
    made = {
        "plain": lambda: torch.randn(shape),
        "turned": lambda: torch.randn(columns, rows).t(),
        "stepped": lambda: torch.randn(rows, 2 * columns)[:, ::2],
        "shifted": lambda: torch.randn(rows * columns + 1)[1:].view(shape),
    }
    how = chance.choice([*made])
    exact = made[how]()
    return exact.to(dtype) if how != "shifted" else exact.to(dtype).contiguous()


def check(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    torch.manual_seed(seed)
    name, dtype = chance.choice([*FUNCTIONS]), chance.choice(DTYPES)
    shape = chance.choice(LENGTHS), chance.choice(LENGTHS)
    x, y = (placed(shape, chance, dtype) for _ in range(2))
    function, last, threads = FUNCTIONS[name], chance.choice((4, 32 << 20)), chance.choice((1, 2))
    monkeypatch.setattr(compiler, "last_cache", lambda: last)
    torch._dynamo.reset()
    options = {"library": "never", "strict": True, "threads": threads}
    with torch.no_grad():
        ours = torch.compile(function, backend="blockbuster", options=options)(x, y)
        usual, exact = function(x, y), function(x.double(), y.double())
    size = exact.abs().max().clamp_min(1.0)
    own = (usual.double() - exact).abs().max() / size
    error = (ours.double() - exact).abs().max() / size
    where = (seed, name, dtype, shape, threads, last)
    assert (ours.shape, ours.stride()) == (usual.shape, usual.stride()), where
    assert error <= 2 * own + 32 * torch.finfo(dtype).eps, where


@pytest.mark.parametrize("first", range(0, PROGRAMS, 5))
def test_random_programs(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(first, first + 5):
        check(seed, monkeypatch)


@pytest.mark.long
def test_many_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(1000, 1000 + LONG):
        check(seed, monkeypatch)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("width", [5, 16, 100, 300])
def test_softmax_of_rows_with_numbers_that_are_not_finite(value: float, width: int) -> None:
    """Rows with an infinity or NaN at either end, and rows that are all of it."""
    x = torch.randn(4, width)
    x[0, 0] = x[1, -1] = value
    x[2] = value
    torch._dynamo.reset()
    options = {"library": "never", "strict": True}
    with torch.no_grad():
        for function in (lambda x: F.softmax(x, -1), lambda x: x.amax(-1), lambda x: x.sum(-1)):
            ours = torch.compile(function, backend="blockbuster", options=options)(x)
            torch.testing.assert_close(ours, function(x), equal_nan=True)
