"""Sums of products with vectors that a GPU keeps spread over a block until their loop ends.

A product with a vector is no work for tensor cores. To sum it in each step of a loop, the threads
of a program would have to meet. So each thread sums its own elements, and they meet once, after the
loop.
"""

from collections.abc import Iterable

from blockbuster_fusion.ir.combiner import ADD
from blockbuster_fusion.nest.analysis.matrix_products import is_dot, product_of
from blockbuster_fusion.nest.nest import (
    Cascade,
    Contract,
    For,
    Kernel,
    Span,
    Statement,
    Tile,
    read,
    walk,
    written,
)


def spread_sums(loop: For) -> tuple[Contract, ...]:
    """The products of a loop that are summed over its blocks, and used after it only."""
    sums = {tile for combiner, tiles in loop.gathered if combiner is ADD for tile in tiles}
    window = () if loop.window is None else loop.window.tiles
    return tuple(
        s
        for s in loop.body
        if isinstance(s, Contract)
        and s.tile in sums
        and s.tile not in window
        and s.tile.dtype.is_float
        and s.span.at is loop.index
        and not is_dot(s)
        and not product_of(s).is_wide
        and not any(s.tile in _touched(other) for other in _others(loop.body, s))
    )


def spread_over(statement: Contract) -> tuple[Span, ...]:
    """The axes of the products of two blocks before they are summed."""
    sides = (statement.left.spans, statement.right.spans)
    wide = max(sides, key=len)
    return wide if {*sides[0], *sides[1]} == {*wide} else (*statement.tile.spans, statement.span)


def loops_of_vectors(kernel: Kernel) -> tuple[For, ...]:
    """The loops that multiply with vectors; their loads run ahead only if Triton is told."""
    loops = (s for s in kernel.statements if isinstance(s, For))
    return tuple(
        loop
        for loop in loops
        if spread_sums(loop) and not any(isinstance(s, For) for s in loop.body)
    )


def _others(body: Iterable[Statement], own: Contract) -> Iterable[Statement]:
    """The statements of a loop beside a product, without those that move partial sums."""
    return (s for s in body if s is not own and not isinstance(s, Cascade))


def _touched(statement: Statement) -> set[Tile]:
    """The tiles that a statement reads or writes, inside a loop as well."""
    made = {tile for s in walk((statement,)) if (tile := written(s)) is not None}
    return made | {tile for s in walk((statement,)) for tile in read(s)}
