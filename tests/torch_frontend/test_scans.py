"""Scans of PyTorch in kernels: any axis, dtype and layout, beside other operators."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import blockbuster_fusion as bb

EPS = {
    torch.float64: 2.0**-52,
    torch.float32: 2.0**-23,
    torch.float16: 2.0**-10,
    torch.bfloat16: 2.0**-7,
}
SCANS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "cumsum": lambda x, d: x.cumsum(d),
    "logcumsumexp": lambda x, d: x.logcumsumexp(d),
    "cummax": lambda x, d: x.cummax(d).values,
    "cummin": lambda x, d: x.cummin(d)[0],
    "probabilities": lambda x, d: x.softmax(d).cumsum(d) * x,
    "minus the mean": lambda x, d: (x * 2).cumsum(d) - x.mean(d, keepdim=True),
}
SHAPES = [(37, 50), (3, 300), (5, 6, 7), (2, 3, 40, 9), (300,), (257, 3), (4, 1), (1, 1)]


def check(function: Callable[..., Tensor], *inputs: Tensor) -> Any:
    """Compares kernels with float64; PyTorch's own error in the dtype is allowed twice."""
    with torch.no_grad():
        made = bb.compile(function, *inputs, library="never")
        found, usual = made(*inputs), function(*inputs)
        exact = function(*(x.double() if x.is_floating_point() else x for x in inputs))
    assert (found.dtype, found.shape) == (usual.dtype, usual.shape)
    if not found.is_floating_point():
        assert torch.equal(found, usual)
        return made
    size = exact.abs().max().item() if exact.numel() else 0.0
    error = (usual.double() - exact).abs().max().item() if exact.numel() else 0.0
    bound = 2 * error + 8 * EPS[found.dtype] * max(size, 1.0)
    torch.testing.assert_close(found.double(), exact.double(), rtol=0, atol=bound)
    return made


def laid_out(shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    """Tensors of a shape that lie in memory as they stand, turned, and with gaps."""
    generator = torch.Generator().manual_seed(len(shape) + shape[0])
    turned = torch.randn(shape[::-1], generator=generator).to(dtype)
    apart = torch.randn((*shape[:-1], 2 * shape[-1]), generator=generator).to(dtype)
    plain = torch.randn(shape, generator=generator).to(dtype)
    return [plain, turned.permute(*reversed(range(len(shape)))), apart[..., ::2]]


@pytest.mark.parametrize("number", range(len(SHAPES)), ids=map(str, SHAPES))
def test_any_axis_and_layout(number: int) -> None:
    """Each axis of each shape with another scan and another layout."""
    shape, names = SHAPES[number], [*SCANS]
    x = laid_out(shape, torch.float32)
    for at, dim in enumerate(range(-len(shape), len(shape), 2)):
        name = names[(2 * number + at) % len(names)]
        made = check(lambda x, n=name, d=dim: SCANS[n](x, d), x[(number + at) % 3])
        assert made.explanation.fallbacks == []
        assert made.explanation.misc == []


@pytest.mark.parametrize("name", SCANS)
def test_each_scan(name: str) -> None:
    for dim in (0, 1):
        check(lambda x, d=dim: SCANS[name](x, d), torch.randn(33, 100))


@pytest.mark.parametrize("name", ["cumsum", "logcumsumexp", "probabilities"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    """Numbers of 16 bits are summed in float32."""
    check(lambda x: SCANS[name](x, -1), laid_out((9, 170), dtype)[2])


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.int64], ids=str)
def test_whole_numbers_give_int64(dtype: torch.dtype) -> None:
    x = torch.randint(0, 2, (5, 70)).to(dtype)
    check(lambda x: x.cumsum(1), x)
    check(lambda x: x.cumsum(0, dtype=torch.float32) * 0.5, x)
    if dtype is not torch.bool:
        check(lambda x: x.cummax(1).values, x)


def test_other_dtypes_stay_with_pytorch() -> None:
    x = torch.randint(0, 9, (5, 7), dtype=torch.int16)
    made = check(lambda x: x.cumsum(1, dtype=torch.int16), x)
    (left,) = made.explanation.misc
    assert left.reason == "kernels do not compute with torch.int16"


def test_products_of_floats_stay_with_pytorch() -> None:
    """The product of a later block may overflow, and 0 times infinity is NaN."""
    x = torch.full((3, 20000), 1.5)
    x[:, 0] = 0
    with torch.no_grad():
        made = bb.compile(lambda x: (x * 1).cumprod(1), x, library="never")
        assert torch.equal(made(x), torch.zeros_like(x))
    (left,) = made.explanation.misc
    assert left.reason == "running products by blocks may be NaN where PyTorch's are 0"


def test_sums_of_float64_overflow_no_sooner() -> None:
    x = torch.zeros(1, 24, dtype=torch.float64)
    x[0, 0], x[0, 8:10] = -1e308, 1e308
    with torch.no_grad():
        made = bb.compile(lambda x: (x * 1).cumsum(1), x, library="never")
        assert torch.equal(made(x), x.cumsum(1))


def test_places_of_maxima_stay_with_pytorch() -> None:
    x = torch.randn(5, 7)
    made = check(lambda x: x.cummax(1).values * 2 + x.cummax(1).indices, x)
    reasons = {left.reason for left in made.explanation.misc}
    assert "the places of running maxima or minima" in reasons


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 5), (3, 1, 5)], ids=str)
def test_nothing_one_element_and_no_axis(shape: tuple[int, ...]) -> None:
    for dim in (0, -1):
        check(lambda x, d=dim: x.cumsum(d) * 2, torch.randn(shape))


