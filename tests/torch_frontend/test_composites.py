"""Operators that stay whole at capture: PyTorch has a kernel for each, and ours fuse them."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import blockbuster_fusion as bb
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.torch.rivals import library

CLASSES = torch.tensor([3, 0, 2, -100, 1, 3])
MEAN, VARIANCE = torch.randn(4), torch.rand(4) + 0.5

WHOLE: dict[str, Callable[[Tensor], Tensor]] = {
    "nll_loss_forward": lambda x: F.cross_entropy(x, CLASSES),
    "_log_softmax": lambda x: F.cross_entropy(x, CLASSES, label_smoothing=0.1),
    "mse_loss": lambda x: F.mse_loss(x, x.flip(0)),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x * 2),
    "huber_loss": lambda x: F.huber_loss(x, x * 3, reduction="sum"),
    "binary_cross_entropy": lambda x: F.binary_cross_entropy(x.sigmoid(), x.abs().tanh()),
    "log_sigmoid_forward": lambda x: F.binary_cross_entropy_with_logits(x, x.abs().tanh()),
    "xlogy": lambda x: F.kl_div(x, x.softmax(-1), reduction="batchmean"),
    "mish": lambda x: F.mish(x),
    "silu": lambda x: F.silu(x),
    "native_group_norm": lambda x: F.group_norm(x, 2).relu(),
    "_native_batch_norm_legit_no_training": lambda x: F.batch_norm(x, MEAN, VARIANCE).relu(),
    "native_layer_norm": lambda x: F.layer_norm(x, (4,)).relu(),
}


@pytest.fixture
def x() -> Tensor:
    torch._dynamo.reset()
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.sweep(2, reason="other operators by one path")
@pytest.mark.parametrize("name", WHOLE)
def test_kernels_compute_the_definition(name: str, x: Tensor) -> None:
    compiled = bb.compile(WHOLE[name], x, library="never")
    found = compiled.explanation
    assert any(f"aten.{name}." in o for kernel in found.kernels for o in kernel.operators)
    assert not found.fallbacks
    assert not [m for m in found.misc if "flip" not in m.operator]
    torch.testing.assert_close(compiled(x), WHOLE[name](x))


@pytest.mark.parametrize("name", WHOLE)
def test_the_library_has_one_operator(
    name: str, x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library.LibraryTimes, "_timed", lambda *_: Seconds(1e-12))
    found = bb.explain(WHOLE[name], x, options={"library": "auto"})
    assert not found.kernels
    assert any(f"aten.{name}." in o for choice in found.library for o in choice.operators)


@pytest.mark.parametrize("name", WHOLE)
def test_the_library_is_measured(name: str, x: Tensor) -> None:
    """Arrays that a measurement makes up are such that the operator takes them."""
    options = {"library": "auto", "strict": True}
    found = bb.explain(WHOLE[name], x, options=options)
    assert not found.fallbacks
