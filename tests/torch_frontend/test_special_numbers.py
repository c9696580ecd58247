"""NaN, infinities, signed zeros and numbers out of range, axes of length 1 and 0: as in eager."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, inf, nan
from torch.utils import _pytree as pytree

from helpers.torch_running import CALLS, Watched, copied

Function = Callable[..., Any]


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def check(function: Function, *inputs: Tensor, exact: bool = False) -> None:
    """Eager's numbers, NaN where it has NaN, and zeros of the same sign if `exact`."""
    __tracebackhide__ = True
    watched = Watched(function, threads=1)
    with torch.no_grad():
        wanted = pytree.tree_leaves(function(*copied(inputs)))
    for _ in CALLS:
        found = pytree.tree_leaves(watched(*copied(inputs)))
        for x, y in zip(found, wanted, strict=True):
            if exact:
                torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True)
                same_sign = torch.signbit(x) == torch.signbit(y)
                assert (same_sign | (y != 0)).all()
            else:
                torch.testing.assert_close(x, y, equal_nan=True)
    assert watched.explanation.fallbacks == []


# ---------------------------------------------------------------- axes of one element

ODD = (-inf, inf, nan, 3.0, 1000.3, -3e4)

NORMALISED: dict[str, Function] = {
    "softmax": lambda x, d: torch.softmax(x, d),
    "log_softmax": lambda x, d: torch.log_softmax(x, d),
    "layer_norm": lambda x, d: F.layer_norm(x.movedim(d, -1), (x.shape[d],)),
    "rms_norm": lambda x, d: F.rms_norm(x.movedim(d, -1), (x.shape[d],), eps=1e-6),
    "var": lambda x, d: x.var(d, correction=0),
    "mean": lambda x, d: x.mean(d),
    "logsumexp": lambda x, d: torch.logsumexp(x, d),
}


@pytest.mark.parametrize("name", NORMALISED)
def test_axes_of_length_one(name: str) -> None:
    """Softmax along one element was 1 even of an infinity, and log-softmax infinite."""
    x = torch.tensor([ODD])
    check(lambda x: NORMALISED[name](x, 0).nan_to_num(7.0), x)
    check(lambda x: NORMALISED[name](x, -1), x.T)


@pytest.mark.parametrize("name", NORMALISED)
def test_axes_that_are_broadcast(name: str) -> None:
    """Equal elements were softened as one, and their variance was that of rounding."""
    x = torch.tensor([ODD]).T
    check(lambda x: NORMALISED[name](x.expand(6, 3), -1), x)
    check(lambda x: NORMALISED[name](x.expand(6, 3), -1), 1e6 * numbers(6, 1))


def test_axes_that_are_broadcast_in_part() -> None:
    x = 1000 + numbers(4, 5)

    def function(x: Tensor) -> list[Tensor]:
        wide = x.unsqueeze(-1).expand(4, 5, 3).reshape(4, 15)
        return [wide.var(-1), wide.mean(-1), wide.softmax(-1), F.layer_norm(wide, (15,))]

    with torch.no_grad():
        wanted = function(x.double())
    for found, expected in zip(Watched(function, threads=1)(x), wanted, strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=2e-4, atol=2e-4)


def test_variances_at_an_offset() -> None:
    """The variance of rows around 1e5 is as exact as eager mode's."""
    x = 1e5 + numbers(50, 64)

    def function(x: Tensor) -> list[Tensor]:
        return [x.var(-1), x.std(0), torch.var_mean(x, -1)[0]]

    with torch.no_grad():
        exact, eager = function(x.double()), function(x)
    for found, own, wanted in zip(Watched(function, threads=1)(x), eager, exact, strict=True):
        error, allowed = ((y - wanted).norm() / wanted.norm() for y in (found, own))
        assert error <= 2 * allowed + 4 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_logsumexp_of_infinities(dtype: torch.dtype) -> None:
    x = torch.tensor([[65504.0, 65504.0], [1, 2], [inf, 1], [-inf, -inf], [nan, 1], [inf, -inf]])
    check(lambda x: torch.logsumexp(x, -1), x.to(dtype))


