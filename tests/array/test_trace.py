"""Tracing: valid arguments and results, axes that are identified, and refusals."""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blockbuster_fusion as bb
from blockbuster_fusion import ops
from blockbuster_fusion.array.arrays import Array
from blockbuster_fusion.errors import IllTyped, TraceError
from blockbuster_fusion.ir.axis import Symbol

Check = Callable[..., bb.ArrayProgram]


def axes(program: bb.ArrayProgram) -> list[str]:
    """The axes of each input, with extents."""
    return [" ".join(f"{a}={a.extent}" for a in given.type.axes) for given in program.inputs]


# ---------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("spec", "shown"),
    [
        ("M D", "M=MM D=DD"),
        ("rows D:64", "rows=rows_size D=64"),
        ("", ""),
        ((), ""),
        ("M 64", "M=MM A_1=64"),
        (("M", 64, "D:3"), "M=MM A_1=64 D=3"),
        ([3, 4], "A_1=3 A_2=4"),
        ((np.int64(3), 0), "A_1=3 A_2=0"),
        (("M D", "N"), "M=MM D=DD N=NN"),
        (bb.array("M", "D:64"), "M=MM D=64"),
        (bb.array(3, "M"), "A_1=3 M=MM"),
    ],
)
def test_specs(spec: Any, shown: str) -> None:
    assert axes(bb.trace(lambda x: x, spec)) == [shown]


def test_equal_names_are_one_axis_however_they_are_written() -> None:
    assert axes(bb.trace(lambda x, y: x @ y, "M K", "K:5 N")) == ["M=MM K=5", "K=5 N=NN"]
    assert axes(bb.trace(lambda x, y: x @ y, "M K:5", "K N")) == ["M=MM K=5", "K=5 N=NN"]


def test_axes_without_a_name_do_not_take_one_that_is_given() -> None:
    assert axes(bb.trace(lambda x, y: (x, y), (3, 4), "A_1")) == ["A_2=3 A_3=4", "A_1=A_1_size"]


@pytest.mark.parametrize(
    ("dtype", "shown"),
    [
        ("float16", "float16"),
        ("bfloat16", "bfloat16"),
        (np.float64, "float64"),
        (np.dtype("int32"), "int32"),
        (bool, "bool"),
        (float, "float64"),
        ("f4", "float32"),
    ],
)
def test_dtypes(dtype: Any, shown: str) -> None:
    assert str(bb.trace(lambda x: x, "M", dtype=dtype).inputs[0].type.dtype) == shown
    assert str(bb.trace(lambda x: x, bb.array("M", dtype=dtype)).inputs[0].type.dtype) == shown
    cast = bb.trace(lambda x: x.astype(dtype), "M")
    assert str(cast.type(cast.outputs[0].value).dtype) == shown
    assert str(ops_cast := bb.trace(lambda x: ops.cast(x, dtype), "M")) == str(cast), ops_cast


def positional(x: Any, y: Any, /, z: Any, *, w: Any) -> Any:
    return x + y + z + w


def variadic(first: Any, *more: Any, last: Any = 2.0, **others: Any) -> Any:
    return sum(more, first) * last + sum(others.values())


class Model:
    def __call__(self, x: Any) -> Any:
        return x + 1.0

    def method(self, x: Any) -> Any:
        return x + 1.0


def names(program: bb.ArrayProgram) -> list[str]:
    return [program.name, *(given.name for given in program.inputs)]


