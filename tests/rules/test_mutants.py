"""Every guard is needed: without it, a rule does harm, and the tests see it.

A mutant is a rule without one of its guards. It is caught if it never stops, fails, or
makes a program that is unsound or computes something else. Some guards only forbid waste: their
mutants are caught if the fused program costs more than with the guard.
"""

from collections.abc import Callable
from itertools import count

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion import ops
from blockbuster_fusion.array.arrays import Array
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.combiner import ADD, MAX, Mode, Reduced
from blockbuster_fusion.ir.expr import Expr, arg, call
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import BlockReduce, Dot, Elementwise, Map, Node, Reduce, Value
from blockbuster_fusion.rules.extend_map import ExtendMap
from blockbuster_fusion.rules.rule import Match, Rule
from helpers.contractions import before_a_dot, in_rows, on_items, over_k, rows
from helpers.graphs import ONLINE, K, array, heads, item, k, m, n
from helpers.mutants import Cost, changed, harm, waste, with_rule, without
from helpers.programs import Case
from helpers.rewriting import check, exhaust, fire, lowered, matches

PAPER = bb.RULE_SETS["paper"]
SUM, TOP = Reduced(ADD), Reduced(MAX)
TIMES, PLUS = arg(0) * arg(1), arg(0) + arg(1)


# ---------------------------------------------------------------- programs that catch


def one_axis_outside_the_other() -> Graph:
    def program(X: Array) -> tuple[Array, Array]:
        e = ops.exp(X)
        return e.sum(axis=0), e.sum(axis=1)

    return lowered(program, X="M K")


def minus_its_sum() -> Graph:
    def total(g: Builder, x: Value) -> list[tuple[Value, Mode]]:
        return [(g.one(BlockReduce(m, ADD), x), Reduced(ADD))]

    def shifted(g: Builder, x: Value, total: Value) -> list[tuple[Value, Mode]]:
        return [(g.one(Elementwise(arg(0) - arg(1)), x, total), None)]

    build = Builder()
    x = build.input("X", array(m))
    build.output("O", build.map(m, [x], build.map(m, [x], [], total), shifted)[0])
    return build.build()


def softmax() -> Graph:
    return lowered(ops.softmax, x="M K")


def projections(second: str) -> Graph:
    """X·A and X·B in one loop over the rows of X."""

    def program(X: Array, A: Array, B: Array) -> dict[str, Array]:
        return {"A_": X @ A.T, "B_": X @ B.T}

    return rows(program, X="M K", A="N K", B=f"{second} K")


def two_sums_with_one_factor() -> Graph:
    """Σ A·c and Σ B·c: nothing is shared but c, which is there anyway."""

    def program(A: Array, B: Array, c: Array) -> dict[str, Array]:
        factor = c[:, None]
        return {"A_": ops.exp(A * factor).sum(axis=1), "B_": ops.exp(B * factor).sum(axis=1)}

    return lowered(program, A="M K", B="M K", c="M")


def two_sums_with_indices() -> Graph:
    def program(A: Array, B: Array) -> dict[str, Array]:
        return {
            "A_": ops.exp(A * ops.index(A, 1)).sum(axis=1),
            "B_": ops.exp(B * ops.index(B, 1)).sum(axis=1),
        }

    return lowered(program, A="M K", B="M K")


def times_running_sums() -> Graph:
    return lowered(lambda X: X * ops.sort(ops.exp(X), axis=0), X="M")


def online_from_two_maps() -> Graph:
    def body(g: Builder, row: Value, c: Value) -> list[Value]:
        tops, sums = (
            g.map(k, [row], [], lambda g, x, by=by: [(g.one(BlockReduce(k, by), x), None)])[0]
            for by in (MAX, ADD)
        )
        return list(g.add(Reduce(k, ONLINE), tops, sums))

    return in_rows(body, "top", "total")


def dotted(operation: Expr, mode: Mode, *, ports: int = 0) -> Callable[[], Graph]:
    """In each row, `operation(x, c)` dotted with x, or by one or two ports with itself."""

    def body(g: Builder, row: Value, c: Value) -> list[Value]:
        moved = over_k(g, operation, row, c)

        def dot(g: Builder, *xs: Value) -> list[tuple[Value, Mode]]:
            return [(g.one(Dot(k), xs[0], xs[-1]), mode)]

        return [g.map(k, [moved] * ports or [moved, row], [], dot)[0]]

    return lambda: in_rows(body, "O")


