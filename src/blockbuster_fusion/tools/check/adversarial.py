"""Inputs that break careless arithmetic, for any program."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blockbuster_fusion.array.lower import lower
from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.errors import BadExtent
from blockbuster_fusion.ir.axis import Axis

Array = NDArray[np.float32]
Rng = np.random.Generator


@dataclass(frozen=True, slots=True)
class Case:
    """Inputs of one kind for one program."""

    name: str
    inputs: dict[str, NDArray[np.generic]]


OFFSETS = np.array([10, 100, 1e3, 1e4, 1e5], np.float32)
SCALES = np.array([1e-3, 1e-2, 1e-1, 1, 10, 100, 1e3], np.float32)


def huge(x: Array, rng: Rng) -> Array:
    """Numbers up to some 1e5: as logits they overflow every exponential."""
    return x * np.float32(1e5)


def huge_beside_tiny(x: Array, rng: Rng) -> Array:
    """One row 1e8 times as large as the others: no other row may share its exponent."""
    x = x * np.float32(1e-4)
    x[..., :1, :] *= np.float32(1e8)
    return x


def offset_rows(x: Array, rng: Rng) -> Array:
    """Rows of standard deviation 1 around 10, 100, 1e3, 1e4 and 1e5."""
    return np.asarray(x + np.resize(OFFSETS, x.shape[:-1])[..., None], np.float32)


def offset_columns(x: Array, rng: Rng) -> Array:
    """Columns of standard deviation 1 around 10, 100, 1e3, 1e4 and 1e5."""
    return np.asarray(x + np.resize(OFFSETS, x.shape[-1:]), np.float32)


def scaled_rows(x: Array, rng: Rng) -> Array:
    """Rows of standard deviation 1e-3 to 1e3."""
    return np.asarray(x * np.resize(SCALES, x.shape[:-1])[..., None], np.float32)


def nearly_constant(x: Array, rng: Rng) -> Array:
    """Rows around 1000 that vary by 0.01."""
    return np.float32(1e3) + x * np.float32(1e-2)


def tiny(x: Array, rng: Rng) -> Array:
    """Numbers around 1e-30: their squares are 0, and their logarithms far from 0."""
    return x * np.float32(1e-30)


def denormal(x: Array, rng: Rng) -> Array:
    """Numbers so small that float32 holds only some of their digits."""
    return x * np.float32(1e-40)


def far_element(x: Array, rng: Rng) -> Array:
    """One element at 1e4."""
    x = x.copy()
    x[tuple(length // 2 for length in x.shape)] = 1e4
    return x


def far_column(x: Array, rng: Rng) -> Array:
    """One column around 1e4."""
    x = x.copy()
    x[..., x.shape[-1] // 2] += np.float32(1e4)
    return x


def far_first_block(x: Array, rng: Rng) -> Array:
    """The first third of the columns around 1e4, like attention sinks: no pivot for others."""
    x = x.copy()
    x[..., : -(-x.shape[-1] // 3)] += np.float32(1e4)
    return x


def saturated(x: Array, rng: Rng) -> Array:
    """-1000 beside 5: exp(-x) is inf for one and nearly 0 for the other."""
    return np.where(rng.random(x.shape) < 0.5, np.float32(-1000), np.float32(5))


def zero(x: Array, rng: Rng) -> Array:
    """Zeros of both signs."""
    return np.asarray(np.copysign(np.zeros_like(x), x))


def not_finite(x: Array, rng: Rng) -> Array:
    """Rows with inf, with -inf, with NaN, and one all -inf, beside ordinary ones."""
    x = x.copy()
    rows, at = x.reshape(-1, x.shape[-1]), x.shape[-1] // 2
    for row, value in zip(rows[1:4], (np.inf, -np.inf, np.nan), strict=False):
        row[at : at + 1] = value
    rows[4:5] = -np.inf
    return x


KINDS: dict[str, Callable[[Array, Rng], Array]] = {
    "huge": huge,
    "huge beside tiny": huge_beside_tiny,
    "rows at 10 to 1e5": offset_rows,
    "columns at 10 to 1e5": offset_columns,
    "rows times 1e-3 to 1e3": scaled_rows,
    "nearly constant": nearly_constant,
    "tiny": tiny,
    "denormal": denormal,
    "an element at 1e4": far_element,
    "a column at 1e4": far_column,
    "first block at 1e4": far_first_block,
    "saturated": saturated,
    "zero": zero,
}
"""Changes of an array with several axes; each array gets each of them, while others are
ordinary."""

NOT_FINITE = "not finite"
"""The change that only the program's first array with several axes gets: a product may not be
distributed over a sum, as fusion does, where a weight is infinite."""

VECTORS: dict[str, Callable[[Array, Rng], Array]] = {
    "at 1e3": lambda x, _: x + np.float32(1e3),
    "from 10 to 1e5": offset_columns,
    "times 1e3": lambda x, _: x * np.float32(1e3),
    "times 1e-3": lambda x, _: x * np.float32(1e-3),
    "an element at 1e4": far_element,
    "zero": zero,
}
"""Changes of an array with one axis."""

SCALARS: dict[str, float] = {"100": 100.0, "-1e4": -1e4, "1e5": 1e5, "1e-3": 1e-3, "0": 0.0}
"""Values of an input without axes."""


def infinite_mask(shape: Sequence[int], rng: Rng) -> Array:
    """-inf in half of the elements, and in all but one of the first row."""
    mask = np.where(rng.random(shape) < 0.5, np.float32(-np.inf), np.float32(0))
    np.atleast_2d(mask)[..., :1, 1:] = -np.inf
    mask[..., 0] = 0
    return mask


def hidden_rows(shape: Sequence[int], rng: Rng) -> Array:
    """-1e30 in half of the elements, and in the whole first row, which softmax then averages."""
    mask = np.where(rng.random(shape) < 0.5, np.float32(-1e30), np.float32(0))
    np.atleast_2d(mask)[..., :1, :] = -1e30
    return mask


def mixed_mask(shape: Sequence[int], rng: Rng) -> Array:
    """-inf, -1e30, -1e4, 0 and 1e4 side by side."""
    values = np.array([-np.inf, -1e30, -1e4, 0, 1e4], np.float32)
    mask = values[rng.integers(0, len(values), shape)]
    mask[..., 0] = np.maximum(mask[..., 0], np.float32(-1e4))
    return np.asarray(mask, np.float32)


MASKS: dict[str, Callable[[Sequence[int], Rng], Array]] = {
    "masks": infinite_mask,
    "hidden rows": hidden_rows,
    "mixed masks": mixed_mask,
}
"""The adversarial values of an input that is a mask."""


def adversarial(
    program: ArrayProgram, sizes: Mapping[str, int] | None = None, seed: int = 0
) -> Iterator[Case]:
    """Cases for a program: ordinary inputs, then each kind of trouble, then masks if it has any.

    Each float input in turn is changed, arrays, vectors and numbers, while the others are ordinary:
    normal numbers of standard deviation 1, and vectors near 1, as a norm's weights are. `sizes`
    gives symbols or axes; without one, they have lengths that no usual tile divides. An input whose
    name begins with "mask" is one that is added to scores.
    """
    lengths = _lengths(program, sizes or {})
    floats = [i for i in program.inputs if i.type.dtype.is_float]
    yield Case("ordinary", _ordinary(program, lengths, np.random.default_rng(seed)))
    first = next((i.name for i in floats if len(i.type.axes) > 1), None)
    for given in floats:
        changes = dict(_changes(len(given.type.axes)))
        if given.name == first:
            changes[NOT_FINITE] = not_finite
        for name, change in changes.items():
            rng = np.random.default_rng(seed)
            inputs = _ordinary(program, lengths, rng)
            if not inputs[given.name].size:
                continue
            inputs[given.name] = change(np.asarray(inputs[given.name], np.float32), rng)
            yield Case(f"{given.name}: {name}", inputs)
    masks = [i for i in floats if i.type.axes and i.name.lower().startswith("mask")]
    for name, make in MASKS.items() if masks else ():
        rng = np.random.default_rng(seed)
        inputs = _ordinary(program, lengths, rng)
        for given in masks:
            inputs[given.name] = make([lengths[axis] for axis in given.type.axes], rng)
        yield Case(name, inputs)


def _changes(rank: int) -> Mapping[str, Callable[[Array, Rng], Array]]:
    if rank > 1:
        return KINDS
    if rank:
        return VECTORS
    return {name: _number(value) for name, value in SCALARS.items()}


def _number(value: float) -> Callable[[Array, Rng], Array]:
    return lambda x, _: np.full_like(x, value)


def _lengths(program: ArrayProgram, sizes: Mapping[str, int]) -> dict[Axis, int]:
    axes = list(dict.fromkeys(axis for given in program.inputs for axis in given.type.axes))
    extents = list(dict.fromkeys(axis.extent for axis in axes))
    known = {axis.name for axis in axes} | {str(extent) for extent in extents}
    for name in sizes:
        if name not in known:
            problem = f"unknown; known are {', '.join(sorted(known))}"
            raise BadExtent(name=name, problem=problem)
    batch = {dim.axis.extent for dim in lower(program).dims if not dim.packed}
    made: dict[Axis, int] = {}
    for axis in axes:
        extent = axis.extent
        usual = 2 + extents.index(extent) % 2 if extent in batch else 29 + 4 * extents.index(extent)
        length = extent if isinstance(extent, int) else usual
        made[axis] = sizes.get(str(extent), sizes.get(axis.name, length))
    return made


def _ordinary(
    program: ArrayProgram, lengths: Mapping[Axis, int], rng: Rng
) -> dict[str, NDArray[np.generic]]:
    made: dict[str, NDArray[np.generic]] = {}
    for given in program.inputs:
        shape = [lengths[axis] for axis in given.type.axes]
        if not given.type.dtype.is_float:
            made[given.name] = rng.integers(0, 2, shape).astype(given.type.dtype.value)
            continue
        x = rng.standard_normal(shape).astype(np.float32)
        made[given.name] = x if len(shape) > 1 else 1 + x * np.float32(0.1)
    return made
