"""Loops that gather maxima and sums for groups of places, and join the groups once at the end.

A softmax of long rows gathers a maximum and a sum that is scaled to it. Each step folds a block for
both, so that all threads of a GPU wait for each other twice. But the meaning of a loop does not
depend on the lengths of its blocks: a few neighbours are a block as well, and what they give is
gathered by the same statements. So each group of neighbours, which one thread has loaded, has a
maximum and a sum of its own here. The combiner joins them after the loop.

Places whose sums are gathered one by one would need an exponential more for each element. Rows that
are not aligned keep their folds: there, neighbours are loaded by several threads. So do rows that
are read again and stored, and shares of rows: on an H200 these were 4 to 18% slower in groups, as
their loops are short and more registers leave less room for other programs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from blockbuster_fusion.ir.combiner import ANY
from blockbuster_fusion.nest.analysis.thread_blocks import VECTOR_BYTES, is_aligned
from blockbuster_fusion.nest.lower_combiner import folded, is_foldable
from blockbuster_fusion.nest.nest import (
    Body,
    Compute,
    Fill,
    Fold,
    For,
    Kernel,
    Load,
    Lookup,
    Positions,
    Span,
    Statement,
    Store,
    Tile,
    read,
    tiles,
    written,
)
from blockbuster_fusion.nest.rewrite import FreshNames, all_read, all_written, rebuilt, with_tiles

SHORT = 4096
"""Rows of up to so many elements keep their folds: they take few steps."""


def gather_in_groups(kernel: Kernel) -> Kernel:
    """Has groups of places gather maxima and sums of their own."""
    names = FreshNames(kernel)
    stored = {a.dim.axis for s in kernel.statements if isinstance(s, Store) for a in s.target.spans}

    def rewrite(body: Body) -> Body:
        made: list[Statement] = []
        for statement in body:
            is_kept = isinstance(statement, For) and statement.index.dim.axis in stored
            own = None if is_kept else _gathered(made, statement, names)
            made = own or [*made, statement]
        return tuple(made)

    return replace(kernel, body=rebuilt(kernel.body, rewrite))


def _gathered(
    before: Sequence[Statement], loop: Statement, names: FreshNames
) -> list[Statement] | None:
    """The statements before a loop, and the loop with what joins its groups; None if it stays."""
    if not isinstance(loop, For) or all(len(some) == 1 for _, some in loop.gathered):
        return None
    groups = _groups(loop)
    wide = None if groups is None else _widened(loop, groups, names)
    if groups is None or wide is None:
        return None
    own = [(c, some) for c, some in loop.gathered if not wide.keys().isdisjoint(some)]
    accumulators = [tile for _, some in own for tile in some]
    fills = [s for s in before if isinstance(s, Fill) and s.tile in accumulators]
    others = [s for s in before if s not in fills]
    used = {tile for s in others for tile in all_read(s) | all_written(s)}
    is_filled = {s.tile for s in fills} == {*accumulators} and used.isdisjoint(accumulators)
    if not is_filled or not all(c is not ANY and is_foldable(c) for c, _ in own):
        return None
    if not wide.keys() >= {*accumulators} or _outlive(loop, wide, accumulators):
        return None
    body = tuple(_with(s, wide) for s in loop.body)
    gathered = tuple((c, tuple(wide.get(t, t) for t in some)) for c, some in loop.gathered)
    made = [*others, *(_with(s, wide) for s in fills)]
    made.append(replace(loop, body=body, gathered=gathered))
    for combiner, some in own:
        joined, statements = folded(combiner, [wide[t] for t in some], groups, names)
        final = dict(zip(joined, some, strict=True))
        made += [_with(_unmasked(s), final) for s in statements]
    return made


def _with(statement: Statement, other: Mapping[Tile, Tile]) -> Statement:
    """The statement with other tiles in place of some."""
    return with_tiles(statement, lambda tile: other.get(tile, tile))


def _unmasked(statement: Statement) -> Statement:
    """A fold without a mask: groups beyond the end of an axis have gathered nothing."""
    return replace(statement, tail_masked=False) if isinstance(statement, Fold) else statement


def _groups(loop: For) -> Span | None:
    """The groups of a loop's places, as many as a thread loads at a time, if it has such."""
    span = Span(loop.index.dim, loop.index)
    is_simple = all(isinstance(s, Load | Lookup | Compute | Positions | Fold) for s in loop.body)
    extent = span.dim.axis.extent
    is_long = isinstance(extent, int) and extent > SHORT and span.dim.packed
    if not is_simple or not is_long or loop.carried or loop.share is not None:
        return None
    loads = [s for s in loop.body if isinstance(s, Load) and span in s.source.spans]
    if not loads or not all(_is_along(s, span) for s in loads):
        return None
    blocks = [t for s in loop.body for t in tiles(s) if span in t.spans]
    if any(t.spans[-1] != span for t in blocks):
        return None
    each = VECTOR_BYTES // min(s.source.buffer.dtype.bytes for s in loads)
    return Span(span.dim, span.at, each) if each > 1 else None


def _is_along(load: Load, span: Span) -> bool:
    """True if a block is loaded in vectors along a span."""
    return load.source.spans[-1] == span and is_aligned(load.source.buffer)


def _widened(loop: For, groups: Span, names: FreshNames) -> dict[Tile, Tile] | None:
    """The tiles of what is folded, and of what follows from them, with an axis of groups.

    None if a statement reads one of them that is not about places one by one.
    """
    wide: dict[Tile, Tile] = {}
    count = -1
    while count < len(wide):
        count = len(wide)
        for s in loop.body:
            follows = any(t in wide for t in read(s))
            if follows and not isinstance(s, Compute):
                return None
            is_folded = isinstance(s, Fold) and s.span == groups.whole
            made = written(s)
            if made is None or made in wide or not (follows or is_folded):
                continue
            if groups.whole not in made.spans:
                wide[made] = Tile(names.numbered("t"), (*made.spans, groups), made.dtype)
            elif not any(groups.whole in t.spans for t in read(s)):
                return None
    return None if any(t in wide for t in read(loop)) else wide


def _outlive(loop: For, wide: dict[Tile, Tile], accumulators: Sequence[Tile]) -> bool:
    """True if another tile than accumulators has a value from one step to the next."""
    known: set[Tile] = set()
    for s in loop.body:
        if any(t in wide and t not in known and t not in accumulators for t in read(s)):
            return True
        made = written(s)
        known |= set() if made is None else {made}
    return False