def used_twice(operation: Callable[[Array, Array], Array]) -> Callable[[], Graph]:
    def program(X: Array, c: Array, Y: Array) -> dict[str, Array]:
        moved = operation(X, c[:, None])
        return {"O": moved @ Y.T, "moved": moved}

    return lambda: rows(program, X="M K", c="M", Y="N K")


def relu_in_the_loop(
    operation: Callable[[Array, Array], Array], *, products: int = 1
) -> Callable[[], Graph]:
    """relu(`operation(X, c)`·Y), with the relu in the loop of the product; or more of these."""

    def program(X: Array, c: Array, Y: Array) -> dict[str, Array]:
        moved = operation(X, c[:, None])
        return {f"O{i}": ops.relu(moved @ Y.T) for i in range(products)}

    consecutive = PAPER.rule("fuse_consecutive_maps")
    return lambda: exhaust(rows(program, X="M K", c="M", Y="N K"), consecutive)


def largest_product() -> Graph:
    """The largest of the dots of blocks, for every head; the scaled list is a result as well."""

    def body(g: Builder, row: Value, c: Value) -> list[Value]:
        scaled = over_k(g, TIMES, row, c)

        def head(g: Builder, *lists: Value) -> list[tuple[Value, Mode]]:
            return [(g.map(k, lists, [], lambda g, *xs: [(g.one(Dot(k), *xs), TOP)])[0], None)]

        return [g.map(heads, [], [scaled, row], head)[0], scaled]

    return in_rows(body, "O", "scaled")


def whole_numbers(operation: Callable[[Array, Array], Array]) -> Callable[[], Graph]:
    """Whole numbers become floats before the dot."""

    def program(X: Array, c: Array, Y: Array) -> Array:
        return operation(X, c[:, None]) @ Y

    specs = {"X": bb.array("M K", dtype="int32"), "c": "M", "Y": bb.array("K", dtype="int32")}
    return lambda: rows(program, **specs)


def whole_numbers_used_twice() -> Graph:
    def program(X: Array, c: Array, Y: Array) -> dict[str, Array]:
        moved = X * c[:, None]
        return {"O": moved @ Y.T, "E": ops.exp(moved)}

    return lowered(program, X=bb.array("M K", dtype="int32"), c="M", Y="N K")


def item_used_twice() -> Graph:
    build = Builder()
    x, c, y = (build.input(a, item(*ds)) for a, ds in (("X", [m, k]), ("c", [k]), ("Y", [n, k])))
    scaled = build.one(Elementwise(arg(0) * arg(1)), x, c)
    build.output("O", build.one(Dot(k), scaled, y))
    build.output("E", build.one(Elementwise(call("exp", arg(0))), scaled))
    return build.build()


def with_two_results() -> Graph:
    def program(X: Array, Y: Array) -> dict[str, Array]:
        e = ops.exp(X)
        return {"e": e, "O": e @ Y.T}

    return exhaust(lowered(program, X="K", Y="N K"), *PAPER.local)


def over_shares_of_a_sum() -> Graph:
    """The map that could be extended walks a list that a path through its sum keeps outside."""

    def program(X: Array, Y: Array, Z: Array) -> Array:
        e = ops.exp(Z)
        share = ops.reciprocal(e.sum())
        return ops.elementwise(lambda a, b, c: a * b * c, ops.exp(X) @ Y.T, e, share)

    return exhaust(lowered(program, X="K", Y="N K", Z="N"), *PAPER.local)


def beside_running_sums() -> Graph:
    """The only node that could move into the map is needed by a misc operator outside."""

    def program(X: Array, Y: Array) -> Array:
        e = ops.exp(X)
        return (e @ Y.T) * ops.sort(e).sum()

    return exhaust(lowered(program, X="K", Y="N K"), *PAPER.local)


def into_columns_of_running_sums() -> Graph:
    """The scan that could move into the map over N goes on along the loop around both."""

    def program(X: Array, Y: Array, W: Array) -> Array:
        return ops.exp(ops.cumsum(X)[:, None] * Y) @ W.T

    return exhaust(lowered(program, X="K", Y="N", W="M N"), *PAPER.local)


def columns_of_running_sums() -> Graph:
    """The map over K scans, and inside it is a loop over a list that is made beside it."""

    def program(X: Array, Y: Array) -> Array:
        return ops.cumsum(X)[:, None] * ops.exp(Y)

    return exhaust(lowered(program, X="K", Y="N"), *PAPER.local)


