"""Streams as C: loops over the rows of a block, and over the elements of each row."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from blockbuster_fusion.ir.combiner import ADD
from blockbuster_fusion.ir.tiling import DEFAULT_TILE
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.listing import statement_text
from blockbuster_fusion.nest.nest import Compute, Fold, Span, Store, Tile
from blockbuster_fusion.printers.c.expressions import bare, number
from blockbuster_fusion.printers.c.kernel_text import KernelText
from blockbuster_fusion.printers.c.moves import target_step, write_copied, write_load, write_target
from blockbuster_fusion.printers.c.streams import Segment, Stream
from blockbuster_fusion.printers.operators import C_STORED

LANES = 32
"""The most partial results of a reduction along a row."""
RUN = 4096
"""The elements of a sum after which its partial results are added up: long sums stay exact."""


def write_stream(out: KernelText, stream: Stream) -> None:
    """Writes a stream: where its blocks lie, its loops, and the stores of copies."""
    for statement in stream.statements:
        out.comment(statement_text(statement, tail_masks=False))
    for load in stream.loads:
        write_load(out, load.tile, load.source)
    for store in stream.stores:
        write_target(out, store, _target(out, store))
    with out.over(stream.outer, simd="") as variables:
        row = _Row(out, stream, variables)
        for item in stream.items:
            row.write(item)
    for store in stream.stores:
        write_copied(out, store)


def _target(out: KernelText, store: Store) -> str:
    """The variable with the place of the rows that are stored."""
    return out.layout.id(("target", store), f"{out.layout.name(store.target.buffer)}_to")


class _Row:
    """The work of one row while it is written."""

    def __init__(self, out: KernelText, stream: Stream, variables: Mapping[Span, str]) -> None:
        self.out, self.stream, self.variables = out, stream, variables
        self.values: dict[Tile, str] = {}
        """The variables of the values that are in registers."""
        self.along = f"i{len(variables) + 1}"

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
        """Writes a loop over the elements of a row."""
        out, folds = self.out, item.folds
        if len(item.statements) == 1 and folds and self.is_plain_sum(folds[0]):
            self.plain_sum(folds[0])
            return
        if not folds:
            with out.over([self.stream.last], around=len(self.variables)) as own:
                self.body(item, {**self.variables, **own}, {})
            return
        for fold in folds:
            name = self.named(fold.tile)
            identity = number(fold.combiner.identity[0], fold.tile.dtype)
            out.line(f"{out.layout.held(fold.tile)} {name} = {bare(identity)};")
            self.values[fold.tile] = name
        with self.runs() as (first, end):
            self.reduced(item, first, end)
        for fold in folds:
            self.keep(fold.tile, self.variables)

    @contextmanager
    def runs(self) -> Iterator[tuple[str, str]]:
        """Loops over runs of a long row; gives the first element and the end of one."""
        out, most = self.out, self.longest
        length = out.layout.length(self.stream.last)
        if most is not None and most <= RUN:
            with out.braces(""):
                yield "0", length
            return
        with out.braces(f"for (int64_t run = 0; run < {length}; run += {RUN})"):
            out.line(f"const int64_t run_end = MIN({length}, run + {RUN});")
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
        width = LANES
        while self.longest is not None and width > 8 and 2 * width > self.longest:
            width //= 2
        return width

    def reduced(self, item: Segment, first: str, end: str) -> None:
        """Writes the reductions of a run, in lanes that are combined at its end."""
        out, at, width = self.out, "at", self.width
        lanes = {
            fold.tile: out.layout.id(("lanes", fold.tile), f"{self.values[fold.tile]}_lanes")
            for fold in item.folds
        }
        for fold in item.folds:
            identity = bare(number(fold.combiner.identity[0], fold.tile.dtype))
            out.line(f"{out.layout.held(fold.tile)} {lanes[fold.tile]}[{width}];")
            out.line(f"for (int w = 0; w < {width}; w++) {lanes[fold.tile]}[w] = {identity};")
        out.line(f"int64_t {at} = {first};")
        for head, count in (
            (f"for (; {at} + {width} <= {end}; {at} += {width})", str(width)),
            ("", f"{end} - {at}"),
        ):
            with out.braces(head):
                out.line("#pragma omp simd")
                with out.braces(f"for (int64_t w = 0; w < {count}; w++)"):
                    out.line(f"const int64_t {self.along} = {at} + w;")
                    own = {self.stream.last: self.along}
                    self.body(item, {**self.variables, **own}, lanes)
        for fold in item.folds:
            name, lane = self.values[fold.tile], lanes[fold.tile]
            made = self.combined(fold, f"{lane}[w]", f"{lane}[w + half]")
            out.line(f"for (int half = {width // 2}; half > 0; half /= 2)")
            out.line(f"    for (int w = 0; w < half; w++) {lane}[w] = {bare(made)};")
            out.line(f"{name} = {bare(self.combined(fold, name, f'{lane}[0]'))};")

    def body(self, item: Segment, variables: Mapping[Span, str], lanes: Mapping[Tile, str]) -> None:
        """Writes the statements of a segment for one element."""
        known = dict(self.values)
        for statement in item.statements:
            match statement:
                case Compute():
                    self.compute(statement, variables)
                case Fold():
                    lane = f"{lanes[statement.tile]}[w]"
                    value = self.value(statement.operand, variables)
                    self.out.line(f"{lane} = {bare(self.combined(statement, lane, value))};")
                case Store():
                    self.store(statement, variables)
        self.values = known

    def combined(self, fold: Fold, first: str, second: str) -> str:
        expr = fold.combiner.combine[0]
        return self.out.writer.combined(expr, [first, second], fold.tile.dtype)

    def is_plain_sum(self, fold: Fold) -> bool:
        """True for a sum of numbers that lie in memory as they are."""
        layout, operand = self.out.layout, fold.operand
        held = layout.held(fold.tile)
        same = held == layout.held(operand) and held in ("float", "double")
        if layout.is_view(operand):
            buffer = layout.plan.views[operand].buffer
            same = same and C_STORED[buffer.dtype] == held
        return same and fold.combiner is ADD and operand not in self.values

    def plain_sum(self, fold: Fold) -> None:
        out, layout, last = self.out, self.out.layout, self.stream.last
        held, name = layout.held(fold.tile), self.named(fold.tile)
        out.needs.add(("sum", held))
        row = layout.at(fold.operand, {**self.variables, last: "0"})
        out.line(f"const {held} {name} = sum_{held}(&{row}, {layout.length(last)});")
        self.values[fold.tile] = name
        self.keep(fold.tile, self.variables)

    # ---------------------------------------------------------------- elements

    def compute(self, statement: Compute, variables: Mapping[Span, str]) -> None:
        """Writes a value: a variable, which is kept in memory too if others read it."""
        out, layout, tile = self.out, self.out.layout, statement.tile
        texts = [self.value(t, variables) for t in statement.operands]
        dtypes = [DType.int32 if t in layout.counted else t.dtype for t in statement.operands]
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
        order = layout.order(store.tile)
        if self.stream.last in order:
            steps = [f"{variables[s]} * {target_step(out, store, s)}" for s in order[:-1]]
            place = f"{_target(out, store)}[{' + '.join([*steps, variables[order[-1]]])}]"
        else:
            terms = [f"{variables[s]} * {layout.buffer_step(target, s)}" for s in order]
            place = f"*({' + '.join([layout.address(target), *terms])})"
        if stored == "bfloat16":
            value = f"narrowed_bfloat16({bare(value)})"
        elif stored != layout.held(store.tile):
            value = f"({stored}){value}"
        out.line(f"{place} = {bare(value)};")
