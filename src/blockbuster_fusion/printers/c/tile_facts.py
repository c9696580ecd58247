"""Facts about the tiles of a kernel, on which its memory layout depends."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from blockbuster_fusion.ir.axis import Dim, Symbol
from blockbuster_fusion.ir.expr import contains
from blockbuster_fusion.naming import word
from blockbuster_fusion.nest.nest import (
    Along,
    Body,
    Cascade,
    Compute,
    Fold,
    For,
    Kernel,
    Positions,
    Tile,
    read,
)
from blockbuster_fusion.nest.nest import (
    tiles as tiles_of,
)


def tiles_for_runs(kernel: Kernel) -> dict[Tile, Dim]:
    """The tiles that only the totals of a long loop need, with its dim."""
    everywhere = {tile: 0 for s in kernel.statements for tile in tiles_of(s)}
    inside: dict[Tile, tuple[int, Dim]] = {}
    for statement in kernel.statements:
        for tile in tiles_of(statement):
            everywhere[tile] += 1
        if isinstance(statement, Cascade):
            for tile in (tile for s in statement.body for tile in tiles_of(s)):
                count, _ = inside.get(tile, (0, statement.index.dim))
                inside[tile] = count + 1, statement.index.dim
    return {tile: dim for tile, (count, dim) in inside.items() if count == everywhere[tile]}


def is_shared_out(dim: Dim, kernel: Kernel) -> bool:
    """True if blocks of a dim are shorter where threads outnumber them.

    Only a call tells the length of such an axis, and no array of a caller has its blocks.
    """
    given = [a for b in kernel.global_buffers for a in b.axes]
    parts = {a.dim for a in given if a.along is not Along.AXIS}
    is_parallel = any(index.dim is dim for index in kernel.grid)
    is_unknown = isinstance(dim.axis.extent, Symbol)
    return is_parallel and is_unknown and dim not in parts


def short_positions(kernel: Kernel) -> set[Tile]:
    """Positions that fit 32 bits: they are added and compared, never multiplied."""
    found = {s.tile for s in kernel.statements if isinstance(s, Positions)}
    for statement in kernel.statements:
        if isinstance(statement, Compute):
            if contains(statement.expr, "mul", "pow"):
                found -= set(statement.operands)
        else:
            found -= set(read(statement))
    return found


def pairs_of(body: Body) -> Iterator[tuple[Compute, Fold]]:
    """Computations, each with the reduction that follows it at once."""
    for statement, following in pairwise(body):
        if isinstance(statement, Compute) and isinstance(following, Fold):
            yield statement, following
    for statement in body:
        if isinstance(statement, For):
            yield from pairs_of(statement.body)


def factor(text: str) -> str:
    """A text as a factor of a product."""
    return text if text.isidentifier() or text.isdigit() else f"({text})"


def block_names(dims: Sequence[Dim]) -> dict[Dim, str]:
    """A name for each dim: that of its axis, numbered if an axis has several dims."""
    made: dict[Dim, str] = {}
    for dim in dims:
        name = word(dim.name)
        taken = sum(1 for other in made if other.axis is dim.axis)
        made[dim] = f"{name}{taken + 1}" if taken else name
    return made
