"""Inputs and outputs: arrays, extents, tiles and dtypes, and every refusal."""

import gc
import pickle
import re
import weakref

import numpy as np
import pytest

from blockbuster_fusion.cost.meter import meter
from blockbuster_fusion.errors import BadExtent, BadInput, BadTile
from blockbuster_fusion.host.numbers import round_to_bfloat16
from blockbuster_fusion.interp.interpreter import interpret
from blockbuster_fusion.ir.axis import Axis, Dim, Symbol
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.combiner import ADD, Reduced
from blockbuster_fusion.ir.expr import arg, call, cast
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import BlockReduce, Iota, Reduce, Value
from blockbuster_fusion.ir.types import DType, Type
from helpers.graphs import K, M, N, array, heads, item, k, m, n
from helpers.interp_graphs import Results, causal, each, expression, gram, matmul, p

RANDOM = np.random.default_rng(3)
A, B = RANDOM.standard_normal((7, 5)), RANDOM.standard_normal((6, 5))


def identity(kind: Type, dtype: DType | None = None) -> Graph:
    """A program that gives its input X back as Y, converted to `dtype`."""
    build = Builder()
    x = build.input("X", kind)
    if dtype is not None:
        x = each(build, [dim for dim in (heads, m) if kind.list_dim(dim)], cast(arg(0), dtype), x)
    build.output("Y", x)
    return build.build()


# ---------------------------------------------------------------- inputs


def test_inputs_come_by_name_or_in_order() -> None:
    by_name = interpret(matmul(), {"B": B, "A": A})
    in_order = interpret(matmul(), (A, B))
    np.testing.assert_array_equal(by_name["C"], in_order["C"])


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        ({"A": A}, "input B: is missing; the inputs are A, B"),
        ({"A": A, "B": B, "Z": A}, "input Z: there is no such input; the inputs are A, B"),
        ([A], "input B: is missing: 1 arrays for the inputs A, B"),
        ([A, B, A], "input number 2: there is no such input; the inputs are A, B"),
        (A, "input A: give arrays by name or in order, not a ndarray"),
        ("AB", "input A: give arrays by name or in order, not a str"),
        ([A, B[0]], "input B: has the shape (5,), and the program wants the axes (N, K)"),
        (
            [A, B[:, :4]],
            "input B: axis K has 4 elements, but axis K of input A has 5, and both are KK",
        ),
        (
            [A.astype(complex), B],
            "input A: has the dtype complex128; give booleans, integers or real numbers",
        ),
        (
            [A.astype(object), B],
            "input A: has the dtype object; give booleans, integers or real numbers",
        ),
        (
            [A, [["1"] * 5] * 6],
            "input B: has the dtype <U1; give booleans, integers or real numbers",
        ),
    ],
)
def test_inputs_that_are_refused(inputs: object, sentence: str) -> None:
    with pytest.raises(BadInput) as refusal:
        interpret(matmul(), inputs)  # type: ignore[arg-type]
    assert str(refusal.value) == sentence


def test_a_ragged_list_of_lists_is_no_array() -> None:
    with pytest.raises(BadInput, match="input A: is no array: setting an array element"):
        interpret(matmul(), [[[1.0], [1.0, 2.0]], B])


def test_a_known_extent_is_checked() -> None:
    with pytest.raises(BadInput) as refusal:
        interpret(identity(array(heads)), [np.zeros(3)])
    assert str(refusal.value) == "input X: axis H has 3 elements, and its extent is 4"


def test_axes_of_one_symbol_have_one_length() -> None:
    build = Builder()
    build.output("Y", build.input("X", array(m, p)))
    with pytest.raises(BadInput) as refusal:
        interpret(build.build(), [np.zeros((3, 2))])
    sentence = "axis P has 2 elements, but axis M of input X has 3, and both are MM"
    assert str(refusal.value) == f"input X: {sentence}"


