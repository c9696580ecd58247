"""Calls without AOTAutograd's wrapper: which graphs have them, and that results are the same."""

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.testing._internal.two_tensor import TwoTensor

import blockbuster_fusion as bb
from blockbuster_fusion.torch import backend
from blockbuster_fusion.torch.rivals.whole_model import Attempt
from helpers.torch_running import Watched


@pytest.fixture
def verdicts() -> Iterator[list[bool]]:
    """For each graph that was compiled, True if it is called without a wrapper."""
    found: list[bool] = []

    def noted(call: Any, *others: Any) -> Attempt:
        found.append(isinstance(call, backend._Watched))
        return Attempt(call, *others)

    with mock.patch.object(backend, "Attempt", noted):
        yield found


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def plain(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.softmax(-1) + y, y.tanh().t()


def constants(x: Tensor, y: Tensor) -> tuple[Any, ...]:
    return x.tanh() * 2 + y, None, 3


def written(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(y.tanh() * 2)
    return x.softmax(-1)


def given_back(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x, (x * y).tanh()


def shared(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Two results with one memory."""
    h = (x * y).tanh()
    return h, h.view(-1)


def turned(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """A result that is a view of an input."""
    return x.t(), (x * y).tanh()


def check(function: Callable[..., Any], *given: Tensor) -> Watched:
    made = Watched(function, library="never")
    with torch.no_grad():
        for _ in range(3):
            own, other = ([x.clone() for x in given] for _ in range(2))
            wanted, found = function(*own), made(*other)
            torch.testing.assert_close(found, wanted)
            torch.testing.assert_close(other, own)
            assert [x._version > 0 for x in other] == [x._version > 0 for x in own]
    return made


@pytest.mark.parametrize(
    ("function", "is_direct"),
    [
        *[(plain, True), (constants, True), (given_back, True), (shared, True)],
        *[(written, False), (turned, False)],
    ],
)
def test_graphs_without_effects_are_called_directly(
    function: Callable[..., Any], is_direct: bool, verdicts: list[bool]
) -> None:
    check(function, numbers(4, 5), numbers(4, 5).exp())
    assert verdicts == [is_direct]


def test_one_tensor_may_come_twice(verdicts: list[bool]) -> None:
    made, x = Watched(plain, library="never"), numbers(4, 5)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(made(x, x), plain(x, x))


def test_tensors_of_tensors_have_the_wrapper(verdicts: list[bool]) -> None:
    """Their wrapper gives the graph the tensors inside, of which there may be as many."""
    pair, y = TwoTensor(numbers(4, 5), numbers(4, 5).exp()), numbers(4, 5).exp()
    made = Watched(plain, library="never")
    with torch.no_grad():
        for found, wanted in zip(made(pair, y), plain(pair, y), strict=True):
            assert type(found) is type(wanted)
            for name in "ab" if type(wanted) is TwoTensor else ():
                torch.testing.assert_close(getattr(found, name), getattr(wanted, name))
    assert verdicts == [False]


def test_memory_is_shared_as_in_eager_mode() -> None:
    x, y = numbers(4, 5), numbers(4, 5)
    with torch.no_grad():
        first, second = Watched(shared, library="never")(x, y)
        same, _ = Watched(given_back, library="never")(x, y)
        view, _ = Watched(turned, library="never")(x, y)
    assert first.data_ptr() == second.data_ptr()
    assert same is x
    assert view.data_ptr() == x.data_ptr()


def test_modes_of_pytorch_have_the_wrapper(verdicts: list[bool]) -> None:
    """Gradients may be wanted where they are enabled; the wrapper switches autocasting off."""
    x, y = numbers(4, 5), numbers(4, 5)
    made = Watched(plain, library="never").compiled
    torch.testing.assert_close(made(x, y), plain(x, y))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found, wanted = Watched(plain, library="never")(x, y), plain(x, y)
    torch.testing.assert_close(found, wanted)
    assert verdicts == [False, False]
    with torch.inference_mode():
        torch.testing.assert_close(Watched(plain, library="never")(x, y), plain(x, y))
    assert verdicts[2:] == [True]


def test_inputs_of_other_kinds_have_tapes_of_their_own() -> None:
    """The tape of the last call is for inputs that are like its own alone."""
    made = Watched(plain, library="never")
    x, y = numbers(4, 4), numbers(4, 4)
    negated = torch._neg_view(x)
    with torch.no_grad():
        made(x, y)
        (graph,) = made.graphs
        others = (y.t(), numbers(8, 4)[::2], numbers(4, 8)[:, ::2], negated)
        for given in (x, *others, x, negated, x):
            found = graph.plan(given, y)
            torch.testing.assert_close(tuple(found), plain(given, y))


class Shifted(torch.nn.Module):
    """A softmax and a number."""

    def __init__(self, by: int) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: Tensor) -> Tensor:
        return x.softmax(-1) + self.by


def test_sizes_of_another_model_stay_static() -> None:
    """torch.compile knows code by its file, line and name: models must not share them."""
    models = [(Shifted(1), numbers(32, 128)), (Shifted(2), numbers(64, 128))]
    plans = []
    for model, x in models:
        torch.compiler.reset()
        plans.append(bb.plan(model, x))
    for (model, x), plan in zip(models, plans, strict=True):  # refused if a size were a symbol
        torch.testing.assert_close(bb.compile(model, x, plan=plan)(x), model(x))
