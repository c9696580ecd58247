"""Rule 2, fuse sibling maps: two maps that read one list become one."""

from collections.abc import Callable

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion import ops
from blockbuster_fusion.array.arrays import Array
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.combiner import ADD, Mode, Reduced
from blockbuster_fusion.ir.expr import arg, call
from blockbuster_fusion.ir.ops import BlockReduce, Elementwise, Iota, Value
from blockbuster_fusion.rules.fuse_consecutive_maps import FuseConsecutiveMaps
from blockbuster_fusion.rules.fuse_sibling_maps import FuseSiblingMaps
from blockbuster_fusion.rules.peel_first import PeelFirst
from helpers.graphs import ONLINE, M, array, heads, m
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

RULE = FuseSiblingMaps()
CONSECUTIVE = FuseConsecutiveMaps()


def test_two_maps_that_iterate_a_list(golden: Callable[[str], None]) -> None:
    def program(X: Array) -> dict[str, Array]:
        return {"E": ops.exp(X), "S": ops.sin(X)}

    golden(before_and_after(RULE, lowered(program, X="M N")))


def test_two_maps_that_take_a_list_whole(golden: Callable[[str], None]) -> None:
    """Inside the rows of X, both loops over N need all of the row."""

    def program(X: Array, A: Array, B: Array) -> dict[str, Array]:
        return {"A_": X @ A.T, "B_": X @ B.T}

    rows = fire(RULE, lowered(program, X="M K", A="N K", B="N K"), dim="M")
    golden(before_and_after(RULE, rows, dim="N"))


def test_a_list_that_a_node_makes() -> None:
    def program(X: Array) -> dict[str, Array]:
        c = ops.sort(X)
        return {"E": ops.exp(c), "S": ops.sin(c)}

    fused = fire(RULE, lowered(program, X="M"))
    assert len(list(fused.maps())) == 1


def test_two_dims_of_one_axis_become_one() -> None:
    """Loops over an input are tied by nothing; afterwards they have one tile."""

    def program(X: Array) -> dict[str, Array]:
        return {"E": ops.exp(X), "S": ops.sin(X)}

    graph = lowered(program, X="M")
    assert [op.dim.label for _, op in graph.maps()] == ["M.0", "M.1"]
    fused = fire(RULE, graph)
    assert [op.dim.label for _, op in fused.maps()] == ["M.0"]
    assert {d.label for d in fused.dims} == {"M.0", "M.*"}


def test_a_dim_that_is_given_up_goes_from_the_whole_program() -> None:
    """The loops over N are inside the maps over M, and lists over both dims are beside them."""

    def program(X: Array) -> dict[str, Array]:
        e, s = ops.exp(X), ops.sin(X)
        return {"E": ops.sort(e, axis=1), "S": ops.cos(ops.sort(s, axis=0)), "C": ops.cos(s)}

    graph = fire(RULE, lowered(program, X="M N"), dim="M")
    assert {"N.0", "N.1"} <= {d.label for d in graph.dims}
    fused = fire(RULE, graph, dim="N")
    assert "N.1" not in {d.label for d in fused.dims}


def test_dims_that_are_the_same_already() -> None:
    def program(X: Array) -> dict[str, Array]:
        e = ops.exp(X)
        return {"C": ops.cos(e), "S": ops.sin(e)}

    graph = lowered(program, X="M")
    siblings = [site for site in matches(RULE, graph) if site.unify == ()]
    assert len(siblings) == 1
    assert len(list(fire(RULE, graph).maps())) == 2


def test_reduced_results_stay_reduced() -> None:
    def program(X: Array) -> dict[str, Array]:
        return {"sum": X.sum(), "max": X.max()}

    graph = exhaust(lowered(program, X="M"), *bb.RULE_SETS["paper"].local[4:5])
    fused = fire(RULE, graph)
    ((_, op),) = fused.maps()
    assert [mode and mode.combiner.name for mode in op.modes] == ["add", "max"]


def test_equal_results_are_one_result() -> None:
    """Both maps hand on an element of the list, as it is."""
    build = Builder()
    x = build.input("X", array(m))
    for name in "AB":
        (copy,) = build.map(m, [x], [], lambda g, x: [(x, None)])
        build.output(name, copy)
    fused = fire(RULE, build.build())
    ((_, op),) = fused.maps()
    assert op.modes == (None,)


def test_tuples_stay_whole() -> None:
    """Two running pairs have their first component in common; of one, only that is used."""
    build = Builder()
    x, y, z = (build.input(name, array(heads)) for name in "XYZ")
    pair = (Reduced(ONLINE, 0), Reduced(ONLINE, 1))
    for name, other in (("A", y), ("B", z)):
        both = build.map(heads, [x, other], [], lambda g, *xs: list(zip(xs, pair, strict=True)))
        top, total = both
        build.output(f"top{name}", top)
        if name == "B":
            build.output(f"total{name}", total)
    graph = build.build()
    bb.verify(graph)
    fused = fire(RULE, graph)
    ((_, op),) = fused.maps()
    assert len(op.modes) == 4


# ---------------------------------------------------------------- when it must not fire


def test_refuses_maps_over_different_axes() -> None:
    def program(X: Array, A: Array, B: Array) -> dict[str, Array]:
        return {"A_": X @ A.T, "B_": X @ B.T}

    rows = fire(RULE, lowered(program, X="M K", A="N K", B="L K"), dim="M")
    assert refusals(RULE, rows) == ["same_axis"]


