"""Verification: sound graphs pass, and every fault is reported with its place and neighbours."""

import random
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from blockbuster_fusion.errors import BadText, InvalidGraph
from blockbuster_fusion.ir.axis import Axis, Dim, Symbol
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.combiner import ADD, Combiner, Reduced
from blockbuster_fusion.ir.expr import Expr, arg, call, const
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import (
    BlockReduce,
    Dot,
    Elementwise,
    Input,
    Iota,
    Join,
    Map,
    Misc,
    Node,
    Op,
    Output,
    Pick,
    Plain,
    Reduce,
    Rename,
    Value,
)
from blockbuster_fusion.ir.text import from_text, to_text
from blockbuster_fusion.ir.types import DType, Type
from blockbuster_fusion.ir.verify import verify
from helpers.effort import part
from helpers.graphs import (
    ONLINE,
    K,
    M,
    N,
    P,
    array,
    every_operator,
    heads,
    item,
    k,
    m,
    matmul_relu,
    n,
)


def refusal(graph: Graph) -> str:
    """The message of `verify` for a graph that is not sound."""
    with pytest.raises(InvalidGraph) as error:
        verify(graph)
    return str(error.value)


def program(*operators: tuple[Op, tuple[Value, ...], tuple[Type, ...]]) -> Graph:
    """A graph of nodes 0, 1, … whose types are taken as they are given; the last one is `y`."""
    nodes = {i: Node(*parts) for i, parts in enumerate(operators)}
    inputs = [i for i, node in nodes.items() if isinstance(node.op, Input)]
    return Graph(nodes, inputs, [Output("y", Value(len(nodes) - 1))])


def given(name: str, kind: Type) -> tuple[Op, tuple[Value, ...], tuple[Type, ...]]:
    return Input(name, kind), (), (kind,)


def with_body(graph: Graph, path: tuple[int, ...], **changes: object) -> Graph:
    """The program with fields of the inner graph at `path` changed."""
    inner = graph.at(path)
    fields = {"nodes": inner.nodes, "inputs": inner.inputs, "outputs": inner.outputs, **changes}
    return graph.replace(path, Graph(**fields))  # type: ignore[arg-type]


# -------------------------------------------------------------------- sound graphs


def test_sound_programs_pass() -> None:
    verify(matmul_relu())
    verify(every_operator())
    verify(Graph({}, (), ()))


def test_a_program_that_is_sound_stays_so_when_seen_again() -> None:
    graph = every_operator()
    verify(graph)
    verify(graph)
    verify(Graph(dict(graph.nodes), graph.inputs, graph.outputs))


def test_a_long_chain() -> None:
    build = Builder()
    x = build.input("x", item(m))
    for _ in range(50_000):
        x = build.one(Elementwise(call("exp", arg(0))), x)
    build.output("y", x)
    verify(build.build())


def test_a_deep_expression() -> None:
    expr = arg(0)
    for _ in range(20_000):
        expr = expr * expr
    build = Builder()
    build.output("y", build.one(Elementwise(expr), build.input("x", item(m))))
    verify(build.build())


def test_deep_maps() -> None:
    kind = item(m)
    graph = Graph({0: Node(Input("x", kind), (), (kind,))}, (0,), [Output("", Value(0))])
    for level in range(1_100):
        at = 2 * level + 1
        op = Map(Dim(Axis(f"L{level}", 2)), graph, (False,), (Reduced(ADD),))
        nodes = {at: Node(Input("x", kind), (), (kind,)), at + 1: Node(op, (Value(at),), (kind,))}
        graph = Graph(nodes, (at,), [Output("y", Value(at + 1))])
    verify(graph)


# -------------------------------------------------------------------- places and neighbours


def test_the_message_has_place_problem_and_neighbours() -> None:
    graph = matmul_relu()
    inner = graph.at((12, 11, 9))
    nodes = {**inner.nodes, 8: replace(inner[8], types=(item(n, m),))}
    body = Graph(nodes, inner.inputs, inner.outputs)
    path = (12, 11, 9)
    made = body
    for depth in (2, 1, 0):  # by hand: `replace` would infer the types of the maps around
        around, at = graph.at(path[:depth]), path[depth]
        op = replace(around.map(at), body=made)
        made = Graph(
            {**around.nodes, at: replace(around[at], op=op)}, around.inputs, around.outputs
        )
    assert refusal(made) == (
        "map %12 (M) / map %11 (N) / map %9 (K), node %8 (dot over K.0): its results have the "
        "types [](N.0 M.0)float32, but its operands give [](M.0 N.0)float32: infer them again\n"
        '    %6 = input "A": [](M.0 K.0)float32\n'
        '    %7 = input "B": [](N.0 K.0)float32\n'
        "  > %8 = dot(%6, %7) over K.0: [](N.0 M.0)float32\n"
        "    output 0"
    )


