"""Rule 3, fuse a map with a reduction: ⊕ moves into the map that makes its list."""

from collections.abc import Callable

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.errors import IllTyped, InvalidGraph
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.combiner import ADD, MAX, Combiner, Mode, Reduced
from blockbuster_fusion.ir.expr import arg, call
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import BlockReduce, Elementwise, Map, Reduce, Value
from blockbuster_fusion.rules.fuse_map_reduce import FuseMapReduce
from helpers.graphs import ONLINE, K, array, heads, item, k, m
from helpers.rewriting import before_and_after, check, fire, lowered, matches, refusals

RULE = FuseMapReduce()


def row_by_row(body: Callable[[Builder, Value], list[Value]], *names: str) -> Graph:
    """The items or lists that `body` makes of each row of X."""
    build = Builder()
    rows = build.input("X", array(m, k))
    made = build.map(m, [rows], [], lambda g, row: [(v, None) for v in body(g, row)])
    for name, value in zip(names, made, strict=True):
        build.output(name, value)
    graph = build.build()
    bb.verify(graph)
    return graph


def blocks(g: Builder, row: Value, *combiners: Combiner) -> tuple[Value, ...]:
    """For each combiner, the list of its reductions of each block of a row."""

    def body(g: Builder, block: Value) -> list[tuple[Value, Mode]]:
        return [(g.one(BlockReduce(k, combiner), block), None) for combiner in combiners]

    return g.map(k, [row], [], body)


def online(g: Builder, row: Value) -> tuple[Value, Value, Value]:
    """For each block of a row: its maximum, its sum of exp(x - maximum), and its plain sum."""

    def body(g: Builder, block: Value) -> list[tuple[Value, Mode]]:
        top = g.one(BlockReduce(k, MAX), block)
        shifted = g.one(Elementwise(call("exp", arg(0) - arg(1))), block, top)
        total = g.one(BlockReduce(k, ADD), shifted)
        return [(top, None), (total, None), (g.one(BlockReduce(k, ADD), block), None)]

    return g.map(k, [row], [], body)


def test_a_sum(golden: Callable[[str], None]) -> None:
    golden(before_and_after(RULE, lowered(lambda X: X.sum(axis=1), X="M K")))


def test_a_maximum() -> None:
    graph = fire(RULE, lowered(lambda X: X.max(axis=1), X="M K"))
    assert bb.buffered(graph) == []


def test_a_list_that_is_used_stays(golden: Callable[[str], None]) -> None:
    """The partial sums are a result of the program as well."""

    def body(g: Builder, row: Value) -> list[Value]:
        (sums,) = blocks(g, row, ADD)
        return [g.one(Reduce(k, ADD), sums), sums]

    golden(before_and_after(RULE, row_by_row(body, "total", "partial")))


def test_a_list_that_another_node_uses_stays() -> None:
    def body(g: Builder, row: Value) -> list[Value]:
        (sums,) = blocks(g, row, ADD)
        total = g.one(Reduce(k, ADD), sums)
        share = Elementwise(arg(0) / arg(1))
        (shares,) = g.map(k, [sums], [total], lambda g, *xs: [(g.one(share, *xs), None)])
        return [shares]

    graph = row_by_row(body, "shares")
    fused = fire(RULE, graph)
    assert len(bb.buffered(fused)) == 1  # the partial sums; the total is an item
    assert matches(RULE, fused) == []


def test_results_after_one_that_goes_away_keep_their_users() -> None:
    def body(g: Builder, row: Value) -> list[Value]:
        sums, tops = blocks(g, row, ADD, MAX)
        return [g.one(Reduce(k, ADD), sums), tops]

    graph = fire(RULE, row_by_row(body, "total", "tops"))
    assert bb.buffered(graph) == []


def test_one_after_another() -> None:
    """Two reductions of the lists of one map, in either order."""

    def body(g: Builder, row: Value) -> list[Value]:
        sums, tops = blocks(g, row, ADD, MAX)
        return [g.one(Reduce(k, MAX), tops), g.one(Reduce(k, ADD), sums)]

    graph = row_by_row(body, "top", "total")
    for first in (0, 1):
        once = fire(RULE, graph, at=first)
        check(graph, fire(RULE, once))


def test_two_reductions_of_one_list() -> None:
    def body(g: Builder, row: Value) -> list[Value]:
        (sums,) = blocks(g, row, ADD)
        return [g.one(Reduce(k, ADD), sums), g.one(Reduce(k, MAX), sums)]

    graph = row_by_row(body, "total", "top")
    fused = fire(RULE, fire(RULE, graph))
    assert bb.buffered(fused) == []


