"""Programs with significands and exponents: their listings, and that they compute the same."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import blockbuster_fusion as bb
from blockbuster_fusion import safety
from blockbuster_fusion.ir.expr import evaluate
from blockbuster_fusion.ir.ops import Map, Reduce
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.safety.choices import Safe
from blockbuster_fusion.safety.pairs.rescaled_sum import rescaled_sum
from blockbuster_fusion.safety.pipeline import make_safe
from blockbuster_fusion.safety.storage import stored_as
from helpers.effort import part
from helpers.programs import Case, random_unit
from helpers.rewriting import lowered
from helpers.running import assert_computes, inputs_for, ragged_tiles

Golden = Callable[[str], None]
Triple = tuple[float, float, float]
ops = bb.ops


def listing(made: Safe) -> str:
    """The program and the choices of the pass, as one text."""
    bb.verify(made.graph)
    return "\n".join([bb.show(made.graph), *map(str, made.choices)])


def fused(function: Callable[..., object], snapshot: int = -1, **specs: str) -> bb.Graph:
    """A snapshot of a function, as the rules made it."""
    return bb.fuse(lowered(function, **specs)).fused[snapshot]


def run(graph: bb.Graph, tiles: dict[str, int] | None = None, **inputs: object) -> np.ndarray:
    """The only output of a program that has been made safe, in float32."""
    given = {name: np.asarray(x, np.float32) for name, x in inputs.items()}
    (made,) = bb.interpret(make_safe(graph).graph, given, tiles)
    return made


# ---------------------------------------------------------------- listings


@pytest.mark.parametrize("snapshot", [0, 1])
@pytest.mark.parametrize(
    "name", ["attention", "softmax", "attention-logsumexp", "language-model-head"]
)
def test_listing(name: str, snapshot: int, golden: Golden) -> None:
    golden(listing(make_safe(bb.fuse(bb.examples.find(name)).fused[snapshot])))


def test_unfused_attention(golden: Golden) -> None:
    golden(listing(make_safe(bb.lower(bb.examples.attention()))))


def test_the_pass_knows_no_program_by_name() -> None:
    sources = sorted(Path(safety.__file__).parent.rglob("*.py"))
    assert len(sources) > 8
    for source in sources:
        text = source.read_text(encoding="utf-8").lower()
        assert "softmax" not in text, source.name
        assert "attention" not in text, source.name


def along_both(X):
    """Normalised along the rows, and along the columns."""
    e = ops.exp(X)
    return {"R": e / e.sum(1, keepdims=True), "C": e / e.sum(0, keepdims=True)}


@pytest.mark.parametrize("snapshot", [0, -1])
def test_normalised_along_two_axes(snapshot: int, golden: Golden) -> None:
    """In memory, the value has an exponent for each element."""
    graph = lowered(lambda A, B: along_both(A * B), A="M N", B="M N")
    golden(listing(make_safe(bb.fuse(graph).fused[snapshot])))


def test_nobody_shares_the_exponent_of_a_huge_row() -> None:
    """Of the list in memory only sums along the columns are taken, and the row's quotients."""
    x = np.array([[300.0, 299.0, 298.0], [-300.0, -301.0, -302.0]])
    graph = lowered(lambda A, B: along_both(A * B), A="M N", B="M N")
    for program in (graph, *bb.fuse(graph).fused):
        inputs = {"A": np.float32(x), "B": np.ones_like(x, np.float32)}
        rows, columns = bb.interpret(make_safe(program).graph, inputs)
        wanted = np.exp([0.0, -1.0, -2.0])
        np.testing.assert_allclose(rows, [wanted / wanted.sum()] * 2, rtol=1e-6)
        np.testing.assert_allclose(columns, [[1.0] * 3, [0.0] * 3])


