"""Tensors without memory are refused with a sentence; no kernel gets the address 0."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

import blockbuster_fusion as bb
from blockbuster_fusion.errors import NoMemory
from helpers.torch_running import Watched


def product(x: Tensor, w: Tensor) -> Tensor:
    return torch.relu(x @ w + x[:, :1])


def executable(x: Tensor, w: Tensor) -> Tensor:
    return KERNEL(x, w)["O"]


KERNEL = bb.compile(lambda X, W: {"O": X @ W}, X="M K", W="K N", threads=1)


def freed(x: Tensor) -> Tensor:
    x.untyped_storage().resize_(0)
    return x


def part_of_freed(x: Tensor) -> Tensor:
    """A view at an offset, whose address is small and not 0."""
    part = torch.zeros(x.shape[0] + 2, *x.shape[1:])[2:]
    return freed(part)


def fake(x: Tensor) -> Tensor:
    with FakeTensorMode():
        return torch.empty(x.shape)


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
@pytest.mark.parametrize("without", [freed, part_of_freed, fake])
@pytest.mark.parametrize("which", [0, 1])
def test_a_kernel_refuses(without: Callable[[Tensor], Tensor], which: int) -> None:
    given = [torch.randn(4, 8), torch.randn(8, 3)]
    executable(*given)
    given[which] = without(given[which])
    with pytest.raises(NoMemory, match="has no memory: it"):
        executable(*given)


@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize("which", [0, 1])
def test_a_model_refuses_freed_inputs(calls: int, which: int) -> None:
    """Run step by step, and on a tape."""
    watched = Watched(product, threads=1)
    given = [torch.randn(4, 8), torch.randn(8, 3)]
    for _ in range(calls):
        watched(*given)
    freed(given[which])
    with pytest.raises(NoMemory, match="its storage was freed"):
        watched(*given)


def test_an_exported_model_refuses_freed_weights() -> None:
    layer = torch.nn.Linear(8, 3).eval()
    x = torch.randn(4, 8)
    with torch.no_grad():
        model = bb.from_torch(torch.export.export(layer, (x,)), threads=1)
    for _ in range(2):
        model(x)
    freed(model.program.state_dict["weight"])
    with pytest.raises(NoMemory, match=r"shape \(3, 8\) has no memory: its storage was freed"):
        model(x)


def test_functorch_wrappers() -> None:
    with pytest.raises(NoMemory, match="stands for another tensor"):
        torch.vmap(lambda x: executable(x, torch.ones(8, 3)))(torch.randn(2, 4, 8))


def test_empty_tensors_have_no_memory_and_need_none() -> None:
    assert executable(torch.ones(4, 0), torch.ones(0, 3)).eq(0).all()
    assert executable(torch.ones(0, 8), torch.ones(8, 3)).shape == (0, 3)
    Watched(product, threads=1).check(torch.ones(0, 8), torch.ones(8, 3))
