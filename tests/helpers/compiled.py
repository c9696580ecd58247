"""Programs and inputs for the tests of compiled kernels, and PyTorch's errors on them."""

import numpy as np
import torch

import blockbuster_fusion as bb
from blockbuster_fusion.tools.check.judge import relative_error
from helpers import torch_reference

NAMES = [
    "matmul-relu",
    "attention",
    "layernorm-matmul",
    "rmsnorm-swiglu",
    "multi-head-attention",
    "causal-grouped-query-attention",
    "sliding-window-attention",
    "layernorm-linear",
    "rmsnorm-swiglu-residual",
]
"""The paper's examples, and their realistic forms."""

EXACT = {"float64": 2.0**-50, "float32": 2.0**-22, "bfloat16": 2.0**-8, "float16": 2.0**-11}
"""Errors that luck explains: four units in the last place when computed, one when stored."""


def ragged_sizes(program: bb.ArrayProgram, seed: int, most: int = 300) -> dict[str, int]:
    """A length between 1 and `most` for every axis, small ones for batches and heads."""
    rng = np.random.default_rng(seed)
    packed = {d.axis for d in bb.lower(program).dims if d.packed}
    axes = dict.fromkeys(axis for given in program.inputs for axis in given.type.axes)
    return {
        axis.name: axis.extent
        if isinstance(axis.extent, int)
        else int(rng.integers(1, most + 1 if axis in packed else 4))
        for axis in axes
    }


def random_inputs(
    program: bb.ArrayProgram, sizes: dict[str, int], seed: int, dtype: str
) -> dict[str, torch.Tensor]:
    """Tensors of a dtype, in the order of the program's inputs."""
    rng = np.random.default_rng(seed)
    made = {}
    for given in program.inputs:
        x = rng.standard_normal([sizes[axis.name] for axis in given.type.axes])
        made[given.name] = torch.from_numpy(np.asarray(x)).to(getattr(torch, dtype))
    return made


def expected(program: bb.ArrayProgram, inputs: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """The results for the inputs in float64."""
    exact = {name: x.double().numpy() for name, x in inputs.items()}
    return torch_reference.run(program, exact, torch.float64)


def torch_error(
    program: bb.ArrayProgram, sizes: dict[str, int], dtype: str, seeds: int = 4
) -> float:
    """The largest error of PyTorch's own operators in a dtype, over several seeds.

    Where a mask leaves nothing of a row, -1e30 is infinite in float16 and PyTorch gives NaN: that
    allows nothing.
    """
    worst = 0.0
    for seed in range(seeds):
        inputs = random_inputs(program, sizes, seed, dtype)
        given = {name: x.double().numpy() for name, x in inputs.items()}
        found = torch_reference.run(program, given, getattr(torch, dtype))
        error = relative_error(found, expected(program, inputs))
        worst = max(worst, error if np.isfinite(error) else 0.0)
    return worst


def allowed(program: bb.ArrayProgram, sizes: dict[str, int], dtype: str) -> float:
    """Twice PyTorch's error."""
    return 2 * max(torch_error(program, sizes, dtype), EXACT[dtype])


def error_of(
    kernel: bb.Executable, program: bb.ArrayProgram, inputs: dict[str, torch.Tensor]
) -> float:
    """The error of a kernel against float64."""
    found = {name: x.double().numpy() for name, x in kernel(**inputs).items()}
    return relative_error(found, expected(program, inputs))
