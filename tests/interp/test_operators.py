"""Each operator by itself: its results, the layout of values, and refusals."""

from collections.abc import Callable
from itertools import count

import numpy as np
import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.cost.meter import meter
from blockbuster_fusion.errors import BadResult, BadTile, InvalidGraph, NoExecutor
from blockbuster_fusion.host.executors import register_executor
from blockbuster_fusion.interp.interpreter import interpret
from blockbuster_fusion.ir.axis import Axis, Dim, Symbol
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.combiner import ADD, ANY, MAX, MIN, Combiner, Reduced
from blockbuster_fusion.ir.expr import arg, call, cast, size
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import (
    BlockReduce,
    Dot,
    Iota,
    Join,
    Map,
    Misc,
    Pick,
    Plain,
    Reduce,
    Rename,
    Value,
)
from blockbuster_fusion.ir.types import DType, Type
from helpers.graphs import ONLINE, K, M, N, P, array, heads, item, k, m, n
from helpers.interp_graphs import Results, each, expression, p

RANDOM = np.random.default_rng(11)


def program(kinds: dict[str, Type], body: Callable[..., Value], *axes: Axis) -> Graph:
    """A program with one output, `Y`, laid out as `axes`."""
    build = Builder()
    made = body(build, *(build.input(name, kind) for name, kind in kinds.items()))
    build.output("Y", made, axes)
    return build.build()


# ---------------------------------------------------------------- functional operators


def test_elementwise_broadcasts_by_dim_not_by_position() -> None:
    def body(g: Builder, row: Value, x: Value, column: Value) -> Value:
        return expression(g, arg(0) + 10.0 * arg(1) + 100.0 * arg(2), row, x, column)

    graph = program({"r": item(n), "x": item(m, k), "c": item(k)}, body, N, M, K)
    r, x, c = (RANDOM.standard_normal(shape) for shape in ((2,), (3, 4), (4,)))
    (found,) = interpret(graph, [r, x, c])
    np.testing.assert_allclose(found, r[:, None, None] + 10 * x + 100 * c)


def test_an_operand_that_the_expression_ignores_still_gives_its_axes() -> None:
    graph = program({"a": item(m), "b": item(n)}, lambda g, a, b: expression(g, arg(1), a, b), M, N)
    (found,) = interpret(graph, [np.zeros(2), np.arange(3.0)])
    np.testing.assert_array_equal(found, np.tile(np.arange(3.0), (2, 1)))


def test_an_expression_may_ask_for_extents_and_cast() -> None:
    expr = cast(arg(0) * size(M), DType.int32)
    (found,) = interpret(
        program({"a": item(m)}, lambda g, a: expression(g, expr, a)), [[0.4, -0.9]]
    )
    np.testing.assert_array_equal(found, [0, -1])
    assert found.dtype == np.int32


@pytest.mark.parametrize(
    ("left", "right", "result"),
    [
        ("mk", "nk", "mn"),
        ("km", "kn", "mn"),
        ("k", "k", ""),
        ("k", "kn", "n"),
        ("mk", "k", "m"),
        ("mnk", "kp", "mnp"),
        ("kmn", "pk", "mnp"),
        ("mnk", "npk", "mnp"),  # n stays in both
        ("mk", "mk", "m"),
    ],
)
def test_dot_contracts_one_dim_and_keeps_the_others(left: str, right: str, result: str) -> None:
    dims = {"m": m, "n": n, "k": k, "p": Dim(Axis("Q", 5))}
    lengths = {"m": 2, "n": 3, "k": 4, "p": 5}
    kinds = {name: item(*(dims[c] for c in axes)) for name, axes in (("a", left), ("b", right))}
    graph = program(kinds, lambda g, a, b: g.one(Dot(k), a, b))
    a, b = (RANDOM.standard_normal([lengths[c] for c in axes]) for axes in (left, right))
    (found,) = interpret(graph, [a, b])
    np.testing.assert_allclose(found, np.einsum(f"{left},{right}->{result}", a, b), rtol=1e-12)
    flops = 2 * np.prod([lengths[c] for c in set(left + right)])
    assert interpret(graph, [a, b]).traffic.flops == flops


@pytest.mark.parametrize(("dim", "axis"), [(m, 0), (k, 1), (n, 2)])
def test_block_reduce_over_any_axis(dim: Dim, axis: int) -> None:
    graph = program({"x": item(m, k, n)}, lambda g, x: g.one(BlockReduce(dim, ADD), x))
    x = RANDOM.standard_normal((2, 3, 4))
    np.testing.assert_allclose(interpret(graph, [x])[0], x.sum(axis=axis))


