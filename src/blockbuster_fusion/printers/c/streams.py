"""Plans streams: runs of statements that are computed row by row, without copies through tiles.

A kernel without contractions reads blocks, computes element by element and along rows, and stores.
Statement by statement, every value would go through memory. A *stream* is a run of such statements
over one block. It visits the rows of the block once. In a row, statements between two reductions
are one loop over its elements, a *segment*, in which values stay in registers:

    for each row
        segment     maximum of x
        segment     e = exp(x - maximum), and its sum
        segment     store e / sum

Loads become views: rows are read where they lie, and stores write rows in place. A block whose rows
are not contiguous is copied first, or stored through a copy.

Each reduction of a row waits for the one before. In short rows a processor would mostly wait, so
some of them are computed *together*: each segment visits them all before the next one begins.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from blockbuster_fusion.nest.nest import (
    Access,
    Body,
    Buffer,
    Cascade,
    Compute,
    Contract,
    Fold,
    For,
    Kernel,
    Last,
    Load,
    RunningFold,
    Space,
    Span,
    Statement,
    Store,
    Tile,
    read,
    walk,
    written,
)

Order = Callable[[Tile], Sequence[Span]]
"""Gives the spans of a tile in the order of memory."""
Longest = Callable[[Span], float]
"""Gives the length of the longest block of a span; infinite if only a call tells."""
SHORT, TOGETHER = 256, 8
"""The most elements of short rows, and how many of these are computed together."""


@dataclass(frozen=True, eq=False)
class Segment:
    """One loop over the elements of a row; its reductions end with it."""

    statements: tuple[Compute | Fold | Store, ...]

    @property
    def folds(self) -> tuple[Fold, ...]:
        return tuple(s for s in self.statements if isinstance(s, Fold))

    @property
    def stores(self) -> tuple[Store, ...]:
        return tuple(s for s in self.statements if isinstance(s, Store))


Item = Segment | Compute | Store | RunningFold | Last
"""A part of the work of a row: a loop over its elements, one of its numbers, or its scan."""


@dataclass(frozen=True, eq=False)
class Stream:
    """A run of statements over one block, row by row."""

    statements: tuple[Statement, ...]
    outer: tuple[Span, ...]
    """The spans that give the rows."""
    last: Span
    """The span along the rows."""
    items: tuple[Item, ...]
    """The work of a row in order: loops over elements, and numbers that a row has one of."""
    together: int = 1
    """The rows that are computed together."""

    @property
    def loads(self) -> list[Load]:
        return [s for s in self.statements if isinstance(s, Load)]

    @property
    def stores(self) -> list[Store]:
        """The stores of whole rows."""
        return [s for s in self.statements if isinstance(s, Store) and self.last in s.tile.spans]


@dataclass
class StreamPlan:
    """The streams of a kernel, and the tiles that need less memory by them."""

    streams: dict[Statement, Stream] = field(default_factory=dict)
    """By their first statement."""
    views: dict[Tile, Access] = field(default_factory=dict)
    """The blocks that are read where they lie."""
    fleeting: set[Tile] = field(default_factory=set)
    """The tiles whose values stay in registers."""
    rows: dict[Tile, Stream] = field(default_factory=dict)
    """The tiles of which only the rows that are computed now are kept, with their stream."""
    turned: dict[Tile, tuple[Span, ...]] = field(default_factory=dict)
    """The blocks whose rows are columns of a stream, with the order of the stream's spans."""


def planned(
    kernel: Kernel, order: Order, longest: Longest, apart: Container[Statement]
) -> StreamPlan:
    """The streams of a kernel; one with contractions has none, as those read tiles.

    The statements `apart` are part of none: reductions across rows run along with them.
    """
    statements = kernel.statements
    plan = StreamPlan()
    if any(isinstance(s, Contract) for s in statements):
        return plan
    for body in bodies(kernel.body):
        plan.views |= _views(body, stored_to=_stored_to(statements))
    for body in bodies(kernel.body):
        for stream in _streams(body, order, longest, statements, plan, apart):
            plan.streams[stream.statements[0]] = stream
            _place(stream, statements, plan)
            _turn(stream, statements, order, plan)
    return plan


