"""Calls that are refused, because their results would be misleading."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import blockbuster_fusion as bb
from helpers.torch_running import Watched


def doubled(X: Any) -> Any:
    return X * 2


DEPRECATED = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


@DEPRECATED
@pytest.mark.parametrize("target", ["cpu", "interpret"])
def test_kernels_are_not_traced(target: str) -> None:
    """A trace kept the result of the call with the example as a constant."""
    kernel = bb.compile(doubled, X="M N", target=target)
    with pytest.raises(bb.errors.Untraceable, match="records PyTorch"):
        torch.jit.trace(lambda x: kernel(x)[0], torch.ones(2, 3))
    with pytest.raises(bb.errors.Untraceable, match="make_fx records"):
        make_fx(lambda x: kernel(x)[0])(torch.ones(2, 3))


@DEPRECATED
def test_compiled_models_are_not_traced() -> None:
    program = torch.export.export(torch.nn.Linear(3, 2), (torch.ones(2, 3),))
    exported = bb.from_torch(program)
    with pytest.raises(bb.errors.Untraceable, match="records PyTorch"):
        torch.jit.trace(lambda x: exported(x), torch.ones(2, 3))
    compiled = bb.compile(torch.nn.Linear(3, 2), torch.ones(2, 3))
    with pytest.raises(RuntimeError, match="trace a dynamo-optimized function"):
        torch.jit.trace(lambda x: compiled(x), torch.ones(2, 3))


@pytest.mark.parametrize("target", ["cpu", "interpret"])
def test_masked_arrays_are_not_read(target: str) -> None:
    """The numbers under the mask were computed with as if there were none."""
    kernel = bb.compile(doubled, X="M N", target=target)
    masked = np.ma.masked_array(np.ones((2, 3), np.float32), mask=np.eye(2, 3))
    with pytest.raises(bb.errors.BadInput, match="is a masked array"):
        kernel(masked)
    np.testing.assert_array_equal(kernel(masked.filled(1))[0], np.full((2, 3), 2))
    np.testing.assert_array_equal(kernel(np.ma.masked_array(masked.data))[0], np.full((2, 3), 2))


WIDE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "matmul": lambda x, w: x @ w,
    "linear": lambda x, w: F.linear(x, w),
    "bias": lambda x, w: F.linear(x, x, w[0]),
    "vector": lambda x, w: x @ w[0],
    "layer norm": lambda x, w: F.layer_norm(x, (4,), w[0]),
}


@pytest.mark.parametrize("name", WIDE)
def test_weights_of_another_dtype_are_refused_as_in_eager_mode(name: str) -> None:
    x, w = torch.ones(4, 4), torch.ones(4, 4, dtype=torch.float64)
    with pytest.raises(RuntimeError) as wanted:
        WIDE[name](x, w)
    with pytest.raises(RuntimeError) as found:
        Watched(WIDE[name], threads=1)(x, w)
    assert str(wanted.value) in str(found.value)


def test_a_norm_of_narrow_floats_may_have_wide_weights() -> None:
    watched = Watched(lambda x, w: F.layer_norm(x, (4,), w, w), threads=1)
    watched.check(torch.randn(3, 4).bfloat16(), torch.ones(4))
    assert not watched.graphs[0].unfused


PROBABILITIES: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "softmax": lambda x: x.softmax(-1),
    "clamp": lambda x: x.clamp(0, 1),
    "a view of a sigmoid": lambda x: x.sigmoid().double().float().T[1:],
}


@pytest.mark.parametrize("name", PROBABILITIES)
def test_kernels_compute_the_entropy_of_probabilities(name: str) -> None:
    def function(x: Tensor) -> Tensor:
        given = PROBABILITIES[name](x)
        return F.binary_cross_entropy(given, torch.ones_like(given))

    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    watched = Watched(function, threads=1)
    torch.testing.assert_close(watched(x), function(x))
    operators = {o for kernel in watched.explanation.kernels for o in kernel.operators}
    assert "aten.binary_cross_entropy.default" in operators


SHIFTED: dict[str, Callable[[Tensor], Tensor]] = {
    "an input": lambda x: x,
    "more than a sigmoid": lambda x: x.sigmoid() * 3,
    "other bounds": lambda x: x.clamp(-1, 2),
}


@pytest.mark.parametrize("name", SHIFTED)
def test_entropy_of_what_is_no_probability_is_told(name: str) -> None:
    """Kernels gave NaN where PyTorch raises."""

    def function(x: Tensor) -> Tensor:
        return F.binary_cross_entropy(SHIFTED[name](x), torch.ones_like(x)) + 1

    watched = Watched(function, threads=1)
    with pytest.raises(RuntimeError, match="should be between 0 and 1"):
        watched(torch.full((2, 3), 1.5))