def test_a_tuple(golden: Callable[[str], None]) -> None:
    """The running maximum and sum of an online softmax are reduced together."""

    def body(g: Builder, row: Value) -> list[Value]:
        top, total, plain = online(g, row)
        return [*g.add(Reduce(k, ONLINE), top, total), g.one(Reduce(k, ADD), plain)]

    golden(before_and_after(RULE, row_by_row(body, "top", "total", "plain")))


def test_a_tuple_of_results_before_one_that_stays() -> None:
    """Two lists go away at once, and the third moves up by two places."""

    def body(g: Builder, row: Value) -> list[Value]:
        top, total, plain = online(g, row)
        return [*g.add(Reduce(k, ONLINE), top, total), plain]

    fire(RULE, row_by_row(body, "top", "total", "plain"))


def test_a_tuple_of_results_in_another_order() -> None:
    """The combiner's first component is the map's last result."""

    def body(g: Builder, row: Value) -> list[Value]:
        def parts(g: Builder, block: Value) -> list[tuple[Value, Mode]]:
            top = g.one(BlockReduce(k, MAX), block)
            shifted = g.one(Elementwise(call("exp", arg(0) - arg(1))), block, top)
            plain = g.one(BlockReduce(k, ADD), block)
            return [(g.one(BlockReduce(k, ADD), shifted), None), (plain, None), (top, None)]

        total, plain, top = g.map(k, [row], [], parts)
        return [*g.add(Reduce(k, ONLINE), top, total), plain]

    fire(RULE, row_by_row(body, "top", "total", "plain"))


def test_a_tuple_one_list_of_which_is_used() -> None:
    def body(g: Builder, row: Value) -> list[Value]:
        top, total, plain = online(g, row)
        return [*g.add(Reduce(k, ONLINE), top, total), total, plain]

    fire(RULE, row_by_row(body, "top", "total", "partial", "plain"))


def test_a_tuple_of_one_list_twice() -> None:
    def body(g: Builder, row: Value) -> list[Value]:
        tops, sums = blocks(g, row, MAX, ADD)
        return [*g.add(Reduce(k, ONLINE), tops, tops), sums]

    fire(RULE, row_by_row(body, "top", "total", "sums"))


# ---------------------------------------------------------------- when it must not fire


def test_refuses_a_tuple_of_lists_of_two_maps() -> None:
    def body(g: Builder, row: Value) -> list[Value]:
        (tops,), (sums,) = blocks(g, row, MAX), blocks(g, row, ADD)
        return list(g.add(Reduce(k, ONLINE), tops, sums))

    graph = row_by_row(body, "top", "total")
    assert refusals(RULE, graph) == ["reduces_what_is_stacked"] * 2


def test_refuses_a_tuple_of_which_one_list_is_an_input() -> None:
    build = Builder()
    tops = build.input("T", array(heads))
    (sums,) = build.map(heads, [build.input("X", array(heads))], [], lambda g, x: [(x, None)])
    for name, value in zip(
        ("top", "total"), build.add(Reduce(heads, ONLINE), tops, sums), strict=True
    ):
        build.output(name, value)
    graph = build.build()
    bb.verify(graph)
    assert refusals(RULE, graph) == ["reduces_what_is_stacked"]


# The other guards refuse graphs that are no programs to begin with. They stay, because they state
# the assumptions of the rule. These tests say why no program can show them.


def test_a_reduction_over_another_dim_is_no_program() -> None:
    """Only lists of items are reduced, and the list that a map stacks is over the map's dim."""
    build = Builder()
    (sums,) = build.map(k, [build.input("X", array(k))], [], lambda g, x: [(x, None)])
    with pytest.raises(IllTyped, match=r"is no list over K\.1"):
        build.one(Reduce(Dim(K, 1), ADD), sums)


def test_a_reduction_of_lists_of_lists_is_no_program() -> None:
    build = Builder()
    (rows,) = build.map(m, [build.input("X", array(m, k))], [], lambda g, row: [(row, None)])
    for dim in (m, k):
        with pytest.raises(IllTyped, match="only lists of items are reduced"):
            build.one(Reduce(dim, ADD), rows)


def test_a_reduction_of_a_part_of_a_list_is_no_program() -> None:
    """The list of a map that starts at block 1 may be used by a join only."""
    build = Builder()
    inner = Builder(build.ids)
    inner.output("", inner.input("X", item(k)))
    rest = Map(k, inner.build(), (True,), (None,), first=1)
    build.output("O", build.one(Reduce(k, ADD), build.one(rest, build.input("X", array(k)))))
    with pytest.raises(InvalidGraph, match="without its first element"):
        bb.verify(build.build())


def test_a_reduction_of_what_is_reduced_is_no_program() -> None:
    build = Builder()
    (total,) = build.map(k, [build.input("X", array(k))], [], lambda g, x: [(x, Reduced(ADD))])
    with pytest.raises(IllTyped, match=r"is no list over K\.0"):
        build.one(Reduce(k, ADD), total)
