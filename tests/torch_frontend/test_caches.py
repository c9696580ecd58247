"""New keys and values are written into a static cache by the kernels that make them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from blockbuster_fusion.torch.backend import backend
from helpers.torch_running import Watched

Forward = Callable[..., Any]


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype)


def rotated(x: Tensor, at: Tensor) -> Tensor:
    angles = at[:, None] * torch.arange(1, x.shape[-1] // 2 + 1)
    angles = torch.cat((angles, angles), -1)
    a, b = x.chunk(2, -1)
    return (x * angles.cos() + torch.cat((-b, a), -1) * angles.sin()).to(x.dtype)


def step(x: Tensor, q: Tensor, k: Tensor, cache: Tensor, at: Tensor) -> Tensor:
    """A step of attention with grouped heads over a cache of keys, which are also its values."""
    batch, rows, _ = x.shape
    heads, width = cache.shape[1], cache.shape[3]
    query = rotated(F.linear(x, q).view(batch, rows, -1, width).transpose(1, 2), at)
    key = rotated(F.linear(x, k).view(batch, rows, heads, width).transpose(1, 2), at)
    cache.index_copy_(2, at, key)
    mask = torch.arange(cache.shape[2])[None] <= at[:, None]
    return F.scaled_dot_product_attention(query, cache, cache, attn_mask=mask, enable_gqa=True)


def step_inputs(rows: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    x, q, k = numbers(3, rows, 20), numbers(4 * 6, 20) / 4, numbers(2 * 6, 20) / 4
    at = torch.arange(7, 7 + rows)
    return *(t.to(dtype) for t in (x, q, k, numbers(3, 2, 21, 6))), at


def scattered(made: Watched) -> list[str]:
    """The kernels that write into an input."""
    return [k.listing for k in made.explanation.kernels if " at t" in k.listing]


def left(made: Watched) -> list[str]:
    """The operators that PyTorch runs."""
    return [x.operator for x in made.explanation.misc]


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_of_attention(rows: int, dtype: torch.dtype) -> None:
    made = Watched(step, library="never")
    made.check(*step_inputs(rows, dtype))
    assert len(scattered(made)) == 1
    assert not left(made)


def by_copy(cache: Tensor, new: Tensor, at: Tensor) -> Tensor:
    cache.index_copy_(1, at, new.tanh())
    return cache.sum(1)


def by_index(cache: Tensor, new: Tensor, at: Tensor) -> Tensor:
    cache[:, at] = new.tanh()
    return cache.sum(1)


def by_one_place(cache: Tensor, new: Tensor, at: Tensor) -> Tensor:
    torch.ops.aten.index_put_(cache, [None, at[0]], new[:, 0].tanh())
    return cache.sum(1)


def in_the_middle(cache: Tensor, new: Tensor, at: Tensor) -> Tensor:
    """The cache is the last axis of what is computed, turned."""
    cache.index_copy_(1, at, (new.mT.mT * 2).exp())
    return cache * 3


def along_the_last(cache: Tensor, new: Tensor, at: Tensor) -> Tensor:
    cache.index_copy_(2, at, new.mT.tanh().softmax(1))
    return cache.amax(-1)


def of_a_norm(cache: Tensor, new: Tensor, at: Tensor) -> Tensor:
    cache.index_copy_(1, at, F.layer_norm(new, new.shape[-1:]))
    return cache.square().sum()


def rows_are_read_too(cache: Tensor, new: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    rows = new.tanh()
    cache.index_copy_(1, at, rows)
    return rows * 2, rows


def given_rows(cache: Tensor, new: Tensor, at: Tensor) -> Tensor:
    cache.index_copy_(1, at, new)
    return new + 1


FORMS: dict[str, tuple[Forward, tuple[int, ...], tuple[int, ...]]] = {
    "by copy": (by_copy, (3, 9, 5), (3, 4, 5)),
    "by index": (by_index, (3, 9, 5), (3, 4, 5)),
    "one place": (by_one_place, (3, 9, 5), (3, 4, 5)),
    "turned": (in_the_middle, (3, 70, 33), (3, 4, 33)),
    "last axis": (along_the_last, (3, 5, 9), (3, 4, 5)),
    "norm": (of_a_norm, (3, 9, 130), (3, 4, 130)),
    "read too": (rows_are_read_too, (3, 9, 5), (3, 4, 5)),
    "given": (given_rows, (3, 9, 5), (3, 4, 5)),
}
PLACES = [5, 0, 7, 2]


@pytest.mark.parametrize("target", ["cpu", "interpret"])
@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str, target: str) -> None:
    function, cache, new = FORMS[form]
    made = Watched(function, library="never", target=target)
    made.check(numbers(*cache), numbers(*new), torch.tensor(PLACES))
    assert len(scattered(made)) == (target == "cpu")
    assert not left(made)


@pytest.mark.parametrize("function", [by_copy, by_index, by_one_place])
@pytest.mark.parametrize("batch", [1, 2])
def test_one_row(function: Forward, batch: int) -> None:
    """PyTorch leaves out the axes of one sequence and of one row where it assigns."""
    made = Watched(function, library="never")
    made.check(numbers(batch, 9, 5), numbers(batch, 1, 5), torch.tensor([6]))
    assert len(scattered(made)) == 1
    assert not left(made)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    made = Watched(by_copy, library="never")
    made.check(numbers(3, 9, 5).to(dtype), numbers(3, 4, 5).to(dtype), torch.tensor(PLACES))
    assert not left(made)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_dtypes_of_places(dtype: torch.dtype) -> None:
    made = Watched(by_index, library="never")
    made.check(numbers(3, 9, 5), numbers(3, 4, 5), torch.tensor(PLACES, dtype=dtype))
    assert not left(made)


@pytest.mark.parametrize(
    "strided",
    [
        lambda x: x.mT.contiguous().mT,
        lambda x: torch.cat((x, x), 1)[:, ::2],
        lambda x: torch.cat((x, x), -1)[..., 3 : 3 + x.shape[-1]],
        lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    ],
)
def test_strides(strided: Callable[[Tensor], Tensor]) -> None:
    made = Watched(by_copy, library="never")
    made.check(strided(numbers(3, 9, 5)), strided(numbers(3, 4, 5)), torch.tensor(PLACES))
    assert len(scattered(made)) == 1


def test_places_differ_from_call_to_call() -> None:
    made = Watched(by_copy, library="never")
    for places in ([0, 1, 2, 3], [8, 0, 4, 3], [3, 2, 1, 0], [4, 5, 6, 7]):
        made.check(numbers(3, 9, 5), numbers(3, 4, 5), torch.tensor(places))


def test_places_from_the_end() -> None:
    made = Watched(by_index, library="never")
    made.check(numbers(3, 9, 5), numbers(3, 4, 5), torch.tensor([5, -9, -1, 2]))
    assert len(scattered(made)) == 1


def test_equal_places_get_one_of_their_rows() -> None:
    made = Watched(by_copy, library="never")
    cache, new = numbers(3, 9, 5), numbers(3, 1, 5).expand(3, 4, 5).contiguous()
    made.check(cache, new, torch.tensor([5, 2, 5, 2]))


@pytest.mark.parametrize("places", [[0, 1, 2, 9], [-10, 1, 2, 3]])
def test_places_out_of_range(places: list[int]) -> None:
    made = Watched(by_index, library="never")
    made.check(numbers(3, 9, 5), numbers(3, 4, 5), torch.tensor(PLACES))
    for _ in range(2):
        with pytest.raises(IndexError):
            made(numbers(3, 9, 5), numbers(3, 4, 5), torch.tensor(places))


def adding(cache: Tensor, new: Tensor, at: Tensor) -> Tensor:
    torch.ops.aten.index_put_(cache, [None, at], new.tanh(), accumulate=True)
    return cache.sum(1)


def old_rows_too(cache: Tensor, new: Tensor, at: Tensor) -> Tensor:
    before = cache.sum(1)
    cache.index_copy_(1, at, new.tanh())
    return cache.sum(1) - before


def twice(cache: Tensor, new: Tensor, at: Tensor) -> Tensor:
    cache.index_copy_(1, at, new.tanh())
    cache.index_copy_(1, at + 1, new.sigmoid())
    return cache.sum(1)


def by_mask(cache: Tensor, new: Tensor, at: Tensor) -> Tensor:
    cache[:, at] = new[:, :1].tanh()
    return cache.sum(1)


def along_two(cache: Tensor, new: Tensor, at: Tensor) -> Tensor:
    cache[at.clamp(0, 2), at] = new[0].tanh()
    return cache.sum(1)


def of_each(cache: Tensor, new: Tensor, at: Tensor) -> Tensor:
    """Each sequence has a place of its own."""
    cache[torch.arange(len(cache)), :, at] = new[:, :, 0].tanh()
    return cache.sum(2)


def rows_of_each(cache: Tensor, new: Tensor, at: Tensor) -> Tensor:
    """Each sequence has places of its own."""
    places = at[:, None] + torch.arange(new.shape[2])
    cache[torch.arange(len(cache))[:, None], :, places] = new.transpose(1, 2).tanh()
    return cache.sum(2)


def of_each_beside(cache: Tensor, new: Tensor, at: Tensor) -> Tensor:
    """The axis of the sequences is beside that of the places."""
    cache = cache.transpose(1, 2)
    cache[torch.arange(len(cache)), at] = new[:, :, 0].tanh()
    return cache.sum(1)


@pytest.mark.parametrize("target", ["cpu", "interpret"])
@pytest.mark.parametrize("function", [of_each, rows_of_each])
def test_sequences_with_places_of_their_own(function: Forward, target: str) -> None:
    made = Watched(function, library="never", target=target)
    made.check(numbers(3, 2, 19, 6), numbers(3, 2, 4, 6), torch.tensor([7, 0, 15]))
    assert len(scattered(made)) == (target == "cpu")
    assert not left(made)


def test_sequences_with_places_of_their_own_in_a_view() -> None:
    made = Watched(of_each_beside, library="never")
    made.check(numbers(3, 2, 19, 6), numbers(3, 2, 4, 6), torch.tensor([7, 0, 18]))


@pytest.mark.parametrize("function", [adding, old_rows_too, twice, by_mask, along_two])
def test_other_updates(function: Forward) -> None:
    """Kernels write no rows that are added, broadcast, or read before."""
    made = Watched(function, library="never")
    made.check(numbers(3, 9, 5), numbers(3, 4, 5), torch.tensor([5, 0, 7, 2]))
    assert not scattered(made)


def returned(cache: Tensor, new: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    cache.index_copy_(1, at, new.tanh())
    return cache, cache.sum(1)


def test_the_cache_is_a_result() -> None:
    made = Watched(returned, library="never")
    cache, new, at = numbers(3, 9, 5), numbers(3, 4, 5), torch.tensor(PLACES)
    made.check(cache, new, at)
    assert made(cache, new, at)[0].data_ptr() == cache.data_ptr()


def two_caches(one: Tensor, other: Tensor, new: Tensor, at: Tensor) -> Tensor:
    rows = new.tanh()
    one.index_copy_(1, at, rows)
    other.index_copy_(1, at, rows)
    return one.sum(1) + other.sum(1)


def test_two_caches() -> None:
    """The same rows are written into two caches."""
    made = Watched(two_caches, library="never")
    made.check(numbers(3, 9, 5), numbers(3, 8, 5), numbers(3, 4, 5), torch.tensor(PLACES))


def test_places_that_are_computed() -> None:
    def counted(cache: Tensor, new: Tensor, start: Tensor) -> Tensor:
        cache.index_copy_(1, start + torch.arange(new.shape[1]), new.tanh())
        return cache.sum(1)

    made = Watched(counted, library="never")
    made.check(numbers(3, 9, 5), numbers(3, 4, 5), torch.tensor(3))
    assert len(scattered(made)) == 1
    assert not left(made)


def test_lengths_that_change() -> None:
    made = Watched(by_copy, library="never", dynamic=True)
    for rows in (4, 2, 7, 3):
        at = torch.arange(rows) * 2 % 9
        made.check(numbers(3, 9, 5), numbers(3, rows, 5), at)
    assert scattered(made)


@pytest.mark.parametrize("rows", [1, 40])
def test_weighed_against_PyTorch(rows: int) -> None:
    """Whatever runs them, the results are right."""
    made = Watched(step)
    made.check(*step_inputs(rows)[:4], torch.arange(rows) % 21)


def test_tuned() -> None:
    """Configurations are measured and checked with places of which no two are equal."""
    torch._dynamo.reset()
    with torch.no_grad():
        tuning = partial(
            backend, mode="max-autotune", options={"seconds": 5, "workers": 1, "time_model": False}
        )
        made = torch.compile(by_copy, backend=tuning)
        cache, new, at = numbers(3, 90, 50), numbers(3, 40, 50), torch.arange(40) * 2
        own = cache.clone()
        torch.testing.assert_close(made(own, new, at), by_copy(cache, new, at))
    torch.testing.assert_close(own, cache)
