"""The statements of a loop nest as C."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.combiner import ADD
from blockbuster_fusion.ir.expr import Expr
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.naming import comment
from blockbuster_fusion.nest.listing import statement_text
from blockbuster_fusion.nest.nest import (
    UNSEEN,
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
    Load,
    Lookup,
    Positions,
    Span,
    Statement,
    Store,
    Tile,
    Window,
)
from blockbuster_fusion.printers.c.expressions import Need, Writer, bare, number
from blockbuster_fusion.printers.c.layout import PART, Layout
from blockbuster_fusion.printers.operators import C_STORED


class Statements(Layout):
    """Writes the lines of one kernel; what it needs of the prelude is noted in `needs`."""

    def __init__(self, kernel: Kernel, tiles: Mapping[Dim, int], needs: set[Need]) -> None:
        super().__init__(kernel, tiles)
        self.needs = needs
        self.writer = Writer(self.extent, needs)
        self.lines: list[str] = []
        self.depth = 0

    def line(self, text: str = "") -> None:
        self.lines.append("    " * self.depth + text if text else "")

    def comment(self, text: str) -> None:
        self.line(f"/* {comment(text)} */")

    @contextmanager
    def braces(self, head: str) -> Iterator[None]:
        self.line(f"{head} {{".lstrip())
        self.depth += 1
        yield
        self.depth -= 1
        self.line("}")

    def line_length(self, index: Index) -> None:
        dim = index.dim
        if dim.packed:
            block = self.block(dim)
            text = f"MIN({block}, {self.extent(dim.axis)} - {self.name(index)} * {block})"
            self.line(f"const int64_t {self.length(Span(dim, index))} = {text};")

    # -------------------------------------------------------------- lengths

    def body(self, body: Body) -> None:
        """The statements in order; a few go together with the next one."""
        pending = list(body)
        while pending:
            statement, rest = pending[0], pending[1:]
            following = rest[0] if rest else None
            match statement, following:
                case Fill(), Contract() if self.begins(statement, following):
                    self.comment(f"{statement_text(following, guards=False)}, from 0")
                    self.contract(following, fresh=True)
                    pending = rest[1:]
                case Compute(), Fold() if self.goes_along(statement, following):
                    self.comment(statement_text(statement, guards=False))
                    self.comment(statement_text(following, guards=False))
                    self.compute(statement, following)
                    pending = rest[1:]
                case _:
                    self.statement(statement)
                    pending = rest

    def begins(self, fill: Fill, contract: Contract) -> bool:
        """Whether a contraction writes a tile that was just cleared: then nothing is cleared."""
        return fill.tile is contract.tile and fill.value == 0 and self.is_one_call(contract)

    def goes_along(self, compute: Compute, fold: Fold) -> bool:
        """Whether a reduction can be done while its operand is computed: not along the vectors."""
        return fold.operand is compute.tile and self.is_across(fold)

    def statement(self, statement: Statement) -> None:
        if isinstance(statement, For):
            if statement.part is None and statement.window is None:
                self.loop(statement)
            else:
                with self.braces(""):
                    self.loop(statement)
            return
        if isinstance(statement, Cascade):
            self.cascade(statement)
            return
        self.comment(statement_text(statement, guards=False))
        match statement:
            case Load():
                self.load(statement.tile, statement.source)
            case Lookup():
                self.lookup(statement)
            case Store():
                self.store(statement)
            case Compute():
                self.compute(statement)
            case Positions():
                with self.over([statement.span] if statement.tile.spans else []) as variables:
                    own = variables.get(statement.span, "0")
                    place = f"{self.start(statement.span)} + {own}"
                    self.line(f"{self.at(statement.tile, variables)} = (int32_t)({place});")
            case Fill():
                with self.over(self.layout(statement.tile)) as variables:
                    value = number(statement.value, statement.tile.dtype)
                    self.line(f"{self.at(statement.tile, variables)} = {bare(value)};")
            case Fold():
                self.fold(statement)
            case Contract():
                self.contract(statement)

    def cascade(self, statement: Cascade) -> None:
        """Statements for a loop with many blocks, beside it or after a run of them."""
        self.needs.add(("runs",))
        run, at = self.run(statement.index.dim), self.name(statement.index)
        with self.braces(
            f"if ({run} && {at} % {run} == {run} - 1)" if statement.inside else f"if ({run})"
        ):
            self.body(statement.body)

    @contextmanager
    def over(
        self, spans: Sequence[Span], *, simd: str = "simd", around: int = 0
    ) -> Iterator[dict[Span, str]]:
        """Loops over elements of spans, the innermost in vectors; `around` others stand around."""
        variables = {span: f"i{around + number + 1}" for number, span in enumerate(spans)}
        start = self.depth
        for span, i in variables.items():
            if span is spans[-1] and simd:
                self.line(f"#pragma omp {simd}")
            self.line(f"for (int64_t {i} = 0; {i} < {self.length(span)}; {i}++)")
            self.depth += 1
        marker = len(self.lines)
        yield variables
        if spans and len(self.lines) > marker + 1:
            self.lines[marker - 1] += " {"
            self.depth -= 1
            self.line("}")
        self.depth = start

    def loop(self, loop: For) -> None:
        index, dim = loop.index, loop.index.dim
        first, last = str(loop.first), self.count(dim)
        name = self.name(index)
        if loop.part is not None:
            chunk = f"BLOCKS({last}, {loop.part.parts})"
            share = f"{self.name(loop.part.index)} * {chunk}"
            begin, end = (self.id((w, index), f"{name}_{w}") for w in ("first", "last"))
            self.line(f"const int64_t {begin} = MAX({first}, {share});")
            self.line(f"const int64_t {end} = MIN({last}, {share} + {chunk});")
            first, last = begin, end
        beyond: AbstractContextManager[None] = nullcontext()
        if loop.window is not None and loop.window.seen is None:
            first, last = self.window(loop, loop.window, first, last)
        elif loop.window is not None:
            begin, end = self.seen_window(loop, loop.window, first, last)
            if loop.window.seen:
                beyond = self.visits(loop, loop.window.seen, (first, begin, end, last))
                begin, end = (self.id((w, index), f"{name}_{w}") for w in ("from", "to"))
            first, last = begin, end
        with beyond, self.braces(f"for (int64_t {name} = {first}; {name} < {last}; {name}++)"):
            self.line_length(index)
            self.body(loop.body)

    @contextmanager
    def visits(self, loop: For, seen: Sequence[Tile], ends: Sequence[str]) -> Iterator[None]:
        """The blocks of a window, then, where a row has seen nothing, those before and after it."""
        name = self.name(loop.index)
        first, begin, end, last = ends
        at, start, stop, unseen = (
            self.id((word, loop.index), f"{name}_{word}")
            for word in ("pass", "from", "to", "blind")
        )
        with self.braces(f"for (int {at} = 0; {at} < 3; {at}++)"):
            with self.braces(f"if ({at} == 1)"):
                self.line(f"int64_t {unseen} = 0;")
                for tile in seen:
                    with self.over(self.layout(tile), simd=f"simd reduction(+:{unseen})") as where:
                        above = f"{self.at(tile, where)} > {number(UNSEEN, tile.dtype)}"
                        self.line(f"{unseen} += !({above});")
                self.line(f"if ({unseen} == 0) break;")
            for made, before, within, after in (
                (start, first, begin, end),
                (stop, begin, end, last),
            ):
                choice = f"{at} == 0 ? {within} : {at} == 1 ? {before} : {after}"
                self.line(f"const int64_t {made} = {choice};")
            yield

    def seen_window(self, loop: For, window: Window, first: str, last: str) -> tuple[str, str]:
        """The blocks that some row sees, whether or not every row sees one."""
        index, block = loop.index, self.block(loop.index.dim)
        begin, end = (self.id((w, index), f"{self.name(index)}_{w}") for w in ("low", "high"))
        low, high = (None if e is None else self.edge(e) for e in (window.low, window.high))
        if window.rows is not None:
            top = self.start(window.rows)
            low = low and f"{top} + {low}"
            high = high and f"{top} + {self.length(window.rows)} - 1 + {high}"
        extent = self.extent(loop.index.dim.axis)
        below = f"MAX(0, MIN({extent}, {low})) / {block}" if low else first
        above = f"BLOCKS(MAX(0, MIN({extent} - 1, {high}) + 1), {block})" if high else last
        self.line(f"const int64_t {begin} = MIN({last}, MAX({first}, {below}));")
        self.line(f"const int64_t {end} = MAX({begin}, MIN({last}, {above}));")
        return begin, end

    def window(self, loop: For, window: Window, first: str, last: str) -> tuple[str, str]:
        """The blocks that some row of the block of rows sees; all, if a row sees none."""
        assert window.rows is not None
        index, block = loop.index, self.block(loop.index.dim)
        begin, end = (self.id((w, index), f"{self.name(index)}_{w}") for w in ("low", "high"))
        extent = self.extent(loop.index.dim.axis)
        top = self.start(window.rows)
        bottom = f"{top} + {self.length(window.rows)} - 1"
        low, high = (None if e is None else self.edge(e) for e in (window.low, window.high))
        self.line(f"int64_t {begin} = {first}, {end} = {last};")
        unseen = []
        if low is not None:
            unseen.append(f"{bottom} + {low} > {extent} - 1")
        if high is not None:
            unseen.append(f"{top} + {high} < 0")
        if low is not None and high is not None:
            unseen.append(f"{low} > {high}")
        with self.braces(f"if (!({' || '.join(unseen)}))"):
            if low is not None:
                self.line(f"{begin} = MAX({begin}, MAX(0, {top} + {low}) / {block});")
            if high is not None:
                reach = f"({bottom} + {high}) / {block} + 1"
                self.line(f"{end} = MIN({end}, {reach});")
        return begin, end

    def edge(self, edge: Expr | Tile) -> str:
        return (
            f"{self.name(edge)}[0]"
            if isinstance(edge, Tile)
            else self.writer.inline(edge, DType.int64)
        )

    def load(self, tile: Tile, source: Access) -> None:
        stored, held = C_STORED[source.buffer.dtype], self.held(tile)
        layout = self.layout(tile)
        if tile in self.borrowed:
            self.line(f"const {held} *const {self.name(tile)} = {self.address(source)};")
            return
        if not layout:
            self.needs |= {("bfloat16",)} if stored == "bfloat16" else set()
            value = f"*({self.address(source)})"
            value = f"widened_bfloat16({value})" if stored == "bfloat16" else value
            self.line(f"{self.name(tile)}[0] = {bare(value)};")
            return
        self.needs.add(("load", stored, held))
        with self.rows(tile, source) as (there, here, sizes, steps):
            rows, columns = steps
            to = f"{here}, {rows[0]}, {there}, {rows[1]}, {columns}"
            self.line(f"load_{stored}_{held}({to}, {sizes});")

    def lookup(self, statement: Lookup) -> None:
        """Row by row of the table, or, where the vectors run along the places, a few at once.

        At a place outside of the table nothing is read: the kernel says so when it returns.
        """
        tile, source, places = statement.tile, statement.source, statement.places
        stored, held = C_STORED[source.buffer.dtype], self.held(tile)
        stride = self.stride(source.buffer, source.buffer.axes[statement.axis])
        length = self.extent(statement.along)
        layout = self.layout(tile)
        self.needs.add(("places",))
        if not layout:
            self.needs |= {("bfloat16",)} if stored == "bfloat16" else set()
            value = f"*({self.address(source)} + {self.name(places)}[0] * {stride})"
            value = f"widened_bfloat16({value})" if stored == "bfloat16" else value
            self.line(f"if (on_axis({self.name(places)}[0], {length}, &astray))")
            self.line(f"    {self.name(tile)}[0] = {bare(value)};")
            return
        last = layout[-1]
        inner = [s for s in layout[:-1] if s not in places.spans][-1:]
        outer = [s for s in layout[:-1] if s not in inner]

        def step(span: Span) -> str:
            return self.buffer_step(source, span) if span in source.spans else "0"

        with self.over(outer, simd="") as variables:
            here = self.moved(tile, variables)
            moved = [f"{v} * {step(s)}" for s, v in variables.items() if s in source.spans]
            there = " + ".join([self.address(source), *moved])
            down, rows, high = "0", "0", "1"
            if inner:
                down, rows, high = self.step(tile, inner[0]), step(inner[0]), self.length(inner[0])
            sizes = f"{rows}, {step(last)}, {high}, {self.length(last)}"
            if last in places.spans:
                self.needs.add(("take", stored, held, self.held(places)))
                at = f"{self.moved(places, variables)}, {stride}"
                name = f"take_{stored}_{held}_{self.held(places)}"
                self.line(f"{name}({here}, {down}, {there}, {length}, {at}, {sizes}, &astray);")
            else:
                self.needs.add(("load", stored, held))
                place = self.at(places, variables)
                row = f"{there} + {place} * {stride}"
                self.line(f"if (on_axis({place}, {length}, &astray))")
                self.line(f"    load_{stored}_{held}({here}, {down}, {row}, {sizes});")

    def store(self, statement: Store) -> None:
        tile, target = statement.tile, statement.target
        stored, held = C_STORED[target.buffer.dtype], self.held(tile)
        if statement.atomic:
            with self.over(self.layout(tile), simd="") as variables:
                terms = [f"{variables[s]} * {self.buffer_step(target, s)}" for s in tile.spans]
                place = " + ".join([self.address(target), *terms])
                self.line("#pragma omp atomic")
                self.line(f"*({place}) += {self.at(tile, variables)};")
            return
        if not tile.spans:
            self.needs |= {("bfloat16",)} if stored == "bfloat16" else set()
            value = f"{self.name(tile)}[0]"
            value = f"narrowed_bfloat16({value})" if stored == "bfloat16" else value
            self.line(f"*({self.address(target)}) = {bare(value)};")
            return
        self.needs.add(("store", stored, held))
        with self.rows(tile, target) as (there, here, sizes, steps):
            rows, columns = steps
            to = f"{there}, {rows[1]}, {columns}, {here}, {rows[0]}"
            self.line(f"store_{stored}_{held}({to}, {sizes});")

    @contextmanager
    def rows(
        self, tile: Tile, access: Access
    ) -> Iterator[tuple[str, str, str, tuple[tuple[str, str], str]]]:
        """Loops over all but the last two axes of a tile, and what moving these two needs."""
        *outer, last = self.layout(tile)
        inner = outer[-1:]
        with self.over(outer[:-1], simd="") as variables:
            there = " + ".join(
                [
                    self.address(access),
                    *(f"{v} * {self.buffer_step(access, s)}" for s, v in variables.items()),
                ]
            )
            here = self.moved(tile, variables)
            rows = ("0", "0")
            if inner:
                rows = (self.step(tile, inner[0]), self.buffer_step(access, inner[0]))
            high = self.length(inner[0]) if inner else "1"
            sizes = f"{high}, {self.length(last)}"
            yield there, here, sizes, (rows, self.buffer_step(access, last))

    def compute(self, statement: Compute, fold: Fold | None = None) -> None:
        """An expression for every element, and a reduction of it along the way."""
        layout = self.layout(statement.tile)
        if fold is not None:
            self.start_fold(fold)
        marker = len(self.lines)
        with self.summed(layout, fold) as variables:
            texts = [self.at(t, variables) for t in statement.operands]
            dtypes = [DType.int32 if t in self.counted else t.dtype for t in statement.operands]
            value, definitions = self.writer.write(
                statement.expr, texts, dtypes, statement.tile.dtype
            )
            made = self.at(statement.tile, variables)
            if fold is None:
                self.line(f"{made} = {bare(value)};")
            else:
                self.line(f"const {self.held(statement.tile)} x = {bare(value)};")
                if statement.tile not in self.passing:
                    self.line(f"{made} = x;")
                self.line(self.folded(fold, variables, "x"))
        if definitions:
            loops = self.lines[marker:]
            del self.lines[marker:]
            with self.braces(""):
                for definition in definitions:
                    self.line(definition)
                self.lines += [f"    {line}" for line in loops]

    def fold(self, statement: Fold) -> None:
        """A reduction: row upon row in vectors, or along them, one partial result to a lane."""
        layout, span = self.layout(statement.operand), statement.span
        if self.is_across(statement):
            self.start_fold(statement)
            with self.summed([span, *(s for s in layout if s != span)], statement) as variables:
                self.line(self.folded(statement, variables, self.at(statement.operand, variables)))
            return
        dtype, held = statement.tile.dtype, self.held(statement.tile)
        if statement.combiner is ADD and held == self.held(statement.operand) and dtype.is_float:
            self.needs.add(("sum", held))
            with self.over(layout[:-1], simd="") as variables:
                sum_of = f"sum_{held}({self.moved(statement.operand, variables)}"
                made = self.at(statement.tile, variables)
                self.line(f"{made} = {sum_of}, {self.length(span)});")
            return
        self.start_fold(statement)
        identity = number(statement.combiner.identity[0], dtype)
        expr = statement.combiner.combine[0]
        scope = self.braces("") if len(layout) == 1 else nullcontext()
        with scope, self.over(layout[:-1], simd="") as variables:
            row = self.moved(statement.operand, variables)
            total = self.at(statement.tile, variables)
            self.line(f"const {self.held(statement.operand)} *const row = {row};")
            self.line(f"{held} lanes[16];")
            self.line(f"for (int w = 0; w < 16; w++) lanes[w] = {identity};")
            self.line("int64_t at = 0;")
            combined = self.writer.combined(expr, ["lanes[w]", "row[at + w]"], dtype)
            with self.braces(f"for (; at + 16 <= {self.length(span)}; at += 16)"):
                self.line("#pragma omp simd")
                self.line(f"for (int w = 0; w < 16; w++) lanes[w] = {bare(combined)};")
            rest = self.writer.combined(expr, [total, "row[at]"], dtype)
            self.line(f"for (; at < {self.length(span)}; at++) {total} = {bare(rest)};")
            last = self.writer.combined(expr, [total, "lanes[w]"], dtype)
            self.line(f"for (int w = 0; w < 16; w++) {total} = {bare(last)};")

    def start_fold(self, statement: Fold) -> None:
        kept = [s for s in self.layout(statement.operand) if s != statement.span]
        with self.over(kept) as variables:
            identity = number(statement.combiner.identity[0], statement.tile.dtype)
            self.line(f"{self.at(statement.tile, variables)} = {identity};")
            if self.part_name(statement) is not None:
                self.line(f"{self.summand(statement, variables)} = 0;")

    def summand(self, statement: Fold | Contract, variables: Mapping[Span, str]) -> str:
        """An element of a sum, or of the part of it that is being made."""
        total = self.at(statement.tile, variables)
        return (self.part_name(statement) or self.name(statement.tile)) + total[total.index("[") :]

    @contextmanager
    def summed(
        self, order: Sequence[Span], statement: Fold | Contract | None
    ) -> Iterator[dict[Span, str]]:
        """Loops over elements that are summed along the way: a long sum is made in parts."""
        if statement is None or self.part_name(statement) is None:
            along = statement is not None and statement.span == order[-1]
            with self.over(order, simd="" if along else "simd") as variables:
                yield variables
            return
        at = order.index(statement.span) + 1
        with self.over(order[:at], simd="") as outer:
            with self.over(order[at:], around=at) as inner:
                yield outer | inner
            i, length = outer[statement.span], self.length(statement.span)
            with (
                self.braces(f"if ({i} % {PART} == {PART - 1} || {i} + 1 == {length})"),
                self.over(order[at:], around=at) as inner,
            ):
                part = self.summand(statement, outer | inner)
                self.line(f"{self.at(statement.tile, outer | inner)} += {part};")
                self.line(f"{part} = 0;")

    def folded(self, statement: Fold, variables: Mapping[Span, str], value: str) -> str:
        """One more element in a reduction."""
        total, expr = self.summand(statement, variables), statement.combiner.combine[0]
        made = self.writer.combined(expr, [total, value], statement.tile.dtype)
        return f"{total} = {bare(made)};"

    def contract(self, statement: Contract, *, fresh: bool = False) -> None:
        plan = self.contraction(statement)
        if plan is None:
            self.contract_plainly(statement)
            return
        tile, span = statement.tile, statement.span
        rows, columns, broadcast, vectors = plan
        held, last = self.held(tile), self.turned_name(statement)
        self.needs.add(("contract", held))
        used = {span, columns, rows}
        spans = (*tile.spans, *broadcast.spans, *vectors.spans)
        others = list(dict.fromkeys(s for s in spans if s not in used))
        with self.over(others, simd="") as variables:
            if last is not None:
                self.needs.add(("load", held, held))
                room = self.row(columns.dim, held)
                steps = f"{self.step(vectors, span)}, {self.step(vectors, columns)}"
                block = self.moved(vectors, variables)
                lengths = f"{self.length(span)}, {self.length(columns)}"
                self.line(f"load_{held}_{held}({last}, {room}, {block}, {steps}, {lengths});")
                right = f"{last}, {room}"
            else:
                right = f"{self.moved(vectors, variables)}, {self.step(vectors, span)}"
            high = "1" if rows is None else self.length(rows)
            down = "0" if rows is None else self.step(broadcast, rows)
            left = f"{self.moved(broadcast, variables)}, {down}, {self.step(broadcast, span)}"
            below = "0" if rows is None else self.step(tile, rows)
            made = f"{self.moved(tile, variables)}, {below}"
            lengths = f"{high}, {self.length(columns)}, {self.length(span)}"
            begin = int(fresh)
            self.line(f"contract_{held}({begin}, {lengths}, {left}, {right}, {made});")

    def contract_plainly(self, statement: Contract) -> None:
        """Element by element: for vectors, axes that both operands keep, and whole numbers."""
        layout, sides = self.layout(statement.tile), (statement.left, statement.right)
        held = {self.held(t) for t in (*sides, statement.tile)}
        if not layout and held in ({"float"}, {"double"}):
            (kind,) = held
            self.needs.add(("sum", kind))
            rows = (f"{self.name(t)}, {self.step(t, statement.span)}" for t in sides)
            products = f"dot_{kind}({self.length(statement.span)}, {', '.join(rows)})"
            self.line(f"{self.name(statement.tile)}[0] += {products};")
            return
        if self.part_name(statement) is not None:
            with self.over(layout) as variables:
                self.line(f"{self.summand(statement, variables)} = 0;")
        with self.summed([statement.span, *layout], statement) as variables:
            left, right = (self.at(t, variables) for t in sides)
            self.line(f"{self.summand(statement, variables)} += {left} * {right};")
