"""Every snapshot of every example is about as exact as PyTorch's own operators, on bad inputs too.

Both are compared with PyTorch in float64. PyTorch's error on a kind of inputs is the largest over
several seeds and several orders of the terms in its sums. A single run may be exact by luck. If a
result depends on the last digit of a score, every order gives another one.
"""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

import blockbuster_fusion as bb
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.safety.pipeline import make_safe
from blockbuster_fusion.safety.storage import stored_as
from blockbuster_fusion.tools.check.adversarial import Case
from blockbuster_fusion.tools.check.judge import relative_error
from helpers import torch_reference
from helpers.effort import crossed

SEEDS = 2
REFERENCE_SEEDS = 10
ORDERS = 2
TILE = 24
"""Divides none of the lengths."""

EXACT = {"float32": 2.0**-22, "bfloat16": 2.0**-8, "float16": 2.0**-11}
"""Errors that luck explains: four units in the last place of float32, one of other dtypes."""

DENORMAL = 2e-5
"""A norm's scale that has moved behind a dot comes too late for numbers around 1e-40, of which
float32 holds five digits: they have been multiplied and rounded before. PyTorch scales first."""

KINDS = (
    *("huge", "huge beside tiny", "rows at 10 to 1e5", "nearly constant", "denormal"),
    *("saturated", "zero"),
)
"""The kinds of inputs that the first array gets here; `bb.check` has more of them."""

torch.set_num_threads(1)


def chosen(program: bb.ArrayProgram, seed: int) -> Iterator[Case]:
    """Ordinary inputs, masks, and the first array of each of the kinds."""
    arrays = [i for i in program.inputs if i.type.dtype.is_float and len(i.type.axes) > 1]
    named = {f"{arrays[0].name}: {kind}" for kind in KINDS} if arrays else set()
    for case in bb.adversarial(program, seed=seed):
        if case.name in named or ": " not in case.name:
            yield case


def measured(name: str, dtype: str) -> dict[str, tuple[float, list[float]]]:
    """For each kind of inputs: PyTorch's error, and that of each snapshot."""
    program = bb.examples.find(name)
    narrow = getattr(torch, dtype)
    fused = bb.fuse(program).fused
    graphs = [make_safe(stored_as(graph, DType(dtype))).graph for graph in fused]
    references: dict[str, float] = {}
    own: dict[str, list[float]] = {}
    for seed in range(REFERENCE_SEEDS):
        for case in chosen(program, seed):
            inputs = {
                key: torch.from_numpy(x).to(narrow).float().numpy() if x.dtype.kind == "f" else x
                for key, x in case.inputs.items()
            }
            expected = torch_reference.run(program, inputs, torch.float64)
            for turned in reordered(program, inputs, seed):
                error = relative_error(torch_reference.run(program, turned, narrow), expected)
                references[case.name] = max(references.get(case.name, 0.0), error)
            if seed < SEEDS:
                errors = [relative_error(outputs(graph, inputs), expected) for graph in graphs]
                known = own.get(case.name, errors)
                own[case.name] = [max(pair) for pair in zip(known, errors, strict=True)]
    return {name: (references[name], found) for name, found in own.items()}


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


@pytest.mark.sweep(2)
@pytest.mark.parametrize(("name", "dtype"), crossed(list(bb.examples.EXAMPLES), list(EXACT)))
def test_at_most_twice_the_error_of_pytorch(name: str, dtype: str) -> None:
    for case, (reference, own) in measured(name, dtype).items():
        bound = max(2 * reference, EXACT[dtype])
        if case.endswith(": denormal"):
            if dtype != "float32" or np.isinf(reference):
                continue
            bound = max(bound, DENORMAL)
        assert max(own) <= bound, f"{case}: {own}, and PyTorch's {reference}"
