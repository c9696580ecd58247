"""Standalone kernel files of a program: what `blockbuster emit` writes."""

import importlib.util
import inspect
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from blockbuster_fusion import examples
from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.array.trace import trace
from blockbuster_fusion.codegen.nest import Nest
from blockbuster_fusion.codegen.shapes import contiguous
from blockbuster_fusion.codegen.standalone import (
    Test,
    TritonLaunch,
    Wanted,
    c_file,
    header,
    samples,
    triton_file,
)
from blockbuster_fusion.codegen.triton_names import function_name
from blockbuster_fusion.compiler import compile as compile_program
from blockbuster_fusion.compiler import unfused
from blockbuster_fusion.errors import BadTarget, BlockbusterError
from blockbuster_fusion.interp.interpreter import interpret
from blockbuster_fusion.interp.tiling import Extents, Tiling
from blockbuster_fusion.ir.axis import Symbol
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import Input
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.runtime.executable import Executable

TEST_SIZE, TEST_BATCH = 100, 2
"""How long axes are in the test of a file where nothing is said."""

COMPILE = "cc -O2 -march=native -std=gnu11 -fopenmp -ffp-contract=fast -fno-math-errno"


def find_program(name: str) -> ArrayProgram:
    """An example by its name, or `file.py:function`.

    The function's parameters are annotated with their axes (`def f(Q: "M D", K: "N D")`), or it
    takes nothing and returns an array program.
    """
    path, colon, function = name.rpartition(":")
    if not colon or not path.endswith(".py"):
        return examples.find(name)
    found = getattr(_module(Path(path)), function, None)
    if not callable(found):
        raise BlockbusterError(message=f"{name}: {path} has no function {function}")
    parameters = inspect.signature(found).parameters.values()
    if not parameters:
        made = found()
        if not isinstance(made, ArrayProgram):
            kind = type(made).__name__
            message = f"{name}: it takes nothing, so it must return an array program, not a {kind}"
            raise BlockbusterError(message=message)
        return made
    for parameter in parameters:
        if not isinstance(parameter.annotation, str | tuple) or parameter.annotation == "":
            message = f"{name}: say which axes {parameter.name} has, as in {parameter.name}: 'M D'"
            raise BlockbusterError(message=message)
    specs = {p.name: _spec(p.annotation) for p in parameters}
    return trace(found, *specs.values(), name=function)


def _spec(annotation: Any) -> Any:
    """An annotation as a spec; under `from __future__ import annotations` it is quoted twice."""
    return annotation.strip("'\"") if isinstance(annotation, str) else annotation


def _module(path: Path) -> ModuleType:
    if not path.exists():
        raise BlockbusterError(message=f"{path}: there is no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def emit(
    program: ArrayProgram,
    *,
    target: str = "cpu",
    snapshot: int | None = None,
    tiles: Mapping[str, int] | None = None,
    sizes: Mapping[str, int] | None = None,
    dtype: str | None = None,
    rules: str = "extended",
) -> str:
    """The text of a standalone kernel file, which tests itself when it is run.

    `sizes` are fixed in the kernels; the others are arguments, and 100 (2 for batches) in the test.
    """
    if target not in ("cpu", "cuda"):
        raise BadTarget(name=target, problem="a file is for cpu (C) or cuda (Triton)")
    made = compile_program(
        program,
        target=target,
        snapshot=snapshot,
        tiles=dict((tiles or {}).items()),
        sizes=sizes,
        dtype=dtype,
        rules=rules,
    )
    nest = made.nest
    assert nest is not None
    test = _test(made, nest, unfused(program, sizes or {}))
    options = [f"target {target}", f"snapshot {made.snapshot + 1} by the {rules} rules"]
    options += [f"dtype {dtype}"] if dtype else []
    tiled = sorted(f"{dim.label}={tile}" for dim, tile in made.tiles.items())
    options += [f"tiles {' '.join(tiled)}"] if tiled else []
    lines = [f"{program.name}, made by Blockbuster: {', '.join(options)}.", ""]
    lines += str(program).splitlines()
    if target == "cpu":
        lines += ["", "To test it:", f"    {COMPILE} {program.name}.c -lm && ./a.out"]
        return c_file(made.source, test, header(lines, made.listing))
    lines += ["", "To test it (with TRITON_INTERPRET=1 where there is no GPU):"]
    lines += [f"    python {program.name}.py"]
    return triton_file(made.source, test, _launches(made, nest, test), header(lines, made.listing))


def _test(made: Executable, nest: Nest, reference: Graph) -> Test:
    """The test of a file: its sizes, and what the unfused program gives in float64."""
    ops = [op for i in reference.inputs if isinstance(op := reference.op(i), Input)]
    batch = {d.axis.extent for d in reference.dims if not d.packed}
    extents, inputs = Extents(), []
    for number, (op, buffer) in enumerate(zip(ops, nest.inputs, strict=True)):
        for axis in op.type.axes:
            if isinstance(axis.extent, Symbol) and not extents.knows(axis):
                extents.bind(axis, TEST_BATCH if axis.extent in batch else TEST_SIZE, "the test")
        shape = [extents.of(axis) for axis in op.type.axes]
        x = samples(number, shape, buffer.dtype)
        inputs.append(x.astype("float64") if buffer.dtype.is_float else x)
    expected = interpret(reference, inputs)
    wanted = [Wanted.of(x) for x in expected]
    return Test(nest, Tiling(extents, dict(made.tiles)), wanted)


def _launches(made: Executable, nest: Nest, test: Test) -> list[TritonLaunch]:
    """How the kernels are launched in the test."""
    from blockbuster_fusion.runtime.triton_launch import Launcher, load

    module = load(made.source)
    sizes = {symbol.name: length for symbol, length in test.tiling.extents.sizes.items()}
    launches = []
    for kernel in nest.kernels:
        function = function_name(kernel)
        launcher = Launcher(kernel, getattr(module, function))
        plan, names = launcher.plan(sizes, made.tiles, {}), launcher.names
        numbers: dict[str, int | bool] = {}
        for buffer in launcher.buffers:
            numbers |= zip(names.strides[buffer], test.strides(buffer), strict=True)
        scratch: dict[str, tuple[DType, int]] = {}
        for buffer, shape in plan.scratch:
            steps = contiguous(shape)
            numbers |= zip((names.copies[buffer], *names.strides[buffer]), steps, strict=True)
            scratch[names.pointers[buffer]] = (buffer.dtype, shape[0] * steps[0])
        launches.append(
            TritonLaunch(
                function,
                plan.grid[0],
                {names.pointers[buffer]: buffer for buffer in launcher.buffers},
                numbers | dict(plan.constants),
                scratch,
                plan.options,
            )
        )
    return launches
