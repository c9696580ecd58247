"""Random programs with lookups: embeddings, tables that are computed, places that are computed."""

import random

import numpy as np

import blockbuster_fusion as bb
from blockbuster_fusion import ops
from blockbuster_fusion.array.arrays import Array
from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.array.trace import array

SIZES = {"M": 5, "N": 7, "V": 6, "T": 3, "D": 4, "E": 9, "B": 2}
"""No two alike."""


def lookup_program(seed: int) -> ArrayProgram:
    """A lookup, and a few operators before and after it; some of them are lookups too."""
    rng = random.Random(seed)
    batched = rng.random() < 0.3

    def program(ids: Array, more: Array, W: Array, T: Array, P: Array, g: Array, U: Array) -> Array:
        table = rng.choice([lambda: W, lambda: W * 2 + 1, lambda: ops.rmsnorm(W, g)])()
        x = table[ids] if rng.random() < 0.7 else ops.take(table, ops.minimum(ids, 2) + 0, 0)
        for _ in range(rng.randint(1, 4)):
            match rng.randint(0, 7):
                case 0:
                    x = x + P
                case 1:
                    x = ops.layernorm(x, g)
                case 2:
                    x = ops.softmax(x)
                case 3:
                    x = x + T[ids]  # the same places in another table
                case 4:
                    x = ops.relu(x @ U.T) @ U
                case 5:
                    x = x * ops.mean(ops.abs(x), axis=-1, keepdims=True)
                case 6:
                    x = ops.take_along_axis(x, more, -1) + x
                case 7:
                    x = x * ops.take(g, more, 0)
        if rng.random() < 0.3:
            x = ops.take(x, ids, -2) if not batched else x
        return x

    places = ("B", "M") if batched else ("M",)
    return bb.trace(
        program,
        array(*places, dtype=rng.choice(["int64", "int32"])),
        array(*places, "D", dtype="int64"),
        *("V D", "T D", "M D", "D", "E D"),
        batch="B" if batched and rng.random() < 0.5 else "",
    )


def lookup_inputs(program: ArrayProgram, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs in float64; all places are below the least of the tables."""
    rng = np.random.default_rng(seed)
    made: dict[str, np.ndarray] = {}
    for given in program.inputs:
        shape = [SIZES[axis.name] for axis in given.type.axes]
        if given.type.dtype.is_float:
            made[given.name] = rng.standard_normal(shape)
        else:
            made[given.name] = rng.integers(0, 3, shape).astype(given.type.dtype.value)
    return made
