"""Sums that a GPU keeps spread over a block until their loop ends, and the loops that stream so.

A product with a vector is no work for tensor cores. To sum it in each step of a loop, the threads
of a program would have to meet. So each thread sums its own elements, and they meet once, after the
loop.
"""

from collections.abc import Iterable

from blockbuster_fusion.ir.combiner import ADD
from blockbuster_fusion.nest.analysis.matrix_products import is_dot, product_of
from blockbuster_fusion.nest.nest import (
    Cascade,
    Compute,
    Contract,
    For,
    Kernel,
    Load,
    Positions,
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


def streaming_loops(kernel: Kernel) -> tuple[For, ...]:
    """The loops without dots whose loads run ahead, which Triton must be told.

    They multiply with vectors, or gather blocks place by place. Where each step folds a block, the
    threads wait for each other anyway.
    """
    gathers = not any(isinstance(s, Contract) for s in kernel.statements)
    loops = (s for s in kernel.statements if isinstance(s, For))
    return tuple(
        loop
        for loop in loops
        if (spread_sums(loop) and not any(isinstance(s, For) for s in loop.body))
        or (gathers and _only_gathers(loop))
    )


def _only_gathers(loop: For) -> bool:
    """True if a loop loads blocks and gathers them place by place, and does nothing else."""
    is_simple = all(isinstance(s, Load | Compute | Positions | Cascade) for s in loop.body)
    loads = any(isinstance(s, Load) for s in loop.body)
    return is_simple and loads and bool(loop.gathered) and loop.window is None


def _others(body: Iterable[Statement], own: Contract) -> Iterable[Statement]:
    """The statements of a loop beside a product, without those that move partial sums."""
    return (s for s in body if s is not own and not isinstance(s, Cascade))


def _touched(statement: Statement) -> set[Tile]:
    """The tiles that a statement reads or writes, inside a loop as well."""
    made = {tile for s in walk((statement,)) if (tile := written(s)) is not None}
    return made | {tile for s in walk((statement,)) for tile in read(s)}
