"""Contractions that add straight into the accumulator of a loop, without a tile in between."""

from dataclasses import replace

from blockbuster_fusion.ir.expr import arg
from blockbuster_fusion.nest.nest import (
    Body,
    Compute,
    Contract,
    Fill,
    For,
    Kernel,
    Statement,
    Tile,
    tiles,
    walk,
    written,
)
from blockbuster_fusion.nest.rewrite import all_read, all_written, rebuilt


def accumulate_in_place(kernel: Kernel) -> Kernel:
    """Has contractions add straight into the accumulator that their sum is added to.

    The pattern is a tile that is filled with 0, gathers contractions, and is then added to an
    accumulator that no statement in between reads or writes. The accumulator replaces the tile.
    """

    def rewrite(body: Body) -> Body:
        done = body
        for statement in body:
            if isinstance(statement, Compute):
                done = _absorbed(done, statement, kernel)
        return done

    return replace(kernel, body=rebuilt(kernel.body, rewrite))


def _absorbed(body: Body, update: Compute, kernel: Kernel) -> Body:
    """The body with the summand of `acc = acc*scale + summand` summed into acc, if possible."""
    found = _update(update)
    if found is None or update not in body:
        return body
    total, summand, scale = found
    end = body.index(update)
    fills = [i for i, s in enumerate(body[:end]) if isinstance(s, Fill) and s.tile is summand]
    if len(fills) != 1 or body[fills[0]].value != 0:  # type: ignore[union-attr]
        return body
    start = fills[0]
    between, users = body[start + 1 : end], [s for s in kernel.statements if summand in tiles(s)]
    sums = [s for s in walk(between) if isinstance(s, Contract) and s.tile is summand]
    if len(users) != len(sums) + 2 or total.spans != summand.spans or total.dtype != summand.dtype:
        return body
    if any(total in all_read(s) | all_written(s) for s in between):
        return body
    if scale is not None and (
        any(scale in all_written(s) for s in between) or not _is_there(body[:start], scale, kernel)
    ):
        return body
    begin: list[Statement] = []
    if scale is not None:
        begin = [Compute(total, arg(0) * arg(1), (total, scale))]
    moved = tuple(_summing(s, summand, total) for s in between)
    return (*body[:start], *begin, *moved, *body[end + 1 :])


def _update(update: Compute) -> tuple[Tile, Tile, Tile | None] | None:
    """(acc, summand, scale) of `acc = acc*scale + summand` or `acc = acc + summand`."""
    total = update.tile
    if update.expr is arg(0) + arg(1) and update.operands[0] is total:
        return total, update.operands[1], None
    scaled = arg(0) * arg(1) + arg(2)
    if update.expr is scaled and update.operands[0] is total:
        return total, update.operands[2], update.operands[1]
    return None


def _is_there(before: Body, tile: Tile, kernel: Kernel) -> bool:
    inside = any(tile in all_written(s) for s in before)
    return inside or not any(written(s) is tile for s in kernel.statements)


def _summing(statement: Statement, old: Tile, new: Tile) -> Statement:
    if isinstance(statement, Contract) and statement.tile is old:
        return replace(statement, tile=new)
    if isinstance(statement, For):
        gathered = tuple(
            (combiner, tuple(new if t is old else t for t in group))
            for combiner, group in statement.gathered
        )
        body = tuple(_summing(s, old, new) for s in statement.body)
        return replace(statement, body=body, gathered=gathered)
    return statement
