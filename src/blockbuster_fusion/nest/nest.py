"""The loop nest: the representation between block programs and printers.

A kernel is a grid of independent programs. Each runs the same statements over *tiles* in local
memory, which it loads from and stores to *buffers*. All decisions are in the nest: the loops of the
grid, the order of loads, accumulators, masks for the tail of a last block, and the blocks that a
loop skips. Printers see no Graph.

Statements are immutable and tiles are compared by identity. A pass returns a new kernel.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TypeGuard

from blockbuster_fusion.ir.axis import Axis, Dim, Symbol
from blockbuster_fusion.ir.combiner import Combiner
from blockbuster_fusion.ir.expr import Expr, axes_in
from blockbuster_fusion.ir.ops import Misc
from blockbuster_fusion.ir.types import DType


class Space(Enum):
    """The memory of a buffer."""

    GLOBAL = "global"  # seen by every program of every kernel
    SCRATCH = "scratch"  # one copy for each program of the grid


@dataclass(frozen=True, eq=False, slots=True)
class Index:
    """The variable of a loop over the blocks of a dim."""

    name: str
    dim: Dim

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Span:
    """One block of a dim: that of a loop variable, or a fixed one. A unit dim has only block 0.

    With `each`, an axis has one number for each group of so many neighbours in the block.
    """

    dim: Dim
    at: Index | int
    each: int = 1

    @property
    def whole(self) -> "Span":
        """The span with all places of the block."""
        return Span(self.dim, self.at)

    def __str__(self) -> str:
        return ":" if self.dim.unit else str(self.at)


@dataclass(frozen=True, eq=False, slots=True)
class Tile:
    """A variable that holds a block in local memory, with an axis for each span."""

    name: str
    spans: tuple[Span, ...]
    dtype: DType

    def __repr__(self) -> str:
        return self.name


class Along(Enum):
    """The unit in which an axis of a buffer is counted."""

    AXIS = "axis"  # the elements of the whole axis
    BLOCKS = "blocks"  # the blocks of the dim: one entry for each
    BLOCK = "block"  # the elements of one block: a scratch buffer holds just the current one
    PADDED = "padded"  # the elements of whole blocks: those beyond the end of the axis are 0


@dataclass(frozen=True, slots=True)
class BufferAxis:
    """One axis of a buffer."""

    dim: Dim
    along: Along = Along.AXIS


@dataclass(frozen=True, eq=False, slots=True)
class Buffer:
    """An array. The caller of a kernel gives its address and strides."""

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
    """Loads a block into a tile, and converts it from the buffer's dtype to the tile's.

    The tile has the axes of the buffer in any order. It has the number `beyond` beyond the end of
    an axis.
    """

    tile: Tile
    source: Access
    beyond: float = 0.0


@dataclass(frozen=True, eq=False, slots=True)
class Lookup:
    """Loads elements of a buffer at positions along one axis that are data (a gather).

    `source` is whole along that axis, number `axis` of the buffer. The tile has the axes of
    `places` and the other axes of the block. It is 0 beyond the end of an axis.
    """

    tile: Tile
    source: Access
    places: Tile
    axis: int

    @property
    def along(self) -> Axis:
        """The axis that `places` are positions on."""
        return self.source.spans[self.axis].dim.axis


@dataclass(frozen=True, eq=False, slots=True)
class Store:
    """Stores a tile into a buffer, rounded to its dtype, or adds it to the buffer if `atomic`.

    With `places`, the positions along one axis are data (a scatter): `target` is whole along that
    axis, number `axis` of the buffer, and the tile has the axes of `places` instead. Nothing is
    stored at a place beyond the axis.
    """

    target: Access
    tile: Tile
    atomic: bool = False
    places: Tile | None = None
    axis: int = 0

    @property
    def along(self) -> Axis:
        """The axis that `places` are positions on."""
        return self.target.spans[self.axis].dim.axis


@dataclass(frozen=True, eq=False, slots=True)
class Compute:
    """Computes an expression for every element; operands broadcast along the axes they lack.

    A number of a group broadcasts along the group. The tile may also be an operand: then it is an
    accumulator.
    """

    tile: Tile
    expr: Expr
    operands: tuple[Tile, ...]

    @property
    def groups(self) -> Span | None:
        """The groups along whose elements an operand broadcasts."""
        return _groups((s for t in self.operands for s in t.spans), self.tile.spans)


@dataclass(frozen=True, eq=False, slots=True)
class Positions:
    """The positions of a block within its whole axis: 0, 1, …"""

    tile: Tile
    span: Span


@dataclass(frozen=True, eq=False, slots=True)
class Fold:
    """Reduces a tile along one of its axes, or each group of neighbours along it.

    `tail_masked` says that elements beyond the end of the axis are not neutral: they are masked.
    """

    tile: Tile
    operand: Tile
    span: Span
    combiner: Combiner
    tail_masked: bool = True

    @property
    def groups(self) -> Span | None:
        """The groups that are folded; None if the whole axis is."""
        return _groups(self.tile.spans, (self.span,))


@dataclass(frozen=True, eq=False, slots=True)
class RunningFold:
    """The inclusive scan of a tile along one of its axes.

    Elements beyond the end of the axis come last, so that they need no mask.
    """

    tile: Tile
    operand: Tile
    span: Span
    combiner: Combiner


@dataclass(frozen=True, eq=False, slots=True)
class Last:
    """The last elements of a tile along one of its axes, which a scan carries to the next block.

    Those of the last block of an axis are not defined: nothing comes after it.
    """

    tile: Tile
    operand: Tile
    span: Span


@dataclass(frozen=True, eq=False, slots=True)
class Contract:
    """Adds `left · right`, summed over a span of both, to a tile that has been filled before.

    `tail_masked` says for each operand if its elements beyond the end of the axis must be masked.
    No operand is rounded to a less exact dtype than `rounds_to`, if there is any. `also` are other
    spans of both that are summed; elements beyond their ends are 0.
    """

    tile: Tile
    left: Tile
    right: Tile
    span: Span
    tail_masked: tuple[bool, bool] = (True, True)
    rounds_to: DType | None = None
    also: tuple[Span, ...] = ()

    @property
    def summed(self) -> tuple[Span, ...]:
        """All spans that are summed."""
        return (*self.also, self.span)


@dataclass(frozen=True, eq=False, slots=True)
class Fill:
    """Fills a tile with a number; accumulators begin so."""

    tile: Tile
    value: float


@dataclass(frozen=True, slots=True)
class Window:
    """The positions of a loop's axis that the rows of a block can see; the rest is masked.

    With `rows`, a row at position r sees those from r + low to r + high. Without, `low` and `high`
    are the first and the last position that any row sees. Both are expressions of sizes and
    numbers, or tiles that were computed before the loop.

    If the mask excludes every position of a row, softmax averages the masked scores, so no block
    may be skipped. `seen` are running maxima that show this after the blocks of the window: if one
    is not above UNSEEN, the other blocks are visited as well. None means that the edges show it,
    since no other mask applies. Empty means that masked scores never count.
    """

    rows: Span | None
    low: "Expr | Tile | None"
    high: "Expr | Tile | None"
    seen: tuple[Tile, ...] | None = None
    clear: bool | None = None
    """True for the blocks alone that every row sees whole, and False for the others, which a loop
    right after that visits. None stands for all."""

    @property
    def tiles(self) -> tuple[Tile, ...]:
        """The tiles that the window depends on."""
        edges = (self.low, self.high)
        return (*(e for e in edges if isinstance(e, Tile)), *(self.seen or ()))


UNSEEN = -5e19
"""A running maximum is above this if a row has seen a score; masks fill in smaller numbers."""


@dataclass(frozen=True, slots=True)
class Share:
    """The share of a loop's blocks that belongs to one program of a split reduction or scan."""

    index: Index
    parts: int
    in_order: bool = False
    """True if a share is blocks in a row, as a scan needs them; else programs may take turns."""


