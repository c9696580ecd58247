"""Misc operators in traced functions: they run, and are never fused."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from blockbuster_fusion.array.arrays import Array, as_dtype, one_trace
from blockbuster_fusion.array.program import ArrayType
from blockbuster_fusion.errors import TraceError
from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.ir.ops import Plain
from blockbuster_fusion.ir.types import DType


def misc(
    namespace: str,
    name: str,
    /,
    *operands: Array,
    axes: Sequence[Axis | str | int] | None = None,
    dtype: str | DType | None = None,
    **arguments: Plain,
) -> Array:
    """An operator of another library: the executor of its namespace runs it, unfused.

    The result has the axes and the dtype of the first operand, unless they are given: axes of
    operands (`x.axes`), or new ones as in `trace`.
    """
    op = f"{namespace}.{name}"
    if not operands:
        raise TraceError(op=op, problem="needs at least one array")
    tracing, first = one_trace(op, *operands), operands[0]
    layouts = [tuple(a for a in x.axes if a is not None) for x in operands]
    for x, layout in zip(operands, layouts, strict=True):
        if len(layout) < x.ndim:
            problem = f"{x} has an axis of length 1: take it out with squeeze first"
            raise TraceError(op=op, problem=problem)
    wanted = [a if isinstance(a, Axis) else tracing.axis(op, a) for a in axes or ()]
    shown = layouts[0] if axes is None else tuple(wanted)
    if len(set(shown)) < len(shown):
        raise TraceError(
            op=op, problem=f"the result has an axis twice: {', '.join(map(str, shown))}"
        )
    value = tracing.record(
        "misc",
        operands,
        namespace=namespace,
        name=name,
        arguments=tuple((key, _plain(op, x)) for key, x in sorted(arguments.items())),
        layouts=tuple(layouts),
        result=ArrayType(shown, first.dtype if dtype is None else as_dtype(dtype)),
    )
    return Array(tracing, value, shown)


def _plain(op: str, x: Any) -> Plain:
    """An attribute as data that can be printed and read back."""
    if isinstance(x, np.generic):
        x = x.item()
    if isinstance(x, tuple | list):
        return tuple(_plain(op, part) for part in x)
    if x is not None and not isinstance(x, bool | int | float | str):
        problem = f"an attribute is a number, a string, None or a tuple, not a {type(x).__name__}"
        raise TraceError(op=op, problem=f"{problem}; give arrays as operands")
    plain: Plain = x
    return plain


def sort(x: Array, axis: int = -1) -> Array:
    """`x` sorted along an axis: a misc operator."""
    one_trace("sort", x)
    return misc("numpy", "sort", x, axis=x.position(axis, "sort"))
