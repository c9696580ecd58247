"""Programs whose outputs are written into an input, at places that are data."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from blockbuster_fusion.array.axes import Size
from blockbuster_fusion.array.positional import PositionalBuilder
from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.array.records import PositionalArray
from blockbuster_fusion.ir.types import DType

Array = NDArray[np.generic]


def rotated_rows(
    batch: int, rows: int, heads: int, width: int, length: int, at: int = 2, norm: bool = False
) -> ArrayProgram:
    """x·c + (a half of x turned)·s, rows of a cache (batch, heads, length, width), or turned.

    `at` is the position of the cache's length. With `norm`, each row is divided by its length.
    """
    p = PositionalBuilder("placed")

    def given(name: str, *sizes: int, dtype: DType = DType.float32) -> PositionalArray:
        return p.input(name, [Size(s) for s in sizes], dtype)

    x = p.view(given("x", batch, rows, heads * width), list(map(Size, (batch, rows, heads, width))))
    x = p.permute(x, (0, 2, 1, 3))
    c = given("c", rows, width)
    y = p.elementwise(lambda a, b: a * b + 1.0, x, c)
    if norm:
        from blockbuster_fusion.ir.combiner import ADD
        from blockbuster_fusion.ir.expr import call

        squares = p.reduce(ADD, p.elementwise(lambda t: t * t, y), [3], keep=True)
        y = p.elementwise(lambda t, s: t / call("sqrt", s + 1.0), y, squares)
    shape = [batch, heads, rows, width]
    order = [0, 1, 2, 3]
    order.insert(at, order.pop(2))
    y, sizes = p.permute(y, order), [shape[i] for i in order]
    sizes[at] = length
    base, index = given("cache", *sizes), given("at", rows, dtype=DType.int64)
    also = p.elementwise(lambda t: t * 2.0, x)
    return p.finish({"O": p.placed(base, index, at, y), "also": also}).program


def expected(cache: Array, at: int, index: Sequence[int], rows: Array) -> Array:
    """A copy of the cache with the rows written into it."""
    made = cache.copy()
    np.moveaxis(made, at, 0)[np.asarray(index)] = np.moveaxis(rows, at, 0)
    return made
