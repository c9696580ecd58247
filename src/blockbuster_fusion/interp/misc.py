"""Misc operators: run by their executor, and checked against what the program declares."""

from collections.abc import Mapping

import numpy as np

from blockbuster_fusion.errors import BadResult
from blockbuster_fusion.interp.executors import executor_of
from blockbuster_fusion.interp.plan import DoMisc
from blockbuster_fusion.interp.tiling import Tiling
from blockbuster_fusion.interp.values import Array, Numbers, misfit
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.types import Type


def execute(
    action: DoMisc,
    arrays: list[Array],
    sizes: Mapping[Dim, int],
    tiling: Tiling,
    numbers: Numbers,
) -> list[Array]:
    """The results of a misc operator; `sizes` are the lengths of its operands' dims."""
    run = executor_of(action.namespace, action.name)
    try:
        made: object = run(action.name, dict(action.attributes), arrays)
    except Exception as error:
        error.add_note(f"in misc operator {action.namespace}.{action.name}")
        raise
    if not isinstance(made, list | tuple):
        raise _bad(action, f"the executor gave a {type(made).__name__}, not a list of arrays")
    if len(made) != len(action.results):
        counts = f"{len(made)} arrays, and {len(action.results)} are declared"
        raise _bad(action, f"the executor gave {counts}")
    checked = []
    for number, (kind, result) in enumerate(zip(action.results, made, strict=True)):
        array = np.asarray(result)
        problem = _problem(action, kind, array, sizes, tiling)
        if problem is not None:
            raise _bad(action, f"result {number}: {problem}")
        checked.append(numbers.rounded(array, kind.dtype))
    return checked


def imagined_results(
    action: DoMisc, sizes: Mapping[Dim, int], tiling: Tiling, numbers: Numbers
) -> list[Array]:
    """Arrays like those that the operator would give, if it were run."""
    return [
        np.zeros(
            [
                sizes[dim] if dim in sizes else tiling.length(dim, in_item=dim in kind.items) or 0
                for dim in kind.dims
            ],
            numbers.held[kind.dtype],
        )
        for kind in action.results
    ]


def _problem(
    action: DoMisc, kind: Type, array: Array, sizes: Mapping[Dim, int], tiling: Tiling
) -> str | None:
    """Why an array is not of the declared type, if it is not."""
    if array.dtype.kind not in "biuf" or (array.dtype.kind == "f") != kind.dtype.is_float:
        return f"the array has the dtype {array.dtype}, and {kind.dtype} is declared"
    if array.ndim != len(kind.dims):
        axes = ", ".join(axis.name for axis in kind.axes)
        return f"the array has the shape {array.shape}, and the axes ({axes}) are declared"
    for dim, length in zip(kind.dims, array.shape, strict=True):
        problem = _length_problem(action, kind, dim, length, sizes, tiling)
        if problem is not None:
            return problem
    return misfit(array, kind.dtype)


def _length_problem(
    action: DoMisc, kind: Type, dim: Dim, length: int, sizes: Mapping[Dim, int], tiling: Tiling
) -> str | None:
    if dim not in kind.lists and dim in sizes:  # inside a loop, an item has a block of the axis
        if sizes[dim] == length:
            return None
        return f"axis {dim} has {length} elements, and in the operands {sizes[dim]}"
    if dim in kind.items or not dim.packed:
        return tiling.extents.bind(dim.axis, length, f"{action.namespace}.{action.name}")
    if dim.is_free or length == len(tiling.blocks(dim)):
        return None
    return f"there are {length} elements for the {len(tiling.blocks(dim))} blocks of {dim.label}"


def _bad(action: DoMisc, problem: str) -> BadResult:
    return BadResult(namespace=action.namespace, name=action.name, problem=problem)
