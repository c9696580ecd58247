"""Rewriting of bodies, for passes over loop nests."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.nest.nest import (
    Access,
    Body,
    Cascade,
    Compute,
    Contract,
    Fill,
    Fold,
    For,
    Index,
    Kernel,
    Last,
    Load,
    Lookup,
    Positions,
    RunningFold,
    Span,
    Statement,
    Store,
    Tile,
    Window,
    read,
    tiles,
    walk,
    written,
)


def rebuilt(body: Body, rewrite: Callable[[Body], Body]) -> Body:
    """The body after `rewrite` of the bodies of its loops, innermost first, and then of itself."""
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


def reading(statement: Statement, old: Tile, new: Tile) -> Statement:
    """The statement with one tile that it reads replaced."""

    def other(tile: Tile) -> Tile:
        return new if tile is old else tile

    match statement:
        case Lookup():
            return replace(statement, places=other(statement.places))
        case Compute():
            return replace(statement, operands=tuple(other(t) for t in statement.operands))
        case Fold() | RunningFold() | Last():
            return replace(statement, operand=other(statement.operand))
        case Contract():
            return replace(statement, left=other(statement.left), right=other(statement.right))
        case Store():
            places = None if statement.places is None else other(statement.places)
            return replace(statement, tile=other(statement.tile), places=places)
        case For():
            return replace(statement, body=tuple(reading(s, old, new) for s in statement.body))
    return statement


def with_tiles(statement: Statement, other: Callable[[Tile], Tile]) -> Statement:
    """The statement with each tile that it reads or writes replaced; it is no loop."""
    if isinstance(statement, For):
        raise TypeError("the tiles of a loop are not replaced")
    if isinstance(statement, Cascade):
        return replace(statement, body=tuple(with_tiles(s, other) for s in statement.body))
    made: Statement = replace(statement, tile=other(statement.tile))
    for old in dict.fromkeys(read(statement)):
        if old is not statement.tile or isinstance(statement, Compute):
            made = reading(made, old, other(old))
    return made


class FreshNames:
    """Names for new tiles of some kernels, with larger numbers than all others have.

    A number that is not used any more may be that of a value in the block program's listing.
    """

    def __init__(self, *kernels: Kernel) -> None:
        self.taken = {tile.name for k in kernels for s in k.statements for tile in tiles(s)}
        self.taken |= {buffer.name for k in kernels for buffer in k.buffers}
        self.last: dict[str, int] = {}

    def numbered(self, letter: str) -> str:
        if letter not in self.last:
            own = (n.removeprefix(letter) for n in self.taken if n.startswith(letter))
            self.last[letter] = max((int(n) for n in own if n.isdecimal()), default=0)
        self.last[letter] += 1
        name = f"{letter}{self.last[letter]}"
        self.taken.add(name)
        return name

    def like(self, tile: Tile) -> Tile:
        return Tile(self.numbered("t"), tile.spans, tile.dtype)


@dataclass(frozen=True)
class Renaming:
    """Rewrites statements to other indices and dims; buffers stay as they are."""

    indices: Mapping[Index, Index]
    dims: Mapping[Dim, Dim]
    name: Callable[[str], str] = str
    """Gives tiles other names."""
    tiles: dict[Tile, Tile] = field(default_factory=dict)
    """The tiles that were met so far."""

    def body(self, body: Body) -> Body:
        return tuple(map(self.statement, body))

    def statement(self, s: Statement) -> Statement:
        tile = self.tile
        match s:
            case Load():
                return replace(s, tile=tile(s.tile), source=self.access(s.source))
            case Lookup():
                source = self.access(s.source)
                return replace(s, tile=tile(s.tile), source=source, places=tile(s.places))
            case Store():
                places = None if s.places is None else tile(s.places)
                return replace(s, target=self.access(s.target), tile=tile(s.tile), places=places)
            case Compute():
                return replace(s, tile=tile(s.tile), operands=tuple(map(tile, s.operands)))
            case Positions():
                return replace(s, tile=tile(s.tile), span=self.span(s.span))
            case Fold() | RunningFold() | Last():
                operand, span = tile(s.operand), self.span(s.span)
                return replace(s, tile=tile(s.tile), operand=operand, span=span)
            case Contract():
                made = replace(s, tile=tile(s.tile), left=tile(s.left), right=tile(s.right))
                return replace(made, span=self.span(s.span), also=tuple(map(self.span, s.also)))
            case Fill():
                return replace(s, tile=tile(s.tile))
            case For():
                return self.loop(s)
            case Cascade():
                return replace(s, index=self.index(s.index), body=self.body(s.body))

    def loop(self, s: For) -> For:
        share = s.share and replace(s.share, index=self.index(s.share.index))
        gathered = tuple((c, tuple(map(self.tile, some))) for c, some in s.gathered)
        window = None if s.window is None else self.window(s.window)
        made = replace(s, index=self.index(s.index), body=self.body(s.body), window=window)
        carried = tuple((c, self.tile(carry)) for c, carry in s.carried)
        return replace(made, share=share, gathered=gathered, carried=carried)

    def window(self, window: Window) -> Window:
        rows = None if window.rows is None else self.span(window.rows)
        edges = (window.low, window.high)
        low, high = (self.tile(edge) if isinstance(edge, Tile) else edge for edge in edges)
        seen = None if window.seen is None else tuple(map(self.tile, window.seen))
        return replace(window, rows=rows, low=low, high=high, seen=seen)

    def tile(self, old: Tile) -> Tile:
        if old not in self.tiles:
            self.tiles[old] = Tile(self.name(old.name), tuple(map(self.span, old.spans)), old.dtype)
        return self.tiles[old]

    def access(self, access: Access) -> Access:
        return Access(access.buffer, tuple(map(self.span, access.spans)))

    def index(self, index: Index) -> Index:
        return self.indices.get(index, index)

    def span(self, span: Span) -> Span:
        at = self.index(span.at) if isinstance(span.at, Index) else span.at
        dim = at.dim if isinstance(at, Index) else self.dims.get(span.dim, span.dim)
        return Span(dim, at, span.each)
