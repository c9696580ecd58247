"""The tiles that a program holds in registers during a loop, only to use them after it."""

from collections.abc import Iterator

from blockbuster_fusion.nest.nest import Body, For, Kernel, Load, Tile, written
from blockbuster_fusion.nest.rewrite import all_read, all_written

REGISTER = 4
"""The bytes of a register."""

Registers = dict[Tile, float]
"""The registers for each element of a tile."""


def held_over_loops(kernel: Kernel) -> dict[For, Registers]:
    """For each loop of a kernel, the tiles made before it that are needed only after it.

    What was loaded is held as it is stored, and converted when it is used.
    """
    stored = {s.tile: s.source.buffer.dtype.bytes for s in kernel.statements if isinstance(s, Load)}
    return {
        loop: {tile: stored.get(tile, tile.dtype.bytes) / REGISTER for tile in tiles}
        for loop, tiles in _held(kernel.body, set(), set())
    }


def _held(body: Body, before: set[Tile], after: set[Tile]) -> Iterator[tuple[For, set[Tile]]]:
    """Each loop with the tiles that are held over it, where others come before and after."""
    made = set(before)
    for at, statement in enumerate(body):
        if isinstance(statement, For):
            needed = after.union(*map(all_read, body[at + 1 :]))
            yield statement, made & needed - all_read(statement) - all_written(statement)
            yield from _held(statement.body, made, needed)
            made |= all_written(statement)
        elif (tile := written(statement)) is not None:
            made.add(tile)