def test_functions_of_every_kind(check: Check) -> None:
    made = [
        check(lambda x: x + 1.0, "M"),
        check(Model(), "M"),
        check(Model().method, "M"),
        check(functools.partial(np.add, 1.0), "M"),
        check(np.exp, "M"),
        bb.trace(positional, "M", "M", "M", w="M"),
        bb.trace(positional, "M", "M", z="M", w="M"),
        bb.trace(variadic, "M"),
        bb.trace(variadic, "M", "M", "M", last="M", extra="M"),
        bb.trace(lambda more0, *more: more0 + more[0], "M", "M"),
        bb.trace(lambda x: x, "M", name="other"),
    ]
    assert [names(program) for program in made] == [
        ["lambda", "x"],
        ["program", "x"],
        ["method", "x"],
        ["program", "x0"],
        ["exp", "x0"],
        ["positional", "x", "y", "z", "w"],
        ["positional", "x", "y", "z", "w"],
        ["variadic", "first"],
        ["variadic", "first", "more0", "more1", "last", "extra"],
        ["lambda", "more0", "more0_"],
        ["other", "x"],
    ]


def test_a_default_is_kept_unless_a_spec_is_given(check: Check) -> None:
    def scaled(x: Any, factor: Any = 3.0) -> Any:
        return x * factor

    assert names(check(scaled, "M")) == ["scaled", "x"]
    assert names(check(scaled, "M", "M")) == ["scaled", "x", "factor"]


# ---------------------------------------------------------------- results


def test_results_of_every_kind(check: Check) -> None:
    def outputs(fn: Callable[..., Any]) -> list[str]:
        return [out.name for out in bb.trace(fn, "M K").outputs]

    assert outputs(lambda x: x + 1) == ["O"]
    assert outputs(lambda x: (x, x + 1)) == ["O1", "O2"]
    assert outputs(lambda x: [x + 1]) == ["O1"]
    assert outputs(lambda x: {"y": x + 1, "z": x}) == ["y", "z"]
    assert outputs(lambda x: {"x": x + 1, "x_out": x}) == ["x_out", "x_out_out"]


def test_an_input_and_one_value_twice_as_outputs(check: Check) -> None:
    check(lambda x, y: (x, x.T, x, y), "M K", "")
    check(lambda x: (y := x @ x.T, y, y.T, x + y.sum()), "M K")


def test_inputs_that_nobody_uses(check: Check) -> None:
    check(lambda x, y, z: x + 1.0, "M K", "N", "")
    check(lambda x, y: y, "M K", "N")


def test_axes_of_length_1_are_left_out_of_outputs() -> None:
    program = bb.trace(lambda x: (x.sum(1, keepdims=True), x[None]), "M K")
    assert [[str(a) for a in out.axes] for out in program.outputs] == [["M"], ["M", "K"]]


def test_an_axis_of_extent_1_stays(check: Check) -> None:
    program = check(lambda x, y: (x, x * 2.0, x + y), (1, 4), (3, 4))
    found = bb.evaluate(program, {"x": np.ones((1, 4)), "y": np.ones((3, 4))})
    assert [found[name].shape for name in ("O1", "O2", "O3")] == [(1, 4), (1, 4), (3, 4)]


# ---------------------------------------------------------------- which axes are one


def test_extents_without_names_are_one_axis_where_they_meet() -> None:
    program = bb.trace(lambda x, w, b: x @ w + b, (3, 4), (4, 5), (5,))
    assert axes(program) == ["A_1=3 A_2=4", "A_2=4 A_4=5", "A_4=5"]
    assert len(program.operators) == 2  # no renaming


def test_names_win_over_extents_without_names() -> None:
    program = bb.trace(lambda x, w, b: b + x @ w, (3, 4), ("K:4", 5), "N:5")
    assert axes(program) == ["A_1=3 K=4", "K=4 N=5", "N=5"]


def test_square_arrays_keep_two_axes(check: Check) -> None:
    program = check(lambda x, y: x @ y + y @ x, (4, 4), (4, 4))
    for given in program.inputs:
        assert len(set(given.type.axes)) == 2
    check(lambda x, y: x @ y @ x.T + x, (4, 4), (4, 4))
    check(lambda x, y: x * y.T + y * x.T, (4, 4), (4, 4))
    check(lambda x, v: (x @ v + v @ x) * v[:, None], (4, 4), (4,))


