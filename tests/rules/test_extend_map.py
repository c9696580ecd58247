"""Rule 6, extend a map: everything beside a map moves into it."""

from collections.abc import Callable

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion import ops
from blockbuster_fusion.array.arrays import Array
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.combiner import ADD, Mode, Reduced
from blockbuster_fusion.ir.expr import arg, call
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import BlockReduce, Dot, Elementwise, Iota, Map, Value
from blockbuster_fusion.rules.extend_map import ExtendMap, twin_maps
from blockbuster_fusion.rules.fuse_consecutive_maps import FuseConsecutiveMaps
from blockbuster_fusion.rules.fuse_sibling_maps import FuseSiblingMaps
from helpers.graphs import array, k, m, n
from helpers.rewriting import before_and_after, exhaust, fire, lowered, matches, refusals, sites

RULE = ExtendMap()
LOCAL = bb.RULE_SETS["paper"].local
SUM = Reduced(ADD)


def settled(function: Callable[..., object], **specs: object) -> Graph:
    """A program in which only extending is left to do."""
    return exhaust(lowered(function, **specs), *LOCAL)


def made_then_read(X: Array, Y: Array) -> Array:
    """U makes the list that W iterates."""
    return ops.exp(X) @ Y.T


def read_twice(X: Array, Y: Array) -> Array:
    """U and W iterate the same input."""
    return (X / X.sum(axis=-1, keepdims=True)) @ Y.T


def read_twice_from_a_node(X: Array, Y: Array) -> Array:
    """U and W iterate the result of a misc operator."""
    return read_twice(ops.sort(X, axis=-1), Y)


VARIANTS = {"a": made_then_read, "b": read_twice, "c": read_twice_from_a_node}


def ports_are_different(program: Graph) -> bool:
    """True if no map of a program takes one list twice in the same way."""
    ports = [
        list(zip(graph[i].inputs, op.iterated, strict=True))
        for _, graph in program.walk()
        for i, op in graph.maps()
    ]
    return all(len(set(each)) == len(each) for each in ports)


@pytest.mark.parametrize("variant", VARIANTS)
def test_variant(variant: str, golden: Callable[[str], None]) -> None:
    graph = settled(VARIANTS[variant], X="K", Y="N K")
    assert [match.variant for match in matches(RULE, graph)] == [variant]
    golden(before_and_after(RULE, graph))


@pytest.mark.parametrize("variant", VARIANTS)
def test_in_rows(variant: str) -> None:
    """Inside the map over the rows of X; but a misc operator makes all rows at once."""
    graph = settled(VARIANTS[variant], X="M K", Y="N K")
    (match,) = matches(RULE, graph)
    assert (len(match.path), match.variant) == (1, "b" if variant == "c" else variant)
    fire(RULE, graph)


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_the_map_takes_already_is_taken_once(variant: str) -> None:
    graph = settled(VARIANTS[variant], X="K", Y="N K")
    assert ports_are_different(graph)
    assert ports_are_different(fire(RULE, graph))


def test_then_rule_1_fuses_what_is_made_and_read() -> None:
    extended = fire(RULE, settled(made_then_read, X="K", Y="N K"))
    fused = fire(FuseConsecutiveMaps(), extended)
    assert bb.buffered(fused) == []


@pytest.mark.parametrize("variant", ["b", "c"])
def test_then_rule_2_finds_the_list_that_both_read(variant: str) -> None:
    """It would not, if the list came in by two ports."""
    extended = fire(RULE, settled(VARIANTS[variant], X="K", Y="N K"))
    assert matches(FuseSiblingMaps(), settled(VARIANTS[variant], X="K", Y="N K")) == []
    fused = fire(FuseSiblingMaps(), extended)
    ((_, op),) = fused.maps()
    assert len(list(op.body.maps())) == 1


def test_variant_a_comes_first() -> None:
    """Beside V are a map that reads X, as V does, and one that makes a list for V: this counts."""

    def program(X: Array, Y: Array) -> Array:
        return ops.elementwise(
            lambda a, b, c: a + b + c, X.sum(), X @ Y.T, ops.exp(ops.sort(X)) @ Y.T
        )

    (match,) = matches(RULE, settled(program, X="K", Y="N K"))
    assert match.variant == "a"
    assert {variant for *_, variant in twin_maps(match.graph, match.nodes[0])} == {"a", "b"}
    fire(RULE, settled(program, X="K", Y="N K"))


def test_reduced_results() -> None:
    """V adds up its results, so that nothing is stacked."""

    def program(X: Array, Y: Array) -> Array:
        return ops.square(ops.exp(X) @ Y.T).sum()

    graph = settled(program, X="K", Y="N K")
    (match,) = matches(RULE, graph)
    assert all(mode is not None for mode in graph.map(match.nodes[0]).modes)
    fire(RULE, graph)


def test_equal_results() -> None:
    """V hands out the same twice."""

    def column(g: Builder, y: Value, e: Value) -> list[tuple[Value, Mode]]:
        (dot,) = g.map(k, [e, y], [], lambda g, *xs: [(g.one(Dot(k), *xs), Reduced(ADD))])
        return [(dot, None), (dot, None), (y, None)]

    build = Builder()
    x, y = build.input("X", array(k)), build.input("Y", array(n, k))
    exp = Elementwise(call("exp", arg(0)))
    (e,) = build.map(k, [x], [], lambda g, x: [(g.one(exp, x), None)])
    for name, value in zip("ABC", build.map(n, [y], [e], column), strict=True):
        build.output(name, value)
    graph = build.build()
    bb.verify(graph)
    fire(RULE, graph)


