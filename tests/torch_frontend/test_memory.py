"""Memory: writes into inputs, strides and sharing of results, dtypes of stored arrays."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import blockbuster_fusion as bb
from blockbuster_fusion.choice import Choice
from blockbuster_fusion.compiler import Request
from helpers.compilations import forget_parts
from helpers.torch_running import CALLS

Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def _afresh() -> None:
    bb.register_backend()
    torch._dynamo.reset()


def check(function: Function, *inputs: Tensor) -> None:
    """The same results as eager, of the same dtypes and strides, and the same in the inputs."""
    __tracebackhide__ = True
    compiled = torch.compile(function, backend="blockbuster", options={"threads": 1})
    for _ in CALLS:
        given, expected = [x.clone() for x in inputs], [x.clone() for x in inputs]
        with torch.no_grad():
            found, wanted = compiled(*given), function(*expected)
        found, wanted = (x if isinstance(x, tuple) else (x,) for x in (found, wanted))
        for x, y in zip(found, wanted, strict=True):
            torch.testing.assert_close(x, y, equal_nan=True)
            assert x.stride() == y.stride()
        for x, y in zip(given, expected, strict=True):
            torch.testing.assert_close(x, y, equal_nan=True)


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


# ---------------------------------------------------------------- writes into inputs


def copy_before_write(x: Tensor) -> Tensor:
    y = x.clone()
    x.add_(1)
    return y


def turned_copy_before_write(x: Tensor) -> Tensor:
    y = x.t().contiguous()
    x.zero_()
    return y


def repeated_before_write(x: Tensor) -> Tensor:
    y = x.repeat(2, 1)
    x.add_(1)
    return y


def state(h: Tensor, w: Tensor) -> Tensor:
    before = h.clone()
    h.copy_((h @ w).tanh())
    return before


def rolled_cache(keys: Tensor, new: Tensor) -> Tensor:
    before = keys[:, 1:].clone()
    keys.copy_(torch.cat([keys[:, 1:], new], 1))
    return before


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (copy_before_write, [(3, 4)]),
        (turned_copy_before_write, [(3, 4)]),
        (repeated_before_write, [(3, 4)]),
        (state, [(3, 3), (3, 3)]),
        (rolled_cache, [(2, 5, 3), (2, 1, 3)]),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_what_was_read_before_a_write_stays(
    function: Function, shapes: list[tuple[int, ...]]
) -> None:
    check(function, *(numbers(*shape) for shape in shapes))


# ---------------------------------------------------------------- dtypes


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (lambda x: x.double() * 1e300, torch.float32),
        (lambda x: x.sum(-1, dtype=torch.float64), torch.float32),
        (lambda x: x.double() @ x.double().t(), torch.float32),
        (lambda x: x.float() * 2, torch.float64),
        (lambda x: x.half(), torch.float64),
        (lambda x: x * torch.tensor(1 / 3, dtype=torch.float64), torch.float64),
        (lambda x: x.float().double(), torch.float64),
        (lambda x: (x * 5).sum(-1, dtype=torch.int64), torch.float32),
        (lambda x: x.to(torch.bfloat16).float().floor(), torch.float32),
        (lambda x: (x * 100).to(torch.bfloat16).long(), torch.float32),
        (lambda x: x.view(torch.int32) + 1, torch.float32),
        (lambda x: (x > 0).all(dim=()), torch.float32),
        (lambda x: torch.arange(0, 8, 2.5, dtype=torch.int64) + x.long()[0, 0], torch.float32),
    ],
)
def test_conversions_that_matter_are_made(function: Function, dtype: torch.dtype) -> None:
    check(function, numbers(3, 4).to(dtype))


# ---------------------------------------------------------------- strides and sharing


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (lambda x: x * 2, numbers(3, 4).t()),
        (lambda x: x.transpose(1, 2) * 2, numbers(2, 3, 4)),
        (lambda x: (x * 2).as_strided((4, 3), (1, 4)), numbers(3, 4).t()),
        (lambda x: (x * 2).contiguous(memory_format=torch.channels_last), numbers(2, 3, 4, 5)),
        (lambda x: x.sum(1, keepdim=True) + torch.zeros(3, 4), numbers(3, 4)),
    ],
)
def test_results_lie_as_eager_has_them(function: Function, x: Tensor) -> None:
    check(function, x)


def test_a_graph_break_between_a_result_and_its_view() -> None:
    def broken(x: Tensor) -> Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        return y.t().view(-1) + 1

    x = numbers(3, 4).t()
    with torch.no_grad():
        found = torch.compile(broken, backend="blockbuster")(x)
    torch.testing.assert_close(found, broken(x))


def test_pieces_that_are_results_share_no_memory_with_their_join() -> None:
    def joined(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a, b = a * 2, b + 1
        return a, b, torch.cat([a, b], 0)

    with torch.no_grad():
        a, b, c = torch.compile(joined, backend="blockbuster")(numbers(2, 3), numbers(4, 3))
    before = a.clone(), b.clone()
    c.zero_()
    assert torch.equal(a, before[0])
    assert torch.equal(b, before[1])


# ---------------------------------------------------------------- calls beyond plain inference


def test_gradients_where_a_query_sees_no_key() -> None:
    mask = torch.zeros(4, 4)
    mask[1] = -torch.inf
    q = numbers(1, 1, 4, 8).requires_grad_()

    def attention(q: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    expected = torch.autograd.grad(attention(q).sum(), q)
    compiled = torch.compile(attention, backend="blockbuster")
    with pytest.warns(UserWarning, match="gradients"):
        found = torch.autograd.grad(compiled(q).sum(), q)
    torch.testing.assert_close(found, expected)


def test_an_exported_program_takes_only_shapes_that_it_was_exported_for() -> None:
    class Branching(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.relu() * 2 if x.shape[0] < 6 else x.relu() * 3

    rows = torch.export.Dim("rows", min=2, max=5)
    exported = torch.export.export(Branching(), (torch.ones(3, 4),), dynamic_shapes=[{0: rows}])
    compiled = bb.from_torch(exported)
    assert torch.equal(compiled(torch.ones(4, 4)), torch.full((4, 4), 2.0))
    for shape in ((9, 4), (3, 5)):
        with pytest.raises(bb.BlockbusterError, match="dynamic_shapes"):
            compiled(torch.ones(shape))
    assert compiled.explanation.coverage == 1


def test_parts_of_a_layer_in_a_sequence_are_fused() -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.LayerNorm(8)
            layers = torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8)
            self.inner = torch.nn.Sequential(*layers)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.inner(self.norm(x))

    blocks = torch.nn.Sequential(Block(), Block()).eval()
    explained = bb.explain(blocks, numbers(3, 8))
    assert len(explained.regions) == 2
    assert [len(kernel.operators) for kernel in explained.kernels] == [5, 5]


def test_an_exported_program_takes_no_other_constants() -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x: Tensor, factor: float) -> Tensor:
            return x * factor

    compiled = bb.from_torch(torch.export.export(Scaled(), (torch.ones(3), 3.0)))
    assert torch.equal(compiled(torch.ones(3), 3.0), torch.full((3,), 3.0))
    with pytest.raises(bb.BlockbusterError, match="export it again"):
        compiled(torch.ones(3), 5.0)


def test_a_part_without_a_kernel_is_halved_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that should have been one kernel and is two is reported."""
    from blockbuster_fusion import search_job

    choose = search_job.choose

    def refusing(request: Request) -> list[Choice]:
        assert isinstance(request.program, bb.ArrayProgram)
        if len(request.program.operators) > 1:
            raise bb.errors.NoKernel(what="all of it", remedy="take less")
        return choose(request)

    monkeypatch.setattr(search_job, "choose", refusing)
    forget_parts(monkeypatch)
    explained = bb.explain(lambda x: x.tanh().floor(), numbers(3, 5))
    (reason,) = explained.halved
    assert "2 operators" in reason
    assert "all of it" in reason
    assert len(explained.kernels) == 2