def test_names_of_equal_extent_are_told_apart(check: Check) -> None:
    program = check(lambda x, y: x + y, "M:4 K:4", "K:4 M:4")
    assert [op.name for op in program.operators] == ["rename"] * 3 + ["elementwise"]


@pytest.mark.parametrize("spec", ["M K", "M:5 K:7", (5, 7)])
def test_an_axis_that_would_stand_twice_is_renamed(check: Check, spec: Any) -> None:
    for fn in (lambda x: x @ x.T, lambda x: x.T @ x, lambda x: x[:, None] - x):
        program = check(fn, spec)
        assert "rename" in [op.name for op in program.operators]
        assert len(program.outputs[0].axes) == len(set(program.outputs[0].axes))
    first = axes(bb.trace(lambda x: x @ x.T, "M K"))
    assert first == ["M=MM K=KK"]


def attend(q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)) @ v


@pytest.mark.parametrize("spec", ["M D", "B H M D", (5, 4), (2, 3, 5, 4), "B 3 M 4"])
def test_self_attention_from_one_array(check: Check, spec: Any) -> None:
    program = check(lambda x: attend(x, x, x), spec)
    names = [out.axes for out in program.outputs]
    assert names == [program.inputs[0].type.axes]


def test_self_attention_with_projections(check: Check) -> None:
    def layer(x: Any, wq: Any, wk: Any, wv: Any) -> Any:
        return x + attend(x @ wq, x @ wk, x @ wv)

    check(layer, (5, 8), (8, 4), (8, 4), (8, 8))
    check(layer, "B M E:8", "E D", "E D", ("E", 8))
    check(layer, "B:2 M:5 E:5", "E D:5", "E D", "E N:5")


def test_grouped_queries(check: Check) -> None:
    def grouped(q: Any, k: Any, v: Any) -> Any:
        return attend(q, k[:, :, None], v[:, :, None])

    check(grouped, "B G R M D", "B G N D", "B G N L")
    check(grouped, (2, 2, 3, 5, 4), (2, 2, 6, 4), (2, 2, 6, 4))


def test_heads_are_shared_or_not(check: Check) -> None:
    check(lambda q, k, v: attend(q, k, v), "B H M D", "B 1 N D", "N L")
    check(lambda q, k, v: attend(q, k[:, None], v[:, None]), "B H M D", "B N D", "B N L")


# ---------------------------------------------------------------- batch


def test_batch_axes_by_name() -> None:
    for batch in ("B H", ["B", "H"], {"H", "B"}):
        program = bb.trace(lambda x: x + 1, "B H M", batch=batch)
        assert {str(a) for a in program.batch} == {"B", "H"}


def test_a_batch_axis_that_was_merged_is_still_one(check: Check) -> None:
    program = check(lambda x, y: x + y, ("B:2", 5), (2, 5), batch="B")
    assert [a.name for a in program.batch] == ["B"]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.sum(0),
        lambda x: x.max(),
        lambda x: ops.softmax(x, 0),
        lambda x: x.T @ x,
        lambda x: x.mean(0),
        lambda x: ops.softmax(x @ x.T),  # the same axis under another name
    ],
)
def test_a_batch_axis_is_not_reduced(fn: Callable[..., Any]) -> None:
    with pytest.raises(
        IllTyped, match=r"the batch axis M\w* is summed or contracted over, so it has"
    ):
        bb.trace(fn, "M K", batch="M")


# ---------------------------------------------------------------- refusals and their messages

ELSEWHERE: list[Array] = []
bb.trace(lambda x: ELSEWHERE.append(x) or x, "M K")

REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "truth": (lambda x: 1 if x else 2, r"Array\[M K\]: .* no truth value: use where\(condition"),
    "chained": (lambda x: 0 < x < 1, "no truth value"),
    "truth of a size": (lambda x: x if x.shape[0] > 3 else -x, "MM>3: has no truth value"),
    "and": (lambda x: x > 0 and x < 1, "no truth value"),
    "contains": (lambda x: x in [x + 1], "no truth value"),
    "float": (lambda x: float(x), "is no number: use NumPy's functions"),
    "math": (lambda x: math.exp(x), "is no number: use NumPy's functions"),
    "asarray": (lambda x: np.asarray(x), "has no elements yet: compute with it as it is"),
    "list of": (lambda x: np.array([x, x]), "has no elements yet"),
    "number": (
        lambda x: x[0],
        "`None` and an array of whole numbers are traced in an index, not 0; use where",
    ),
    "slice": (lambda x: x[1:], "not a slice; use where or ops.misc"),
    "slice to a size": (lambda x: x[: x.shape[0]], "not a slice"),
    "mask": (lambda x: x[x > 0], "not a Array; use where"),
    "iteration": (lambda x: list(x), "only `:`, `...`, `None` and an array of whole numb"),
    "unpacking": (lambda x: (lambda a, b: a)(*x), "only `:`"),
    "two ellipses": (lambda x: x[..., ...], "more than one `...`"),
    "too many axes": (lambda x: x[:, :, :], "more than 2 axes"),
    "attribute": (
        lambda x: x.reshape(3),
        r"Array\[M K\]\.reshape: not traced; see blockbuster_fus",
    ),
    "inv": (lambda x: np.linalg.inv(x), r"numpy\.linalg\.inv: not traced; see .* use ops\.misc"),
    "concatenate": (lambda x: np.concatenate([x, x]), r"numpy\.concatenate: not traced"),
    "einsum": (lambda x: np.einsum("ij->ji", x), r"numpy\.einsum: not traced"),
    "hypot": (lambda x: np.hypot(x, x), r"numpy\.hypot: not traced"),
    "ufunc method": (lambda x: np.add.reduce(x), r"numpy\.add\.reduce: not traced"),
    "ufunc at": (lambda x: np.multiply.outer(x, x), r"numpy\.multiply\.outer: not traced"),
    "out": (
        lambda x: np.add(x, x, out=np.ones(3)),
        r"numpy\.add: out= is not traced: leave it out",
    ),
    "where=": (lambda x: np.exp(x, where=x > 0), r"numpy\.exp: where= is not traced"),
    "in place": (lambda x: np.ones(3).__iadd__(x), r"numpy\.add: out= is not traced"),
    "kind": (lambda x: np.sort(x, kind="stable"), r"numpy\.sort: .*'kind'; traced are x, axis"),
    "dtype": (
        lambda x: np.sum(x, dtype=float),
        r"numpy\.sum: .*'dtype'; traced are x, axis, keepd",
    ),
    "decimals": (lambda x: np.round(x, 2), r"numpy\.round: too many positional arguments"),
    "one where": (lambda x: np.where(x), r"numpy\.where: missing a required argument: 'x'"),
    "ndarray": (lambda x: x + np.ones(3), "add: got ndarray, neither .* nor a number: make arrays"),
    "ndarray left": (lambda x: np.ones((3, 3)) * x, "mul: got ndarray"),
    "ndarray matmul": (
        lambda x: x @ np.ones((3, 3)),
        "matmul: got ndarray, not an array of this tr",
    ),
    "matmul ndarray": (lambda x: np.ones((3, 3)) @ x, "matmul: got ndarray"),
    "list": (lambda x: x * [1], "mul: got list"),
    "list matmul": (lambda x: [1, 2] @ x, "matmul: got list"),
    "string": (lambda x: x * "a", "mul: got str"),
    "None": (lambda x: x == None, "eq: got NoneType"),  # noqa: E711
    "complex": (lambda x: x + 1j, "add: got complex"),
    "large": (lambda x: x + 10**20, "100000000000000000000 is no int64: write it as a float"),
    "bits": (
        lambda x: x & 1,
        r"Array\[M K\] of float32 is no mask, and bits are not traced; compare",
    ),
    "mask and bits": (lambda x: (x > 0) | 1, "1 is no mask"),
    "bools": (lambda x: (x > 0) - (x > 1), "sub of bools is not defined: cast them to a number"),
    "minus bools": (lambda x: -(x > 0), "neg of bools is not defined"),
    "another trace": (lambda x: x + ELSEWHERE[0], "come from two traces: make both arguments"),
    "another trace's @": (lambda x: ELSEWHERE[0] @ x, "come from two traces"),
    "another trace's weight": (lambda x: ops.rmsnorm(x, ELSEWHERE[0]), "come from two traces"),
    "another trace's misc": (lambda x: ops.misc("n", "f", x, ELSEWHERE[0]), "come from two traces"),
    "another trace's result": (
        lambda x: ELSEWHERE[0],
        "result O is of another trace: return a tra",
    ),
    "no result": (lambda x: None, "lambda: result O is NoneType, no array: return a traced array"),
    "nothing": (lambda x: (), "the function returns nothing: return an array"),
    "a number": (lambda x: 3.0, "result O is float, no array"),
    "a size": (lambda x: x.shape[0], "result O is Expr, no array"),
    "nested": (lambda x: (x, (x, x)), "result O2 is tuple, no array"),
    "nested dict": (lambda x: {"a": {"b": x}}, "result a is dict, no array"),
    "names": (lambda x: {1: x}, "an output is named by a string, not 1"),
    "no name": (lambda x: {"": x}, "an output is named by a string, not ''"),
    "axis": (lambda x: x.sum(2), r"reduce by add: there is no axis 2 in Array\[M K\]"),
    "negative axis": (lambda x: x.max(-3), r"reduce by max: there is no axis -3 in Array\[M K\]"),
    "axis by name": (
        lambda x: x.sum("K"),
        "reduce by add: an axis is given by its number, not by 'K",
    ),
    "axis twice": (
        lambda x: x.mean((0, -2)),
        r"mean: \(0, -2\) names an axis of Array\[M K\] twice",
    ),
    "softmax axes": (lambda x: ops.softmax(x, (0, 1)), "softmax: an axis is given by its number"),
    "softmax of 1": (lambda x: ops.softmax(x[None], 0), "has length 1, and nothing lies along it"),
    "index of 1": (
        lambda x: ops.index(x[None], 0),
        r"index: axis 0 of Array\[1 M K\] has length 1",
    ),
    "order": (
        lambda x: x.transpose(0, 0),
        r"transpose: \(0, 0\) is no order of the 2 axes of Array",
    ),
    "short order": (lambda x: np.transpose(x, (0,)), r"\(0,\) is no order of the 2 axes"),
    "swap": (lambda x: x.swapaxes(0, 2), "swapaxes: there is no axis 2"),
    "expand": (lambda x: ops.expand_dims(x, 4), "expand_dims: there is no axis 4"),
    "squeeze": (
        lambda x: ops.squeeze(x, 0),
        r"squeeze: not all of the axes 0 of Array\[M K\] have le",
    ),
    "size": (lambda x: ops.size(x, 5), "size: there is no axis 5"),
    "matmul 1": (
        lambda x: x @ x,
        r"Array\[M K\] @ Array\[M K\]: the axes K \(KK\) and M \(MM\) do not",
    ),
    "matmul unit": (
        lambda x: x[:, :, None] @ x,
        "an axis of length 1 and the axis M .MM. do not fit",
    ),
    "matmul scalar": (lambda x: x @ x.sum(), "matmul: a scalar has no axis to contract: use \\*"),
    "matmul number": (lambda x: x @ 2.0, "matmul: got float, not an array of this trace"),
    "broadcast": (
        lambda x: x + x.T,
        r"add of Array\[M K\], Array\[K M\]: the axes .*; give both one",
    ),
    "weight's rank": (
        lambda x: ops.layernorm(x, x),
        "a weight or bias has one axis, K, and this is",
    ),
    "weight's axis": (
        lambda x: ops.rmsnorm(x, x.sum(1)),
        r"rmsnorm: the axes K \(KK\) and M \(MM\) do",
    ),
    "weight": (lambda x: ops.layernorm(x, 2.0), "layernorm: got float, not an array of this trace"),
    "eps": (lambda x: ops.rmsnorm(x, eps="small"), "rmsnorm: eps is a number, not str"),
    "gelu": (lambda x: ops.gelu(x, "tahn"), "gelu: approximate is 'none' or 'tanh', not 'tahn'"),
    "cast": (lambda x: x.astype("uint8"), "dtype: 'uint8' is not one of float64, float32"),
    "cast None": (lambda x: x.astype(None), "dtype: None is not one of"),
    "cast number": (lambda x: ops.cast(1.0, "int32"), "cast: got float, not an array"),
    "ops of numbers": (lambda x: ops.relu(3.0), "none of the operands is an array of a trace"),
    "ops of ndarrays": (lambda x: ops.exp(np.ones(3)), "exp: none of the operands is an array"),
    "sum of ndarrays": (lambda x: ops.sum(np.ones(3)), "reduce by add: got ndarray, not an array"),
    "transpose of ndarrays": (lambda x: ops.transpose(np.ones(3)), "transpose: got ndarray"),
    "elements": (
        lambda x: ops.elementwise(lambda t: t * x, x),
        "mul: x0 is an element of another operator, .*; give elementwise all arrays as operands",
    ),
    "ignored": (lambda x: ops.elementwise(lambda t: 3.0, x), "3.0 ignores some of its 1 arrays"),
    "ignored second": (
        lambda x: ops.elementwise(lambda s, t: t, x, x + 1),
        "ignores some of its 2 arrays",
    ),
    "no expression": (lambda x: ops.elementwise(lambda t: None, x), "NoneType is neither an expr"),
    "unknown operator": (lambda x: ops.registered("nope", x), "no operator 'nope' in the lookup t"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what: str) -> None:
    fn, sentence = REFUSED[what]
    with pytest.raises(bb.BlockbusterError, match=sentence):
        bb.trace(fn, "M K")


