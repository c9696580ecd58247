"""Views of arrays, and lookups in arrays."""

from collections.abc import Sequence
from typing import Any

from blockbuster_fusion.array.axes import ONE, Size
from blockbuster_fusion.array.positional import PositionalBuilder
from blockbuster_fusion.array.primitives import AxisPositions
from blockbuster_fusion.array.records import Operand, PositionalArray
from blockbuster_fusion.errors import NotExpressible
from blockbuster_fusion.ir.expr import Expr, call
from blockbuster_fusion.ir.expr import cast as cast_expr
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.torch.table.pointwise import is_number
from blockbuster_fusion.torch.table.reductions import axes_of
from blockbuster_fusion.torch.table.row import pointwise, view


@view("view", "_unsafe_view", "reshape")
def _view(p: PositionalBuilder, x: PositionalArray, shape: Sequence[Size]) -> PositionalArray:
    return p.view(x, shape)


@view("permute")
def _permute(p: PositionalBuilder, x: PositionalArray, order: Sequence[int]) -> PositionalArray:
    return p.permute(x, [i % len(x.sizes) for i in order])


@view("transpose")
def _transpose(p: PositionalBuilder, x: PositionalArray, a: int, b: int) -> PositionalArray:
    order = [*range(len(x.sizes))]
    order[a], order[b] = order[b], order[a]
    return p.permute(x, order)


@view("t")
def _t(p: PositionalBuilder, x: PositionalArray) -> PositionalArray:
    return p.permute(x, [*range(len(x.sizes))][::-1])


@view("unsqueeze")
def _unsqueeze(p: PositionalBuilder, x: PositionalArray, at: int) -> PositionalArray:
    return p.insert(x, at % (len(x.sizes) + 1))


@view("squeeze")
def _squeeze(p: PositionalBuilder, x: PositionalArray, dims: Any = None) -> PositionalArray:
    at = [i for i in axes_of(x, dims) if x.sizes[i] == ONE]
    return p.drop(x, at)


@view("expand")
def _expand(
    p: PositionalBuilder, x: PositionalArray, sizes: Sequence[Size], **_: object
) -> PositionalArray:
    return p.expand(x, sizes)


@view("repeat")
def _repeat(p: PositionalBuilder, x: PositionalArray, times: Sequence[int]) -> PositionalArray:
    """A copy behind the other along some positions: a broadcast axis before each."""
    if not all(isinstance(t, int) for t in times):
        raise NotExpressible(what="a number of copies that is known only when the model runs")
    sizes = (ONE,) * (len(times) - len(x.sizes)) + x.sizes
    x = p.view(x, sizes)
    for at in reversed(range(len(times))):
        x = p.insert(x, at)
        wanted = [Size(times[at]) if i == at else s for i, s in enumerate(x.sizes)]
        x = p.expand(x, wanted)
        merged = [*x.sizes[:at], x.sizes[at] * x.sizes[at + 1], *x.sizes[at + 2 :]]
        x = p.view(x, merged)
    return x


@view("clone", "alias", "detach", "lift_fresh_copy", "contiguous", "lift_fresh")
def _same_array(p: PositionalBuilder, x: PositionalArray, **_: object) -> PositionalArray:
    return x


@view("slice", "select", "split", "split_with_sizes", "unbind", "narrow", "as_strided", "diagonal")
def _indexed(
    p: PositionalBuilder, x: PositionalArray, *arguments: object, **_: object
) -> PositionalArray:
    raise NotExpressible(what="a part of an array that is computed in the same kernel")


@pointwise("cat")
def _cat(p: PositionalBuilder, values: Sequence[PositionalArray], dim: int = 0) -> PositionalArray:
    return p.stack(values, dim % len(values[0].sizes))  # pieces of one length; others are joined


@view("index")
def _index(
    p: PositionalBuilder, x: PositionalArray, indices: Sequence[PositionalArray | None]
) -> PositionalArray:
    """`x` at positions that are counted: only another way to write a broadcast."""
    if any(i is None for i in indices) or len(indices) != len(x.sizes):
        raise NotExpressible(what="an index that is data")
    rank = max(len(i.sizes) for i in indices if i is not None)
    positions: list[Any] = [()] * rank
    sizes: list[Size] = [ONE] * rank
    for at, index in enumerate(indices):
        assert index is not None
        place = _walking(p, index, x.sizes[at])
        if place is None:
            continue
        if sizes[place] != ONE:
            raise NotExpressible(what="an index along a diagonal")
        x = p.fitted(index, place, x, at)
        positions[place], sizes[place] = x.positions[at], x.sizes[at]
    return PositionalArray(tuple(positions), tuple(sizes), x.dtype, x.record, x.constant)


