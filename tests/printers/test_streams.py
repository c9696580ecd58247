"""Streams: kernels without products, row by row, with arrays read and stored in place."""

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import blockbuster_fusion as bb
from blockbuster_fusion.runtime.c import compiler

FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "gelu": F.gelu,
    "softmax": lambda x: x.softmax(-1),
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "spread": lambda x: (x - x.amin(-1, keepdim=True)) / (x.amax(-1, keepdim=True) + 1),
    "sum of rows": lambda x: x.exp().sum(-1),
    "sum of columns": lambda x: (x * x).sum(0),
    "several": lambda x: (x + 1, (x * 2).sum(-1), (x * 2).tanh()),
    "turned": lambda x: (x * 2).transpose(0, -1).contiguous(),
}


def placements(*shape: int) -> dict[str, Callable[[], Tensor]]:
    """Arrays of one shape that lie in memory in several ways."""
    rows, columns = shape[-2:]
    return {
        "contiguous": lambda: torch.randn(shape),
        "transposed": lambda: torch.randn(*shape[:-2], columns, rows).transpose(-1, -2),
        "every second column": lambda: torch.randn(*shape[:-1], 2 * columns)[..., ::2],
        "every third row": lambda: torch.randn(*shape[:-2], 3 * rows, columns)[..., ::3, :],
        "one row, expanded": lambda: torch.randn(*shape[:-2], 1, columns).expand(shape),
        "one column, expanded": lambda: torch.randn(*shape[:-1], 1).expand(shape),
        "unaligned": lambda: torch.randn(rows * columns + 1)[1:].view(rows, columns),
    }


def close(found: Any, function: Callable[[Tensor], Any], x: Tensor) -> None:
    """The error is at most twice PyTorch's own, and that of roundings of results and of inputs.

    A pairwise sum of a row rounds as often as it has levels, so a mean of equal numbers is not
    quite one of them.
    """
    several, eps = isinstance(found, tuple), torch.finfo(x.dtype).eps
    wide = x.double()
    levels = math.ceil(math.log2(max(x.shape[-1], 2)))
    near = wide * (1 + levels * eps * torch.rand_like(wide))
    results = [found, function(x), function(wide), function(near)]
    for ours, usual, exact, other in zip(*(y if several else (y,) for y in results), strict=True):
        assert (ours.shape, ours.stride(), ours.dtype) == (usual.shape, usual.stride(), x.dtype)
        own = (usual.double() - exact).abs().max()
        floor = 2 * (eps * exact.abs().max() + (other - exact).abs().max())
        assert (ours.double() - exact).abs().max() <= 2 * own + floor


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arrays_lie_as_they_like(name: str) -> None:
    function = FUNCTIONS[name]
    compiled = torch.compile(function, backend="blockbuster", dynamic=False)
    with torch.no_grad():
        for make in placements(5, 37).values():
            x = make()
            close(compiled(x), function, x)


BATCHED = [torch.exp, torch.sigmoid, torch.tanh, torch.erf, torch.sin, torch.cos]
"""Functions that are called for several elements at once."""