@pytest.mark.parametrize("masked", [True, False])
def test_attention_over_one_key(masked: bool) -> None:
    mask = torch.full((3, 1), masked)
    q, k = numbers(2, 3, 4), numbers(2, 1, 4)
    check(lambda q, k, m: torch.softmax((q @ k.mT).masked_fill(m, -inf), -1) @ k, q, k, mask)
    check(lambda q, k, m: F.scaled_dot_product_attention(q, k, k, ~m), q, k, mask)


# ---------------------------------------------------------------- zeros

ZEROS = torch.tensor([-0.0, 0.0, 1.0, -1.0, nan, 7.0, -7.0, -0.3])

SIGNED: dict[str, Function] = {
    "relu": lambda x: 1 / torch.relu(x),
    "relu6": lambda x: 1 / F.relu6(x),
    "clamp": lambda x: (x.clamp(min=0), x.clamp(max=0), x.clamp(-0.0, 0.0)),
    "hardtanh": lambda x: F.hardtanh(x, 0.0, 6.0),
    "nothing added": lambda x: (1 / (x + 0), 1 / (x + 0.0), 1 / (x + -0.0)),
    "nothing taken away": lambda x: (1 / (x - 0.0), 1 / (x - -0.0), 1 / (0.0 - x)),
    "negated": lambda x: (-x, x * -1, x.abs(), x.sign()),
    "divided": lambda x: (x // 2, x % 2, x // -2, x.trunc(), x.round(), x.ceil(), x.floor()),
    "one term": lambda x: (x[:, None].sum(-1), x[:, None].mean(-1)),
}  # fmt: skip


@pytest.mark.parametrize("name", SIGNED)
def test_zeros_have_a_sign(name: str) -> None:
    check(SIGNED[name], ZEROS, exact=True)


def test_attention_with_heads_of_no_width() -> None:
    q, v = numbers(1, 2, 3, 0), numbers(1, 2, 3, 4)
    check(F.scaled_dot_product_attention, q, q, v)
    check(F.scaled_dot_product_attention, q, q, q)


# ---------------------------------------------------------------- dtypes

FAR = torch.tensor([3e9, nan, inf, -inf, -3e9, 2.7, -2.7, 1e20, -1e20, 0.5, 2.0**31, 9.3e18])


@pytest.mark.parametrize("whole", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_floats_out_of_range_become_whole_numbers(whole: torch.dtype, dtype: torch.dtype) -> None:
    """The C compiler took `x.to(int32).float()` for a truncation, so that 3e9 stayed itself."""
    x = FAR.to(dtype)
    check(lambda x: (x.to(whole).to(dtype), x.to(whole), (x * 2).to(whole) * 0.5), x, exact=True)


def test_constants_have_a_dtype() -> None:
    x = numbers(3, 4).double()
    check(lambda x: torch.cat((torch.zeros_like(x), torch.ones_like(x))), x, exact=True)
    check(lambda x: torch.stack((torch.zeros_like(x), torch.zeros_like(x))), x, exact=True)
    check(lambda x: torch.full((4,), 0.1, dtype=torch.float64) + x.float(), x, exact=True)
    check(lambda x: torch.where(x > 0, torch.full_like(x, 0.1), x), x, exact=True)


@pytest.mark.parametrize("shape", [(1,), (5,), (1, 5), (5, 1), (3, 4)])
def test_float64_is_computed_in_float64(shape: tuple[int, ...]) -> None:
    """The operators behind a softmax along an axis of length 1 were computed in float32."""
    x = numbers(*shape).double()
    for function in (
        lambda x: torch.sigmoid(x.softmax(0)),
        lambda x: torch.tanh(torch.sigmoid(x.softmax(-1)).exp() / 3 + 0.1),
        lambda x: torch.log_softmax(x, 0) * 0.3 + F.gelu(x),
    ):
        wanted, found = function(x), Watched(function, threads=1)(x)
        torch.testing.assert_close(found, wanted, rtol=1e-14, atol=1e-15)


# ---------------------------------------------------------------- axes of no elements

EMPTY: dict[str, tuple[Function, tuple[Tensor, ...]]] = {
    "gated attention": (
        lambda q, k: torch.sigmoid(q) * F.scaled_dot_product_attention(q, k, k),
        (numbers(1, 2, 3, 4), numbers(1, 2, 0, 4)),
    ),
    "attention with distances": (
        lambda q, k: torch.softmax(q @ k.mT + torch.arange(k.shape[-2]), -1) @ k,
        (numbers(2, 3, 4), numbers(2, 0, 4)),
    ),
    "a product of no rank": (
        lambda x, a, b: (x @ x.T).relu() + (x @ a) @ b,
        (numbers(3, 4), numbers(4, 0), numbers(0, 3)),
    ),
    "covariance": (lambda x: (x - x.mean(0)).T @ (x - x.mean(0)) / -1, (numbers(0, 3),)),
    "of no rows": (lambda x: (F.layer_norm(x, (4,)), x.softmax(-1)), (numbers(0, 4),)),
    "reductions": (
        lambda x: (x.mean(0), x.sum(0), x.amax(1), x.prod(0), x.exp().sum(0) + 1),
        (numbers(0, 3),),
    ),
}


@pytest.mark.parametrize("name", EMPTY)
def test_axes_of_no_elements(name: str) -> None:
    function, inputs = EMPTY[name]
    check(function, *inputs)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 4)])