def _walking(p: PositionalBuilder, index: PositionalArray, extent: Size) -> int | None:
    """The position of a counted index, from its end, that runs along an axis; None if that has
    length 1."""
    wide = [i for i, s in enumerate(index.sizes) if s != ONE]
    if extent == ONE and not wide and is_number(index, 0):
        return None
    if index.constant is not None or len(wide) != 1 or index.sizes[wide[0]] != extent:
        raise NotExpressible(what="an index that is data")
    if not isinstance(p.primitive(index), AxisPositions):
        raise NotExpressible(what="an index that is data")
    return wide[0] - len(index.sizes)


@pointwise("embedding", cheap=False)
def _embedding(
    p: PositionalBuilder, table: PositionalArray, index: PositionalArray, *_: object, **__: object
) -> PositionalArray:
    return p.take(table, index, 0)


@pointwise("index_select", cheap=False)
def _index_select(
    p: PositionalBuilder, x: PositionalArray, dim: int, index: PositionalArray
) -> PositionalArray:
    at, places = dim % len(x.sizes), index if index.sizes else p.insert(index, 0)
    return p.take(x, places, at)


@pointwise("gather", cheap=False)
def _gather(
    p: PositionalBuilder, x: PositionalArray, dim: int, index: PositionalArray, **_: object
) -> PositionalArray:
    return p.take_along(x, index, dim % len(x.sizes))


@pointwise("constant_pad_nd", cheap=False)
def _constant_pad_nd(
    p: PositionalBuilder,
    x: PositionalArray,
    sizes: Sequence[Size],
    pads: Sequence[Operand],
    fill: Operand = 0,
) -> PositionalArray:
    """`x` along one axis at places shifted by what is put before it, and the fill outside of it.

    `pads` are what comes before and behind, of the last axis first; negative ones take away.
    """
    padded = [i for i, pad in enumerate(pads) if not is_number(pad, 0)]
    if not padded:
        return x
    at = len(sizes) - 1 - padded[0] // 2
    if padded[-1] // 2 != padded[0] // 2:
        raise NotExpressible(what="padding along several axes")
    before, extent = pads[padded[0] // 2 * 2], sizes[at]
    place = p.counting(extent)
    if not is_number(before, 0):
        place = p.elementwise(lambda i, b: i - b, place, before)

    length = cast_expr(p.size(x.positions[at]), DType.int64)

    def is_inside(i: Expr) -> Expr:
        return (i >= 0) & (i < length)

    def nearest(i: Expr) -> Expr:
        return call("minimum", call("maximum", i, 0), length - 1)

    if x.sizes[at] == ONE:
        inside = p.elementwise(lambda i: call("eq", i, 0), place)
    else:
        inside = p.elementwise(is_inside, place, dtype=DType.bool_)
        x = p.take(x, p.elementwise(nearest, place, dtype=DType.int64), at)
    inside = p.view(inside, (extent, *(ONE for _ in sizes[at + 1 :])))
    if not isinstance(fill, PositionalArray):
        fill = p.constant(fill, (), x.dtype)
    return p.elementwise(lambda c, t, v: call("where", c, t, v), inside, x, fill)


def taken(
    p: PositionalBuilder, x: PositionalArray, indices: Sequence[PositionalArray | None], at: int
) -> PositionalArray:
    """`x` at numbers, which may count from the end, along one axis; the other indices are counted,
    and their axes are walked together with the numbers."""
    index = indices[at]
    assert index is not None
    length = cast_expr(p.size(x.positions[at]), DType.int64)

    def from_start(i: Expr) -> Expr:
        return call("where", i < 0, i + length, i)

    rank = max(len(v.sizes) for v in indices if v is not None)
    index = p.elementwise(from_start, index, dtype=DType.int64)
    index = p.view(index, (*(ONE,) * (rank - len(index.sizes)), *index.sizes))
    walked: dict[int, int] = {}
    for i, counted in enumerate(indices):
        if counted is None or i == at:
            continue
        place = _walking(p, counted, x.sizes[i])
        if place is not None and place in walked.values():
            raise NotExpressible(what="an index along a diagonal")
        walked[i] = place or 0
    return p.take(x, index, at, walked)
