"""Rewriting bodies: what every pass over a loop nest needs."""

from collections.abc import Callable
from dataclasses import replace

from blockbuster_fusion.nest.nest import (
    Body,
    Cascade,
    For,
    Kernel,
    Statement,
    Store,
    Tile,
    read,
    tiles,
    walk,
    written,
)


def rebuilt(body: Body, rewrite: Callable[[Body], Body]) -> Body:
    """The body with `rewrite` done to the bodies of its loops, innermost first, then to itself."""
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


def without_dead(kernel: Kernel) -> Kernel:
    """The kernel without statements whose tile nobody reads."""
    body = kernel.body
    while True:
        used = {
            tile
            for s in walk(body)
            for tile in read(s)
            if isinstance(s, Store) or written(s) is not tile
        }
        smaller = rebuilt(
            body,
            lambda inner, used=used: tuple(  # type: ignore[misc]
                s
                for s in inner
                if not (written(s) is not None and written(s) not in used)
                and not (isinstance(s, For) and not s.body)
            ),
        )
        if sum(1 for _ in walk(smaller)) == sum(1 for _ in walk(body)):
            return replace(kernel, body=tuple(map(_gathering_what_is_there, smaller)))
        body = smaller


def _gathering_what_is_there(statement: Statement) -> Statement:
    """A loop that gathers only what is still written in it."""
    if not isinstance(statement, For | Cascade):
        return statement
    body = tuple(map(_gathering_what_is_there, statement.body))
    if isinstance(statement, Cascade):
        return replace(statement, body=body)
    there = {tile for s in body for tile in all_written(s)}
    gathered = tuple(group for group in statement.gathered if not there.isdisjoint(group[1]))
    return replace(statement, body=body, gathered=gathered)


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
