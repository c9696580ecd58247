"""Products of odd widths run on copies with zeros appended, where that is faster."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import blockbuster_fusion as bb
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.torch.explain import Explanation
from blockbuster_fusion.torch.rivals import library, padded

FAST, SLOW = Seconds(1e-12), Seconds(1.0)


@pytest.fixture(autouse=True)
def on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU stands in for a GPU on which padded products are fast, and others slow."""
    torch._dynamo.reset()
    monkeypatch.setattr(padded, "DEVICES", ("cpu",))

    def timed(self: Any, name: str, seen: Any, *_: Any) -> Seconds:
        return FAST if "padded" in str(seen) else SLOW

    monkeypatch.setattr(library.LibraryTimes, "_timed", timed)


def judged(function: Any, *inputs: Tensor) -> Explanation:
    """Compares the results with those of float64; the whole part has to be PyTorch's."""
    made = torch.compile(function, backend="blockbuster", options={"library": "auto"})
    with torch.no_grad():
        exact, usual = function(*(x.double() for x in inputs)), function(*inputs)
        found = made(*inputs)
        off, own = ((y.double() - exact).abs().max() for y in (found, usual))
        assert off <= 2 * own
        assert (found.shape, found.stride(), found.dtype) == (
            usual.shape,
            usual.stride(),
            usual.dtype,
        )
        return bb.explain(function, *inputs, options={"library": "auto"})


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape).bfloat16()


@pytest.mark.parametrize(
    ("rows", "summed", "columns", "turned"),
    [
        (5, 13, 21, ""),
        (5, 16, 21, "right"),
        (12, 13, 16, "left"),
        (1, 9, 1, ""),
        (33, 1, 7, "both"),
        (12, 24, 21, "both"),
    ],
)
def test_products_of_odd_widths(rows: int, summed: int, columns: int, turned: str) -> None:
    left, right = numbers(rows, summed), numbers(summed, columns)
    if turned in ("left", "both"):
        left = left.t().contiguous().t()
    if turned in ("right", "both"):
        right = right.t().contiguous().t()
    found = judged(torch.mm, left, right)
    assert [choice.recognised for choice in found.library] == [("aten.mm.default",)]


def test_a_linear_layer_with_a_bias() -> None:
    found = judged(F.linear, numbers(2, 3, 13), numbers(21, 13), numbers(21))
    names = [name for choice in found.library for name in choice.recognised]
    assert names == ["aten.addmm.default"]


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (torch.mm, (numbers(8, 16), numbers(16, 32))),  # aligned
        (torch.mm, (numbers(5, 13).float(), numbers(13, 7).float())),  # wide
        (torch.mm, (numbers(5, 26)[:, ::2], numbers(13, 7))),  # not row behind row
        (torch.addmm, (numbers(5, 7), numbers(5, 13), numbers(13, 7))),  # a matrix is added
        (torch.addmm, (numbers(1), numbers(5, 13), numbers(13, 7))),  # a bias of one element
    ],
)
def test_products_that_stay(function: Any, inputs: tuple[Tensor, ...]) -> None:
    found = judged(function, *inputs)
    assert not any(choice.recognised for choice in found.library)
