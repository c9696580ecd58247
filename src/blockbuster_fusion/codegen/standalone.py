"""Standalone kernel files: the source of a program's kernels, with a small test of itself.

The test fills the inputs with numbers that any language can make again, runs the kernels and
compares some elements of the outputs with what the unfused program gives in float64.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockbuster_fusion.codegen.c_expr import HELD
from blockbuster_fusion.codegen.nest import (
    Buffer,
    Call,
    Clear,
    Kernel,
    Load,
    Lookup,
    Nest,
    Space,
)
from blockbuster_fusion.codegen.shapes import buffer_shape, contiguous, layout_order
from blockbuster_fusion.codegen.show import show_nest
from blockbuster_fusion.errors import NoKernel
from blockbuster_fusion.interp.tiling import Extents, Tiling
from blockbuster_fusion.interp.values import Numbers
from blockbuster_fusion.ir.types import DType

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
"""How many elements of each output are compared, where it has so many."""


def samples(number: int, shape: Sequence[int], dtype: DType, below: int | None = None) -> Array:
    """The elements of input `number`: between -1 and 1, scattered, in multiples of 2**-23.

    With `below` they are places in a table of that length.
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
    return Numbers(exact=False).rounded(numbers, dtype)


def places_below(nest: Nest, extents: Extents) -> dict[Buffer, int]:
    """The inputs that say where tables are looked up, and how long the shortest of these is."""
    found: dict[Buffer, int] = {}
    for kernel in nest.kernels:
        loads = {s.tile: s.source.buffer for s in kernel.statements if isinstance(s, Load)}
        for statement in kernel.statements:
            if isinstance(statement, Lookup) and statement.places in loads:
                buffer = loads[statement.places]
                length = extents.of(statement.source.spans[statement.axis].dim.axis)
                found[buffer] = min(length, found.get(buffer, length))
    return found


@dataclass(frozen=True, slots=True)
class Wanted:
    """Some elements of an output's array, counted along its memory, and how large it gets."""

    at: tuple[int, ...]
    values: tuple[float, ...]
    scale: float

    @staticmethod
    def of(array: Array) -> "Wanted":
        flat = np.asarray(array, np.float64).reshape(-1)
        at = scattered(flat.size)
        finite = np.abs(flat[np.isfinite(flat)])
        scale = max(float(finite.max(initial=0)), 1e-30)
        return Wanted(tuple(at), tuple(float(flat[i]) for i in at), scale)


def scattered(size: int) -> list[int]:
    """Places all over an array: the first, the last, and one at random of each stretch."""
    if size <= CHECKED:
        return list(range(size))
    edges = np.linspace(0, size, CHECKED + 1).astype(int)
    places = np.random.default_rng(0).integers(edges[:-1], edges[1:])
    return [0, *map(int, places[1:-1]), size - 1]


@dataclass(frozen=True, slots=True)
class Test:
    """What the test of a file needs: sizes are fixed in it."""

    nest: Nest
    tiling: Tiling
    wanted: Sequence[Wanted]
    """For each output."""

    @property
    def buffers(self) -> list[Buffer]:
        """Every array that has to be made, the inputs first."""
        found = dict.fromkeys(self.nest.inputs)
        found |= dict.fromkeys(view.buffer for view in self.nest.outputs)
        return list(found | dict.fromkeys(self.nest.between))

    def shape(self, buffer: Buffer) -> tuple[int, ...]:
        return buffer_shape(buffer, self.tiling)

    def order(self, buffer: Buffer) -> tuple[int, ...]:
        """In which order the axes of a buffer lie in memory."""
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
    def outputs(self) -> list[tuple[Buffer, Wanted]]:
        """The outputs whose arrays are made: each once, and no inputs."""
        found: dict[Buffer, Wanted] = {}
        for view, wanted in zip(self.nest.outputs, self.wanted, strict=True):
            if view.buffer not in self.nest.inputs:
                found.setdefault(view.buffer, wanted)
        return list(found.items())

    def steps(self) -> list[Kernel | Clear]:
        """What is run; a misc operator cannot be."""
        for step in self.nest.steps:
            if isinstance(step, Call):
                what = f"{step.op.namespace}.{step.op.name} is run by an executor"
                raise NoKernel(what=what, remedy="a standalone file has kernels only")
        return [step for step in self.nest.steps if isinstance(step, Kernel | Clear)]


def header(lines: Sequence[str], listing: str, nest: Nest) -> list[str]:
    """The comment at the top: how the file was made, the block program and the loop nest."""
    made = [*lines, "", "The block program:", "", *_indented(listing)]
    return [*made, "", "The loop nest, whose names the code uses:", "", *_indented(show_nest(nest))]


def _indented(text: str) -> list[str]:
    return [f"    {line}".rstrip() for line in text.rstrip().splitlines()]


# ---------------------------------------------------------------------------- C


def c_file(source: str, test: Test, comment: Sequence[str]) -> str:
    """A C file with kernels and a `main` that tests them."""
    head = ["/*", *(f" * {line}".rstrip().replace("*/", "* /") for line in comment), " */"]
    return "\n".join([*head, "", source.rstrip(), "", *_c_main(test), ""])


