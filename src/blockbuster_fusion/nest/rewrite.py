"""Rewriting of bodies, for passes over loop nests."""

from collections.abc import Callable
from dataclasses import replace

from blockbuster_fusion.nest.nest import (
    Body,
    Cascade,
    Compute,
    Contract,
    Fold,
    For,
    Kernel,
    Lookup,
    Statement,
    Store,
    Tile,
    read,
    tiles,
    walk,
    written,
)


def rebuilt(body: Body, rewrite: Callable[[Body], Body]) -> Body:
    """The body after `rewrite` of the bodies of its loops, innermost first, and then of itself."""
    inner = tuple(
        replace(s, body=rebuilt(s.body, rewrite)) if isinstance(s, For) else s for s in body
    )
    return rewrite(inner)


def all_written(statement: Statement) -> set[Tile]:
    """The tiles that a statement writes, inside a loop as well."""
    return {tile for s in walk((statement,)) if (tile := written(s)) is not None}


def all_read(statement: Statement) -> set[Tile]:
    """The tiles that a statement reads, inside a loop as well."""
    return {tile for s in walk((statement,)) for tile in read(s)}


def reading(statement: Statement, old: Tile, new: Tile) -> Statement:
    """The statement with one tile that it reads replaced."""

    def other(tile: Tile) -> Tile:
        return new if tile is old else tile

    match statement:
        case Lookup():
            return replace(statement, places=other(statement.places))
        case Compute():
            return replace(statement, operands=tuple(other(t) for t in statement.operands))
        case Fold():
            return replace(statement, operand=other(statement.operand))
        case Contract():
            return replace(statement, left=other(statement.left), right=other(statement.right))
        case Store():
            places = None if statement.places is None else other(statement.places)
            return replace(statement, tile=other(statement.tile), places=places)
        case For():
            return replace(statement, body=tuple(reading(s, old, new) for s in statement.body))
    return statement


def with_tiles(statement: Statement, other: Callable[[Tile], Tile]) -> Statement:
    """The statement with each tile that it reads or writes replaced; it is no loop."""
    if isinstance(statement, For):
        raise TypeError("the tiles of a loop are not replaced")
    if isinstance(statement, Cascade):
        return replace(statement, body=tuple(with_tiles(s, other) for s in statement.body))
    made: Statement = replace(statement, tile=other(statement.tile))
    for old in dict.fromkeys(read(statement)):
        if old is not statement.tile or isinstance(statement, Compute):
            made = reading(made, old, other(old))
    return made


class FreshNames:
    """Names for new tiles of a kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.taken = {tile.name for s in kernel.statements for tile in tiles(s)}
        self.taken |= {buffer.name for buffer in kernel.buffers}

    def numbered(self, letter: str) -> str:
        name = next(n for i in range(1, 10**6) if (n := f"{letter}{i}") not in self.taken)
        self.taken.add(name)
        return name

    def like(self, tile: Tile) -> Tile:
        return Tile(self.numbered("t"), tile.spans, tile.dtype)
