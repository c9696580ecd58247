"""Every snapshot of every example is about as exact as PyTorch's own operators, on bad inputs too.

Both are compared with PyTorch in float64. Of each, the largest error over some seeds counts: a
single one may be exact by luck. PyTorch also runs with the terms of its sums in other orders: where
a result hangs on the last digit of a score, its error is that of the unluckiest order.
"""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

import blockbuster_fusion as bb
import torch_reference
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.safety.check import relative_error
from blockbuster_fusion.safety.safe import make_safe
from blockbuster_fusion.safety.storage import stored_as

SEEDS = range(3)
ORDERS = 4
TILE = 24
"""Divides none of the lengths."""

EXACT = {"float32": 2.0**-22, "bfloat16": 2.0**-8, "float16": 2.0**-11}
"""Four units in the last place of float32, one of what is stored otherwise: what luck may do."""

BEYOND = {"denormal"}
"""Inputs of which float32 holds a few digits only; they have a test of their own."""


def errors(name: str, dtype: str) -> Iterator[tuple[str, float, list[float]]]:
    """For each kind of inputs: PyTorch's error, and that of each snapshot."""
    program = bb.examples.find(name)
    narrow = getattr(torch, dtype)
    fused = bb.fuse(program).fused
    graphs = [make_safe(stored_as(graph, DType(dtype))).graph for graph in fused]
    found: dict[str, list[list[float]]] = {}
    for seed in SEEDS:
        for case in bb.adversarial(program, seed=seed):
            inputs = {
                key: torch.from_numpy(x).to(narrow).float().numpy() if x.dtype.kind == "f" else x
                for key, x in case.inputs.items()
            }
            expected = torch_reference.run(program, inputs, torch.float64)
            reference = max(
                relative_error(torch_reference.run(program, turned, narrow), expected)
                for turned in reordered(program, inputs, seed)
            )
            own = [relative_error(outputs(graph, inputs), expected) for graph in graphs]
            found.setdefault(case.name, []).append([reference, *own])
    for case_name, rows in found.items():
        reference, *own = (max(column) for column in zip(*rows, strict=True))
        yield case_name, reference, own


def reordered(
    program: bb.ArrayProgram, inputs: dict[str, np.ndarray], seed: int
) -> Iterator[dict[str, np.ndarray]]:
    """The inputs, and inputs for which all sums have their terms in another order."""
    yield inputs
    kept = {axis for out in program.outputs for axis in out.axes}
    kept |= {dict(op.attributes)["axis"] for op in program.operators if op.name == "index"}
    rng = np.random.default_rng(seed)
    for _ in range(ORDERS):
        orders: dict[object, np.ndarray] = {}
        turned = dict(inputs)
        for given in program.inputs:
            for at, axis in enumerate(given.type.axes):
                if axis not in kept:
                    length = inputs[given.name].shape[at]
                    order = orders.setdefault(axis, rng.permutation(length))
                    turned[given.name] = np.take(turned[given.name], order, at)
        yield turned


def outputs(graph: bb.Graph, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    tiles = {dim.name: TILE for dim in graph.dims if dim.packed and not dim.is_free}
    return dict(bb.interpret(graph, inputs, tiles).items())


@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize("name", bb.examples.EXAMPLES)
def test_at_most_twice_the_error_of_pytorch(name: str, dtype: str) -> None:
    for case, reference, own in errors(name, dtype):
        bound = max(2 * reference, EXACT[dtype])
        if case not in BEYOND:
            assert max(own) <= bound, f"{case}: {own}, and PyTorch's {reference}"


@pytest.mark.parametrize("name", bb.examples.EXAMPLES)
def test_denormal_inputs_stay_finite(name: str) -> None:
    """A scale that has moved behind a dot comes too late for numbers that are rounded before."""
    for case, reference, own in errors(name, "float32"):
        if case in BEYOND and np.isfinite(reference):
            assert max(own) <= max(2 * reference, 2e-5), case
