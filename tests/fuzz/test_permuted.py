"""Random programs over arrays whose axes lie in several orders, as C kernels against float64.

Rows of one array are columns of another, so that kernels that run row by row meet both.
"""

import os
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from helpers.effort import part

PROGRAMS = part(120, of=8)
LONG = int(os.environ.get("BLOCKBUSTER_FUZZ", "400"))
ORDERS = ((0, 1, 2), (1, 0, 2), (2, 1, 0), (0, 2, 1), (2, 0, 1))
LENGTHS = (1, 3, 8, 17, 33, 70)
STEPS: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "sin": lambda a, b, axis: torch.sin(a),
    "mul": lambda a, b, axis: a * b,
    "add": lambda a, b, axis: a + b,
    "sub": lambda a, b, axis: a - b.abs(),
    "sum": lambda a, b, axis: a.sum(axis, keepdim=True) + b * 0.5,
    "max": lambda a, b, axis: a.amax(axis, keepdim=True) * b,
    "softmax": lambda a, b, axis: torch.softmax(a, axis),
    "centred": lambda a, b, axis: a - a.mean(axis, keepdim=True),
    "stored": lambda a, b, axis: a.contiguous() + 1,
    "gated": lambda a, b, axis: torch.sigmoid(a) * b,
    "nearly a sigmoid": lambda a, b, axis: 1 / (b.abs() + 1 + torch.exp(-a)),
}


def program(seed: int) -> Callable[..., tuple[Tensor, ...]]:
    """A random program over three arrays with axes in other orders."""
    chance = random.Random(seed)
    steps = [
        (chance.choice([*STEPS]), chance.randrange(100), chance.randrange(100), chance.randrange(3))
        for _ in range(chance.randint(3, 7))
    ]
    results = [(chance.randrange(len(steps)), chance.choice(ORDERS)) for _ in range(2)]

    def run(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        known = [x, y.permute(1, 0, 2), z.permute(2, 1, 0)]
        for name, first, second, axis in steps:
            a, b = known[first % len(known)], known[second % len(known)]
            known.append(STEPS[name](a, b, axis))
        return tuple(known[3 + at].permute(order).contiguous() for at, order in results)

    return run


def check(seed: int) -> None:
    chance = random.Random(~seed)
    a, b, c = (chance.choice(LENGTHS) for _ in range(3))
    dtype = chance.choice([torch.float32, torch.float32, torch.bfloat16, torch.float16])
    torch.manual_seed(seed)
    given = [torch.randn(shape).to(dtype) for shape in ((a, b, c), (b, a, c), (c, b, a))]
    function = program(seed)
    torch._dynamo.reset()
    options = {"library": "never", "strict": True}
    with torch.no_grad():
        found = torch.compile(function, backend="blockbuster", options=options)(*given)
        results = found, function(*given), function(*(x.double() for x in given))
    for ours, usual, exact in zip(*results, strict=True):
        size = exact.abs().max().clamp_min(1.0)
        own = (usual.double() - exact).abs().max() / size
        error = (ours.double() - exact).abs().max() / size
        assert error <= 2 * own + 32 * torch.finfo(dtype).eps, (seed, dtype, (a, b, c))


@pytest.mark.parametrize("first", range(0, PROGRAMS, 5))
def test_random_programs(first: int) -> None:
    for seed in range(first, first + 5):
        check(seed)


def test_a_block_that_is_stored_in_rows_and_read_in_columns() -> None:
    """The stream of its rows had no place for its columns: the kernel could not be printed."""
    check(91)


@pytest.mark.long
def test_many_programs() -> None:
    for seed in range(1000, 1000 + LONG):
        check(seed)