@pytest.mark.parametrize("seed", range(4))
def test_functions_of_batches_in_rows_of_any_length(seed: int) -> None:
    choice = random.Random(seed)
    f, g = choice.sample(BATCHED, 2)
    rows, columns = choice.choice([1, 3, 17]), [3, 17, 100, 1300][seed]
    dtype = choice.choice([torch.float32, torch.float32, torch.float64])

    def function(x: Tensor) -> Any:
        chosen = torch.where(x > 0, f(x) * 2, -g(x))
        return f(g(x)), chosen.sum(-1), (f(x) + x).amax(0)

    compiled = torch.compile(function, backend="blockbuster", dynamic=False)
    with torch.no_grad():
        for x in (torch.randn(rows, columns, dtype=dtype) * 3, torch.randn(columns, rows).t()):
            close(compiled(x.to(dtype)), function, x.to(dtype))


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 17, 100])
def test_reductions_across_rows(rows: int) -> None:
    """Some rows are combined at once; NaN comes through from any of them."""

    def function(x: Tensor) -> Any:
        return x.sum(0), x.amax(0), x.amin(0)

    compiled = torch.compile(function, backend="blockbuster", dynamic=False)
    with torch.no_grad():
        for x in (torch.randn(rows, 37), torch.randn(37, rows).t()):
            close(compiled(x), function, x)
        x = torch.randn(rows, 37)
        x[rows // 2, ::2] = math.nan
        for ours, usual in zip(compiled(x), function(x), strict=True):
            assert torch.equal(ours.isnan(), usual.isnan())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    function = FUNCTIONS["several"]
    compiled = torch.compile(function, backend="blockbuster", dynamic=False)
    with torch.no_grad():
        for place in ("contiguous", "transposed"):
            x = placements(5, 37)[place]().to(dtype)
            close(compiled(x), function, x)


@pytest.mark.parametrize("length", [1, 7, 9, 31, 33, 100, 9000])
def test_rows_of_any_length(length: int) -> None:
    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.softmax(-1), (x * x).sum(-1)

    x = torch.randn(3, length)
    with torch.no_grad():
        close(bb.compile(both, x)(x), both, x)


def test_batches_with_rows_and_columns_of_their_own() -> None:
    def scaled(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return ((x - row) * column[..., None]).softmax(-1)

    inputs = torch.randn(2, 3, 4, 19), torch.randn(19), torch.randn(3, 4)
    with torch.no_grad():
        found = bb.compile(scaled, *inputs)(*inputs)
        torch.testing.assert_close(found, scaled(*inputs))


def test_a_stream_needs_no_tiles() -> None:
    """The text of softmax: loops over a row, and memory of blocks for strided arrays alone."""
    x = torch.randn(8, 100)
    with torch.no_grad():
        compiled = bb.compile(lambda x: x.softmax(-1), x)
        compiled(x)
    (kernel,) = compiled.explanation.kernels
    reserved = [line for line in kernel.source.splitlines() if "reserve(&bytes" in line]
    blocks = [line for line in reserved if "BLOCK_B" in line]
    assert len(reserved) == 4  # beside the blocks a row, and a line of results
    assert len(blocks) == 2
    assert all("== 1 ? 0 :" in line for line in blocks)


def test_rows_of_one_array_may_be_columns_of_another() -> None:
    def both(x: Tensor, y: Tensor) -> Tensor:
        turned = torch.sin(y).t()
        return turned + (x * turned).sum(1, keepdim=True)

    inputs = torch.randn(70, 130), torch.randn(130, 70)
    with torch.no_grad():
        found = bb.compile(both, *inputs)(*inputs)
        exact = both(*(x.double() for x in inputs))
        own = (both(*inputs).double() - exact).abs().max()
        assert (found.double() - exact).abs().max() <= 2 * own + 1e-6 * exact.abs().max()


@pytest.mark.parametrize("unit", [(), ("N",), ("M", "N")])
def test_sums_of_columns_beside_rows(unit: tuple[str, ...]) -> None:
    def scaled(X: Any, Y: Any) -> Any:
        return {"O": X * bb.ops.expand_dims(bb.ops.sum(Y, 0), 1)}

    run = bb.compile(scaled, X="M N", Y="N M", unit=unit)
    x, y = np.random.default_rng(0).standard_normal((2, 60, 60), dtype=np.float32)
    x, y = x[:, :37].copy(), y[:37].copy()
    np.testing.assert_allclose(run(X=x, Y=y)["O"], x * y.sum(0)[:, None], rtol=0, atol=1e-4)


def test_a_scalar_of_16_bits_is_stored_as_it_is() -> None:
    run = bb.compile(lambda S, X: {"A": S, "B": X * S}, S="", X="M N", dtype="bfloat16")
    s, x = torch.tensor(0.5547).bfloat16(), torch.randn(3, 5).bfloat16()
    found = run(S=s, X=x)
    assert float(found["A"]) == float(s)
    torch.testing.assert_close(found["B"], x * s)


@pytest.mark.parametrize("numerator", [0, 1])
def test_what_only_looks_like_a_sigmoid(numerator: int) -> None:
    """The second argument has number 1; it is not 1."""

    def quotient(x: Any, y: Any) -> Any:
        return (y if numerator else 1) / (y + bb.ops.exp(-x))

    run = bb.compile(lambda X, Y: {"O": bb.ops.elementwise(quotient, X, Y)}, X="M N", Y="M N")
    x, y = np.random.default_rng(0).standard_normal((2, 5, 37), dtype=np.float32)
    y = np.abs(y) + 2
    exact = (y if numerator else 1) / (y + np.exp(-x.astype(np.float64)))
    np.testing.assert_allclose(run(X=x, Y=y)["O"], exact, rtol=1e-6)


def test_float16_is_widened_before_it_is_multiplied() -> None:
    """A CPU with arithmetic in float16 must not use it: 300 * 300 would be infinite."""
    run = bb.compile(lambda X: {"O": bb.ops.sum(X * X, 1)}, X="M N", dtype="float16")
    products = [line for line in run.source.splitlines() if "t1[" in line and "*" in line]
    assert products
    assert all("(float)t1[" in line for line in products if "load" not in line and "&" not in line)


ROWS = {
    "softmax": lambda x: x.softmax(-1),
    "log softmax": lambda x: x.log_softmax(-1),
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "several": lambda x: (x.amax(-1), x - (1 + x.exp().sum(-1, keepdim=True)).log()),
}
"""Functions whose rows are computed together if they are short."""


@pytest.mark.sweep(3)
@pytest.mark.parametrize("length", [1, 15, 16, 17, 100, 127, 128, 129, 256, 257])
def test_short_rows_are_computed_together(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of rows that 8 does and does not divide; NaN and infinities stay in their rows."""
    monkeypatch.setattr(compiler, "last_cache", lambda: 4 if length % 2 else 32 << 20)

    def all_of(x: Tensor) -> list[Any]:
        found = [function(x) for function in ROWS.values()]
        return [y for some in found for y in (some if isinstance(some, tuple) else (some,))]

    options = {"library": "never", "strict": True}
    compiled = torch.compile(all_of, backend="blockbuster", options=options, dynamic=False)
    with torch.no_grad():
        for rows in (1, 8, 29):
            x = torch.randn(rows, length)
            for number, y in enumerate(compiled(x)):
                if number != 2 or length > 1:  # of one element, the variance is a rounding error
                    close(y, lambda x, number=number: all_of(x)[number], x)
        x[3], x[5, -1], x[7, 0], x[11] = -math.inf, math.nan, math.inf, math.inf
        x[13, ::2] = -math.inf
        for ours, usual in zip(compiled(x), all_of(x), strict=True):
            assert torch.equal(ours.isnan(), usual.isnan())
            assert torch.equal(ours.isinf(), usual.isinf())
            plain = torch.ones(rows, dtype=torch.bool)
            plain[[3, 5, 7, 11, 13]] = False
            torch.testing.assert_close(ours[plain], usual[plain])


@pytest.mark.parametrize(("length", "together"), [(100, True), (256, True), (257, False)])
def test_a_known_length_decides_which_rows_are_computed_together(
    length: int, together: bool
) -> None:
    with torch.no_grad():
        x = torch.randn(64, length)
        compiled = bb.compile(lambda x: x.softmax(-1), x)
        compiled(x)
    (kernel,) = compiled.explanation.kernels
    assert ("row < rows" in kernel.source) is together