def a_loop_in_a_loop() -> Graph:
    """Two maps over one axis read X; inside one of them is a loop over the other's dim."""
    build, inside = Builder(), Dim(K, 1)
    x, z = build.input("X", array(k)), build.input("Z", array(k))
    double, times = Elementwise(arg(0) * 2.0), Elementwise(arg(0) * arg(1))

    def walk_z(g: Builder, z: Value) -> list[tuple[Value, Mode]]:
        w = g.one(double, z)
        return [(w, None), (g.one(BlockReduce(inside, ADD), w), SUM)]

    def walk_x(g: Builder, x: Value, w: Value) -> list[tuple[Value, Mode]]:
        def walk_w(g: Builder, w: Value, x: Value) -> list[tuple[Value, Mode]]:
            return [(g.one(times, x, g.one(BlockReduce(inside, ADD), w)), SUM)]

        return [(g.map(inside, [w], [x], walk_w)[0], None)]

    def walk_both(g: Builder, w: Value, x: Value, total: Value) -> list[tuple[Value, Mode]]:
        return [(g.one(times, g.one(times, w, x), total), None)]

    w, total = build.map(inside, [z], [], walk_z)
    build.output("U", build.map(k, [x], [w], walk_x)[0])
    build.output("V", build.map(inside, [w, x], [total], walk_both)[0])
    return build.build()


def sum_of_squares() -> Graph:
    def program(X: Array, Y: Array) -> Array:
        return ops.square(ops.exp(X) @ Y.T).sum()

    return exhaust(lowered(program, X="K", Y="N K"), *PAPER.local)


def sum_with_an_exp() -> Graph:
    graph = lowered(lambda X, Y: ops.exp(X) + Y, X="M", Y="M")
    return exhaust(graph, PAPER.rule("fuse_consecutive_maps"))


def exp_that_is_a_result() -> Graph:
    def program(X: Array) -> dict[str, Array]:
        e = ops.exp(X)
        return {"E": e, "S": ops.sin(e)}

    return exhaust(lowered(program, X="M"), PAPER.rule("fuse_consecutive_maps"))


def scale(X: Array, c: Array) -> Array:
    return X * c


def shift(X: Array, c: Array) -> Array:
    return X + c


CAUGHT: dict[tuple[int, str], tuple[Callable[[], Graph], str]] = {
    (1, "same_dim"): (one_axis_outside_the_other, "unsound"),
    (1, "iterates_what_is_stacked"): (minus_its_sum, "error"),
    (1, "only_direct_edges"): (softmax, "error"),
    (2, "same_axis"): (lambda: projections("L"), "error"),
    (2, "dims_apart"): (a_loop_in_a_loop, "unsound"),
    (2, "share_a_list"): (two_sums_with_one_factor, "waste"),
    (2, "independent"): (times_running_sums, "error"),
    (3, "reduces_what_is_stacked"): (online_from_two_maps, "wrong"),
    (4, "used_once"): (used_twice(scale), "unsound"),
    (4, "one_operand"): (dotted(TIMES, SUM, ports=1), "wrong"),
    (4, "nothing_but_the_dot"): (relu_in_the_loop(scale), "wrong"),
    (4, "summed"): (dotted(TIMES, TOP), "wrong"),
    (4, "item_without_contracted_axis"): (lambda: on_items(TIMES, c=(k,)), "unsound"),
    (4, "same_float_dtype"): (whole_numbers(scale), "unsound"),
    (5, "used_once"): (used_twice(shift), "unsound"),
    (5, "one_operand"): (dotted(PLUS, SUM, ports=1), "error"),
    (5, "nothing_but_the_dot"): (relu_in_the_loop(shift), "wrong"),
    (5, "summed"): (dotted(PLUS, TOP), "wrong"),
    (5, "item_without_contracted_axis"): (lambda: on_items(PLUS, c=(k,)), "unsound"),
    (5, "same_float_dtype"): (whole_numbers(shift), "unsound"),
    (6, "yields_all_outputs"): (with_two_results, "unsound"),
    (6, "iterates_only_inputs"): (over_shares_of_a_sum, "unsound"),
    (6, "moves_no_misc"): (beside_running_sums, "endless"),
    (6, "moves_no_scan"): (into_columns_of_running_sums, "unsound"),
    (7, "starts_at_zero"): (sum_of_squares, "wrong"),
    (7, "scans_nothing"): (columns_of_running_sums, "unsound"),
    (8, "several_uses"): (lambda: before_a_dot(scale), "endless"),
    (8, "one_operand"): (dotted(TIMES, SUM, ports=2), "endless"),
    (8, "nothing_but_the_dot"): (relu_in_the_loop(scale, products=2), "waste"),
    (8, "summed"): (largest_product, "waste"),
    (8, "item_without_contracted_axis"): (item_used_twice, "waste"),
    (8, "same_float_dtype"): (whole_numbers_used_twice, "waste"),
    (9, "both_unary"): (sum_with_an_exp, "wrong"),
    (9, "used_once"): (exp_that_is_a_result, "error"),
}
"""For each guard, a program in which its rule does harm without it."""

