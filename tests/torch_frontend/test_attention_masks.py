"""Masks of attention that models write out: recognised, and right for queries that see no key."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import blockbuster_fusion as bb
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.torch import compiled_graph
from blockbuster_fusion.torch.rivals import library, part_weigher
from blockbuster_fusion.torch.rivals.attention import Attention, found_attention

TIMES, KEYS = 6, 9
SEEN = torch.rand(TIMES, KEYS, generator=torch.Generator().manual_seed(1)) < 0.6
SEEN[:, 0] = True
SEEN[2] = False
"""The third query sees no key."""
PADDING = torch.tensor([[True] * KEYS, [True] * 4 + [False] * 5, [False] * KEYS])
BIAS = torch.where(SEEN, 0.0, -math.inf)
LEAST = torch.finfo(torch.float32).min
Scores = Callable[[Tensor], Tensor]


def positions() -> tuple[Tensor, Tensor]:
    return torch.arange(KEYS).unsqueeze(0), torch.arange(TIMES).unsqueeze(1)


def columns_after_rows() -> Tensor:
    columns, rows = positions()
    return columns > rows


def rows_before_columns() -> Tensor:
    columns, rows = positions()
    return rows < columns


def attention(masked: Scores, scale: float = 0.4) -> Callable[..., Tensor]:
    return lambda q, k, v: masked(q @ k.mT * scale).softmax(-1).to(v.dtype) @ v


MASKED: dict[str, Scores] = {
    "filled": lambda s: s.masked_fill(~SEEN, -math.inf),
    "filled where it is 0": lambda s: s.masked_fill(SEEN.int() == 0, -math.inf),
    "chosen": lambda s: torch.where(SEEN, s, -math.inf),
    "chosen the other way": lambda s: torch.where(~SEEN, -math.inf, s),
    "chosen from a tensor": lambda s: torch.where(SEEN, s, torch.full((), -math.inf)),
    "filled with the least": lambda s: s.masked_fill(~SEEN, LEAST),
    "chosen from the least": lambda s: torch.where(SEEN, s, LEAST),
    "filled and then scaled": lambda s: s.masked_fill(~SEEN, LEAST) * 0.125,
    "padding": lambda s: s.masked_fill(~PADDING[:, None, None], -math.inf),
    "padding with the least": lambda s: s.masked_fill(~PADDING[:, None, None], LEAST),
    "bias": lambda s: s + torch.where(SEEN, 0.0, -math.inf),
    "bias that is given": lambda s: s + BIAS,
    "bias of the least": lambda s: s + torch.where(SEEN, 0.0, LEAST),
}
CAUSAL: dict[str, Scores] = {
    "columns after rows": lambda s: s.masked_fill(columns_after_rows(), -math.inf),
    "rows before columns": lambda s: s.masked_fill(rows_before_columns(), LEAST),
    "not after": lambda s: torch.where(~columns_after_rows(), s, -math.inf),
}
NOT_CAUSAL: dict[str, Callable[[], Tensor]] = {
    "every other column": lambda: torch.arange(0, 2 * KEYS, 2).unsqueeze(0) <= positions()[1],
    "one row": lambda: positions()[0] <= torch.arange(1).unsqueeze(1),
    "one column": lambda: torch.arange(1).unsqueeze(0) <= positions()[1],
    "all keys before a query": lambda: positions()[0] < positions()[1],
    "all keys after a query": lambda: positions()[0] >= positions()[1],
}
NOT_MASKED: dict[str, Scores] = {
    "a fill that is not low": lambda s: s.masked_fill(~SEEN, -1e9),
    "a high fill": lambda s: s.masked_fill(~SEEN, math.inf),
    "filled where it is seen by another": lambda s: torch.where(SEEN, s, s.flip(-1)),
    "too low for the softmax": lambda s: s.masked_fill(~SEEN, LEAST).bfloat16(),
    "too low on the way": lambda s: s.masked_fill(~SEEN, LEAST).half().float(),
    "too low when it is scaled": lambda s: s.masked_fill(~SEEN, LEAST) * 4.0,
    "two masks": lambda s: s.masked_fill(~SEEN, LEAST).masked_fill(columns_after_rows(), LEAST),
}


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Attention]:
    """The attention that is recognised, which PyTorch's operator then runs."""
    torch._dynamo.reset()
    seen: list[Attention] = []

    def noted(analysis: Any) -> list[Attention]:
        seen.extend(made := found_attention(analysis))
        return made

    def timed(self: object, function: str, *_: object) -> Seconds:
        return Seconds(1.0 if "bmm" in function or "_softmax" in function else 1e-12)

    monkeypatch.setattr(part_weigher, "found_attention", noted)
    monkeypatch.setattr(library.LibraryTimes, "_timed", timed)
    monkeypatch.setattr(compiled_graph.CompiledGraph, "gains", True)  # run the plan
    return seen


def inputs_of(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(3, 4, length, 8).to(dtype) for length in (TIMES, KEYS, KEYS)]


def check(function: Callable[..., Tensor], inputs: list[Tensor], tolerance: float = 1e-5) -> Any:
    """Compares with the model in float64, where what is not a number has its place too."""
    with torch.no_grad():
        compiled = bb.compile(function, *inputs, library="auto")
        exact = function(*(x.double() for x in inputs))
        torch.testing.assert_close(
            compiled(*inputs).double(), exact, atol=tolerance, rtol=tolerance, equal_nan=True
        )
    return compiled.explanation


