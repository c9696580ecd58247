"""Sizes that depend on data: PyTorch runs the operators that have them, kernels the rest."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import blockbuster_fusion as bb

REASON = "sizes that depend on data"

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "mask": lambda x: x[x > 0] * 2,
    "nonzero": lambda x: (torch.nonzero(x > 0).float() * 2).sum(-1),
    "rows": lambda x: (torch.relu(x[x[:, 0] > 0]) @ torch.ones(6, 6)).softmax(-1) + x.sum(),
    "views": lambda x: x[x[:, 0] > 0].reshape(-1, 2, 3).transpose(1, 2).chunk(3, dim=1)[1] * 2,
    "joined": lambda x: torch.cat([x[x[:, 0] > 0] * 2, x * 3]),
    "summed": lambda x: x[x[:, 0] > 0].sum(0) * 2 + x,
    "counted": lambda x: torch.arange(int((x > 0).sum().item())) * 3,
    "number": lambda x: x * int((x > 0).sum().item()),
}


@pytest.fixture(autouse=True)
def captured() -> Iterator[None]:
    torch._dynamo.reset()
    sizes = {"capture_dynamic_output_shape_ops": True, "capture_scalar_outputs": True}
    with torch._dynamo.config.patch(**sizes), torch.no_grad():
        yield


ALSO_DYNAMIC = ("rows", "joined")


@pytest.mark.parametrize(
    ("name", "dynamic"),
    [
        *((name, False) for name in FUNCTIONS),
        *((name, True) for name in ALSO_DYNAMIC),
        *(
            pytest.param(name, True, marks=pytest.mark.long)
            for name in FUNCTIONS
            if name not in ALSO_DYNAMIC
        ),
    ],
)
def test_a_result_is_eagers(name: str, dynamic: bool) -> None:
    bb.register_backend()
    function = FUNCTIONS[name]
    compiled = torch.compile(function, backend="blockbuster", fullgraph=True, dynamic=dynamic)
    generator = torch.Generator().manual_seed(0)
    for number in (-1, 0, 0, 1):  # with -1 nothing is picked, with 1 everything
        x = torch.rand(4, 6, generator=generator) * 2 - 1 + number
        torch.testing.assert_close(compiled(x), function(x))


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n != "number"])
def test_the_reason_is_told(name: str) -> None:
    explanation = bb.explain(FUNCTIONS[name], torch.randn(4, 6))
    assert REASON in {left.reason for left in explanation.misc}
    assert explanation.fallbacks == explanation.halved == []


def test_an_exported_program_has_them_too() -> None:
    class Picked(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return FUNCTIONS["mask"](x * 3)

    x = torch.randn(4, 6)
    compiled = bb.from_torch(torch.export.export(Picked(), (x,)))
    for given in (x, -x, x.abs()):
        torch.testing.assert_close(compiled(given), Picked()(given))