def test_users_are_neighbours() -> None:
    graph = matmul_relu()
    nodes = {**graph.nodes, 12: replace(graph[12], types=(array(m, n),))}
    message = refusal(Graph(nodes, graph.inputs, graph.outputs))
    assert message.startswith("node %12 (map over M.0): its results have the types [M.* N.*]")
    assert "\n    %1 = input " in message
    assert "\n  > %12 = map(each %0, whole %1) over M.0: " in message
    assert "\n    %17 = map(each %12) over M.0: [M.0 N.0](M.0 N.0)float32" in message


def test_many_neighbours_are_cut() -> None:
    build = Builder()
    x = build.input("x", item(m))
    for at in range(20):
        build.output(f"y{at}", build.one(Elementwise(-arg(0)), x))
    graph = build.build()
    nodes = {**graph.nodes, 0: replace(graph[0], types=(item(n),))}
    assert refusal(Graph(nodes, (0,), graph.outputs)).endswith("\n    … and 12 more")


# -------------------------------------------------------------------- edges


def test_an_operand_that_does_not_exist() -> None:
    negation = (Elementwise(-arg(0)), (Value(7),), (item(m),))
    message = refusal(program(negation))
    assert "node %0 (elementwise): operand 0 is %7, which is not in this graph" in message
    assert "\n    %7 is missing" in message


def test_an_operand_outside_the_map() -> None:
    graph = matmul_relu()
    inner = graph.at((17, 16))
    nodes = {**inner.nodes, 15: replace(inner[15], inputs=(Value(12),))}
    message = refusal(with_body(graph, (17, 16), nodes=nodes))
    assert message.startswith("map %17 (M) / map %16 (N), node %15 (elementwise): operand 0 is %12")
    assert "which is not in this graph but outside its map, and a body is closed" in message
    assert "list it as an operand of the map" in message


def test_an_operand_after_its_user() -> None:
    negation = Elementwise(-arg(0))
    nodes = {
        0: Node(*given("x", item(m))),
        2: Node(negation, (Value(1),), (item(m),)),
        1: Node(negation, (Value(0),), (item(m),)),
    }
    message = refusal(Graph(nodes, (0,), [Output("y", Value(2))]))
    assert "operand 0 is %1, which stands after it: order operands before users" in message


def test_a_cycle() -> None:
    negation = Elementwise(-arg(0))
    graph = program(
        (negation, (Value(1),), (item(m),)),
        (negation, (Value(0),), (item(m),)),
    )
    problem = "operand 0 is %1, which depends on it in a cycle: a block program has no loops but"
    assert problem in refusal(graph)


def test_a_port_that_does_not_exist() -> None:
    for port in (1, -1):
        negation = (Elementwise(-arg(0)), (Value(0, port),), (item(m),))
        message = refusal(program(given("x", item(m)), negation))
        assert f"operand 0 is result {port}, but %0 has 1 result(s)" in message


def test_results_that_inference_does_not_give() -> None:
    negation = (Elementwise(-arg(0)), (Value(0),), (item(m), item(m)))
    message = refusal(program(given("x", item(m)), negation))
    assert "[](M.0)float32, [](M.0)float32, but its operands give [](M.0)float32: infer" in message


def test_operands_that_do_not_fit() -> None:
    dot = (Dot(k), (Value(0), Value(0)), (item(m),))
    message = refusal(program(given("x", item(m)), dot))
    assert message.startswith("node %1 (dot over K.0): the left block [](M.0)float32 has no axis K")


@pytest.mark.parametrize("op", [Iota(m), Input("z", item(m))])
def test_sources_have_no_operands(op: Op) -> None:
    kinds = (Type((m,), (m,), DType.int64, True),) if isinstance(op, Iota) else (item(m),)
    message = refusal(program(given("x", item(m)), (op, (Value(0),), kinds)))
    assert "it takes no operands and has some: drop them" in message


# -------------------------------------------------------------------- inputs and outputs