def test_exponents_alone_cross_a_buffer(golden: Golden) -> None:
    """A nonlinear function needs each element, so the argument of exp is stored.

    If all uses are sums, a pair is stored in two buffers: the first snapshot of attention.
    """

    def program(A, B, V):
        e = ops.exp(A @ B.T)
        return ops.relu(e / e.sum(-1, keepdims=True)) @ V

    golden(listing(make_safe(fused(program, 0, A="M K", B="N K", V="N L"))))


def test_an_unfused_sum_becomes_a_tuple(golden: Golden) -> None:
    graph = lowered(lambda X: ops.exp(X).sum(-1), X="M N")
    made = make_safe(graph)
    sums = [
        node.op
        for _, inner in made.graph.walk()
        for node in inner.nodes.values()
        if isinstance(node.op, Reduce)
    ]
    assert [op.combiner.name for op in sums] == ["rescaled_sum"]
    golden(listing(made))


def test_a_loop_has_one_tuple_for_all_its_sums() -> None:
    graph = bb.fuse(bb.examples.attention()).snapshots[-1]
    loops = [node.op for _, inner in graph.walk() for node in inner.nodes.values()]
    (online,) = [op for op in loops if isinstance(op, Map) and len(op.modes) == 3]
    assert [mode.component for mode in online.modes if mode] == [0, 1, 2]
    assert len({mode.combiner for mode in online.modes if mode}) == 1


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(-2e3, 2e3), st.floats(-9, 9)), min_size=3, max_size=3))
def test_sums_of_pairs_are_a_monoid(pairs: list[tuple[float, float]]) -> None:
    combiner = rescaled_sum(2)

    def plus(x: Triple, y: Triple) -> Triple:
        numbers = [np.float64(number) for number in (*x, *y)]
        made = [evaluate(e, numbers, lambda _: 0, lambda v, _: v) for e in combiner.combine]
        return made[0], made[1], made[2]

    a, b, c = ((t, s, 2 * s) for t, s in pairs)
    none: Triple = tuple(combiner.identity)  # type: ignore[assignment]
    assert plus(none, a) == a == plus(a, none)
    assert plus(none, none) == none
    left, right = plus(plus(a, b), c), plus(a, plus(b, c))
    assert left[0] == right[0] == max(a[0], b[0], c[0])
    np.testing.assert_allclose(left, right, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(plus(a, b), plus(b, a))


def test_an_exponent_is_found_before_the_loop_that_needs_it(golden: Golden) -> None:
    """The row is one block: it is the same in every iteration over L."""
    golden(listing(make_safe(bb.fuse(bb.examples.attention(), unit=["N"]).fused[0])))


def masked_mean(X, W, V):
    """The mean of V, weighted by e^X where W is not 0."""
    e = ops.exp(X) * W
    return (e @ V) / e.sum(-1, keepdims=True)


def test_a_mask_that_is_a_factor(golden: Golden) -> None:
    """Masked elements do not count for the maximum."""
    golden(listing(make_safe(fused(masked_mean, X="M N", W="M N", V="N L"))))


def test_what_a_factor_hides_may_be_huge() -> None:
    x = [[1000.0, 0.0, 1.0], [0.0, 1000.0, -1000.0]]
    w = [[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]]
    v = [[5.0], [1.0], [2.0]]
    graph = lowered(masked_mean, X="M N", W="M N", V="N L")
    for program in (graph, *bb.fuse(graph).fused):
        made = run(program, {"N": 2}, X=x, W=w, V=v)
        wanted = (1 + 2 * np.e) / (1 + np.e)
        np.testing.assert_allclose(made, [[wanted], [5.0]], rtol=1e-6)


def hidden_mean(X, V):
    """The mean of V up to the place of each row, weighted by e^X."""
    e = ops.where(ops.index(X, 1) <= ops.index(X, 0), ops.exp(X), 0)
    return (e @ V) / e.sum(-1, keepdims=True)


def test_a_mask_that_is_a_condition(golden: Golden) -> None:
    golden(listing(make_safe(fused(hidden_mean, X="M N", V="N L"))))


def test_what_a_condition_hides_may_be_huge() -> None:
    x = [[0.0, 1000.0], [-1000.0, -1001.0]]
    made = run(fused(hidden_mean, X="M N", V="N L"), {"N": 1}, X=x, V=[[1.0], [2.0]])
    wanted = (1 + 2 * np.exp(-1)) / (1 + np.exp(-1))
    np.testing.assert_allclose(made, [[1.0], [wanted]], rtol=1e-6)


def powers_of_two(X, V):
    e = ops.exp2(X)
    return (e @ V) / e.sum(-1, keepdims=True)


def test_powers_of_two(golden: Golden) -> None:
    golden(listing(make_safe(fused(powers_of_two, X="M N", V="N L"))))


def test_huge_powers_of_two() -> None:
    made = run(fused(powers_of_two, X="M N", V="N L"), {"N": 1}, X=[[5e3, 5e3 - 1]], V=[[3], [6]])
    np.testing.assert_allclose(
        made, [[4.0]], rtol=1e-3
    )  # 5000 log 2 has few digits after the point


# ---------------------------------------------------------------- rows of which nothing is left


def test_rows_of_which_nothing_is_left() -> None:
    """Their sum is 0 and its logarithm -inf, as exact arithmetic has it."""

    def program(X, V):
        e = ops.exp(X)
        total = e.sum(-1)
        return {"S": total, "P": e @ V, "lse": ops.log(total)}

    x = np.full((3, 5), -np.inf, np.float32)
    x[1, 3] = 2.0
    graph = lowered(program, X="M N", V="N L")
    for program_ in (graph, *bb.fuse(graph).fused):
        safe = make_safe(program_).graph
        made = bb.interpret(safe, {"X": x, "V": np.ones((5, 2), np.float32)}, {"N": 2, "M": 2})
        np.testing.assert_allclose(made["S"], [0, np.exp(2), 0], rtol=1e-6)
        np.testing.assert_allclose(made["P"][:, 0], [0, np.exp(2), 0], rtol=1e-6)
        np.testing.assert_array_equal(np.isneginf(made["lse"]), [True, False, True])


def test_a_block_of_which_nothing_is_left() -> None:
    """The other blocks of the row count as if it were not there."""
    graph = bb.fuse(bb.examples.additive_mask_attention()).fused[-1]
    inputs = inputs_for(bb.examples.additive_mask_attention(), N=6, M=3)
    inputs["mask"][:, :4] = -np.inf
    given = {name: x.astype(np.float32) for name, x in inputs.items()}
    (made,) = bb.interpret(make_safe(graph).graph, given, {"N": 2})
    cut = {"KT": inputs["KT"][4:], "VT": inputs["VT"][:, 4:], "mask": inputs["mask"][:, 4:]}
    wanted = bb.evaluate(bb.examples.additive_mask_attention(), {**inputs, **cut})["O"]
    np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-6)


