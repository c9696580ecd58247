"""Traversals of expressions and operators, typed accessors, and analyses of graphs."""

from typing import get_args

import pytest

from blockbuster_fusion.ir.analysis import analysis
from blockbuster_fusion.ir.axis import Axis, Dim, Symbol
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.combiner import Combiner, Reduced
from blockbuster_fusion.ir.expr import (
    Expr,
    arg,
    axes_in,
    call,
    cast,
    const,
    contains,
    fold,
    fold_nodes,
    rewrite,
    size,
)
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.map_op import map_op
from blockbuster_fusion.ir.ops import (
    BlockReduce,
    Dot,
    Elementwise,
    Input,
    Iota,
    Join,
    Map,
    Misc,
    Op,
    Pick,
    Reduce,
    Rename,
    Scan,
    Take,
)
from blockbuster_fusion.ir.types import DType, Type

K, N = Axis("K", Symbol("KK")), Axis("N", Symbol("NN"))
k, n = Dim(K, 0), Dim(N, 0)
BLOCK = Type((), (k,), DType.float32)
SIZED = Combiner("sized", (0.0,), (arg(0) + arg(1) * size(K),))


def body() -> Graph:
    builder = Builder()
    x = builder.input("x", BLOCK)
    builder.output("y", builder.one(Elementwise(-arg(0)), x))
    return builder.build()


OPS: list[Op] = [
    Input("x", BLOCK),
    Elementwise(arg(0) / size(K)),
    BlockReduce(k, SIZED),
    Scan(k, SIZED),
    Dot(k),
    Take(K),
    Map(k, body(), (True,), (Reduced(SIZED),)),
    Reduce(k, SIZED),
    Rename(K, Axis("L", K.extent)),
    Pick(k, 1),
    Join(k),
    Iota(k),
    Misc("lib", "sort", (("dim", 0),), (BLOCK,), ((K,),)),
]


def test_a_fold_visits_a_shared_node_once() -> None:
    shared = call("exp", arg(0))
    visited: list[Expr] = []

    def count(node: Expr, sizes: list[int]) -> int:
        visited.append(node)
        return 1 + sum(sizes)

    assert fold(shared * shared, count) == 5
    assert visited == [arg(0), shared, shared * shared]
    assert fold_nodes(shared, count) == {arg(0): 1, shared: 2}


def test_a_fold_of_a_deep_expression_does_not_recurse() -> None:
    expr = arg(0)
    for _ in range(20_000):
        expr = -expr
    depth = fold(expr, lambda node, depths: 1 + max(depths, default=0))
    assert depth == 20_001
    assert rewrite(expr, lambda node: node) is expr


def test_a_rewrite_replaces_operands_first() -> None:
    doubled = rewrite(call("exp", arg(0) + 1), lambda node: arg(1) if node.op == "const" else node)
    assert doubled is call("exp", arg(0) + arg(1))


def test_questions_about_an_expression() -> None:
    expr = call("exp", arg(0)) / size(K) + size(N)
    assert contains(expr, "exp", "exp2")
    assert not contains(expr, "log")
    assert axes_in(expr) == (K, N)


@pytest.mark.parametrize(
    ("expr", "accessor", "value"),
    [
        (arg(3), "index", 3),
        (const(2.5), "number", 2.5),
        (const(True), "number", True),
        (size(K), "axis", K),
        (cast(arg(0), DType.float16), "dtype", DType.float16),
    ],
)
def test_the_value_of_a_node_by_its_kind(expr: Expr, accessor: str, value: object) -> None:
    assert getattr(expr, accessor) == value
    with pytest.raises(TypeError, match=r"the value of 'add' is None"):
        getattr(arg(0) + arg(1), accessor)


def test_an_example_of_every_operator() -> None:
    assert {type(op) for op in OPS} == set(get_args(Op))


@pytest.mark.parametrize("op", OPS, ids=lambda op: type(op).__name__)
def test_an_operator_without_changes_is_the_same_object(op: Op) -> None:
    assert map_op(op) is op
    assert map_op(op, dim=lambda d: d, axis=lambda a: a, expr=lambda e: e) is op


@pytest.mark.parametrize("op", OPS, ids=lambda op: type(op).__name__)
def test_every_part_of_an_operator_is_replaced(op: Op) -> None:
    """The old operator mentions K, the new one does not."""
    other = body()
    made = map_op(
        op,
        dim=lambda d: n,
        axis=lambda a: N,
        kind=lambda t: Type((), (n,), t.dtype),
        expr=lambda e: rewrite(e, lambda node: size(N) if node.op == "size" else node),
        body=lambda graph: other,
    )
    assert type(made) is type(op)
    assert "K" in repr(op)
    assert "K" not in repr(made)
    assert not isinstance(made, Map) or made.body is other


def test_an_analysis_is_computed_once_per_graph_and_argument() -> None:
    calls: list[int] = []

    @analysis
    def nodes_above(graph: Graph, least: int) -> int:
        calls.append(least)
        return sum(1 for i in graph.nodes if i > least)

    graph = body()
    assert [nodes_above(graph, 0), nodes_above(graph, 0), nodes_above(graph, 5)] == [1, 1, 0]
    assert nodes_above(body(), 0) == 1
    assert calls == [0, 5, 0]


def test_the_operator_of_a_node_by_its_kind() -> None:
    graph = body()
    x, y = graph.nodes
    assert graph.input(x).name == "x"
    assert graph.op_as(y, Elementwise).expr is -arg(0)
    with pytest.raises(TypeError, match=r"node %0 is Input, not Map"):
        graph.map(x)


def test_an_edit_gives_the_nodes_that_it_touched() -> None:
    graph = body()
    assert graph.touched is None
    (_, y) = graph.nodes
    node = graph[y]
    edited = graph.edit(
        add={y: type(node)(Elementwise(call("exp", arg(0))), node.inputs, node.types)}
    )
    assert edited.touched == {0, y}
    assert edited.touched_everywhere().touched is None
    assert edited.touched_everywhere().nodes is edited.nodes
