"""Folds after loops: the blocks of a loop are reduced place by place, and folded once at the end.

A GPU folds a block with all its threads, which wait for each other. So a loop that folds each of
its blocks waits in every step. Here the accumulator has an axis for the places in a block instead:
each thread adds up what it loads. The fold comes after the loop. Sums of fewer numbers are more
accurate too.

A block with elements beyond the end of its axis must have neutral ones there, as zeros in a sum.
Loops with products of matrices keep their folds: their registers hold other accumulators. Products
with vectors are summed place by place themselves (analysis/spread_sums.py), so that a norm beside
them is folded with them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeGuard

from blockbuster_fusion.ir.combiner import ANY, Combiner
from blockbuster_fusion.nest.analysis.matrix_products import is_dot
from blockbuster_fusion.nest.nest import (
    Body,
    Compute,
    Contract,
    Fill,
    Fold,
    For,
    Kernel,
    Statement,
    Tile,
    read,
    walk,
    written,
)
from blockbuster_fusion.nest.rewrite import FreshNames, all_read, rebuilt


def fold_after_loops(kernel: Kernel) -> Kernel:
    """Folds after loops rather than in them."""
    names = FreshNames(kernel)

    def rewrite(body: Body) -> Body:
        made: list[Statement] = []
        for statement in body:
            if _may_fold_later(statement):
                later = _folded_later(statement, names)
                folded = {s.tile for s in later if isinstance(s, Fold)}  # so they need no filling
                made = [s for s in made if not (isinstance(s, Fill) and s.tile in folded)] + later
            else:
                made.append(statement)
        return tuple(made)

    inner = tuple(
        replace(s, body=rebuilt(s.body, rewrite)) if _may_fold_later(s) else s for s in kernel.body
    )
    return replace(kernel, body=rewrite(inner))


def _may_fold_later(statement: Statement) -> TypeGuard[For]:
    """True for a loop that multiplies no matrices, neither itself nor in loops inside."""
    products = (s for s in walk((statement,)) if isinstance(s, Contract))
    return isinstance(statement, For) and not any(map(is_dot, products))


@dataclass(frozen=True)
class _Chain:
    """An accumulator that a loop updates with a block that is folded along some axes."""

    update: Compute
    folds: tuple[Fold, ...]
    """The folds, in their order."""
    combiner: Combiner

    @property
    def operand(self) -> Tile:
        """The block before all folds."""
        return self.folds[0].operand


def _folded_later(loop: For, names: FreshNames) -> list[Statement]:
    made: dict[Tile, _Chain] = {}
    for combiner, tiles in loop.gathered:
        chain = _chain(loop, combiner, tiles[0]) if len(tiles) == 1 else None
        if chain is not None:
            made[tiles[0]] = chain
    before: list[Statement] = []
    after: list[Statement] = []
    wide: dict[Tile, Tile] = {}
    for tile, chain in made.items():
        wide[tile] = names.like(chain.operand)
        before.append(Fill(wide[tile], chain.combiner.identity[0]))
        operand = wide[tile]
        for fold in chain.folds:
            last = fold is chain.folds[-1]
            folded = tile if last else names.like(fold.tile)
            after.append(replace(fold, tile=folded, operand=operand))
            operand = folded
    return [*before, _widened(loop, made, wide), *after]


def _widened(loop: For, made: Mapping[Tile, _Chain], wide: Mapping[Tile, Tile]) -> For:
    """The loop with accumulators that have the axes of their blocks."""
    updates = {chain.update: tile for tile, chain in made.items()}
    folds = {fold for chain in made.values() for fold in chain.folds}
    body: list[Statement] = []
    for statement in loop.body:
        if isinstance(statement, Compute) and statement in updates:
            tile = updates[statement]
            operands = (wide[tile], made[tile].operand)
            body.append(replace(statement, tile=wide[tile], operands=operands))
        elif statement not in folds:
            body.append(statement)
    gathered = tuple((c, tuple(wide.get(t, t) for t in tiles)) for c, tiles in loop.gathered)
    return replace(loop, body=tuple(body), gathered=gathered)


def _chain(loop: For, combiner: Combiner, tile: Tile) -> _Chain | None:
    """The folds of the blocks that an accumulator gathers, if they may come after the loop."""
    writers = [s for s in loop.body if written(s) is tile]
    if combiner is ANY or len(writers) != 1 or not isinstance(writers[0], Compute):
        return None
    update = writers[0]
    if update.expr is not combiner.combine[0] or len(update.operands) != 2:
        return None
    if update.operands[0] is not tile or _readers(loop, tile) != [update]:
        return None
    if loop.window is not None and tile in loop.window.tiles:
        return None  # the loop itself asks for it
    folds: list[Fold] = []
    operand = update.operands[1]
    reader: Statement = update
    while True:
        fold = next((s for s in loop.body if written(s) is operand), None)
        if not isinstance(fold, Fold) or not _may_come_later(fold, combiner):
            break
        if _readers(loop, operand) != [reader]:
            break
        folds.insert(0, fold)
        operand, reader = fold.operand, fold
    return _Chain(update, tuple(folds), combiner) if folds else None


def _may_come_later(fold: Fold, combiner: Combiner) -> bool:
    is_same = fold.combiner is combiner and fold.tile.dtype is fold.operand.dtype
    return is_same and not fold.tail_masked


def _readers(loop: For, tile: Tile) -> list[Statement]:
    """The statements of a loop's body that read a tile; a loop stands for those in it."""
    return [s for s in loop.body if tile in read(s) or (isinstance(s, For) and tile in all_read(s))]