IMPLIED: dict[tuple[int, str], str] = {
    (
        3,
        "same_dim",
    ): "the list that a map stacks is over its dim, and only lists of items are reduced",
    (3, "items_inside"): "only lists of items are reduced",
    (3, "whole_range"): "what a map stacks that starts at block 1 is good for a join only",
    (6, "nothing_downstream"): "what is downstream yields an output, which yields_all_outputs sees",
}
"""Guards that state an assumption of a rule; another guard or the types ensure it as well."""

GUARDS = [(rule, guard.name) for rule in PAPER for guard in rule.guards]


def test_every_guard_is_here() -> None:
    known = [*CAUGHT, *IMPLIED]
    assert sorted(known) == sorted((rule.number, guard) for rule, guard in GUARDS)


@pytest.mark.parametrize(
    ("rule", "guard"),
    [pytest.param(r, g, id=f"{r.name}-{g}") for r, g in GUARDS if (r.number, g) in CAUGHT],
)
def test_a_rule_without_the_guard_is_caught(rule: Rule, guard: str) -> None:
    make, kind = CAUGHT[rule.number, guard]
    program, mutant = make(), without(rule, guard)
    assert harm(rule, program) is None
    if kind == "waste":
        assert harm(mutant, program) is None
        assert waste(mutant, program)
    else:
        assert harm(mutant, program) == kind


@pytest.mark.parametrize(
    ("rule", "guard"),
    [pytest.param(r, g, id=f"{r.name}-{g}") for r, g in GUARDS if (r.number, g) in IMPLIED],
)
def test_a_guard_that_is_implied_changes_nothing(rule: Rule, guard: str) -> None:
    """In no program along the way of many has the mutant a match that the rule has not."""
    mutant, refused = without(rule, guard), 0
    for seed in range(40):
        trace = bb.fuse(Case(seed).program, "paper").trace
        for steps in range(0, len(trace) + 1, 4):
            program = trace.program_after(steps)
            found = [(match.path, match.nodes) for match in matches(mutant, program)]
            assert found == [(match.path, match.nodes) for match in matches(rule, program)]
            refused += len(found)
    assert refused > 0


def test_what_is_downstream_of_an_extended_map_is_dead_or_yields_an_output() -> None:
    """Rule 6 without nothing_downstream fires only beside dead code, and is right there."""
    rule = PAPER.rule("extend_map")

    def program(dead: bool) -> Graph:
        build = Builder()
        x, y = build.input("X", array(k)), build.input("Y", array(n, k))
        exp = Elementwise(call("exp", arg(0)))
        e = build.nest([k], [x], lambda g, x: g.one(exp, x))

        def column(g: Builder, y: Value, e: Value) -> list[tuple[Value, Mode]]:
            return [(g.map(k, [e, y], [], lambda g, *xs: [(g.one(Dot(k), *xs), SUM)])[0], None)]

        (v,) = build.map(n, [y], [e], column)
        after = build.nest([n], [v], lambda g, x: g.one(exp, x))
        build.output("O", v)
        if not dead:
            build.output("E", after)
        return build.build()

    mutant = without(rule, "nothing_downstream")
    assert matches(rule, program(dead=True)) == []
    assert len(matches(mutant, program(dead=True))) == 1
    assert harm(mutant, program(dead=True)) is None
    assert matches(mutant, program(dead=False)) == []


# ---------------------------------------------------------------- details that are no guards


def shares(*, items: bool, indices: bool) -> Callable[[Graph, Match], bool]:
    """share_a_list of rule 2, with items or indices counting as well."""

    def holds(graph: Graph, match: Match) -> bool:
        u, v = match.nodes
        ports = set(zip(graph[u].inputs, graph.map(u).iterated, strict=True))
        shared = ports.intersection(zip(graph[v].inputs, graph.map(v).iterated, strict=True))
        kinds = [graph.type(value) for value, _ in shared]
        return any(
            t.is_buffered or (items and not t.is_list) or (indices and t.virtual) for t in kinds
        )

    return holds


