"""Equal nodes that parts compute anew are one node: the masks of all layers."""

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import blockbuster_fusion as bb
from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.capture.merge_equal import merge_equal
from helpers.rivals import by_pytorch


def layers(x: Tensor, mask: Tensor) -> Tensor:
    """Attention three times, each with the same mask."""
    for _ in range(3):
        bias = (1.0 - mask[:, None, None, :]) * -10_000.0
        x = torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=bias) + x
    return x


def inputs() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(2, 3, 7, 8), (torch.rand(2, 7) > 0.3).float()


def count(function: object, *given: Tensor) -> int:
    """The number of nodes that are merged."""
    module = make_fx(function)(*given)
    before = len(module.graph.nodes)
    merge_equal(Analysis(module, frozenset()))
    module.graph.lint()
    after = module(*given)
    torch.testing.assert_close(after, function(*given), rtol=0, atol=0, equal_nan=True)
    return before - len(module.graph.nodes)


def is_attention(nodes: object) -> bool:
    return any("mm" in str(n.target) or "softmax" in str(n.target) for n in nodes)


def test_one_mask_serves_all_layers() -> None:
    given = inputs()
    with by_pytorch(is_attention):
        made = bb.compile(layers, *given, library="auto", time_model=False)
        torch.testing.assert_close(made(*given), layers(*given))
    text = str(made.explanation.plan)
    assert text.count("rsub") <= 1, text


@pytest.mark.parametrize("library", ["never", "auto"])
def test_results_are_the_same(library: str) -> None:
    given = inputs()
    made = bb.compile(layers, *given, library=library)
    torch.testing.assert_close(made(*given), layers(*given))


def test_equal_nodes_are_merged_and_others_are_not() -> None:
    x = torch.randn(5)
    assert count(lambda x: (x + 1) * (x + 1).exp(), x) == 1
    assert count(lambda x: (x + 1).exp() * (x + 1.0).sin(), x) == 0
    assert count(lambda x: (x * 0.0).exp() + (x * -0.0).sin(), x) == 0
    assert count(lambda x: (x + 1, x + 1), x) == 0  # results do not share memory


def test_nothing_is_merged_across_an_update() -> None:
    def function(x: Tensor) -> Tensor:
        first = (x + 1).exp()
        x.add_(2)
        return first * (x + 1).exp()

    module = make_fx(function)(torch.zeros(3))
    before = len(module.graph.nodes)
    merge_equal(Analysis(module, frozenset()))
    assert len(module.graph.nodes) == before