def by_the_library(explanation: Any) -> bool:
    return any("bmm" in str(choice.operators) for choice in explanation.library)


@pytest.mark.parametrize("name", MASKED)
def test_masks_that_are_recognised(name: str, found: list[Attention]) -> None:
    inputs = inputs_of()
    assert by_the_library(check(attention(MASKED[name]), inputs))
    (x,) = found
    assert x.mask is not None
    fills = {"bias": -math.inf, "bias of the least": None, "filled and then scaled": LEAST}
    assert x.mask.fill == fills.get(name, LEAST if "least" in name else -math.inf)


@pytest.mark.parametrize("name", ["filled", "filled with the least", "bias"])
def test_heads_without_a_batch(name: str, found: list[Attention]) -> None:
    check(attention(MASKED[name]), [x[0] for x in inputs_of()])
    assert len(found) == 1


@pytest.mark.parametrize("fill", [-math.inf, torch.finfo(torch.bfloat16).min])
def test_sixteen_bits(fill: float, found: list[Attention]) -> None:
    """Scores that are cast to float32 before the softmax keep their fill."""

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q @ k.mT).masked_fill(~SEEN, fill)
        return scores.softmax(-1, dtype=torch.float32).to(q.dtype) @ v

    check(function, inputs_of(torch.bfloat16), 5e-2)
    assert len(found) == 1


@pytest.mark.parametrize("fill", [-math.inf, LEAST])
def test_grouped_heads(fill: float, found: list[Attention]) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (x[:, :, None].expand(3, 2, 2, KEYS, 8).reshape(3, 4, KEYS, 8) for x in (k, v))
        return (q @ k.mT).masked_fill(~SEEN, fill).softmax(-1) @ v

    q, k, v = inputs_of()
    check(function, [q, k[:, :2].contiguous(), v[:, :2].contiguous()])
    (x,) = found
    assert x.is_grouped == (fill == -math.inf)


@pytest.mark.parametrize("name", CAUSAL)
def test_masks_that_are_causal(name: str, found: list[Attention]) -> None:
    check(attention(CAUSAL[name]), inputs_of())
    (x,) = found
    assert x.is_causal
    assert x.mask is None


@pytest.mark.parametrize("name", NOT_CAUSAL)
def test_masks_of_positions_that_are_not_causal(name: str, found: list[Attention]) -> None:
    check(attention(lambda s: torch.where(NOT_CAUSAL[name](), s, -math.inf)), inputs_of())
    (x,) = found
    assert not x.is_causal
    assert x.mask is not None


@pytest.mark.parametrize("name", NOT_MASKED)
def test_masks_that_are_none(name: str, found: list[Attention]) -> None:
    """Kernels leave casts out, so that queries that see no key are not compared."""
    function, inputs = attention(NOT_MASKED[name]), inputs_of()
    with torch.no_grad():
        made = bb.compile(function, *inputs, library="auto")(*inputs)
        pair = [x[:, :, [0, 1, 3, 4, 5]] for x in (made, function(*inputs))]
    torch.testing.assert_close(*pair, atol=1e-2, rtol=1e-2, equal_nan=True)
    assert not found


def test_half_precision_has_no_lowest_number(found: list[Attention]) -> None:
    """The least float16 is a score that others may have."""
    fill = torch.finfo(torch.float16).min
    check(attention(lambda s: s.masked_fill(~SEEN, fill)), inputs_of(torch.float16), 5e-3)
    assert not found


SECOND_ROW = torch.arange(TIMES)[:, None] != 1
"""False in the second row alone."""
LOWEST_ROWS: dict[str, Scores] = {
    "some": lambda b: b.where(SEEN, LEAST),
    "infinite": lambda b: b.where(SEEN, -math.inf),
    "a row of each": lambda b: b.where(SEEN, -math.inf).where(SECOND_ROW, LEAST),
}


@pytest.mark.parametrize("name", LOWEST_ROWS)
def test_biases_that_are_inputs_may_hide_all_keys(name: str, found: list[Attention]) -> None:
    """Rows of the lowest number give the mean of the values, and infinite ones NaN."""

    def function(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return (q @ k.mT * 0.4 + bias).softmax(-1) @ v

    bias = LOWEST_ROWS[name](torch.randn(TIMES, KEYS))
    check(function, [*inputs_of(), bias])
    assert len(found) == 1


def test_zeros_where_a_bias_is_zero_are_not_those_of_the_operator(found: list[Attention]) -> None:
    """A query whose biases are all 0 sees every key; this model gives it 0 all the same."""

    def function(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        out = (q @ k.mT * 0.4 + bias).softmax(-1) @ v
        return torch.where(bias.any(-1, keepdim=True), out, 0.0)

    bias = torch.randn(TIMES, KEYS)
    bias[1] = 0
    check(function, [*inputs_of(), bias])
    assert not any(x.has_zeros for x in found)


def test_low_biases_in_half_precision_round_the_scores(found: list[Attention]) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return (q @ k.mT * 0.4 + bias).softmax(-1) @ v

    bias = torch.zeros(TIMES, KEYS).where(SEEN, torch.finfo(torch.float16).min).half()
    with torch.no_grad():
        bb.compile(function, *inputs_of(torch.float16), bias, library="auto")
    assert not found