def test_an_extent_that_nothing_gives() -> None:
    build = Builder()
    build.output("Y", each(build, [m], arg(0) + 1, build.one(Iota(m))))
    with pytest.raises(BadExtent) as refusal:
        interpret(build.build(), [])
    assert str(refusal.value) == "extent MM: nothing says how long axis M is"
    with pytest.raises(BadExtent):
        meter(build.build(), {})


def test_scalars_do_for_inputs_without_axes() -> None:
    (found,) = interpret(identity(item(dtype=DType.int32)), [7])
    assert found.shape == ()
    assert found == 7
    (found,) = interpret(identity(item()), [np.float32(0.1)])
    assert found == np.float32(0.1)


def test_inputs_are_neither_changed_nor_given_out() -> None:
    x = np.ones(3)
    (found,) = interpret(identity(array(m)), [x])
    found[0] = 5
    assert x.all()


# ---------------------------------------------------------------- outputs


def test_outputs_are_a_tuple_and_a_mapping() -> None:
    build = Builder()
    x = build.input("X", array(m, n))
    build.output("plus", each(build, [m, n], arg(0) + 1.0, x), (N, M))
    build.output("minus", each(build, [n, m], arg(0) - 1.0, x))
    x = np.arange(6.0).reshape(2, 3)
    found = interpret(build.build(), [x])
    plus, minus = found
    np.testing.assert_array_equal(plus, x.T + 1)
    np.testing.assert_array_equal(minus, x.T - 1)  # without axes: as the lists are nested
    assert found.names == ("plus", "minus")
    assert list(found.keys()) == ["plus", "minus"]
    assert dict(found.items())["minus"] is found[1] is found["minus"] is list(found.values())[1]
    assert found[:1] == (plus,)
    assert "plus" in found
    assert "times" not in found
    assert plus.flags["C_CONTIGUOUS"]
    with pytest.raises(KeyError, match="no output 'times'; the outputs are plus, minus"):
        found["times"]
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(again["plus"], plus)
    assert again.traffic == found.traffic


def test_plans_go_when_their_graphs_go() -> None:
    graph = matmul()
    interpret(graph, [A, B])
    gone = weakref.ref(graph)
    del graph
    gc.collect()
    assert gone() is None


# ---------------------------------------------------------------- tiles


def partial_sums() -> Graph:
    """Shows the number of blocks of a tile, as partial sums of X over K.0 and over K.1."""
    build = Builder()
    x = build.input("X", array(k))
    for index in (0, 1):
        dim = Dim(K, index)

        def body(g: Builder, x: Value, dim: Dim = dim) -> Results:
            return [(g.one(BlockReduce(dim, ADD), x), None)]

        build.output(dim.label, build.map(dim, [x], [], body)[0])
    return build.build()


@pytest.mark.parametrize(
    ("tiles", "blocks"),
    [
        (None, (2, 2)),
        ({}, (2, 2)),
        ({"K": 25}, (4, 4)),
        ({"K": 25, "K.1": 50}, (4, 2)),
        ({"K.1": 50, "K": 25}, (4, 2)),
        ({Dim(K, 1): 10}, (2, 10)),
        ({Dim(K, 0): 1000, "K": np.int32(33)}, (1, 4)),
        ({"K.0": 20, Dim(K, 0): 20}, (5, 2)),
    ],
)
def test_the_more_specific_tile_wins(tiles: dict | None, blocks: tuple[int, int]) -> None:
    found = interpret(partial_sums(), [np.ones(100)], tiles)
    assert tuple(len(sums) for sums in found) == blocks


