"""What the paper's rules leave in global memory, for realistic programs."""

import pytest

import blockbuster_fusion as bb
from running import assert_computes, inputs_for

LEFT = {
    "additive-mask-attention": [1, 0],
    "causal-attention": [1, 0],
    "softcap-attention": [1, 0],
    "layernorm-linear": [1, 0],
    "rmsnorm-swiglu-residual": [2, 1],
    "gelu-mlp": [2, 1],
    "attention-projection": [2, 1],
    "qk-norm-attention": [3, 2, 1],
    "grouped-query-attention": [1, 0],
    "lora": [1, 0],
    "three-matmuls": [2, 1, 0],
    "layernorm-qkv": [1, 0],
    "softmax": [1],
    "safe-softmax-attention": [2, 1],
    "two-pass-layernorm-matmul": [0, 0],
    "attention-logsumexp": [1],
    "decoder-layer": [10, 9],
    "self-attention": [4, 3],
    "multi-head-attention": [2, 1],
}
"""Interior buffered edges per snapshot."""


def test_every_example_is_in_a_table() -> None:
    papers = {"matmul-relu", "attention", "layernorm-matmul", "rmsnorm-swiglu"}
    assert set(LEFT) | papers == set(bb.examples.EXAMPLES)


@pytest.mark.parametrize("name", LEFT)
def test_interior_buffered_edges(name: str) -> None:
    program = bb.examples.find(name)
    fusion = bb.fuse(bb.lower(program), rules="paper")
    assert [len(bb.buffered(snapshot)) for snapshot in fusion.snapshots] == LEFT[name]


@pytest.mark.parametrize("name", LEFT)
def test_every_snapshot_computes_the_same(name: str) -> None:
    program = bb.examples.find(name)
    inputs = inputs_for(program, B=2, H=2, G=2, R=3)
    expected = bb.evaluate(program, inputs)
    fusion = bb.fuse(bb.lower(program))
    for graph in (fusion.initial, *fusion.snapshots):
        bb.verify(graph)
        assert_computes(graph, inputs, expected)