def test_a_row_of_minus_infinity_is_as_bad_as_it_is_unfused() -> None:
    """0/0 is NaN, in PyTorch as well; other rows do not feel it."""
    made = run(bb.fuse(bb.examples.softmax()).fused[-1], X=[[-np.inf] * 2, [0.0, 0.0]])
    np.testing.assert_array_equal(made, [[np.nan] * 2, [0.5] * 2])


def test_sums_of_two_rows_of_which_nothing_is_left() -> None:
    def program(a, b, W):
        return (ops.exp(a)[:, None] * W).sum(1) + (ops.exp(b)[:, None] * W).sum(1)

    graph = lowered(program, a="M", b="M", W="M N")
    nothing = [-np.inf, 0.5]
    for program_ in (graph, bb.fuse(graph).fused[-1]):
        made = run(program_, a=nothing, b=nothing, W=np.ones((2, 3)))
        np.testing.assert_allclose(made, [0.0, 6 * np.exp(0.5)], rtol=1e-6)


def test_products_of_rows_of_which_nothing_is_left() -> None:
    """Two exponents that stand for nothing must not add up to -inf: differences are taken."""
    graph = lowered(lambda X, Y: ops.exp(X) @ ops.exp(Y).T, X="M D", Y="N D")
    x = np.array([[-np.inf] * 5, [0.0, 1.0, 2.0, 3.0, 4.0]])
    wanted = np.exp(x) @ np.exp(x).T
    for program in (graph, *bb.fuse(graph).fused):
        made = run(program, {"D": 2}, X=x, Y=x)
        np.testing.assert_allclose(made, wanted, rtol=1e-5)