def _views(body: Body, stored_to: Container[Buffer]) -> dict[Tile, Access]:
    """The blocks that a body loads and nothing changes meanwhile."""
    here = _stored_to(walk(body))
    loads = [s for s in body if isinstance(s, Load)]
    return {
        s.tile: s.source
        for s in loads
        if s.source.buffer not in (stored_to if s.source.buffer.space is Space.GLOBAL else here)
    }


def _stored_to(statements: Iterable[Statement]) -> set[Buffer]:
    return {s.target.buffer for s in statements if isinstance(s, Store)}


def bodies(body: Body) -> Iterator[Body]:
    yield body
    for statement in body:
        if isinstance(statement, For | Cascade):
            yield from bodies(statement.body)


def _streams(
    body: Body,
    order: Order,
    longest: Longest,
    everywhere: Sequence[Statement],
    plan: StreamPlan,
    apart: Container[Statement],
) -> Iterator[Stream]:
    """The streams of a body: as long as they can be."""
    at = 0
    while at < len(body):
        run = _run(body[at:], plan, apart)
        frames = dict.fromkeys(tuple(order(_widest(s))) for s in run)
        frame = max(frames, key=lambda f: len(_fitting(run, f, order)), default=())
        fitting = _stored_in_rows(_fitting(run, frame, order), frame, order, everywhere, plan)
        if frame and _is_worth_it(fitting):
            outer, last = frame[:-1], frame[-1]
            items = tuple(items_of(fitting, last, everywhere))
            yield Stream(fitting, outer, last, items, _together(items, frame, longest))
        at += max(len(fitting), 1)


def _run(
    body: Sequence[Statement], plan: StreamPlan, apart: Container[Statement]
) -> list[Statement]:
    """The first statements of a body that may be part of a stream."""
    found: list[Statement] = []
    for statement in body:
        match statement:
            case Load(tile=tile) if tile in plan.views:
                found.append(statement)
            case Compute() | Fold() | Store(atomic=False, places=None) if statement not in apart:
                found.append(statement)
            case RunningFold() | Last():
                found.append(statement)
            case _:
                break
    return found


def _widest(statement: Statement) -> Tile:
    """The tile of a statement with the most spans."""
    found = [*read(statement), *([made] if (made := written(statement)) is not None else [])]
    return max(found, key=lambda tile: len(tile.spans))


def _fitting(
    run: Sequence[Statement], frame: Sequence[Span], order: Order
) -> tuple[Statement, ...]:
    """The first statements of a run that are computed row by row of a block.

    Results and operands of reductions must lie in rows as the frame does: a row of a tile that
    lies otherwise is no row of memory.
    """
    outer, last, whole = set(frame[:-1]), frame[-1:], set(frame)

    def lies_along(tile: Tile) -> bool:
        return [*order(tile)] == [span for span in frame if span in tile.spans]

    count = 0
    for statement in run:
        spans = {span for tile in read(statement) for span in tile.spans}
        match statement:
            case Load(tile=tile):
                fits = whole.issuperset(tile.spans)
            case Compute(tile=tile):
                fits = outer <= set(tile.spans) and spans | set(tile.spans) <= whole
                fits = fits and lies_along(tile)
            case Fold(operand=operand, span=span):
                fits = set(operand.spans) == whole and (span,) == tuple(last)
                fits = fits and lies_along(operand)
            case RunningFold(tile=tile, span=span) | Last(operand=tile, span=span):
                fits = set(tile.spans) == whole and (span,) == tuple(last)
                fits = fits and all(map(lies_along, read(statement))) and lies_along(tile)
            case Store(tile=tile):
                fits = outer <= set(tile.spans) <= whole
            case _:
                fits = False
        if not fits:
            break
        count += 1
    return tuple(run[:count])


