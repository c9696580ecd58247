"""Rule 4, swap a scale with a dot: (c·X)·Y = c·(X·Y)."""

from collections.abc import Callable

import numpy as np
import pytest

import blockbuster_fusion as bb
from blockbuster_fusion import ops
from blockbuster_fusion.array.arrays import Array
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.combiner import ADD, MAX, Combiner, Mode, Reduced
from blockbuster_fusion.ir.expr import Expr, arg, call
from blockbuster_fusion.ir.ops import Dot, Elementwise, Map, Reduce, Value
from blockbuster_fusion.ir.types import DType, Type
from blockbuster_fusion.rules.fuse_consecutive_maps import FuseConsecutiveMaps
from blockbuster_fusion.rules.fuse_map_reduce import FuseMapReduce
from blockbuster_fusion.rules.swap_scale_dot import SwapScaleDot
from helpers.contractions import before_a_dot, in_rows, on_items, over_k, rows
from helpers.graphs import array, heads, item, k, m, n
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

RULE = SwapScaleDot()

SCALES: dict[str, Callable[[Array, Array], Array]] = {
    "X*c": lambda X, c: X * c,
    "c*X": lambda X, c: c * X,
    "X/c": lambda X, c: X / c,
    "X or 0": lambda X, c: ops.where(c > 0, X, 0.0),
    "0 or X": lambda X, c: ops.where(c > 0, 0.0, X),
}


def test_a_scale_before_a_matmul(golden: Callable[[str], None]) -> None:
    golden(before_and_after(RULE, before_a_dot(SCALES["X*c"])))


def test_a_scale_of_the_right_operand(golden: Callable[[str], None]) -> None:
    golden(before_and_after(RULE, before_a_dot(SCALES["X/c"], right=True, inside=True)))


@pytest.mark.parametrize("inside", [False, True], ids=["sum beside", "sum inside"])
@pytest.mark.parametrize("right", [False, True], ids=["left", "right"])
@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("scale", SCALES)
def test_every_form(scale: str, depth: int, right: bool, inside: bool) -> None:
    """At any depth around the dot, for either operand, with the sum in its loop or beside it."""
    graph = before_a_dot(SCALES[scale], depth=depth, right=right, inside=inside)
    swapped = fire(RULE, graph)
    ((_, op),) = swapped.maps()
    (out,) = op.body.outputs
    last = op.body[out.value.node].op
    for _ in range(depth):
        assert isinstance(last, Map)
        (node,) = (i for i in last.body.nodes if not last.body.is_source(i))
        last = last.body.op(node)
    assert isinstance(last, Elementwise)  # the scale comes last
    assert matches(RULE, swapped) == []


@pytest.mark.parametrize("expr", [arg(0) * arg(1), arg(1) * arg(0), arg(0) / arg(1)], ids=str)
@pytest.mark.parametrize("right", [False, True], ids=["left", "right"])
@pytest.mark.parametrize("mapped", [False, True], ids=["depth 0", "depth 1"])
def test_without_a_loop(expr: Expr, right: bool, mapped: bool) -> None:
    """If K has one block, neither the scale nor the dot is in a map over K."""
    fire(RULE, on_items(expr, right=right, mapped=mapped))


def test_without_a_loop_listed(golden: Callable[[str], None]) -> None:
    golden(before_and_after(RULE, on_items(arg(0) * arg(1), mapped=True)))


def test_a_number_for_the_whole_row() -> None:
    """c has no axis at all."""
    graph = lowered(lambda X, Y: (X * (1 / X.sum())) @ Y.T, X="K", Y="N K")
    assert bb.buffered(fire(RULE, graph)) != []


def test_shared_batch_axes() -> None:
    """The heads are in X, c and Y; one group of them shares its Y."""

    def program(X: Array, c: Array, Y: Array) -> Array:
        return (X * c[..., None]) @ Y[:, None].swapaxes(-1, -2)

    graph = lowered(program, X="H R:3 M K", c="H R:3 M", Y="H N K")
    fire(RULE, exhaust(graph, FuseConsecutiveMaps()))


