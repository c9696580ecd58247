"""Shapes, axis orders and strides of buffers, once sizes are known."""

from collections.abc import Sequence

from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.ir.tiling import Tiling
from blockbuster_fusion.nest.nest import Along, Buffer, BufferAxis, View


def buffer_shape(buffer: Buffer, tiling: Tiling) -> tuple[int, ...]:
    """The length of a buffer along each of its axes."""
    return tuple(_length(axis, tiling) for axis in buffer.axes)


def _length(axis: BufferAxis, tiling: Tiling) -> int:
    starts = tiling.starts(axis.dim)
    if axis.along is Along.PADDED:
        return len(starts) * starts.step
    if axis.along is Along.BLOCKS and axis.dim.packed:
        return len(starts)
    return tiling.extents.of(axis.dim.axis)


def layout_order(view: View, layout: Sequence[Axis]) -> tuple[int, ...]:
    """The numbers of a buffer's axes in the order of a layout, which has the program's axes."""
    own = tuple(axis.dim.axis for axis in view.buffer.axes)
    names = own if set(own) == set(view.axes) else view.axes
    return tuple(names.index(axis) for axis in layout)


def contiguous(shape: Sequence[int], order: Sequence[int] | None = None) -> tuple[int, ...]:
    """The strides of a contiguous array whose axes lie in some order, the last one innermost."""
    strides, step = [0] * len(shape), 1
    for at in reversed(range(len(shape)) if order is None else order):
        strides[at] = step
        step *= shape[at]
    return tuple(strides)
