"""The text of the Triton printer."""

import re
from collections.abc import Callable

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.array.arrays import Array, elementwise
from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.errors import NoKernel
from blockbuster_fusion.ir.expr import arg, call
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.analysis.product_types import ProductTypes
from blockbuster_fusion.nest.nest import Contract
from blockbuster_fusion.printers.triton.expressions import ExpressionWriter
from blockbuster_fusion.printers.triton.helpers import HELPERS
from blockbuster_fusion.printers.triton.kernel import kernels_in_triton, print_triton
from blockbuster_fusion.schedule.schedule import Schedule, scheduled
from helpers.triton_cases import nests

PRINTED = (
    "attention",
    "multi-head-attention",
    "grouped-query-attention",
    "layernorm-linear",
    "rmsnorm-swiglu-residual",
)


def last(name: str, dtype: DType = DType.float32, schedule: str = "plain") -> str:
    *_, nest = nests(name, dtype, schedule)
    return print_triton(nest)


@pytest.mark.parametrize("name", PRINTED)
def test_printed(name: str, golden: Callable[[str], None]) -> None:
    *_, nest = nests(name, DType.float32)
    helpers, _, kernels = kernels_in_triton(nest)
    golden("\n\n\n".join([f"helpers: {', '.join(sorted(helpers))}", *kernels]))


def test_helpers(golden: Callable[[str], None]) -> None:
    golden("\n".join(HELPERS.values()))


def test_a_constant_size_is_compiled_in() -> None:
    *_, nest = nests("multi-head-attention", DType.float32)
    source = print_triton(nest, ["DD"])
    assert "DD: tl.constexpr" in source
    assert "DD ** (-0.5)" in source
    assert "tl.rsqrt(tl.cast(DD, tl.float32))" in print_triton(nest)


def test_a_tile_for_a_dot_and_for_more_is_loaded_twice() -> None:
    source = last("layernorm-matmul", DType.bfloat16)
    assert "# loaded once more" in source
    assert 'eviction_policy="evict_last"' in source
    assert "_again" not in last("attention", DType.bfloat16)


def test_computed_operands_are_rounded_where_that_is_harmless() -> None:
    assert ".to(tl.bfloat16), " in last("attention", DType.bfloat16)
    assert ".to(tl.float16), " in last("attention", DType.float16)
    assert 'input_precision="tf32"' in last("layernorm-linear", DType.float16)
    assert 'input_precision="ieee"' in last("attention")


@pytest.mark.parametrize(
    ("stored", "dtype"),
    [
        ({"X": "bfloat16", "W": "bfloat16"}, "bfloat16"),
        ({"X": "bfloat16"}, "float32"),
        ({"W": "float16", "O": "float16"}, "float32"),
        ({"X": "bfloat16", "W": "float16"}, "float32"),
        ({"O": "bfloat16"}, "float32"),
    ],
)
def test_inputs_that_are_stored_as_float32_are_not_rounded(
    stored: dict[str, str], dtype: str
) -> None:
    request = Request(
        lambda X, W: {"O": X @ W}, ("M K", "K N"), target="cuda", dtype=stored, keeps_inputs=True
    )
    nest = choose(request)[0].scheduled()[0]
    (product,) = (s for s in nest.kernels[0].statements if isinstance(s, Contract))
    assert str(ProductTypes(nest.kernels[0]).of(product)) == dtype
    is_exact = dtype == "float32" and len(stored) < 2 + ("O" in stored)
    assert ('input_precision="ieee"' in print_triton(nest)) == is_exact


SHORT, EXACT = "tl.exp2(", "tl.exp("


def row_max(x: Array) -> Array:
    return bb.ops.max(x, 1, keepdims=True)


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (lambda X, Y: bb.ops.softmax(X, 1) + Y, {SHORT}),
        (lambda X, Y: bb.ops.exp(X - row_max(X)) + Y, {EXACT}),
        (lambda X, Y: bb.ops.exp(X - row_max(Y)), {EXACT}),
        (lambda X, Y: bb.ops.exp(X + row_max(-X)) + Y, {EXACT}),
        (lambda X, Y: bb.ops.softmax(X, 1) + bb.ops.exp(X * Y), {SHORT, EXACT}),
        (lambda X, Y: Y / (bb.ops.exp(X - Y) + 1), {SHORT}),
        (lambda X, Y: Y / (bb.ops.exp(X - Y) + 1e-3), {EXACT}),
        (lambda X, Y: Y / (bb.ops.exp(X - Y) + 1) * bb.ops.exp(X - Y), {SHORT, EXACT}),
    ],
)
def test_tiny_exponentials_vanish_where_they_do_not_matter(
    function: Callable[..., object], found: set[str]
) -> None:
    """Beside the largest of a row, which is 1, or added to a number."""
    request = Request(function, ("M N", "M N"), target="cuda", sizes={"N": 64}, capability=90)
    source = print_triton(choose(request)[0].scheduled()[0])
    assert {text for text in (SHORT, EXACT) if text in source} == found, source


