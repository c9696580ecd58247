"""Lowering: the maps of a program, the order of its loops, and the axes inside its blocks."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blockbuster_fusion as bb
from blockbuster_fusion import ops
from blockbuster_fusion.array.lower import expand_program, loop_order, packed_axes
from blockbuster_fusion.array.program import (
    ArrayInput,
    ArrayOutput,
    ArrayProgram,
    ArrayType,
    Operator,
)
from blockbuster_fusion.errors import IllTyped, UnknownOperator
from blockbuster_fusion.ir.axis import Axis, Symbol
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import Input, Map, Misc, Node, Reduce, Rename
from blockbuster_fusion.ir.paper_names import ItemText, write
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.tools import examples
from helpers.programs import random_inputs, random_program
from helpers.running import ragged_tiles

Check = Callable[..., bb.ArrayProgram]
Golden = Callable[[str], None]


def compact(graph: Graph) -> str:
    """A line for each node of the graph, maps with their bodies: `M{N{D{dot(x,y)}; ⊕D}}`."""
    nodes = [node for node in graph.nodes.values() if not isinstance(node.op, Input)]
    return "\n".join(_compact(graph, node) for node in nodes)


def _compact(graph: Graph, node: Node) -> str:
    match node.op:
        case Map(dim, body):
            return f"{dim}{{{compact(body).replace(chr(10), '; ')}}}"
        case Reduce(dim, combiner):
            return f"⊕{dim}" if combiner.name == "add" else f"{combiner}{dim}"
        case Rename(old, new):
            return f"rename {old}->{new}"
        case Misc():
            return f"{node.op.namespace}.{node.op.name}"
        case op if not node.inputs:
            return f"index {op.dim}"
        case op:
            types = [graph.type(v) for v in node.inputs]
            names = [ItemText("xyzuvw"[i], t.axes) for i, t in enumerate(types)]
            return write(op, names).text


PAPER = {
    "attention": [
        "M{N{D{dot(x,y)}; ⊕D}}",
        "M{N{x*(DD**-0.5)}}",
        "M{N{exp(x)}}",
        "M{N{row_sum(x)}; ⊕N}",
        "M{1/x}",
        "M{N{row_scale(x,y)}}",
        "M{L{N{dot(x,y)}; ⊕N}}",
    ],
    "layernorm-matmul": [
        "M{K{row_sum(x)}; ⊕K}",
        "M{-x/KK}",
        "M{K{row_shift(x,y)}}",
        "M{K{x**2}}",
        "M{K{row_sum(x)}; ⊕K}",
        "M{(x/KK-y**2)**(-0.5)}",
        "M{K{row_scale(x,y)}}",
        "M{N{K{dot(x,y)}; ⊕K}}",
    ],
    "rmsnorm-swiglu": [
        "M{D{x**2}}",
        "M{D{row_sum(x)}; ⊕D}",
        "M{1/sqrt(x)}",
        "M{D{row_scale(x,y)}}",
        "M{K{D{dot(x,y)}; ⊕D}}",
        "M{K{x/(1+exp(-x))}}",
        "M{K{D{dot(x,y)}; ⊕D}}",
        "M{K{mul(x,y)}}",
        "M{N{K{dot(x,y)}; ⊕K}}",
    ],
}


@pytest.mark.parametrize("name", PAPER)
def test_the_maps_of_the_papers_examples(name: str) -> None:
    lines = compact(bb.lower(examples.find(name))).splitlines()
    assert lines == PAPER[name]
    assert len(lines) == {"attention": 7, "layernorm-matmul": 8, "rmsnorm-swiglu": 9}[name]


@pytest.mark.parametrize("name", examples.EXAMPLES)
def test_the_maps_of_every_example(name: str, golden: Golden) -> None:
    golden(compact(bb.lower(examples.find(name))))


def test_elementwise_operators_are_neither_split_nor_composed() -> None:
    def program(x: Any) -> Any:
        whole = ops.elementwise(lambda t: ops.exp(-t) * 2 + t**2, x)
        return ops.sqrt(ops.exp(whole)) + 1

    assert compact(bb.lower(bb.trace(program, "M K"))).splitlines() == [
        "M{K{exp(-x)*2+x**2}}",
        "M{K{exp(x)}}",
        "M{K{sqrt(x)}}",
        "M{K{x+1}}",
    ]


def test_what_no_output_needs_is_left_out() -> None:
    def program(x: Any, y: Any) -> Any:
        ops.softmax(x @ y)
        return x.sum(1)

    graph = bb.lower(bb.trace(program, "M K", "K N"))
    assert compact(graph) == "M{K{row_sum(x)}; ⊕K}"
    assert [graph.nodes[i].op.name for i in graph.inputs] == ["x", "y"]


@pytest.mark.parametrize(
    ("fn", "specs", "lines"),
    [
        (lambda x: x.sum(), ["M K"], ["M{K{row_sum(x)}; ⊕K}", "M{sum(x)}", "⊕M"]),
        (lambda x: x.max(0), ["M K"], ["K{M{col_max(x)}; maxM}"]),
        (
            lambda x: x.mean((0, 1)),
            ["M K"],
            ["M{K{row_sum(x)}; ⊕K}", "M{sum(x)}", "⊕M", "x/(KK*MM)"],
        ),
        (
            lambda x: (x > 0).sum(1),
            ["M K"],
            ["M{K{x>0}}", "M{K{int64(x)}}", "M{K{row_sum(x)}; ⊕K}"],
        ),
        (lambda x: x @ x.T, ["M K"], ["rename M->M_1", "M{M_1{K{dot(x,y)}; ⊕K}}"]),
        (lambda x, y: x @ y, ["B M K", "B K N"], ["B{M{N{K{dot(x,y.T)}; ⊕K}}}"]),
        (lambda x: ops.sort(x), ["M K"], ["numpy.sort"]),
        (lambda x: x * 2 + 1, [""], ["x*2", "x+1"]),
        (lambda x: x, ["M K"], []),
        (
            lambda x: ops.where(ops.index(x, 1) <= ops.index(x, 0), x, 0.0),
            ["M K"],
            ["index K", "index M", "M{K{y<=x}}", "M{K{where(x,y,0.0)}}"],
        ),
        # positions are not in memory: an output of them is stored, and another name costs nothing
        (lambda x: ops.index(x, 0), ["M K"], ["index M", "M{x}"]),
        (
            lambda x: ops.index(x, 0) - ops.index(x, 0).T,
            ["M K"],
            ["index M", "index M_1", "M{M_1{outer_add(x,-y)}}"],
        ),
    ],
)
def test_the_maps_of_small_programs(fn: Any, specs: list[str], lines: list[str]) -> None:
    graph = bb.lower(bb.trace(fn, *specs))
    assert sorted(compact(graph).splitlines()) == sorted(lines)


# ---------------------------------------------------------------- loop order


def nests(graph: Graph) -> list[list[str]]:
    """For each top-level map the loops inside one another, outermost first."""
    found = []
    for _, outermost in graph.maps():
        loops, inner = [], [outermost]
        while inner:
            loops.append(inner[0].dim.name)
            inner = [op for _, op in inner[0].body.maps()]
        found.append(loops)
    return found


def order_of(program: ArrayProgram) -> list[str]:
    steps, _ = expand_program(program)
    order = loop_order(program, steps)
    return [str(axis) for axis in sorted(order, key=order.__getitem__)]


def test_loops_run_in_one_order_over_the_program() -> None:
    assert order_of(examples.attention()) == ["M", "L", "N", "D"]
    assert order_of(examples.rmsnorm_swiglu()) == ["M", "N", "K", "D"]
    assert order_of(examples.multi_head_attention())[:2] == ["B", "H"]


def test_keys_are_normalised_row_by_row() -> None:
    """Loops over reduced axes are inner loops: K-norm's N precedes D, though D appears first."""
    order = order_of(examples.qk_norm_attention())
    assert order.index("N") < order.index("D")
    program = bb.trace(lambda q, k: q @ ops.rmsnorm(k.T, axis=0), "M D", "N D")
    assert all(
        nest.index("N") < nest.index("D") for nest in nests(bb.lower(program)) if "D" in nest
    )