@pytest.mark.parametrize(
    ("tiles", "sentence"),
    [
        ({"Z": 4}, "tiles['Z']: no such dim; known are K, K.0, K.1"),
        ({"K.7": 4}, "tiles['K.7']: no such dim; known are K, K.0, K.1"),
        ({Dim(M): 4}, "tiles['M.0']: no such dim; known are K, K.0, K.1"),
        ({k.free: 4}, "tiles['K.*']: no such dim; known are K, K.0, K.1"),
        ({"K": 0}, "tiles['K']: 0 is no tile: an int of at least 1"),
        ({"K": -3}, "tiles['K']: -3 is no tile: an int of at least 1"),
        ({"K": 2.0}, "tiles['K']: 2.0 is no tile: an int of at least 1"),
        ({"K": True}, "tiles['K']: True is no tile: an int of at least 1"),
        ({"K": "2"}, "tiles['K']: '2' is no tile: an int of at least 1"),
        ({"K.0": 3, Dim(K): 4}, "tiles['K.0']: K.0 is given as 3 as well"),
    ],
)
def test_tiles_that_are_refused(tiles: dict, sentence: str) -> None:
    with pytest.raises(BadTile, match=f"^{re.escape(sentence)}$"):
        interpret(partial_sums(), [np.ones(10)], tiles)
    with pytest.raises(BadTile, match=f"^{re.escape(sentence)}$"):
        meter(partial_sums(), {"K": 10}, tiles)


def test_an_axis_without_a_loop_may_have_a_tile() -> None:
    (found,) = interpret(identity(array(m)), [np.ones(3)], {"M": 2})
    assert found.shape == (3,)


def test_an_unpacked_dim_has_tiles_of_one() -> None:
    graph = identity(array(heads), DType.float32)
    interpret(graph, [np.zeros(4)], {"H": 1})
    with pytest.raises(BadTile) as refusal:
        interpret(graph, [np.zeros(4)], {"H": 2})
    assert str(refusal.value) == "tiles['H']: H.0 is unpacked, so its tile is 1"


def test_a_dim_that_only_a_reduction_has_can_be_tiled() -> None:
    build = Builder()
    x = build.input("X", Type((heads.free, m.free), (m.free,), DType.float32))
    dim = Dim(heads.axis, 5, packed=False)
    total = build.map(m, [x], [], lambda g, x: [(g.one(Reduce(dim, ADD), x), None)])[0]
    build.output("Y", total)
    (found,) = interpret(build.build(), [np.ones((4, 3))], {"H.5": 1, "M": 2})
    np.testing.assert_array_equal(found, [4, 4, 4])


@pytest.mark.parametrize(
    ("extents", "sentence"),
    [
        ({"MM": 3, "KK": 3}, "extent NN: nothing says how long axis N is"),
        ({"ZZ": 3}, "extent ZZ: unknown; known are K, KK, M, MM, N, NN"),
        ({"MM": -1}, "extent MM: -1 is no length: an int of at least 0"),
        ({"MM": 1.5}, "extent MM: 1.5 is no length: an int of at least 0"),
        (
            {"MM": 3, "M": 4},
            "extent M: axis M has 4 elements, but axis M of extents['MM'] has 3, and both are MM",
        ),
    ],
)
def test_extents_that_the_meter_refuses(extents: dict, sentence: str) -> None:
    with pytest.raises(BadExtent) as refusal:
        meter(matmul(), extents)
    assert str(refusal.value) == sentence


def test_the_meter_takes_symbols_and_axes() -> None:
    assert meter(matmul(), {"M": 3, "NN": 4, "K": 5}) == meter(matmul(), {"MM": 3, "N": 4, "KK": 5})
    assert meter(gram(), {"P": 3, "K": 5}) == meter(gram(), {"MM": 3, "KK": 5})
    fixed = identity(array(heads))
    assert meter(fixed, {}) == meter(fixed, {"H": 4})
    with pytest.raises(BadExtent, match="extent H: axis H has 5 elements, and its extent is 4"):
        meter(fixed, {"H": 5})


def test_the_meter_cannot_guess_how_many_blocks_a_free_list_has() -> None:
    graph = identity(Type((k.free,), (), DType.float32))
    with pytest.raises(BadExtent, match=r"extent K\.\*: a free list of items without the axis"):
        meter(graph, {"K": 4})


# ---------------------------------------------------------------- dtypes


