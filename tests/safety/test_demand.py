"""Demand analysis: the uses of exponentials, and the operators that need plain numbers."""

from collections.abc import Callable

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.combiner import ADD, ANY, MAX, Mode, Reduced
from blockbuster_fusion.ir.expr import arg, call, postorder
from blockbuster_fusion.ir.ops import BlockReduce, Elementwise, Reduce, Value
from blockbuster_fusion.safety.pairs.demand import Demand, Demands, summed_over
from helpers.graphs import array, k, m
from helpers.rewriting import lowered

ops = bb.ops
Results = list[tuple[Value, Mode]]


def exponentials(graph: bb.Graph) -> list[tuple[Demands, Value]]:
    """Every exponential of a program, with the demands in its graph."""
    found = []
    for path, inner in graph.walk():
        demands = Demands(graph)
        for node in path:
            demands = demands.inside(node)
        for i, node in inner.nodes.items():
            if isinstance(node.op, Elementwise) and has_exp(node.op):
                found.append((demands, Value(i)))
    return found


def has_exp(op: Elementwise) -> bool:
    return any(part.op == "exp" for part in postorder(op.expr))


def demand(graph: bb.Graph) -> Demand:
    """The uses of the only exponential of a program."""
    ((demands, value),) = exponentials(graph)
    return demands.of(value)


def axes(found: Demand) -> set[str]:
    return {axis.name for axis in found.axes}


def both(function: Callable[..., object], **specs: str) -> list[bb.Graph]:
    """A program as it is lowered, and as it is fused."""
    graph = lowered(function, **specs)
    return [graph, bb.fuse(graph).fused[-1]]


# ---------------------------------------------------------------- which get exponents


def test_summed_along_one_axis() -> None:
    for graph in both(lambda X: ops.exp(X).sum(-1), X="M N"):
        found = demand(graph)
        assert axes(found) == {"N"}
        assert found.needs_exponent
        assert not found.otherwise
        assert not found.multiplied


def test_contracted_along_an_axis() -> None:
    for graph in both(lambda X, Y: ops.exp(X) @ Y, X="M N", Y="N K"):
        assert axes(demand(graph)) == {"N"}


def test_summed_along_two_axes() -> None:
    def program(X):
        e = ops.exp(X)
        return e.sum(0), e.sum(1)

    found = demand(lowered(program, X="M N"))
    assert axes(found) == {"M", "N"}
    assert found.needs_exponent


def test_one_sum_after_another_counts_once() -> None:
    """The first sum settles the exponent; later operators do not matter."""
    assert axes(demand(lowered(lambda X: ops.exp(X).sum(1).sum(0), X="M N"))) == {"N"}


def test_scaled_on_the_way() -> None:
    for graph in both(lambda X, w: (ops.exp(X) * w[:, None]).sum(-1), X="M N", w="M"):
        found = demand(graph)
        assert axes(found) == {"N"}
        assert found.multiplied
        assert not found.otherwise


def test_weighted_along_the_axis_on_the_way() -> None:
    """A weight may be 0 where the exponential is largest: nobody may share before it is there."""
    for graph in both(lambda X, w: (ops.exp(X) * w).sum(-1), X="M N", w="N"):
        found = demand(graph)
        assert axes(found) == {"N"}
        assert found.otherwise


def test_a_meeting_with_another_factor_needs_an_exponent() -> None:
    """The factor may have an exponent that cancels, as the inverse of a sum has."""
    found = demand(lowered(lambda X, w: ops.exp(X) * w, X="M N", w="N"))
    assert found == Demand(otherwise=True, multiplied=True)
    assert found.needs_exponent


def test_an_inverse_needs_an_exponent_but_shares_none() -> None:
    def program(X):
        e = ops.exp(X)
        return ops.elementwise(lambda t: 1 / t, e).sum(-1)

    found = demand(lowered(program, X="M N"))
    assert axes(found) == {"N"}
    assert found.otherwise


def test_inside_a_sigmoid_it_is_used_otherwise() -> None:
    """True if it is written in one operator or in several: 1 + e is no multiple of e."""
    graph = lowered(lambda X: (1 / (1 + ops.exp(-X))).sum(-1), X="M N")
    assert demand(graph) == Demand(otherwise=True)
    assert not demand(graph).needs_exponent


def test_stored_alone_it_needs_none() -> None:
    assert demand(lowered(lambda X: ops.exp(X), X="M N")) == Demand(otherwise=True)


def test_a_maximum_of_exponentials_is_another_use() -> None:
    assert demand(lowered(lambda X: ops.exp(X).max(-1), X="M N")) == Demand(otherwise=True)


def test_a_result_is_another_use() -> None:
    """Normalised along the rows and stored, a column's exponent does not do for it."""

    def program(X):
        e = ops.exp(X)
        return {"R": e / e.sum(1, keepdims=True), "s": e.sum(0)}

    assert demand(lowered(program, X="M N")).otherwise


def test_other_operators_are_other_uses() -> None:
    found = demand(lowered(lambda X: ops.sort(ops.exp(X), axis=1), X="M N"))
    assert found == Demand(otherwise=True)