@pytest.mark.parametrize(
    ("combiner", "dtype", "expected"),
    [
        (ADD, DType.int32, 0),
        (MAX, DType.int32, np.iinfo(np.int32).min),
        (MIN, DType.int64, np.iinfo(np.int64).max),
        (MAX, DType.bool_, False),
        (MIN, DType.bool_, True),
        (MIN, DType.float16, np.inf),
    ],
)
def test_nothing_reduced_is_the_identity(combiner: Combiner, dtype: DType, expected: float) -> None:
    def body(g: Builder, x: Value) -> Value:
        (parts,) = g.map(k, [x], [], lambda g, x: [(g.one(BlockReduce(k, combiner), x), None)])
        return g.one(Reduce(k, combiner), parts)

    listed = program({"X": array(k, dtype=dtype)}, body)
    block = program({"X": item(k, dtype=dtype)}, lambda g, x: g.one(BlockReduce(k, combiner), x))
    for graph in (listed, block):
        (found,) = interpret(graph, [np.zeros(0, dtype.value)])
        assert found == expected
        assert found.dtype == np.dtype(dtype.value)


# ---------------------------------------------------------------- loops


def test_a_list_of_partial_sums_has_an_element_per_block() -> None:
    def body(g: Builder, x: Value) -> Value:
        return g.map(k, [x], [], lambda g, x: [(g.one(BlockReduce(k, ADD), x), None)])[0]

    x = np.arange(7.0)
    (found,) = interpret(program({"X": array(k)}, body), [x], {"K": 3})
    np.testing.assert_array_equal(found, [3, 12, 6])


def test_a_list_of_partial_sums_may_be_an_input() -> None:
    kind = Type((k,), (), DType.float32)
    graph = program({"X": kind, "Z": array(k)}, lambda g, x, z: each(g, [k], arg(0) * arg(1), x, z))
    (found,) = interpret(graph, [[1.0, 10.0], np.arange(5.0)], {"K": 3})
    np.testing.assert_array_equal(found, [0, 1, 2, 30, 40])
    with pytest.raises(
        BadTile, match=r"tiles\['K.0'\]: there are 3 blocks, and the list that a map"
    ):
        interpret(graph, [[1.0, 10.0], np.arange(5.0)], {"K": 2})


def test_any_keeps_a_value() -> None:
    def row(g: Builder, x: Value, y: Value) -> Results:
        return [(expression(g, arg(0) * 2.0, y), Reduced(ANY)), (x, None)]

    def body(g: Builder, x: Value, y: Value) -> Value:
        kept, _ = g.map(k, [x], [y], row)
        return kept

    graph = program({"X": array(k), "y": item(m)}, body)
    for extent in (5, 0):  # every iteration would yield it: so it is known without one
        (found,) = interpret(graph, [np.zeros(extent), [1.0, 2.0]], {"K": 2})
        np.testing.assert_array_equal(found, [2.0, 4.0])


def test_a_loop_from_the_second_block_on() -> None:
    inner = Builder(count(10))
    inner.output("", inner.input("", item()))
    loop = Map(heads, inner.build(), (True,), (Reduced(ADD),), first=1)
    graph = program({"X": array(heads)}, lambda g, x: g.one(loop, x))
    assert interpret(graph, [[1.0, 2.0, 4.0, 8.0]])[0] == 14
    inner = Builder(count(10))
    inner.output("", inner.one(BlockReduce(k, ADD), inner.input("", item(k))))
    loop = Map(k, inner.build(), (True,), (Reduced(ADD),), first=1)
    graph = program({"X": array(k)}, lambda g, x: g.one(loop, x))
    for tile, expected in ((1, 14), (3, 8), (4, 0)):
        assert interpret(graph, [[1.0, 2.0, 4.0, 8.0]], {"K": tile})[0] == expected


def test_a_reduce_takes_a_tuple_of_lists() -> None:
    def body(g: Builder, x: Value) -> Value:
        def block(g: Builder, x: Value) -> Results:
            top = g.one(BlockReduce(k, MAX), x)
            weights = expression(g, call("exp", arg(0) - arg(1)), x, top)
            return [(top, None), (g.one(BlockReduce(k, ADD), weights), None)]

        top, total = g.add(Reduce(k, ONLINE), *g.map(k, [x], [], block))
        return expression(g, arg(0) + call("log", arg(1)), top, total)

    x = 500 * RANDOM.standard_normal(9)
    for tile in (1, 4, 9):
        (found,) = interpret(program({"X": array(k)}, body), [x], {"K": tile})
        np.testing.assert_allclose(found, np.logaddexp.reduce(x), rtol=1e-12)


