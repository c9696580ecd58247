"""Dead code: statements whose tile no other statement reads."""

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
    walk,
    written,
)
from blockbuster_fusion.nest.rewrite import all_written, rebuilt


def remove_dead_code(kernel: Kernel) -> Kernel:
    """Removes statements whose tile no other statement reads, and loops that are then empty."""
    body = kernel.body
    while True:
        smaller = _without_unread(body)
        if sum(1 for _ in walk(smaller)) == sum(1 for _ in walk(body)):
            return replace(kernel, body=tuple(map(_gathering_what_is_written, smaller)))
        body = smaller


def _without_unread(body: Body) -> Body:
    used = {
        tile
        for s in walk(body)
        for tile in read(s)
        if isinstance(s, Store) or written(s) is not tile
    }
    return rebuilt(body, lambda inner: tuple(s for s in inner if not _is_dead(s, used)))


def _is_dead(statement: Statement, used: set[Tile]) -> bool:
    if isinstance(statement, For):
        return not statement.body
    made = written(statement)
    return made is not None and made not in used


def _gathering_what_is_written(statement: Statement) -> Statement:
    """A loop that gathers and carries only accumulators that are still written in it."""
    if not isinstance(statement, For | Cascade):
        return statement
    body = tuple(map(_gathering_what_is_written, statement.body))
    if isinstance(statement, Cascade):
        return replace(statement, body=body)
    there = {tile for s in body for tile in all_written(s)}
    gathered = tuple(group for group in statement.gathered if not there.isdisjoint(group[1]))
    carried = tuple(carry for carry in statement.carried if carry[1] in there)
    return replace(statement, body=body, gathered=gathered, carried=carried)