def test_the_result_is_laid_out_as_it_was() -> None:
    """If c has the axes of the product in another order, users still get the expected type."""
    build = Builder()
    x, c, y = (
        build.input("X", array(heads, m, n, k)),
        build.input("c", array(heads, n, m)),
        build.input("Y", array(heads, k)),
    )

    def body(g: Builder, *xs: Value) -> list[tuple[Value, Mode]]:
        def blocks(g: Builder, *xs: Value) -> list[tuple[Value, Mode]]:
            return [(g.one(Elementwise(arg(1) * arg(0)), *xs), None)]

        def dots(g: Builder, x: Value, y: Value) -> list[tuple[Value, Mode]]:
            return [(g.one(Dot(k), x, y), Reduced(ADD))]

        def columns(g: Builder, x: Value, c: Value, y: Value) -> list[tuple[Value, Mode]]:
            (scaled,) = g.map(k, [x], [c], blocks)
            (product,) = g.map(k, [scaled, y], [], dots)
            return [(product, None)]

        def rows(g: Builder, x: Value, c: Value, y: Value) -> list[tuple[Value, Mode]]:
            return [(g.map(n, [x, c], [y], columns)[0], None)]

        return [(g.map(m, [xs[0], xs[1]], [xs[2]], rows)[0], None)]

    (product,) = build.map(heads, [x, c, y], [], body)
    exp = Elementwise(call("exp", arg(0)))
    made = build.nest([heads, m, n], [product], lambda g, x: g.one(exp, x))
    build.output("O", made)
    graph = build.build()
    bb.verify(graph)
    fire(RULE, graph)


def test_one_after_another() -> None:
    """Two scales in a row: the later one moves first, and then the earlier."""

    def program(X: Array, b: Array, c: Array, Y: Array) -> Array:
        return ((X * b[:, None]) / c[:, None]) @ Y.T

    graph = rows(program, X="M K", b="M", c="M", Y="N K")
    once = fire(RULE, graph)
    assert matches(RULE, fire(RULE, once)) == []


def test_through_two_dots() -> None:
    """A scale moves behind the next dot as well."""

    def program(X: Array, c: Array, Y: Array, Z: Array) -> Array:
        return ((X * c[:, None]) @ Y.T) @ Z.T

    graph = rows(program, X="M K", c="M", Y="N K", Z="L N")
    assert matches(RULE, fire(RULE, fire(RULE, graph))) == []


def test_a_scale_that_leaves_its_map_behind() -> None:
    """Before the dot it is a map over K, after it an operator on an item, under the same id."""

    def program(X: Array, c: Array, y: Array, Z: Array) -> Array:
        return ((X * c[:, None]) @ y)[:, None] * Z

    graph = rows(program, X="M K", c="M", y="K", Z="M N")
    fusion = bb.fuse(graph, "paper")
    assert RULE.name in {step.rule for step in fusion.trace}
    check(graph, fusion.fused[-1])


def test_rows_that_are_left_out_are_zero_whatever_they_were() -> None:
    def program(X: Array, c: Array, Y: Array) -> Array:
        return ops.where(c[:, None] > 0, X, 0.0) @ Y.T

    graph = fire(RULE, rows(program, X="M K", c="M", Y="N K"))
    X, c, Y = np.ones((2, 3)), np.array([1.0, -1.0]), np.ones((2, 3))
    X[1] = np.nan
    found = bb.interpret(graph, {"X": X, "c": c, "Y": Y})[0]
    np.testing.assert_array_equal(found, [[3, 3], [0, 0]])


# ---------------------------------------------------------------- when it must not fire


def test_refuses_truths_that_change_along_the_dot() -> None:
    graph = rows(lambda X, c, Y: ops.where(c > 0, X, 0.0) @ Y.T, X="M K", c="M K", Y="N K")
    assert matches(RULE, graph) == []