def test_a_shared_item_that_counts_is_caught() -> None:
    rule = PAPER.rule("fuse_sibling_maps")
    mutant = changed(rule, "share_a_list", shares(items=True, indices=False))
    assert waste(mutant, two_sums_with_one_factor())
    assert not waste(changed(rule, "share_a_list", shares(items=False, indices=False)), softmax())


def test_shared_indices_that_count_are_caught() -> None:
    rule = PAPER.rule("fuse_sibling_maps")
    mutant = changed(rule, "share_a_list", shares(items=False, indices=True))
    assert waste(mutant, two_sums_with_indices())


class SecondPort(ExtendMap):
    """Rule 6, but the nodes that move in do not reuse the map's own input for a list."""

    def rewrite(self, graph: Graph, match: Match) -> Graph:
        made, v = super().rewrite(graph, match), match.nodes[0]
        node, op = made[v], made.map(v)
        ids = count(max(made.max_id + 1, match.fresh or 0))
        nodes, inputs, operands = dict(op.body.nodes), list(op.body.inputs), list(node.inputs)
        for value, iterated, port in zip(node.inputs, op.iterated, op.body.inputs, strict=True):
            for user in () if iterated else op.body.users[port][1:]:
                second, old = next(ids), nodes[user]
                nodes[second] = op.body[port]
                moved = tuple(Value(second) if x.node == port else x for x in old.inputs)
                nodes[user] = Node(old.op, moved, old.types)
                inputs.append(second)
                operands.append(value)
        flags = (*op.iterated, *[False] * (len(inputs) - len(op.iterated)))
        order = sorted(nodes, key=lambda i: i not in inputs)
        body = Graph({i: nodes[i] for i in order}, inputs, op.body.outputs)
        extended = Map(op.dim, body, flags, op.modes, op.first)
        return made.edit(add={v: Node(extended, tuple(operands), node.types)})


def test_a_second_port_for_one_list_is_caught() -> None:
    """Rule 2 misses the list that both maps read, and X is loaded twice."""
    program = bb.lower(bb.examples.layernorm_matmul())
    expected = bb.fuse(program, "paper")
    found = bb.fuse(program, with_rule(SecondPort()))
    check(program, found.fused[-1])
    assert len(found.trace) < len(expected.trace)
    assert Cost.of(found.fused[-1]).moved > Cost.of(expected.fused[-1]).moved


def test_composing_operators_of_several_operands_is_caught() -> None:
    """It would be right, but it is not the paper's rule 9: Example 3 would have another trace."""
    rule = PAPER.rule("fuse_consecutive_elementwise")
    mutant = changed(
        rule, "both_unary", lambda graph, match: len(graph[match.nodes[1]].inputs) == 1
    )
    program = bb.lower(bb.examples.rmsnorm_swiglu())
    found = bb.fuse(program, with_rule(mutant))
    check(program, found.fused[-1])
    assert (len(bb.fuse(program, "paper").trace), len(found.trace)) == (26, 27)


def test_a_loop_that_starts_at_block_1_counts_as_another() -> None:
    """Rules 1 and 2 compare where loops start: without that, a block would be added twice."""

    def column(g: Builder, y: Value, e: Value) -> list[tuple[Value, Mode]]:
        (dot,) = g.map(k, [e, y], [], lambda g, *xs: [(g.one(Dot(k), *xs), SUM)])
        return [(g.one(BlockReduce(n, ADD), dot), SUM)]

    build = Builder()
    x, y = build.input("X", array(k)), build.input("Y", array(n, k))
    exp = Elementwise(call("exp", arg(0)))
    e = build.nest([k], [x], lambda g, x: g.one(exp, x))
    made = build.nest([n, k], [y], lambda g, y: g.one(exp, y))
    build.output("O", build.map(n, [made], [e], column)[0])
    build.output("S", build.nest([n, k], [made], lambda g, y: g.one(exp, y)))
    peeled = fire(PAPER.rule("peel_first_iteration"), build.build())

    def same_dim(graph: Graph, match: Match) -> bool:
        u, v = (graph.map(i) for i in match.nodes)
        return u.dim is v.dim

    for name, guard in (("fuse_consecutive_maps", "same_dim"), ("fuse_sibling_maps", "same_axis")):
        rule = PAPER.rule(name)
        assert harm(rule, peeled) is None
        assert harm(changed(rule, guard, same_dim), peeled) is not None