@pytest.mark.parametrize("least", [-1e30, float(np.finfo(np.float32).min)])
def test_a_row_that_is_hidden_by_a_number(least: float) -> None:
    """All of it counts the same."""
    for program in bb.fuse(bb.examples.softmax()).fused:
        made = run(program, {"N": 2}, X=[[least] * 4, [0.0, least, 0.0, least]])
        np.testing.assert_array_equal(made, [[0.25] * 4, [0.5, 0.0, 0.5, 0.0]])


# ---------------------------------------------------------------- exponents that may not be shared


def test_an_inverse_shares_no_exponent() -> None:
    """Of 1/e^x the least x counts most: at the exponent of the largest it would be infinite."""

    def program(A, B):
        e = ops.exp(A @ B.T)
        total = e.sum(-1, keepdims=True)
        return ops.elementwise(lambda a, b: 1 / a / b, e, total).sum(-1)

    graph = lowered(program, A="M K", B="N K")
    x = np.array([-60.0, 60.0, 50.0, 40.0])
    for program_ in (graph, *bb.fuse(graph).fused):
        made = run(program_, A=[[1.0]], B=x[:, None])
        np.testing.assert_allclose(made, [np.exp(-x).sum() / np.exp(x).sum()], rtol=1e-5)


def test_one_row_does_not_share_with_another() -> None:
    """A block has one huge row: the others must not vanish beside it."""
    x = np.array([[1e4, 0.0], [-1e4, -1e4]])
    for program in bb.fuse(bb.examples.softmax()).fused:
        np.testing.assert_allclose(run(program, X=x), [[1.0, 0.0], [0.5, 0.5]])


# ---------------------------------------------------------------- exponentials that cancel


def test_what_cancels_keeps_its_axes() -> None:
    """Every row of the result is the same, and all of them are there."""

    def program(y, w, v):
        e = ops.exp(y)[:, None]
        return (e * w).sum(-1) / (e * v).sum(-1)

    graph = lowered(program, y="M", w="N", v="N")
    for program_ in (graph, *bb.fuse(graph).fused):
        made = run(program_, {"M": 2, "N": 2}, y=[1000.0, 0.0, -1000.0], w=[1, 1, 1], v=[1, 2, 3])
        np.testing.assert_allclose(made, [0.5] * 3)


@pytest.mark.parametrize(
    "function",
    [
        lambda X, w: (ops.exp(X) / ops.exp(X)).sum(-1),
        lambda X, w: (ops.exp(X) * w / ops.exp(X)).sum(-1),
        lambda X, w: (ops.log(ops.exp(X) * w) - X) @ ops.exp(X).T,
        lambda X, w: ops.log(ops.exp(X) * w) - X,
    ],
)
def test_what_cancels_in_a_block_keeps_its_axes(function: Callable[..., object]) -> None:
    program = bb.trace(function, X="M N", w="N")
    inputs = {name: np.abs(x) for name, x in inputs_for(program).items()}
    expected = bb.evaluate(program, inputs)
    for graph in (bb.lower(program), *bb.fuse(program).fused):
        made = make_safe(graph).graph
        bb.verify(made)
        assert_computes(made, inputs, expected)


# ---------------------------------------------------------------- float16


def test_float16_has_headroom(golden: Golden) -> None:
    """Significands stored as float16 reach e^10; loaded and stored numbers are cast."""
    raw = bb.fuse(bb.examples.attention()).fused[0]
    golden(listing(make_safe(stored_as(raw, DType.float16, inside=DType.float16))))