def test_demands_add_up() -> None:
    one, other = Demand(frozenset({m.axis})), Demand(otherwise=True)
    assert one | other == Demand(frozenset({m.axis}), otherwise=True)
    assert one | Demand(multiplied=True) == Demand(frozenset({m.axis}), multiplied=True)
    assert not other.needs_exponent


# ---------------------------------------------------------------- through maps, both ways


def exp_in_a_map(use: Callable[[Builder, Value], Value]) -> bb.Graph:
    """The exponentials of X, stacked by a map over K in a map over M, and a use of them there."""
    build = Builder()
    x = build.input("X", array(m, k))
    exp = Elementwise(call("exp", arg(0)))

    def row(g: Builder, x: Value) -> Results:
        (made,) = g.map(k, [x], [], lambda g, x: [(g.one(exp, x), None)])
        return [(use(g, made), None)]

    (made,) = build.map(m, [x], [], row)
    build.output("Y", made)
    return build.build()


def test_out_of_a_map_and_into_another() -> None:
    def use(g: Builder, made: Value) -> Value:
        sums = g.map(k, [made], [], lambda g, e: [(g.one(BlockReduce(k, ADD), e), Reduced(ADD))])
        return sums[0]

    assert axes(demand(exp_in_a_map(use))) == {"K"}


def test_stacked_and_reduced() -> None:
    """A list of items is reduced as a list: the sum runs over the list's dim."""

    def use(g: Builder, made: Value) -> Value:
        def one(g: Builder, e: Value) -> Results:
            return [(g.one(Elementwise(arg(0) * 2.0), g.one(BlockReduce(k, ADD), e)), None)]

        return g.one(Reduce(k, ADD), g.map(k, [made], [], one)[0])

    assert axes(demand(exp_in_a_map(use))) == {"K"}


def exp_of_maxima(mode: Mode) -> bb.Graph:
    """e to the maximum of each block, which the map over the blocks hands out in some mode."""
    build = Builder()
    x = build.input("x", array(k))

    def block(g: Builder, x: Value) -> Results:
        return [(g.one(Elementwise(call("exp", arg(0))), g.one(BlockReduce(k, MAX), x)), mode)]

    build.output("Y", build.map(k, [x], [], block)[0])
    return build.build()


def test_what_the_loop_does_with_its_results() -> None:
    assert demand(exp_of_maxima(Reduced(ADD))) == summed_over(k.axis)
    assert demand(exp_of_maxima(Reduced(MAX))) == Demand(otherwise=True)
    assert demand(exp_of_maxima(Reduced(ANY))) == Demand(otherwise=True)
    assert demand(exp_of_maxima(None)) == Demand(otherwise=True)


# ---------------------------------------------------------------- operators that need plain numbers


def stacked(graph: bb.Graph) -> tuple[Demands, Value]:
    """The list of exponentials in the program's own graph."""
    ((demands, _),) = exponentials(graph)
    while demands.outer is not None:
        demands, node = demands.outer
    return demands, Value(node)


@pytest.mark.parametrize(
    ("function", "plain", "any_form"),
    [
        (lambda X: ops.exp(X), True, False),
        (lambda X: ops.exp(X).sum(-1), False, True),
        (lambda X: ops.sort(ops.exp(X), axis=1), True, False),
        (lambda X: ops.tanh(ops.exp(X)), False, True),
    ],
    ids=["output", "sum", "misc", "elementwise"],
)
def test_who_wants_plain_numbers(
    function: Callable[..., object], plain: bool, any_form: bool
) -> None:
    demands, value = stacked(lowered(function, X="M N"))
    assert demands.wants_plain(value) == plain
    assert demands.takes_any_form(value) == any_form


def test_two_users_want_both() -> None:
    def program(X):
        e = ops.exp(X)
        return {"E": e, "S": e.sum(-1), "C": ops.sort(e, axis=1)}

    demands, value = stacked(lowered(program, X="M N"))
    assert demands.wants_plain(value)
    assert demands.takes_any_form(value)


def test_a_rename_wants_plain_numbers() -> None:
    def program(X):
        e = ops.exp(X)
        return e @ e.T

    demands, value = stacked(lowered(program, X="M N"))
    assert demands.wants_plain(value)
    assert demands.takes_any_form(value)


def test_a_maximum_of_a_list_inside_a_map_wants_plain_numbers() -> None:
    """The uses of a list include those in the maps that take it."""
    build = Builder()
    x = build.input("X", array(m, k))

    def block(g: Builder, x: Value) -> Results:
        return [(g.one(Elementwise(call("exp", arg(0))), g.one(BlockReduce(k, MAX), x)), None)]

    (made,) = build.map(m, [x], [], lambda g, x: [(g.map(k, [x], [], block)[0], None)])
    (tops,) = build.map(m, [made], [], lambda g, e: [(g.one(Reduce(k, MAX), e), None)])
    build.output("Y", tops)
    demands, value = stacked(build.build())
    assert value == made
    assert demands.wants_plain(value)
    assert not demands.takes_any_form(value)


def test_in_the_middle_of_a_map_nobody_wants_plain_numbers() -> None:
    """A list that a map hands on to an inner map takes any form; one that it puts out does not."""
    graph = bb.fuse(bb.examples.attention()).fused[0]
    ((demands, value),) = exponentials(graph)
    assert not demands.wants_plain(value)
    assert demands.takes_any_form(value)
