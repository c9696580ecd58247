"""The results of its body define a map: a node that no result needs does not count."""

from collections.abc import Callable

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.combiner import ADD, Mode
from blockbuster_fusion.ir.expr import arg, call
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import BlockReduce, Dot, Elementwise, Map, Op, Reduce, Value
from blockbuster_fusion.rules.drop_softmax_shift import DropSoftmaxShift
from blockbuster_fusion.rules.expand_square import ExpandSquare
from blockbuster_fusion.rules.interchange import Interchange
from blockbuster_fusion.rules.rule import Rule
from blockbuster_fusion.rules.swap_scale_dot import SwapScaleDot
from blockbuster_fusion.rules.swap_scales import SwapScales
from helpers.extensions import EXP, MINUS, SQUARE, SUM, TIMES, over, total
from helpers.graphs import array, item, k, m
from helpers.rewriting import check, sites


def beside(build: Builder, dead: Op, *operands: Value, mode: Mode = None, give: int = 0) -> Value:
    """A loop that yields one of its operands, and computes something that nobody needs."""

    def body(g: Builder, *xs: Value) -> list[tuple[Value, Mode]]:
        g.one(dead, *xs[: 1 if isinstance(dead, BlockReduce) else None])
        return [(xs[give], mode)]

    walked = [x for x in operands if build.type(x).is_list]
    return build.map(k, walked, [x for x in operands if x not in walked], body)[0]


def dot(build: Builder, x: Value) -> None:
    y = build.input("Y", array(k))
    build.output("O", build.map(k, [x, y], [], lambda g, *xs: [(g.one(Dot(k), *xs), SUM)])[0])


def unneeded_scale() -> Graph:
    build = Builder()
    x, c = build.input("X", array(k)), build.input("c", item())
    dot(build, beside(build, Elementwise(TIMES), x, c))
    return build.build()


def unneeded_column_scale() -> Graph:
    build = Builder()
    x, c, w = build.input("X", array(k)), build.input("c", item()), build.input("w", array(k))
    scaled = over(build, k, TIMES, x, c)
    dot(build, beside(build, Elementwise(TIMES), scaled, w))
    return build.build()


def unneeded_square() -> Graph:
    build = Builder()
    x, c = build.input("X", array(k)), build.input("c", item())
    build.output("O", total(build, beside(build, Elementwise(SQUARE), over(build, k, MINUS, x, c))))
    return build.build()


def unneeded_exp() -> Graph:
    build = Builder()
    x, c = build.input("X", array(k)), build.input("c", item())
    e = beside(build, Elementwise(EXP), over(build, k, MINUS, x, c))
    build.output("O", over(build, k, arg(0) / arg(1), e, total(build, e)))
    return build.build()


def unneeded_sum(*, inside: bool) -> Graph:
    """The sum of an item, as often as there are blocks, beside that of a list of squares."""
    build = Builder()
    x, c = build.input("X", array(k)), build.input("c", item())
    squared = over(build, k, SQUARE, over(build, k, MINUS, x, c))
    mode = SUM if inside else None
    made = beside(build, BlockReduce(k, ADD), squared, c, mode=mode, give=1)
    build.output("O", made if inside else build.one(Reduce(k, ADD), made))
    return build.build()


def rows_beside_their_nest() -> Graph:
    """A map over rows that yields each row, and one of the two results of its loop over columns."""
    build = Builder()

    def inner(g: Builder, x: Value) -> list[tuple[Value, Mode]]:
        return [(g.one(Elementwise(f), x), None) for f in (EXP, call("sin", arg(0)))]

    def outer(g: Builder, x: Value) -> list[tuple[Value, Mode]]:
        return [(x, None), (g.map(k, [x], [], inner)[1], None)]

    a, b = build.map(m, [build.input("X", array(m, k))], [], outer)
    build.output("O", build.nest([k, m], [a, b], lambda g, *xs: g.one(Elementwise(MINUS), *xs)))
    return build.build()


CASES: dict[str, tuple[Rule, Callable[[], Graph]]] = {
    "scale": (SwapScaleDot(), unneeded_scale),
    "column scale": (SwapScales(), unneeded_column_scale),
    "square": (ExpandSquare(), unneeded_square),
    "exp": (DropSoftmaxShift(), unneeded_exp),
    "nest": (Interchange(), rows_beside_their_nest),
}


@pytest.mark.parametrize("name", CASES)
def test_no_place_where_the_body_yields_something_else(name: str) -> None:
    rule, make = CASES[name]
    assert sites(rule, make()) == []


@pytest.mark.parametrize("inside", [False, True], ids=["sum beside", "sum inside"])
def test_a_sum_of_something_else_is_no_sum_of_squares(inside: bool) -> None:
    (site,) = sites(ExpandSquare(), unneeded_sum(inside=inside))
    refused = site.rule.refusal(site)
    assert refused is not None
    assert refused.name == "only_summed"


@pytest.mark.parametrize(
    "make",
    [make for _, make in CASES.values()]
    + [lambda: unneeded_sum(inside=True), lambda: unneeded_sum(inside=False)],
)
def test_fusing_drops_what_no_result_needs_in_maps_too(make: Callable[[], Graph]) -> None:
    graph = make()
    fusion = bb.fuse(graph, "extended")
    for snapshot in (fusion.initial, *fusion.fused):
        check(graph, snapshot)
    for _, inner in fusion.initial.walk():
        needed = {out.value.node for out in inner.outputs}
        computed = (i for i in inner.nodes if not inner.is_source(i))
        assert all(i in needed or inner.users[i] for i in computed)


def test_nodes_deep_inside_are_dropped() -> None:
    graph = Builder()
    x = graph.input("X", array(m, k))

    def deep(g: Builder, x: Value) -> Value:
        unused = g.one(Elementwise(EXP), x)
        g.one(Elementwise(EXP), unused)
        return g.one(Elementwise(SQUARE), x)

    graph.output("O", graph.nest([m, k], [x], deep))
    made = graph.build()
    smaller = made.without_dead_nodes()
    check(made, smaller)
    assert smaller.without_dead_nodes() is smaller
    nests = [[len(inner.nodes) for _, inner in g.walk()] for g in (made, smaller)]
    assert nests == [[2, 2, 4], [2, 2, 2]]
    assert isinstance(smaller.op(made.outputs[0].value.node), Map)