def test_a_map_walks_any_dim_of_a_list() -> None:
    def body(g: Builder, x: Value) -> Value:  # K first, then M, the other way round than X
        return each(g, [k, m], arg(0) * 2.0, x)

    x = RANDOM.standard_normal((4, 3, 5))
    graph = program({"X": array(m, heads, k)}, lambda g, x: each(g, [k, heads, m], -arg(0), x))
    (found,) = interpret(graph, [RANDOM.standard_normal((3, 4, 5))], {"M": 2, "K": 3})
    assert found.shape == (5, 4, 3)
    (found,) = interpret(program({"X": array(m, k)}, body), [x[:, 0]], {"M": 2, "K": 3})
    np.testing.assert_array_equal(found, 2 * x[:, 0].T)


def test_a_dim_may_be_walked_inside_a_loop_over_it() -> None:
    def outer(g: Builder, x: Value, all_of_x: Value) -> Results:
        (total,) = g.map(
            m, [all_of_x], [], lambda g, y: [(g.one(BlockReduce(m, ADD), y), Reduced(ADD))]
        )
        return [(expression(g, arg(0) / arg(1), x, total), None)]

    x = np.arange(1.0, 8.0)
    graph = program({"X": array(m)}, lambda g, x: g.map(m, [x], [x], outer)[0])
    for tile in (1, 3, 7):
        (found,) = interpret(graph, [x], {"M": tile})
        np.testing.assert_allclose(found, x / 28)


@pytest.mark.parametrize("where", ["reduce", "map"])
def test_blocks_of_an_axis_are_not_added_to_one_another(where: str) -> None:
    def body(g: Builder, x: Value) -> Value:
        if where == "reduce":
            return g.one(Reduce(k, ADD), x)
        return g.map(k, [x], [], lambda g, x: [(x, Reduced(ADD))])[0]

    graph = program({"X": array(k)}, body)
    with pytest.raises(InvalidGraph, match=r"reduces items .* over K\.0, whose blocks differ"):
        interpret(graph, [np.zeros(4)], {"K": 2})


# ---------------------------------------------------------------- structural operators


def test_pick_takes_one_block() -> None:
    graph = program({"X": array(m, k)}, lambda g, x: g.one(Pick(k, 1), g.one(Pick(m, 0), x)))
    x = RANDOM.standard_normal((4, 5))
    (found,) = interpret(graph, [x], {"M": 3, "K": 2})
    np.testing.assert_array_equal(found, x[:3, 2:4])
    with pytest.raises(BadTile) as refusal:
        interpret(graph, [x], {"K": 5})
    sentence = "there are 1 blocks, and number 1 is picked; make the tile smaller"
    assert str(refusal.value) == f"tiles['K.0']: {sentence}"
    with pytest.raises(BadTile, match="number 1 is picked"):
        meter(graph, {"MM": 4, "KK": 5}, {"K": 5})


def test_the_first_block_of_nothing_is_empty() -> None:
    graph = program({"X": array(k)}, lambda g, x: g.one(Pick(k, 0), x))
    assert interpret(graph, [np.zeros(0)])[0].shape == (0,)
    assert interpret(graph, [np.zeros(0)]).traffic == meter(graph, {"K": 0})
    unpacked = program({"X": array(heads)}, lambda g, x: g.one(Pick(heads, 4), x))
    with pytest.raises(BadTile, match="there are 4 blocks, and number 4 is picked"):
        interpret(unpacked, [np.zeros(4)])


def test_join_puts_a_list_before_lists() -> None:
    def body(g: Builder, x: Value) -> Value:
        inner = Builder(g.ids)
        element = inner.input("", Type((k.free,), (m, k.free), DType.float32))
        inner.output("", each(inner, [k], -arg(0), element))
        rest = g.one(Map(m, inner.build(), (True,), (None,), first=1), x)
        return g.one(Join(m), each(g, [k], arg(0) + 1.0, g.one(Pick(m, 0), x)), rest)

    x = RANDOM.standard_normal((5, 3))
    (found,) = interpret(program({"X": array(m, k)}, body), [x], {"M": 2, "K": 2})
    np.testing.assert_array_equal(found, np.concatenate([x[:2] + 1, -x[2:]]))


def test_join_of_items_without_the_axis() -> None:
    def body(g: Builder, x: Value) -> Value:
        inner = Builder(g.ids)
        inner.output("", expression(inner, -arg(0), inner.input("", item())))
        rest = g.one(Map(heads, inner.build(), (True,), (None,), first=1), x)
        return g.one(Join(heads), expression(g, arg(0) + 1.0, g.one(Pick(heads, 0), x)), rest)

    (found,) = interpret(program({"X": array(heads)}, body), [[1.0, 2.0, 3.0, 4.0]])
    np.testing.assert_array_equal(found, [2, -2, -3, -4])


