"""Rule 7, peel off the first iteration: the driver never does, but a user may."""

from collections.abc import Callable

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion import ops
from blockbuster_fusion.array.arrays import Array
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.combiner import ADD, ANY, MAX, MIN, MUL, Mode, Reduced
from blockbuster_fusion.ir.expr import arg, call
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import BlockReduce, Dot, Elementwise, Join, Pick, Value
from blockbuster_fusion.rules.fuse_consecutive_maps import FuseConsecutiveMaps
from blockbuster_fusion.rules.fuse_sibling_maps import FuseSiblingMaps
from blockbuster_fusion.rules.peel_first import PeelFirst
from helpers.graphs import ONLINE, array, k, n
from helpers.rewriting import (
    before_and_after,
    check,
    exhaust,
    fire,
    lowered,
    matches,
    refusals,
    sites,
)

RULE = PeelFirst()
LOCAL = bb.RULE_SETS["paper"].local


def settled(function: Callable[..., object], **specs: object) -> Graph:
    """A program after the local rules."""
    return exhaust(lowered(function, **specs), *LOCAL)


def product(X: Array, Y: Array) -> Array:
    return ops.exp(X) @ Y.T


def columns(results: Callable[[Builder, Value, Value], list[tuple[Value, Mode]]]) -> Graph:
    """U: exp(X). V: `results` of each block of rows of Y, and of its product with exp(X)."""

    def column(g: Builder, y: Value, e: Value) -> list[tuple[Value, Mode]]:
        (dot,) = g.map(k, [e, y], [], lambda g, *xs: [(g.one(Dot(k), *xs), Reduced(ADD))])
        return results(g, dot, y)

    build = Builder()
    x, y = build.input("X", array(k)), build.input("Y", array(n, k))
    exp = Elementwise(call("exp", arg(0)))
    (e,) = build.map(k, [x], [], lambda g, x: [(g.one(exp, x), None)])
    for i, value in enumerate(build.map(n, [y], [e], column)):
        build.output(f"O{i}", value)
    graph = build.build()
    bb.verify(graph)
    return graph


def firsts(graph: Graph) -> list[int]:
    """The first blocks of the loops over N."""
    return [op.first for _, op in graph.maps() if op.dim.name == "N"]


def test_a_stacked_result(golden: Callable[[str], None]) -> None:
    golden(before_and_after(RULE, settled(product, X="K", Y="N K")))


def test_a_reduced_result(golden: Callable[[str], None]) -> None:
    def program(X: Array, Y: Array) -> Array:
        return ops.square(ops.exp(X) @ Y.T).sum()

    golden(before_and_after(RULE, settled(program, X="K", Y="N K")))


@pytest.mark.parametrize("combiner", [ADD, MUL, MAX, MIN], ids=str)
def test_every_combiner(combiner: object) -> None:
    def results(g: Builder, dot: Value, y: Value) -> list[tuple[Value, Mode]]:
        return [(g.one(BlockReduce(n, combiner), dot), Reduced(combiner))]

    peeled = fire(RULE, columns(results))
    assert firsts(peeled) == [1]


def test_a_result_that_is_the_same_in_every_iteration() -> None:
    """The first iteration yields the result; those of the others are dropped."""

    def results(g: Builder, dot: Value, y: Value) -> list[tuple[Value, Mode]]:
        (seven,) = g.map(k, [y], [], lambda g, y: [(g.one(BlockReduce(k, ADD), y), Reduced(ADD))])
        zero = g.one(Elementwise(arg(0) * 0 + 7.0), g.one(BlockReduce(n, ADD), seven))
        return [(dot, None), (zero, Reduced(ANY))]

    peeled = fire(RULE, columns(results))
    out = peeled.outputs[1].value
    assert not isinstance(peeled.op(out.node), Join)
    assert peeled.map(next(i for i, op in peeled.maps() if op.first)) is not None


