"""The loop nest: what stands between block programs and every printer.

A kernel is a grid of independent programs. Each runs the same statements over *tiles* in local
memory, which it loads from and stores to *buffers*. Everything that a printer would otherwise have
to work out is decided here: which loops are the grid, where loads stand, what accumulates, where a
ragged last block needs a guard, which blocks a mask lets a loop skip. Printers see no Graph.

Statements are immutable and tiles are compared by identity; a pass gives a new kernel.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from blockbuster_fusion.ir.axis import Axis, Dim, Symbol
from blockbuster_fusion.ir.combiner import Combiner
from blockbuster_fusion.ir.expr import Expr, axes_in
from blockbuster_fusion.ir.ops import Misc
from blockbuster_fusion.ir.types import DType


class Space(Enum):
    """Where a buffer lies."""

    GLOBAL = "global"  # seen by every program of every kernel
    SCRATCH = "scratch"  # one copy for each program of the grid


@dataclass(frozen=True, eq=False, slots=True)
class Index:
    """The variable of a loop: at which block of a dim it is."""

    name: str
    dim: Dim

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Span:
    """One block of a dim: the one a loop is at, or a fixed one. A unit dim has only block 0."""

    dim: Dim
    at: Index | int

    def __str__(self) -> str:
        return ":" if self.dim.unit else str(self.at)


@dataclass(frozen=True, eq=False, slots=True)
class Tile:
    """A block in local memory: a variable. It has an axis for each span; without one, a number."""

    name: str
    spans: tuple[Span, ...]
    dtype: DType

    def __repr__(self) -> str:
        return self.name


class Along(Enum):
    """What an axis of a buffer counts."""

    AXIS = "axis"  # the elements of the whole axis
    BLOCKS = "blocks"  # the blocks of the dim: one entry for each
    BLOCK = "block"  # the elements of one block: a scratch buffer holds just the current one


@dataclass(frozen=True, slots=True)
class BufferAxis:
    """One axis of a buffer."""

    dim: Dim
    along: Along = Along.AXIS


@dataclass(frozen=True, eq=False, slots=True)
class Buffer:
    """An array. Who launches the kernel says where it is and with which strides it lies there."""

    name: str
    axes: tuple[BufferAxis, ...]
    dtype: DType
    space: Space = Space.GLOBAL

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Access:
    """The block of a buffer at a span along each of its axes."""

    buffer: Buffer
    spans: tuple[Span, ...]


# ------------------------------------------------------------------ statements


@dataclass(frozen=True, eq=False, slots=True)
class Load:
    """A block into a tile; the tile's dtype is what is computed with, the buffer's what is stored.

    Axes of the tile are those of the buffer in any order. Beyond the end of an axis it is 0.
    """

    tile: Tile
    source: Access


@dataclass(frozen=True, eq=False, slots=True)
class Lookup:
    """Elements of a buffer into a tile, as a load is, but along one axis at places that are data.

    `source` is whole along that axis, number `axis` of the buffer; the tile has the axes of the
    places and the others of the block. Beyond the end of an axis nothing is read, and it is 0.
    """

    tile: Tile
    source: Access
    places: Tile
    axis: int

    @property
    def along(self) -> Axis:
        """The axis that the places are on."""
        return self.source.spans[self.axis].dim.axis


@dataclass(frozen=True, eq=False, slots=True)
class Store:
    """A tile into a buffer, rounded to its dtype; `atomic`: added to what is there."""

    target: Access
    tile: Tile
    atomic: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class Compute:
    """An expression for every element; operands broadcast along the axes that they lack.

    The tile may be an accumulator, and one of the operands too.
    """

    tile: Tile
    expr: Expr
    operands: tuple[Tile, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Positions:
    """The positions along an axis: 0, 1, … of the whole axis, those of the tile's block."""

    tile: Tile
    span: Span


