"""Narrow numbers in memory, wide ones in computations."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.host.numbers import NumericMode
from blockbuster_fusion.ir.ops import Elementwise, Input, Value
from blockbuster_fusion.ir.types import DType, Type
from blockbuster_fusion.safety.pipeline import make_safe
from blockbuster_fusion.safety.storage import NARROW, computed_wide, stored_as
from helpers.rewriting import lowered
from helpers.running import assert_computes, inputs_for, ragged_tiles

Golden = Callable[[str], None]
ops = bb.ops
ROUNDING = {DType.bfloat16: 2.0**-8, DType.float16: 2.0**-11}
narrow = pytest.mark.parametrize("dtype", NARROW, ids=str)


def rounded(inputs: dict[str, np.ndarray], dtype: DType) -> dict[str, np.ndarray]:
    """Inputs that a dtype holds, as float32."""
    numbers = NumericMode(exact=False)
    return {name: numbers.rounded(np.float32(x), dtype) for name, x in inputs.items()}


def interior(graph: bb.Graph) -> set[DType]:
    """The dtypes of the lists between the parts of a program."""
    results = {out.value for out in graph.outputs}
    return {
        kind.dtype
        for i, node in graph.nodes.items()
        for port, kind in enumerate(node.types)
        if kind.is_buffered and not isinstance(node.op, Input) and Value(i, port) not in results
    }


def computed(graph: bb.Graph) -> Iterator[Type]:
    """The items that a program computes, other than by casts."""
    for _, inner in graph.walk():
        for node in inner.nodes.values():
            is_cast = isinstance(node.op, Elementwise) and node.op.expr.op == "cast"
            if not is_cast and not isinstance(node.op, Input):
                yield from (kind for kind in node.types if not kind.is_list)


def error(graph: bb.Graph, program: bb.ArrayProgram, dtype: DType) -> float:
    """The error against float64, on ragged tiles and inputs that the dtype holds."""
    inputs = rounded(inputs_for(program), dtype)
    found = bb.interpret(graph, inputs, ragged_tiles(graph))
    expected = bb.evaluate(program, {name: np.float64(x) for name, x in inputs.items()})
    return max(
        float(np.abs(np.float64(found[name]) - wanted).max() / np.abs(wanted).max())
        for name, wanted in expected.items()
    )


# ---------------------------------------------------------------- stored_as


@narrow
def test_loads_are_widened_and_stores_rounded(dtype: DType, golden: Golden) -> None:
    graph = lowered(lambda X, W: ops.relu(ops.tanh(X) @ W), X="M K", W="K N")
    golden(bb.show(stored_as(graph, dtype)))


@narrow
def test_what_lists_are_stored_as(dtype: DType) -> None:
    """Between the parts as they are computed: nothing is read back from a narrower copy."""
    made = stored_as(bb.lower(bb.examples.attention()), dtype)
    bb.verify(made)
    assert {made.type(Value(i)).dtype for i in made.inputs} == {dtype}
    assert {made.type(out.value).dtype for out in made.outputs} == {dtype}
    assert interior(made) == {DType.float32}
    assert interior(stored_as(made, dtype)) == {DType.float32}


def test_lists_between_may_be_chosen() -> None:
    graph = bb.lower(bb.examples.attention())
    made = stored_as(graph, DType.float16, inside=DType.bfloat16)
    assert interior(made) == {DType.bfloat16}
    assert interior(stored_as(graph, DType.float16, inside=DType.float16)) == {DType.float16}


@narrow
def test_it_computes_in_float32(dtype: DType) -> None:
    """But for sums of lists, which are as wide as the list."""
    for graph in bb.fuse(bb.examples.attention()).fused:
        made = stored_as(graph, dtype)
        assert not {kind.dtype for kind in computed(made)} & set(NARROW)


@pytest.mark.parametrize("dtype", [DType.float32, DType.float64])
def test_wide_numbers_stay(dtype: DType) -> None:
    graph = bb.lower(bb.examples.attention())
    assert stored_as(graph, dtype) is graph


def test_what_is_no_float32_stays() -> None:
    def program(X, mask, Y):
        return {"O": ops.where(mask, X, 0.0), "P": Y * 2}

    graph = lowered(
        program,
        X="M N",
        mask=bb.array("M N", dtype="bool"),
        Y=bb.array("M N", dtype="float64"),
    )
    made = stored_as(graph, DType.bfloat16)
    assert [str(made.type(Value(i)).dtype) for i in made.inputs] == ["bfloat16", "bool", "float64"]
    assert [str(made.type(out.value).dtype) for out in made.outputs] == ["bfloat16", "float64"]


@narrow
def test_results_without_axes_are_rounded(dtype: DType) -> None:
    made = stored_as(lowered(lambda X, y: (X * y).sum(), X="M N", y=()), dtype)
    bb.verify(made)
    assert {made.type(out.value) for out in made.outputs} == {Type((), (), dtype)}


@narrow
def test_other_operators_get_what_they_declare(dtype: DType) -> None:
    """A misc operator may compute in any dtype; its result is stored like other lists."""
    made = stored_as(lowered(lambda X: ops.exp(ops.sort(X, axis=1)), X="M N"), dtype)
    bb.verify(made)
    x = np.float32(np.random.default_rng(0).integers(-2, 3, (3, 4)) / 4)
    (found,) = bb.interpret(made, {"X": x})
    np.testing.assert_allclose(np.float32(found), np.exp(np.sort(x, 1)), rtol=ROUNDING[dtype])


@narrow
@pytest.mark.parametrize(
    "name", ["attention", "layernorm-matmul", "rmsnorm-swiglu-residual", "self-attention", "lora"]
)
def test_results_are_near_those_in_float64(name: str, dtype: DType) -> None:
    """Each list in memory costs a rounding; computing costs none."""
    program = bb.examples.find(name)
    for graph in bb.fuse(program).fused:
        stored = stored_as(graph, dtype)
        lists = 1 + sum(kind.is_buffered for node in graph.nodes.values() for kind in node.types)
        assert error(make_safe(stored).graph, program, dtype) <= 2 * lists * ROUNDING[dtype]


def test_rounding_is_all_that_it_does() -> None:
    """In exact mode nothing is rounded: the results are the same."""
    for name in ("attention", "layernorm-linear", "self-attention"):
        program = bb.examples.find(name)
        inputs = inputs_for(program)
        expected = bb.evaluate(program, inputs)
        for graph in bb.fuse(program).fused:
            for dtype in NARROW:
                assert_computes(stored_as(graph, dtype), inputs, expected)


# ---------------------------------------------------------------- computed_wide


def attention_in(dtype: DType) -> bb.ArrayProgram:
    """Attention over arrays of some dtype."""

    def program(Q, KT, VT):
        return {"O": ops.softmax((Q @ KT.T) * ops.size(Q, 1) ** -0.5) @ VT.T}

    return bb.trace(program, Q="M D", KT="N D", VT="L N", dtype=dtype)


@narrow
def test_narrow_programs_compute_in_float32(dtype: DType) -> None:
    graph = bb.lower(attention_in(dtype))
    assert {kind.dtype for kind in computed(graph)} == {dtype}
    for raw in bb.fuse(graph).fused:
        made = computed_wide(raw)
        bb.verify(made)
        assert {kind.dtype for kind in computed(made)} == {DType.float32}
        assert [made.type(Value(i)) for i in made.inputs] == [
            raw.type(Value(i)) for i in raw.inputs
        ]
        assert [made.type(o.value) for o in made.outputs] == [
            raw.type(o.value) for o in raw.outputs
        ]
        assert interior(made) == interior(raw)


@narrow
def test_a_narrow_program(dtype: DType, golden: Golden) -> None:
    golden(bb.show(computed_wide(bb.fuse(attention_in(dtype)).fused[-1])))


@narrow
def test_a_narrow_program_is_safe(dtype: DType) -> None:
    program = attention_in(dtype)
    for graph in bb.fuse(program).snapshots:
        assert error(graph, program, dtype) <= 4 * ROUNDING[dtype]
        huge = rounded({k: x * 100 for k, x in inputs_for(program).items()}, dtype)
        (found,) = bb.interpret(graph, huge)
        assert np.isfinite(found).all()


@narrow
def test_results_without_axes_keep_their_dtype(dtype: DType) -> None:
    graph = lowered(lambda X: {"s": X.sum(), "Y": X * 2}, X=bb.array("M N", dtype=dtype))
    made = computed_wide(graph)
    bb.verify(made)
    assert [made.type(o.value) for o in made.outputs] == [
        graph.type(o.value) for o in graph.outputs
    ]


@narrow
def test_it_is_done_once(dtype: DType) -> None:
    """A wide program is returned as it is, with the sums of lists that stay narrow."""
    graphs = [
        bb.lower(attention_in(dtype)),
        *bb.fuse(attention_in(dtype)).fused,
        lowered(lambda X: X.sum(), X=bb.array("M N", dtype=dtype)),
    ]
    for graph in graphs:
        made = computed_wide(graph)
        assert made is not graph
        assert computed_wide(made) is made


@narrow
def test_what_is_stored_narrow_is_wide_already(dtype: DType) -> None:
    """Blocks that are picked from a list, for a pivot, are widened too."""
    for name in ("attention", "layernorm-matmul", "post-norm-linear"):
        for graph in bb.fuse(bb.examples.find(name)).fused:
            stored = stored_as(graph, dtype)
            assert computed_wide(stored) is stored
            safe = make_safe(stored).graph
            assert computed_wide(safe) is safe


def test_wide_programs_come_back_as_they_are() -> None:
    for dtype in (DType.float32, DType.float64):
        graph = bb.lower(attention_in(dtype))
        assert computed_wide(graph) is graph


@narrow
def test_explicit_casts_stay(dtype: DType) -> None:
    """A value that a program rounds on purpose is rounded."""
    graph = lowered(lambda X: ops.cast(ops.cast(X * 3, dtype), "float32") * 2, X="M N")
    x = np.float32(np.random.default_rng(1).standard_normal((3, 4)))
    numbers = NumericMode(exact=False)
    (found,) = bb.interpret(computed_wide(graph), {"X": x})
    np.testing.assert_array_equal(found, numbers.rounded(x * 3, dtype) * 2)