def test_rename_assembles_blocks_of_any_tile() -> None:
    def body(g: Builder, x: Value) -> Value:
        return each(g, [p], arg(0) * 2.0, g.one(Rename(M, P), each(g, [m], arg(0) + 1.0, x)))

    x = RANDOM.standard_normal(7)
    (found,) = interpret(program({"X": array(m)}, body), [x], {"M": 3, "P": 2})
    np.testing.assert_array_equal(found, 2 * (x + 1))


def test_iota_gives_the_positions_of_unpacked_blocks_too() -> None:
    def body(g: Builder) -> Value:
        return each(g, [heads], arg(0) * 10, g.one(Iota(heads)))

    (found,) = interpret(program({}, body), [])
    np.testing.assert_array_equal(found, [0, 10, 20, 30])


# ---------------------------------------------------------------- misc operators


def sorting(
    name: str = "sort", attributes: tuple[tuple[str, Plain], ...] = (("axis", 0),)
) -> Graph:
    """2·X sorted, then plus 1."""

    def body(g: Builder, x: Value) -> Value:
        kind = array(m, k)
        made = g.one(Misc("numpy", name, attributes, (kind,)), each(g, [m, k], 2.0 * arg(0), x))
        return each(g, [m, k], arg(0) + 1.0, made)

    return program({"X": array(m, k)}, body)


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("sort", (("axis", 0),)),
        ("cumsum", (("axis", 1),)),
        ("cumprod", (("axis", 1),)),
        ("flip", ()),
        ("roll", (("shift", (1, 2)), ("axis", (0, 1)))),
        ("tril", (("k", 1),)),
        ("triu", ()),
    ],
)
def test_the_numpy_executor(name: str, attributes: tuple[tuple[str, Plain], ...]) -> None:
    x = RANDOM.standard_normal((5, 3))
    (found,) = interpret(sorting(name, attributes), [x], {"M": 2, "K": 2})
    np.testing.assert_allclose(found, getattr(np, name)(2 * x, **dict(attributes)) + 1)


def test_misc_operators_of_several_operands_and_dtypes() -> None:
    build = Builder()
    x = build.input("X", array(m, k))
    indices = build.one(
        Misc("numpy", "argsort", (("axis", 1),), (array(m, k, dtype=DType.int32),)), x
    )
    along = Misc("numpy", "take_along_axis", (("axis", 1),), (array(m, k),))
    build.output("sorted", build.one(along, x, indices))
    build.output("indices", indices)
    build.output("top", build.one(Misc("numpy", "argmax", (), (item(dtype=DType.int64),)), x))
    both = Type((Dim(Axis("J", Symbol("JJ")), None),), (), DType.float32)
    both = Type(both.lists, both.lists, DType.float32)
    flat = build.input("F", array(n))
    joined = build.one(Misc("numpy", "concatenate", (), (both,)), flat, flat)
    build.output("joined", each(build, [Dim(Axis("J", Symbol("JJ")))], arg(0) + 1.0, joined))
    given = RANDOM.standard_normal((3, 4))
    found = interpret(build.build(), [given, [1.0, 2.0]])
    np.testing.assert_array_equal(found["sorted"], np.sort(given, axis=1))
    np.testing.assert_array_equal(found["indices"], np.argsort(given, axis=1))
    assert found["top"] == given.argmax()
    np.testing.assert_array_equal(found["joined"], [2, 3, 2, 3])  # JJ is known from the result