@dataclass(frozen=True, eq=False, slots=True)
class For:
    """A serial loop over the blocks of a dim, from block `first` on.

    `window` narrows it to the positions that a mask leaves, `share` to the blocks of one program.
    `gathered` are its accumulators, in groups, each with its combiner. `carried` are those that the
    body reads as well: what the blocks before give together. They come in order.
    """

    index: Index
    body: "Body"
    first: int = 0
    window: Window | None = None
    share: Share | None = None
    gathered: tuple[tuple[Combiner, tuple[Tile, ...]], ...] = ()
    carried: tuple[tuple[Combiner, Tile], ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class Cascade:
    """Statements that sum a long loop over `index` in runs of blocks (passes/cascade_sums.py).

    Before or after the loop, the body runs once. `inside` the loop, it runs after each run of
    blocks. The length of a run depends on the number of blocks. With few blocks nothing runs.
    """

    index: Index
    body: "Body"
    inside: bool = False


Writing = Load | Lookup | Compute | Positions | Fold | RunningFold | Last | Contract | Fill
"""Statements that write a tile."""
Statement = Writing | Store | For | Cascade
Body = tuple[Statement, ...]


# --------------------------------------------------------------------- kernels


@dataclass(frozen=True)  # without slots: what is derived of it is kept
class Kernel:
    """A grid of independent programs, each running the body. The last grid index varies fastest.

    With `programs`, at most so many run the body for all places of the grid, in turns, on a GPU.
    There, the last two loops of a mirrored grid go by diagonals (passes/mirror_grid.py), and a
    described kernel loads operands by tensor descriptors (passes/describe_operands.py). A joined
    one computes two products as one (passes/join_products.py). An early one may start before the
    kernel before it has ended (passes/start_early.py).
    """

    name: str
    grid: tuple[Index, ...]
    body: Body
    programs: int = 0
    is_mirrored: bool = False
    is_described: bool = False
    is_joined: bool = False
    early: bool = False

    @property
    def kernels(self) -> "tuple[Kernel, ...]":
        """The kernels of its launch: itself."""
        return (self,)

    @cached_property
    def statements(self) -> tuple[Statement, ...]:
        """Every statement, in order, those of loops after the loop."""
        return tuple(walk(self.body))

    @cached_property
    def multiplies(self) -> bool:
        """True if the kernel has products."""
        return any(isinstance(s, Contract) for s in self.statements)

    @cached_property
    def buffers(self) -> tuple[Buffer, ...]:
        """The buffers that the kernel reads and writes, in order of their first mention."""
        found: dict[Buffer, None] = {}
        for statement in self.statements:
            for access in accesses(statement):
                found.setdefault(access.buffer)
        return tuple(found)

    @cached_property
    def global_buffers(self) -> tuple[Buffer, ...]:
        """The buffers that the caller passes, in order."""
        return tuple(b for b in self.buffers if b.space is Space.GLOBAL)

    @cached_property
    def symbols(self) -> tuple[Symbol, ...]:
        """The sizes that the kernel depends on, in order of their first mention."""
        extents = [dim.axis.extent for dim in self.dims]
        own = [b for b in self.buffers if b.space is not Space.GLOBAL]  # others come with strides
        extents += [axis.dim.axis.extent for buffer in own for axis in buffer.axes]
        extents += [s.along.extent for s in self.statements if is_placed(s)]
        axes = axes_in(*(e for s in self.statements for e in expressions(s)))
        extents += [axis.extent for axis in axes]
        return tuple(dict.fromkeys(e for e in extents if isinstance(e, Symbol)))

    @cached_property
    def dims(self) -> tuple[Dim, ...]:
        """The dims of the grid, loops, tiles and buffers, in order of their first mention."""
        found = dict.fromkeys(index.dim for index in self.grid)
        for statement in self.statements:
            if isinstance(statement, For):
                found.setdefault(statement.index.dim)
            for access in accesses(statement):
                spans = list(access.spans)
                if is_placed(statement):
                    del spans[statement.axis]  # no block of it is ever seen
                found.update(dict.fromkeys(span.dim for span in spans))
            for tile in tiles(statement):
                found.update(dict.fromkeys(span.dim for span in tile.spans))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Grids:
    """Kernels of one launch on a GPU: its programs are those of the first grid, then of the next.

    None reads or writes what another one writes (nest/passes/join_grids.py).
    """

    name: str
    kernels: tuple[Kernel, ...]
    early: bool = False

    @property
    def statements(self) -> Iterator[Statement]:
        """Every statement, those of one kernel after those of the other."""
        return (statement for kernel in self.kernels for statement in kernel.statements)

    @property
    def multiplies(self) -> bool:
        """True if a kernel has products."""
        return any(kernel.multiplies for kernel in self.kernels)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The buffers that the kernels read and write, each once."""
        return tuple(dict.fromkeys(x for kernel in self.kernels for x in kernel.buffers))

    @property
    def global_buffers(self) -> tuple[Buffer, ...]:
        """The buffers that the caller passes, in order."""
        return tuple(b for b in self.buffers if b.space is Space.GLOBAL)

    @property
    def symbols(self) -> tuple[Symbol, ...]:
        """The sizes that the kernels depend on."""
        return tuple(dict.fromkeys(x for kernel in self.kernels for x in kernel.symbols))

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The dims of the kernels."""
        return tuple(dict.fromkeys(x for kernel in self.kernels for x in kernel.dims))


Launchable = Kernel | Grids
"""One launch: a kernel, or several at a time."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a misc operator between kernels, on whole buffers."""

    op: Misc
    operands: tuple["View", ...]
    results: tuple["View", ...]


@dataclass(frozen=True, slots=True)
class View:
    """A buffer with its axes under the names of a program."""

    buffer: Buffer
    axes: tuple[Axis, ...]


@dataclass(frozen=True, slots=True)
class Clear:
    """Sets a buffer to 0, before atomic additions."""

    buffer: Buffer


NestStep = Launchable | Call | Clear


@dataclass(frozen=True, slots=True)
class Nest:
    """A whole program: its steps in order, and its arrays."""

    name: str
    steps: tuple[NestStep, ...]
    inputs: tuple[Buffer, ...]
    outputs: tuple["View", ...]
    layouts: tuple[tuple[Axis, ...], ...] = ()
    """The order of axes in which each output's array is laid out."""
    between: tuple[Buffer, ...] = field(default=())
    """Buffers that one step writes and a later one reads."""

    @property
    def launches(self) -> tuple[Launchable, ...]:
        """The steps that are launched, in order."""
        return tuple(step for step in self.steps if isinstance(step, Launchable))

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels of all launches."""
        return tuple(kernel for step in self.launches for kernel in step.kernels)

    @property
    def updated(self) -> tuple[Buffer, ...]:
        """The inputs that kernels write into, in place."""
        stores = (s for k in self.kernels for s in k.statements if isinstance(s, Store))
        written = {s.target.buffer for s in stores}
        return tuple(buffer for buffer in self.inputs if buffer in written)


def walk(body: Body) -> Iterator[Statement]:
    """Every statement of a body, in order, those of loops after the loop."""
    for statement in body:
        yield statement
        if isinstance(statement, For | Cascade):
            yield from walk(statement.body)


def _groups(spans: Iterable[Span], places: Collection[Span]) -> Span | None:
    """The first span of groups, of which others have the places."""
    return next((s for s in spans if s not in places and s.whole in places), None)


def is_placed(statement: Statement) -> TypeGuard[Lookup | Store]:
    """True if a statement loads or stores at positions that are data."""
    is_scatter = isinstance(statement, Store) and statement.places is not None
    return is_scatter or isinstance(statement, Lookup)


def written(statement: Statement) -> Tile | None:
    """The tile that a statement writes."""
    return statement.tile if isinstance(statement, Writing) else None


def read(statement: Statement) -> tuple[Tile, ...]:
    """The tiles that a statement itself reads.

    A contraction reads the tile that it adds to, a loop the tiles of its window.
    """
    match statement:
        case Store(places=Tile() as places):
            return (statement.tile, places)
        case Store():
            return (statement.tile,)
        case Lookup():
            return (statement.places,)
        case Compute():
            return statement.operands
        case Fold() | RunningFold() | Last():
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
