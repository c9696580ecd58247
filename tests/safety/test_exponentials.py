"""Products and sums of exponentials: as exact as careful PyTorch, with its infinities and NaN."""

import numpy as np
import pytest
import torch

import blockbuster_fusion as bb
from blockbuster_fusion.ir.buffered import buffered
from blockbuster_fusion.ir.expr import postorder
from blockbuster_fusion.ir.ops import Elementwise, Reduce
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.safety.pairs.rescaled_sum import rescaled_sum
from blockbuster_fusion.safety.pipeline import make_safe
from blockbuster_fusion.safety.storage import stored_as
from helpers.exponential_programs import FORMS, LOGARITHMS, POINTS, Arrays, Form, cases
from helpers.rewriting import lowered

ops = bb.ops
EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
TORCH = {name: getattr(torch, name) for name in EPS}


def distance(made: np.ndarray, exact: np.ndarray) -> float:
    """The norm of the error; infinite where infinities or NaN differ."""
    made = np.asarray(made, np.float64)
    for test in (np.isnan, np.isposinf, np.isneginf):
        if not np.array_equal(test(made), test(exact)):
            return np.inf
    finite = np.isfinite(exact)
    return float(np.linalg.norm(made[finite] - exact[finite]))


def allowed(form: Form, inputs: Arrays, exact: np.ndarray, dtype: str) -> float:
    """Twice the careful program's error; one rounding of the result is nobody's fault."""
    careful = form.reference(inputs, torch.float64 if dtype == "float64" else torch.float32)
    finite = np.isfinite(exact)
    error = np.linalg.norm(careful[finite] - exact[finite])
    own = 4 * EPS[dtype] * np.linalg.norm(exact[finite])
    return float(max(2 * error, own, form.floor(inputs, EPS[dtype])))


def check(form: Form, inputs: Arrays, made: np.ndarray, dtype: str, where: object) -> None:
    exact = form.reference(inputs, torch.float64)
    bar = allowed(form, inputs, exact, dtype)
    assert distance(made, exact) <= bar, (where, distance(made, exact), bar)


@pytest.mark.parametrize(("name", "kind"), [*cases()])
def test_every_snapshot_is_careful(name: str, kind: str) -> None:
    form = FORMS[name]
    inputs = form.inputs(kind)
    program = form.traced()
    for rules in ("paper", "extended"):
        for number, graph in enumerate(bb.fuse(program, rules=rules).snapshots):
            for tiles in ({"N": 16, "M": 4}, {}):
                with np.errstate(all="ignore"):
                    (made,) = bb.interpret(graph, inputs, tiles)
                check(form, inputs, made, "float32", (rules, number, tiles))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", FORMS)
def test_compiled_programs_are_careful(name: str) -> None:
    form = FORMS[name]
    compiled = bb.compile(form.traced(), target="cpu", threads=1)
    for kind in (kind for case, kind in cases() if case == name):
        inputs = form.inputs(kind)
        check(form, inputs, compiled(**inputs)[0], "float32", kind)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", ["product", "factor", "logsumexp", "exp_contracted", "softmax"])
@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_other_dtypes(name: str, dtype: str) -> None:
    form = FORMS[name]
    compiled = bb.compile(form.function, threads=1, dtype=dtype, **form.specs)
    for kind in ("ordinary", "infinite"):
        given = {
            n: torch.from_numpy(x).to(TORCH[dtype]) for n, x in form.inputs(kind, seed=1).items()
        }
        inputs = {n: x.double().numpy() for n, x in given.items()}
        made = compiled(**given)[0].double().numpy()
        check(form, inputs, made, dtype, kind)


def test_a_factor_is_a_significand() -> None:
    """It meets one exponential per element, and no logarithm."""
    form = FORMS["factor"]
    for graph in bb.fuse(form.traced()).snapshots:
        found = [
            part.op
            for _, inner in graph.walk()
            for node in inner.nodes.values()
            if isinstance(node.op, Elementwise)
            for part in postorder(node.op.expr)
        ]
        assert "log" not in found
        assert found.count("exp") <= 2  # one in each loop