def test_refuses_what_is_not_zero_elsewhere() -> None:
    graph = rows(lambda X, c, Y: ops.where(c[:, None] > 0, X, 1.0) @ Y.T, X="M K", c="M", Y="N K")
    assert sites(RULE, graph) == []


def test_refuses_a_list_with_two_uses() -> None:
    def program(X: Array, c: Array, A: Array, B: Array) -> dict[str, Array]:
        scaled = X * c[:, None]
        return {"A_": scaled @ A.T, "B_": scaled @ B.T}

    graph = rows(program, X="M K", c="M", A="N K", B="N K")
    assert refusals(RULE, graph) == ["used_once", "used_once"]


def test_refuses_a_list_that_is_a_result() -> None:
    def program(X: Array, c: Array, Y: Array) -> dict[str, Array]:
        scaled = X * c[:, None]
        return {"scaled": scaled, "O": scaled @ Y.T}

    assert refusals(RULE, rows(program, X="M K", c="M", Y="N K")) == ["used_once"]


@pytest.mark.parametrize("ports", [1, 2])
def test_refuses_a_list_that_is_both_operands(ports: int) -> None:
    """Σ (c·x)² is c²·Σ x². The loop may iterate the list once or twice, which is two uses."""

    def body(g: Builder, row: Value, c: Value) -> list[Value]:
        scaled = over_k(g, arg(0) * arg(1), row, c)

        def squares(g: Builder, *xs: Value) -> list[tuple[Value, Mode]]:
            return [(g.one(Dot(k), xs[0], xs[-1]), Reduced(ADD))]

        return [g.map(k, [scaled] * ports, [], squares)[0]]

    assert refusals(RULE, in_rows(body, "O")) == ["one_operand" if ports == 1 else "used_once"]


def test_refuses_a_consumer_with_more_in_it() -> None:
    """The relu is in the map over N: relu(c·x) is not c·relu(x)."""
    graph = rows(lambda X, c, Y: ops.relu((X * c[:, None]) @ Y.T), X="M K", c="M", Y="N K")
    assert len(matches(RULE, graph)) == 1
    graph = fire(FuseConsecutiveMaps(), graph, dim="N")
    assert refusals(RULE, graph) == ["nothing_but_the_dot"]


@pytest.mark.parametrize("depth", [0, 1])
def test_refuses_more_beside_the_dot_in_its_loop(depth: int) -> None:
    def squared(g: Builder, x: Value, y: Value) -> list[tuple[Value, Mode]]:
        product = g.one(Dot(k), x, y)
        return [(g.one(Elementwise(arg(0) ** 2), product), Reduced(ADD))]

    def body(g: Builder, row: Value, c: Value) -> list[Value]:
        lists = [over_k(g, arg(0) * arg(1), row, c), row]
        if depth == 0:
            return list(g.map(k, lists, [], squared))
        return list(g.map(heads, [], lists, lambda g, *xs: [(*g.map(k, xs, [], squared), None)]))

    assert refusals(RULE, in_rows(body, "O")) == ["nothing_but_the_dot"]


def test_refuses_a_consumer_that_yields_something_else() -> None:
    """Nobody uses the dot; the result is c."""

    def body(g: Builder, row: Value, c: Value) -> list[Value]:
        scaled = over_k(g, arg(0) * arg(1), row, c)

        def dead(g: Builder, c: Value, *lists: Value) -> list[tuple[Value, Mode]]:
            g.map(k, lists, [], lambda g, *xs: [(g.one(Dot(k), *xs), Reduced(ADD))])
            return [(c, None)]

        return [g.map(heads, [], [c, scaled, row], dead)[0]]

    assert refusals(RULE, in_rows(body, "O")) == ["nothing_but_the_dot"]


