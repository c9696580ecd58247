"""Precision: every snapshot is as exact as the unfused program, or says that it is not."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.safety.pipeline import make_safe
from blockbuster_fusion.safety.storage import stored_as

ops = bb.ops
M, N, K, L = 13, 37, 11, 23
TILES = {"M": 8, "N": 8, "K": 8, "L": 8}
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """A program with its declarations, and inputs that make careless sums cancel."""

    name: str
    function: Callable[..., object]
    specs: dict[str, str]
    offsets: dict[str, float] = field(default_factory=dict)
    scales: dict[str, float] = field(default_factory=dict)

    def inputs(self) -> Arrays:
        rng = np.random.default_rng(7)
        made = {}
        for name, spec in self.specs.items():
            sizes = {"M": M, "N": N, "K": K, "L": L, "P": 5, "1": 1}
            shape = [sizes[axis] for axis in spec.split()]
            x = rng.standard_normal(shape) * self.scales.get(name, 1.0)
            made[name] = (x + self.offsets.get(name, 0.0)).astype(np.float32)
        return made

    def tiles(self) -> dict[str, int]:
        used = {axis for spec in self.specs.values() for axis in spec.split()}
        batch = {"M"} if "P" in used else set()
        return {axis: tile for axis, tile in TILES.items() if axis in used - batch}


CASES = [
    Case("norm", lambda x: ops.layernorm(x), {"x": "M N"}, {"x": 1e4}),
    Case("norm of two axes", lambda x: norm_of_two(x), {"x": "M N P"}, {"x": 1e4}),
    Case(
        "norm of a row shift",
        lambda x, g: ops.layernorm(x + g),
        {"x": "M N", "g": "M 1"},
        {"g": 1e3},
    ),
    Case(
        "norm of a row shift that takes an offset away",
        lambda x, g: ops.layernorm(x + g),
        {"x": "M N", "g": "M 1"},
        {"x": -1e3, "g": 1e3},
    ),
    Case(
        "norm of a column shift",
        lambda x, b: ops.layernorm(x + b),
        {"x": "M N", "b": "N"},
        {"x": 1e3},
    ),
    Case(
        "norm of a scalar shift",
        lambda x, s: ops.layernorm(x + s),
        {"x": "M N", "s": ""},
        {"s": 100.0},
        {"x": 0.05},
    ),
    Case(
        "norm of a shift, then a product",
        lambda x, g, w: ops.layernorm(x + g) @ w,
        {"x": "M N", "g": "M 1", "w": "N K"},
        {"x": -1e3, "g": 1e3},
    ),
    Case(
        "norm whose producer is computed again",
        lambda x, b: ops.softmax(ops.layernorm(x + b)),
        {"x": "M N", "b": "N"},
        {"x": 1e3},
    ),
    Case(
        "norm of a residual under a softmax",
        lambda x, y: ops.softmax(ops.layernorm(x + y)),
        {"x": "M N", "y": "M N"},
        {"x": 1e3},
    ),
    Case("norm of a norm", lambda x: ops.layernorm(ops.layernorm(x + x)), {"x": "M N"}, {"x": 1e3}),
    Case(
        "norm of a norm with an offset, then a product",
        lambda x, w, b, v: ops.layernorm(ops.layernorm(x, w, b)) @ v,
        {"x": "M N", "w": "N", "b": "N", "v": "N K"},
        {"x": 1e3, "b": 1e3},
    ),
    Case(
        "norm of a product",
        lambda x, v, w: ops.layernorm(x @ v) @ w,
        {"x": "M N", "v": "N L", "w": "L K"},
        {"x": 10.0, "v": 10.0},
    ),
    Case(
        "norm of a norm of a product",
        lambda x, v, w: ops.layernorm(ops.layernorm(x @ v) @ w),
        {"x": "M N", "v": "N L", "w": "L K"},
        {"x": 10.0, "v": 10.0, "w": 1.0},
    ),
    Case(
        "mean square of a shift",
        lambda x, g: ops.rmsnorm(x + g),
        {"x": "M N", "g": "M 1"},
        {"x": -1e3, "g": 1e3},
    ),
    Case(
        "product of a shift",
        lambda x, g, w: (x + g) @ w,
        {"x": "M N", "g": "M 1", "w": "N K"},
        {"x": -1e3, "g": 1e3},
    ),
    Case(
        "product of a shift by the maximum",
        lambda x, w: (x - x.max(-1, keepdims=True)) @ w,
        {"x": "M N", "w": "N K"},
        {"x": 1e3},
    ),
    Case(
        "norm under a softmax beside a weighted mean",
        lambda x, w: weighted_mean(x, w),
        {"x": "M N", "w": "N"},
        {"x": 1e2},
    ),
    Case(
        "norm and sum of one array",
        lambda x: ops.layernorm(x) * x.sum(-1, keepdims=True),
        {"x": "M N"},
        {"x": 1e3},
    ),
]


def norm_of_two(x):
    """A norm over the last two axes, as it is written out."""
    centred = x - x.mean((-2, -1), keepdims=True)
    return centred / ops.sqrt(ops.square(centred).mean((-2, -1), keepdims=True) + 1e-5)


def weighted_mean(x, w):
    """A mean that lacks a pivot only as long as the array that it is taken of does."""
    weighted = ops.softmax(ops.layernorm(x, w, w)) * x
    return weighted - weighted.mean((-2, -1), keepdims=True)


def errors(case: Case, rules: str) -> tuple[list[float], float, bb.Fusion]:
    """The error of each snapshot and of the unfused program, in norm, against float64."""
    program = bb.trace(case.function, **case.specs)
    fusion = bb.fuse(program, rules)
    inputs = case.inputs()
    exact = {name: x.astype(np.float64) for name, x in inputs.items()}
    graph = bb.lower(program)
    (wanted,) = bb.interpret(graph, exact, case.tiles())

    def error(graph: bb.Graph) -> float:
        (made,) = bb.interpret(graph, inputs, case.tiles())
        return float(np.linalg.norm(made - wanted) / np.linalg.norm(wanted))

    return [error(snapshot) for snapshot in fusion.snapshots], error(graph), fusion


FLOOR = 4 * np.finfo(np.float32).eps


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_snapshot_is_careful(case: Case) -> None:
    """No rule of the extended set loses digits: no error is more than twice the unfused one's."""
    found, unfused, fusion = errors(case, "extended")
    assert all(safe.precision.careful for safe in fusion.safety)
    assert max(found) <= max(2 * unfused, FLOOR)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_the_papers_rules_lose_is_said(case: Case) -> None:
    """A snapshot of the paper's rules is as exact as the unfused program, or is not careful."""
    found, unfused, fusion = errors(case, "paper")
    for error, safe in zip(found, fusion.safety, strict=True):
        assert error <= max(2 * unfused, FLOOR) or not safe.precision.careful


