"""Products whose operands printed Triton kernels load by tensor descriptors."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

import blockbuster_fusion as bb
from blockbuster_fusion.compiler import with_known_sizes
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.nest import Nest
from blockbuster_fusion.nest.passes.join_grids import join_grids
from blockbuster_fusion.safety.storage import stored_as
from blockbuster_fusion.schedule.schedule import Schedule, scheduled
from blockbuster_fusion.tools.check.judge import relative_error

LARGE = 1 << 13
"""More elements than an input has."""
ALIGNED = {"M": 37, "K": 72, "N": 56}
"""Rows begin at multiples of 16 bytes, but blocks are not full."""
FEW = {"M": 5, "K": 72, "N": 88}
"""Few rows, and many columns."""
TURNED = (lambda X, W: {"O": X @ W.T}, ("M K", "N K"))
STRAIGHT = (lambda X, W: {"O": X @ W}, ("M K", "K N"))
GATED = (lambda X, W, V: {"O": bb.ops.silu(X @ W) * (X @ V)}, ("M K", "K N", "K N"))
GATED_ROWS = (lambda X, W, V: {"O": bb.ops.silu(X @ W.T) * (X @ V.T)}, ("M K", "N K", "N K"))
TWO = (lambda X, W, V, U: {"O": X @ W, "P": V @ U}, ("M K", "K N", "I J", "J L"))
NORMED = (lambda X, W: {"O": bb.ops.rmsnorm(X) @ W}, ("M K", "K N"))
JOINED = Schedule(described=True, joined=True)
PLAIN, TURNS = Schedule(described=True), Schedule(described=True, programs=3)
CASES: Mapping[str, tuple[tuple[Any, ...], dict[str, int], Schedule, int]] = {
    "turned": (TURNED, ALIGNED, PLAIN, 2),
    "straight": (STRAIGHT, ALIGNED, PLAIN, 2),
    "gated": (GATED, ALIGNED, PLAIN, 3),
    "turns": (TURNED, ALIGNED, TURNS, 3),
    "turns, straight": (STRAIGHT, ALIGNED, TURNS, 3),
    "turns, gated": (GATED, ALIGNED, TURNS, 4),
    "shared sum": (STRAIGHT, ALIGNED, Schedule(described=True, split={"K": 2}), 2),
    "padded": (TURNED, {"M": 37, "K": 45, "N": 51}, Schedule(described=True, padded=True), 2),
    "padded, turns": (
        STRAIGHT,
        {"M": 37, "K": 45, "N": 51},
        Schedule(described=True, padded=True, programs=3),
        2,  # the rows of the result are not aligned
    ),
    "one aligned": (STRAIGHT, {"M": 33, "K": 45, "N": 48}, PLAIN, 1),
    "not aligned": (STRAIGHT, {"M": 33, "K": 45, "N": 51}, TURNS, 0),
    "less than a block": (TURNED, {"M": 3, "K": 8, "N": 5}, PLAIN, 2),
    "few rows": (TURNED, FEW, Schedule(described=True, transposed=True), 2),
    "few rows, straight": (STRAIGHT, FEW, Schedule(described=True, transposed=True), 2),
    "few rows, gated": (GATED, FEW, Schedule(transposed=True), 0),
    "few rows, turns": (TURNED, FEW, Schedule(described=True, transposed=True, programs=3), 3),
    "few rows, shared sum": (TURNED, FEW, Schedule(transposed=True, split={"K": 2}), 0),
    "together": (
        TWO,
        {**ALIGNED, "I": 40, "J": 24, "L": 32},
        Schedule(described=True, together=True),
        0,
    ),
    "joined": (GATED_ROWS, ALIGNED, JOINED, 2),
    "joined, swapped": (GATED_ROWS, ALIGNED, JOINED, 2),
    "joined, turns": (GATED_ROWS, ALIGNED, replace(JOINED, programs=3), 3),
    "joined, turns, swapped": (GATED_ROWS, ALIGNED, replace(JOINED, programs=3), 3),
    "joined, shared sum": (GATED_ROWS, ALIGNED, replace(JOINED, split={"K": 2}), 2),
    "joined, one array": (GATED_ROWS, ALIGNED, JOINED, 3),
    "joined, not aligned": (GATED_ROWS, {"M": 33, "K": 45, "N": 51}, JOINED, 0),
    "joined, straight": (GATED, ALIGNED, JOINED, 3),  # columns of both do not lie side by side
    "a norm before": (NORMED, ALIGNED, PLAIN, 1),  # X is also squared
}
"""Programs, sizes and schedules, and the number of descriptors that launches are given."""


def described_nest(name: str, dtype: DType) -> Nest:
    (function, specs), sizes, schedule, _ = CASES[name]
    graph = with_known_sizes(bb.lower(bb.trace(function, *specs)), sizes)
    fused = bb.fuse(graph).fused[-1 if name.startswith("a norm") else 0]
    nest = scheduled(stored_as(fused, dtype), "product", schedule)
    return join_grids(nest) if schedule.together else nest


def described_errors() -> Iterator[dict[str, object]]:
    """The errors of products in float16, those of rounding alone, and the descriptors."""
    from blockbuster_fusion.runtime.triton.descriptors import Matrix
    from helpers import triton_runner

    rng = np.random.default_rng(0)
    for name, ((function, specs), sizes, _, _) in CASES.items():
        nest = described_nest(name, DType.float16)
        given = {
            array: rng.standard_normal([sizes[axis] for axis in axes.split()])
            for array, axes in zip("XWVU", specs, strict=False)
        }
        given = {array: x.astype(np.float16).astype(np.float64) for array, x in given.items()}
        tiles = {d: 16 for k in nest.kernels for d in k.dims if d.packed and not d.unit}
        if name == "joined, one array":
            given["V"] = given["W"]
        exact = bb.evaluate(bb.trace(function, *specs), given)
        rounded = {array: x.astype(np.float16).astype(np.float64) for array, x in exact.items()}
        with (
            patch.object(Matrix, "at", autospec=True, side_effect=Matrix.at) as at,
            patch.object(Matrix, "joined", autospec=True, side_effect=Matrix.joined) as joined,
        ):
            made = triton_runner.run(nest, given, tiles, placed=Placing(name))
        yield {
            "case": name,
            "error": relative_error(made, exact),
            "rounding": relative_error(rounded, exact),
            "descriptors": at.call_count + joined.call_count,
        }


class Placing:
    """Places the inputs of joined products in one piece of memory, one after the other."""

    def __init__(self, name: str) -> None:
        self.name, self.memory, self.count = name, None, 0

    def __call__(self, given: Any, before: Mapping[Any, Any]) -> Any:
        """A copy of an input: in turn, or from the end on, or where the one before is."""
        if not self.name.startswith("joined"):
            return given
        if self.name == "joined, one array" and len(before) == 2:
            return [*before.values()][-1]
        if self.memory is None:
            self.memory = given.new_full((4 * LARGE,), float("nan"))
        self.count += 1
        at = (4 - self.count if self.name.endswith("swapped") else self.count - 1) * LARGE
        place = self.memory[at : at + given.numel()].view(given.shape)
        return place.copy_(given)


def described_resources() -> Iterator[dict[str, object]]:
    """The instructions of products on a GPU: all operands are copied in blocks."""
    from blockbuster_fusion.printers.triton.kernel import print_triton
    from blockbuster_fusion.runtime.triton.resources import compile_for

    for name in CASES:
        nest = described_nest(name, DType.bfloat16)
        tiles = {d: 64 for k in nest.kernels for d in k.dims if d.packed and not d.unit}
        made = compile_for(nest, print_triton(nest), 90, sizes={}, tiles=tiles)
        text = "".join(x.assembly for x in made.values())
        yield {
            "case": name,
            "loads": "cp.async.bulk.tensor.2d.shared" in text,
            "joined": "cp.async.bulk.tensor.3d.shared" in text,
            "widest": max(map(int, re.findall(r"wgmma\S*\.m64n(\d+)k16", text)), default=0),
            "stores": "cp.async.bulk.tensor.2d.global" in text,
            "spilled": sum(x.stack for x in made.values()),
        }
