"""The lookup table: the contents of its entries, and the registration of new ones."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import blockbuster_fusion as bb
from blockbuster_fusion import ops
from blockbuster_fusion.array.primitives import (
    AxisPositions,
    Contraction,
    External,
    Pointwise,
    Primitives,
    Ref,
    Renaming,
    RunningSummary,
    Summary,
    TableLookup,
)
from blockbuster_fusion.array.program import ArrayType
from blockbuster_fusion.array.table import TABLE, expand, operator
from blockbuster_fusion.errors import IllTyped
from blockbuster_fusion.ir.axis import Axis, Symbol
from blockbuster_fusion.ir.combiner import ADD, MAX, MIN, MUL, Combiner
from blockbuster_fusion.ir.expr import arg, call
from blockbuster_fusion.ir.types import DType
from helpers.running import ragged_tiles

Check = Callable[..., bb.ArrayProgram]

M, K, N = (Axis(name, Symbol(name * 2)) for name in "MKN")


@pytest.fixture(autouse=True)
def _own_table() -> Iterator[None]:
    """Removes the operators that a test registers."""
    before = dict(TABLE)
    yield
    TABLE.clear()
    TABLE.update(before)


def array(*axes: Axis, dtype: DType = DType.float32) -> ArrayType:
    return ArrayType(axes, dtype)


def written(name: str, /, *kinds: ArrayType, **attributes: Any) -> list[str]:
    """The primitives of an operator, in words."""
    p = Primitives()
    operands = [p.given(f"x{i}", kind) for i, kind in enumerate(kinds)]
    expand(p, name, operands, attributes)
    words = []
    for step in p.steps[len(kinds) :]:
        match step.primitive:
            case Pointwise(expr):
                words.append(str(expr))
            case Summary(axis, combiner):
                words.append(f"{combiner} over {axis}")
            case RunningSummary(axis, combiner):
                words.append(f"scan {combiner} along {axis}")
            case Contraction(axis):
                words.append(f"contract {axis}")
            case TableLookup(axis):
                words.append(f"look up along {axis}")
            case AxisPositions(axis):
                words.append(f"positions of {axis}")
            case Renaming(old, new):
                words.append(f"{old} is {new}")
            case External(_, external):
                words.append(f"run {external}")
    return words


ENTRIES: dict[str, tuple[list[ArrayType], dict[str, Any], list[str]]] = {
    "elementwise": ([array(M, K)], {"expr": call("exp", arg(0))}, ["exp(x0)"]),
    "matmul": ([array(M, K), array(K, N)], {"axis": K}, ["contract K"]),
    "reduce": ([array(M, K)], {"axis": K, "combiner": MAX}, ["max over K"]),
    "scan": ([array(M, K)], {"axis": K, "combiner": ADD}, ["scan add along K"]),
    "mean": ([array(M, K)], {"axes": (K, M)}, ["add over K", "add over M", "x0/(KK*MM)"]),
    "softmax": ([array(M, K)], {"axis": K}, ["exp(x0)", "add over K", "1/x0", "x0*x1"]),
    "log_softmax": ([array(M, K)], {"axis": K}, ["exp(x0)", "add over K", "-log(x0)", "x0+x1"]),
    "rmsnorm": (
        [array(M, K), array(K)],
        {"axis": K, "eps": 1e-6},
        ["x0**2", "add over K", "(x0/KK+1e-06)**(-0.5)", "x0*x1", "x0*x1"],
    ),
    "layernorm": (
        [array(M, K), array(K)],
        {"axis": K, "eps": 1e-5, "weight": False, "bias": True},
        [
            "add over K",
            "-x0/KK",
            "x0+x1",
            "x0**2",
            "add over K",
            "(x0/KK+1e-05)**(-0.5)",
            "x0*x1",
            "x0+x1",
        ],
    ),
    "take": ([array(K, N), array(M, dtype=DType.int64)], {"axis": K}, ["look up along K"]),
    "index": ([], {"axis": K}, ["positions of K"]),
    "rename": ([array(M, K)], {"old": K, "new": N}, ["K is N"]),
    "misc": (
        [array(M, K)],
        {
            "namespace": "numpy",
            "name": "sort",
            "arguments": (),
            "layouts": ((M, K),),
            "result": array(M, K),
        },
        ["run sort"],
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_what_each_entry_records(name: str) -> None:
    kinds, attributes, words = ENTRIES[name]
    assert written(name, *kinds, **attributes) == words


def test_sums_of_bools_and_of_int32_are_sums_of_int64() -> None:
    for dtype in (DType.bool_, DType.int32):
        for combiner in (ADD, MUL):
            words = written("reduce", array(M, K, dtype=dtype), axis=K, combiner=combiner)
            assert words == ["int64(x0)", f"{combiner} over K"]
        for combiner in (MAX, MIN):
            words = written("reduce", array(M, K, dtype=dtype), axis=K, combiner=combiner)
            assert words == [f"{combiner} over K"]


# ---------------------------------------------------------------- adding an operator


def hardswish(x: np.ndarray) -> np.ndarray:
    return x * np.clip(x + 3, 0, 6) / 6


def register_hardswish() -> None:
    @operator("hardswish")
    def entry(p: Primitives, x: Ref) -> Ref:
        return p.elementwise(lambda t: t * call("minimum", call("maximum", t + 3, 0), 6) / 6, x)


def test_a_new_operator_is_one_registration(check: Check) -> None:
    register_hardswish()
    check(lambda x: ops.registered("hardswish", x), "M K", reference=hardswish)
    check(
        lambda x: ops.registered("hardswish", x.T[None]), "M K", reference=lambda x: hardswish(x.T)
    )
    program = check(
        lambda x, w: ops.registered("hardswish", x @ w.T) + 1.0,
        *("M K", "N K"),
        reference=lambda x, w: hardswish(x @ w.T) + 1,
    )
    assert [op.name for op in program.operators] == ["matmul", "hardswish", "elementwise"]


def test_a_new_operator_fuses() -> None:
    register_hardswish()
    program = bb.trace(lambda x, w: ops.registered("hardswish", x @ w.T), x="M K", w="N K")
    fusion = bb.fuse(bb.lower(program), "paper")
    fused = fusion.fused[-1]
    assert not bb.buffered(fused)
    x, w = np.random.default_rng(0).standard_normal((2, 6, 7))
    found = bb.interpret(fused, {"x": x[:5], "w": w}, ragged_tiles(fused))["O"]
    np.testing.assert_allclose(found, hardswish(x[:5] @ w.T), rtol=1e-12)


def test_a_new_operator_along_an_axis(check: Check) -> None:
    @operator("l2norm")
    def l2norm(p: Primitives, x: Ref, *, axis: Axis, eps: float = 0.0) -> Ref:
        squares = p.sum(p.elementwise(arg(0) ** 2, x), axis)
        return p.mul(x, p.elementwise((arg(0) + eps) ** -0.5, squares))

    for axis in (0, 1, -1):
        check(
            lambda x, axis=axis: ops.registered("l2norm", x, axis=axis, eps=0.1),
            *("M K",),
            reference=lambda x, axis=axis: x / np.sqrt((x**2).sum(axis, keepdims=True) + 0.1),
        )


def test_a_new_operator_of_several_arrays(check: Check) -> None:
    @operator("bias_gate")
    def bias_gate(p: Primitives, x: Ref, bias: Ref, gate: Ref) -> Ref:
        return p.elementwise(lambda t, b, g: (t + b) * g, x, bias, gate)

    @operator("spread")
    def spread(p: Primitives, x: Ref, *, axis: Axis) -> Ref:
        return p.add(p.max(x, axis), p.elementwise(-arg(0), p.min(x, axis)))

    check(
        lambda x, b, g: ops.registered("bias_gate", x, b, g),
        *("M K", "K", "M 1"),
        reference=lambda x, b, g: (x + b) * g,
    )
    check(
        lambda x, b: ops.registered("bias_gate", x, b, b[:, None]),
        *((4, 4), (4,)),
        reference=lambda x, b: (x + b) * b[:, None],
    )
    check(lambda x: ops.registered("spread", x, axis=1), "M K N", reference=lambda x: np.ptp(x, 1))


def test_axes_that_only_an_operator_tells_apart_stay_apart(check: Check) -> None:
    @operator("product_of_sums")
    def product_of_sums(p: Primitives, x: Ref, y: Ref) -> Ref:
        made = p.mul(x, y)
        for axis in made.axes:
            made = p.sum(made, axis)
        return made

    check(
        lambda x, y: (ops.registered("product_of_sums", x[:, None], y), x + y),
        *((4,), (4,)),
        reference=lambda x, y: (x.sum() * y.sum(), x + y),
    )


def test_a_new_combiner(check: Check) -> None:
    """A reduction by any monoid: here, log-sum-exp."""
    both = call("exp", arg(0)) + call("exp", arg(1))
    combiner = Combiner("logsumexp", (-np.inf,), (call("log", both),))

    @operator("logsumexp")
    def logsumexp(p: Primitives, x: Ref, *, axis: Axis) -> Ref:
        return p.reduce(combiner, x, axis)

    check(
        lambda x: ops.registered("logsumexp", x, axis=1),
        *("M K",),
        reference=lambda x: np.log(np.exp(x).sum(1)),
    )
    empty = bb.trace(lambda x: ops.registered("logsumexp", x, axis=1), "M K")
    assert bb.evaluate(empty, {"x": np.ones((2, 0))})["O"].tolist() == [-np.inf] * 2


def test_what_a_new_operator_gets_wrong_is_told_when_it_is_traced() -> None:
    def refused(entry: Callable[..., Any], sentence: str, **attributes: Any) -> None:
        operator("wrong")(entry)
        with pytest.raises(bb.BlockbusterError, match=sentence):
            bb.trace(lambda x: ops.registered("wrong", x, **attributes), "M K")

    refused(
        lambda p, x: p.elementwise(arg(0) + arg(1), x), r"wrong: x0\+x1: takes 2 operands and h"
    )
    refused(lambda p, x: p.elementwise(call("nope", arg(0)), x), "no function is called 'nope'")
    refused(
        lambda p, x: p.elementwise(call("exp", arg(0), arg(0)), x), "exp takes 1 operands and h"
    )
    refused(lambda p, x: p.elementwise(lambda t: "a", x), "str is neither an expression nor a real")
    refused(lambda p, x: p.sum(x, N), r"wrong: add over N: float32\[M K\] has no such axis")
    refused(lambda p, x: p.contract(x, x, N), "the left operand .* has no such axis")
    refused(lambda p, x, axis: p.sum(x, axis), "wrong: there is no axis 2", axis=2)
    refused(
        lambda p, x, axis: p.sum(x, axis), "an axis is given by its number, not by 'K'", axis="K"
    )
    with pytest.raises(bb.BlockbusterError, match="wrong: needs at least one array"):
        bb.trace(lambda x: ops.registered("wrong"), "M K")
    with pytest.raises(bb.BlockbusterError, match="wrong: got float, not an array of this trace"):
        bb.trace(lambda x: ops.registered("wrong", x, 2.0), "M K")


def test_an_entry_checks_its_operands() -> None:
    p = Primitives()
    x = p.given("x", array(M, K))
    with pytest.raises(IllTyped, match=r"rename M->K: float32\[M K\] has K already"):
        p.rename(x, M, K)
    masks = p.given("m", array(M, K, dtype=DType.bool_))
    with pytest.raises(IllTyped, match="sub of bools is not defined: cast them to a number first"):
        p.elementwise(arg(0) - arg(1), masks, masks)
    with pytest.raises(IllTyped, match="the condition of where is float32, not bool"):
        p.elementwise(call("where", arg(0), 1.0, arg(0)), x)