def test_the_declared_dtype_is_kept() -> None:
    for dtype in DType:
        (found,) = interpret(
            identity(array(m, dtype=dtype)), [np.ones(2, np.float32 if dtype.is_float else bool)]
        )
        assert found.dtype == np.dtype("float32" if dtype is DType.bfloat16 else dtype.value)


def test_a_float64_input_makes_everything_exact() -> None:
    build = Builder()
    x, y = build.input("X", array(m, dtype=DType.bfloat16)), build.input("Y", item())
    expr = cast(cast(arg(0), DType.float16) * arg(1), DType.bfloat16)
    build.output("Z", each(build, [m], expr, x, y))
    x, y = np.array([1.001, 1e30]), 1 + 1e-12
    exact = interpret(build.build(), [x, np.float64(y)])
    np.testing.assert_array_equal(exact[0], x * y)
    assert exact[0].dtype == np.float64
    mixed = interpret(build.build(), [x.astype(np.float32), np.float64(y)])
    np.testing.assert_array_equal(mixed[0], x.astype(np.float32).astype(float) * y)
    weak = interpret(build.build(), [x.astype(np.float32), float(y)])  # a plain number
    np.testing.assert_array_equal(weak[0], np.array([1.0, np.inf], np.float32))
    assert weak.traffic == exact.traffic  # bytes are those of the declared dtypes


def test_float16_is_computed_in_float32_and_rounded_once_per_operator() -> None:
    kind = item(m, dtype=DType.float16)
    build = Builder()
    x = build.input("X", kind)
    build.output("at once", expression(build, arg(0) * 1000.0 / 1000.0, x))
    build.output(
        "in steps", expression(build, arg(0) / 1000.0, expression(build, arg(0) * 1000.0, x))
    )
    given = np.array([100.0, 3.14], np.float16)
    at_once, in_steps = interpret(build.build(), [given])
    np.testing.assert_array_equal(at_once, given)
    expected = [np.inf, np.float16(np.float16(np.float32(given[1]) * 1000) / np.float32(1000))]
    np.testing.assert_array_equal(in_steps, np.array(expected, np.float16))
    assert at_once.dtype == np.float16


@pytest.mark.parametrize("dtype", [DType.float16, DType.bfloat16])
@pytest.mark.parametrize("how", ["block", "reduce", "loop"])
def test_16_bit_sums_are_accumulated_in_float32(dtype: DType, how: str) -> None:
    build = Builder()
    x = build.input("X", array(k, dtype=dtype) if how != "block" else item(k, dtype=dtype))
    if how == "block":
        build.output("Y", build.one(BlockReduce(k, ADD), x))
    elif how == "loop":
        build.output(
            "Y",
            build.map(k, [x], [], lambda g, x: [(g.one(BlockReduce(k, ADD), x), Reduced(ADD))])[0],
        )
    else:
        (parts,) = build.map(k, [x], [], lambda g, x: [(g.one(BlockReduce(k, ADD), x), None)])
        build.output("Y", build.one(Reduce(k, ADD), parts))
    # one after the other in 16 bits, the sum would stop at 2048 or at 256
    tiles = {} if how == "block" else {"K": 1}
    (found,) = interpret(build.build(), [np.ones(4096, np.float32)], tiles)
    assert found == 4096


def test_dots_of_16_bit_floats_are_accumulated_in_float32() -> None:
    ones = np.ones((1, 4096), np.float16)
    (found,) = interpret(matmul(dtype=DType.float16), [ones, ones])
    assert found == 4096
    assert found.dtype == np.float16


