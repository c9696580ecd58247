"""Where statements stand: out of loops that they do not vary in, and sums where they are summed."""

from dataclasses import replace

from blockbuster_fusion.ir.expr import arg
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.lower_combiner import reading
from blockbuster_fusion.nest.nest import (
    Body,
    Buffer,
    Compute,
    Contract,
    Fill,
    Fold,
    For,
    Index,
    Kernel,
    Load,
    Lookup,
    Positions,
    Span,
    Statement,
    Store,
    Tile,
    accesses,
    read,
    tiles,
    walk,
    written,
)
from blockbuster_fusion.nest.rewrite import all_read, all_written, rebuilt


def hoisted(kernel: Kernel) -> Kernel:
    """The kernel with every load, and what follows from it alone, as far out as it goes.

    A block that does not vary in a loop is loaded before it; an accumulator does vary.
    """
    stored = {
        access.buffer
        for s in kernel.statements
        if not isinstance(s, Load | Lookup)
        for access in accesses(s)
    }

    def hoist(body: Body) -> Body:
        made: list[Statement] = []
        for statement in body:
            if isinstance(statement, For):
                out, inside = _invariant(statement, stored)
                made += [*out, replace(statement, body=inside)]
            else:
                made.append(statement)
        return tuple(made)

    return replace(kernel, body=rebuilt(kernel.body, hoist))


def _invariant(loop: For, stored: set[Buffer]) -> tuple[list[Statement], Body]:
    varying = {tile for s in loop.body for tile in all_written(s)}
    writes = [tile for s in walk(loop.body) if (tile := written(s)) is not None]
    out: list[Statement] = []
    inside: list[Statement] = []
    for statement in loop.body:
        tile = written(statement)
        movable = (
            isinstance(statement, Load | Lookup | Compute | Positions | Fold)
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


def summed_in_place(kernel: Kernel) -> Kernel:
    """The kernel with contractions that add straight into the accumulator they are added to.

    Where a tile is filled with 0, gathers contractions and is then added to an accumulator that
    nobody looks at meanwhile, the accumulator takes its place.
    """

    def rewrite(body: Body) -> Body:
        done = body
        for statement in body:
            if isinstance(statement, Compute):
                done = _absorbed(done, statement, kernel)
        return done

    return replace(kernel, body=rebuilt(kernel.body, rewrite))


def _absorbed(body: Body, update: Compute, kernel: Kernel) -> Body:
    """The body with the summand of `acc = acc*scale + summand` summed into acc, if that can be."""
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


NARROW = (DType.float16, DType.bfloat16)


def stored_narrow(kernel: Kernel) -> Kernel:
    """The kernel without casts beside loads and stores: a tile is computed with as it is needed.

    A 16-bit block that is only ever widened is loaded wide, and what is rounded only to be stored
    is stored from the wide tile: the buffer's dtype says how.
    """
    users: dict[Tile, list[Statement]] = {}
    for s in kernel.statements:
        for tile in read(s):
            users.setdefault(tile, []).append(s)
    makers = {made: s for s in kernel.statements if (made := written(s)) is not None}
    replaced: dict[Tile, Tile] = {}
    loads: dict[Tile, Tile] = {}
    gone: set[Statement] = set()
    for statement in kernel.statements:
        if not isinstance(statement, Compute) or statement.expr.op != "cast":
            continue
        if statement.expr.args[0] is not arg(0):
            continue
        (source,) = statement.operands
        if isinstance(makers.get(source), Load | Lookup) and source.dtype in NARROW:
            if all(isinstance(u, Compute) and u.expr is statement.expr for u in users[source]):
                wide = loads.setdefault(
                    source, Tile(source.name, source.spans, statement.tile.dtype)
                )
                replaced[statement.tile] = wide
                gone.add(statement)
        elif statement.tile.dtype in NARROW and source.dtype is DType.float32:
            reads = users.get(statement.tile, [])
            if reads and all(isinstance(u, Store) for u in reads):
                replaced[statement.tile] = source
                gone.add(statement)

    def final(tile: Tile) -> Tile:
        while tile in replaced:  # widened, and then rounded to be stored
            tile = replaced[tile]
        return tile

    def rewrite(body: Body) -> Body:
        made: list[Statement] = []
        for s in body:
            if s in gone:
                continue
            if isinstance(s, Load | Lookup) and s.tile in loads:
                s = replace(s, tile=loads[s.tile])
            for tile in read(s):
                s = reading(s, tile, final(tile))
            made.append(s)
        return tuple(made)

    return replace(kernel, body=rebuilt(kernel.body, rewrite))