def test_inputs_are_input_nodes() -> None:
    graph = program(given("x", item(m)), (Elementwise(-arg(0)), (Value(0),), (item(m),)))
    for inputs, problem in [
        ((0, 1), "node %1 (elementwise): it is listed as input 1 of the graph, but is no Input"),
        ((0, 9), "program: input 1 is %9, which is not in this graph"),
        ((0, 0), "node %0 (input 'x'): it is listed twice among the inputs of the graph"),
        ((), "node %0 (input 'x'): it is an Input that the graph does not list among its inputs"),
    ]:
        assert refusal(Graph(graph.nodes, inputs, graph.outputs)).startswith(problem)


def test_names_of_inputs_are_unique_in_a_program_but_not_in_a_body() -> None:
    message = refusal(program(given("x", item(m)), given("x", item(n))))
    assert message.startswith("node %1 (input 'x'): another input of the program is called 'x'")
    build = Builder()
    x = build.input("x", array(k))
    (y,) = build.map(
        k, [x, x], [], lambda g, a, b: [(g.one(Elementwise(arg(0) + arg(1)), a, b), None)]
    )
    build.output("y", y)
    verify(build.build())


@pytest.mark.parametrize(
    ("outputs", "problem"),
    [
        ([Output("y", Value(9))], "program, output 'y': its value %9 is not in this graph"),
        ([Output("y", Value(0, 1))], "program, output 'y': its value is %0.1, but %0 has 1 result"),
        ([Output("", Value(0))], "program, output 0: it has no name: outputs are returned by name"),
        ([Output("y", Value(0))] * 2, "program, output 'y': another output of the program has its"),
        (
            [Output("y", Value(0), (M, K))],
            "program, output 'y': it is laid out as M K, but its value has the axes M N: list each",
        ),
        ([Output("y", Value(0), (M, M))], "program, output 'y': it is laid out as M M, but its"),
        ([Output("y", Value(0), (M,))], "program, output 'y': it is laid out as M, but its value"),
    ],
)
def test_outputs(outputs: list[Output], problem: str) -> None:
    graph = Graph({0: Node(*given("x", array(m, n)))}, (0,), outputs)
    assert refusal(graph).startswith(problem)


def test_outputs_of_a_body() -> None:
    graph = matmul_relu()
    message = refusal(with_body(graph, (17, 16), outputs=[Output("", Value(15), (M,))]))
    assert message.startswith("map %17 (M) / map %16 (N), output 0: it is laid out as M, but its")


# -------------------------------------------------------------------- ids, axes and types


def test_ids_are_unique_in_a_program() -> None:
    graph = matmul_relu()
    inner = graph.at((17,))
    nodes = {(0 if i == 13 else i): node for i, node in inner.nodes.items()}
    nodes[16] = replace(nodes[16], inputs=(Value(0),))
    message = refusal(with_body(graph, (17,), nodes=nodes, inputs=(0,)))
    assert message.startswith("node %17 (map over M.0): %0 in its body is the id of another node")
    assert "take those above max_id" in message


def test_the_id_of_a_node_inside_an_earlier_map() -> None:
    graph = matmul_relu()
    nodes = {**graph.nodes, 15: Node(Iota(m), (), (Type((m,), (m,), DType.int64, True),))}
    message = refusal(Graph(nodes, graph.inputs, graph.outputs))
    assert message.startswith("node %15 (iota over M.0): another node inside a map has its id")


def test_one_body_in_two_maps() -> None:
    build = Builder()
    x = build.input("x", array(k))
    (y,) = build.map(k, [x], [], lambda g, v: [(g.one(Elementwise(-arg(0)), v), None)])
    build.output("y", build.one(build.nodes[y.node].op, y))
    assert "%1 in its body is the id of another node as well" in refusal(build.build())


def test_negative_ids() -> None:
    graph = Graph({-1: Node(*given("x", item(m)))}, (-1,), ())
    assert "its id is not a number from 0 upwards" in refusal(graph)


@pytest.mark.parametrize("extent", [-1, 2.0, True, "MM", None])
def test_extents(extent: object) -> None:
    axis = Axis("E", extent)  # type: ignore[arg-type]
    message = refusal(program(given("x", item(Dim(axis)))))
    assert (
        f"the extent of axis E is {extent!r}: use a number from 0 upwards, or a Symbol" in message
    )


def test_an_extent_may_be_zero() -> None:
    verify(program(given("x", item(Dim(Axis("E", 0))))))


