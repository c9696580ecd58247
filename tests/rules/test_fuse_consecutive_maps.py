"""Rule 1, fuse consecutive maps: U -> V over one dim become one map."""

from collections.abc import Callable

import blockbuster_fusion as bb
from blockbuster_fusion import ops
from blockbuster_fusion.array.arrays import Array
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.combiner import ADD, MAX, Mode, Reduced
from blockbuster_fusion.ir.expr import arg, call
from blockbuster_fusion.ir.ops import BlockReduce, Elementwise, Value
from blockbuster_fusion.rules.fuse_consecutive_maps import FuseConsecutiveMaps
from blockbuster_fusion.rules.fuse_map_reduce import FuseMapReduce
from blockbuster_fusion.rules.peel_first import PeelFirst
from helpers.graphs import ONLINE, array, heads, m, n
from helpers.rewriting import before_and_after, check, exhaust, fire, lowered, matches, refusals

RULE = FuseConsecutiveMaps()


def test_two_maps_in_a_row(golden: Callable[[str], None]) -> None:
    golden(before_and_after(RULE, lowered(lambda X: ops.sin(ops.exp(X)), X="M N")))


def test_what_both_maps_read_is_read_once(golden: Callable[[str], None]) -> None:
    golden(before_and_after(RULE, lowered(lambda X: X * ops.exp(X), X="M")))


def test_results_that_others_use_stay_results(golden: Callable[[str], None]) -> None:
    def program(X: Array) -> dict[str, Array]:
        e = ops.exp(X)
        return {"S": ops.sin(e), "E": e, "C": ops.sort(e)}

    golden(before_and_after(RULE, lowered(program, X="M")))


def test_results_that_nobody_else_uses_go_away() -> None:
    def program(X: Array) -> dict[str, Array]:
        e, c = ops.exp(X), ops.cos(X)
        return {"S": e * c}

    fused = exhaust(lowered(program, X="M"), RULE)
    assert bb.buffered(fused) == []
    ((_, op),) = fused.maps()
    assert op.modes == (None,)


def test_several_edges_between_the_maps() -> None:
    """U stacks two lists, and V iterates both."""

    def both(g: Builder, x: Value) -> list[tuple[Value, Mode]]:
        return [(g.one(Elementwise(call(f, arg(0))), x), None) for f in ("sin", "cos")]

    build = Builder()
    u = build.map(m, [build.input("X", array(m))], [], both)
    product = Elementwise(arg(0) * arg(1))
    (v,) = build.map(m, u, [], lambda g, *xs: [(g.one(product, *xs), None)])
    build.output("O", v)
    assert bb.buffered(fire(RULE, build.build())) == []


def test_inside_maps() -> None:
    program = exhaust(lowered(lambda X: ops.sin(ops.exp(X)), X="M N"), RULE)
    assert bb.buffered(program) == []
    assert [len(list(graph.maps())) for _, graph in program.walk()] == [1, 1, 0]


def test_a_reduced_result_that_only_others_use() -> None:
    """V iterates the stacked result of U; another node takes the reduced one."""

    def sums(g: Builder, x: Value) -> list[tuple[Value, Mode]]:
        e = g.one(Elementwise(call("exp", arg(0))), x)
        return [(e, None), (g.one(BlockReduce(m, ADD), e), Reduced(ADD))]

    build = Builder()
    e, total = build.map(m, [build.input("X", array(m))], [], sums)
    (v,) = build.map(m, [e], [], lambda g, x: [(g.one(Elementwise(arg(0) * 2.0), x), None)])
    build.output("twice", v)
    build.output("total", build.one(Elementwise(1 / arg(0)), total))
    fused = fire(RULE, build.build())
    assert bb.buffered(fused) == []


def test_a_tuple_stays_whole() -> None:
    """Of the running maximum and sum of U, only the sum is used."""

    def pair(g: Builder, x: Value) -> list[tuple[Value, Mode]]:
        e = g.one(Elementwise(call("exp", arg(0))), x)
        return [(e, None), (x, Reduced(ONLINE, 0)), (e, Reduced(ONLINE, 1))]

    build = Builder()
    e, _, total = build.map(heads, [build.input("X", array(heads))], [], pair)
    (v,) = build.map(heads, [e], [], lambda g, x: [(g.one(Elementwise(arg(0) * 2.0), x), None)])
    build.output("twice", v)
    build.output("total", total)
    fused = fire(RULE, build.build())
    ((_, op),) = fused.maps()
    assert len(op.modes) == 3


# ---------------------------------------------------------------- when it must not fire


def test_refuses_maps_over_different_dims() -> None:
    """The sums over either axis cannot both have their loops in the order of the other's."""

    def program(X: Array) -> tuple[Array, Array]:
        e = ops.exp(X)
        return e.sum(axis=0), e.sum(axis=1)

    graph = lowered(program, X="M K")
    assert len(matches(RULE, graph)) == 1
    assert refusals(RULE, graph) == ["same_dim"]