def test_what_float16_holds_with_headroom() -> None:
    """e^-20 times the largest is still there, in the list between the loops."""

    def program(A, B, V):
        e = ops.exp(A @ B.T)
        total = e.sum(-1, keepdims=True)
        return ops.elementwise(lambda a, b: a / b, e, total) @ V

    raw = fused(program, 0, A="M K", B="N K", V="N L")
    narrow = make_safe(stored_as(raw, DType.float16, inside=DType.float16)).graph
    inputs = {
        "A": np.float32([[1.0]]),
        "B": np.float32([[0.0], [-20.0]]),
        "V": np.float32([[0.0], [5e4]]),
    }
    (made,) = bb.interpret(narrow, inputs)
    np.testing.assert_allclose(made, [[5e4 * np.exp(-20)]], rtol=1e-3)


# ---------------------------------------------------------------- programs that stay as they are


@pytest.mark.parametrize("function", [ops.swish, ops.sigmoid, ops.gelu, ops.tanh, ops.exp])
def test_native_exponentials_change_nothing(function: Callable[..., object]) -> None:
    graph = lowered(lambda X, W: function(X) @ W, X="M N", W="N L")
    if function is ops.exp:
        assert make_safe(graph).graph.digest != graph.digest
        return
    for program in (graph, *bb.fuse(graph).fused):
        made = make_safe(program)
        assert made.graph.digest == program.digest
        assert {choice.kind for choice in made.choices} <= {"native"}


def test_a_saturated_swish() -> None:
    graph = lowered(ops.swish, x="M")
    made = make_safe(graph)
    assert made.graph.digest == graph.digest
    (choice,) = made.choices
    assert str(choice).endswith("native: what it meets there is no multiple of it")
    np.testing.assert_allclose(run(graph, x=[-1000.0, 5.0]), [0.0, 5 / (1 + np.exp(-5))], rtol=1e-6)


def test_without_exponentials_nothing_happens() -> None:
    for name in ("matmul-relu", "lora", "three-matmuls", "rmsnorm-swiglu"):
        for graph in bb.fuse(bb.examples.find(name)).fused:
            made = make_safe(graph)
            assert made.graph is graph or name == "rmsnorm-swiglu"
            assert made.graph.digest == graph.digest


def test_a_stored_exponential_is_native(golden: Golden) -> None:
    golden(listing(make_safe(lowered(lambda X: ops.exp(X), X="M N"))))


# ---------------------------------------------------------------- the same results


def check(graph: bb.Graph, inputs: dict, expected: dict) -> None:
    """A safe program is sound, is read back from its text, and gives the expected results."""
    made = make_safe(graph).graph
    bb.verify(made)
    again = bb.from_text(bb.to_text(made))
    assert again.digest == made.digest
    assert_computes(made, inputs, expected, ragged_tiles(made))


@pytest.mark.sweep(3, reason="other examples by the same passes")
@pytest.mark.parametrize("name", bb.examples.EXAMPLES)
def test_examples_compute_the_same(name: str) -> None:
    program = bb.examples.find(name)
    inputs = inputs_for(program, B=2, G=2, H=2, R=3)
    expected = bb.evaluate(program, inputs)
    for graph in (bb.lower(program), *bb.fuse(program).fused):
        check(graph, inputs, expected)


@pytest.mark.parametrize("extended", [False, True])
def test_random_programs_compute_the_same(extended: bool) -> None:
    for seed in range(part(30)):
        case = Case(seed, extended=extended)
        graph = bb.lower(case.program)
        unit = random_unit(case.program, seed)
        for units in {(), unit}:
            for number, raw in enumerate(bb.fuse(graph, unit=units).fused):
                made = make_safe(raw).graph
                case.check(made, (units, number))
                assert bb.from_text(bb.to_text(made)).digest == made.digest
        case.check(make_safe(graph).graph, "initial")