def test_no_place_where_the_other_operand_is_made_in_the_loop() -> None:
    """exp(y) is computed beside the dot: outside the loop there is nothing to swap with."""

    def body(g: Builder, row: Value, c: Value) -> list[Value]:
        scaled = over_k(g, arg(0) * arg(1), row, c)

        def dot(g: Builder, x: Value, y: Value) -> list[tuple[Value, Mode]]:
            exp = g.one(Elementwise(call("exp", arg(0))), y)
            return [(g.one(Dot(k), x, exp), Reduced(ADD))]

        return [g.map(k, [scaled, row], [], dot)[0]]

    assert sites(RULE, in_rows(body, "O")) == []


def test_refuses_products_that_are_not_summed() -> None:
    def body(g: Builder, row: Value, c: Value) -> list[Value]:
        scaled = over_k(g, arg(0) * arg(1), row, c)
        return [g.map(k, [scaled, row], [], lambda g, *xs: [(g.one(Dot(k), *xs), None)])[0]]

    assert refusals(RULE, in_rows(body, "products")) == ["summed"]


@pytest.mark.parametrize("inside", [False, True], ids=["beside", "inside"])
def test_refuses_products_of_which_the_largest_is_taken(inside: bool) -> None:
    """max(c·x) is min(x)·c for a negative c."""

    def body(g: Builder, row: Value, c: Value) -> list[Value]:
        scaled = over_k(g, arg(0) * arg(1), row, c)
        mode = Reduced(MAX) if inside else None
        (made,) = g.map(k, [scaled, row], [], lambda g, *xs: [(g.one(Dot(k), *xs), mode)])
        return [made if inside else g.one(Reduce(k, MAX), made)]

    assert refusals(RULE, in_rows(body, "O")) == ["summed"]


@pytest.mark.parametrize("result", [False, True], ids=["by a node", "as a result"])
def test_refuses_products_that_are_summed_and_used_otherwise(result: bool) -> None:
    def body(g: Builder, row: Value, c: Value) -> list[Value]:
        scaled = over_k(g, arg(0) * arg(1), row, c)
        (made,) = g.map(k, [scaled, row], [], lambda g, *xs: [(g.one(Dot(k), *xs), None)])
        return [g.one(Reduce(k, ADD), made), made if result else g.one(Reduce(k, MAX), made)]

    assert refusals(RULE, in_rows(body, "O", "products")) == ["summed"]


def test_no_place_where_the_dot_is_over_another_axis_than_the_loop() -> None:
    """The loops are over heads, and the dot over K, along which c changes."""
    build = Builder()
    x, y = (build.input(name, Type((heads.free,), (k,), DType.float32)) for name in "XY")
    product = Elementwise(arg(0) * arg(1))
    (scaled,) = build.map(
        heads, [x], [build.input("c", item(k))], lambda g, *xs: [(g.one(product, *xs), None)]
    )
    (total,) = build.map(
        heads, [scaled, y], [], lambda g, *xs: [(g.one(Dot(k), *xs), Reduced(ADD))]
    )
    build.output("O", total)
    graph = build.build()
    bb.verify(graph)
    assert sites(RULE, graph) == []


@pytest.mark.parametrize("combiner", [ADD, MAX], ids=str)
def test_refuses_maps_around_the_dot_that_reduce(combiner: Combiner) -> None:
    """The products for every head become one item."""

    def body(g: Builder, row: Value, c: Value) -> list[Value]:
        scaled = over_k(g, arg(0) * arg(1), row, c)

        def head(g: Builder, *lists: Value) -> list[tuple[Value, Mode]]:
            (dot,) = g.map(k, lists, [], lambda g, *xs: [(g.one(Dot(k), *xs), Reduced(ADD))])
            return [(dot, Reduced(combiner))]

        return [g.map(heads, [], [scaled, row], head)[0]]

    assert refusals(RULE, in_rows(body, "O")) == ["summed"]