BAD_CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "no callable": (lambda: bb.trace(5, "M"), "program: 5 cannot be called"),
    "too few": (
        lambda: bb.trace(lambda x, y: x, "M"),
        "missing a required argument: 'y'; say what",
    ),
    "too many": (lambda: bb.trace(lambda x: x, "M", "M"), "too many positional arguments"),
    "unknown": (lambda: bb.trace(lambda x: x, "M", z="M"), "unexpected keyword argument 'z'"),
    "twice": (lambda: bb.trace(lambda x: x, "M", x="M"), "multiple values for argument 'x'"),
    "positional by name": (lambda: bb.trace(positional, x="M", y="M", z="M", w="M"), "positional"),
    "None": (lambda: bb.trace(lambda x: x, None), "argument x: NoneType does not say which axes"),
    "int": (
        lambda: bb.trace(lambda x: x, 5),
        r"int does not say which axes it has: write 'M D' or",
    ),
    "ndarray": (
        lambda: bb.trace(lambda x: x, np.ones(3)),
        "ndarray does not say which axes it has",
    ),
    "two names of one size": (
        lambda: bb.trace(lambda x, a: x @ x.T - a, "C D", "C E"),
        r"do not fit; give both one name, which may stand twice in an array: 'N N' is square",
    ),
    "comma": (
        lambda: bb.trace(lambda x: x, "M,K"),
        "argument x: 'M,K' is no axis: write a name, n",
    ),
    "colon": (lambda: bb.trace(lambda x: x, "M:"), "'M:' is no axis"),
    "word": (lambda: bb.trace(lambda x: x, "M:x"), "'M:x' is no axis"),
    "minus": (lambda: bb.trace(lambda x: x, "M:-3"), "'M:-3' is no axis"),
    "unicode": (lambda: bb.trace(lambda x: x, "Mä"), "'Mä' is no axis"),
    "negative": (lambda: bb.trace(lambda x: x, (3, -1)), "argument x: the extent -1 is negative"),
    "float": (lambda: bb.trace(lambda x: x, (3.0,)), "3.0 is no axis"),
    "bool": (lambda: bb.trace(lambda x: x, (True,)), "True is no axis"),
    "list in tuple": (lambda: bb.trace(lambda x: x, ([3],)), r"\[3\] is no axis"),
    "extents": (
        lambda: bb.trace(lambda x, y: x, "M:3", "M:4"),
        "argument y: the axis M is 3 elsewhere and 4 here",
    ),
    "int shapes": (
        lambda: bb.trace(lambda x, y: x + y, (3, 4), (3, 5)),
        r"the axes A_2 \(4\) and A_4 \(5\) do not fit$",
    ),
    "int and symbol": (
        lambda: bb.trace(lambda x, y: x + y, "M", (5,)),
        r"the axes M \(MM\) and A_1 \(5\) do not fit; give both one name",
    ),
    "dtype": (lambda: bb.trace(lambda x: x, "M", dtype="complex64"), "'complex64' is not one of"),
    "array's dtype": (lambda: bb.array("M", dtype=object), "is not one of float64"),
    "unknown batch": (
        lambda: bb.trace(lambda x: x, "M", batch="B"),
        "unknown batch axis 'B': known",
    ),
    "no batch": (
        lambda: bb.trace(lambda x: x, "M", batch=7),
        "batch is a list of axis names, not 7",
    ),
}


