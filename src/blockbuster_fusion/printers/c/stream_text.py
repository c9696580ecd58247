"""Streams as C: loops over the rows of a block, and over the elements of each row."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from blockbuster_fusion.ir.tiling import DEFAULT_TILE
from blockbuster_fusion.nest.listing import statement_text
from blockbuster_fusion.nest.nest import (
    Compute,
    Fold,
    Last,
    RunningFold,
    Span,
    Store,
    Tile,
    read,
)
from blockbuster_fusion.printers.c.expressions import bare, number
from blockbuster_fusion.printers.c.kernel_text import KernelText
from blockbuster_fusion.printers.c.layout import LINE
from blockbuster_fusion.printers.c.mathematics.batches import BATCH
from blockbuster_fusion.printers.c.moves import write_load
from blockbuster_fusion.printers.c.scans import write_row_last, write_row_scan
from blockbuster_fusion.printers.c.steps import Step, calls_batches, in_forms
from blockbuster_fusion.printers.c.stored_rows import StoredRow, write_copied, write_target
from blockbuster_fusion.printers.c.streams import Item, Segment, Stream
from blockbuster_fusion.printers.operators import C_STORED

MOST_LANES, LEAST_LANES = 64, 16
"""The partial results of a reduction along a row: a few vectors, fewer in short rows."""
FAR, LONG_ROW = 4, 512
"""Rows ahead of which parts are fetched; and the least length of a whole row that is fetched."""
SUMMANDS = 64
"""The most elements of a partial sum: long sums stay exact."""


def write_stream(out: KernelText, stream: Stream) -> None:
    """Writes a stream: where its blocks lie, its loops, and the stores of copies."""
    for statement in stream.statements:
        out.comment(statement_text(statement, tail_masks=False))
    for load in stream.loads:
        write_load(out, load.tile, load.source)
    for store in stream.stores:
        write_target(out, store, stream)
    with _rows(out, stream) as variables:
        row = _Row(out, stream, variables)
        for item in stream.items:
            row.write(item)
    for store in stream.stores:
        out.line(f"if ({out.layout.past_name(store)}) pushed();")
        write_copied(out, store)


@contextmanager
def _rows(out: KernelText, stream: Stream) -> Iterator[dict[Span, str]]:
    """Loops over the rows of a block, or over those that are computed together."""
    if stream.together == 1:
        with out.over(stream.outer, simd="") as variables:
            yield variables
        return
    *outer, last = stream.outer
    with out.over(outer, simd="") as variables:
        i, length = f"i{len(stream.outer)}", out.layout.length(last)
        with out.braces(f"for (int64_t {i} = 0; {i} < {length}; {i} += {stream.together})"):
            out.line(f"const int rows = (int)MIN({stream.together}, {length} - {i});")
            yield {**variables, last: f"({i} + row)"}


class _Row:
    """The work of a row while it is written, or of all rows that are computed together."""

    def __init__(self, out: KernelText, stream: Stream, variables: Mapping[Span, str]) -> None:
        self.out, self.stream, self.variables = out, stream, variables
        self.values: dict[Tile, str] = {}
        """The variables of the values that are in registers."""
        self.along = "(at + w)"
        self.now: Step | None = None
        """The neighbours that are computed now."""
        self.places: dict[Store, str] = {}
        """The elements that the stores of a segment write."""

    def write(self, item: Item) -> None:
        if isinstance(item, Segment):
            known = dict(self.values)
            self.segment(item)
            folded = {fold.tile: self.values[fold.tile] for fold in item.folds}
            self.values = known | folded
        elif isinstance(item, Compute):
            self.compute(item, self.variables)
        elif isinstance(item, RunningFold):
            with self.each_row():
                write_row_scan(self.out, item, self.variables)
        elif isinstance(item, Last):
            with self.each_row():
                write_row_last(self.out, item, self.variables)
        else:
            with self.each_row():
                self.store(item, self.variables)

    @contextmanager
    def each_row(self) -> Iterator[None]:
        """Loops over the rows that are computed together; a row by itself needs no loop."""
        if self.stream.together == 1:
            yield
            return
        with self.out.braces("for (int row = 0; row < rows; row++)"):
            yield

    def of_row(self, name: str) -> str:
        """The number of this row: a variable, or an element of one."""
        return name if self.stream.together == 1 else f"{name}[row]"

    # ---------------------------------------------------------------- segments

    def segment(self, item: Segment) -> None:
        """Writes loops over the elements of a row, a run of them at a time, or of some rows."""
        out, together = self.out, self.stream.together
        for fold in item.folds:
            name = self.named(fold.tile)
            start = f" = {identity_of(fold)}" if together == 1 else f"[{together}]"
            out.line(f"{out.layout.held(fold.tile)} {name}{start};")
            self.values[fold.tile] = self.of_row(name)
        batches = calls_batches(item.statements)
        if together > 1:
            in_forms(out, batches, partial(self.group, item))
        else:
            with self.runs(item) as ends, self.stored(item, ends):
                in_forms(out, batches, partial(self.run, item, ends))
        kept = [fold.tile for fold in item.folds if fold.tile not in out.layout.plan.fleeting]
        if kept:
            with self.each_row():
                for tile in kept:
                    self.keep(tile, self.variables)

    @contextmanager
    def stored(self, item: Segment, ends: tuple[str, str]) -> Iterator[None]:
        """Writes where the results of a run go, and after it those that went to the caches only."""
        targets = [StoredRow(self.out, s, self.variables, self.along) for s in item.stores]
        self.places = {t.store: t.write_place(ends[0]) for t in targets}
        yield
        for target in targets:
            target.write_push(*ends)

    @contextmanager
    def runs(self, item: Segment) -> Iterator[tuple[str, str]]:
        """Loops over runs of a long row; gives the first element and the end of one.

        Sums are exact by runs, and results are written by runs. Tiles that are kept need none.
        """
        out, most = self.out, self.longest
        length = out.layout.length(self.stream.last)
        longest = SUMMANDS * self.width(calls_batches(item.statements))
        run = str(longest) if item.folds and (most is None or most > longest) else length
        if item.stores and (most is None or most > LINE):
            pasts = " || ".join(out.layout.past_name(store) for store in item.stores)
            run = f"({pasts} ? {LINE} : {run})"
        if run == length:
            with out.braces(""):
                yield "0", length
            return
        with out.braces(f"for (int64_t run = 0, run_end; run < {length}; run = run_end)"):
            out.line(f"run_end = MIN({length}, run + {run});")
            yield "run", "run_end"

    @property
    def longest(self) -> int | None:
        """The length of the longest row, if it is known."""
        dim = self.stream.last.dim
        length = dim.axis.extent if dim.unit else self.out.layout.tiles.get(dim, DEFAULT_TILE)
        return length if isinstance(length, int) else None

    def width(self, batches: bool) -> int:
        """The number of partial results: fewer in short rows, and beside functions of batches."""
        width = BATCH if batches else MOST_LANES
        while self.longest is not None and width > LEAST_LANES and 8 * width > self.longest:
            width //= 2
        return width

    def run(self, item: Segment, ends: tuple[str, str], batches: bool) -> None:
        """Writes a run; its reductions are in lanes that are combined at its end."""
        lanes = self.in_lanes(item, ends, batches)
        for fold in item.folds:
            made = self.halved(fold, lanes[fold.tile], self.width(batches))
            total = self.values[fold.tile]
            self.out.line(f"{total} = {bare(self.combined(fold, total, made))};")

    def group(self, item: Segment, batches: bool) -> None:
        """Writes a segment for all rows that are computed together.

        Their lanes are combined afterwards: no row waits for the result of another one.
        """
        out, width = self.out, self.width(batches)
        ends = "0", out.layout.length(self.stream.last)
        kept = {
            f: out.layout.id(("rows", f.tile), f"{self.named(f.tile)}_rows") for f in item.folds
        }
        for fold, name in kept.items():
            held = out.layout.held(fold.tile)
            out.line(f"{held} {name}[{self.stream.together}][{width}];")
        with self.each_row(), self.stored(item, ends):
            lanes = self.in_lanes(item, ends, batches)
            for fold, name in kept.items():
                lane = lanes[fold.tile]
                out.line(f"for (int w = 0; w < {width}; w++) {name}[row][w] = {lane}[w];")
        if kept:
            with self.each_row():
                for fold, name in kept.items():
                    made = self.halved(fold, f"{name}[row]", width)
                    out.line(f"{self.values[fold.tile]} = {made};")

    def in_lanes(self, item: Segment, ends: tuple[str, str], batches: bool) -> dict[Tile, str]:
        """Writes the elements of a run; gives the lanes that its reductions are in."""
        out, width = self.out, self.width(batches) if item.folds else BATCH
        lanes = {
            fold.tile: out.layout.id(("lanes", fold.tile), f"{self.named(fold.tile)}_lanes")
            for fold in item.folds
        }
        for fold in item.folds:
            lane = lanes[fold.tile]
            out.line(f"{out.layout.held(fold.tile)} {lane}[{width}];")
            out.line(f"for (int w = 0; w < {width}; w++) {lane}[w] = {identity_of(fold)};")
        self.elements(item, partial(Step, out, width, batches=batches), ends, lanes)
        return lanes

    def halved(self, fold: Fold, lane: str, width: int) -> str:
        """Writes the combination of the lanes, in pairs; each half stays in registers."""
        out, name = self.out, self.named(fold.tile)
        while width > 1:
            width //= 2
            half = out.layout.id(("lanes", fold.tile, width), f"{name}_{width}")
            made = self.combined(fold, f"{lane}[w]", f"{lane}[w + {width}]")
            out.line(f"{out.layout.held(fold.tile)} {half}[{width}];")
            out.line("#pragma omp simd")
            out.line(f"for (int w = 0; w < {width}; w++) {half}[w] = {bare(made)};")
            lane = half
        return f"{lane}[0]"

    def elements(
        self,
        item: Segment,
        made: Callable[..., Step],
        ends: tuple[str, str],
        lanes: Mapping[Tile, str],
    ) -> None:
        """Writes a segment for the elements of a run: in whole vectors, then those that are left.

        The rest is one more step in which some elements are left out, so it is in vectors too.
        """
        out, step, (first, end) = self.out, made(), ends
        out.line(f"int64_t at = {first};")
        with out.braces(f"for (; at + {step.width} <= {end}; at += {step.width})"):
            self.fetch(item, step.width)
            self.step(item, step, lanes)
        with out.braces(f"if (at < {end})"):
            out.line(f"const int left = (int)({end} - at);")
            self.step(item, made(left="left"), lanes)

    def fetch(self, item: Segment, width: int) -> None:
        """Writes that elements of a later row come to the cache meanwhile, line by line."""
        ahead = self.rows_ahead(item)
        if not ahead:
            return
        row, i = [*self.variables.items()][-1]
        place = {**self.variables, row: f"({i} + {ahead})", self.stream.last: "at"}
        layout = self.out.layout
        level = 3 if self.stream.together > 1 else 2  # long rows would fill the first cache
        for tile in dict.fromkeys(t for s in self.segments[0].statements for t in read(s)):
            if tile in layout.plan.views and {row, self.stream.last} <= {*tile.spans}:
                terms = [f"{place[s]} * {layout.step(tile, s)}" for s in layout.order(tile)]
                there = " + ".join([layout.name(tile), *terms])
                for line in range(0, width, BATCH):
                    self.out.line(f"__builtin_prefetch({there} + {line}, 0, {level});")

    def rows_ahead(self, item: Segment) -> int:
        """The number of rows by which a row is fetched ahead; 0 if processors foresee it.

        They foresee what follows in memory. The first segment of a row waits for memory, so the
        second fetches the next row, or the next short rows. Parts of rows do not follow each other.
        """
        dim, most = self.stream.last.dim, self.longest
        extent = dim.axis.extent
        if not self.variables:
            return 0
        if most is not None and isinstance(extent, int) and most < extent:
            return FAR if item is self.segments[0] else 0
        if item not in self.segments[1:2]:
            return 0
        if self.stream.together > 1:
            return self.stream.together
        return int(most is None or most >= LONG_ROW)

    @property
    def segments(self) -> list[Segment]:
        return [item for item in self.stream.items if isinstance(item, Segment)]

    def step(self, item: Segment, step: Step, lanes: Mapping[Tile, str]) -> None:
        """Writes the statements of a segment for neighbours."""
        known, self.now = dict(self.values), step
        variables = {**self.variables, self.stream.last: self.along}
        for statement in item.statements:
            match statement:
                case Compute():
                    self.compute(statement, variables)
                case Fold():
                    lane = f"{lanes[statement.tile]}[w]"
                    value = self.value(statement.operand, variables)
                    value = step.guarded(value, identity_of(statement))
                    step.always(f"{lane} = {bare(self.combined(statement, lane, value))};")
                case Store():
                    self.store(statement, variables)
        step.end()
        self.values, self.now = known, None

    def combined(self, fold: Fold, first: str, second: str) -> str:
        expr = fold.combiner.combine[0]
        return self.out.writer.combined(expr, [first, second], fold.tile.dtype)

    # ---------------------------------------------------------------- elements

    def compute(self, statement: Compute, variables: Mapping[Span, str]) -> None:
        """Writes a value: a variable, which is kept in memory too if others read it."""
        out, layout, tile = self.out, self.out.layout, statement.tile
        texts = [self.value(t, variables) for t in statement.operands]
        given = statement.expr, texts, layout.operand_dtypes(statement), tile.dtype
        name, held, step = self.named(tile), layout.held(tile), self.now
        if step is not None:
            self.values[tile] = step.value(held, name, out.writer.at_once(*given, step.call))
            self.keep(tile, variables)
            return
        made, self.values[tile] = bare(out.writer.at_once(*given)), self.of_row(name)
        if self.stream.together == 1:
            out.line(f"const {held} {name} = {made};")
            self.keep(tile, variables)
            return
        out.line(f"{held} {name}[{self.stream.together}];")
        out.line("#pragma omp simd")
        with self.each_row():
            out.line(f"{name}[row] = {made};")
            self.keep(tile, variables)

    def keep(self, tile: Tile, variables: Mapping[Span, str]) -> None:
        """Writes a value into the memory of its tile, if it has any."""
        if tile not in self.out.layout.plan.fleeting:
            self.effect(f"{self.out.layout.at(tile, variables)} = {self.values[tile]};")

    def effect(self, line: str) -> None:
        """Writes a statement: of neighbours, or of the row."""
        (self.out.line if self.now is None else self.now.effect)(line)

    def named(self, tile: Tile) -> str:
        """The variable of a value: the name of its tile, if no memory has that name."""
        layout = self.out.layout
        if tile in layout.plan.fleeting:
            return layout.name(tile)
        return layout.id(("value", tile), f"{layout.name(tile)}_now")

    def value(self, tile: Tile, variables: Mapping[Span, str]) -> str:
        return self.values.get(tile) or self.out.layout.at(tile, variables)

    def store(self, store: Store, variables: Mapping[Span, str]) -> None:
        """Writes the store of one element."""
        layout, target = self.out.layout, store.target
        value, stored = self.value(store.tile, variables), C_STORED[target.buffer.dtype]
        if self.stream.last in store.tile.spans:
            place = self.places[store]
        else:
            order = layout.order(store.tile)
            terms = [f"{variables[s]} * {layout.buffer_step(target, s)}" for s in order]
            place = f"*({' + '.join([layout.address(target), *terms])})"
        if stored == "bfloat16":
            value = f"narrowed_bfloat16({bare(value)})"
        elif stored != layout.held(store.tile):
            value = f"({stored}){value}"
        self.effect(f"{place} = {bare(value)};")


def identity_of(fold: Fold) -> str:
    """The number with which a reduction begins."""
    return bare(number(fold.combiner.identity[0], fold.tile.dtype))
