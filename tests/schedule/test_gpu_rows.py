"""Predicted times of kernels that hold whole rows on a GPU, beside those of an H200."""

from collections.abc import Callable
from typing import Any

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.improve import Improver
from blockbuster_fusion.machine.machine import known
from blockbuster_fusion.schedule.cost import ERRORS

H200 = known()["h200"]
o = bb.ops


def logarithms(X: Any) -> Any:
    return X - o.log(o.sum(o.exp(X), -1, keepdims=True))


def chain(X: Any, Y: Any) -> Any:
    z = X
    for number in range(6):
        z = z * Y + X
        z = o.where(z > number, z * 0.5, z - 0.25)
        z = o.minimum(o.maximum(z, -4.0), 4.0)
    return z


MEASURED: list[tuple[str, Callable[..., Any], tuple[str, ...], tuple[int, int], float]] = [
    ("layer norm", lambda X, G, H: o.layernorm(X, G, H), ("M N", "N", "N"), (8192, 4096), 35.3),
    ("layer norm", lambda X, G, H: o.layernorm(X, G, H), ("M N", "N", "N"), (16384, 8192), 140.9),
    ("rms norm", lambda X, G: o.rmsnorm(X, G), ("M N", "N"), (4096, 4096), 18.6),
    ("rms norm", lambda X, G: o.rmsnorm(X, G), ("M N", "N"), (16384, 8192), 132.2),
    ("softmax", lambda X: o.softmax(X), ("M N",), (16384, 1000), 17.7),
    ("softmax", lambda X: o.softmax(X), ("M N",), (8192, 8192), 66.5),
    ("softmax", lambda X: o.softmax(X), ("M N",), (200_000, 100), 23.0),
    ("log softmax", logarithms, ("M N",), (8192, 8192), 66.1),
    ("row sums", lambda X: o.sum(X, -1), ("M N",), (16384, 8192), 59.4),
    ("negation", lambda X: -X, ("M N",), (16384, 8192), 127.2),
    ("long chain", chain, ("M N", "M N"), (8192, 4096), 59.1),
]
"""Programs with the axes of their arrays, their sizes, and measured microseconds: arrays of main
memory, by benchmarks/gpu_limits.py."""


@pytest.mark.parametrize(
    ("name", "function", "specs", "shape", "measured"),
    MEASURED,
    ids=[f"{name} {rows}x{columns}" for name, _, _, (rows, columns), _ in MEASURED],
)
def test_rows_are_predicted_as_measured(
    name: str,
    function: Callable[..., Any],
    specs: tuple[str, ...],
    shape: tuple[int, int],
    measured: float,
) -> None:
    """Programs that wait for a fold are hidden by others: each round was counted as if alone."""
    sizes = dict(zip("MN", shape, strict=True))
    program = bb.trace(function, *specs)
    request = Request(program, target="cuda", sizes=sizes, dtype="bfloat16", capability=90)
    improver = Improver(choose(request), H200)
    found = improver.seconds(improver.best(())[0], ()) * 1e6
    error, _ = ERRORS["cuda"]
    assert 1 / error <= measured / found <= error


def predicted(function: Callable[..., Any], specs: tuple[str, ...]) -> float:
    """Microseconds for a matrix of 16384 x 8192."""
    request = Request(
        bb.trace(function, *specs),
        target="cuda",
        sizes={"M": 16384, "N": 8192},
        dtype="bfloat16",
        capability=90,
    )
    improver = Improver(choose(request), H200)
    return improver.seconds(improver.best(())[0], ()) * 1e6


def test_main_memory_reads_faster_than_it_writes() -> None:
    """Else PyTorch's operator for a matrix and a vector (63.7 µs) seems faster than ours (60.6)."""
    product = predicted(lambda X, Y: X @ Y, ("M N", "N"))
    assert product < 0.98 * 63.7
    assert 2 * product < predicted(lambda X: -X, ("M N",))
