"""Memory sharing of tiles: a tile takes the memory of one that is dead, to save cache."""

from collections.abc import Callable
from dataclasses import dataclass

from blockbuster_fusion.nest.nest import (
    Body,
    Cascade,
    Compute,
    For,
    Kernel,
    Statement,
    Tile,
    written,
)
from blockbuster_fusion.nest.rewrite import all_read, all_written

TileKind = tuple[str, str]
"""The type and number of a tile's elements: tiles of one kind can share memory."""


@dataclass(frozen=True, slots=True)
class TileSharing:
    """The tiles that own memory, and for each other tile the owner of its memory."""

    owners: tuple[Tile, ...]
    taken: dict[Tile, Tile]


def share(kernel: Kernel, kind: Callable[[Tile], TileKind | None]) -> TileSharing:
    """The sharing of memory between the tiles of a kernel; tiles without a kind need none."""
    sharing = _Sharing(kind)
    sharing.body(kernel.body)
    return TileSharing(tuple(sharing.owners), sharing.taken)


class _Sharing:
    def __init__(self, kind: Callable[[Tile], TileKind | None]) -> None:
        self.kind = kind
        self.owners: list[Tile] = []
        self.taken: dict[Tile, Tile] = {}
        self.free: dict[TileKind, list[Tile]] = {}

    def body(self, body: Body) -> None:
        """Places the tiles of a body: each lives from its first write to its last use."""
        body = tuple(inner for s in body for inner in (s.body if isinstance(s, Cascade) else (s,)))
        placed: set[Tile] = set(self.taken) | set(self.owners)
        made = [tile for s in body if (tile := written(s)) is not None]
        own = [tile for tile in dict.fromkeys(made) if tile not in placed]
        last = {tile: at for at, s in enumerate(body) for tile in all_read(s) | all_written(s)}
        ending: list[Tile] = []
        for at, statement in enumerate(body):
            # A statement may be printed in one loop with the one before it: what that read is kept.
            for tile in ending:
                self.release(tile)
            ending = [t for t in own if last[t] == at - 1]
            if isinstance(statement, For):
                self.body(statement.body)
                continue
            tile = written(statement)
            if tile is None or tile in placed:
                continue
            placed.add(tile)
            given = self.in_place(statement, tile, at, last, own)
            if given is not None:
                self.taken[tile] = self.owner(given)
                last[given] = -1  # its memory goes on under another name
            else:
                self.place(tile)
        for tile in own:
            if last[tile] >= len(body) - 2:
                self.release(tile)

    def owner(self, tile: Tile) -> Tile:
        return self.taken.get(tile, tile)

    def in_place(
        self, statement: Statement, tile: Tile, at: int, last: dict[Tile, int], own: list[Tile]
    ) -> Tile | None:
        """An operand of the same shape that is not used afterwards."""
        if not isinstance(statement, Compute):
            return None
        for operand in statement.operands:
            dies = operand in own and last[operand] == at and operand.spans == tile.spans
            if dies and self.kind(operand) == self.kind(tile) is not None:
                return operand
        return None

    def place(self, tile: Tile) -> None:
        kind = self.kind(tile)
        if kind is None:
            return
        if self.free.get(kind):
            self.taken[tile] = self.free[kind].pop()
        else:
            self.owners.append(tile)

    def release(self, tile: Tile) -> None:
        kind = self.kind(tile)
        if kind is not None:
            self.free.setdefault(kind, []).append(self.owner(tile))