@pytest.mark.parametrize("what", BAD_CALLS)
def test_bad_calls(what: str) -> None:
    call, sentence = BAD_CALLS[what]
    with pytest.raises(TraceError, match=sentence):
        call()


def test_python_asks_for_attributes_in_vain() -> None:
    assert not hasattr(ELSEWHERE[0], "reshape")
    assert not hasattr(ELSEWHERE[0], "__len__")
    assert repr(ELSEWHERE[0]) == "Array[M K]"


# ---------------------------------------------------------------- printing


def test_a_program_prints(golden: Callable[[str], None]) -> None:
    def program(x: Any, g: Any, w: Any) -> Any:
        normed = ops.rmsnorm(x, g)
        return {"y": ops.softmax(normed @ w + 1), "mean": x.mean(), "sorted": ops.sort(x.T)}

    golden(str(bb.trace(program, "M K", "K", "K N:8", name="everything")))


def test_a_symbol_is_the_doubled_letter() -> None:
    program = bb.trace(lambda x: x, "M rows")
    extents = [a.extent for a in program.inputs[0].type.axes]
    assert extents == [Symbol("MM"), Symbol("rows_size")]


def test_a_square_array_has_one_name_twice() -> None:
    """The two are different axes of one size, and one of them is that of the product."""
    program = bb.trace(lambda x, a: x @ x.swapaxes(-1, -2) - a, x="B C D", a="B C C")
    rows, columns = program.inputs[1].type.axes[1:]
    assert rows is not columns
    assert rows.extent is columns.extent
    assert program.outputs[0].axes[1:] == (rows, columns)
    rng = np.random.default_rng(0)
    x, a = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 5, 3), (2, 5, 5)))
    made = bb.compile(program, target="interpret")(x, a)["O"]
    np.testing.assert_allclose(made, x @ x.swapaxes(-1, -2) - a, rtol=1e-5, atol=1e-5)
    with pytest.raises(bb.BlockbusterError, match="has 4 elements, but axis C"):
        bb.compile(program, target="interpret")(x, a[..., :4])


def test_products_of_square_arrays() -> None:
    compiled = bb.compile(lambda a, b: a @ b - b @ a.T, a="N N", b="N N", target="interpret")
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((6, 6)).astype(np.float32) for _ in range(2))
    np.testing.assert_allclose(compiled(a, b)["O"], a @ b - b @ a.T, rtol=1e-4, atol=1e-5)