_C_HELPERS = """\
/* ------------------------------------------------------------------ the test of this file */

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Numbers between -1 and 1 that can be made again anywhere. */
static double sample(uint64_t at) {
    at += 0x9E3779B97F4A7C15u;
    at = (at ^ (at >> 30)) * 0xBF58476D1CE4E5B9u;
    at = (at ^ (at >> 27)) * 0x94D049BB133111EBu;
    at ^= at >> 31;
    return (double)(at >> 40) / 8388608.0 - 1.0;
}

static void *room(int64_t count, size_t size) {
    void *made = calloc(count > 0 ? (size_t)count : 1, size);
    if (made == NULL) {
        fprintf(stderr, "not enough memory\\n");
        exit(1);
    }
    return made;
}

/* The largest error of some elements, relative to the largest number of the array. */
static int check(const char *name, const double *found, const double *wanted, int count,
                 double scale, double tolerance) {
    double worst = 0.0;
    int good = 1;
    for (int i = 0; i < count; i++) {
        int same = found[i] == wanted[i] || (isnan(found[i]) && isnan(wanted[i]));
        double error = same ? 0.0 : fabs(found[i] - wanted[i]) / scale;
        good &= error <= tolerance; /* which NaN is not */
        if (error > worst) worst = error;
    }
    printf("%s: %s, largest error %.2g of %d elements (allowed: %.2g)\\n", name,
           good ? "ok" : "WRONG", worst, count, tolerance);
    return good;
}"""

_C_BFLOAT16 = """
static uint16_t narrowed(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

static double widened(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float made;
    memcpy(&made, &bits, sizeof made);
    return made;
}"""

_C_STORED = HELD | {DType.float16: "_Float16", DType.bfloat16: "uint16_t"}


def _c_main(test: Test) -> list[str]:
    lines = [*_C_HELPERS.splitlines()]
    if any(buffer.dtype is DType.bfloat16 for buffer in test.buffers):
        lines += _C_BFLOAT16.splitlines()
    below = test.places_below
    lines += ["", "int main(int argc, char **argv) {"]
    lines.append("    int threads = argc > 1 ? atoi(argv[1]) : 1;")
    for number, buffer in enumerate(test.buffers):
        kind, name, count = _C_STORED[buffer.dtype], array_name(buffer), test.count(buffer)
        axes = ", ".join(
            f"{a.dim} {n}" for a, n in zip(buffer.axes, test.shape(buffer), strict=True)
        )
        lines.append(f"    {kind} *{name} = room({count}, sizeof *{name}); /* {axes} */")
        if buffer in test.nest.inputs:
            sample = f"sample((uint64_t){number} << 32 | (uint64_t)i)"
            value = _c_value(buffer.dtype, sample, below.get(buffer))
            lines.append(f"    for (int64_t i = 0; i < {count}; i++) {name}[i] = {value};")
    for step in test.steps():
        lines += _c_step(step, test)
    lines.append("    int good = 1;")
    for buffer, wanted in test.outputs:
        lines += _c_check(buffer, wanted)
    return [*lines, '    puts(good ? "ok" : "WRONG");', "    return !good;", "}"]


def array_name(buffer: Buffer) -> str:
    """What a buffer's array is called in the test."""
    return f"array_{buffer.name}"


def _c_value(dtype: DType, number: str, below: int | None) -> str:
    if below is not None:
        return f"({HELD[dtype]})((1.0 + {number}) / 2.0 * {below})"
    if dtype is DType.bfloat16:
        return f"narrowed((float){number})"
    if dtype is DType.bool_:
        return f"{number} > 0.0"
    if not dtype.is_float:
        return f"({HELD[dtype]})(4.0 * {number})"
    return f"({_C_STORED[dtype]}){number}"


def _c_step(step: Kernel | Clear, test: Test) -> list[str]:
    if isinstance(step, Clear):
        name = array_name(step.buffer)
        return [f"    memset({name}, 0, {test.count(step.buffer)} * sizeof *{name});"]
    buffers = [b for b in step.buffers if b.space is Space.GLOBAL]
    strides = [stride for b in buffers for stride in test.strides(b)]
    sizes = test.tiling.extents.sizes
    values = [sizes[symbol] for symbol in step.symbols]
    return [
        "    {",
        f"        void *buffers[] = {{{', '.join(array_name(b) for b in buffers)}}};",
        f"        int64_t strides[] = {{{', '.join(map(str, [*strides, 0]))}}};",
        f"        int64_t sizes[] = {{{', '.join(map(str, [*values, 0]))}}};",
        f"        if ({step.name}(buffers, strides, sizes, threads)) {{",
        f'            fprintf(stderr, "{step.name}: not enough memory\\n");',
        "            return 1;",
        "        }",
        "    }",
    ]


def _c_check(buffer: Buffer, wanted: Wanted) -> list[str]:
    name, count = array_name(buffer), len(wanted.at)
    read = "widened({})" if buffer.dtype is DType.bfloat16 else "(double){}"
    places = ", ".join(map(str, wanted.at)) or "0"
    values = ", ".join(map(_c_number, wanted.values)) or "0"
    element = read.format(f"{name}[at[i]]")
    return [
        "    {",
        *wrapped(f"        static const int64_t at[] = {{{places}}};"),
        *wrapped(f"        static const double wanted[] = {{{values}}};"),
        f"        double found[{max(count, 1)}];",
        f"        for (int i = 0; i < {count}; i++) found[i] = {element};",
        f'        good &= check("{buffer.name}", found, wanted, {count}, {wanted.scale!r}, '
        f"{TOLERANCE[buffer.dtype]!r});",
        "    }",
    ]


def _c_number(x: float) -> str:
    if math.isnan(x):
        return "NAN"
    if math.isinf(x):
        return "INFINITY" if x > 0 else "-INFINITY"
    return repr(x)


def wrapped(line: str, width: int = 100) -> list[str]:
    """A long line of numbers on several."""
    lines, rest, margin = [], line, " " * 12
    while len(rest) > width and ", " in rest[:width].lstrip():
        at = rest.rindex(", ", 0, width)
        lines.append(rest[: at + 1])
        rest = margin + rest[at + 2 :]
    return [*lines, rest]
