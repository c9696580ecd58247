"""The dims that a graph mentions, also those in an operator and in no type."""

import pytest

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.combiner import ADD
from blockbuster_fusion.ir.ops import Pick, Reduce
from helpers.graphs import array, heads


@pytest.mark.parametrize(
    "op", [Reduce(Dim(heads.axis, 5, False), ADD), Pick(Dim(heads.axis, 5, False), 0)]
)
def test_a_dim_that_walks_a_free_list_is_mentioned_and_substituted(op: Reduce | Pick) -> None:
    build = Builder()
    value = build.one(op, build.input("X", array(heads)))
    build.output("Y", value)
    graph = build.build()
    assert op.dim in graph.dims
    (node,) = graph.substitute({op.dim: heads}).users[graph.inputs[0]]
    replaced = graph.substitute({op.dim: heads}).op(node)
    assert isinstance(replaced, Reduce | Pick)
    assert replaced.dim is heads