def test_batch_axes_come_first() -> None:
    program = bb.trace(lambda x, w: ops.softmax(x @ w), "M B K", "K N", batch="B")
    assert order_of(program)[0] == "B"
    assert all(nest[0] == "B" for nest in nests(bb.lower(program)))


@pytest.mark.parametrize("seed", range(60))
def test_every_nest_of_a_random_program_keeps_the_order(seed: int) -> None:
    program = random_program(seed)
    graph = bb.lower(program)
    bb.verify(graph)
    place = {name: at for at, name in enumerate(order_of(program))}
    for nest in nests(graph):
        parallel = [place[name] for name in nest]
        reduced = parallel != sorted(parallel)
        assert parallel[: -1 if reduced else None] == sorted(parallel[: -1 if reduced else None])
    inputs = random_inputs(program, seed)
    whole = bb.evaluate(program, inputs)
    for name, blocks in bb.interpret(graph, inputs, ragged_tiles(graph)).items():
        np.testing.assert_allclose(blocks, whole[name], rtol=1e-9, atol=1e-9)


def test_the_operands_of_a_mask_are_so_ordered_that_its_block_is_in_loop_order() -> None:
    for fn in (
        lambda x: ops.index(x, 0) >= ops.index(x, 1),
        lambda x: ops.index(x, 1) <= ops.index(x, 0),
    ):
        graph = bb.lower(bb.trace(fn, "M K"))
        (value,) = (out.value for out in graph.outputs)
        assert [d.name for d in graph.type(value).items] == ["M", "K"]


