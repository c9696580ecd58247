"""Streams as C: loops over the rows of a block, and over the elements of each row."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from blockbuster_fusion.ir.tiling import DEFAULT_TILE
from blockbuster_fusion.nest.listing import statement_text
from blockbuster_fusion.nest.nest import Compute, Fold, Span, Store, Tile
from blockbuster_fusion.printers.c.expressions import bare, number
from blockbuster_fusion.printers.c.kernel_text import KernelText
from blockbuster_fusion.printers.c.layout import LINE
from blockbuster_fusion.printers.c.moves import write_load
from blockbuster_fusion.printers.c.stored_rows import StoredRow, write_copied, write_target
from blockbuster_fusion.printers.c.streams import Segment, Stream
from blockbuster_fusion.printers.operators import C_STORED

MOST_LANES, LEAST_LANES = 64, 16
"""The partial results of a reduction along a row: a few vectors, fewer in short rows."""
RUN = 4096
"""The elements of a sum after which its partial results are added up: long sums stay exact."""


def write_stream(out: KernelText, stream: Stream) -> None:
    """Writes a stream: where its blocks lie, its loops, and the stores of copies."""
    for statement in stream.statements:
        out.comment(statement_text(statement, tail_masks=False))
    for load in stream.loads:
        write_load(out, load.tile, load.source)
    for store in stream.stores:
        write_target(out, store, stream.outer, stream.last)
    with out.over(stream.outer, simd="") as variables:
        row = _Row(out, stream, variables)
        for item in stream.items:
            row.write(item)
    for store in stream.stores:
        out.line(f"if ({out.layout.past_name(store)}) pushed();")
        write_copied(out, store)


class _Row:
    """The work of one row while it is written."""

    def __init__(self, out: KernelText, stream: Stream, variables: Mapping[Span, str]) -> None:
        self.out, self.stream, self.variables = out, stream, variables
        self.values: dict[Tile, str] = {}
        """The variables of the values that are in registers."""
        self.along = f"i{len(variables) + 1}"
        self.places: dict[Store, str] = {}
        """The elements that the stores of a segment write."""

    def write(self, item: Segment | Compute | Store) -> None:
        if isinstance(item, Segment):
            known = dict(self.values)
            self.segment(item)
            folded = {fold.tile: self.values[fold.tile] for fold in item.folds}
            self.values = known | folded
        elif isinstance(item, Compute):
            self.compute(item, self.variables)
        else:
            self.store(item, self.variables)

    # ---------------------------------------------------------------- segments

    def segment(self, item: Segment) -> None:
        """Writes loops over the elements of a row, a run of them at a time."""
        out, folds = self.out, item.folds
        for fold in folds:
            name = self.named(fold.tile)
            out.line(f"{out.layout.held(fold.tile)} {name} = {identity_of(fold)};")
            self.values[fold.tile] = name
        with self.runs(item) as (first, end):
            targets = [StoredRow(out, s, self.variables, self.along) for s in item.stores]
            self.places = {t.store: t.write_place(first) for t in targets}
            if folds:
                self.reduced(item, first, end)
            else:
                self.elements(item, "LANES(float)", first, end, {})
            for target in targets:
                target.write_push(first, end)
        for fold in folds:
            self.keep(fold.tile, self.variables)

    @contextmanager
    def runs(self, item: Segment) -> Iterator[tuple[str, str]]:
        """Loops over runs of a long row; gives the first element and the end of one.

        Sums are exact by runs, and results are written by runs. Tiles that are kept need none.
        """
        out, most = self.out, self.longest
        length = out.layout.length(self.stream.last)
        run = str(RUN) if item.folds and (most is None or most > RUN) else length
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

    @property
    def width(self) -> int:
        """The number of partial results: fewer in short rows."""
        width = MOST_LANES
        while self.longest is not None and width > LEAST_LANES and 8 * width > self.longest:
            width //= 2
        return width

    def reduced(self, item: Segment, first: str, end: str) -> None:
        """Writes the reductions of a run, in lanes that are combined at its end."""
        out, width = self.out, self.width
        lanes = {
            fold.tile: out.layout.id(("lanes", fold.tile), f"{self.values[fold.tile]}_lanes")
            for fold in item.folds
        }
        for fold in item.folds:
            lane = lanes[fold.tile]
            out.line(f"{out.layout.held(fold.tile)} {lane}[{width}];")
            out.line(f"for (int w = 0; w < {width}; w++) {lane}[w] = {identity_of(fold)};")
        self.elements(item, str(width), first, end, lanes)
        for fold in item.folds:
            self.halved(fold, lanes[fold.tile], width)

    def halved(self, fold: Fold, lane: str, width: int) -> None:
        """Writes the combination of the lanes, in pairs; each half stays in registers."""
        out, name = self.out, self.values[fold.tile]
        while width > 1:
            width //= 2
            half = out.layout.id(("lanes", fold.tile, width), f"{name}_{width}")
            made = self.combined(fold, f"{lane}[w]", f"{lane}[w + {width}]")
            out.line(f"{out.layout.held(fold.tile)} {half}[{width}];")
            out.line("#pragma omp simd")
            out.line(f"for (int w = 0; w < {width}; w++) {half}[w] = {bare(made)};")
            lane = half
        out.line(f"{name} = {bare(self.combined(fold, name, f'{lane}[0]'))};")

    def elements(
        self, item: Segment, width: str, first: str, end: str, lanes: Mapping[Tile, str]
    ) -> None:
        """Writes a segment for the elements of a run: in whole vectors, then those that are left.

        The rest is one more step in which some elements are left out, so it is in vectors too.
        """
        out, at = self.out, "at"
        own = {**self.variables, self.stream.last: self.along}
        out.line(f"int64_t {at} = {first};")
        with out.braces(f"for (; {at} + {width} <= {end}; {at} += {width})"):
            out.line("#pragma omp simd")
            with out.braces(f"for (int64_t w = 0; w < {width}; w++)"):
                out.line(f"const int64_t {self.along} = {at} + w;")
                self.combine(item, lanes, self.body(item, own))
        with out.braces(f"if ({at} < {end})"):
            out.line("#pragma omp simd")
            with out.braces(f"for (int64_t w = 0; w < {width}; w++)"):
                out.line(f"const int64_t {self.along} = {at} + w;")
                rest = {fold: self.rest(fold) for fold in item.folds}
                with out.braces(f"if ({self.along} < {end})"):
                    for fold, value in self.body(item, own).items():
                        out.line(f"{rest[fold]} = {bare(value)};")
                self.combine(item, lanes, rest)

    def rest(self, fold: Fold) -> str:
        """Writes what is reduced where no element is left: it changes nothing."""
        out = self.out
        name = out.layout.id(("rest", fold.tile), f"{self.values[fold.tile]}_rest")
        out.line(f"{out.layout.held(fold.tile)} {name} = {identity_of(fold)};")
        return name

    def combine(self, item: Segment, lanes: Mapping[Tile, str], values: Mapping[Fold, str]) -> None:
        """Writes one more step of the reductions of a segment."""
        for fold in item.folds:
            lane = f"{lanes[fold.tile]}[w]"
            self.out.line(f"{lane} = {bare(self.combined(fold, lane, values[fold]))};")

    def body(self, item: Segment, variables: Mapping[Span, str]) -> dict[Fold, str]:
        """Writes the statements of a segment for one element; gives what is to be reduced."""
        known = dict(self.values)
        reduced: dict[Fold, str] = {}
        for statement in item.statements:
            match statement:
                case Compute():
                    self.compute(statement, variables)
                case Fold():
                    reduced[statement] = self.value(statement.operand, variables)
                case Store():
                    self.store(statement, variables)
        self.values = known
        return reduced

    def combined(self, fold: Fold, first: str, second: str) -> str:
        expr = fold.combiner.combine[0]
        return self.out.writer.combined(expr, [first, second], fold.tile.dtype)

    # ---------------------------------------------------------------- elements

    def compute(self, statement: Compute, variables: Mapping[Span, str]) -> None:
        """Writes a value: a variable, which is kept in memory too if others read it."""
        out, layout, tile = self.out, self.out.layout, statement.tile
        texts = [self.value(t, variables) for t in statement.operands]
        dtypes = layout.operand_dtypes(statement)
        made = out.writer.at_once(statement.expr, texts, dtypes, tile.dtype)
        name = self.named(tile)
        out.line(f"const {layout.held(tile)} {name} = {bare(made)};")
        self.values[tile] = name
        self.keep(tile, variables)

    def keep(self, tile: Tile, variables: Mapping[Span, str]) -> None:
        """Writes a value into the memory of its tile, if it has any."""
        if tile not in self.out.layout.plan.fleeting:
            self.out.line(f"{self.out.layout.at(tile, variables)} = {self.values[tile]};")

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
        out, layout, target = self.out, self.out.layout, store.target
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
        out.line(f"{place} = {bare(value)};")


def identity_of(fold: Fold) -> str:
    """The number with which a reduction begins."""
    return bare(number(fold.combiner.identity[0], fold.tile.dtype))
