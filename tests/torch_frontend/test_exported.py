"""Exported programs: sizes with conditions, and inputs that are written into."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.utils._python_dispatch import TorchDispatchMode

import blockbuster_fusion as bb
from blockbuster_fusion.torch.export import ExportedModel
from helpers.torch_running import CALLS

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


class Calls(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


def exported(
    function: Callable[..., Any], shapes: Sequence[dict[int, Any]], *inputs: Tensor
) -> ExportedModel:
    """A function compiled for these inputs, and for others that have the same `shapes`."""
    program = torch.export.export(Calls(function), inputs, dynamic_shapes=[(*shapes,)])
    made = bb.from_torch(program, threads=1)
    assert made.explanation.fallbacks == []
    return made


def test_a_size_that_is_twice_another() -> None:
    def halves(x: Tensor) -> Tensor:
        a, b = x.chunk(2)
        return (a * b).softmax(-1)

    compiled = exported(halves, [{0: 2 * Dim("half", min=2, max=20)}], numbers(6, 5))
    for rows in (6, 10, 4):
        torch.testing.assert_close(compiled(numbers(rows, 5)), halves(numbers(rows, 5)))
    with pytest.raises(bb.BlockbusterError, match=r"takes .* \(2\*s\w+, 5\), not \(7, 5\)"):
        compiled(numbers(7, 5))
    with pytest.raises(bb.BlockbusterError, match=r"with s\w+ from 2 to 20, not \(42, 5\)"):
        compiled(numbers(42, 5))


def test_a_size_that_is_one_more_than_another() -> None:
    def pairs(x: Tensor) -> Tensor:
        return (x[1:] * x[:-1]).softmax(0)

    compiled = exported(pairs, [{0: Dim("pairs", min=2, max=20) + 1}], numbers(7))
    for length in (7, 12):
        torch.testing.assert_close(compiled(numbers(length)), pairs(numbers(length)))


def test_what_a_program_decides_by_its_sizes() -> None:
    """The program holds one side of a branch, and refuses sizes that take the other."""

    def longer(x: Tensor, y: Tensor) -> Tensor:
        return (x * 2 if x.shape[0] < y.shape[0] else x * 3).relu()

    shapes = [{0: Dim.AUTO}, {0: Dim.AUTO}]
    compiled = exported(longer, shapes, numbers(3, 4), numbers(5, 4))
    short, long = numbers(4, 4), numbers(6, 4)
    torch.testing.assert_close(compiled(short, long), longer(short, long))
    with pytest.raises(bb.BlockbusterError, match=r"with s\w+ < s\w+, not \(6, 4\), \(4, 4\)"):
        compiled(long, short)


def test_a_tensor_is_wanted() -> None:
    compiled = exported(torch.relu, [{}], numbers(2, 4))
    with pytest.raises(bb.BlockbusterError, match="on cpu, not float"):
        compiled(3.0)


def test_a_maximum_that_is_known_to_be_one_of_its_terms() -> None:
    """As MPT cuts its biases: torch.compile decides there, and torch.export leaves a maximum."""

    def biased(x: Tensor, bias: Tensor) -> Tensor:
        length = x.shape[-1]
        row, column = torch.sym_max(0, 1 - length), torch.sym_max(0, 64 - length)
        return (x + bias[row:, column:]).softmax(-1)

    length = Dim("length", min=2, max=40)
    bias = numbers(1, 64)
    compiled = exported(biased, [{0: length, 1: length}, {}], numbers(9, 9), bias)
    assert compiled.explanation.coverage == 1
    for n in (9, 40, 2):
        x = numbers(n, n)
        torch.testing.assert_close(compiled(x, bias), biased(x, bias))


class Operators(TorchDispatchMode):
    """The names of the operators that PyTorch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.add(str(function))
        return function(*args, **(kwargs or {}))


class Cache(nn.Module):
    """Keys that are kept from call to call."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(4, 4).requires_grad_(False)
        self.register_buffer("keys", torch.zeros(2, 16, 4))

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        self.keys.index_copy_(1, at, self.project(x))
        return (x @ self.keys.mT).softmax(-1) @ self.keys


def test_a_cache_is_written_in_place() -> None:
    model = Cache()
    eager = copy.deepcopy(model)
    program = torch.export.export(model, (numbers(2, 3, 4), torch.arange(3)))
    compiled = bb.from_torch(program, threads=1)
    for call, _ in enumerate(CALLS):
        x, at = numbers(2, 3, 4) + call, torch.arange(3) + 3 * call
        torch.testing.assert_close(compiled(x, at), eager(x, at))
    torch.testing.assert_close(compiled.program.state_dict["keys"], eager.keys)
    with Operators() as called:
        compiled(x, at)
    assert not {"aten.index_put.default", "aten.index_put_.default"} & called.names
    assert "aten.copy_.default" not in called.names  # the whole cache, written once more


def test_an_input_is_written_after_it_was_read() -> None:
    def shift(x: Tensor, by: Tensor) -> tuple[Tensor, Tensor]:
        before = x * 2
        x.add_(by)
        return before, x.softmax(-1)

    compiled = exported(shift, [{}, {}], numbers(3, 4), numbers(4))
    for _ in CALLS:
        own, other = numbers(3, 4), numbers(3, 4)
        torch.testing.assert_close(compiled(own, numbers(4)), shift(other, numbers(4)))
        torch.testing.assert_close(own, other)


@pytest.mark.parametrize(
    "given",
    [torch.ones(3, 4).double(), torch.ones(3, 4) > 0, torch.ones(3, 4, device="meta"), None],
)
def test_inputs_of_another_kind_are_refused_in_every_call(given: Any) -> None:
    compiled = bb.from_torch(torch.export.export(nn.Linear(4, 4), (torch.ones(3, 4),)))
    for _ in range(3):
        compiled(torch.ones(3, 4))
        with pytest.raises(bb.BlockbusterError, match="takes input as a tensor of"):
            compiled(given)
