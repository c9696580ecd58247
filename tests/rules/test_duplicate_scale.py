"""Rule 8, duplicate a mapped scale: each use of it that can be swapped gets a copy."""

from collections.abc import Callable

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion import ops
from blockbuster_fusion.array.arrays import Array
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.combiner import ADD, MAX, Mode, Reduced
from blockbuster_fusion.ir.expr import arg
from blockbuster_fusion.ir.ops import Dot, Elementwise, Value
from blockbuster_fusion.rules.duplicate_scale import DuplicateScale
from blockbuster_fusion.rules.fuse_consecutive_maps import FuseConsecutiveMaps
from blockbuster_fusion.rules.linear import use_count
from blockbuster_fusion.rules.swap_scale_dot import SwapScaleDot
from blockbuster_fusion.rules.swap_shift_dot import SwapShiftDot
from helpers.contractions import in_rows, over_k, rows
from helpers.graphs import item, k, m, n
from helpers.rewriting import before_and_after, exhaust, fire, matches, refusals

RULE = DuplicateScale()

Operation = Callable[[Array, Array], Array]


def used_by(
    *uses: Callable[[Array, Array], Array],
    operation: Operation = lambda X, c: X * c,
    result: bool = False,
) -> bb.Graph:
    """X·c (or X+c) in each row, and `uses` of it and Y; `result`: the list is a result too."""

    def program(X: Array, c: Array, Y: Array) -> dict[str, Array]:
        moved = operation(X, c[:, None])
        made = {f"O{i}": use(moved, Y) for i, use in enumerate(uses)}
        return {**made, **({"moved": moved} if result else {})}

    return rows(program, X="M K", c="M", Y="N K")


def matmul(moved: Array, Y: Array) -> Array:
    return moved @ Y.T


def exp(moved: Array, Y: Array) -> Array:
    return ops.exp(moved)


def scales(graph: bb.Graph) -> list[int]:
    """The number of uses of each mapped scale or shift in the rows."""
    ((_, op),) = graph.maps()
    return [
        use_count(op.body, Value(i))
        for i, inner in op.body.maps()
        if inner.body.outputs
        and isinstance(inner.body.op(inner.body.outputs[0].value.node), Elementwise)
        and len(inner.body.nodes) == 3
    ]


def test_two_matmuls(golden: Callable[[str], None]) -> None:
    golden(before_and_after(RULE, used_by(matmul, matmul)))


@pytest.mark.parametrize(
    "operation",
    [lambda X, c: X * c, lambda X, c: X / c, lambda X, c: X + c, lambda X, c: X - c],
    ids=["mul", "div", "add", "sub"],
)
def test_scales_and_shifts(operation: Operation) -> None:
    graph = used_by(matmul, exp, operation=operation)
    split = fire(RULE, graph)
    assert scales(graph) == [2]
    assert sorted(scales(split)) == [1, 1]
    assert len(matches(SwapScaleDot(), split) + matches(SwapShiftDot(), split)) == 1


def test_one_use_is_split_off_at_a_time() -> None:
    graph = used_by(matmul, matmul, matmul, exp)
    counts = [scales(graph)]
    while matches(RULE, graph):
        graph = fire(RULE, graph)
        counts.append(sorted(scales(graph)))
    assert counts == [[4], [1, 3], [1, 1, 2], [1, 1, 1, 1]]


def test_the_last_use_needs_no_copy() -> None:
    graph = used_by(matmul, matmul)
    assert refusals(RULE, fire(RULE, graph)) == ["several_uses", "several_uses"]


def test_a_result_of_the_graph_is_a_use() -> None:
    graph = used_by(matmul, result=True)
    assert len(matches(RULE, graph)) == 1
    split = fire(RULE, graph)
    assert sorted(scales(split)) == [1, 1]
    assert len(matches(SwapScaleDot(), split)) == 1