def test_one_name_for_two_axes() -> None:
    other = Dim(Axis("M", 3))
    problem = "two axes of the program are called M and have the extents MM and 3: call one of"
    assert problem in refusal(program(given("x", item(m)), given("z", item(other))))
    graph = matmul_relu()
    inner = graph.at((17, 16))
    nodes = {
        **inner.nodes,
        50: Node(Iota(other), (), (Type((other,), (other,), DType.int64, True),)),
    }
    assert problem in refusal(with_body(graph, (17, 16), nodes=nodes))
    size = Expr("size", (), Axis("M", Symbol("LL")))
    nodes = {**inner.nodes, 50: Node(Elementwise(arg(0) / size), (Value(14),), (item(m, n),))}
    assert "have the extents MM and LL" in refusal(with_body(graph, (17, 16), nodes=nodes))


@pytest.mark.parametrize(
    "kind",
    [
        item(m, Dim(M, 1)),
        item(m, m),
        Type((m,), (m, m), DType.float32),
        Type((m, m), (), DType.float32),
        Type((m,), (m.free,), DType.float32),
    ],
)
def test_an_axis_twice(kind: Type) -> None:
    message = refusal(program(given("x", kind)))
    assert f"its type {kind} has the axis M twice: rename one of them" in message


def test_types() -> None:
    virtual = Type((), (m,), DType.int64, virtual=True)
    assert "is virtual and no list" in refusal(program(given("x", virtual)))
    strange = Type((), (m,), "float32")  # type: ignore[arg-type]
    assert "its dtype 'float32' is not a DType" in refusal(program(given("x", strange)))
    problem = "the dim M.-1 must have a number from 0 upwards, or None when free"
    assert problem in refusal(program(given("x", item(Dim(M, -1)))))


# -------------------------------------------------------------------- operators


def with_map(**changes: object) -> Graph:
    """A list over K through a map that does nothing, with fields of the map changed."""
    inner = Builder(iter(range(10, 20)))
    x = inner.input("x", item(k))
    inner.output("", x)
    op = replace(Map(k, inner.build(), (True,), (None,)), **changes)  # type: ignore[arg-type]
    kinds = (Type((k,), (k,), DType.float32),)
    return program(given("x", array(k)), (op, (Value(0),), kinds))


def test_maps() -> None:
    verify(with_map())
    assert "its loop starts at block 2: only 0, or 1 after peeling, is known" in refusal(
        with_map(first=2)
    )
    assert "output 0: 'stack' is no mode: use None or Reduced" in refusal(
        with_map(modes=("stack",))
    )
    assert "each output of the body has a mode: 0 modes for 1 outputs" in refusal(
        with_map(modes=())
    )
    assert "a loop needs a dim of its own, and this one is free" in refusal(with_map(dim=k.free))


def test_partial_lists_are_joined() -> None:
    problem = (
        "a list over K.0 without its first element, because its map starts at block 1: "
        "only a Join that puts the first element before it may use it"
    )
    peeled = with_map(first=1)
    listed = peeled[1].types[0]
    assert f"program, output 'y': its value is %1, {problem}" in refusal(peeled)

    def used_by(op: Op, kind: Type, *operands: int) -> Graph:
        nodes = {
            **peeled.nodes,
            2: Node(Pick(k, 0), (Value(0),), (item(k),)),
            3: Node(op, tuple(map(Value, operands)), (kind,)),
        }
        return Graph(nodes, (0,), [Output("y", Value(3))])

    verify(used_by(Join(k), listed, 2, 1))
    for op, kind in ((Reduce(k, ADD), item(k)), (Pick(k, 1), item(k)), (Rename(K, K), array(k))):
        assert f"operand 0 is %1, {problem}" in refusal(used_by(op, kind, 1))
    first = Join(Dim(K, 1))
    assert f"operand 1 is %1, {problem}" in refusal(used_by(first, listed, 2, 1))


def test_reduced_results_of_a_peeled_map_are_whole() -> None:
    inner = Builder(iter(range(10, 20)))
    inner.output("", inner.input("x", item()))
    op = Map(heads, inner.build(), (True,), (Reduced(ADD),), first=1)
    verify(program(given("x", array(heads)), (op, (Value(0),), (item(),))))


@pytest.mark.parametrize(
    ("combiner", "problem"),
    [
        (Combiner("c", (), ()), "combiner c: it has no components"),
        (Combiner("c", (), (arg(0),)), "combiner c: it has 1 components and 0 identities: give"),
        (Combiner("c", (0.0,), (arg(2),)), "it uses the argument x2, but with 1 components there"),
        (Combiner("c", (np.float64(0),), (arg(0),)), "is not a plain int, float or bool"),
        (Combiner("c", (0.0,), (call("ad", arg(0), arg(1)),)), "no function is called 'ad'"),
    ],
)
def test_combiners(combiner: Combiner, problem: str) -> None:
    assert problem in refusal(with_map(modes=(Reduced(combiner),)))
    reduce = (Reduce(k, combiner), (Value(0),), (item(k),))
    assert problem in refusal(program(given("x", array(k)), reduce))
    block = (BlockReduce(k, combiner), (Value(0),), (item(),))
    assert problem in refusal(program(given("x", item(k)), block))


