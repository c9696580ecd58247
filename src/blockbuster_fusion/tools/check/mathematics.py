"""Checks the bounds of the mathematics in C: over all float32 numbers, and samples of float64.

A C program for each function runs it in vectors, as kernels do, and compares each result with the
C library in a wider type: double for float32, long double for float64.
"""

import ctypes
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.printers.c.expressions import ExpressionWriter, Need
from blockbuster_fusion.printers.c.kernel_text import CText
from blockbuster_fusion.printers.c.mathematics.batches import BATCH
from blockbuster_fusion.printers.c.mathematics.bounds import BOUNDS, BoundedFunction
from blockbuster_fusion.printers.c.prelude import prelude
from blockbuster_fusion.printers.c.steps import Step, has_batches, in_forms
from blockbuster_fusion.progress import doing
from blockbuster_fusion.runtime.c.compiler import compile_c
from blockbuster_fusion.runtime.c.library import load_library
from blockbuster_fusion.tools.check.mathematics_source import SOURCE

ALL = 1 << 32
SAMPLE = 1 << 24
"""The number of arguments in a sample by default."""
CHUNK = 1 << 24


@dataclass(frozen=True, slots=True)
class MathFinding:
    """The largest error of a function, and the arguments that have it."""

    function: BoundedFunction
    dtype: str
    count: int
    ulp: float
    arguments: tuple[float, ...]

    @property
    def ok(self) -> bool:
        return self.ulp <= self.function.bound(self.dtype)

    def __str__(self) -> str:
        at = ", ".join(
            f"{x:.17g}" if self.dtype == "float64" else f"{x:.9g}" for x in self.arguments
        )
        name, bound = self.function.name, self.function.bound(self.dtype)
        verdict = "" if self.ok else "  exceeds its bound"
        return f"{name:9} {self.dtype} {self.ulp:8.3f} {bound:6.1f} {self.count:11}  {at}{verdict}"


HEADER = f"{'function':9} {'dtype':7} {'ulp':>8} {'bound':>6} {'arguments':>11}  worst at"


def check_mathematics(
    names: Sequence[str] = (),
    dtypes: Sequence[str] = ("float32", "float64"),
    *,
    every: int = 1,
    sample: int = SAMPLE,
    threads: int | None = None,
) -> Iterator[MathFinding]:
    """The largest errors of functions, one after the other.

    A function of one float32 is computed for every number, or `every` so many of them; others
    for a `sample` of arguments.
    """
    for name in names:
        if name not in BOUNDS:
            known = ", ".join(BOUNDS)
            raise BlockbusterError(
                message=f"mathematics: unknown function {name!r}; known: {known}"
            )
    for name in names or BOUNDS:
        for dtype in dtypes:
            yield _checked(BOUNDS[name], dtype, every, sample, threads or os.cpu_count() or 1)


def _checked(
    function: BoundedFunction, dtype: str, every: int, sample: int, threads: int
) -> MathFinding:
    run = _program(function, dtype)
    is_full = dtype == "float32" and function.arity == 1
    count = -(-ALL // every) if is_full else sample
    worst = (ctypes.c_double * 3)(-1.0, 0.0, 0.0)
    with doing(f"checking {function.name} of {dtype}", -(-count // CHUNK)) as task:
        for first in range(0, count, CHUNK):
            length = min(CHUNK, count - first)
            run(int(is_full), first, length, every, threads, worst)
            task.step()
    arguments = tuple(worst)[1 : 1 + function.arity]
    return MathFinding(function, dtype, count, worst[0], arguments)


def _program(function: BoundedFunction, dtype: str) -> "ctypes._NamedFuncPointer":
    """The compiled program of a function."""
    library = load_library(compile_c(program_text(function, dtype)).content)
    run = library.check
    run.restype = None
    run.argtypes = [ctypes.c_int, *[ctypes.c_int64] * 4, ctypes.POINTER(ctypes.c_double)]
    return run


def batch_text(function: BoundedFunction, dtype: str, needs: set[Need], result: str) -> str:
    """Statements that compute a function of a batch of x, and of y, as kernels do."""
    out, own = CText(needs), DType(dtype)
    texts, writer = ["x[at + w]", "y[at + w]"], ExpressionWriter(str, needs)

    def write(batches: bool) -> None:
        step = Step(out, BATCH, batches=batches)
        made = writer.at_once(function.expr, texts, [own] * function.arity, own, step.call)
        step.effect(f"{result}[at + w] = {made};")
        step.end()

    in_forms(out, has_batches(function.expr, own), write)
    return "\n".join(out.lines)


def program_text(function: BoundedFunction, dtype: str) -> str:
    """The C program that checks a function."""
    needs: set[Need] = {("sigmoid", "float64"), ("sigmoid", dtype)}  # for the bits of arguments
    wide = {
        "float32": ("float", "double", "", 24, 127),
        "float64": ("double", "long double", "l", 53, 1023),
    }
    c_type, wider, suffix, digits, bias = wide[dtype]
    replaced = {
        "DTYPE": dtype,
        "NARROW": c_type,
        "BROAD": wider,
        "FUNCTION": batch_text(function, dtype, needs, "found"),
        "REFERENCE": function.reference.format(l=suffix),
        "SUFFIX": suffix,
        "DIGITS": str(digits),
        "BIAS": str(bias),
        "ARITY": str(function.arity),
    }
    source = SOURCE
    for name, value in replaced.items():
        source = source.replace(f"@{name}@", value)
    return prelude(needs) + source
