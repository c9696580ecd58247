"""Views and parts of arrays through torch.compile: all of them right, none of them an operator.

Most run on the interpreter, since views leave nothing to compile. Tests that depend on the memory
layout of arrays run compiled.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.torch_running import Watched

generator = torch.Generator().manual_seed(0)


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=generator)


def check(function: Callable[..., Any], *inputs: Any, target: str = "interpret") -> Watched:
    """The results equal eager's, and PyTorch runs no operators but views."""
    watched = Watched(function, target=target)
    watched.check(*inputs)
    assert watched.explanation.fallbacks == []
    assert watched.explanation.misc == []
    return watched


# ------------------------------------------------------------------------ views of computed arrays


def test_views_of_computed_arrays_in_one_kernel() -> None:
    def views(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        return (
            y.view(2, 2, 6).transpose(0, 1) + 1,
            y.reshape(24) + 1,
            y.t().reshape(6, 2, 2) + 1,
            y.unsqueeze(1).expand(4, 3, 6) + 1,
            y.flatten() - 1,
            y.view(4, 6, 1).squeeze(-1) * 3,
            y.view(2, 2, 3, 2).permute(3, 0, 2, 1) * 3,
            y.movedim(0, 1) * 3,
            y.unflatten(1, (3, 2)) * 3,
        )

    (region,) = check(views, numbers(4, 6)).explanation.regions
    assert len(region.parts) == 1


def test_a_permuted_array_that_is_merged() -> None:
    """Attention gives its heads back side by side: stored in that order, never copied."""

    def merged(x: Tensor, w: Tensor) -> Tensor:
        heads = torch.exp(x).view(2, 5, 3, 4).transpose(1, 2)
        back = (heads * 2).transpose(1, 2).reshape(2, 5, 12)
        return back @ w

    check(merged, numbers(2, 5, 12), numbers(12, 7))


def test_a_view_that_splits_across_a_merge() -> None:
    """(6, 4) seen as (4, 6) has no axes of its own: it is cut there, and still right."""

    def awkward(x: Tensor) -> Tensor:
        return torch.exp(x).view(4, 6).sum(-1)

    Watched(awkward, target="interpret").check(numbers(6, 4))


def test_grouped_heads() -> None:
    """GQA: expand and reshape repeat the keys without storing them."""

    def scores(q: Tensor, k: Tensor) -> Tensor:
        repeated = k[:, :, None].expand(2, 2, 3, 5, 4).reshape(2, 6, 5, 4)
        return q @ repeated.transpose(-1, -2)

    check(scores, numbers(2, 6, 5, 4), numbers(2, 2, 5, 4))
    check(
        lambda q, k: q @ (k * 2).repeat_interleave(3, 1).mT, *(numbers(2, n, 5, 4) for n in (6, 2))
    )


def test_an_array_and_its_transpose() -> None:
    check(lambda x: (x + x.t(), x @ x.t(), torch.exp(x) @ torch.exp(x)), numbers(4, 4))


def test_rows_and_columns_of_one_array() -> None:
    check(lambda x: (x[:, None] - x[None, :], x[:, None] * x), numbers(5))


# ------------------------------------------------------------------------ parts of arrays


def test_parts_of_inputs() -> None:
    """A part of an input is a view of it, with an offset and strides."""

    def parts(x: Tensor) -> tuple[Tensor, ...]:
        a, b, c = x.chunk(3, -1)
        d, e = x.split([2, 4], 1)
        first, *_ = x.unbind(0)
        return (
            x[1:3] * 2,
            x[:, ::2] * 2,
            x[:, 1::2] + x[:, ::2],
            x[-1] * 2,
            x[..., -2:] * 2,
            x.narrow(1, 1, 3) * 2,
            x.select(1, 2) * 2,
            a * b + c,
            d.sum() * e,
            first - 1,
            x.diagonal() * 2,
            x[:, 2, None] * x,
        )

    check(parts, numbers(4, 6), target="cpu")


def test_parts_of_computed_arrays() -> None:
    """A part of a computed array is read from memory: the kernel before stores the whole."""

    def parts(x: Tensor) -> tuple[Tensor, ...]:
        y = torch.exp(x)
        a, b = y.chunk(2, -1)
        gate, up = (y @ y.t()).split([1, 3], -1)
        return a * b, y[1:] * 2, y[:, ::2] - 1, y[0] + 1, gate * up

    check(parts, numbers(4, 6))


def test_what_is_cheap_is_computed_once_more_for_a_part_of_it() -> None:
    """A kernel computes a part of a product of inputs rather than that another one stores it."""
    watched = Watched(lambda x: ((x * 2)[1:] + 1, (x * 2).sum(0)), target="interpret")
    watched.check(numbers(4, 6))
    assert watched.explanation.misc == []


def test_slices_that_are_whole_or_nearly() -> None:
    def slices(x: Tensor) -> tuple[Tensor, ...]:
        y = torch.exp(x)
        return y[:] + 1, y[0:100] + 1, y[:, 0:6] + 1, y[:, :-1] + 1

    check(slices, numbers(4, 6))


# ------------------------------------------------------------------------ arrays behind one another


@pytest.mark.parametrize("target", ["interpret", "cpu"])
def test_joins(target: str) -> None:
    """Equal pieces are one kernel; unequal ones are stored where they belong."""

    def joined(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (
            torch.cat([x * 2, x + 1], 0),
            torch.cat([x * 2, x + 1, x], -1) * 3,
            torch.cat([x * 2, y + 1], 0),
            torch.cat([x, y * 2, x], 0) * 3,
            torch.stack([x * 2, x + 1]),
            torch.stack([x * 2, x + 1], -1) * 2,
            torch.stack([x * 2, x + 1], 1).flatten(1),
        )

    check(joined, numbers(4, 6), numbers(3, 6), target=target)


def test_joins_of_inputs_alone() -> None:
    """No kernel makes a piece, so PyTorch joins them, and `explain` says so."""
    watched = Watched(lambda x, y: torch.cat([x, y]), target="interpret")
    watched.check(numbers(2, 3), numbers(4, 3))
    assert [left.operator for left in watched.explanation.misc] == ["aten.cat.default"]


def test_joins_with_nothing() -> None:
    """The first step of a cache: an empty tensor and the first keys."""

    def grown(cache: Tensor, x: Tensor) -> Tensor:
        return torch.cat([cache, x * 2], -1)

    Watched(grown, target="interpret").check(torch.empty(0), numbers(3))
    Watched(grown, target="interpret").check(torch.empty(2, 0), numbers(2, 3))


def test_one_piece_in_two_joins() -> None:
    def twice(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        made = x * 2
        return torch.cat([made, y]), torch.cat([y, made]), made

    Watched(twice, target="interpret").check(numbers(2, 3), numbers(4, 3))


def test_a_piece_joined_with_itself() -> None:
    def copies(x: Tensor, y: Tensor) -> Tensor:
        made = torch.exp(x)
        return torch.cat([made, y, made])

    Watched(copies, target="interpret").check(numbers(2, 3), numbers(4, 3))


def test_pieces_of_another_dtype() -> None:
    """Floats behind whole numbers became whole numbers."""

    def mixed(x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        return torch.cat([x * 2, i * 2]), torch.cat([i, i + 1]), torch.cat([i + 1, x])

    Watched(mixed, target="interpret").check(numbers(3), torch.arange(3))
    Watched(mixed, target="interpret").check(numbers(3), torch.arange(4))


pad = torch.nn.functional.pad


def test_a_shift_is_one_kernel_with_what_it_is_mixed_with() -> None:
    """RWKV's words each see the one before."""

    def mixed(x: Tensor, share: Tensor) -> Tensor:
        return x * share + pad(x, (0, 0, 1, -1)) * (1 - share)

    watched = check(mixed, numbers(2, 5, 4), numbers(4), target="cpu")
    assert len(watched.explanation.kernels) == 1


def test_padding_of_lengths_and_by_lengths_that_change() -> None:
    def padded(x: Tensor, before: int) -> tuple[Tensor, ...]:
        long = x.shape[0]
        return pad(x, (1, 2)) * 2, pad(x, (0, 0, before, long)) * 2, pad(x, (0, 0, 9 - long, 0)) * 2

    watched = Watched(padded, dynamic=True, target="interpret")
    for length, before in ((4, 2), (7, 3), (5, 5)):
        watched.check(numbers(length, 3), before)
    assert len(watched.graphs) == 1
    assert watched.explanation.fallbacks == watched.explanation.misc == []


def test_what_is_left_of_an_array_is_another_one() -> None:
    x = numbers(4, 6)
    made = Watched(lambda x: pad(x, (-1, 0, 0, -2)), target="interpret")(x)
    assert torch.equal(made, x[:2, 1:])
    assert made.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


# ------------------------------------------------------------------------ rotary embeddings


def rotate_half(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Llama's: the second half negated and before the first."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """GPT-J's: neighbours turned together."""
    a, b = x[..., ::2], x[..., 1::2]
    return x * cos + torch.stack([-b, a], -1).flatten(-2) * sin


@pytest.mark.parametrize("rotate", [rotate_half, rotate_pairs])
def test_rotary_embeddings(rotate: Callable[..., Tensor]) -> None:
    def embedded(x: Tensor, w: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        heads = (x @ w).view(2, 5, 3, 4).transpose(1, 2)
        return rotate(heads, cos, sin)

    check(embedded, numbers(2, 5, 6), numbers(6, 12), numbers(5, 4), numbers(5, 4), target="cpu")


# ------------------------------------------------------------------------ how arrays lie in memory


def laid_out() -> dict[str, Tensor]:
    base = numbers(8, 12)
    return {
        "turned": numbers(6, 4).t(),
        "every second": base[::2, ::2],
        "shifted": base[3:7, 5:11],
        "expanded rows": numbers(1, 6).expand(4, 6),
        "expanded columns": numbers(4, 1).expand(4, 6),
        "one number": torch.tensor(2.0).expand(4, 6),
        "turned with gaps": numbers(6, 4, 2)[:, :, 0].t(),
        "flipped": numbers(4, 6).flip(0),
    }


def test_inputs_of_any_strides() -> None:
    """One kernel for all: how an input lies is said when it is called."""

    def used(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x + y, x @ y.t(), x.view(4, 6).sum(0), x.reshape(4, 2, 3).amax(-1)

    watched = Watched(used, target="cpu")
    other = numbers(4, 6)
    for x in laid_out().values():
        watched.check(x, other)
        watched.check(other, x)


def test_inputs_that_cannot_be_split_in_place() -> None:
    """A view that PyTorch would have to copy for: `reshape` of a transposed input."""
    check(lambda x: x.t().reshape(2, 12) * 2, numbers(4, 6), target="cpu")
    check(lambda x: x.reshape(24) * 2, numbers(6, 4).t(), target="cpu")


# ------------------------------------------------------------------------ results that are views


def test_results_that_are_views_of_inputs() -> None:
    def views(x: Tensor) -> tuple[Tensor, ...]:
        return x, x.t(), x[1:], x * 2, x.view(2, 12)

    watched = Watched(views, target="interpret")
    x = numbers(4, 6)
    watched.check(x)
    same, turned, *_ = watched(x)
    assert same is x
    assert turned.data_ptr() == x.data_ptr(), "a view stays a view"


def test_results_that_are_views_of_other_results() -> None:
    def views(x: Tensor) -> tuple[Tensor, ...]:
        y = torch.exp(x)
        return y, y.t(), y[1:], y.view(24), y.unsqueeze(0).expand(3, 4, 6), y

    check(views, numbers(4, 6))


def test_results_that_are_nothing_but_views_of_computed_arrays() -> None:
    check(lambda x: torch.exp(x).t(), numbers(4, 6))
    check(lambda x: torch.exp(x)[:, 1:3], numbers(4, 6))
    check(lambda x: torch.exp(x).view(2, 2, 6).permute(2, 0, 1), numbers(4, 6))
    check(lambda x: (x.sum(0).expand(3, 6), x.sum(0, keepdim=True).expand(4, 6)), numbers(4, 6))


def test_constant_results() -> None:
    def constant(x: Tensor) -> tuple[Any, ...]:
        return torch.zeros(3), torch.arange(4), x.shape[0], x * 0 + 1, torch.full((2,), 7)

    Watched(constant, target="interpret").check(numbers(4, 6))


# ------------------------------------------------------------------------ sizes


def test_symbolic_sizes_are_compiled_once() -> None:
    """Products, quotients and sums of a length: one plan for every length."""

    def sized(x: Tensor, past: Tensor) -> tuple[Tensor, ...]:
        batch, length, width = x.shape
        heads = x.view(batch, length, 2, width // 2).transpose(1, 2)
        whole = torch.cat([past, heads * 2], 2)  # past + length
        scores = heads @ whole.transpose(-1, -2)
        places = torch.arange(whole.shape[2]) - past.shape[2]
        mask = places[None, :] <= torch.arange(length)[:, None]
        weights = torch.softmax(scores.masked_fill(~mask, -torch.inf), -1)
        return (weights @ whole).transpose(1, 2).reshape(batch * length, width), x.flatten() * 2

    watched = Watched(sized, dynamic=True, target="cpu")
    for length, past in ((5, 3), (4, 8), (7, 7), (12, 2)):
        watched.check(numbers(2, length, 8), numbers(2, 2, past, 4))
    assert len(watched.graphs) == 1
    assert watched.explanation.fallbacks == []


def test_a_length_and_one_more() -> None:
    """s + 1 is a size of its own; so are 2s + 2 and (s + 1)s."""

    def grown(x: Tensor) -> tuple[Tensor, ...]:
        longer = torch.cat([x, x[:1] * 2])
        square = longer[:, None] * x[None, :]
        return longer * 2, torch.cat([longer, longer]) * 2, square.sum(0), square.flatten() - 1

    watched = Watched(grown, dynamic=True, target="interpret")
    for length in (4, 7, 3):
        watched.check(numbers(length))
    assert len(watched.graphs) == 1


def test_sizes_as_numbers() -> None:
    def mean(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sum(0) / x.shape[0], x * (x.shape[0] + 1)

    watched = Watched(mean, dynamic=True, target="interpret")
    for length in (4, 7):
        watched.check(numbers(length, 3))
    assert len(watched.graphs) == 1


def test_a_count_by_fractions_of_a_length() -> None:
    def counted(x: Tensor) -> Tensor:
        return torch.exp(-torch.arange(0, 0.5 * x.shape[0], 0.5)) + x

    watched = Watched(counted, dynamic=True, target="interpret")
    for length in (4, 7):
        watched.check(numbers(length))


def test_one_element_by_its_number() -> None:
    """`index_select` keeps the axis, though the number has none."""
    watched = Watched(lambda x, i: torch.index_select(x * 2, 0, i), target="interpret")
    watched.check(numbers(5), torch.tensor(3))
    watched.check(numbers(5, 4), torch.tensor(3))


def test_dimensions_of_length_1() -> None:
    def thin(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (x + y, x @ y.mT, torch.softmax(x, -1), x.sum(1), x.squeeze(1) * 2,
                torch.cat([x, y], 1) * 2, x.mean(-1, keepdim=True))  # fmt: skip

    for shape in ((3, 1, 4), (1, 1, 4), (3, 1, 1), (1, 1, 1)):
        Watched(thin, target="interpret").check(numbers(*shape), numbers(*shape))
    Watched(thin, target="interpret").check(numbers(3, 1, 4), numbers(3, 5, 4)[:, :1])


def test_a_length_that_becomes_1() -> None:
    """Decoding: the prompt is long, then every step has one token."""

    def attend(q: Tensor, k: Tensor) -> Tensor:
        return torch.softmax(q @ k.mT, -1) @ k

    watched = Watched(attend, target="cpu")
    for length, keys in ((5, 5), (1, 6), (1, 7), (3, 8)):
        watched.check(numbers(2, length, 4), numbers(2, keys, 4))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)], ids=str)
def test_empty_arrays_run_eagerly(shape: tuple[int, ...]) -> None:
    def used(x: Tensor) -> tuple[Tensor, ...]:
        return x * 2, x.sum(), torch.exp(x).sum(-1), x.reshape(-1) + 1, torch.cat([x, x])

    watched = Watched(used, target="interpret")
    watched.check(torch.empty(shape))
    assert "an axis of length 0" in str(watched.explanation.misc[0])


def test_products_along_an_empty_axis() -> None:
    def product(x: Tensor, y: Tensor) -> Tensor:
        return x @ y + 1

    Watched(product, target="interpret").check(torch.empty(2, 0), torch.empty(0, 3))


def test_a_symbolic_length_that_becomes_0() -> None:
    """A plan for every length meets an empty array: guards compile it anew, and it is right."""

    def used(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.exp(x).sum(0), x * 2

    watched = Watched(used, dynamic=True, target="cpu")
    for length in (4, 0, 3, 1):
        watched.check(numbers(length, 3))
