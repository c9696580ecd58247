"""Misc operators: run by their executors, and checked against the declared types."""

from collections.abc import Mapping

import numpy as np

from blockbuster_fusion.errors import BadResult
from blockbuster_fusion.host.executors import executor_of
from blockbuster_fusion.host.numbers import NumericMode, NumpyArray, misfit
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.ops import Misc
from blockbuster_fusion.ir.tiling import Tiling
from blockbuster_fusion.ir.types import Type


def execute(
    op: Misc,
    arrays: list[NumpyArray],
    sizes: Mapping[Dim, int],
    tiling: Tiling,
    numbers: NumericMode,
) -> list[NumpyArray]:
    """The results of a misc operator; `sizes` are the lengths of its operands' dims."""
    run = executor_of(op.namespace, op.name)
    try:
        made: object = run(op.name, dict(op.attributes), arrays)
    except Exception as error:
        error.add_note(f"in misc operator {op.namespace}.{op.name}")
        raise
    if not isinstance(made, list | tuple):
        raise _bad(op, f"the executor gave a {type(made).__name__}, not a list of arrays")
    if len(made) != len(op.results):
        counts = f"{len(made)} arrays, and {len(op.results)} are declared"
        raise _bad(op, f"the executor gave {counts}")
    checked = []
    for number, (kind, result) in enumerate(zip(op.results, made, strict=True)):
        array = np.asarray(result)
        problem = _problem(op, kind, array, sizes, tiling)
        if problem is not None:
            raise _bad(op, f"result {number}: {problem}")
        checked.append(numbers.rounded(array, kind.dtype))
    return checked


def imagined_results(
    op: Misc, sizes: Mapping[Dim, int], tiling: Tiling, numbers: NumericMode
) -> list[NumpyArray]:
    """Arrays of zeros with the shapes and dtypes of the operator's results."""
    return [
        np.zeros(
            [
                sizes[dim] if dim in sizes else tiling.length(dim, in_item=dim in kind.items) or 0
                for dim in kind.dims
            ],
            numbers.held[kind.dtype],
        )
        for kind in op.results
    ]


def _problem(
    op: Misc, kind: Type, array: NumpyArray, sizes: Mapping[Dim, int], tiling: Tiling
) -> str | None:
    """The reason why an array is not of the declared type, or None."""
    if array.dtype.kind not in "biuf" or (array.dtype.kind == "f") != kind.dtype.is_float:
        return f"the array has the dtype {array.dtype}, and {kind.dtype} is declared"
    if array.ndim != len(kind.dims):
        axes = ", ".join(axis.name for axis in kind.axes)
        return f"the array has the shape {array.shape}, and the axes ({axes}) are declared"
    for dim, length in zip(kind.dims, array.shape, strict=True):
        problem = _length_problem(op, kind, dim, length, sizes, tiling)
        if problem is not None:
            return problem
    return misfit(array, kind.dtype)


def _length_problem(
    op: Misc, kind: Type, dim: Dim, length: int, sizes: Mapping[Dim, int], tiling: Tiling
) -> str | None:
    if dim not in kind.lists and dim in sizes:  # inside a loop, an item has a block of the axis
        if sizes[dim] == length:
            return None
        return f"axis {dim} has {length} elements, and in the operands {sizes[dim]}"
    if dim in kind.items or not dim.packed:
        return tiling.extents.bind(dim.axis, length, f"{op.namespace}.{op.name}")
    if dim.is_free or length == len(tiling.blocks(dim)):
        return None
    return f"there are {length} elements for the {len(tiling.blocks(dim))} blocks of {dim.label}"


def _bad(op: Misc, problem: str) -> BadResult:
    return BadResult(namespace=op.namespace, name=op.name, problem=problem)