def test_refuses_a_map_without_its_first_iteration() -> None:
    """Of two maps over N that read Y, one starts at block 1."""

    def program(X: Array, Y: Array) -> dict[str, Array]:
        return {"O": ops.exp(X) @ Y.T, "S": ops.sin(Y)}

    graph = lowered(program, X="K", Y="N K")
    assert len(matches(RULE, graph)) == 1
    peeled = fire(PeelFirst(), graph)
    assert matches(RULE, peeled) == []
    pairs = [[peeled.map(i) for i in site.nodes] for site in sites(RULE, peeled)]
    assert [(u.first, v.first) for u, v in pairs if u.dim.axis is v.dim.axis] == [(1, 0)]


def test_a_shared_item_does_not_count() -> None:
    """Inside the rows, c is one item; fusing the loops over A and B would save no memory."""

    def program(A: Array, B: Array, c: Array) -> dict[str, Array]:
        return {"A_": A * c[:, None], "B_": B * c[:, None]}

    rows = fire(RULE, lowered(program, A="M K", B="M K", c="M"))
    ((_, op),) = rows.maps()
    assert len(list(op.body.maps())) == 2
    assert refusals(RULE, rows) == ["share_a_list"]


def test_indices_do_not_count() -> None:
    """Positions are computed where they are used: nothing is read twice."""

    def program(A: Array, B: Array) -> dict[str, Array]:
        return {"A_": A * ops.index(A, 0), "B_": B * ops.index(B, 0)}

    graph = lowered(program, A="M", B="M")
    assert any(isinstance(node.op, Iota) for node in graph.nodes.values())
    assert refusals(RULE, graph) == ["share_a_list"]


def test_refuses_a_list_that_one_iterates_and_one_takes_whole() -> None:
    def total(g: Builder, x: Value) -> list[tuple[Value, Mode]]:
        return [(g.one(BlockReduce(m, ADD), x), Reduced(ADD))]

    def shares(g: Builder, y: Value, x: Value) -> list[tuple[Value, Mode]]:
        return [(g.one(Elementwise(arg(0) * arg(1)), y, *g.map(m, [x], [], total)), None)]

    build = Builder()
    x, y = build.input("X", array(m)), build.input("Y", array(m))
    exp = Elementwise(call("exp", arg(0)))
    build.output("E", build.map(m, [x], [], lambda g, x: [(g.one(exp, x), None)])[0])
    build.output("O", build.map(m, [y], [x], shares)[0])
    graph = build.build()
    bb.verify(graph)
    assert refusals(RULE, graph) == ["share_a_list"]


def test_refuses_different_results_of_one_map() -> None:
    """Both read results of one map, but not the same list."""

    def both(g: Builder, x: Value) -> list[tuple[Value, Mode]]:
        return [(g.one(Elementwise(call(f, arg(0))), x), None) for f in ("sin", "cos")]

    build = Builder()
    lists = build.map(m, [build.input("X", array(m))], [], both)
    for name, x in zip("AB", lists, strict=True):
        exp = Elementwise(call("exp", arg(0)))
        build.output(name, build.map(m, [x], [], lambda g, x, exp=exp: [(g.one(exp, x), None)])[0])
    assert refusals(RULE, build.build()) == ["share_a_list"]


def test_refuses_where_one_map_needs_the_other_directly() -> None:
    graph = lowered(lambda X: X * ops.exp(X), X="M")
    assert refusals(RULE, graph) == ["independent"]


def test_refuses_where_one_map_needs_the_other_by_way_of_a_third() -> None:
    graph = lowered(lambda X: X * ops.sort(ops.exp(X)), X="M")
    assert refusals(RULE, graph) == ["independent"]
    assert matches(CONSECUTIVE, graph) == []


@pytest.mark.parametrize("beside", [False, True], ids=["inside", "beside"])
def test_refuses_dims_of_which_one_is_a_loop_in_the_other(beside: bool) -> None:
    """Were they one, the sum over the inner loop would add up blocks of the outer.

    The loop in a loop is in one of the two maps, or in a third.
    """
    outer, inner = Dim(M, 0), Dim(M, 1)

    def scaled(g: Builder, x: Value, y: Value) -> list[tuple[Value, Mode]]:
        total = g.one(BlockReduce(inner, ADD), y)
        return [(g.one(Elementwise(arg(0) * arg(1)), x, total), Reduced(ADD))]

    def rows(g: Builder, x: Value, ys: Value) -> list[tuple[Value, Mode]]:
        return [(g.map(inner, [ys], [x], lambda g, y, x: scaled(g, x, y))[0], None)]

    build = Builder()
    x = build.input("X", array(outer))
    exp, sin = (Elementwise(call(name, arg(0))) for name in ("exp", "sin"))
    s = build.nest([inner], [x], lambda g, x: g.one(sin, x))
    e = build.nest([outer], [x], lambda g, x: g.one(exp, x)) if beside else x
    build.output("O", build.map(outer, [e], [s], rows)[0])
    build.output("C", build.nest([inner], [x], lambda g, x: g.one(exp, x)))
    graph = build.build()
    bb.verify(graph)
    assert "dims_apart" in refusals(RULE, graph)
    check(graph, bb.fuse(graph, "paper").fused[-1])
    while matches(RULE, graph):
        graph = fire(RULE, graph)


def test_loops_over_one_axis_may_stay_apart() -> None:
    """Two dims of an axis with their own tiles: fused loops share one, the others keep theirs."""
    build = Builder()
    x, y = build.input("X", array(m)), build.input("Y", array(m))
    for index, (name, value) in enumerate((("A", x), ("B", x), ("C", y))):
        exp = Elementwise(call("exp", arg(0)) + float(index))
        dim = Dim(M, index)
        (made,) = build.map(dim, [value], [], lambda g, x, exp=exp: [(g.one(exp, x), None)])
        build.output(name, made)
    graph = build.build()
    fused = fire(RULE, graph)
    assert {d.label for d in fused.dims} == {"M.0", "M.2", "M.*"}
    check(graph, fused)
