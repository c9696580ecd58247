"""Code motion behind loops with products: what is needed only after a loop is computed there.

A program holds its accumulators in registers during such a loop. A gate that was computed before it
would be held beside them, in float32. What it is computed from is held instead: as it is stored in
memory, in 16 bits, it takes half as many registers.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from blockbuster_fusion.nest.nest import (
    Body,
    Compute,
    Contract,
    For,
    Kernel,
    Load,
    Span,
    Statement,
    Tile,
    walk,
)
from blockbuster_fusion.nest.rewrite import all_read, all_written, rebuilt


def sink(kernel: Kernel) -> Kernel:
    """Computes behind a loop with products what only later statements read, if less is held so."""
    stored = {s.tile: s.source.buffer.dtype.bytes for s in kernel.statements if isinstance(s, Load)}

    def moved(body: Body) -> Body:
        made = [*body]
        for loop in (s for s in body if isinstance(s, For)):
            if any(isinstance(s, Contract) for s in walk(loop.body)):
                at = next(n for n, s in enumerate(made) if s is loop)
                before, after = made[:at], made[at + 1 :]
                later = _later(before, loop)
                if _pays(later, loop, after, stored):
                    kept = [s for s in before if not any(s is x for x in later)]
                    made = [*kept, loop, *later, *after]
        return tuple(made)

    return replace(kernel, body=rebuilt(kernel.body, moved))


def _later(before: Sequence[Statement], loop: For) -> list[Compute]:
    """The computations before a loop that may as well come after it."""
    needed, changed = all_read(loop), all_written(loop)
    found: list[Compute] = []
    for s in reversed(before):
        if isinstance(s, Compute) and not (needed | changed) & {s.tile} | changed & {*s.operands}:
            found.append(s)
        else:
            needed |= all_read(s)
            changed |= all_written(s)
    return found[::-1]


def _pays(
    later: Sequence[Compute],
    loop: For,
    after: Iterable[Statement],
    stored: Mapping[Tile, int],
) -> bool:
    """True if fewer bytes are held during a loop if some computations come after it."""
    read_after = {tile for s in after for tile in all_read(s)}
    made = {s.tile for s in later}
    held_anyway = all_read(loop) | read_after
    results = _bytes(made & read_after, stored)
    sources = _bytes({x for s in later for x in s.operands} - made - held_anyway, stored)

    def is_less(axes: frozenset[Span]) -> bool:
        return any(axes < others for others in results) or sources[axes] <= results.get(axes, 0)

    gains = any(size > sources.get(axes, 0) for axes, size in results.items())
    return gains and all(map(is_less, sources))


def _bytes(tiles: Iterable[Tile], stored: Mapping[Tile, int]) -> dict[frozenset[Span], int]:
    """The bytes of tiles for each of their elements, by axes; loaded ones are held as stored."""
    found: dict[frozenset[Span], int] = {}
    for tile in tiles:
        axes = frozenset(tile.spans)
        found[axes] = found.get(axes, 0) + stored.get(tile, tile.dtype.bytes)
    return found
