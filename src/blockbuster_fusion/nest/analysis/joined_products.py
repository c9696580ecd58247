"""Pairs of products of the same rows whose columns one tensor descriptor can load.

Two matrices of the same shape and strides are one array with a further axis, whose stride is their
distance in memory, wherever they lie. So one instruction loads a block of each, and tensor cores
multiply the rows with both at a time: they read the rows once, and do not wait in between.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from blockbuster_fusion.nest.analysis.described_blocks import describable_blocks
from blockbuster_fusion.nest.analysis.matrix_products import is_dot, product_of
from blockbuster_fusion.nest.nest import (
    Body,
    Buffer,
    Cascade,
    Contract,
    Fill,
    For,
    Kernel,
    Load,
    Statement,
    Tile,
    read,
    walk,
    written,
)


@dataclass(frozen=True, eq=False, slots=True)
class JoinedProducts:
    """Two products in a loop, each with the load of its columns."""

    loads: tuple[Load, Load]
    products: tuple[Contract, Contract]

    @property
    def buffers(self) -> tuple[Buffer, Buffer]:
        """The arrays that one descriptor loads."""
        first, second = self.loads
        return first.source.buffer, second.source.buffer

    @property
    def statements(self) -> tuple[Statement, ...]:
        """The statements that are one; the last of them comes last in the loop."""
        return (*self.loads, *self.products)


def joinable_products(kernel: Kernel) -> tuple[JoinedProducts, ...]:
    """The pairs of products in a kernel that can be joined, each product in one of them."""
    blocks = describable_blocks(kernel)
    if len(blocks) < 2:
        return ()
    bodies = (kernel.body, *(s.body for s in kernel.statements if isinstance(s, For)))
    return tuple(pair for body in bodies for pair in _pairs_within(body, kernel, blocks))


def joined_products(kernel: Kernel) -> tuple[JoinedProducts, ...]:
    """The pairs of products that a kernel has joined, where the strides of arrays allow it."""
    return joinable_products(kernel) if kernel.is_described and kernel.is_joined else ()


def _pairs_within(
    outer: Body, kernel: Kernel, blocks: Collection[Buffer]
) -> Iterator[JoinedProducts]:
    """The pairs of the loops that stand right in a body."""
    filled = {s.tile for s in outer if isinstance(s, Fill) and s.value == 0}
    for loop in outer:
        if isinstance(loop, For) and loop.window is None:
            yield from _pairs(loop.body, kernel, blocks, filled)


def _pairs(
    body: Body, kernel: Kernel, blocks: Collection[Buffer], filled: Collection[Tile]
) -> Iterator[JoinedProducts]:
    """The pairs of a loop's body; `filled` are the tiles that are 0 before the loop."""
    if any(isinstance(s, Cascade) for s in body):
        return  # sums would be moved during the loop
    loads = {s.tile: s for s in body if isinstance(s, Load) and s.source.buffer in blocks}
    alone: dict[object, tuple[Load, Contract]] = {}
    for s in body:
        if not isinstance(s, Contract) or not is_dot(s) or s.tile not in filled:
            continue
        if not _is_summed(s, body, kernel):
            continue
        product = product_of(s)
        load = loads.get(product.second)
        if load is None or not product.is_plain or s.also:
            continue
        if load.source.spans != (*product.columns, s.span) or not _is_own(load, kernel):
            continue
        array, guard = load.source.buffer, s.tail_masked[s.right is product.first]
        key = (product.first, guard, load.source.spans, array.axes, array.dtype, s.tile.dtype)
        before = alone.pop(key, None)
        if before is None:
            alone[key] = (load, s)
        elif before[0].source.buffer is not array:
            yield JoinedProducts((before[0], load), (before[1], s))


def _is_summed(product: Contract, body: Body, kernel: Kernel) -> bool:
    """True if a product adds to its start alone, and is seen after its loop only."""
    tile = product.tile
    makers = [s for s in kernel.statements if written(s) is tile]
    users = [s for s in walk(body) if tile in read(s)]
    return len(makers) == 2 and users == [product]


def _is_own(load: Load, kernel: Kernel) -> bool:
    """True if nothing but one product reads a block, or another one of its array."""
    loads = [s for s in kernel.statements if isinstance(s, Load)]
    users = [s for s in kernel.statements if load.tile in read(s)]
    return len(users) == 1 and [s.source.buffer for s in loads].count(load.source.buffer) == 1