@pytest.mark.parametrize("size", [1e-30, 1e-3, 1e5])
def test_small_and_large_factors(size: float) -> None:
    form = FORMS["factor"]
    inputs = form.inputs("ordinary")
    inputs["F"] *= np.float32(size)
    for graph in bb.fuse(form.traced()).snapshots:
        (made,) = bb.interpret(graph, inputs, {"N": 16})
        check(form, inputs, made, "float32", size)


def test_exponents_that_are_far_apart_in_their_own_ways() -> None:
    """Large exponents on one side meet small ones on the other: the maximum of the sum counts."""

    def program(A, B):
        e = ops.exp(A) * ops.exp(B)
        return e / e.sum(-1, keepdims=True)

    a = np.float32([[1000.0, 0.0, 500.0], [0.0, 0.0, 0.0]])
    b = np.float32([[-1000.0, 0.0, -500.0], [1.0, 2.0, 3.0]])
    exact = torch.softmax(torch.from_numpy(np.float64(a) + b), -1).numpy()
    unfused = lowered(program, A="M N", B="M N")
    for graph in (unfused, *bb.fuse(unfused).fused):
        (made,) = bb.interpret(make_safe(graph).graph, {"A": a, "B": b}, {"N": 1})
        np.testing.assert_allclose(made, exact, rtol=4 * 1000 * EPS["float32"])


def test_two_exponents_are_a_monoid() -> None:
    """Each meets its own maximum; that they stand for S·e^(t+u) is kept."""
    combiner = rescaled_sum(1, (1.0, 1.0))
    assert combiner.arity == 3
    assert combiner.identity[0] == combiner.identity[1] < -3e38
    assert make_safe(lowered(lambda X, Y: ops.exp(X) @ ops.exp(Y).T, X="M D", Y="N D")).choices


# ---------------------------------------------------------------- logarithms


def relative(made: np.ndarray, exact: np.ndarray) -> float:
    """The largest relative error of an element that is no denormal."""
    if distance(made, exact) == np.inf:
        return np.inf
    shown = np.isfinite(exact) & (np.abs(exact) > 2.0**-126)
    return float(np.max(np.abs(made[shown] - exact[shown]) / np.abs(exact[shown])))


@pytest.mark.parametrize("name", LOGARITHMS)
def test_logarithms_of_few_exponentials(name: str) -> None:
    """They neither overflow nor lose small results: softplus(-50) is e^-50."""
    function, careful = LOGARITHMS[name]
    x, y = POINTS
    exact = careful(*(torch.from_numpy(v).double() for v in POINTS)).numpy()
    found = careful(*(torch.from_numpy(v) for v in POINTS)).double().numpy()
    bar = max(2 * relative(found, exact), 4 * EPS["float32"])
    program = bb.trace(function, X="N", Y="N")
    with np.errstate(all="ignore"):
        for graph in bb.fuse(program).snapshots:
            assert relative(bb.interpret(graph, {"X": x, "Y": y})[0], exact) <= bar
    assert relative(bb.compile(program, threads=1)(X=x, Y=y)[0], exact) <= bar


def test_softplus_of_narrow_numbers() -> None:
    x = torch.linspace(-80, 80, 401).to(torch.bfloat16)
    made = bb.compile(lambda X: ops.log(1 + ops.exp(X)), dtype="bfloat16", X="N")(X=x)[0]
    exact = torch.logaddexp(x.double(), torch.zeros(())).numpy()
    assert relative(made.double().numpy(), exact) <= EPS["bfloat16"]