def test_bfloat16_rounds_to_nearest_and_ties_to_even() -> None:
    step = 2.0**-7
    x = [1, 1 + step / 2, 1 + 1.5 * step, 1 + 0.51 * step, -1 - step / 2, 3.4e38, 1e-40, 0.0, -0.0]
    y = [1, 1, 1 + 2 * step, 1 + step, -1, np.inf, 1e-40, 0.0, -0.0]
    found = round_to_bfloat16(np.array(x, np.float32))
    np.testing.assert_allclose(found, np.array(y, np.float32), rtol=0, atol=5e-41)
    assert np.signbit(found[-1])
    (bits,) = found[6:7].view(np.uint32)
    assert bits & 0xFFFF == 0
    special = round_to_bfloat16(np.array([np.nan, np.inf, -np.inf], np.float32))
    np.testing.assert_array_equal(special, [np.nan, np.inf, -np.inf])
    loud = np.array([0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert np.isnan(round_to_bfloat16(loud)).all()


def test_float64_is_not_rounded_twice_on_its_way_to_bfloat16() -> None:
    tie = 1 + 2.0**-8  # halfway between 1 and the next bfloat16
    x = np.array([tie + 2.0**-40, -tie - 2.0**-40, 1 + 3 * 2.0**-8 - 2.0**-40, tie])
    expected = [1 + 2.0**-7, -1 - 2.0**-7, 1 + 2.0**-7, 1]
    np.testing.assert_array_equal(round_to_bfloat16(x), expected)
    assert round_to_bfloat16(np.array(tie + 2.0**-40)).shape == ()
    assert round_to_bfloat16(np.zeros((2, 0))).shape == (2, 0)


@pytest.mark.parametrize(
    ("dtype", "given", "problem"),
    [
        (DType.int32, np.array([2**31]), "holds 2147483648, which is no int32"),
        (DType.int32, np.array([-(2**31) - 1]), "holds -2147483649, which is no int32"),
        (DType.int64, np.array([2**63], np.uint64), "holds 9223372036854775808, which is no int64"),
        (DType.bool_, np.array([0, 2]), "holds 2, which is no bool"),
        (
            DType.int32,
            np.array([1.0]),
            "has float64 elements where int32 is declared; convert them first",
        ),
        (
            DType.bool_,
            np.array([1.0], np.float32),
            "has float32 elements where bool is declared; convert them first",
        ),
    ],
)
def test_integers_are_converted_with_a_check(dtype: DType, given: np.ndarray, problem: str) -> None:
    with pytest.raises(BadInput) as refusal:
        interpret(identity(array(m, dtype=dtype)), [given])
    assert str(refusal.value) == f"input X: {problem}"


def test_integers_and_booleans_convert_where_they_fit() -> None:
    (found,) = interpret(identity(array(m, dtype=DType.int32)), [np.array([1, -1], np.int64)])
    assert found.dtype == np.int32
    (found,) = interpret(identity(array(m, dtype=DType.bool_)), [[0, 1]])
    np.testing.assert_array_equal(found, [False, True])
    (found,) = interpret(identity(array(m)), [[True, False]])
    np.testing.assert_array_equal(found, np.array([1, 0], np.float32))


def test_nothing_warns_and_nans_flow() -> None:
    build = Builder()
    x = build.input("X", array(m))
    expr = call("log", arg(0)) / (arg(0) - arg(0))
    build.output("Y", each(build, [m], expr, x))
    build.output("Z", each(build, [m], cast(arg(0), DType.int32), x))
    build.output("W", each(build, [m], cast(call("exp", arg(0) * 100.0), DType.float16), x))
    x = np.array([-1.0, 0.0, 2.0, np.nan, np.inf], np.float32)
    with np.errstate(all="raise"):
        found = interpret(build.build(), [x])
    np.testing.assert_array_equal(found["Y"], [np.nan, -np.inf, np.inf, np.nan, np.nan])
    np.testing.assert_array_equal(found["W"], [0, 1, np.inf, np.nan, np.inf])
    scores = interpret(causal(), [np.full((2, 2), np.nan)])[0]
    np.testing.assert_array_equal(scores, [[np.nan, -np.inf], [np.nan, np.nan]])


def test_an_axis_named_like_another_ones_symbol() -> None:
    axis = Axis("NN", Symbol("length"))
    build = Builder()
    build.output("Y", build.input("X", item(n, Dim(axis))))
    traffic = meter(build.build(), {"NN": 3, "length": 5})
    assert traffic.loaded == 3 * 5 * 4
