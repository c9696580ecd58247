"""Standalone kernel files: the source of a program's kernels, with a small test of itself.

The test fills the inputs with reproducible numbers, runs the kernels, and compares some elements of
the outputs with the results of the unfused program in float64.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockbuster_fusion.errors import NoKernel
from blockbuster_fusion.host.numbers import NumericMode
from blockbuster_fusion.ir.axis import Axis, Dim, Symbol
from blockbuster_fusion.ir.tiling import Extents, Tiling
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.listing import show_nest
from blockbuster_fusion.nest.nest import (
    Along,
    Buffer,
    BufferAxis,
    Call,
    Clear,
    Launchable,
    Load,
    Nest,
    is_placed,
)
from blockbuster_fusion.nest.shapes import buffer_shape, contiguous, layout_order

Array = NDArray[Any]

TOLERANCE = {
    DType.float64: 1e-12,
    DType.float32: 2e-5,
    DType.float16: 4e-3,
    DType.bfloat16: 3e-2,
    DType.int64: 0.0,
    DType.int32: 0.0,
    DType.bool_: 0.0,
}
"""The error that is allowed, relative to the largest number of an output."""

CHECKED = 96
"""The number of elements of each output that are compared."""


def samples(number: int, shape: Sequence[int], dtype: DType, below: int | None = None) -> Array:
    """The elements of input `number`: between -1 and 1, scattered, in multiples of 2**-23.

    With `below` they are indices of a table of that length.
    """
    at = np.arange(int(np.prod(shape)), dtype=np.uint64) + np.uint64(number << 32)
    at += np.uint64(0x9E3779B97F4A7C15)
    at = (at ^ (at >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    at = (at ^ (at >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    at ^= at >> np.uint64(31)
    numbers: Array = ((at >> np.uint64(40)).astype(np.float64) / 2**23 - 1).reshape(shape)
    if dtype is DType.bool_:
        return np.asarray(numbers > 0)
    if below is not None:
        return np.asarray(np.trunc((1 + numbers) / 2 * below), dtype.value)
    if not dtype.is_float:
        return np.asarray(np.trunc(4 * numbers), dtype.value)
    return NumericMode(exact=False).rounded(numbers, dtype)


def places_below(nest: Nest, extents: Extents) -> dict[Buffer, int]:
    """The inputs that are indices of lookups, each with the length of its shortest table."""
    found: dict[Buffer, int] = {}
    for kernel in nest.kernels:
        loads = {s.tile: s.source.buffer for s in kernel.statements if isinstance(s, Load)}
        for statement in kernel.statements:
            if is_placed(statement) and statement.places in loads:
                buffer = loads[statement.places]
                length = extents.of(statement.along)
                found[buffer] = min(length, found.get(buffer, length))
    return found


@dataclass(frozen=True, slots=True)
class ExpectedElements:
    """Some elements of an output, by their offset in memory, and its largest magnitude."""

    at: tuple[int, ...]
    values: tuple[float, ...]
    scale: float

    @staticmethod
    def of(array: Array) -> "ExpectedElements":
        flat = np.asarray(array, np.float64).reshape(-1)
        at = scattered(flat.size)
        finite = np.abs(flat[np.isfinite(flat)])
        scale = max(float(finite.max(initial=0)), 1e-30)
        return ExpectedElements(tuple(at), tuple(float(flat[i]) for i in at), scale)


def scattered(size: int) -> list[int]:
    """Indices all over an array: the first, the last, and a random one of each section."""
    if size <= CHECKED:
        return list(range(size))
    edges = np.linspace(0, size, CHECKED + 1).astype(int)
    places = np.random.default_rng(0).integers(edges[:-1], edges[1:])
    return [0, *map(int, places[1:-1]), size - 1]


@dataclass(frozen=True, slots=True)
class FileTest:
    """The test of a file: a loop nest, sizes and tiles, and the expected outputs."""

    nest: Nest
    tiling: Tiling
    wanted: Sequence[ExpectedElements]
    """The expected elements of each output."""

    @property
    def buffers(self) -> list[Buffer]:
        """Every array that is allocated, the inputs first."""
        found = dict.fromkeys(self.nest.inputs)
        found |= dict.fromkeys(view.buffer for view in self.nest.outputs)
        return list(found | dict.fromkeys(self.nest.between))

    def shape(self, buffer: Buffer) -> tuple[int, ...]:
        return buffer_shape(buffer, self.tiling)

    def order(self, buffer: Buffer) -> tuple[int, ...]:
        """The axes of a buffer in the order of memory, outermost first."""
        for view, layout in zip(self.nest.outputs, self.nest.layouts, strict=True):
            if view.buffer is buffer and buffer not in self.nest.inputs:
                return layout_order(view, layout)
        return tuple(range(len(buffer.axes)))

    def strides(self, buffer: Buffer) -> tuple[int, ...]:
        return contiguous(self.shape(buffer), self.order(buffer))

    def count(self, buffer: Buffer) -> int:
        return int(np.prod(self.shape(buffer), dtype=np.int64))

    @property
    def places_below(self) -> dict[Buffer, int]:
        return places_below(self.nest, self.tiling.extents)

    @property
    def outputs(self) -> list[tuple[Buffer, ExpectedElements]]:
        """The outputs that are allocated: each once, and no inputs."""
        found: dict[Buffer, ExpectedElements] = {}
        for view, wanted in zip(self.nest.outputs, self.wanted, strict=True):
            if view.buffer not in self.nest.inputs:
                found.setdefault(view.buffer, wanted)
        return list(found.items())

    def steps(self) -> list[Launchable | Clear]:
        """The launches and clears that are run, in order; NoKernel if there is a misc operator."""
        for step in self.nest.steps:
            if isinstance(step, Call):
                what = f"{step.op.namespace}.{step.op.name} is run by an executor"
                raise NoKernel(what=what, remedy="a standalone file has kernels only")
        return [step for step in self.nest.steps if isinstance(step, Launchable | Clear)]


LengthText = int | str
"""A number, or the text of one that depends on sizes."""


def total(terms: Iterable[LengthText]) -> LengthText:
    """A sum, as a number where all terms are numbers."""
    terms = list(terms)
    numbers = [x for x in terms if isinstance(x, int)]
    return sum(numbers) if len(numbers) == len(terms) else " + ".join(map(str, terms))


def product(factors: Iterable[LengthText]) -> LengthText:
    """A product, as a number where all factors are numbers."""
    factors = list(factors)
    known = math.prod(f for f in factors if isinstance(f, int))
    texts = [f for f in factors if isinstance(f, str)]
    if not texts or known == 0:
        return known
    return " * ".join([*([str(known)] if known != 1 else []), *texts])


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of axes and blocks in the code that calls the kernels."""

    size: Callable[[Symbol], str]
    """The name of a size."""
    block: Callable[[Dim], LengthText]
    """The length of the blocks of a dim; 1 for a dim that is walked one index at a time."""
    quotient: str
    """The function that divides and rounds up."""

    def extent(self, axis: Axis) -> LengthText:
        """The length of an axis."""
        return axis.extent if isinstance(axis.extent, int) else self.size(axis.extent)

    def count(self, dim: Dim) -> LengthText:
        """The number of blocks of a dim."""
        extent, block = self.extent(dim.axis), self.block(dim)
        if dim.unit:
            return 1
        if block == 1:
            return extent
        if isinstance(extent, int) and isinstance(block, int):
            return -(-extent // block)
        return f"{self.quotient}({extent}, {block})"

    def along(self, axis: BufferAxis) -> LengthText:
        """The number of a buffer's entries along an axis."""
        match axis.along:
            case Along.AXIS:
                return self.extent(axis.dim.axis)
            case Along.BLOCKS:
                return self.count(axis.dim)
            case Along.BLOCK:
                return self.block(axis.dim)
            case Along.PADDED:
                return product([self.count(axis.dim), self.block(axis.dim)])


def header(lines: Sequence[str], listing: str, nest: Nest) -> list[str]:
    """The comment at the top: the commands, the block program and the loop nest."""
    made = [*lines, "", "The block program:", "", *_indented(listing)]
    return [*made, "", "The loop nest, whose names the code uses:", "", *_indented(show_nest(nest))]


def _indented(text: str) -> list[str]:
    return [f"    {line}".rstrip() for line in text.rstrip().splitlines()]


def array_name(buffer: Buffer) -> str:
    """The name of a buffer's array in the test."""
    return f"array_{buffer.name}"


def wrapped(line: str, width: int = 100) -> list[str]:
    """A long line broken into several."""
    lines, rest, margin = [], line, " " * 12
    while len(rest) > width and ", " in rest[:width].lstrip():
        at = rest.rindex(", ", 0, width)
        lines.append(rest[: at + 1])
        rest = margin + rest[at + 2 :]
    return [*lines, rest]