def test_infinite_exponents_of_hidden_elements_do_not_count() -> None:
    def hidden(X, Y, M):
        return ops.sum(ops.where(M > 0.5, ops.exp(X) * ops.exp(Y), 0.0), -1)

    x = np.zeros((1, 4), np.float32)
    y, shown = np.float32([[1, np.inf, 2, np.nan]]), np.float32([[1, 0, 1, 0]])
    wanted = np.exp(1.0) + np.exp(2.0)
    for graph in bb.fuse(bb.trace(hidden, X="M N", Y="M N", M="M N")).snapshots:
        (made,) = bb.interpret(graph, {"X": x, "Y": y, "M": shown}, {"N": 2})
        np.testing.assert_allclose(made, [wanted], rtol=1e-6)


def test_a_softmax_times_that_of_the_negative() -> None:
    """The maximum of x and that of -x cancel with x, each once."""
    report = bb.check(bb.trace(lambda X: ops.sum(ops.softmax(X) * ops.softmax(-X), -1), X="M N"))
    assert report.ok, report


# ---------------------------------------------------------------- alternating normalisation


def sinkhorn(rounds: int):
    """A matrix of exponentials, scaled until its rows and columns sum to 1."""

    def program(X):
        kernel, v = ops.exp(X), None
        for _ in range(rounds):
            u = 1 / (kernel.sum(1) if v is None else kernel @ v)
            v = 1 / (kernel.T @ u)
        return u[:, None] * kernel * v[None, :]

    return bb.trace(program, X="M N")


@pytest.mark.parametrize("rounds", [1, 2])
def test_balanced_exponentials_are_as_exact_as_the_careful_program(rounds: int) -> None:
    """Factors for rows and columns have exponents of their own, which meet those of the matrix."""

    def program(C):
        kernel = ops.exp(C)
        u = 1 / kernel.sum(-1, keepdims=True)
        for _ in range(rounds):
            v = 1 / (kernel * u).sum(0, keepdims=True)
            u = 1 / (kernel * v).sum(-1, keepdims=True)
        return u * kernel * v

    traced = bb.trace(program, C="M N")
    wanted = ("ordinary", "rows at 10 to 1e5", "columns at 10 to 1e5", "saturated", "huge")
    cases = [case for case in bb.adversarial(traced) if case.name.endswith(wanted)]
    report = bb.check(traced, cases=cases)
    assert report.ok, report


@pytest.mark.parametrize("rules", ["paper", "extended"])
def test_alternating_normalisation(rules: str) -> None:
    """No list more than before fusion is made safe, and the error of the program as written."""
    x = np.float32(np.random.default_rng(0).normal(size=(50, 40)))
    tiles = {"M": 16, "N": 16}
    for rounds in (2, 3):
        program = sinkhorn(rounds)
        exact = bb.evaluate(program, {"X": np.float64(x)})["O"]
        made = bb.fuse(program, rules=rules)
        for raw, safe in zip(made.fused[-2:], made.snapshots[-2:], strict=True):
            assert len(buffered(safe)) <= len(buffered(raw)) + 1
            (written,), (careful,) = (bb.interpret(g, {"X": x}, tiles) for g in (raw, safe))
            assert distance(careful, exact) <= 2 * distance(written, exact)
        (shifted,) = bb.interpret(made.snapshots[-1], {"X": x + 100}, tiles)
        assert distance(shifted, exact) <= 200 * EPS["float32"] * np.linalg.norm(exact)


# ---------------------------------------------------------------- axes without elements


def gated(Q, K, V, G):
    return (ops.softmax(Q @ K.T) @ V) * ops.sigmoid(G)


def decode(q, K, V):
    return ops.softmax(K @ q) @ V


def biased(Q, K, V, s):
    scores = Q @ K.T
    return ops.softmax(scores + s * (ops.index(scores, 1) - ops.index(scores, 0))) @ V


def covariance(X):
    centred = X - ops.mean(X, 0, keepdims=True)
    return centred.T @ centred


def low_rank(X, W, A, B):
    x = ops.rmsnorm(X)
    return x @ W.T + (x @ A.T) @ B.T