def test_a_tuple() -> None:
    """The running maximum and sum of an online softmax, with a plain sum between other results."""

    def results(g: Builder, dot: Value, y: Value) -> list[tuple[Value, Mode]]:
        top = g.one(BlockReduce(n, MAX), dot)
        shifted = g.one(Elementwise(call("exp", arg(0) - arg(1))), dot, top)
        total = g.one(BlockReduce(n, ADD), shifted)
        both = [(top, Reduced(ONLINE, 0)), (total, Reduced(ONLINE, 1))]
        return [(dot, None), *both, (g.one(BlockReduce(n, ADD), dot), Reduced(ADD))]

    fire(RULE, columns(results))


def test_results_that_are_operands() -> None:
    """V hands on an element of the list that it iterates, and one that it reduces."""

    def results(g: Builder, dot: Value, y: Value) -> list[tuple[Value, Mode]]:
        return [(y, None), (g.one(BlockReduce(n, MAX), dot), Reduced(MAX)), (dot, None)]

    fire(RULE, columns(results))


def test_a_dim_with_one_block() -> None:
    """The loop over the rest runs zero times."""
    graph = settled(product, X="K", Y="N K")
    check(graph, fire(RULE, graph), {"N": 1})
    check(graph, fire(RULE, graph), {"N": 1, "K": 1})


def test_in_rows() -> None:
    """One map deeper, where the program is Example 1 without its softmax."""

    def program(Q: Array, K: Array, V: Array) -> Array:
        return ops.exp(Q @ K.T) @ V

    graph = settled(program, Q="M D", K="N D", V="N L")
    (match,) = matches(RULE, graph)
    assert (len(match.path), match.variant) == (1, "a")
    fire(RULE, graph)


def test_then_rule_1_fuses_the_peeled_copy_with_u(golden: Callable[[str], None]) -> None:
    """The work of U is done once, beside the first iteration."""
    peeled = fire(RULE, settled(product, X="K", Y="N K"))
    golden(before_and_after(FuseConsecutiveMaps(), peeled))


def test_then_rule_2_fuses_the_peeled_copy_with_u() -> None:
    """If U and W share a list, U is fused with the copy of W."""

    def program(X: Array, Y: Array) -> Array:
        return (X / X.sum()) @ Y.T

    peeled = fire(RULE, settled(program, X="K", Y="N K"))
    before = len(list(peeled.maps()))
    fused = fire(FuseSiblingMaps(), peeled, dim="K")
    assert len(list(fused.maps())) == before - 1


@pytest.mark.parametrize("name", ["attention", "layernorm-matmul", "rmsnorm-swiglu"])
def test_then_the_driver_goes_on(name: str) -> None:
    """A peeled program is fused like any other."""
    for snapshot in bb.fuse(bb.examples.find(name), "paper").fused[:-1]:
        peeled = fire(RULE, snapshot)
        fusion = bb.fuse(peeled, "paper")
        assert len(fusion.trace) > 0
        for fused in fusion.fused:
            check(snapshot, fused)


def test_only_lists_that_are_iterated_are_picked_from() -> None:
    peeled = fire(RULE, settled(product, X="K", Y="N K"))
    picks = [node for node in peeled.nodes.values() if isinstance(node.op, Pick)]
    assert len(picks) == 1
    assert peeled.op(picks[0].inputs[0].node).name == "Y"


# ---------------------------------------------------------------- when it must not fire


def test_refuses_a_map_that_has_been_peeled() -> None:
    peeled = fire(RULE, settled(product, X="K", Y="N K"))
    assert refusals(RULE, peeled) == ["starts_at_zero"]
    assert matches(RULE, peeled) == []


def test_no_place_without_a_map_that_could_be_fused() -> None:
    assert sites(RULE, settled(lambda X, Y: X @ Y.T, X="K", Y="N K")) == []


def test_the_driver_never_peels() -> None:
    paper = bb.RULE_SETS["paper"]
    assert paper.optional == (paper.rule(RULE.name),)
    assert RULE.name not in {rule.name for rule in (*paper.local, *paper.extending)}
