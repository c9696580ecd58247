"""Chains of views that are one step, and linear layers that are one operator."""

import random
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import blockbuster_fusion as bb
from blockbuster_fusion.torch.plan.cuda_graph import _why_not
from blockbuster_fusion.torch.plan.steps import OperatorStep
from blockbuster_fusion.torch.plan.tape import TensorTape
from blockbuster_fusion.torch.plan.views import ViewStep
from helpers.effort import part
from helpers.rivals import by_pytorch, is_product
from helpers.torch_running import Watched

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def _fast_products() -> Iterator[None]:
    """PyTorch runs products, and kernels all else: a plan has both."""
    torch._dynamo.reset()
    with by_pytorch(is_product):
        yield


def compiled(model: Callable[..., Any], *inputs: Any) -> tuple[Any, Any]:
    """A compiled model, and its plan, which has been called."""
    with torch.no_grad():
        made = bb.compile(model, *inputs, library="auto", dynamic=False)
        made(*inputs)
    return made, made.graphs[0].plan


def operators(plan: Any) -> list[str]:
    return [step.name for step in plan.steps if isinstance(step, OperatorStep)]


# --------------------------------------------------------------------------- linear layers


class Layers(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 20, bias=bias), nn.Linear(20, 8, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.second(torch.tanh(self.first(x)) * 2))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5, 12), (2, 3, 12), (2, 1, 3, 12)], ids=str)
def test_a_linear_layer_is_one_operator(shape: tuple[int, ...], bias: bool) -> None:
    model, x = Layers(bias).eval(), torch.randn(shape)
    made, plan = compiled(model, x)
    assert operators(plan).count("aten.linear.default") == 2
    assert not [name for name in operators(plan) if "mm" in name or "permute" in name]
    with torch.no_grad():
        torch.testing.assert_close(made(x), model(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: torch.tanh(x @ w),
        lambda x, w: torch.tanh(torch.addmm(x[:, :4] @ w[:4], x, w)),
        lambda x, w: torch.tanh(torch.addmm(w[0], x, w, alpha=2)),
    ],
    ids=["no transpose", "matrix added", "scaled"],
)
def test_what_is_no_linear_layer(function: Callable[..., Tensor]) -> None:
    x, w = torch.randn(6, 10), torch.randn(10, 7)
    made, plan = compiled(function, x, w)
    assert "aten.linear.default" not in operators(plan)
    torch.testing.assert_close(made(x, w), function(x, w))


# ----------------------------------------------------------------------------------- views


