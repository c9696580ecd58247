"""The values that the rules leave in global memory, for realistic programs."""

import pytest

import blockbuster_fusion as bb
from helpers.running import assert_computes, inputs_for

LEFT = {
    "matmul-relu": ([0], [0]),
    "attention": ([1, 0], [1, 0]),
    "layernorm-matmul": ([0, 0], [0, 0]),
    "rmsnorm-swiglu": ([1, 0, 0], [1, 0]),
    "additive-mask-attention": ([1, 0], [1, 0]),
    "causal-attention": ([1, 0], [1, 0]),
    "multi-head-attention": ([2, 1], [2, 2, 1, 0]),
    "sliding-window-attention": ([2, 1], [2, 2, 1, 0]),
    "softcap-attention": ([1, 0], [1, 0]),
    "layernorm-linear": ([2, 1], [1, 0, 0]),
    "rmsnorm-swiglu-residual": ([2, 1], [2, 1, 0]),
    "gelu-mlp": ([3, 2], [2, 1, 0]),
    "attention-projection": ([2, 1], [2, 1, 0]),
    "qk-norm-attention": ([3, 2, 1], [3, 2, 1, 0]),
    "grouped-query-attention": ([1, 0], [1, 0]),
    "causal-grouped-query-attention": ([2, 1], [2, 2, 2, 1, 0]),
    "lora": ([1, 0], [1, 0]),
    "three-matmuls": ([2, 1, 0], [2, 1, 0]),
    "layernorm-qkv": ([2, 1], [1, 0, 0]),
    "softmax": ([1], [1, 0]),
    "safe-softmax-attention": ([2, 1], [1, 0]),
    "two-pass-layernorm-matmul": ([0, 0], [0, 0]),
    "attention-logsumexp": ([1], [1, 0]),
    "decoder-layer": ([10, 9], [9, 8, 7, 6, 5, 5, 4]),
    "self-attention": ([4, 3], [4, 3, 2]),
    "parallel-attention-ffn": ([8, 7, 5], [8, 7, 6, 5, 4, 3, 4]),
    "low-rank-kv-attention": ([5, 3, 1], [5, 3, 1, 0]),
    "linear-attention": ([3, 2, 1], [3, 2, 1, 0]),
    "post-norm-linear": ([2], [2]),
    "language-model-head": ([2], [2, 1]),
    "expert": ([1, 0], [1, 0]),
    "residual-layers": ([4], [4, 3, 1]),
}
"""Interior buffered edges per snapshot, with the paper's rules and with the extended ones."""


def test_every_example_is_in_the_table() -> None:
    assert set(LEFT) == set(bb.examples.EXAMPLES)


@pytest.mark.parametrize("name", LEFT)
@pytest.mark.parametrize("rules", ["paper", "extended"])
def test_interior_buffered_edges(name: str, rules: str) -> None:
    fusion = bb.fuse(bb.lower(bb.examples.find(name)), rules)
    expected = LEFT[name][rules == "extended"]
    assert [len(bb.buffered(snapshot)) for snapshot in fusion.fused] == expected


@pytest.mark.parametrize("name", LEFT)
@pytest.mark.parametrize("rules", ["paper", "extended"])
def test_every_snapshot_computes_the_same(name: str, rules: str) -> None:
    program = bb.examples.find(name)
    inputs = inputs_for(program, B=2, H=2, G=2, R=3)
    expected = bb.evaluate(program, inputs)
    fusion = bb.fuse(bb.lower(program), rules)
    for graph in (fusion.initial, *fusion.fused):
        bb.verify(graph)
        assert_computes(graph, inputs, expected)
