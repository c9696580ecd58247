"""Rule 9, fuse consecutive elementwise operators: f -> g becomes g∘f."""

from collections.abc import Callable

import numpy as np

import blockbuster_fusion as bb
from blockbuster_fusion import ops
from blockbuster_fusion.array.arrays import Array, elementwise
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.expr import arg, call, cast
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import Elementwise
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.rules.fuse_consecutive_maps import FuseConsecutiveMaps
from blockbuster_fusion.rules.fuse_elementwise import FuseElementwise
from helpers.graphs import item, m
from helpers.rewriting import before_and_after, exhaust, fire, lowered, matches, refusals, run

RULE = FuseElementwise()


def in_one_map(function: Callable[..., object], **specs: object) -> Graph:
    """A program with its maps fused."""
    return exhaust(lowered(function, **specs), FuseConsecutiveMaps())


def operators(graph: Graph) -> list[str]:
    """The elementwise operators of a program."""
    return [
        str(node.op.expr)
        for _, inner in graph.walk()
        for node in inner.nodes.values()
        if isinstance(node.op, Elementwise)
    ]


def test_two_functions(golden: Callable[[str], None]) -> None:
    golden(before_and_after(RULE, in_one_map(lambda X: ops.exp(X * 0.5), X="M")))


def test_a_chain() -> None:
    graph = in_one_map(lambda X: ops.sin(ops.relu(ops.exp(-X))), X="M")
    fused = graph
    for _ in range(3):
        fused = fire(RULE, fused)
    assert operators(fused) == ["sin(maximum(exp(-x0),0))"]
    assert matches(RULE, fused) == []


def test_an_argument_that_is_used_twice() -> None:
    graph = in_one_map(lambda X: ops.swish(ops.sin(X)), X="M")
    assert operators(fire(RULE, graph)) == ["sin(x0)/(1+exp(-sin(x0)))"]


def test_a_change_of_dtype() -> None:
    """The composed operator has the dtype of the second."""

    def program(X: Array) -> Array:
        return elementwise(lambda t: t * 3, X > 0.1)

    graph = in_one_map(program, X="M")
    assert [out.value for out in graph.outputs] != []
    assert fire(RULE, graph).type(graph.outputs[0].value).dtype is DType.int64


def test_casts_in_a_row() -> None:
    build = Builder()
    x = build.input("X", item(m, dtype=DType.float64))
    whole = build.one(Elementwise(cast(arg(0) * 4.0, DType.int32)), x)
    build.output("O", build.one(Elementwise(cast(arg(0), DType.float32) / 3), whole))
    fire(RULE, build.build())


def test_numbers_that_meet_another_dtype() -> None:
    """The first gives float32; composed, its numbers would take the float16 that they meet."""
    build = Builder()
    chosen = call("where", arg(0) > 0, 0.1, 0.2)
    mixed = arg(0) + cast(arg(0), DType.float16)
    first = build.one(Elementwise(chosen), build.input("X", item(m)))
    build.output("O", build.one(Elementwise(mixed), first))
    graph = build.build()
    fused = fire(RULE, graph)
    given = {"X": np.array([1, -1], np.float32)}
    np.testing.assert_array_equal(run(fused, given, {})["O"], run(graph, given, {})["O"])


# ---------------------------------------------------------------- when it must not fire


def test_refuses_where_the_first_has_two_operands() -> None:
    graph = in_one_map(lambda X, Y: ops.exp(X + Y), X="M", Y="M")
    assert refusals(RULE, graph) == ["both_unary"]


def test_refuses_where_the_second_has_two_operands() -> None:
    graph = in_one_map(lambda X, Y: ops.exp(X) + Y, X="M", Y="M")
    assert refusals(RULE, graph) == ["both_unary"]


def test_refuses_where_the_second_takes_the_first_and_its_operand() -> None:
    graph = in_one_map(lambda X: X * ops.exp(X), X="M")
    assert refusals(RULE, graph) == ["both_unary"]


def test_refuses_a_result_with_two_uses() -> None:
    def program(X: Array) -> dict[str, Array]:
        e = ops.exp(X)
        return {"S": ops.sin(e), "C": ops.cos(e)}

    graph = exhaust(lowered(program, X="M"), *bb.RULE_SETS["paper"].local[5:])
    assert refusals(RULE, graph) == ["used_once", "used_once"]


def test_refuses_a_result_of_the_graph() -> None:
    def program(X: Array) -> dict[str, Array]:
        e = ops.exp(X)
        return {"E": e, "S": ops.sin(e)}

    assert refusals(RULE, in_one_map(program, X="M")) == ["used_once"]


def test_no_place_across_a_loop() -> None:
    """The first is outside the map that the second is in."""
    graph = in_one_map(lambda X, Y: X[:, None] * Y, X="M", Y="M N")
    assert matches(RULE, graph) == refusals(RULE, graph) == []


def test_refuses_operators_on_items_that_others_use() -> None:
    build = Builder()
    e = build.one(Elementwise(call("exp", arg(0))), build.input("X", item(m)))
    build.output("S", build.one(Elementwise(call("sin", arg(0))), e))
    build.output("P", build.one(Elementwise(arg(0) * arg(1)), e, build.input("Y", item(m))))
    assert sorted(refusals(RULE, build.build())) == ["both_unary", "used_once"]
