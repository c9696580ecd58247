"""Loop-invariant code motion: statements leave loops that they do not vary in."""

from dataclasses import replace

from blockbuster_fusion.nest.nest import (
    Body,
    Buffer,
    Compute,
    Fold,
    For,
    Index,
    Kernel,
    Load,
    Lookup,
    Positions,
    RunningFold,
    Span,
    Statement,
    accesses,
    read,
    tiles,
    walk,
    written,
)
from blockbuster_fusion.nest.rewrite import all_written, rebuilt


def hoist(kernel: Kernel) -> Kernel:
    """Moves loads, and what follows from them alone, out of loops that they do not vary in.

    An accumulator varies in its loop.
    """
    stored = {
        access.buffer
        for s in kernel.statements
        if not isinstance(s, Load | Lookup)
        for access in accesses(s)
    }

    def moved(body: Body) -> Body:
        made: list[Statement] = []
        for statement in body:
            if isinstance(statement, For):
                out, inside = _invariant(statement, stored)
                made += [*out, replace(statement, body=inside)]
            else:
                made.append(statement)
        return tuple(made)

    return replace(kernel, body=rebuilt(kernel.body, moved))


def _invariant(loop: For, stored: set[Buffer]) -> tuple[list[Statement], Body]:
    varying = {tile for s in loop.body for tile in all_written(s)}
    writes = [tile for s in walk(loop.body) if (tile := written(s)) is not None]
    out: list[Statement] = []
    inside: list[Statement] = []
    for statement in loop.body:
        tile = written(statement)
        movable = (
            isinstance(statement, Load | Lookup | Compute | Positions | Fold | RunningFold)
            and tile is not None
            and writes.count(tile) == 1
            and not varying & set(read(statement))
            and not _mentions(statement, loop.index)
            and not any(a.buffer in stored for a in accesses(statement))
        )
        if movable and tile is not None:
            out.append(statement)
            varying.discard(tile)
        else:
            inside.append(statement)
    return out, tuple(inside)


def _mentions(statement: Statement, index: Index) -> bool:
    spans: list[Span] = [s for a in accesses(statement) for s in a.spans]
    spans += [s for t in tiles(statement) for s in t.spans]
    if isinstance(statement, Positions):
        spans.append(statement.span)
    return any(span.at is index for span in spans)