# ---------------------------------------------------------------- packing


def packed_names(program: ArrayProgram) -> set[str]:
    return {str(a) for a in packed_axes(program, expand_program(program)[0])}


def test_rows_and_columns_lie_in_blocks_and_batches_do_not() -> None:
    assert packed_names(examples.attention()) == {"M", "N", "D", "L"}
    assert packed_names(examples.multi_head_attention()) == {"M", "N", "D", "L"}
    assert packed_names(examples.grouped_query_attention()) == {"M", "N", "D", "L"}
    assert packed_names(bb.trace(lambda x: x + 1, "B H M K")) == {"M", "K"}
    assert packed_names(bb.trace(lambda x, w: x @ w, "B H M K", "K N")) == {"M", "K", "N"}
    assert packed_names(bb.trace(lambda x: x.sum(0), "B H M K")) == {"B", "K"}


def test_pointwise_programs_pack_more_axes_while_these_are_short() -> None:
    """Blocks of a head's halves alone would be 64 elements for a program."""
    assert packed_names(bb.trace(lambda x: x + 1, "B M:32 K:2 N:32")) == {"M", "K", "N"}
    assert packed_names(bb.trace(lambda x: x + 1, "B M:32 K:64 N:32")) == {"K", "N"}
    assert packed_names(bb.trace(lambda x: x + 1, "B M:4 K N:2")) == {"K", "N"}
    assert packed_names(bb.trace(lambda x: x.sum(-1), "B M:32 K:2 N:32")) == {"K", "N"}


def test_a_batch_axis_is_never_packed(check: Check) -> None:
    for fn in (
        lambda x: x + 1.0,
        lambda x: ops.softmax(x),
        lambda x: x @ x.swapaxes(-1, -2),
        lambda x: ops.layernorm(x) * x.sum(-1, keepdims=True),
        lambda x: x.T,
        lambda x: ops.cumsum(x, 1),
        lambda x: x[:, None] + x,  # M is batch under its other name as well
    ):
        for batch in ("M", "M K"):
            try:
                program = bb.trace(fn, "M K D", batch=batch)
            except IllTyped:
                continue
            assert packed_names(program).isdisjoint(batch.split())
            for dim in bb.lower(program).dims:
                assert dim.packed != (dim.name.partition("_")[0] in batch.split())
    check(lambda x: x[:, None] + x, "M K D", batch="M")
    check(lambda x: x @ x.swapaxes(-1, -2) @ x, "M K D", batch="M")


def test_a_batch_axis_may_be_named_in_a_matmul_that_would_pack_it(check: Check) -> None:
    program = check(lambda x, w: x @ w, "M K", "K N", batch="M")
    assert packed_names(program) == {"K", "N"}


def test_an_axis_is_packed_under_all_its_names(check: Check) -> None:
    program = check(lambda x: x @ x.transpose(1, 2, 0), "M:4 K:4 N:4")
    names = packed_names(program)
    assert {"M", "M_1", "K"} <= names


def test_a_batch_that_is_reduced_is_refused_however_the_program_was_made() -> None:
    m, k = Axis("M", Symbol("MM")), Axis("K", Symbol("KK"))
    kind = ArrayType((m, k), DType.float32)
    softmax = Operator("softmax", (0,), (("axis", k),), kind)
    outputs = (ArrayOutput("O", 1, (m, k)),)
    program = ArrayProgram("p", (ArrayInput("x", kind),), (softmax,), outputs, frozenset({k}))
    with pytest.raises(IllTyped, match="p: the batch axis K is summed or contracted over"):
        bb.lower(program)


