"""Programs whose outputs are written into an input, at places that are data."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from blockbuster_fusion.array.axes import Size
from blockbuster_fusion.array.positional import PositionalBuilder
from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.array.records import PlacedArray, PositionalArray
from blockbuster_fusion.ir.combiner import ADD
from blockbuster_fusion.ir.expr import call
from blockbuster_fusion.ir.types import DType

LENGTH = 23
"""The length of each array along the axis of the places."""


class _Program(PositionalBuilder):
    def given(self, name: str, *sizes: int, dtype: DType = DType.float32) -> PositionalArray:
        return self.input(name, [Size(s) for s in sizes], dtype)

    def put(self, y: PositionalArray, at: int, places: DType = DType.int64) -> PlacedArray:
        """`y` written into an array that is longer at one position."""
        sizes = [size.number for size in y.sizes]
        index = self.given("at", sizes[at], dtype=places)
        sizes[at] = LENGTH
        return self.placed(self.given("cache", *sizes), index, at, y, [at])


def rows(count: int, at: int = 2) -> ArrayProgram:
    """Keys of `count` words in heads, written at position `at`; and queries that are not."""
    p = _Program("rows")
    x = p.view(p.given("x", 2, count, 3 * 10), [Size(2), Size(count), Size(3), Size(10)])
    x, c = p.permute(x, (0, 2, 1, 3)), p.given("c", count, 10)
    y = p.elementwise(lambda a, b: call("tanh", a * b) + 1.0, x, c)
    order = [0, 1, 3]
    order.insert(at, 2)
    also = p.elementwise(lambda t: t * 2.0, x)
    return p.finish({"O": p.put(p.permute(y, order), at), "also": also}).program


def own_places(count: int) -> ArrayProgram:
    """Keys of `count` words of each of 4 sequences, which have places of their own."""
    p = _Program("own_places")
    y = p.elementwise(lambda a, b: a * b, p.given("x", 4, 3, count, 10), p.given("c", count, 10))
    index = p.given("at", 4, count, dtype=DType.int64)
    base = p.given("cache", 4, 3, LENGTH, 10)
    return p.finish({"O": p.placed(base, index, 2, y, [0, 2])}).program


def norm() -> ArrayProgram:
    """Rows divided by their lengths; places have 32 bits."""
    p = _Program("norm")
    x = p.given("x", 7, 45)
    squares = p.reduce(ADD, p.elementwise(lambda t: t * t, x), [1], keep=True)
    y = p.elementwise(lambda t, s: t / call("sqrt", s + 1.0), x, squares)
    return p.finish({"O": p.put(y, 0, DType.int32)}).program


def product() -> ArrayProgram:
    """Rows that are a product."""
    p = _Program("product")
    y = p.contract(p.given("x", 5, 33), p.given("w", 21, 33), "mk", "nk", "mn")
    return p.finish({"O": p.put(y, 0)}).program


def columns() -> ArrayProgram:
    """Columns that are a product."""
    p = _Program("columns")
    y = p.contract(p.given("x", 35, 33), p.given("w", 21, 33), "mk", "nk", "mn")
    return p.finish({"O": p.put(y, 1)}).program


def given() -> ArrayProgram:
    """Rows of an input."""
    p = _Program("given")
    return p.finish({"O": p.put(p.given("x", 5, 70), 0)}).program


PLACED: dict[str, Callable[[], ArrayProgram]] = {
    "one row": lambda: rows(1),
    "rows": lambda: rows(5),
    "outer rows": lambda: rows(5, at=0),
    "last axis": lambda: rows(5, at=3),
    "own places": lambda: own_places(5),
    "one own place": lambda: own_places(1),
    "norm": norm,
    "product": product,
    "columns": columns,
    "given": given,
}
"""The programs, by name."""


def inputs_of(program: ArrayProgram, seed: int = 0) -> dict[str, NDArray[np.generic]]:
    """Random numbers, and distinct places, some of which count from the end."""
    generator = np.random.default_rng(seed)
    made: dict[str, NDArray[np.generic]] = {}
    for x in program.inputs:
        shape = [int(axis.extent) for axis in x.type.axes]  # type: ignore[arg-type]
        if x.type.dtype.is_float:
            made[x.name] = generator.standard_normal(shape).astype(np.float32).astype(np.float64)
        else:
            count = shape[-1] if shape else 1
            places = np.array([generator.permutation(LENGTH)[:count] for _ in range(4)])
            places = np.where(generator.random(places.shape) < 0.5, places, places - LENGTH)
            places = places.reshape(-1)[: int(np.prod(shape))]
            made[x.name] = places.reshape(shape).astype(x.type.dtype.value)
    return made
