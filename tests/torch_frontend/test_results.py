"""Results as eager mode gives them: shapes and dtypes, strides, and which of them share memory."""

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._decomp import core_aten_decompositions
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.slices import move_slices
from helpers.torch_running import CALLS, Watched, copied

Function = Callable[..., Any]


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def shared(inputs: Sequence[Tensor], results: Sequence[Tensor]) -> list[list[bool]]:
    """For each result and each input or result, True if they share memory."""
    memory = [x.untyped_storage().data_ptr() for x in (*inputs, *results)]
    return [[a == b for b in memory] for a in memory[len(inputs) :]]


def check(function: Function, *inputs: Tensor, dynamic: bool | None = None) -> None:
    """The results of eager mode: numbers, strides and sharing, in the inputs too."""
    __tracebackhide__ = True
    watched = Watched(function, dynamic=dynamic, threads=1)
    eager = copied(inputs)
    with torch.no_grad():
        wanted = pytree.tree_leaves(function(*eager))
    for _ in CALLS:
        own = copied(inputs)
        found = pytree.tree_leaves(watched(*own))
        for x, y in zip((*found, *own), (*wanted, *eager), strict=True):
            torch.testing.assert_close(x, y, equal_nan=True)
            assert x.stride() == y.stride()
        assert shared(own, found) == shared(eager, wanted)
    assert watched.explanation.fallbacks == []


# ---------------------------------------------------------------- strides and sharing


def rolled(cache: Tensor, new: Tensor) -> Tensor:
    """A cache is moved on after its old values were read through a concatenation."""
    both = torch.cat((cache, new), 1)
    old = both[:, : cache.shape[1]]
    cache.copy_(both[:, new.shape[1] :])
    return old