def test_indices_stay_outside() -> None:
    """Positions are made where they are used: they do not have to move in."""

    def program(X: Array, Y: Array) -> Array:
        e = ops.exp(X)
        return ops.where(ops.index(X, 0)[None] <= ops.index(Y, 0)[:, None], e, 0.0) @ X

    graph = lowered(program, X="K", Y="N K")
    assert any(isinstance(node.op, Iota) for node in graph.nodes.values())
    extended = fire(RULE, exhaust(graph, *LOCAL))
    assert any(isinstance(node.op, Iota) for node in extended.nodes.values())


def test_everything_beside_the_map_moves_in() -> None:
    """Not only U: also the operators that U needs, and unrelated ones."""

    def program(X: Array, Y: Array, Z: Array) -> Array:
        return (ops.exp(X - X.max()) @ Y.T) * (1 / Z.sum())

    graph = settled(program, X="K", Y="N K", Z="L")
    extended = fire(RULE, graph)
    assert [type(node.op).__name__ for node in extended.nodes.values()] == [*["Input"] * 3, "Map"]


# ---------------------------------------------------------------- when it must not fire


def test_refuses_where_others_use_the_result() -> None:
    def program(X: Array, Y: Array) -> Array:
        product = ops.exp(X) @ Y.T
        return product / product.sum()

    graph = settled(program, X="K", Y="N K")
    assert refusals(RULE, graph) == ["nothing_downstream"]


def test_refuses_where_the_graph_has_another_result() -> None:
    def program(X: Array, Y: Array) -> dict[str, Array]:
        e = ops.exp(X)
        return {"e": e, "O": e @ Y.T}

    assert refusals(RULE, settled(program, X="K", Y="N K")) == ["yields_all_outputs"]


def test_refuses_where_a_list_that_is_made_is_iterated() -> None:
    """V walks exp(Z), which its sum keeps apart from V: it would have to move into V and stay."""

    def program(X: Array, Y: Array, Z: Array) -> Array:
        e = ops.exp(Z)
        share = ops.reciprocal(e.sum())
        return ops.elementwise(lambda a, b, c: a * b * c, ops.exp(X) @ Y.T, e, share)

    assert "iterates_only_inputs" in refusals(RULE, settled(program, X="K", Y="N K", Z="N"))


def test_a_misc_operator_stays_outside() -> None:
    """V walks the rows that the misc operator makes, once, before V."""

    def program(X: Array, Y: Array) -> Array:
        return ops.exp(X) @ ops.sort(Y, axis=1).T

    extended = bb.show(fire(RULE, settled(program, X="K", Y="N K")))
    assert extended.startswith("I1 = numpy.sort(Y, axis=1)\nforall n in range(N):\n")


def test_refuses_to_move_what_a_misc_operator_needs() -> None:
    def program(X: Array, Y: Array) -> Array:
        e = ops.exp(X)
        return (e @ Y.T) * ops.sort(e).sum()

    assert "moves_no_misc" in refusals(RULE, settled(program, X="K", Y="N K"))


def test_no_place_without_a_map_that_could_be_fused() -> None:
    """The map over L beside V has nothing to do with the body of V."""

    def program(X: Array, Y: Array, Z: Array) -> Array:
        return (X @ Y.T) * Z.sum()

    assert sites(RULE, settled(program, X="K", Y="N K", Z="L")) == []


def test_no_place_for_a_shared_item_or_indices() -> None:
    """Loops over K beside V and inside it share only positions."""

    def program(X: Array, Y: Array) -> Array:
        return (Y * ops.index(Y, 1)).sum(axis=1) * (X * ops.index(X, 0)).sum()

    assert sites(RULE, settled(program, X="K", Y="N K")) == []


def beside_columns(u: Callable[[Builder, Value], Value], inner: Dim) -> Graph:
    """`u` of X, beside a map over Y's rows in which X is walked along `inner`; X is (M K)."""

    def total(g: Builder, x: Value) -> list[tuple[Value, Mode]]:
        other = m if inner is k else k
        (sums,) = g.map(other, [x], [], lambda g, x: [(g.one(BlockReduce(other, ADD), x), SUM)])
        return [(g.one(BlockReduce(inner, ADD), sums), SUM)]

    def column(g: Builder, y: Value, x: Value, made: Value) -> list[tuple[Value, Mode]]:
        (all_of_x,) = g.map(inner, [x], [], total)
        return [(g.one(Elementwise(arg(0) + arg(1) * arg(2)), y, all_of_x, made), None)]

    build = Builder()
    x, y = build.input("X", array(m, k)), build.input("Y", array(n))
    build.output("O", build.map(n, [y], [x, u(build, x)], column)[0])
    graph = build.build()
    bb.verify(graph)
    return graph


def over_rows(build: Builder, x: Value, first: int = 0) -> Value:
    """The sum of X, in a map over M from block `first` on."""
    body = Builder(build.ids)
    row = body.input("", array(m, k).iterate(m))
    (sums,) = body.map(k, [row], [], lambda g, x: [(g.one(BlockReduce(k, ADD), x), SUM)])
    body.output("", body.one(BlockReduce(m, ADD), sums))
    return build.one(Map(m, body.build(), (True,), (SUM,), first), x)


def test_no_place_where_the_list_is_walked_along_another_axis() -> None:
    """U walks the rows of X, and W its columns; along the rows, they could be fused."""
    assert sites(RULE, beside_columns(over_rows, k)) == []
    fire(RULE, beside_columns(over_rows, m))


def test_no_place_for_a_map_without_its_first_iteration() -> None:
    """U starts at block 1 and W at block 0: they could never be fused."""
    graph = beside_columns(lambda build, x: over_rows(build, x, first=1), m)
    assert sites(RULE, graph) == []