@pytest.mark.parametrize("correction", [0, 1.5, 3, 100])
def test_a_variance_divides_by_no_negative_number(
    shape: tuple[int, ...], correction: float
) -> None:
    def variance(x: Tensor) -> Tensor:
        return torch.var(x, None if x.dim() < 2 else -1, correction=correction)

    x = torch.arange(1.0, 1 + math.prod(shape)).reshape(shape)
    with torch.no_grad():
        wanted = variance(x)
    found = Watched(variance, threads=1)(x)
    torch.testing.assert_close(found, wanted, equal_nan=True)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("length", [1, 2])
def test_a_variance_of_equal_elements(length: int) -> None:
    """0 / 0 is NaN; the rounding residue of a product, divided by 0, was infinite."""

    def shares(x: Tensor) -> Tensor:
        made = x.exp() / x.exp().sum(-1, keepdim=True)
        return torch.var(made.expand(length), -1, correction=length)

    watched = Watched(shares, threads=1)
    assert all(watched(x).isnan() for x in numbers(100).split(1))


@pytest.mark.parametrize("name", ["sum", "prod"])
def test_a_result_in_int32(name: str) -> None:
    """Sums are made in int64, and were given out in it."""
    function = getattr(torch, name)
    check(lambda x: function(x, dtype=torch.int32), 4 * numbers(17), exact=True)


def test_softplus_that_divides_by_zero() -> None:
    def losses(x: Tensor, i: Tensor) -> Tensor:
        return F.softplus(F.cross_entropy(x, i, reduction="none"), 0.0)

    watched = Watched(losses, strict=True, threads=1)
    watched.check(numbers(3, 5), torch.tensor([0, 4, 2]))


def test_a_scale_of_a_number_that_is_taken_away() -> None:
    """The overload for numbers has `alpha` by its place."""
    watched = Watched(lambda x: torch.ops.aten.sub.Scalar(x, 2.0, 0.5), strict=True, threads=1)
    watched.check(torch.randn(3, 8))


def test_a_choice_of_its_own_condition() -> None:
    """A rewrite put the number last and negated the condition, wrongly also in the chosen value."""
    x = torch.tensor([nan, 1.0, 2.0])
    check(lambda x: (x != x).masked_fill(x != x, 4), x, exact=True)
    check(lambda x: torch.where(x <= 1, 2, (x <= 1).int()), x, exact=True)
