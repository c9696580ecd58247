"""Rule 5, swap a shift with a dot: (X + c·1ᵀ)·Y = X·Y + c·(1ᵀ·Y)."""

from collections.abc import Callable

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion import ops
from blockbuster_fusion.array.arrays import Array
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.combiner import ADD, MAX, Mode, Reduced
from blockbuster_fusion.ir.expr import Expr, arg
from blockbuster_fusion.ir.ops import Dot, Elementwise, Map, Reduce, Value
from blockbuster_fusion.rules.fuse_consecutive_maps import FuseConsecutiveMaps
from blockbuster_fusion.rules.swap_shift_dot import SwapShiftDot
from helpers.contractions import before_a_dot, in_rows, on_items, over_k, rows
from helpers.graphs import heads, item, k, m, n
from helpers.rewriting import before_and_after, exhaust, fire, lowered, matches, refusals, sites

RULE = SwapShiftDot()

SHIFTS: dict[str, Callable[[Array, Array], Array]] = {
    "X+c": lambda X, c: X + c,
    "c+X": lambda X, c: c + X,
    "X-c": lambda X, c: X - c,
}


def test_a_shift_before_a_matmul(golden: Callable[[str], None]) -> None:
    golden(before_and_after(RULE, before_a_dot(SHIFTS["X+c"])))


def test_a_shift_of_the_right_operand(golden: Callable[[str], None]) -> None:
    golden(before_and_after(RULE, before_a_dot(SHIFTS["X-c"], right=True, inside=True)))


def test_four_maps() -> None:
    """The dot, the row sums of Y, their outer product with c and the sum are maps of their own."""
    swapped = fire(RULE, before_a_dot(SHIFTS["X+c"]))
    ((_, op),) = swapped.maps()
    assert [inner.dim.name for _, inner in op.body.maps()] == ["N"] * 4
    assert not any(isinstance(node.op, Elementwise) for node in op.body.nodes.values())


@pytest.mark.parametrize("inside", [False, True], ids=["sum beside", "sum inside"])
@pytest.mark.parametrize("right", [False, True], ids=["left", "right"])
@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("shift", SHIFTS)
def test_every_form(shift: str, depth: int, right: bool, inside: bool) -> None:
    """At any depth around the dot, for either operand, with the sum in its loop or beside it."""
    graph = before_a_dot(SHIFTS[shift], depth=depth, right=right, inside=inside)
    swapped = fire(RULE, graph)
    ((_, op),) = swapped.maps()
    dots = [
        inner
        for _, inner in swapped.walk()
        if any(isinstance(node.op, Dot) for node in inner.nodes.values())
    ]
    assert len(dots) == 1
    outermost = [inner.dim.name for _, inner in op.body.maps()]
    if depth:
        assert outermost == ["L" if depth == 2 else "N"] * 4
    assert matches(RULE, swapped) == []


@pytest.mark.parametrize("expr", [arg(0) + arg(1), arg(1) + arg(0), arg(0) - arg(1)], ids=str)
@pytest.mark.parametrize("right", [False, True], ids=["left", "right"])
@pytest.mark.parametrize("mapped", [False, True], ids=["depth 0", "depth 1"])
def test_without_a_loop(expr: Expr, right: bool, mapped: bool) -> None:
    """If K has one block, neither the shift nor the dot is in a map over K."""
    swapped = fire(RULE, on_items(expr, right=right, mapped=mapped))
    assert not any(op.dim.name == "K" for _, graph in swapped.walk() for _, op in graph.maps())


def test_without_a_loop_listed(golden: Callable[[str], None]) -> None:
    golden(before_and_after(RULE, on_items(arg(0) - arg(1), mapped=True)))


def test_a_number_for_the_whole_row() -> None:
    """c has no axis at all, so that the outer product is a scale."""
    fire(RULE, lowered(lambda X, Y: (X - X.max()) @ Y.T, X="K", Y="N K"))


def test_shared_batch_axes() -> None:
    """The heads are in X, c and Y; one group of them shares its Y."""

    def program(X: Array, c: Array, Y: Array) -> Array:
        return (X - c[..., None]) @ Y[:, None].swapaxes(-1, -2)

    graph = lowered(program, X="H R:3 M K", c="H R:3 M", Y="H N K")
    fire(RULE, exhaust(graph, FuseConsecutiveMaps()))


def test_a_y_without_the_axis_of_a_loop_is_summed_once() -> None:
    """Every head does the same: the row sums of Y are outside their loop."""
    build = Builder()
    x, c, y = (build.input(name, item(*ds)) for name, ds in (("x", [m, k]), ("c", [m]), ("y", [k])))
    shifted = build.one(Elementwise(arg(0) + arg(1)), x, c)

    def dot(g: Builder, shifted: Value, y: Value) -> list[tuple[Value, Mode]]:
        return [(g.one(Dot(k), shifted, y), None)]

    (made,) = build.map(heads, [], [shifted, y], dot)
    build.output("O", made)
    swapped = fire(RULE, build.build())
    assert [op.dim.name for _, op in swapped.maps()] == ["H", "H"]  # the dot, and the last sum


