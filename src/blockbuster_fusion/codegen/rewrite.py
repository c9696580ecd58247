"""Rewriting bodies: what every pass over a loop nest needs."""

from collections.abc import Callable
from dataclasses import replace

from blockbuster_fusion.codegen.nest import (
    Body,
    For,
    Kernel,
    Statement,
    Store,
    Tile,
    read,
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
            return replace(kernel, body=smaller)
        body = smaller