# ---------------------------------------------------------------- programs of every size and dtype


def test_scalars_and_programs_without_loops(check: Check) -> None:
    check(lambda x: ops.exp(x) * 2, "", reference=lambda x: np.exp(x) * 2, inputs=[np.float64(0.3)])
    check(lambda x, y: (x + y, x * y, -x), "", "", inputs=[np.float64(2), np.array(3.0)])
    check(
        lambda x, v: (v * x, v.sum() * x, x - v.max()), "", "M", inputs=[np.float64(2), np.ones(5)]
    )
    graph = bb.lower(bb.trace(lambda x: x + 1, ""))
    assert bb.interpret(graph, [2])["O"] == 3


@pytest.mark.parametrize("empty", ["M", "K", "N", "MK", "MN", "KN", "MKN"])
def test_empty_arrays(check: Check, empty: str) -> None:
    sizes = dict.fromkeys(empty, 0)
    check(lambda x, y: x @ y, "M K", "K N", sizes=sizes)
    check(lambda x, y: (x @ y).sum(), "M K", "K N", sizes=sizes)
    check(lambda x: (x.sum(), x.sum(1), x.prod(0), x.mean(1), x * 2.0, x.T), "M K", sizes=sizes)
    check(lambda x: (np.sort(x), np.cumsum(x, 0), x @ x.T), "M K", sizes=sizes)
    check(lambda x, y: x[:, None] - y[None], "M", "N", sizes=sizes)
    check(
        lambda x: (x.max(1), x.min(), ops.index(x, 0)),
        *("M K",),
        reference=lambda x: (
            x.max(1, initial=-np.inf),
            x.min(initial=np.inf),
            np.arange(x.shape[0]),
        ),
        sizes=sizes,
    )
    check(lambda x, y: x @ y, "B M K", "B K N", sizes=sizes | {"B": 0})
    nothing = {"M": 0, "K": 7} | sizes
    for fn in (ops.softmax, ops.log_softmax, ops.rmsnorm, ops.layernorm):
        check(fn, "M K", reference=lambda x: x, sizes=nothing)
        check(lambda x, fn=fn: fn(x, axis=0), "M K", reference=lambda x: x, sizes=nothing)


def test_extent_0_in_the_spec(check: Check) -> None:
    check(lambda x, y: (x @ y, x.sum(0), x + 1.0), (3, 0), (0, 4))
    check(lambda x, y: x + y, (0, 4), (1, 4))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -0.0, 1e-320, 1e300])
def test_constants_keep_their_value(check: Check, value: float) -> None:
    def program(x: Any) -> Any:
        return (
            x + value,
            value * x,
            np.where(x > 0, x, value),
            np.where(x > 0, value, 0.5),
            np.maximum(x, value),
            x * np.float64(value),
        )

    check(program, "M K")
    graph = bb.lower(bb.trace(program, "M K"))
    again = bb.from_text(bb.to_text(graph))
    x = np.linspace(-1, 1, 12).reshape(3, 4)
    for first, second in zip(bb.interpret(graph, [x]), bb.interpret(again, [x]), strict=True):
        np.testing.assert_array_equal(first, second)
        assert (np.signbit(first) == np.signbit(second)).all()


@pytest.mark.parametrize(
    ("left", "right", "result"),
    [
        ("float16", "float16", "float16"),
        ("float16", "bfloat16", "float32"),
        ("bfloat16", "float32", "float32"),
        ("float16", "float64", "float64"),
        ("int32", "int64", "int64"),
        ("int32", "float16", "float16"),
        ("bool", "int32", "int32"),
        ("bool", "bfloat16", "bfloat16"),
        ("bool", "bool", "bool"),
    ],
)
def test_dtypes_are_promoted(left: str, right: str, result: str) -> None:
    specs = [bb.array("M K", dtype=left), bb.array("K N", dtype=right)]
    program = bb.trace(lambda x, y: x @ y, *specs)
    graph = bb.lower(program)
    assert str(program.type(program.outputs[0].value).dtype) == result
    assert str(graph.type(graph.outputs[0].value).dtype) == result
    vectors = [bb.array("K", dtype=left), bb.array("K", dtype=right)]
    graph = bb.lower(bb.trace(lambda x, y: (x * y, ops.where(x == y, x, y)), *vectors))
    assert [str(graph.type(out.value).dtype) for out in graph.outputs] == [result] * 2


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_numbers_do_not_widen(dtype: str) -> None:
    program = bb.trace(lambda x: ops.gelu(x * 2 + 0.5) ** 2, "M", dtype=dtype)
    assert {str(op.type.dtype) for op in program.operators} == {dtype}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int32", "bool"])