def test_no_place_where_what_is_scaled_is_added_up() -> None:
    """The map makes no list: it adds up the scaled blocks of all heads."""
    build = Builder()
    x = build.input("X", Type((heads.free,), (m, k), DType.float32))
    c, y = build.input("c", item(m)), build.input("Y", item(n, k))
    product = Elementwise(arg(0) * arg(1))
    (total,) = build.map(heads, [x], [c], lambda g, *xs: [(g.one(product, *xs), Reduced(ADD))])
    build.output("O", build.one(Dot(k), total, y))
    graph = build.build()
    bb.verify(graph)
    assert sites(RULE, graph) == []


def test_refuses_a_factor_along_the_contracted_axis() -> None:
    graph = on_items(arg(0) * arg(1), c=(k,))
    assert refusals(RULE, graph) == ["item_without_contracted_axis"]


@pytest.mark.parametrize("order", ["xc", "cx"])
def test_refuses_a_factor_with_an_axis_that_the_operand_lacks(order: str) -> None:
    """x (K) times c (M) is an outer product: x alone has no rows that c could scale later."""
    build = Builder()
    given = {"x": build.input("x", item(k)), "c": build.input("c", item(m))}
    scaled = build.one(Elementwise(arg(0) * arg(1)), *(given[name] for name in order))
    build.output("O", build.one(Dot(k), scaled, build.input("y", item(n, k))))
    graph = build.build()
    bb.verify(graph)
    assert refusals(RULE, graph) == ["item_without_contracted_axis"]


def test_no_place_where_the_factor_walks_along() -> None:
    """X·w for a w over K is a product of two lists."""
    graph = rows(lambda X, w, Y: (X * w) @ Y.T, X="M K", w="K", Y="N K")
    assert sites(RULE, graph) == []


@pytest.mark.parametrize(
    "dtypes",
    [
        ("int32", "float32", "int32"),  # dots of whole numbers would overflow
        ("int32", "int32", "int32"),  # and floor, if the scale is a division
        ("float16", "float32", "float16"),  # half-precision dots would round, or overflow
        ("float32", "float32", "float16"),  # the dot and the scale round differently
    ],
    ids=" ".join,
)
def test_refuses_other_dtypes_than_one_float_for_all(dtypes: tuple[str, str, str]) -> None:
    axes = {"X": "M K", "c": "M", "Y": "N K"}
    specs = {x: bb.array(axes[x], dtype=d) for x, d in zip(axes, dtypes, strict=True)}
    graph = rows(lambda X, c, Y: (X * c[:, None]) @ Y.T, **specs)
    assert refusals(RULE, graph) == ["same_float_dtype"]


@pytest.mark.parametrize(
    "operation", [lambda X, c: c / X, lambda X, c: X * X + c, lambda X, c: X**2], ids=range(3)
)
def test_no_place_without_a_scale(operation: Callable[[Array, Array], Array]) -> None:
    graph = before_a_dot(operation)
    assert sites(RULE, graph) == []


def test_no_place_for_a_square() -> None:
    """x·x is one operation on one argument, twice."""
    graph = lowered(lambda X, Y: (X * X) @ Y.T, X="M K", Y="N K")
    assert sites(RULE, exhaust(graph, FuseConsecutiveMaps(), FuseMapReduce())) == []


def test_exact_in_half_precision() -> None:
    """The scale moves only where the dtype stays: float16 stays float16."""
    specs = {
        name: bb.array(axes, dtype="float16")
        for name, axes in (("X", "M K"), ("c", "M"), ("Y", "N K"))
    }
    graph = rows(lambda X, c, Y: (X * c[:, None]) @ Y.T, **specs)
    swapped = fire(RULE, graph)
    ones = {"X": np.ones((2, 3)), "c": np.ones(2), "Y": np.ones((4, 3))}
    given = {name: x.astype(np.float16) for name, x in ones.items()}
    assert bb.interpret(swapped, given)["O"].dtype == np.float16
