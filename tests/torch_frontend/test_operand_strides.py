"""Operands of PyTorch's operators lie in memory as in eager mode."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from torch.utils import _pytree as pytree

from blockbuster_fusion.array.axes import Size
from blockbuster_fusion.torch.backend import backend
from blockbuster_fusion.torch.compiled_graph import CompiledGraph
from blockbuster_fusion.torch.plan.planner import is_dense

Seen = list[tuple[tuple[int, ...], int, int]]
"""The strides of each operand, its address and that of the result."""


@pytest.fixture(scope="module")
def seen() -> Iterator[Seen]:
    """What the operator `watch` was called with."""
    calls: Seen = []

    @torch.library.custom_op("blockbuster_tests::watch", mutates_args=())
    def watch(x: torch.Tensor) -> torch.Tensor:
        made = torch.empty_like(x).copy_(x)
        calls.append((x.stride(), x.data_ptr(), made.data_ptr()))
        return made

    watch.register_fake(torch.empty_like)
    yield calls
    calls.clear()


def watched(x: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = torch.ops.blockbuster_tests.watch(x)
    return made


def heads(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """An operator on heads, as attention, and another one on rows."""
    rows, length, width = x.shape
    y = (x @ w).view(rows, length, 4, width // 4).transpose(1, 2)
    z = watched(y * 2 + 1)
    return watched(z.transpose(1, 2).reshape(rows, length, width)) * 3


def transposed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return watched((x @ w).transpose(-1, -2).exp()) + 1


@pytest.mark.parametrize("function", [heads, transposed])
@pytest.mark.parametrize("dynamic", [False, True])
def test_operands_have_the_strides_of_eager_mode(
    function: Callable[..., torch.Tensor], dynamic: bool, seen: Seen
) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend, dynamic=dynamic)
    torch.manual_seed(0)
    w = torch.randn(32, 32) / 8
    with torch.no_grad():
        for length in (5, 5, 7):
            x = torch.randn(2, length, 32)
            seen.clear()
            expected = function(x, w)
            before = [strides for strides, _, _ in seen]
            seen.clear()
            result = compiled(x, w)
            assert [strides for strides, _, _ in seen[-len(before) :]] == before
            exact = function(x.double(), w.double())
            bound = 2 * (expected - exact).norm() + 1e-6 * exact.norm()
            assert (result - exact).norm() <= bound


def test_what_lies_in_order_is_not_copied(seen: Seen) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(heads, backend=backend, dynamic=False)
    x, w = torch.randn(2, 5, 32), torch.randn(32, 32)
    with torch.no_grad():
        for _ in range(3):
            compiled(x, w)
            (_, _, made), (_, taken, _) = seen[-2:]
            assert made == taken


REORDERED: dict[str, Callable[[torch.Tensor], torch.Tensor | tuple[torch.Tensor, ...]]] = {
    "transposed": lambda x: x.T.contiguous(),
    "heads": lambda x: x.view(4, 3, 5, 8).permute(0, 2, 1, 3).contiguous(),
    "heads, merged": lambda x: x.view(4, 3, 5, 8).permute(0, 2, 1, 3).reshape(20, 24),
    "beside the view": lambda x: (x.T.contiguous(), x.T),
    "twice": lambda x: (x.T.contiguous(), x.T.contiguous() * 2),
    "integers": lambda x: x.long().T.contiguous(),
}


@pytest.mark.parametrize("name", REORDERED)
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_result_in_another_order_is_made_by_a_kernel(name: str, dynamic: bool) -> None:
    torch._dynamo.reset()
    function, graphs = REORDERED[name], list[CompiledGraph]()
    options = {"library": "never", "time_model": False}
    own = partial(backend, watcher=graphs.append, options=options)
    compiled = torch.compile(function, backend=own, dynamic=dynamic)
    x = torch.randn(12, 40)
    for _ in range(3):
        with torch.no_grad():
            found, wanted = (pytree.tree_leaves(f(x)) for f in (compiled, function))
        for made, expected in zip(found, wanted, strict=True):
            assert torch.equal(made, expected)
            assert made.stride() == expected.stride()
            assert (made.data_ptr() == x.data_ptr()) == (expected.data_ptr() == x.data_ptr())
    assert len([part for graph in graphs for part in graph.fused]) == 1


def chosen_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two results whose strides depend on data."""
    y = (x[x[:, 0] > 0] * 2).flatten().view(5, -1)
    return y, y.clone(memory_format=torch.contiguous_format)


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_results_with_sizes_that_are_data_have_memory_of_their_own() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(chosen_rows, backend=backend)
    for _ in range(2):
        with torch.no_grad():
            first, second = compiled(torch.randn(7, 5).abs())
        kept = first.clone()
        second.fill_(7)
        assert torch.equal(first, kept)


@pytest.mark.parametrize(
    ("strides", "shape", "expected"),
    [
        ((160, 8, 32, 1), (2, 4, 5, 8), True),
        ((8, 1, 16), (2, 8, 3), True),
        ((1,), (4,), True),
        ((7, 7, 1), (1, 3, 7), True),
        ((16, 1), (3, 8), False),
        ((0, 1), (3, 8), False),
        ((1, 1), (3, 8), False),
    ],
)
def test_dense_strides(strides: tuple[int, ...], shape: tuple[int, ...], expected: bool) -> None:
    assert is_dense([*map(Size, strides)], [*map(Size, shape)]) is expected