def test_refuses_a_map_that_has_been_peeled() -> None:
    """V without its first iteration is no longer a map over all that U makes."""

    def program(Q: Array, KT: Array, VT: Array) -> Array:
        return ops.exp(Q @ KT.T) @ VT.T

    graph = exhaust(lowered(program, Q="M D", KT="N D", VT="L N"), RULE, FuseMapReduce())
    peeled = fire(PeelFirst(), graph)
    assert "same_dim" in refusals(RULE, peeled)


def test_refuses_a_list_that_is_taken_whole() -> None:
    """Each block of V needs all blocks of U."""

    def total(g: Builder, e: Value) -> list[tuple[Value, Mode]]:
        return [(g.one(BlockReduce(m, ADD), e), Reduced(ADD))]

    def share(g: Builder, x: Value, e: Value) -> list[tuple[Value, Mode]]:
        (sum_of_all,) = g.map(m, [e], [], total)
        return [(g.one(Elementwise(arg(0) / arg(1)), x, sum_of_all), None)]

    build = Builder()
    x = build.input("X", array(m))
    (e,) = build.map(m, [x], [], lambda g, x: [(g.one(Elementwise(call("exp", arg(0))), x), None)])
    (v,) = build.map(m, [x], [e], share)
    build.output("O", v)
    graph = build.build()
    bb.verify(graph)
    assert refusals(RULE, graph) == ["iterates_what_is_stacked"]


def test_refuses_a_reduced_result() -> None:
    """x - sum(x): the sum is there only after the last iteration."""

    def total(g: Builder, x: Value) -> list[tuple[Value, Mode]]:
        return [(g.one(BlockReduce(m, ADD), x), Reduced(ADD))]

    def shifted(g: Builder, x: Value, total: Value) -> list[tuple[Value, Mode]]:
        return [(g.one(Elementwise(arg(0) - arg(1)), x, total), None)]

    build = Builder()
    x = build.input("X", array(m))
    build.output("O", build.map(m, [x], build.map(m, [x], [], total), shifted)[0])
    assert refusals(RULE, build.build()) == ["iterates_what_is_stacked"]


def test_refuses_a_stacked_and_a_reduced_result() -> None:
    """exp(x) / sum(exp(x)): V iterates one result of U and takes the other."""

    def program(X: Array) -> Array:
        e = ops.exp(X)
        return e / e.sum(axis=1, keepdims=True)

    graph = exhaust(lowered(program, X="M K"), RULE, FuseMapReduce())
    assert refusals(RULE, graph) == ["iterates_what_is_stacked"]
    assert matches(RULE, graph) == []


def test_refuses_where_another_path_leads_from_u_to_v() -> None:
    """Before the sum is in U, it stands between U and V."""

    def program(X: Array) -> Array:
        e = ops.exp(X)
        return e / e.sum(axis=1, keepdims=True)

    graph = exhaust(lowered(program, X="M K"), RULE)
    assert refusals(RULE, graph) == ["only_direct_edges"]
    assert matches(RULE, graph) == []


def test_the_driver_looks_again_where_a_path_was_in_the_way() -> None:
    """U -> A -> B -> C -> V keeps U and V apart, until B and W are one map, which needs no A.

    B has a result that nobody uses, and needs A for that result only.
    """

    def total(dim: Dim) -> Callable[[Builder, Value], list[tuple[Value, Mode]]]:
        return lambda g, x: [(g.one(BlockReduce(dim, ADD), x), Reduced(ADD))]

    def a(g: Builder, y: Value, us: Value) -> list[tuple[Value, Mode]]:
        return [(g.one(Elementwise(arg(0) * arg(1)), y, *g.map(m, [us], [], total(m))), None)]

    def b(g: Builder, w: Value, made: Value) -> list[tuple[Value, Mode]]:
        return [(*g.map(n, [made], [], total(n)), None), (g.one(exp, w), None)]

    def c(g: Builder, bs: Value) -> list[tuple[Value, Mode]]:
        return [(*g.map(n, [bs], [], total(n)), None)]

    def v(g: Builder, u: Value, cs: Value) -> list[tuple[Value, Mode]]:
        (top,) = g.map(heads, [cs], [], lambda g, x: [(x, Reduced(MAX))])
        return [(g.one(Elementwise(arg(0) + arg(1)), u, top), None)]

    build, exp = Builder(), Elementwise(call("exp", arg(0)))
    x, y, z = (build.input(name, array(dim)) for name, dim in (("X", m), ("Y", n), ("Z", n)))
    u = build.nest([m], [x], lambda g, x: g.one(exp, x))
    (made,) = build.map(n, [y], [u], a)
    w = build.nest([n], [z], lambda g, z: g.one(exp, z))
    _unused, used = build.map(n, [w], [made], b)
    (heard,) = build.map(heads, [], [used], c)
    (result,) = build.map(m, [u], [heard], v)
    build.output("O", result)
    graph = build.build()
    bb.verify(graph)
    assert refusals(RULE, graph).count("only_direct_edges") == 1
    fused = bb.fuse(graph, "paper").fused[0]
    assert matches(RULE, fused) == []
    assert result.node not in fused.nodes  # V is in the map that was U
    check(graph, fused)
