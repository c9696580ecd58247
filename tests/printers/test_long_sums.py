"""Long sums: blocks are summed pairwise and gathered in runs, so that errors do not grow."""

import numpy as np
import pytest
import torch

import blockbuster_fusion as bb
from blockbuster_fusion.nest.nest import Cascade
from blockbuster_fusion.nest.passes.cascade_sums import FEW, run_length
from blockbuster_fusion.tools.check.judge import relative_error
from helpers import torch_reference
from helpers.attention_forms import FORMS, inputs_of

EPS = 2.0**-23


def row(x):
    return x.sum(-1)


def column(x):
    return x.mean(0)


def all_of(x):
    return x.sum()


def product(x, y):
    return x @ y


def softmax(x):
    return torch.softmax(x, -1)


def mixed(x, y):
    return torch.einsum("ab,ab->b", x, y)


CASES = {
    "all": (all_of, [(100_000,)]),
    "all of two axes": (all_of, [(3000, 300)]),
    "rows": (row, [(5, 1_000_000)]),
    "short rows": (row, [(200, 2000)]),
    "columns": (column, [(100_000, 16)]),
    "one block of columns": (column, [(2000, 64)]),
    "outer axis": (lambda x: x.sum(0), [(3000, 7, 40)]),
    "inner axis": (lambda x: x.sum(1), [(3, 30_000, 7)]),
    "vectors": (product, [(200_000,), (200_000,)]),
    "matrix and vector": (product, [(20, 100_000), (100_000,)]),
    "product": (product, [(20, 200_000), (200_000, 16)]),
    "products of columns": (mixed, [(50_000, 20), (50_000, 20)]),
    "softmax": (softmax, [(5, 100_000)]),
    "squares": (lambda x: (x * x + 1).mean(0), [(100_000, 16)]),
    "layer norm": (lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]), [(3, 50_000)]),
}


def errors(function, inputs: list[torch.Tensor]) -> tuple[float, float]:
    """(the kernel's error, twice that of PyTorch), both in norm over the output."""
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="blockbuster", options={"strict": True})
    exact = function(*(x.double() for x in inputs))
    with torch.no_grad():
        found, eager = compiled(*inputs), function(*inputs)
    size = exact.norm()
    mine, theirs = (float((x.double() - exact).norm() / size) for x in (found, eager))
    return mine, 2 * theirs


@pytest.mark.parametrize("name", CASES)
def test_as_exact_as_pytorch(name: str) -> None:
    """All terms are positive: the sum of their sizes is the result, and the floor one rounding."""
    function, shapes = CASES[name]
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.rand(shape, generator=generator) for shape in shapes]
    mine, allowed = errors(function, inputs)
    assert mine <= max(allowed, 2 * EPS)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_of_sixteen_bits(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand((3, 60_000), generator=generator).to(dtype)
    mine, allowed = errors(lambda x: x.float().sum(-1), [x])
    assert mine <= max(allowed, 2 * EPS)
    mine, allowed = errors(product, [x, x.T.contiguous()])
    assert mine <= allowed


def test_the_last_run_may_be_short() -> None:
    """Lengths around those of blocks and runs, where totals begin and end."""
    kernel = bb.compile(lambda X: {"O": bb.ops.softmax(X)}, X="M N", tiles={"N": 16, "M": 16})
    rng = np.random.default_rng(0)
    for length in (1, 16 * FEW, 16 * FEW + 1, 16 * 80, 16 * 255 + 7, 16 * 257):
        x = rng.standard_normal((3, length)).astype(np.float32)
        exact = np.exp(x.astype(np.float64))
        exact /= exact.sum(-1, keepdims=True)
        assert np.abs(kernel(x)[0] / exact - 1).max() < 16 * EPS


@pytest.mark.parametrize("name", ["all_three", "safe_with_padding"])
def test_long_sums_with_windows(name: str) -> None:
    """The exponent is kept after a run, and still covers the keys that a window has seen."""
    program = FORMS[name].traced()
    kernel = bb.compile(program, tiles={"T": 16, "S": 16})
    given = inputs_of(program, S=1100, T=1100, B=2, H=1)
    given = {n: x.astype(np.float32) if x.dtype == np.float64 else x for n, x in given.items()}
    exact = torch_reference.run(program, given, torch.float64)
    found = torch_reference.run(program, given, torch.float32)
    made = dict(kernel(**given).items())
    assert relative_error(made, exact) <= max(2 * relative_error(found, exact), 4 * EPS)


def test_lengths_of_runs() -> None:
    assert [run_length(n) for n in (0, 1, FEW, FEW + 1, 256, 257, 10_000)] == [
        *(0, 0, 0, 16, 16, 32, 128)
    ]
    for blocks in (65, 100, 1000, 10**5):
        run = run_length(blocks)
        assert run + blocks / run <= 3.1 * blocks**0.5


def test_short_axes_have_no_runs() -> None:
    def cascades(**sizes: int) -> int:
        kernel = bb.compile(lambda X: {"O": bb.ops.softmax(X)}, X="M N", sizes=sizes, unit=())
        return sum(isinstance(s, Cascade) for k in kernel.nest.kernels for s in k.statements)

    assert cascades() > 0
    assert cascades(NN=100_000) > 0
    assert cascades(NN=4096) == 0