# ---------------------------------------------------------------- when it must not fire


def test_refuses_a_list_with_two_uses() -> None:
    def program(X: Array, c: Array, A: Array, B: Array) -> dict[str, Array]:
        shifted = X + c[:, None]
        return {"A_": shifted @ A.T, "B_": shifted @ B.T}

    graph = rows(program, X="M K", c="M", A="N K", B="N K")
    assert refusals(RULE, graph) == ["used_once", "used_once"]


def test_refuses_a_list_that_is_a_result() -> None:
    def program(X: Array, c: Array, Y: Array) -> dict[str, Array]:
        shifted = X + c[:, None]
        return {"shifted": shifted, "O": shifted @ Y.T}

    assert refusals(RULE, rows(program, X="M K", c="M", Y="N K")) == ["used_once"]


def test_refuses_a_list_that_is_both_operands() -> None:
    """Σ (x+c)² is not Σ x² + c·Σ x."""

    def body(g: Builder, row: Value, c: Value) -> list[Value]:
        shifted = over_k(g, arg(0) + arg(1), row, c)

        def squares(g: Builder, x: Value) -> list[tuple[Value, Mode]]:
            return [(g.one(Dot(k), x, x), Reduced(ADD))]

        return [g.map(k, [shifted], [], squares)[0]]

    assert refusals(RULE, in_rows(body, "O")) == ["one_operand"]


def test_refuses_a_consumer_with_more_in_it() -> None:
    graph = rows(lambda X, c, Y: ops.relu((X + c[:, None]) @ Y.T), X="M K", c="M", Y="N K")
    assert len(matches(RULE, graph)) == 1
    graph = fire(FuseConsecutiveMaps(), graph, dim="N")
    assert refusals(RULE, graph) == ["nothing_but_the_dot"]


def test_refuses_products_that_are_not_summed() -> None:
    def body(g: Builder, row: Value, c: Value) -> list[Value]:
        shifted = over_k(g, arg(0) + arg(1), row, c)
        return [g.map(k, [shifted, row], [], lambda g, *xs: [(g.one(Dot(k), *xs), None)])[0]]

    assert refusals(RULE, in_rows(body, "products")) == ["summed"]


@pytest.mark.parametrize("inside", [False, True], ids=["beside", "inside"])
def test_refuses_products_of_which_the_largest_is_taken(inside: bool) -> None:
    def body(g: Builder, row: Value, c: Value) -> list[Value]:
        shifted = over_k(g, arg(0) + arg(1), row, c)
        mode = Reduced(MAX) if inside else None
        (made,) = g.map(k, [shifted, row], [], lambda g, *xs: [(g.one(Dot(k), *xs), mode)])
        return [made if inside else g.one(Reduce(k, MAX), made)]

    assert refusals(RULE, in_rows(body, "O")) == ["summed"]


def test_refuses_a_shift_along_the_contracted_axis() -> None:
    graph = on_items(arg(0) + arg(1), c=(k,))
    assert refusals(RULE, graph) == ["item_without_contracted_axis"]


def test_refuses_a_shift_that_changes_the_dtype() -> None:
    specs = {"X": bb.array("M K", dtype="int32"), "c": "M", "Y": bb.array("N K", dtype="int32")}
    graph = rows(lambda X, c, Y: (X + c[:, None]) @ Y.T, **specs)
    assert refusals(RULE, graph) == ["same_float_dtype"]


def test_no_place_where_the_shift_walks_along() -> None:
    """X + b for a bias over K adds two lists."""
    graph = rows(lambda X, b, Y: (X + b) @ Y.T, X="M K", b="K", Y="N K")
    assert sites(RULE, graph) == []


@pytest.mark.parametrize(
    "operation", [lambda X, c: c - X, lambda X, c: X * c, lambda X, c: X + 1.0], ids=range(3)
)
def test_no_place_without_a_shift(operation: Callable[[Array, Array], Array]) -> None:
    assert sites(RULE, before_a_dot(operation)) == []


def test_no_place_in_a_peeled_loop() -> None:
    """A loop that starts at block 1 sums only a part."""
    build = Builder()
    x, c, y = (build.input(name, item(*ds)) for name, ds in (("x", [m, k]), ("c", [m]), ("y", [k])))
    shifted = build.one(Elementwise(arg(0) + arg(1)), x, c)
    inner = Builder(build.ids)
    inner.output("", inner.one(Dot(k), inner.input("", item(m, k)), inner.input("", item(k))))
    rest = Map(n, inner.build(), (False, False), (Reduced(ADD),), first=1)
    build.output("O", build.one(rest, shifted, y))
    graph = build.build()
    bb.verify(graph)
    assert sites(RULE, graph) == []