def _stored_in_rows(
    statements: tuple[Statement, ...],
    frame: Sequence[Span],
    order: Order,
    everywhere: Sequence[Statement],
    plan: StreamPlan,
) -> tuple[Statement, ...]:
    """The first statements, up to a store of a block whose rows are columns of the frame.

    A block that lies where it was loaded from is turned, if nothing else reads it (`_turn`).
    """
    stores = [(at, s.tile) for at, s in enumerate(statements) if isinstance(s, Store)]
    for at, tile in stores if frame else ():
        if frame[-1] not in tile.spans or tuple(order(tile))[-1] == frame[-1]:
            continue
        readers = [s for s in everywhere if tile in read(s)]
        if tile not in plan.views or not all(s in statements for s in readers):
            return _stored_in_rows(statements[:at], frame, order, everywhere, plan)
    return statements


def _is_worth_it(statements: Sequence[Statement]) -> bool:
    """True if a stream saves a copy: something is computed, or loaded and stored at once."""
    kinds = {type(s) for s in statements}
    return not kinds.isdisjoint((Compute, Fold, RunningFold)) or kinds == {Load, Store}


def _together(items: Sequence[Item], frame: Sequence[Span], longest: Longest) -> int:
    """The rows that are computed together: some, if they are short and wait for reductions."""
    waits = sum(isinstance(item, Segment) for item in items) > 1
    has_rows = longest(frame[-2]) >= TOGETHER if len(frame) > 1 else False
    return TOGETHER if waits and has_rows and longest(frame[-1]) <= SHORT else 1


def items_of(
    statements: Sequence[Statement], last: Span, everywhere: Sequence[Statement]
) -> Iterator[Item]:
    """The work of a row: a segment ends where something reads a result of its reductions."""
    pending: list[Compute | Fold | Store] = []
    for statement in statements:
        if isinstance(statement, Load):
            continue
        if isinstance(statement, RunningFold | Last):
            if pending:
                yield Segment(tuple(pending))
                pending = []
            yield statement
            continue
        assert isinstance(statement, Compute | Fold | Store)
        folded = {s.tile for s in pending if isinstance(s, Fold)}
        is_row = not isinstance(statement, Fold) and last not in _made(statement).spans
        waits = not folded.isdisjoint(read(statement))
        if is_row and isinstance(statement, Compute):
            waits = waits or not is_inside(statement, statements, everywhere)
        if pending and waits:
            yield Segment(tuple(pending))
            pending = []
        if is_row:
            assert isinstance(statement, Compute | Store)
            yield statement
        else:
            pending.append(statement)
    if pending:
        yield Segment(tuple(pending))


def _made(statement: Compute | Store) -> Tile:
    return statement.tile


def is_inside(
    writer: Compute | Fold | RunningFold,
    statements: Sequence[Statement],
    everywhere: Sequence[Statement],
) -> bool:
    """True if a tile is written once, and read by later statements of a stream alone."""
    writers = [s for s in everywhere if written(s) is writer.tile]
    readers = [s for s in everywhere if writer.tile in read(s)]
    later = statements[statements.index(writer) + 1 :]
    return writers == [writer] and all(s in later for s in readers)


def _turn(stream: Stream, everywhere: Sequence[Statement], order: Order, plan: StreamPlan) -> None:
    """Notes which blocks lie otherwise than a stream runs, and are read by it alone."""
    for tile in {tile for s in stream.statements for tile in read(s)} & plan.views.keys():
        along = tuple(span for span in (*stream.outer, stream.last) if span in tile.spans)
        readers = [s for s in everywhere if tile in read(s)]
        if tuple(order(tile)) != along and all(s in stream.statements for s in readers):
            plan.turned[tile] = along


def _place(stream: Stream, everywhere: Sequence[Statement], plan: StreamPlan) -> None:
    """Notes which tiles of a stream need no memory, or that of its rows."""
    segment_of = {s: item for item in stream.items for s in getattr(item, "statements", ())}
    for statement in stream.statements:
        if not isinstance(statement, Compute | Fold | RunningFold):
            continue
        tile = statement.tile
        if not is_inside(statement, stream.statements, everywhere):
            continue
        if stream.last not in tile.spans:
            plan.fleeting.add(tile)
            continue
        readers = [s for s in stream.statements if tile in read(s)]
        own = segment_of.get(statement)
        if own is not None and all(segment_of.get(s) is own for s in readers):
            plan.fleeting.add(tile)
        else:
            plan.rows[tile] = stream
