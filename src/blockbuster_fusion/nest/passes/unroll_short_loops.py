"""Short loops whose blocks are all loaded before anything is computed with them.

A loop waits for memory once for each block. If it is unrolled, with the loads in front, it waits
once. The loop that combines the shares of a split reduction is so short.
"""

from collections.abc import Iterator
from dataclasses import replace

from blockbuster_fusion.nest.nest import (
    Access,
    Compute,
    Fill,
    For,
    Index,
    Kernel,
    Load,
    Span,
    Statement,
    Tile,
    walk,
    written,
)
from blockbuster_fusion.nest.rewrite import FreshNames, with_tiles

MOST_BLOCKS = 16
"""The most blocks of a loop that is unrolled."""
MOST_STATEMENTS = 192
"""The most statements that it becomes: Triton takes about a second for so many."""


def unroll_short_loops(kernel: Kernel) -> Kernel:
    """Unrolls short loops that only load and compute."""
    if not any(isinstance(s, For) and _is_short(s) for s in kernel.body):
        return kernel
    names, made = FreshNames(kernel), list[Statement]()
    for statement in kernel.body:
        if isinstance(statement, For) and _is_short(statement):
            made += _unrolled(statement, made, names)
        else:
            made.append(statement)
    return replace(kernel, body=tuple(made))


def _is_short(loop: For) -> bool:
    """True if a loop has few blocks, of one element each, and only loads and computes."""
    extent = loop.index.dim.axis.extent
    if not isinstance(extent, int) or loop.index.dim.packed or loop.window or loop.share:
        return False
    if extent > MOST_BLOCKS or extent * len(loop.body) > MOST_STATEMENTS:
        return False
    return all(isinstance(s, Load | Compute | Fill) for s in loop.body)


def _unrolled(loop: For, above: list[Statement], names: FreshNames) -> Iterator[Statement]:
    """The statements of a loop for each of its blocks, the loads first."""
    extent = loop.index.dim.axis.extent
    assert isinstance(extent, int)
    known = {tile for s in walk(tuple(above)) if (tile := written(s)) is not None}
    blocks = [_block(loop, at, known, names) for at in range(loop.first, extent)]
    yield from (s for block in blocks for s in block if isinstance(s, Load))
    yield from (s for block in blocks for s in block if not isinstance(s, Load))


def _block(loop: For, at: int, known: set[Tile], names: FreshNames) -> list[Statement]:
    """The statements of a loop for one block, with tiles of its own."""
    own: dict[Tile, Tile] = {}

    def other(tile: Tile) -> Tile:
        if tile in known:  # an accumulator, or what is the same for all blocks
            return tile
        if tile not in own:
            own[tile] = names.like(tile)
        return own[tile]

    return [_at(with_tiles(s, other), loop.index, at) for s in loop.body]


def _at(statement: Statement, index: Index, at: int) -> Statement:
    """The statement with the variable of a loop replaced by a number."""
    if not isinstance(statement, Load):
        return statement
    spans = (Span(s.dim, at) if s.at is index else s for s in statement.source.spans)
    return replace(statement, source=Access(statement.source.buffer, tuple(spans)))
