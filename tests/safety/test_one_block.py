"""Norms before a product whose weights are one block: the rows get the pivot, not the weights."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import blockbuster_fusion as bb
from blockbuster_fusion.tools.check.judge import relative_error
from helpers.compiled import EXACT

ops = bb.ops
SPECS = {"X": "M K", "W": "K N", "U": "K N", "B": "N"}
LENGTHS = {"M": 7, "K": 96, "N": 12}
OFFSETS = (10.0, 100.0, 1e3)
Norm = Callable[..., object]


def by_hand(x):
    """A LayerNorm that takes differences from the mean before it squares them."""
    centred = x - x.mean(-1, keepdims=True)
    variance = ops.square(centred).mean(-1, keepdims=True)
    return centred * ops.elementwise(lambda v: (v + 1e-5) ** -0.5, variance)


def product(norm: Norm) -> Callable[..., object]:
    return lambda X, W: norm(X) @ W


def with_bias(norm: Norm) -> Callable[..., object]:
    return lambda X, W, B: norm(X) @ W + B


def two_projections(norm: Norm) -> Callable[..., object]:
    def swiglu(X, W, U):
        x = norm(X)
        return ops.swish(x @ W) * (x @ U)

    return swiglu


def two_norms(norm: Norm) -> Callable[..., object]:
    return lambda X, W: norm(norm(X)) @ W


def traced(function: Callable[..., object]) -> bb.ArrayProgram:
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    return bb.trace(function, **{name: SPECS[name] for name in names})


@pytest.mark.parametrize(
    "unit", [(), ("N",), ("K", "N"), ("M", "N"), ("M", "K", "N")], ids=lambda unit: "".join(unit)
)
@pytest.mark.parametrize("norm", [ops.layernorm, by_hand], ids=["layernorm", "by hand"])
@pytest.mark.parametrize("form", [product, with_bias, two_projections, two_norms])
def test_precision(
    form: Callable[[Norm], Callable[..., object]], norm: Norm, unit: tuple[str, ...]
) -> None:
    """Twice the error of the norm by hand, unfused."""
    program, careful = traced(form(norm)), traced(form(by_hand))
    snapshots = bb.fuse(program, unit=unit).snapshots
    for offset in OFFSETS:
        rng = np.random.default_rng(0)
        inputs = {}
        for given in program.inputs:
            x = rng.standard_normal([LENGTHS[axis.name] for axis in given.type.axes])
            inputs[given.name] = np.float32(x + offset if given.name == "X" else x)
        wanted = bb.evaluate(careful, {name: np.float64(x) for name, x in inputs.items()})
        unfused = relative_error(bb.evaluate(careful, inputs), wanted)
        for graph in snapshots:
            tiles = {d: 40 if d == "K" else 5 for d in LENGTHS if d not in unit}
            found = bb.interpret(graph, inputs, tiles)
            assert relative_error(found, wanted) <= 2 * max(unfused, EXACT["float32"])


@pytest.mark.parametrize("unit", [("N",), ("K", "N")], ids=lambda unit: "".join(unit))
def test_the_weights_stay_as_they_are(unit: tuple[str, ...]) -> None:
    for graph in bb.fuse(traced(product(ops.layernorm)), unit=unit).snapshots:
        assert "row_shift" in bb.show(graph)
        assert "col_shift" not in bb.show(graph)


@pytest.mark.parametrize("sizes", [(64, 8), (256, 64)])
@pytest.mark.parametrize("offset", OFFSETS)
def test_compiled(sizes: tuple[int, int], offset: float) -> None:
    bb.register_backend()
    torch._dynamo.reset()
    width, columns = sizes
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(3, width, generator=draw) + offset
    w, b = torch.randn(columns, width, generator=draw), torch.randn(columns, generator=draw)

    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.linear(F.layer_norm(x, (width,)), w, b)

    with torch.no_grad():
        made = torch.compile(function, backend="blockbuster")(x, w, b)
        wanted = {"": function(x.double(), w.double(), b.double()).numpy()}
        errors = [relative_error({"": y.numpy()}, wanted) for y in (made, function(x, w, b))]
    assert errors[0] <= 2 * max(errors[1], EXACT["float32"])
