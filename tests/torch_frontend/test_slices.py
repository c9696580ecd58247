"""Slices that move up and concatenations that move down: the same results, and fewer kernels."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
from torch import Tensor, nn
from torch.nn import functional

from blockbuster_fusion.torch import compile_graph
from blockbuster_fusion.torch.slices.band import Band, extents, through_view
from helpers.torch_running import Watched

generator = torch.Generator().manual_seed(0)
LOOSE = {torch.float32: 1e-5}


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=generator)


def check(
    function: Callable[..., Any], *inputs: Any, target: str = "interpret", **options: Any
) -> Watched:
    watched = Watched(function, target=target, **options)
    watched.check(*inputs, tolerance=LOOSE)
    assert watched.explanation.fallbacks == []
    return watched


class Weighted(nn.Module):
    """A function of inputs and of weights."""

    def __init__(self, function: Callable[..., Any], *weights: Tensor) -> None:
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList(weights)

    def forward(self, *inputs: Tensor) -> Any:
        weights = [self.weights[i] for i in range(len(self.weights))]  # PyTorch 2.11 needs that
        return self.function(*inputs, *weights)


def rotated(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def interleaved(x: Tensor) -> Tensor:
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


# ------------------------------------------------------------------------ bands


def taken(x: Tensor, band: Band) -> Tensor:
    """A band by indexing."""
    n = x.shape[band.dim]
    period = n if band.period is None else int(band.period)
    kept = [i for i in range(n) if int(band.start) <= i % period < int(band.stop)]
    return x.index_select(band.dim, torch.tensor(kept))


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.long if seed % 3 else ()) for seed in range(60)]
)
def test_a_band_of_a_view_is_a_band_of_what_is_viewed(seed: int) -> None:
    chance = random.Random(seed)
    factors = [chance.choice([1, 2, 3, 4]) for _ in range(chance.randint(2, 5))]

    def shape() -> list[int]:
        made, left = list[int](), [*factors]
        while left:
            count = chance.randint(1, len(left))
            made.append(int(torch.tensor(left[:count]).prod()))
            left = left[count:]
        return made

    viewed = torch.arange(int(torch.tensor(factors).prod())).view(shape())
    shown = viewed.view(shape())
    moved = 0
    for dim, n in enumerate(shown.shape):
        for period in (p for p in range(1, n + 1) if n % p == 0):
            for start in range(period):
                for stop in range(start + 1, period + 1):
                    whole = None if period == n else sympy.Integer(period)
                    band = Band(dim, sympy.Integer(start), sympy.Integer(stop), whole)
                    found = through_view(band, extents(shown), extents(viewed))
                    if found is not None:
                        moved += 1
                        assert torch.equal(taken(shown, band).ravel(), taken(viewed, found).ravel())
    assert moved or viewed.numel() == 1


# ------------------------------------------------------------------------ fewer kernels


def test_the_halves_of_a_product_meet_in_one_kernel() -> None:
    def swiglu(x: Tensor, w: Tensor, out: Tensor) -> Tensor:
        gate, up = functional.linear(x, w).chunk(2, -1)
        return functional.linear(functional.silu(gate) * up, out)

    model = Weighted(swiglu, numbers(24, 8), numbers(8, 12))
    watched = check(model, numbers(2, 5, 8), target="cpu")
    (kernel,) = (k for k in watched.explanation.kernels if "aten.silu.default" in k.operators)
    assert kernel.operators.count("aten.mm.default") >= 2


TURNED = (("*mm_default*", "mul_tensor*", "add_tensor*"),)
"""Products and the sums that turn them are one kernel, if it is possible."""


@pytest.mark.parametrize("turned", [rotated, interleaved])
def test_a_rotary_embedding_is_computed_with_the_product(turned: Callable[..., Any]) -> None:
    def embedded(x: Tensor, cos: Tensor, sin: Tensor, w: Tensor) -> Tensor:
        q = functional.linear(x, w).view(2, 5, 3, 8).transpose(1, 2)
        q = q * cos + turned(q) * sin
        return torch.softmax(q @ q.transpose(-1, -2), -1) @ q

    model = Weighted(embedded, numbers(24, 6))
    inputs = numbers(2, 5, 6), numbers(5, 8), numbers(5, 8)
    watched = check(model, *inputs, target="cpu", together=TURNED)
    first, second = watched.explanation.kernels
    assert first.operators.count("aten.mm.default") == 2
    assert second.is_flash


def test_a_part_of_a_rotary_embedding() -> None:
    """Of the heads of one product of all three, a part is turned and the rest is not."""

    def embedded(x: Tensor, cos: Tensor, sin: Tensor, w: Tensor, b: Tensor) -> Tensor:
        x = functional.rms_norm(x, (6,))
        made = functional.linear(x, w, b).view(2, 5, 3, 24).transpose(1, 2)
        q, k, v = made.chunk(3, -1)
        q, k = (
            torch.cat((y[..., :4] * cos + rotated(y[..., :4]) * sin, y[..., 4:]), -1)
            for y in (q, k)
        )
        return torch.softmax(q @ k.transpose(-1, -2), -1) @ v

    model = Weighted(embedded, numbers(72, 6), numbers(72))
    inputs = numbers(2, 5, 6), numbers(5, 4), numbers(5, 4)
    normed = (("rsqrt", *TURNED[0]),)
    watched = check(model, *inputs, target="cpu", together=normed)
    assert [k.is_flash for k in watched.explanation.kernels] == [False, True]


def test_sinks_behind_the_scores_are_a_term_of_the_softmax() -> None:
    """For a length that is known, and then for any."""

    def attention(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
        scores = q @ k.transpose(-1, -2)
        ends = sinks.reshape(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[-2], -1)
        together = torch.cat((scores, ends), -1)
        together = together - together.max(-1, keepdim=True).values
        return torch.softmax(together, -1)[..., :-1] @ v

    watched = Watched(attention)
    for n in (5, 9):
        q, k, v = numbers(3, 2, n, 4), numbers(3, 2, n, 4), numbers(3, 2, n, 4)
        watched.check(q, k, v, numbers(2), tolerance=LOOSE)
    assert [k.is_flash for k in watched.explanation.kernels] == [True, True]


def test_a_maximum_without_its_place() -> None:
    watched = check(lambda x: (x.max(-1).values, x.min(0, keepdim=True).values), numbers(4, 6))
    assert watched.explanation.misc == []


def test_a_constant_without_a_row_is_evaluated() -> None:
    def packed(x: Tensor) -> Tensor:
        position = torch.arange(x.shape[0])
        before = torch.cat((position[:1] - 1, position[:-1]))
        text = (position - before != 1).cumsum(0)
        return torch.where(text[:, None] == text[None, :], x, 0)

    watched = check(packed, numbers(6, 6))
    assert watched.explanation.misc == []
    uneven = check(lambda x: torch.arange(6.0).sort(descending=True)[0] * x, numbers(6))
    assert any("sort" in left.operator for left in uneven.explanation.misc)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bool])
def test_running_sums_of_equal_numbers_are_multiples(dtype: torch.dtype) -> None:
    watched = check(lambda x: torch.ones(4, 6, dtype=dtype).cumsum(0) * x, numbers(6))
    assert watched.explanation.misc == []


def test_numbers_along_two_axes_are_two_inputs() -> None:
    """A mask of texts that are packed: where two words belong to the same one."""

    def masked(scores: Tensor, text: Tensor, v: Tensor) -> Tensor:
        owner = text * 2 + 1
        seen = owner[:, None, :] == owner[:, :, None]
        return torch.softmax(scores.masked_fill(~seen, -torch.inf), -1) @ v

    text = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 2, 2]])
    watched = check(masked, numbers(2, 5, 5), text, numbers(2, 5, 3), target="cpu")
    assert len(watched.explanation.kernels) == 1


# ------------------------------------------------------------------------ slices that stay


def test_a_product_that_is_read_whole_is_not_split() -> None:
    def both(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = x @ w
        return y.softmax(-1), y[:, :3] + 1

    watched = check(Weighted(both, numbers(6, 8)), numbers(4, 6), target="cpu")
    products = [k.operators.count("aten.mm.default") for k in watched.explanation.kernels]
    assert sum(products) == 1


def test_parts_that_overlap_are_not_computed_twice() -> None:
    def windows(x: Tensor, w: Tensor) -> Tensor:
        y = x @ w
        return y[:, :5] * y[:, 3:]

    watched = check(Weighted(windows, numbers(6, 8)), numbers(4, 6), target="cpu")
    products = [k.operators.count("aten.mm.default") for k in watched.explanation.kernels]
    assert sum(products) == 1


def test_a_product_is_not_split_where_nothing_meets() -> None:
    def attention(x: Tensor, w: Tensor) -> Tensor:
        q, k, v = functional.linear(x, w).chunk(3, -1)
        return torch.softmax(q @ k.transpose(-1, -2), -1) @ v

    watched = check(Weighted(attention, numbers(24, 6)), numbers(2, 5, 6), target="cpu")
    products = [k.operators.count("aten.mm.default") for k in watched.explanation.kernels]
    assert sum(products) == 1


def test_a_norm_of_a_rotated_product() -> None:
    """The mean needs all of the product, so the product stays whole."""

    def normed(x: Tensor, cos: Tensor, w: Tensor) -> Tensor:
        q = functional.rms_norm(functional.linear(x, w).view(2, 5, 3, 8), (8,))
        return q * cos + rotated(q)

    check(Weighted(normed, numbers(24, 6)), numbers(2, 5, 6), numbers(8))


def test_what_is_written_afterwards() -> None:
    """A slice of an input that is written later has the values from before."""

    def written(x: Tensor) -> Tensor:
        y = x * 2
        part = y[:, 1:] + x[:, :-1]
        x.add_(1)
        return part

    watched = Watched(written, target="interpret")
    watched.check(numbers(4, 6))


def test_the_last_of_a_text_that_may_be_shorter() -> None:
    watched = Watched(lambda x: (x * 2)[:, -3:].relu() * 2, dynamic=True, target="interpret")
    for n in (5, 2, 3, 1, 8):
        watched.check(numbers(2, n, 4))


def test_a_slice_from_a_place_that_is_given() -> None:
    watched = Watched(lambda x, s: (x * 2)[:, s:] + 1)
    for s in (1, 2, 3):
        watched.check(numbers(4, 6), s)
    assert watched.explanation.fallbacks == []


def test_a_custom_operator_is_called_each_time() -> None:
    calls = []

    @torch.library.custom_op("blockbuster_tests::tick", mutates_args=())
    def tick() -> Tensor:
        calls.append(1)
        return torch.full((4,), float(len(calls)))

    @tick.register_fake
    def _() -> Tensor:
        return torch.empty(4)

    watched = Watched(lambda x: x * 2 + tick(), target="interpret")
    assert [float(watched(torch.zeros(4))[0]) for _ in range(3)] == [1, 2, 3]


def test_an_error_while_slices_move_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model runs as it is, and the explanation says why."""

    def broken(*_: object, **__: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr(compile_graph, "move_slices", broken)
    watched = check(lambda x: (x * 2)[:, 1:] + 1, numbers(4, 6))
    assert "lost" in watched.explanation.halved[0]


CASES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "a slice of a slice": lambda x, w: (x @ w)[:, 1:7][:, 2:4] * 2,
    "steps of a slice": lambda x, w: (x @ w)[:, 1:7][:, ::2] * (x @ w)[:, 1:7][:, 1::2],
    "rows": lambda x, w: (x @ w)[1:3].relu(),
    "rows and columns": lambda x, w: (x @ w)[1:3, 2:5].relu(),
    "from the end": lambda x, w: (x @ w)[-2:, -3:].relu(),
    "one row": lambda x, w: (x @ w)[2].relu(),
    "one column": lambda x, w: (x @ w)[:, -1].relu(),
    "unbind": lambda x, w: torch.stack([y.relu() for y in (x @ w).view(4, 2, 4).unbind(1)]),
    "split": lambda x, w: [y.relu() for y in (x @ w).split([1, 5, 2], -1)],
    "a broadcast operand": lambda x, w: ((x @ w) + x[:, :1])[:, 2:4] * 2,
    "an expanded dimension": lambda x, w: x[:, None].expand(4, 3, 6)[:, 1:, 2:] * 2,
    "a sum along another axis": lambda x, w: (x @ w).relu().sum(0)[2:5] * 2,
    "a sum with its axis kept": lambda x, w: (x @ w).relu().sum(0, keepdim=True)[:, 2:5] * 2,
    "a sum along pieces": lambda x, w: torch.cat((x @ w, x.relu()), -1).sum(-1),
    "the largest of pieces": lambda x, w: torch.cat((x @ w, x[:, :1]), -1).amax(-1, keepdim=True),
    "a mean along pieces": lambda x, w: torch.cat((x @ w, x.relu()), -1).mean(-1),
    "a softmax along pieces": lambda x, w: torch.cat((x @ w, x), -1).softmax(-1)[:, :8] * 2,
    "half a piece of a softmax": lambda x, w: torch.cat((x @ w, x), -1).softmax(-1)[:, :3] * 2,
    "pieces of a batch": lambda x, w: torch.cat((x @ w, x.relu() @ w), 0) * 2,
    "pieces across pieces": lambda x, w: (torch.cat((x @ w, x.relu() @ w), -1) * 2)[:, 5:11] + 1,
    "pieces and what is whole": lambda x, w: torch.cat((x @ w, x.relu() @ w), 0) * (x @ w).sum(),
    "pieces of different kinds": lambda x, w: torch.cat((x, x @ w), -1) * 2,
    "an empty piece": lambda x, w: torch.cat((x @ w, x[:, 6:]), -1) * 2,
    "a list of one": lambda x, w: torch.cat([x @ w]) * 2,
    "pieces in pieces": lambda x, w: torch.cat([torch.cat([x @ w, x], -1) * 2, x], -1) + 1,
    "pieces of two dtypes": lambda x, w: (torch.cat((x @ w, x > 0), -1) * 2)[:, 5:10] + 1,
    "how many of pieces": lambda x, w: torch.cat((x > 0, x[:, :1] > 1), -1).sum(-1, keepdim=True),
    "far before the start": lambda x, w: (x @ w)[-100:3, -100:-6].relu(),
    "negative zeros": lambda x, w: ((x @ w / 0.0)[:, :3], (x @ w / -0.0)[:, :3]),
    "a sum of one number": lambda x, w: x[0, 0].sum(0) * 2 + x[1],
    "steps from before the start": lambda x, w: (x @ w)[:, -20::2] * 2,
    "strides of a slice": lambda x, w: (x @ w)[:, 2:4].as_strided((4, 2), (8, 1), 0) + 1,
    "lengths one of two kinds": lambda x, w: torch.cat((x[:, :1] > 0, x[:, 1:2] > 0), -1).sum(
        -1, keepdim=True
    ),
    "whole numbers and others": lambda x, w: torch.cat(((x * 5).long() + 1, x * 3), -1)[:, 2:4],
    "scores that overflow": lambda x, w: torch.cat((x @ w * 1e3, x), -1).softmax(-1)[:, :8] * 2,
    "a transposed product": lambda x, w: (x @ w).t()[1:3].relu(),
    "a part of a lookup": lambda x, w: w[torch.tensor([1, 3, 0])][:, 2:5] * 2,
    "a part of an arange": lambda x, w: torch.arange(8)[2:8] + x,
    "a part of a constant": lambda x, w: torch.full((4, 8), 2.0)[:, 1:7] * x,
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", CASES)
def test_as_eager(name: str) -> None:
    check(Weighted(CASES[name], numbers(6, 8)), numbers(4, 6))


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long if number % 2 else ())
        for number, name in enumerate(CASES)
    ],
)
def test_as_eager_for_any_length(name: str) -> None:
    model = Weighted(CASES[name], numbers(6, 8))
    watched = Watched(model, dynamic=True, target="interpret")
    watched.check(numbers(4, 6), tolerance=LOOSE)


def test_a_divided_node_with_a_slice_that_cannot_move() -> None:
    """A rotation of computed numbers whose first length is a symbol: the slices stay."""

    def rotated(x: Tensor) -> Tensor:
        x = torch.nn.functional.hardsigmoid(x)
        half = x.shape[-1] // 2
        v = torch.cat((-x[..., half:], x[..., :half]), -1)
        return x * v.cos() + v * v.sin()

    watched = Watched(rotated, dynamic=True, strict=True, threads=1)
    for length in (7, 3):
        watched.check(torch.randn(length, 5, 4))
    assert not watched.explanation.halved
