"""Cascaded sums: a long loop sums its blocks in runs, and the runs into totals.

An accumulator loses accuracy with every addition. So a loop with n blocks sums runs of about √n
blocks, and then the √n runs: no number goes through more than 2√n additions. Each block is summed
pairwise.

The totals of a rescaled sum have an exponent of their own. The accumulator's exponent is not reset
after a run: it remains that of all blocks so far, which windows check.

Generated files have `run_length` too: in C (`printers/c/prelude.py`) and in Python
(`printers/standalone_helpers.py`).
"""

from dataclasses import replace

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.combiner import ADD, Combiner
from blockbuster_fusion.nest.lower_combiner import combine
from blockbuster_fusion.nest.nest import Body, Cascade, Fill, For, Kernel, Statement, Tile
from blockbuster_fusion.nest.rewrite import FreshNames, all_written, rebuilt
from blockbuster_fusion.safety.pairs.rescaled_sum import rescaled_sum

FEW = 64
"""The number of blocks that are summed without runs."""
SHORT = FEW * 64
"""An axis of known length up to this has few blocks for any tiles."""


def cascade_sums(kernel: Kernel) -> Kernel:
    """Sums the blocks of long loops in runs."""
    names = FreshNames(kernel)

    def rewrite(body: Body) -> Body:
        made: list[Statement] = []
        for statement in body:
            made += _cascaded(statement, names) if isinstance(statement, For) else [statement]
        return tuple(made)

    return replace(kernel, body=rebuilt(kernel.body, rewrite))


def run_length(blocks: int, few: int = FEW) -> int:
    """The length of a run in a loop of so many blocks: a power of two, or 0 for few blocks."""
    if blocks <= few:
        return 0
    return 1 << ((blocks - 1).bit_length() + 1) // 2


def _cascaded(loop: For, names: FreshNames) -> list[Statement]:
    made = {tile for statement in loop.body for tile in all_written(statement)}
    sums = [
        (combiner, tiles)
        for combiner, tiles in loop.gathered
        if _is_sum(combiner, tiles) and made.issuperset(tiles)  # else only an exponent is read
    ]
    if not sums or not _may_be_long(loop.index.dim):
        return [loop]
    begin: list[Statement] = []
    flush: list[Statement] = []
    end: list[Statement] = []
    for combiner, tiles in sums:
        totals = tuple(names.like(tile) for tile in tiles)
        begin += [Fill(t, v) for t, v in zip(totals, combiner.identity, strict=True)]
        flush += combine(combiner, tiles, names, into=totals).updates
        flush += [Fill(tile, 0.0) for tile in tiles[combiner.arity > 1 :]]
        end += combine(combiner, totals, names, into=tiles).updates
    body = (*loop.body, Cascade(loop.index, tuple(flush), inside=True))
    return [
        Cascade(loop.index, tuple(begin)),
        replace(loop, body=body),
        Cascade(loop.index, tuple(end)),
    ]


def _is_sum(combiner: Combiner, tiles: tuple[Tile, ...]) -> bool:
    if not all(tile.dtype.is_float for tile in tiles):
        return False
    return combiner is ADD or (combiner.arity > 1 and combiner is rescaled_sum(combiner.arity - 1))


def _may_be_long(dim: Dim) -> bool:
    if dim.unit:
        return False
    extent = dim.axis.extent
    return not isinstance(extent, int) or extent > (SHORT if dim.packed else FEW)
