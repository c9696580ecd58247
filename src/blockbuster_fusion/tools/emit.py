"""Standalone kernel files of a program, for `blockbuster emit`."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.choice import Choice
from blockbuster_fusion.compiler import Request, choose, first_with_kernels, unfused
from blockbuster_fusion.errors import BadTarget
from blockbuster_fusion.interp.interpreter import interpret
from blockbuster_fusion.ir.axis import Dim, Symbol
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.listing import show
from blockbuster_fusion.ir.ops import Input
from blockbuster_fusion.ir.tiling import Extents, Tiling
from blockbuster_fusion.nest.nest import Nest
from blockbuster_fusion.printers.c.kernel import print_c
from blockbuster_fusion.printers.c.standalone import c_file, c_header
from blockbuster_fusion.printers.standalone import (
    ExpectedElements,
    FileTest,
    header,
    places_below,
    samples,
)
from blockbuster_fusion.printers.triton.kernel import print_triton
from blockbuster_fusion.printers.triton.standalone import triton_file, uses_bfloat16

TEST_SIZE, TEST_BATCH = 100, 2
"""The lengths in the test of a file of axes without blocks, and of batch axes."""

COMPILE = "cc -O3 -march=native -std=gnu11 -fopenmp -ffp-contract=fast -fno-math-errno"
TEST = "-DBLOCKBUSTER_MAIN"


@dataclass(frozen=True)
class Emitted:
    """A standalone kernel file, and the header of one in C."""

    source: str
    header: str | None = None


@dataclass(frozen=True)
class Printed:
    """The kernels of a program as text."""

    choice: Choice
    nest: Nest
    tiles: Mapping[Dim, int]
    source: str


def emit(
    program: ArrayProgram,
    *,
    target: str = "cpu",
    snapshot: int | None = None,
    tiles: Mapping[str, int] | None = None,
    sizes: Mapping[str, int] | None = None,
    dtype: str | None = None,
    rules: str = "extended",
    file: str | None = None,
) -> Emitted:
    """The text of a standalone kernel file, which can test itself.

    `sizes` are fixed in the kernels; other sizes are arguments. In the test these are one and a
    half blocks long (2 for batches). `file` is the path of the file, for the commands in its
    comment. Nothing is compiled.
    """
    if target not in ("cpu", "cuda"):
        raise BadTarget(name=target, problem="a file is for cpu (C) or cuda (Triton)")
    request = Request(
        program,
        target=target,
        snapshot=snapshot,
        tiles=None if tiles is None else dict(tiles.items()),
        sizes=sizes,
        dtype=dtype,
        rules=rules,
    )
    made = first_with_kernels(choose(request), _printed)
    test = _test(made, unfused(program, sizes or {}))
    lines = [_title(program, made, rules, dtype), "", *str(program).splitlines()]
    lines += ["", *_how_to_test(program, made, test, file)]
    comment = header(lines, show(made.choice.graph), made.nest)
    if target == "cpu":
        name = Path(file or f"{program.name}.c").name
        return Emitted(c_file(made.source, test, comment), c_header(test, name))
    return Emitted(triton_file(made.source, test, comment))


def _printed(choice: Choice) -> Printed:
    nest, tiles = choice.scheduled()
    is_c, options = choice.target == "cpu", (choice.schedule.chunk, choice.schedule.past)
    source = print_c(nest, tiles, *options) if is_c else print_triton(nest)
    return Printed(choice, nest, tiles, source)


def _title(program: ArrayProgram, made: Printed, rules: str, dtype: str | None) -> str:
    number = f"snapshot {made.choice.snapshot + 1} by the {rules} rules"
    options = [f"target {made.choice.target}", number]
    options += [f"dtype {dtype}"] if dtype else []
    tiled = sorted(f"{dim.label}={tile}" for dim, tile in made.tiles.items())
    options += [f"tiles {' '.join(tiled)}"] if tiled else []
    return f"{program.name}, made by Blockbuster: {', '.join(options)}."


def _how_to_test(
    program: ArrayProgram, made: Printed, test: FileTest, file: str | None
) -> tuple[str, str]:
    if made.choice.target == "cpu":
        name = shlex.quote(file or f"{program.name}.c")
        return "To test it:", f"    {COMPILE} {TEST} {name} -lm && ./a.out"
    alone = " (with TRITON_INTERPRET=1 where there is no GPU)"
    where = " on a GPU" if uses_bfloat16(test) else alone
    return f"To test it{where}:", f"    python {shlex.quote(file or f'{program.name}.py')}"


def _test(made: Printed, reference: Graph) -> FileTest:
    """The test of a file: its sizes, and the results of the unfused program in float64."""
    ops = [op for i in reference.inputs if isinstance(op := reference.op(i), Input)]
    lengths = _test_lengths(reference, made.tiles)
    extents, inputs = Extents(), []
    for op in ops:
        for axis in op.type.axes:
            if isinstance(axis.extent, Symbol) and not extents.knows(axis):
                extents.bind(axis, lengths.get(axis.extent, TEST_SIZE), "the test")
    below = places_below(made.nest, extents)
    for number, (op, buffer) in enumerate(zip(ops, made.nest.inputs, strict=True)):
        shape = [extents.of(axis) for axis in op.type.axes]
        x = samples(number, shape, buffer.dtype, below.get(buffer))
        inputs.append(x.astype("float64") if buffer.dtype.is_float else x)
    # Over an axis without elements, fused programs may divide 0 by 0 where unfused ones do not.
    is_empty = any(x.size == 0 for x in inputs)
    with np.errstate(all="ignore"):
        expected = interpret(made.choice.graph if is_empty else reference, inputs)
    wanted = [ExpectedElements.of(x) for x in expected]
    return FileTest(made.nest, Tiling(extents, dict(made.tiles)), wanted)


def _test_lengths(reference: Graph, tiles: Mapping[Dim, int]) -> dict[Symbol, int]:
    """Lengths of a little over one and a half blocks, so that the last is ragged; 2 for batches."""
    found: dict[Symbol, int] = {}
    for dim, tile in tiles.items():
        if isinstance(dim.axis.extent, Symbol):
            length = tile + tile // 2 + 3
            found[dim.axis.extent] = max(length, found.get(dim.axis.extent, 0))
    batch = {d.axis.extent for d in reference.dims if not d.packed}
    return found | {s: TEST_BATCH for s in batch if isinstance(s, Symbol)}