@dataclass(frozen=True, eq=False, slots=True)
class Fold:
    """A tile reduced along one of its axes.

    `guarded`: what lies beyond the end of the axis is not neutral: it must be left out.
    """

    tile: Tile
    operand: Tile
    span: Span
    combiner: Combiner
    guarded: bool = True


@dataclass(frozen=True, eq=False, slots=True)
class Contract:
    """`tile += left · right`, summed over the span that both have; the tile was filled before.

    `guarded` says of each operand whether what lies beyond the end of the axis must be cleared.
    """

    tile: Tile
    left: Tile
    right: Tile
    span: Span
    guarded: tuple[bool, bool] = (True, True)


@dataclass(frozen=True, eq=False, slots=True)
class Fill:
    """A number in every element: how accumulators begin."""

    tile: Tile
    value: float


@dataclass(frozen=True, slots=True)
class Window:
    """Which positions of a loop's axis can matter to the rows of a block: the rest is masked.

    With `rows`, a row at position r sees those from r + low to r + high. Without, `low` and `high`
    are the first and the last position that any row sees. Both are sums of sizes and numbers, or
    else tiles: numbers that were computed before the loop.

    Where a row sees none at all, what is masked counts: it is averaged. `seen` are accumulators
    that tell, after the blocks of the window: where one is not above UNSEEN, the other blocks are
    visited as well. None: the edges tell, and nothing else masks. Empty: what is masked is nothing.
    """

    rows: Span | None
    low: "Expr | Tile | None"
    high: "Expr | Tile | None"
    seen: tuple[Tile, ...] | None = None

    @property
    def tiles(self) -> tuple[Tile, ...]:
        """The tiles that it depends on."""
        edges = (self.low, self.high)
        return (*(e for e in edges if isinstance(e, Tile)), *(self.seen or ()))


UNSEEN = -5e19
"""Scores are above this; what masks fill in is below it."""


@dataclass(frozen=True, slots=True)
class Share:
    """The share of a loop's blocks that one program of a split reduction has."""

    index: Index
    parts: int