EMPTY = [
    (gated, "N", {"Q": "M D", "K": "N D", "V": "N L", "G": "M L"}),
    (decode, "N", {"q": "D", "K": "N D", "V": "N L"}),
    (biased, "N", {"Q": "M D", "K": "N D", "V": "N L", "s": ""}),
    (covariance, "M", {"X": "M N"}),
    (low_rank, "R", {"X": "M K", "W": "N K", "A": "R K", "B": "N R"}),
    (low_rank, "K", {"X": "M K", "W": "N K", "A": "R K", "B": "N R"}),
    (lambda X: ops.exp(X).sum(-1), "N", {"X": "M N"}),
    (lambda X: ops.log(ops.exp(X).sum(-1)), "N", {"X": "M N"}),
    (lambda X: X.mean(-1), "N", {"X": "M N"}),
]


@pytest.mark.sweep(2, reason="each function, on one of the targets in turn")
@pytest.mark.parametrize(("function", "empty", "specs"), EMPTY)
@pytest.mark.parametrize("target", ["cpu", "interpret"])
def test_axes_without_elements(function, empty: str, specs: dict[str, str], target: str) -> None:
    """The answer is that of the program as it is written: 0, or NaN where it has NaN."""
    program = bb.trace(function, **specs)
    sizes = {"M": 5, "N": 6, "K": 4, "L": 3, "D": 4, "R": 2, empty: 0}
    rng = np.random.default_rng(0)
    inputs = {
        name: np.asarray(rng.normal(size=[sizes[axis] for axis in spec.split()]), np.float32)
        for name, spec in specs.items()
    }
    with np.errstate(all="ignore"):
        (exact,) = bb.evaluate(program, {n: np.float64(x) for n, x in inputs.items()}).values()
    for rules in ("paper", "extended"):
        made = bb.compile(program, target=target, rules=rules)
        with np.errstate(all="ignore"):
            for given in (inputs, {n: torch.from_numpy(x) for n, x in inputs.items()}):
                found = np.asarray(made(**given)[0])
                assert found.shape == exact.shape
                np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-6)


def test_a_float64_mask_is_lower_than_float32_goes() -> None:
    """Exponents are shared between the ends of the dtype that they have."""
    graph = bb.trace(lambda X: ops.softmax(X), X="M N", dtype=DType.float64)
    x = np.array([[-1e300, -1e300, -np.inf], [1e300, 0.0, 1e300]])
    for program in bb.fuse(graph).snapshots:
        (made,) = bb.interpret(program, {"X": x}, {"N": 1})
        np.testing.assert_array_equal(made, [[0.5, 0.5, 0.0], [0.5, 0.0, 0.5]])


def test_an_unfused_sum_has_the_exponents_of_its_dtype() -> None:
    raw = stored_as(lowered(lambda X: ops.exp(X).sum(-1), X="M N"), DType.float16)
    nodes = [node for _, inner in make_safe(raw).graph.walk() for node in inner.nodes.values()]
    (reduced,) = [node.op for node in nodes if isinstance(node.op, Reduce)]
    assert reduced.combiner is rescaled_sum(1)


def test_exponents_of_repeated_sums_are_few() -> None:
    """Rounds of Sinkhorn's algorithm add as many lists each: exponents do not pile up."""

    def rounds(count: int) -> int:
        def program(C):
            kernel = bb.ops.exp(C)
            u = 1 / bb.ops.sum(kernel, -1, keepdims=True)
            for _ in range(count):
                v = 1 / bb.ops.sum(kernel * u, 0, keepdims=True)
                u = 1 / bb.ops.sum(kernel * v, -1, keepdims=True)
            return {"O": u * kernel * v}

        return len(bb.buffered(bb.fuse(bb.trace(program, C="M N")).snapshots[0]))

    counts = [rounds(count) for count in (3, 4, 5)]
    assert counts[2] - counts[1] == counts[1] - counts[0]