def test_arrays_of_every_dtype_compute_the_same_whole_and_in_blocks(dtype: str) -> None:
    def program(x: Any, y: Any) -> Any:
        z = x.astype("float32") * 0.5
        return (x * y + x, z, z.astype("int32"), z.astype("float16") + 1, x > y, x @ y.T)

    rng = np.random.default_rng(0)
    given = [rng.integers(-3, 4, (5, 7)) for _ in range(2)]
    numpy_dtype = np.float32 if dtype == "bfloat16" else np.dtype(dtype)
    inputs = {name: x.astype(numpy_dtype) for name, x in zip("xy", given, strict=True)}
    traced = bb.trace(program, "M K", "M K", dtype=dtype)
    whole = bb.evaluate(traced, inputs)
    blocks = bb.interpret(bb.lower(traced), inputs, tiles={"M": 2, "K": 3})
    for name, found in blocks.items():
        assert found.dtype == whole[name].dtype
        np.testing.assert_array_equal(found, whole[name])
    assert whole["O3"].dtype == np.int32


# ---------------------------------------------------------------- long programs


def test_long_programs() -> None:
    """A chain of 2,000 operators is traced, lowered, printed and run, with no recursion."""

    def chain(x: Any) -> Any:
        for i in range(2000):
            x = ops.sin(x) if i % 2 else x + 1
        return x

    program = bb.trace(chain, "M K")
    graph = bb.lower(program)
    bb.verify(graph)
    assert len(program.operators) == len(list(graph.maps())) == 2000
    assert str(program).count("\n") == 2001
    assert bb.show(graph).count("forall m in range(M):") == 2000
    assert bb.from_text(bb.to_text(graph)).digest == graph.digest
    x = np.ones((2, 3))
    np.testing.assert_allclose(
        bb.interpret(graph, [x], {"M": 1})["O"], bb.evaluate(program, {"x": x})["O"]
    )


def test_an_expression_of_many_parts() -> None:
    def program(x: Any) -> Any:
        def deep(t: Any) -> Any:
            for _ in range(3000):
                t = t * t
            return t

        return ops.elementwise(deep, x)

    graph = bb.lower(bb.trace(program, "M"))
    assert bb.interpret(graph, [np.ones(3)])["O"].tolist() == [1, 1, 1]
    assert str(bb.trace(program, "M")).count("an expression of 3001 parts") == 1


def test_programs_with_many_axes_take_no_longer_than_they_must() -> None:
    """Choosing a loop order for n axes once took n³ steps: a minute for this program."""

    def chain(x: Any, *weights: Any) -> Any:
        for weight in weights:
            x = x @ weight
        return x

    start = time.perf_counter()
    graph = bb.lower(bb.trace(chain, *[(3, 3)] * 600))
    assert len(list(graph.maps())) == 599
    assert time.perf_counter() - start < 20


# ---------------------------------------------------------------- programs made by hand


def by_hand(name: str, *operands: int, **attributes: Any) -> ArrayProgram:
    m, k, n = (Axis(a, Symbol(a * 2)) for a in "MKN")
    kinds = [ArrayType((m, k), DType.float32), ArrayType((n,), DType.float32)]
    inputs = tuple(ArrayInput(label, kind) for label, kind in zip("xy", kinds, strict=True))
    axes = {a.name: a for a in (m, k, n)}
    given = tuple((key, axes.get(value, value)) for key, value in attributes.items())
    made = Operator(name, operands, given, kinds[0])
    return ArrayProgram("p", inputs, (made,), (ArrayOutput("O", 2, (m, k)),))


def test_what_does_not_fit_the_table_is_refused() -> None:
    with pytest.raises(
        UnknownOperator, match="no operator 'nope' in the lookup table: register it"
    ):
        bb.lower(by_hand("nope", 0))
    with pytest.raises(IllTyped, match=r"add over N: float32\[M K\] has no such axis"):
        bb.lower(by_hand("softmax", 0, axis="N"))
    with pytest.raises(IllTyped, match=r"the right operand float32\[N\] has no such axis"):
        bb.lower(by_hand("matmul", 0, 1, axis="K"))
    with pytest.raises(IllTyped, match=r"rename M->K: float32\[M K\] has K already"):
        bb.lower(by_hand("rename", 0, old="M", new="K"))