LOSSY = [case for case in CASES if case.name.startswith("product of a shift")]


@pytest.mark.parametrize("case", LOSSY, ids=lambda case: case.name)
def test_lossy_rewrites_are_undone_by_default(case: Case) -> None:
    """If no snapshot is careful, the program is fused again without the lossy rules."""
    found, unfused, fusion = errors(case, "paper")
    assert max(found) > 100 * unfused
    assert not any(safe.precision.careful for safe in fusion.safety)
    assert all(safe.precision.careful for safe in fusion.careful)
    assert {choice.kind for safe in fusion.careful for choice in safe.choices} == {"undone"}
    program = bb.trace(case.function, **case.specs)
    inputs = case.inputs()
    kernel = bb.compile(program, rules="paper", target="interpret")
    assert kernel.snapshot >= len(fusion.snapshots)
    exact = {name: x.astype(np.float64) for name, x in inputs.items()}
    (wanted,) = bb.interpret(bb.lower(program), exact)
    made = kernel(**inputs)
    assert np.linalg.norm(made - wanted) <= max(2 * unfused, FLOOR) * np.linalg.norm(wanted)


def test_a_loss_has_a_place_and_a_reason() -> None:
    case = LOSSY[0]
    fusion = bb.fuse(bb.trace(case.function, **case.specs), "paper")
    (first, *_) = fusion.safety
    assert "the shift does not come from a sum of the list" in str(first.precision)
    assert str(fusion.careful[0].precision) == "careful"


def test_a_narrow_result_is_not_read_back() -> None:
    """A result that is stored as bfloat16 is kept as float32 for whoever reads it."""

    def program(x):
        y = x * 3
        return {"Y": y, "Z": ops.rmsnorm(y)}

    traced = bb.trace(program, x="M N")
    x = np.random.default_rng(0).standard_normal((5, 40)).astype(np.float32)
    exact = x.astype(np.float64) * 3
    wanted = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-6)
    for raw in bb.fuse(traced).fused:
        graph = stored_as(raw, {"Y": DType.bfloat16})
        bb.verify(graph)
        made = bb.interpret(graph, {"x": x}, {"M": 4, "N": 8})
        assert np.linalg.norm(made["Z"] - wanted) <= FLOOR * np.linalg.norm(wanted)
        assert np.abs(made["Y"] - exact).max() <= 2.0**-8 * np.abs(exact).max()


def test_a_list_that_is_stored_narrow_gets_its_pivot_once() -> None:
    """A pivot is subtracted from a rounded copy of a row or from the row, not from both."""
    traced = bb.trace(lambda x, y: {"Z": ops.layernorm(x + y)}, x="M N", y="M N")
    rng = np.random.default_rng(0)
    inputs = {name: rng.integers(-8, 9, (5, 40)).astype(np.float32) + 64 for name in "xy"}
    exact = sum(x.astype(np.float64) for x in inputs.values())
    centred = exact - exact.mean(-1, keepdims=True)
    wanted = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    for raw in bb.fuse(traced).fused:
        graph = make_safe(stored_as(raw, DType.bfloat16)).graph
        made = bb.interpret(graph, inputs, {"M": 4, "N": 8})["Z"]
        assert np.abs(made - wanted).max() <= 2.0**-6 * np.abs(wanted).max()


def test_what_gets_a_pivot_back_keeps_its_dtype() -> None:
    """A mean that is stored as bfloat16 is one after it has got the pivot back."""

    def program(x):
        mean = x.mean(-2, keepdims=True)
        variance = (x * x).mean(-2, keepdims=True) - mean**2
        return {"Z": ((x - mean) * (variance + 1e-5) ** -0.5).max(-1)}

    for raw in bb.fuse(bb.trace(program, x="B M N")).fused:
        bb.verify(make_safe(stored_as(raw, DType.bfloat16)).graph)