def test_sizes_that_change() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return (x * y).cumsum(-1) + y

    with torch.no_grad():
        compiled = torch.compile(function, backend="blockbuster", dynamic=True)
        for shape in ((3, 17), (5, 400), (2, 20_000), (1, 2), (70, 33)):
            x, y = torch.randn(2, *shape).unbind()
            wanted = function(x.double(), y.double())
            torch.testing.assert_close(compiled(x, y).double(), wanted, rtol=0, atol=2e-4)


def top_p(logits: Tensor) -> Tensor:
    """The most likely tokens whose probabilities sum up to 0.9; the others are masked."""
    ordered, _ = logits.sort(-1, descending=True)
    total = ordered.softmax(-1).cumsum(-1)
    return ordered.masked_fill(total > 0.9, -torch.inf)


def test_a_mask_by_running_sums_is_one_kernel() -> None:
    logits = torch.randn(4, 3000, dtype=torch.float64)
    with torch.no_grad():
        made = bb.compile(top_p, logits, library="never")
        torch.testing.assert_close(made(logits), top_p(logits))
    assert [left.operator for left in made.explanation.misc] == ["aten.sort.default"]
    assert len(made.graphs[0].fused) == 1


BESIDE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a slice of it": lambda x, y: (x * 2).cumsum(1)[:, 5:] * 3,
    "every second": lambda x, y: (x * 2).cumsum(1)[:, ::2] * 3,
    "the last": lambda x, y: (x * 2).cumsum(1)[:, -1] + 1,
    "of pieces": lambda x, y: torch.cat((x * 2, y), 1).cumsum(1) * 2,
    "a slice of pieces": lambda x, y: torch.cat((x * 2, y), 0).cumsum(0)[5:18] * 2,
    "in pieces": lambda x, y: torch.cat((x.cumsum(1), y.cumsum(1)), 1) * 2,
    "split afterwards": lambda x, y: (x * y).cumsum(1).view(12, 4, 5).sum(1),
    "split before": lambda x, y: (x * y).view(12, 4, 5).cumsum(1).view(12, 20) + y,
    "merged before": lambda x, y: (x * y).reshape(240).cumsum(0) * 2,
    "merged, then split": lambda x, y: (x * y).reshape(240).cumsum(0).view(12, 20) + y,
    "turned and merged": lambda x, y: x.t().reshape(240).cumsum(0) * 2,
    "in a product": lambda x, y: x.cumsum(1).t() @ y,
    "along both": lambda x, y: x.cumsum(1) + x.cumsum(0),
    "of equal rows": lambda x, y: x[:, None, :].expand(12, 3, 20).cumsum(1) * y[:, None],
    "exclusive": lambda x, y: torch.nn.functional.pad(x.cumsum(1), (1, 0))[:, :-1] * y,
    "from the end": lambda x, y: x.flip(1).cumsum(1).flip(1) * y,
}


@pytest.mark.sweep(2, reason="views, each in the tests of views too")
@pytest.mark.parametrize("name", BESIDE)
def test_views_before_and_after(name: str) -> None:
    x, y = torch.randn(2, 12, 20).unbind()
    made = check(BESIDE[name], x, y)
    assert made.explanation.fallbacks == []
