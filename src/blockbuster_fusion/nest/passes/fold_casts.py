"""Casts folded into loads and stores.

A load widens and a store rounds: the buffer's dtype is what is stored, the tile's dtype what is
computed with.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from blockbuster_fusion.ir.expr import arg
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.nest import (
    Body,
    Compute,
    Kernel,
    Load,
    Lookup,
    Statement,
    Store,
    Tile,
    read,
    written,
)
from blockbuster_fusion.nest.rewrite import reading, rebuilt
from blockbuster_fusion.safety.storage import NARROW


def fold_casts(kernel: Kernel) -> Kernel:
    """Folds casts into loads and stores.

    A 16-bit block that is only ever widened is loaded wide. A tile that is rounded only to be
    stored is stored wide, and the store rounds it.
    """
    folded = _folded(kernel)

    def rewrite(body: Body) -> Body:
        return tuple(folded.statement(s) for s in body if s not in folded.gone)

    return replace(kernel, body=rebuilt(kernel.body, rewrite))


@dataclass(slots=True)
class _Folded:
    """Casts that go, and the tiles that replace their results."""

    gone: set[Statement] = field(default_factory=set)
    replaced: dict[Tile, Tile] = field(default_factory=dict)
    """The tile that is read instead of the result of each cast."""
    loads: dict[Tile, Tile] = field(default_factory=dict)
    """The wide tile that is loaded instead of each narrow one."""

    def drop(self, cast: Compute, instead: Tile) -> None:
        self.gone.add(cast)
        self.replaced[cast.tile] = instead

    def final(self, tile: Tile) -> Tile:
        """The tile to read: a block may be widened, and then rounded to be stored."""
        while tile in self.replaced:
            tile = self.replaced[tile]
        return tile

    def statement(self, s: Statement) -> Statement:
        if isinstance(s, Load | Lookup) and s.tile in self.loads:
            s = replace(s, tile=self.loads[s.tile])
        for tile in read(s):
            s = reading(s, tile, self.final(tile))
        return s


def _folded(kernel: Kernel) -> _Folded:
    users: dict[Tile, list[Statement]] = {}
    for s in kernel.statements:
        for tile in read(s):
            users.setdefault(tile, []).append(s)
    makers = {made: s for s in kernel.statements if (made := written(s)) is not None}
    found = _Folded()
    for s in kernel.statements:
        if not isinstance(s, Compute) or s.expr.op != "cast" or s.expr.args[0] is not arg(0):
            continue
        (source,) = s.operands
        if _is_widened_load(s, makers.get(source), users):
            wide = Tile(source.name, source.spans, s.tile.dtype)
            found.drop(s, found.loads.setdefault(source, wide))
        elif _is_rounded_to_store(s, users):
            found.drop(s, source)
    return found


def _is_widened_load(
    cast: Compute, maker: Statement | None, users: Mapping[Tile, Sequence[Statement]]
) -> bool:
    """True if a cast widens a block that is only ever widened."""
    (source,) = cast.operands
    if not isinstance(maker, Load | Lookup) or source.dtype not in NARROW:
        return False
    return all(isinstance(u, Compute) and u.expr is cast.expr for u in users[source])


def _is_rounded_to_store(cast: Compute, users: Mapping[Tile, Sequence[Statement]]) -> bool:
    """True if a cast rounds a tile that is then only stored."""
    (source,) = cast.operands
    if cast.tile.dtype not in NARROW or source.dtype is not DType.float32:
        return False
    readers = users.get(cast.tile, ())
    return bool(readers) and all(isinstance(u, Store) for u in readers)
