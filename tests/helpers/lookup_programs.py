"""Programs with lookups: as models have them, and random ones."""

import inspect
import random
from collections.abc import Callable

import numpy as np

import blockbuster_fusion as bb
from blockbuster_fusion import ops
from blockbuster_fusion.array.arrays import Array
from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.array.trace import array
from helpers.running import sizes_for

INTEGERS = {"ids": "S", "kinds": "S", "labels": "S", "at": "S R"}
FLOATS = {"W": "V D", "T": "L D", "P": "S D", "g": "D", "b": "D", "U": "E D", "X": "S V"}
"""The axes of the arguments of the forms."""


def embedding(ids: Array, W: Array) -> Array:
    return W[ids]


def embedding_and_norm(ids: Array, W: Array, P: Array, g: Array, b: Array) -> Array:
    return ops.layernorm(W[ids] + P, g, b)


def three_embeddings(
    ids: Array, kinds: Array, W: Array, P: Array, T: Array, g: Array, b: Array
) -> Array:
    return ops.layernorm(W[ids] + P + T[kinds], g, b)


def embedding_and_projection(ids: Array, W: Array, U: Array) -> Array:
    return ops.relu(ops.rmsnorm(W[ids]) @ U.T)


def tied_embedding(ids: Array, W: Array) -> Array:
    return ops.swish(W[ids]) @ W.T


def computed_table(ids: Array, W: Array, U: Array) -> Array:
    return (W @ U.T)[ids] * 2


def columns(ids: Array, U: Array) -> Array:
    return ops.take(U, ops.minimum(ids, 2), 1) + 1


def cross_entropy(labels: Array, X: Array) -> Array:
    return -ops.take_along_axis(ops.log_softmax(X), labels[:, None], 1)


def along_rows(at: Array, X: Array) -> Array:
    return ops.take_along_axis(X, at, 1) ** 2


def chosen_by_a_mask(ids: Array, W: Array, P: Array) -> Array:
    return ops.where((W > 0)[ids], P, -1.0)


FORMS: dict[str, Callable[..., Array]] = {
    form.__name__: form
    for form in (
        embedding,
        embedding_and_norm,
        three_embeddings,
        embedding_and_projection,
        tied_embedding,
        computed_table,
        columns,
        cross_entropy,
        along_rows,
        chosen_by_a_mask,
    )
}


def traced(name: str, batched: bool = False, **extents: int) -> ArrayProgram:
    """A form as an array program; `extents` fixes the lengths of axes."""
    function = FORMS[name]
    specs = {}
    for argument in inspect.signature(function).parameters:
        is_index = argument in INTEGERS
        axes = (INTEGERS if is_index else FLOATS)[argument].split()
        named = [f"{axis}:{extents[axis]}" if axis in extents else axis for axis in axes]
        if batched and is_index:
            named.insert(0, "B")
        specs[argument] = array(*named, dtype="int64" if is_index else "float32")
    return bb.trace(function, **specs)


def inputs_of(program: ArrayProgram, seed: int = 0, **extents: int) -> dict[str, np.ndarray]:
    """Inputs in float64; places are all over the shortest table, and in the first and last row."""
    rng = np.random.default_rng(seed)
    sizes = sizes_for(program, extents)
    made: dict[str, np.ndarray] = {}
    for given in program.inputs:
        shape = [sizes[axis.name] for axis in given.type.axes]
        if given.type.dtype.is_float:
            made[given.name] = rng.standard_normal(shape)
            continue
        length = sizes["L" if given.name == "kinds" else "V"] if "V" in sizes else 3
        at = rng.integers(0, length, shape)
        at.flat[:2] = [length - 1, 0][: at.size]
        made[given.name] = at
    return made


# ------------------------------------------------------------------------- random programs

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
                    x = ops.relu(x @ U.T) @ U * 0.1
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