def chain(seed: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Random views of a product and of a weight, between a product and a kernel."""
    chance = random.Random(seed)
    steps = [chance.randrange(6) for _ in range(chance.randint(1, 6))]

    def viewed(x: Tensor) -> Tensor:
        for step in steps:
            match step:
                case 0 if x.dim() > 1:
                    x = x.transpose(0, -1)
                case 1 if x.shape[-1] % 2 == 0:
                    x = x.unflatten(-1, (2, -1))
                case 2 if x.shape[0] > 2:
                    x = x[1:-1]
                case 3:
                    x = x.unsqueeze(0)
                case 4 if x.dim() > 2:
                    x = x.select(0, x.shape[0] - 1)
                case 5 if x.shape[-1] > 3:
                    x = x[..., ::2]
        return x

    def function(x: Tensor, w: Tensor) -> Tensor:
        found = viewed(x @ viewed_weight(w))
        return torch.tanh(found) @ torch.ones(found.shape[-1], 3) + viewed(x).sum()

    def viewed_weight(w: Tensor) -> Tensor:
        return w.t()[2:].reshape(8, -1)

    return function


@pytest.mark.sweep(3, reason="other seeds of one generator")
@pytest.mark.parametrize("seed", range(part(60)))
def test_random_chains(seed: int) -> None:
    torch.manual_seed(seed)
    function, x, w = chain(seed), torch.randn(10, 8), torch.randn(8, 10)
    made, _ = compiled(function, x, w)
    for _ in range(2):
        x = torch.randn(10, 8)
        torch.testing.assert_close(made(x, w), function(x, w), rtol=1e-4, atol=1e-5)


def test_an_input_may_lie_elsewhere_in_its_memory() -> None:
    """The form of an input has no offset: a view starts from where the input does."""

    def function(x: Tensor, w: Tensor) -> Tensor:
        return torch.tanh(x.view(2, 6, 8)[1] @ w)

    w, room = torch.randn(8, 5), torch.randn(40, 8)
    made, _ = compiled(function, room[:12], w)
    for start in (0, 3, 28):
        x = room[start : start + 12]
        torch.testing.assert_close(made(x, w), function(x, w))


def test_weights_may_change() -> None:
    """A view of a weight is made anew in each call: a plan keeps no weight alive."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 2, 8))

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(x @ self.weight[:, 1].t())

    model, x = Model().eval(), torch.randn(4, 8)
    made, plan = compiled(model, x)
    (tape,) = plan.tapes.values()
    assert any(isinstance(part.step, ViewStep) for part in tape.parts)
    with torch.no_grad():
        for change in (lambda p: p.mul_(2), lambda p: setattr(p, "data", torch.randn(6, 2, 8))):
            change(model.weight)
            torch.testing.assert_close(made(x), model(x))


def test_plans_without_kernels_have_a_tape() -> None:
    """Nothing here is a kernel in C, so that steps are run one by one, views composed."""

    def function(x: Tensor) -> Tensor:
        y = x.cumsum(0, dtype=torch.int16).view(3, 4, 8)  # no kernel has these numbers
        return torch.cumsum(y.permute(1, 0, 2)[2].squeeze(), 0, dtype=torch.int16)

    x = torch.randint(9, (12, 8), dtype=torch.int16)
    with torch.no_grad():
        made = bb.compile(function, x, library="never")
        made(x)
        plan = made.graphs[0].plan
        (tape,) = plan.tapes.values()
        assert isinstance(tape, TensorTape)
        assert sum(isinstance(x.step, ViewStep) for x in tape.parts) <= 2  # one is the result
        for _ in range(2):
            x = torch.randint(9, (12, 8), dtype=torch.int16)
            torch.testing.assert_close(made(x), function(x))


def test_a_tape_calls_operators_as_plain_functions() -> None:
    """Nothing stands between a tape and PyTorch's operator: that is what a step costs least."""

    def function(x: Tensor) -> Tensor:
        y = x.cumsum(0, dtype=torch.int16)  # no kernel has these numbers
        return torch.cumsum(y.view(3, 4, 8), 0, dtype=torch.int16)

    x = torch.randint(9, (12, 8), dtype=torch.int16)
    with torch.no_grad():
        made = bb.compile(function, x, library="never")
        made(x)
        (tape,) = made.graphs[0].plan.tapes.values()
    operators = [part.run for part in tape.parts if not isinstance(part.run, ViewStep)]
    assert len(operators) == 2
    assert all(isinstance(run, FunctionType) for run in operators)
    assert torch.cumsum in [run.__globals__["function"] for run in operators]


def test_tapes_with_kernels_do_so_too() -> None:
    model, x = Layers(bias=True).eval(), torch.randn(5, 12)
    _, plan = compiled(model, x)
    (tape,) = plan.tapes.values()
    runs = [part.run for part in tape.parts if part.run is not None]
    assert sum(isinstance(run, FunctionType) for run in runs) == 2


def test_an_operator_that_raises_on_a_tape_leaves_it_usable() -> None:
    def function(x: Tensor, at: Tensor) -> Tensor:
        return torch.cumsum(x, 0)[at]

    x = torch.randn(5, 6)
    with torch.no_grad():
        made = bb.compile(function, x, torch.tensor([1, 2]), library="never")
        for _ in range(2):
            with pytest.raises(IndexError):
                made(x, torch.tensor([1, 99]))
            torch.testing.assert_close(made(x, torch.tensor([3, 4])), x.cumsum(0)[3:])


def test_sizes_that_depend_on_data_are_not_composed() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.nonzero(x > 0).view(-1, 2).t()

    x = torch.randn(5, 6)
    with torch.no_grad():
        run = torch.compile(function, backend="blockbuster")
        for _ in range(3):
            x = torch.randn(5, 6)
            assert torch.equal(run(x), function(x))


# --------------------------------------------------------------------------- CUDA graphs


@pytest.mark.parametrize(("dropout", "is_random"), [(0.0, False), (0.1, True)])
def test_attention_without_dropout_is_not_random(dropout: float, is_random: bool) -> None:
    whole = aten.scaled_dot_product_attention.default
    for arguments, options in (((1, 2, 3, None, dropout), {}), ((1, 2, 3), {"dropout_p": dropout})):
        step = OperatorStep("attention", whole, arguments, options, 4)
        assert (_why_not(step) == "attention is random") is is_random
    assert _why_not(OperatorStep("attention", whole, (1, 2, 3), {}, 4)) is None
    assert _why_not(OperatorStep("rand", aten.rand.default, ([2],), {}, 1)) == "rand is random"


def test_attention_reads_composed_views() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.all, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.all(torch.tanh(x)).view(2, 5, 3, 4, 8).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v)
            return torch.tanh(self.out(y.transpose(1, 2).reshape(2, 5, 32)))

    model, x = Attention().eval(), torch.randn(2, 5, 32)
    made, plan = compiled(model, x)
    (tape,) = plan.tapes.values()
    ran = [part.step for part in tape.parts if part.step is not None]
    assert sum(isinstance(step, ViewStep) for step in ran) <= 5
    with torch.no_grad():
        torch.testing.assert_close(made(x), model(x))


@pytest.mark.parametrize(
    ("function", "reads"),
    [
        (lambda x, y: x + x.t(), True),
        (lambda x, y: x.view(6, 4, 4, 6) + x.view(6, 4, 4, 6).transpose(1, 2), True),
        (lambda x, y: x + y.t(), False),
        (lambda x, y: x * 2 + x, False),
        (lambda x, y: x + y, False),
    ],
)
def test_an_array_that_is_read_transposed_too_is_known(function: Any, reads: bool) -> None:
    given = [torch.randn(24, 24) for _ in range(2)]
    with torch.no_grad():
        made = bb.compile(function, *given, library="never", dynamic=False)
        assert torch.equal(made(*given), function(*given))
    (fused,) = made.graphs[0].fused
    assert fused.part.expressed.reads_transposed == reads


@pytest.mark.parametrize(
    "pieces",
    [
        lambda x: x.chunk(2, -1),
        lambda x: x.split([3, 3, 2], -1)[::2],
        lambda x: x.split(2, 1)[1:],
        lambda x: x.unbind(2)[1:3],
        lambda x: (x.transpose(0, 1).unbind()[0], x.split(2)[0]),
    ],
)
def test_a_piece_of_a_split_is_a_view_by_itself(pieces: Callable[[Tensor], Any]) -> None:
    """A list of views costs the host several times as much as the views that are read."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        first, second = pieces(x)
        return first.flip(0), second.tanh() * 2, first

    made = Watched(function, dynamic=False, library="never")
    made.check(torch.randn(4, 6, 8))
    names = [step.name for graph in made.graphs for step in graph.plan.steps]
    assert not any("split" in name or "unbind" in name for name in names), names
    assert any("slice" in name or "select" in name for name in names), names
