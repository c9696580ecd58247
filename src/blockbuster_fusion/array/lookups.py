"""Lookups in traced functions: elements of an array at places given by another array."""

from typing import Any

from blockbuster_fusion.array.arrays import Array, claim, one_trace, other_name
from blockbuster_fusion.errors import TraceError


def take(x: Array, index: Array, axis: int = 0) -> Array:
    """`x` at the places `index` along an axis: `take(W, ids)` is `W[ids]`, an embedding.

    The axes of the index stand where the axis was. Places are whole numbers from 0 upwards;
    negative ones are not counted from the end.
    """
    one_trace("take", x, index)
    along = x.along(axis, "take")
    for shared in index.axes:
        if shared is along:
            x = other_name(x, along)  # a table is in memory, so that this costs nothing
        elif shared is not None and shared in x.axes:
            index = other_name(index, shared)
    at = x.position(axis, "take")
    return _looked_up(x, index, at, (*x.axes[:at], *index.axes, *x.axes[at + 1 :]))


def take_along_axis(x: Array, index: Array, axis: int = -1) -> Array:
    """`x` at the places `index` along an axis, a place for each element along the others.

    The other axes of the two agree, or have length 1. Places are whole numbers from 0 upwards.
    """
    op = f"take_along_axis of {x} and {index}"
    one_trace(op, x, index)
    along, at = x.along(axis, op), x.position(axis, op)
    if index.ndim != x.ndim:
        raise TraceError(op=op, problem="the two have as many axes: see take for places alone")
    for position, own in enumerate(x.axes):
        if position != at and own is not None and index.axes[position] is not None:
            index = claim(op, index, position, own)
    found = index.axes[at]
    if found is not None and found is x.axes[at]:
        x = other_name(x, along)
    elif found is not None and found in x.axes:
        index = other_name(index, found)
    axes = [i or a for i, a in zip(index.axes, x.axes, strict=True)]
    axes[at] = index.axes[at]
    return _looked_up(x, index, at, axes)


def _looked_up(x: Array, index: Array, at: int, axes: Any) -> Array:
    along = x.axes[at]
    assert along is not None
    return Array(x.tracing, x.tracing.record("take", [x, index], axis=along), axes)


def numpy_take(a: Array, indices: Array, axis: int | None = None) -> Array:
    """NumPy's `take`, which flattens an array if no axis is given."""
    if axis is None and a.ndim != 1:
        problem = f"without an axis {a} would be flattened, which is not traced: give one"
        raise TraceError(op="take", problem=problem)
    return take(a, indices, axis or 0)