STREAMING = "num_stages=STAGES, loop_unroll_factor=1 + (STAGES == 1)"
"""Loads run ahead in stages, or two at a time."""


@pytest.mark.parametrize(
    ("function", "ranges"),
    [
        (lambda X: bb.ops.sum(X, 0), [f"m_part, tl.cdiv(MM, BLOCK_M), 4, {STREAMING}"]),
        (
            lambda X: bb.ops.sum(bb.ops.max(X, 1), 0),
            ["m_part, tl.cdiv(MM, BLOCK_M), 4", f"0, tl.cdiv(64, BLOCK_N), {STREAMING}"],
        ),
        (
            lambda X: bb.ops.sum(bb.ops.max(X * X, 1), 0),
            ["m_part, tl.cdiv(MM, BLOCK_M), 4", "0, tl.cdiv(64, BLOCK_N)"],
        ),
    ],
)
def test_programs_take_shared_blocks_in_turns(function: Callable, ranges: list[str]) -> None:
    """Loads run ahead where blocks are only gathered; sums in runs count the turns."""
    program = bb.trace(function, X="M N:64")
    graph = bb.fuse(bb.lower(program)).snapshots[-1]
    source = print_triton(scheduled(graph, "sums", Schedule(split={"M": 4}), folds_late=True))
    first = source.split("@triton.jit")[-2]
    assert re.findall(r"tl.range\((.*)\):", first) == ranges
    assert "if m // 4 % run_m == run_m - 1:" in first


def test_softmax_masks_nothing_but_its_load_and_store() -> None:
    """Beyond the end of a row, -inf is neutral for the maximum, and its exponential for the sum."""

    def printed(function: Callable) -> str:
        program = bb.trace(function, X="M N")
        request = Request(program, target="cuda", sizes={"M": 64, "N": 1000}, capability=90)
        return print_triton(choose(request)[0].scheduled()[0])

    source = printed(lambda X: bb.ops.softmax(X))
    assert source.count('other=float("-inf")') == source.count("tl.load(") == 1
    assert "tl.where(in_n" not in source
    source = printed(lambda X: bb.ops.max(X, 1) + bb.ops.sum(X, 1))
    assert source.count("other=0.0") == source.count("tl.load(") == 1
    assert source.count("tl.where(in_n") == 1


def test_every_example_is_printed_as_python() -> None:
    printed = 0
    for name in bb.examples.EXAMPLES:
        try:
            source = print_triton(
                scheduled(bb.fuse(bb.lower(bb.examples.find(name))).snapshots[-1], name)
            )
        except NoKernel:
            continue
        compile(source, name, "exec")
        printed += 1
    assert printed >= 25


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda x: x**3, "whole_power(t1, 3)"),
        (lambda x: x**-0.5, "tl.rsqrt(t1)"),
        (lambda x: x**-2, "1 / whole_power(t1, 2)"),
        (lambda x: (x + 1) ** 0, "((t1 + 1) * 0 + 1)"),
        (lambda x: (x + 1) ** 2, "square(t1 + 1)"),
        (lambda x: call("pow", 10.0, x), "tl.exp2(t1 * 3.321928094887362)"),
        (bb.ops.tanh, "tanh(t1)"),
        (lambda x: call("erf", x) + 1, "one_plus_erf(t1)"),
        (lambda x: 1 - call("erf", x * 2), "one_plus_erf(-(t1 * 2))"),
        (lambda x: call("erf", x) - 1, "tl.erf(t1) - 1"),
        (lambda x: 2 + call("erf", x), "2 + tl.erf(t1)"),
        (
            lambda x: call("log1p", call("exp", x)),
            "tl.maximum(0.0, t1, propagate_nan=tl.PropagateNan.ALL)"
            " + log1p_of_share(tl.exp(-1.0 * tl.abs(t1)))",
        ),
        (lambda x: call("log1p", x), "libdevice.log1p(t1)"),
    ],
)
def test_functions(function: Callable, text: str) -> None:
    program = bb.trace(lambda X: elementwise(function, X), X="M N")
    snapshot = bb.fuse(bb.lower(program)).snapshots[-1]
    assert f"= {text}\n" in print_triton(scheduled(snapshot))


def test_logarithms_of_exponentials_of_whole_numbers_have_no_short_form() -> None:
    """A square of a whole number may overflow, so that its exponential is no share."""
    writer = ExpressionWriter(lambda axis: ("1", True))
    expr = call("log1p", call("exp", -(arg(0) * arg(0))))
    assert "log1p_of_share" in writer.write(expr, ["x"], [DType.float32])
    assert "libdevice.log1p" in writer.write(expr, ["x"], [DType.int32])