def test_a_block_is_reduced_to_one_value() -> None:
    block = (BlockReduce(k, ONLINE), (Value(0),), (item(),))
    message = refusal(program(given("x", item(k)), block))
    assert "a block is reduced to one value, and online gives 2: reduce each by itself" in message


@pytest.mark.parametrize(
    ("expr", "problem"),
    [
        (call("exq", arg(0)), "no function is called 'exq'"),
        (call("exp", arg(0), arg(0)), "exp takes 1 operands and has 2"),
        (Expr("cast", (), DType.float32), "cast takes 1 operands and has 0"),
        (Expr("cast", (arg(0),), None), "a cast to None, which is not a DType"),
        (Expr("size", (), None), "the size of None is meant, which is not an axis"),
        (arg(0) + Expr("const", (), None), "the constant None is not a plain int, float or bool"),
        (arg(0) + const(np.float64(2)), "is not a plain int, float or bool"),
        (arg(0) + arg(-1), "the argument -1 is not a number from 0 upwards"),
        (arg(0) + Expr("arg", (arg(0),), 0), "arg takes 0 operands and has 1"),
        (arg(0) + arg(1), "takes 2 operands and has 1"),
        (arg(10**12), f"takes {10**12 + 1} operands and has 1"),
        (
            call("where", arg(0), 1.0, arg(0)),
            "the condition of where is float32, not bool: compare",
        ),
        (-(arg(0) < 1), "neg of bools is not defined: cast them to a number first"),
        ((arg(0) < 1) - (arg(0) > 1), "sub of bools is not defined: cast them to a number first"),
        (call("sign", True) + arg(0), "sign of bools is not defined"),
    ],
)
def test_expressions(expr: Expr, problem: str) -> None:
    apply = (Elementwise(expr), (Value(0),), (item(m),))
    assert problem in refusal(program(given("x", item(m)), apply))


def test_numbers_and_bools_mix() -> None:
    build = Builder()
    mask = build.one(Elementwise(arg(0) < 1), build.input("x", item(m)))
    build.output("y", build.one(Elementwise(call("where", arg(0), 1 - arg(0), 0)), mask))
    verify(build.build())


def test_the_index_of_an_element() -> None:
    pick = (Pick(k, -1), (Value(0),), (item(k),))
    message = refusal(program(given("x", array(k)), pick))
    assert "the element -1 is not a number from 0 upwards" in message


@pytest.mark.parametrize(
    ("key", "value"),
    [("k", [1]), ("k", (1, (2, np.int64(3)))), ("k", {}), ("k", len), (3, 1), ("k", item(m))],
)
def test_attributes_are_plain(key: str, value: Plain) -> None:
    misc = (Misc("a", "b", ((key, value),), (item(m),)), (), (item(m),))
    message = refusal(program(misc))
    assert message.startswith(f"node %0 (misc a.b): attribute {key!r} is {value!r}, not plain data")


def test_something_else_than_an_operator() -> None:
    node = ("dot", (), ())
    assert "node %0 (str): str is no operator of block programs" in refusal(
        program(node)  # type: ignore[arg-type]
    )


def test_renaming_to_an_axis_of_another_extent() -> None:
    rename = (Rename(M, N), (Value(0),), (array(n),))
    message = refusal(program(given("x", array(m)), rename))
    assert message.startswith("node %1 (rename M->N): the extents MM and NN differ")
    verify(program(given("x", array(m)), (Rename(M, P), (Value(0),), (array(Dim(P)),))))


# -------------------------------------------------------------------- all together


def test_whatever_can_be_read_is_sound_or_told() -> None:
    text = to_text(every_operator())
    rng = random.Random(3)
    words = sorted({word for line in text.split("\n") for word in line.split()})
    verified = 0
    for _ in range(part(2000, of=2)):
        lines = text.split("\n")
        at = rng.randrange(len(lines))
        line = lines[at].split(" ")
        line[rng.randrange(len(line))] = rng.choice(words)
        lines[at] = " ".join(line)
        with suppress(BadText, InvalidGraph):
            verify(from_text("\n".join(lines)))
            verified += 1
    assert verified > 2
