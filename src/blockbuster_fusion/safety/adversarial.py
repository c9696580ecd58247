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


def huge(x: Array, rng: Rng) -> Array:
    """Numbers up to some 1e5: as logits they overflow every exponential."""
    return x * np.float32(1e5)


def huge_beside_tiny(x: Array, rng: Rng) -> Array:
    """One row 1e8 times as large as the others: nobody may share its exponent."""
    x = x * np.float32(1e-4)
    x[..., :1, :] *= np.float32(1e8)
    return x


def offsets(x: Array, rng: Rng) -> Array:
    """Rows of standard deviation 1 around 10, 100, 1e3 and 1e4."""
    around = np.array([10, 100, 1e3, 1e4], np.float32)
    return np.asarray(x + np.resize(around, x.shape[:-1])[..., None], np.float32)


def nearly_constant(x: Array, rng: Rng) -> Array:
    """Rows around 1000 that vary by 0.01."""
    return np.float32(1e3) + x * np.float32(1e-2)


def denormal(x: Array, rng: Rng) -> Array:
    """Numbers so small that float32 holds only some of their digits."""
    return x * np.float32(1e-40)


def saturated(x: Array, rng: Rng) -> Array:
    """-1000 beside 5: the exponential of either's negative is inf or nearly 0."""
    return np.where(rng.random(x.shape) < 0.5, np.float32(-1000), np.float32(5))


def zero(x: Array, rng: Rng) -> Array:
    """Nothing at all."""
    return np.zeros_like(x)


KINDS: dict[str, Callable[[Array, Rng], Array]] = {
    "huge": huge,
    "huge beside tiny": huge_beside_tiny,
    "offsets": offsets,
    "nearly constant": nearly_constant,
    "denormal": denormal,
    "saturated": saturated,
    "zero": zero,
}
"""What is done to the program's first array of floats; others are ordinary."""


def infinite_mask(shape: Sequence[int], rng: Rng) -> Array:
    """-inf in half of the places, and in all but one of the first row."""
    mask = np.where(rng.random(shape) < 0.5, np.float32(-np.inf), np.float32(0))
    np.atleast_2d(mask)[..., :1, 1:] = -np.inf
    mask[..., 0] = 0
    return mask


def hidden_rows(shape: Sequence[int], rng: Rng) -> Array:
    """-1e30 in half of the places, and all along the first row: an even mean is left of it."""
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
"""What an input is that is a mask."""


def adversarial(
    program: ArrayProgram, sizes: Mapping[str, int] | None = None, seed: int = 0
) -> Iterator[Case]:
    """Cases for a program: ordinary inputs, then each kind of trouble, then masks if it has any.

    Inputs are normal numbers of standard deviation 1; vectors are near 1, as a norm's weights are.
    `sizes` gives symbols or axes; without one, they have lengths that no usual tile divides. An
    input whose name begins with "mask" is one that is added to scores.
    """
    lengths = _lengths(program, sizes or {})
    floats = [i for i in program.inputs if i.type.dtype.is_float and i.type.axes]
    first = next((i.name for i in floats if len(i.type.axes) > 1), None)
    yield Case("ordinary", _ordinary(program, lengths, np.random.default_rng(seed)))
    for name, change in KINDS.items():
        if first is not None:
            rng = np.random.default_rng(seed)
            inputs = _ordinary(program, lengths, rng)
            inputs[first] = change(np.asarray(inputs[first], np.float32), rng)
            yield Case(name, inputs)
    masks = [i for i in floats if i.name.lower().startswith("mask")]
    for name, make in MASKS.items() if masks else ():
        rng = np.random.default_rng(seed)
        inputs = _ordinary(program, lengths, rng)
        for given in masks:
            inputs[given.name] = make([lengths[axis] for axis in given.type.axes], rng)
        yield Case(name, inputs)


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
