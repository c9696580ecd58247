"""Functions that stand for operators of PyTorch: the same results for the same arguments."""

from typing import Any

import pytest
import torch

from blockbuster_fusion.torch.plan.bindings import BINDINGS, fastest

aten = torch.ops.aten
generator = torch.Generator().manual_seed(0)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator)


X, W, BIAS, AT = numbers(3, 4), numbers(5, 4), numbers(5), torch.tensor([[2, 0, 1, 1]])
IMAGE, FILTERS = numbers(1, 2, 5, 5), numbers(3, 2, 3, 3)
Given = list[tuple[tuple[Any, ...], dict[str, Any]]]
ARGUMENTS: dict[Any, Given] = {
    aten.linear.default: [((X, W), {}), ((X, W, None), {}), ((X[None], W, BIAS), {})],
    aten.mm.default: [((X, W.t()), {})],
    aten.bmm.default: [((X[None], W.t()[None]), {})],
    aten.addmm.default: [
        ((BIAS, X, W.t()), {}),
        ((BIAS, X, W.t()), {"beta": 0.5, "alpha": 2}),
    ],
    aten.cat.default: [(([X, W],), {}), (([X, X], -1), {})],
    aten.cumsum.default: [((X, 1), {}), ((X, 0), {"dtype": torch.float64})],
    aten.embedding.default: [((W, AT), {}), ((W, AT, 1, False, False), {})],
    aten.gather.default: [((X, 0, AT), {})],
    aten.convolution.default: [
        ((IMAGE, FILTERS, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1), {}),
        ((IMAGE, FILTERS, BIAS[:3], [2, 1], [1, 0], [1, 1], False, [0, 0], 1), {}),
    ],
    aten.copy_.default: [((numbers(3, 4), X), {}), ((numbers(3, 4), X[:1], True), {})],
    aten.clone.default: [((X.t(),), {}), ((X.t(),), {"memory_format": torch.contiguous_format})],
    aten.mul.Tensor: [((X, X[:1]), {}), ((X, 0.5), {})],
    aten._softmax.default: [((X, -1, False), {})],
}


@pytest.mark.parametrize("operator", BINDINGS, ids=str)
def test_a_binding_is_its_operator(operator: Any) -> None:
    for given, options in ARGUMENTS[operator]:
        wanted, found = operator(*given, **options), fastest(operator)(*given, **options)
        assert torch.equal(found, wanted)
        assert (found.dtype, found.stride()) == (wanted.dtype, wanted.stride())


def test_other_operators_are_called_without_their_wrapper() -> None:
    assert fastest(aten.sin.default) is aten.sin.default._op
    assert fastest(len) is len