def test_linear_algebra() -> None:
    square = array(m, p)
    inverse = Misc("numpy", "linalg.inv", (), (square,))
    solve = Misc("numpy", "linalg.solve", (), (array(m, n),))
    build = Builder()
    a, b = build.input("A", square), build.input("B", array(m, n))
    build.output("inverse", build.one(inverse, a))
    build.output("solution", build.one(solve, a, b))
    x, y = RANDOM.standard_normal((3, 3)), RANDOM.standard_normal((3, 2))
    found = interpret(build.build(), [x, y])
    np.testing.assert_allclose(found["inverse"] @ x, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(x @ found["solution"], y, atol=1e-12)
    with pytest.raises(np.linalg.LinAlgError) as failure:
        interpret(build.build(), [np.zeros((3, 3)), y])
    assert failure.value.__notes__ == ["in misc operator numpy.linalg.inv"]


def custom(namespace: str, *results: Type) -> Graph:
    build = Builder()
    x = build.input("X", array(m, k, dtype=DType.float16))
    for value in build.add(Misc(namespace, "op", (("by", 3),), results), x):
        build.output(f"Y{value.port}", value)
    return build.build()


def test_an_executor_is_registered_for_a_namespace() -> None:
    seen: list[object] = []

    def run(name: str, attributes: dict, arrays: list[np.ndarray]) -> list[np.ndarray]:
        seen.append((name, attributes, [x.dtype for x in arrays]))
        (x,) = arrays
        doubled = x * 2
        x[...] = 0  # its own copy
        return [doubled, x.sum(axis=1) > 0]

    register_executor("test.double", run)
    graph = custom("test.double", array(m, k), array(m, dtype=DType.bool_))
    x = np.ones((2, 3), np.float16)
    doubled, positive = interpret(graph, [x])
    np.testing.assert_array_equal(doubled, 2 * np.ones((2, 3)))
    np.testing.assert_array_equal(positive, [False, False])
    assert seen == [("op", {"by": 3}, [np.dtype(np.float16)])]
    assert x.all()


@pytest.mark.parametrize("namespace", ["nobody", "numpy"])
def test_a_misc_operator_without_an_executor(namespace: str) -> None:
    with pytest.raises(NoExecutor) as refusal:
        interpret(custom(namespace, array(m, k)), [np.zeros((2, 3))])
    remedy = f"register one with interp.register_executor({namespace!r}, run)"
    assert str(refusal.value) == f"misc operator {namespace}.op has no executor: {remedy}"


@pytest.mark.parametrize(
    ("made", "kind", "sentence"),
    [
        (np.zeros((2, 3)), array(m, k), "the executor gave a ndarray, not a list of arrays"),
        ([], array(m, k), "the executor gave 0 arrays, and 1 are declared"),
        (
            [np.zeros((2, 3), int)],
            array(m, k),
            "result 0: the array has the dtype int64, and float32 is declared",
        ),
        (
            [np.array(["a"])],
            array(m),
            "result 0: the array has the dtype <U1, and float32 is declared",
        ),
        (
            [np.zeros(2)],
            array(m, k),
            "result 0: the array has the shape (2,), and the axes (M, K) are declared",
        ),
        (
            [np.zeros((3, 2))],
            array(m, k),
            "result 0: axis M has 3 elements, but axis M of input X has 2, and both are MM",
        ),
        (
            [np.zeros((3, 5))],
            array(heads, n),
            "result 0: axis H has 3 elements, and its extent is 4",
        ),
        ([np.full(2, 7)], array(m, dtype=DType.bool_), "result 0: holds 7, which is no bool"),
        (
            [np.zeros(3)],
            Type((k,), (), DType.float32),
            "result 0: there are 3 elements for the 2 blocks of K.0",
        ),
    ],
)
def test_what_an_executor_gives_is_checked(made: object, kind: Type, sentence: str) -> None:
    register_executor("test.wrong", lambda name, attributes, arrays: made)  # type: ignore[arg-type, return-value]
    with pytest.raises(BadResult) as refusal:
        interpret(
            custom("test.wrong", kind), [np.zeros((2, 3))], {"K": 2} if k in kind.lists else {}
        )
    assert str(refusal.value) == f"misc operator test.wrong.op: {sentence}"


def test_a_misc_operator_in_a_loop() -> None:
    def row(g: Builder, x: Value) -> Results:
        kind = Type((k.free,), (m, k.free), DType.float32)
        return [(g.one(Misc("numpy", "cumsum", (("axis", 0),), (kind,)), x), None)]

    graph = program({"X": array(m, k)}, lambda g, x: g.map(m, [x], [], row)[0])
    x = RANDOM.standard_normal((5, 3))
    (found,) = interpret(graph, [x], {"M": 2})
    np.testing.assert_allclose(found, np.cumsum(x, axis=1))
    assert interpret(graph, [x], {"M": 2}).traffic == meter(graph, {"M": 5, "K": 3}, {"M": 2})
    assert interpret(graph, [np.zeros((0, 3))])[0].shape == (0, 3)


def test_many_blocks_are_summed_pairwise() -> None:
    """The error of the oracle's own sums does not grow with the number of blocks."""
    program = bb.lower(bb.trace(lambda X: {"O": bb.ops.sum(X, axis=1)}, X="M N"))
    x = np.random.default_rng(0).random((2, 60_000)).astype(np.float32)
    found = bb.interpret(program, [x], {"N": 16, "M": 2})["O"]
    exact = x.astype(np.float64).sum(1)
    assert np.abs(found / exact - 1).max() <= 2.0**-22