@dataclass(frozen=True, eq=False, slots=True)
class For:
    """A serial loop over the blocks of a dim, from block `first` on.

    `window` narrows it to what a mask leaves; `share` to the share of one program. `gathered` are
    its accumulators, with the combiner that each group of them follows.
    """

    index: Index
    body: "Body"
    first: int = 0
    window: Window | None = None
    share: Share | None = None
    gathered: tuple[tuple[Combiner, tuple[Tile, ...]], ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class Cascade:
    """Statements for a loop with many blocks: they keep its sums exact (passes/cascade_sums.py).

    Beside the loop over `index`, the body runs once. `inside` it, the body runs after each run of
    blocks; how long a run is depends on the number of blocks. With few blocks nothing runs.
    """

    index: Index
    body: "Body"
    inside: bool = False


Statement = Load | Lookup | Store | Compute | Positions | Fold | Contract | Fill | For | Cascade
Body = tuple[Statement, ...]


# --------------------------------------------------------------------- kernels


@dataclass(frozen=True, slots=True)
class Kernel:
    """A grid of independent programs, each running the body. The last grid index varies fastest."""

    name: str
    grid: tuple[Index, ...]
    body: Body

    @property
    def statements(self) -> Iterator[Statement]:
        """Every statement, in order, those of loops after the loop."""
        return walk(self.body)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The buffers that it reads and writes, in order of their first mention."""
        found: dict[Buffer, None] = {}
        for statement in self.statements:
            for access in accesses(statement):
                found.setdefault(access.buffer)
        return tuple(found)

    @property
    def global_buffers(self) -> tuple[Buffer, ...]:
        """The buffers that whoever launches it hands over, in order."""
        return tuple(b for b in self.buffers if b.space is Space.GLOBAL)

    @property
    def symbols(self) -> tuple[Symbol, ...]:
        """The sizes that it depends on, in order of their first mention."""
        extents = [dim.axis.extent for dim in self.dims]
        own = [b for b in self.buffers if b.space is not Space.GLOBAL]  # others come with strides
        extents += [axis.dim.axis.extent for buffer in own for axis in buffer.axes]
        extents += [s.along.extent for s in self.statements if isinstance(s, Lookup)]
        axes = axes_in(*(e for s in self.statements for e in expressions(s)))
        extents += [axis.extent for axis in axes]
        return tuple(dict.fromkeys(e for e in extents if isinstance(e, Symbol)))

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The dims of its grid, loops, tiles and buffers, in order of their first mention."""
        found = dict.fromkeys(index.dim for index in self.grid)
        for statement in self.statements:
            if isinstance(statement, For):
                found.setdefault(statement.index.dim)
            for access in accesses(statement):
                spans = list(access.spans)
                if isinstance(statement, Lookup):
                    del spans[statement.axis]  # no block of it is ever seen
                found.update(dict.fromkeys(span.dim for span in spans))
            for tile in tiles(statement):
                found.update(dict.fromkeys(span.dim for span in tile.spans))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Call:
    """A misc operator between kernels: (operator, operands, results), each a whole buffer."""

    op: Misc
    operands: tuple["View", ...]
    results: tuple["View", ...]


@dataclass(frozen=True, slots=True)
class View:
    """A buffer with its axes under the names that a program has for them."""

    buffer: Buffer
    axes: tuple[Axis, ...]


@dataclass(frozen=True, slots=True)
class Clear:
    """A buffer set to 0, for those that are added to atomically."""

    buffer: Buffer


NestStep = Kernel | Call | Clear


@dataclass(frozen=True, slots=True)
class Nest:
    """A whole program: what is run in order, and the arrays around it."""

    name: str
    steps: tuple[NestStep, ...]
    inputs: tuple[Buffer, ...]
    outputs: tuple["View", ...]
    layouts: tuple[tuple[Axis, ...], ...] = ()
    """The order of axes in which each output's array is laid out."""
    between: tuple[Buffer, ...] = field(default=())
    """Buffers that one step writes and a later one reads."""

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return tuple(step for step in self.steps if isinstance(step, Kernel))


def walk(body: Body) -> Iterator[Statement]:
    """Every statement of a body, in order, those of loops after the loop."""
    for statement in body:
        yield statement
        if isinstance(statement, For | Cascade):
            yield from walk(statement.body)


def written(statement: Statement) -> Tile | None:
    """The tile that a statement writes."""
    if isinstance(statement, Load | Lookup | Compute | Positions | Fold | Contract | Fill):
        return statement.tile
    return None


def read(statement: Statement) -> tuple[Tile, ...]:
    """The tiles that a statement itself reads; a contraction reads what it adds to.

    A loop reads what says which blocks it goes through.
    """
    match statement:
        case Store():
            return (statement.tile,)
        case Lookup():
            return (statement.places,)
        case Compute():
            return statement.operands
        case Fold():
            return (statement.operand,)
        case Contract():
            return (statement.left, statement.right, statement.tile)
        case For(window=Window() as window):
            return window.tiles
    return ()


def tiles(statement: Statement) -> tuple[Tile, ...]:
    """The tiles that a statement itself reads or writes."""
    made = written(statement)
    return read(statement) if made is None else (*read(statement), made)


def expressions(statement: Statement) -> tuple[Expr, ...]:
    """The expressions that a statement itself evaluates."""
    if isinstance(statement, Compute):
        return (statement.expr,)
    if isinstance(statement, For) and statement.window is not None:
        edges = (statement.window.low, statement.window.high)
        return tuple(edge for edge in edges if isinstance(edge, Expr))
    return ()


def accesses(statement: Statement) -> tuple[Access, ...]:
    """The blocks of buffers that a statement itself reads or writes."""
    match statement:
        case Load() | Lookup():
            return (statement.source,)
        case Store():
            return (statement.target,)
    return ()