def test_the_copy_goes_to_the_dot() -> None:
    """A value that others use keeps its place and its id."""
    graph = used_by(matmul, exp)
    (match,) = matches(RULE, graph)
    split = fire(RULE, graph)
    inner = split.at(match.path)
    scale, dot = match.nodes
    assert Value(scale) not in inner[dot].inputs
    assert use_count(inner, Value(scale)) == 1


def test_without_a_loop() -> None:
    build = Builder()
    x, c, y = (build.input(a, item(*ds)) for a, ds in (("X", [m, k]), ("c", [m]), ("Y", [n, k])))
    scaled = build.one(Elementwise(arg(0) * arg(1)), x, c)
    build.output("O", build.one(Dot(k), scaled, y))
    build.output("square", build.one(Elementwise(arg(0) ** 2), scaled))
    split = fire(RULE, build.build())
    fire(SwapScaleDot(), split)


def test_then_all_are_swapped() -> None:
    graph = exhaust(used_by(matmul, matmul, exp), RULE, SwapScaleDot())
    assert matches(SwapScaleDot(), graph) == matches(RULE, graph) == []
    ((_, op),) = graph.maps()
    kinds = [inner.dim.name for _, inner in op.body.maps()]
    assert kinds.count("K") == 2  # the scale for exp, and exp


# ---------------------------------------------------------------- when it must not fire


def test_refuses_a_list_with_one_use() -> None:
    assert refusals(RULE, used_by(matmul)) == ["several_uses"]


def test_no_place_where_no_use_is_a_dot() -> None:
    assert refusals(RULE, used_by(exp, exp)) == matches(RULE, used_by(exp, exp)) == []


def test_refuses_a_list_that_is_both_operands() -> None:
    """Σ (c·x)²: no copy would make this use swappable."""

    def body(g: Builder, row: Value, c: Value) -> list[Value]:
        scaled = over_k(g, arg(0) * arg(1), row, c)

        def squares(g: Builder, x: Value) -> list[tuple[Value, Mode]]:
            return [(g.one(Dot(k), x, x), Reduced(ADD))]

        return [g.map(k, [scaled], [], squares)[0], scaled]

    assert refusals(RULE, in_rows(body, "O", "scaled")) == ["one_operand"]


def test_refuses_a_consumer_with_more_in_it() -> None:
    graph = used_by(lambda moved, Y: ops.relu(moved @ Y.T), exp)
    graph = fire(FuseConsecutiveMaps(), graph, dim="N")
    assert refusals(RULE, graph) == ["nothing_but_the_dot"]


def test_refuses_products_that_are_not_summed() -> None:
    def body(g: Builder, row: Value, c: Value) -> list[Value]:
        scaled = over_k(g, arg(0) * arg(1), row, c)
        (made,) = g.map(k, [scaled, row], [], lambda g, *xs: [(g.one(Dot(k), *xs), Reduced(MAX))])
        return [made, scaled]

    assert refusals(RULE, in_rows(body, "O", "scaled")) == ["summed"]


def test_refuses_a_factor_along_the_contracted_axis() -> None:
    build = Builder()
    x, c, y = (build.input(a, item(*ds)) for a, ds in (("X", [m, k]), ("c", [k]), ("Y", [n, k])))
    scaled = build.one(Elementwise(arg(0) * arg(1)), x, c)
    build.output("O", build.one(Dot(k), scaled, y))
    build.output("scaled", scaled)
    assert refusals(RULE, build.build()) == ["item_without_contracted_axis"]


def test_refuses_a_scale_that_changes_the_dtype() -> None:
    def program(X: Array, c: Array, Y: Array) -> dict[str, Array]:
        moved = X * c[:, None]
        return {"O": moved @ Y.T, "moved": moved}

    graph = rows(program, X=bb.array("M K", dtype="int32"), c="M", Y="N K")
    assert refusals(RULE, graph) == ["same_float_dtype"]