def written_between(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    both = torch.stack((x, y))
    x.add_(1)
    y.mul_(2)
    return both[0], both[1]


def replaced(x: Tensor, y: Tensor) -> Tensor:
    """The update of an input, given out beside the input that it is copied to."""
    made = x.slice_scatter(y, 0, 0, y.shape[0])
    x.copy_(made)
    return made


def of(make: Function, *views: Function) -> Function:
    """Several views of one array that is computed."""

    def function(*inputs: Tensor) -> list[Tensor]:
        made = make(*inputs)
        return [view(made) for view in views]

    return function


def double(x: Tensor) -> Tensor:
    return x * 2


def joined(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat((x * 2, y), -1)


RESULTS: dict[str, tuple[Function, tuple[Tensor, ...]]] = {
    "cache": (rolled, (numbers(2, 3), numbers(2, 1))),
    "written between": (written_between, (numbers(3, 4), numbers(3, 4))),
    "replaced": (replaced, (numbers(5, 4), numbers(2, 4))),
    "a slice": (lambda x: (x * 2)[..., 1:], (numbers(3, 4),)),
    "with a step": (lambda x: (x * 2)[:, ::2], (numbers(3, 4),)),
    "a column": (lambda x: (x * 2)[:, 1], (numbers(3, 4),)),
    "of a transpose": (lambda x: (x * 2).T[1:], (numbers(3, 4),)),
    "a piece": (lambda x, y: torch.cat((x, y))[:1], (numbers(1, 4), numbers(3, 4))),
    "of a stack": (lambda x, y: torch.stack((x, y))[0], (numbers(3, 4), numbers(3, 4))),
    "all of a stack": (lambda x, y: torch.stack((x, y)).unbind(), (numbers(3, 4), numbers(3, 4))),
    "a computed piece": (
        lambda x, y: torch.cat((x * 2, y + 1), -1)[:, :2],
        (numbers(3, 2), numbers(3, 4)),
    ),
    "split": (of(joined, lambda z: z[:, :2], lambda z: z[:, 2:]), (numbers(3, 2), numbers(3, 4))),
    "halves": (of(double, lambda z: z[:1], lambda z: z[1:]), (numbers(3, 4),)),
    "whole and part": (of(double, lambda z: z, lambda z: z[1:], Tensor.t), (numbers(3, 4),)),
    "copies": (of(double, Tensor.clone, lambda z: torch.cat((z,)), lambda z: z), (numbers(3, 4),)),
    "nothing added": (lambda x: (x * 2, x * 2 + 0, x * 1), (numbers(3, 4),)),
    "parts of a view": (
        of(double, lambda z: z.view(12)[1:5], lambda z: z.view(2, 6)[:, 2:4]),
        (numbers(3, 4),),
    ),
    "of channels last": (
        of(double, lambda z: z[:1], lambda z: z[1:, 1:]),
        (numbers(2, 3, 4, 5).to(memory_format=torch.channels_last),),
    ),
    "joined channels last": (
        lambda x: torch.cat((x * 2, x[:, :1] + 1), 1)[:, 1:],
        (numbers(2, 3, 4, 5).to(memory_format=torch.channels_last),),
    ),
    "of what PyTorch computes": (
        of(lambda x: (x.T * 2).cumsum(-1), lambda z: z[:, :2], lambda z: z[:, 2:]),
        (numbers(4, 6),),
    ),
    "products": (
        of(torch.matmul, lambda z: z[:, :3], lambda z: z[:, 3:]),
        (numbers(5, 4), numbers(4, 6)),
    ),
    "the last row": (
        lambda x, w: F.layer_norm(x @ w, (6,))[:, -1],
        (numbers(2, 5, 4), numbers(4, 6)),
    ),
    "expanded": (of(double, lambda z: z.expand(4, 6)[1:], lambda z: z), (numbers(4, 1),)),
    "both of two truths": (
        of(lambda x, y: torch.logical_and(x.diagonal(1).mT, y), lambda z: z, lambda z: z[0].t()),
        (numbers(1, 17, 3), numbers(1, 17, 3)),
    ),
    "whole quotients": (
        lambda x, y: torch.div(x.mT, y, rounding_mode="floor"),
        (numbers(7, 3, 8), numbers(8, 3)),
    ),
    "powers of a number": (lambda x: 100.0 ** x.mT, (numbers(3, 4),)),
    "views of what is broadcast": (
        of(lambda x: torch.exp(x.expand(3, 4)), lambda z: z.diagonal(), Tensor.t, lambda z: z),
        (numbers(3, 1),),
    ),
    "copies behind each other": (
        of(lambda x: torch.exp(x.repeat(3, 1)), Tensor.t, lambda z: z),
        (numbers(1, 4),),
    ),
    "a view of a piece": (
        lambda x: torch.cat((x, x)).chunk(2)[1].diagonal(),
        (numbers(2, 3),),
    ),
    "rows at places that lie otherwise": (
        of(lambda x, i: x[i.mT], lambda z: z, lambda z: z[:, 1]),
        (numbers(4, 3), torch.tensor([[0, 1, 2], [3, 2, 1]])),
    ),
    "columns at places that lie otherwise": (
        lambda x, i, j: x[:, i.mT, j],
        (numbers(2, 4, 3), torch.tensor([[0, 1, 2], [3, 2, 1]], dtype=torch.int32),
         torch.tensor([0, 2])),
    ),
    "a sum and products": (
        lambda z, x, y: torch.baddbmm(z.permute(2, 1, 0), x, y, beta=2),
        (numbers(3, 5, 2), numbers(2, 5, 4), numbers(2, 4, 3)),
    ),
    "all of what is left": (of(lambda x: F.pad(x, (-1, 0)), Tensor.unbind), (numbers(3, 4),)),
    "views of an input": (lambda x: (x[1:], x.T, x * 2), (numbers(3, 4),)),
}  # fmt: skip


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", RESULTS)
def test_results_lie_as_in_eager_mode(name: str) -> None:
    """Once slices moved up to inputs, which were given out then, and results had other strides."""
    function, inputs = RESULTS[name]
    check(function, *inputs)


OF_ANY_LENGTH = ["a slice", "of a transpose", "split", "halves", "cache", "whole quotients"]


@pytest.mark.parametrize("name", OF_ANY_LENGTH)
def test_results_of_any_length_lie_as_in_eager_mode(name: str) -> None:
    function, inputs = RESULTS[name]
    check(function, *inputs, dynamic=True)


def test_a_weight_is_not_given_out() -> None:
    """A slice of a concatenation was the parameter itself, and changing the result changed it."""

    class Prefixed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.prefix = torch.nn.Parameter(torch.zeros(1, 3))

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat((self.prefix, x))[:1]

    model = Prefixed()
    found = Watched(model, threads=1)(numbers(2, 3))
    found += 7
    assert not model.prefix.any()


# ---------------------------------------------------------------- slices that move past views

MOVEMENTS: dict[str, Callable[[Tensor, random.Random], Tensor]] = {
    "squeeze": lambda x, _: x[:, None].squeeze(),
    "squeeze one": lambda x, r: x.unsqueeze(1).squeeze(r.randrange(x.dim() + 1)),
    "squeeze some": lambda x, r: x[None, :, None].squeeze((0, r.randrange(2, x.dim() + 2))),
    "squeeze of no dimension": lambda x, _: x.squeeze(),
    "unsqueeze": lambda x, r: x.unsqueeze(r.randrange(x.dim() + 1)),
    "permute": lambda x, r: x.permute(r.sample(range(x.dim()), x.dim())),
    "transpose": lambda x, r: x.transpose(r.randrange(x.dim()), r.randrange(x.dim())),
    "expand": lambda x, r: x.unsqueeze(1).expand(-1, r.choice((1, 2, 3)), *x.shape[1:]),
    "merge": lambda x, r: x.flatten(r.randrange(x.dim() - 1)),
    "split off": lambda x, r: x.unflatten(0, (2, -1)),
    "clone": lambda x, _: x.transpose(0, 1).clone(),
    "cat": lambda x, r: torch.cat((x, x + 1, x[:1]), 0),
    "stack": lambda x, r: torch.stack((x, x * 3), r.randrange(x.dim() + 1)),
    "sum": lambda x, r: x.sum(r.randrange(x.dim()), keepdim=r.choice((True, False))),
    "softmax": lambda x, r: x.softmax(r.randrange(x.dim())),
    "product": lambda x, _: x @ torch.ones(x.shape[-1], 4),
    "pointwise": lambda x, _: x * x[:1] + x[..., :1],
    "cast": lambda x, _: x.double() * 0.1,
}


def cut(x: Tensor, r: random.Random) -> list[Tensor]:
    """One part of `x`, or several."""
    dim = r.randrange(x.dim())
    length = x.shape[dim]
    match r.choice(("slice", "one", "step", "select", "chunk", "split", "unbind", "back")):
        case "slice":
            start = r.randrange(length)
            return [x.narrow(dim, start, r.randint(1, length - start))]
        case "one":
            return [x.narrow(dim, r.randrange(length), 1)]
        case "step":
            return [x[(slice(None),) * dim + (slice(r.randrange(2), None, 2),)]]
        case "back":
            return [x[(slice(None),) * dim + (slice(-r.randint(1, length), None),)]]
        case "select":
            return [x.select(dim, r.randrange(length))]
        case "chunk":
            return [*x.chunk(2, dim)]
        case "split":
            return [*x.split([1, length - 1], dim)] if length > 1 else [*x.split(1, dim)]
    return [*x.unbind(dim)]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("movement", MOVEMENTS)
def test_a_moved_slice_is_the_same_slice(movement: str) -> None:
    """A slice has one shape, dtype and value, wherever it is cut: `squeeze` took more away from a
    part of length 1 than from the whole."""
    check_movements(movement, range(4), "fake")


@pytest.mark.parametrize("movement", ["squeeze", "squeeze one", "expand", "cat"])
def test_a_moved_slice_of_any_length_is_the_same_slice(movement: str) -> None:
    check_movements(movement, range(1), "symbolic")


@pytest.mark.long
@pytest.mark.parametrize("movement", MOVEMENTS)
def test_many_moved_slices_are_the_same_slices(movement: str) -> None:
    check_movements(movement, range(4, 60), "fake")
    check_movements(movement, range(1, 10), "symbolic")


def check_movements(movement: str, seeds: range, mode: str) -> None:
    for seed in seeds:
        function = partial(cut_after, movement, seed)
        r = random.Random(f"{movement} {seed} sizes")
        x = numbers(*(r.choice((1, 2, 4)) if i else 4 for i in range(3)))
        graph = make_fx(function, core_aten_decompositions(), tracing_mode=mode)(x)
        moved = move_slices(Analysis(graph, frozenset()), splits=True).module
        for node in moved.graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
            node.target = torch.ops.aten.reshape.default  # as the planner runs it
        moved.recompile()
        for found, expected in zip(moved(x), function(x), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def cut_after(movement: str, seed: int, x: Tensor) -> list[Tensor]:
    r = random.Random(f"{movement} {seed}")
    made = MOVEMENTS[movement](x * 2, r)
    return [part + 1 for part in cut(made, r)] if made.dim() else [made]


def test_random_operators_keep_their_order() -> None:
    """They take numbers from one generator, whatever part each is beside."""

    def model(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = torch.relu(x @ w)
        u, v = torch.rand_like(a), torch.rand(8, 8)
        return u, v, torch.sigmoid(a), a

    x, w = torch.randn(8, 8), torch.randn(8, 8)
    with torch.no_grad():
        torch.manual_seed(0)
        wanted = model(x, w)
        made = torch.compile(model, backend="blockbuster", options={"library": "never"})
        torch.manual_seed(0)
        for found, own in zip(made(x, w), wanted, strict=True):
            torch.testing.assert_close(found, own)
