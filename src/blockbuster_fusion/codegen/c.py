"""Loop nests as C: one function for each kernel, for any C compiler with vector extensions.

A tile is an array in a thread's own memory, its rows padded to whole vectors. One packed dim of the
grid gives the *lanes*: every tile that has it has it innermost, so that what is elementwise, and
every reduction along another axis, runs in whole vectors, and a contraction needs no packing: its
vectors run along the lanes, and what it is multiplied with is broadcast. Loops run to the exact end
of a ragged block, so that nothing is masked.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

from blockbuster_fusion.codegen.c_expr import HELD, STORED, Need, Writer, bare, number
from blockbuster_fusion.codegen.c_memory import Kind, share
from blockbuster_fusion.codegen.c_prelude import prelude
from blockbuster_fusion.codegen.nest import (
    Access,
    Along,
    Body,
    Buffer,
    BufferAxis,
    Compute,
    Contract,
    Copy,
    Fill,
    Fold,
    For,
    Index,
    Kernel,
    Load,
    Nest,
    Positions,
    Space,
    Span,
    Statement,
    Store,
    Tile,
    Wait,
    Window,
    read,
)
from blockbuster_fusion.codegen.nest import (
    tiles as tiles_of,
)
from blockbuster_fusion.codegen.show import statement_text
from blockbuster_fusion.ir.axis import Axis, Dim, Symbol
from blockbuster_fusion.ir.expr import Expr, postorder
from blockbuster_fusion.ir.types import DType

DEFAULT_TILE = 64
LONG = 128
"""Rows of so many elements are worth reading where they lie."""


def print_c(nest: Nest, tiles: Mapping[Dim, int]) -> str:
    """The kernels of a program as C; `tiles` are constants of the text (64 where none is given)."""
    needs: set[Need] = set()
    kernels = [_Kernel(kernel, tiles, needs).text() for kernel in nest.kernels]
    return "\n".join([prelude(needs), *kernels])


def symbols(kernel: Kernel) -> tuple[Symbol, ...]:
    """The sizes that a kernel's function takes, in order."""
    found: dict[Symbol, None] = {}
    for axis in _axes(kernel):
        if isinstance(axis.extent, Symbol):
            found.setdefault(axis.extent)
    return tuple(found)


def global_buffers(kernel: Kernel) -> tuple[Buffer, ...]:
    """The buffers that a kernel's function takes, in order."""
    return tuple(b for b in kernel.buffers if b.space is Space.GLOBAL)


def _axes(kernel: Kernel) -> Iterator[Axis]:
    for dim in kernel.dims:
        yield dim.axis
    for buffer in kernel.buffers:
        for axis in buffer.axes:
            yield axis.dim.axis
    for statement in kernel.statements:
        exprs = [statement.expr] if isinstance(statement, Compute) else []
        if isinstance(statement, For) and statement.window is not None:
            exprs += [e for e in (statement.window.low, statement.window.high) if e is not None]
        for node in postorder(*exprs):
            if isinstance(node.value, Axis):
                yield node.value


class _Kernel:
    """One kernel while its lines are written."""

    def __init__(self, kernel: Kernel, tiles: Mapping[Dim, int], needs: set[Need]) -> None:
        self.kernel, self.tiles, self.needs = kernel, tiles, needs
        self.writer = Writer(lambda axis: str(axis.extent), needs)
        self.lines: list[str] = []
        self.depth = 0
        packed = [index.dim for index in kernel.grid if index.dim.packed]
        self.lanes = packed[-1] if packed else None
        self.blocks = _block_names([d for d in kernel.dims if d.packed and not d.unit])
        self.counted = {s.tile for s in kernel.statements if isinstance(s, Positions)}
        self.padded: dict[tuple[Dim, str], str] = {}
        self.borrowed: dict[Tile, Access] = {}
        self.borrowed = {
            s.tile: s.source
            for s in kernel.statements
            if isinstance(s, Load | Wait) and self.is_borrowed(s.tile, s.source)
        }

    # ----------------------------------------------------------------- text

    def line(self, text: str = "") -> None:
        self.lines.append("    " * self.depth + text if text else "")

    @contextmanager
    def braces(self, head: str) -> Iterator[None]:
        self.line(f"{head} {{".lstrip())
        self.depth += 1
        yield
        self.depth -= 1
        self.line("}")

    def text(self) -> str:
        arguments = (
            "void *const *buffers, const int64_t *strides, const int64_t *sizes, int threads"
        )
        self.line("/* Returns 0, or 1 when there was no memory. */")
        with self.braces(f"int {self.kernel.name}({arguments})"):
            self.parameters()
            here = len(self.lines)
            self.line("int64_t next = 0;")
            self.line("#pragma omp parallel num_threads(threads)")
            with self.braces(""):
                self.memory()
                with self.braces(
                    "for (int64_t program; memory && (program = claim(&next)) < programs;)"
                ):
                    self.grid()
                    self.body(self.kernel.body)
                self.line("free(memory);")
            self.line("return next < programs;")
        self.lines[here:here] = [
            f"    const int64_t {name} = PADDED({self.block(dim)}, {held});"
            for (dim, held), name in self.padded.items()
        ]
        return "\n".join(self.lines) + "\n"

    def parameters(self) -> None:
        at = 0
        for i, buffer in enumerate(global_buffers(self.kernel)):
            stored = STORED[buffer.dtype]
            self.needs |= {("bfloat16",)} if stored == "bfloat16" else set()
            const = "" if buffer in self.stored_to else "const "
            self.line(f"{const}{stored} *const {buffer.name} = buffers[{i}];")
            for axis in buffer.axes:
                name = self.stride(buffer, axis)
                self.line(f"const int64_t {name} = strides[{at}];")
                at += 1
        for i, symbol in enumerate(symbols(self.kernel)):
            self.line(f"const int64_t {symbol} = sizes[{i}];")
        for dim, name in self.blocks.items():
            self.line(f"enum {{ BLOCK_{name} = {self.tiles.get(dim, DEFAULT_TILE)} }};")
        for name, text in self.fixed_lengths().items():
            self.line(f"const int64_t {name} = {text};")
        counts = [self.count(i.dim) for i in self.kernel.grid]
        self.line(f"const int64_t programs = {' * '.join(counts) or '1'};")

    @property
    def stored_to(self) -> set[Buffer]:
        return {s.target.buffer for s in self.kernel.statements if isinstance(s, Store)}

    def fixed_lengths(self) -> dict[str, str]:
        """Lengths of blocks that no loop is at: a pick of the first."""
        made: dict[str, str] = {}
        for span in self.spans():
            if isinstance(span.at, int) and span.dim.packed and not span.dim.unit:
                block = self.block(span.dim)
                made[self.length(span)] = (
                    f"MIN({block}, {span.dim.axis.extent} - {span.at} * {block})"
                )
        return made

    def spans(self) -> Iterator[Span]:
        for statement in self.kernel.statements:
            for tile in tiles_of(statement):
                yield from tile.spans
            if isinstance(statement, Positions):
                yield statement.span

    def grid(self) -> None:
        """Which block of each dim a program has; the last index varies fastest."""
        after: list[str] = []
        for index in reversed(self.kernel.grid):
            count = self.count(index.dim)
            rest = f"program / ({' * '.join(after)})" if after else "program"
            self.line(f"const int64_t {index.name} = {rest} % {count};")
            after.insert(0, count)
        for index in self.kernel.grid:
            self.line_length(index)

    def line_length(self, index: Index) -> None:
        dim = index.dim
        if dim.packed:
            block = self.block(dim)
            text = f"MIN({block}, {dim.axis.extent} - {index.name} * {block})"
            self.line(f"const int64_t {index.name}_len = {text};")

    # -------------------------------------------------------------- lengths

    def block(self, dim: Dim) -> str:
        """How many elements a block of a dim has, but for the last."""
        if dim.unit:
            return str(dim.axis.extent)
        return f"BLOCK_{self.blocks[dim]}" if dim.packed else "1"

    def count(self, dim: Dim) -> str:
        """How many blocks a dim has."""
        if dim.unit:
            return "1"
        return (
            f"BLOCKS({dim.axis.extent}, {self.block(dim)})" if dim.packed else str(dim.axis.extent)
        )

    def length(self, span: Span) -> str:
        """How many elements this block has."""
        if span.dim.unit:
            return str(span.dim.axis.extent)
        if isinstance(span.at, Index):
            return f"{span.at.name}_len"
        return f"block_{self.blocks[span.dim]}_{span.at}"

    def start(self, span: Span) -> str:
        """Where a block begins along its axis."""
        if span.dim.unit:
            return "0"
        at = span.at.name if isinstance(span.at, Index) else str(span.at)
        return f"{at} * {self.block(span.dim)}" if span.dim.packed else at

    # --------------------------------------------------------------- memory

    def held(self, tile: Tile) -> str:
        """The C type of a tile's elements; positions are short."""
        return "int32_t" if tile in self.counted else HELD[tile.dtype]

    def is_borrowed(self, tile: Tile, source: Access) -> bool:
        """Whether a block is read where it lies: contractions broadcast it, and nothing else.

        Only long rows are: of short pieces, each would be in another page of memory.
        """
        if self.held(tile) != STORED[source.buffer.dtype] or not tile.spans:
            return False
        last = source.spans[-1].dim
        if not last.unit and self.tiles.get(last, DEFAULT_TILE) < LONG:
            return False
        if source.buffer.space is not Space.GLOBAL:
            return False
        if source.buffer in self.stored_to:
            return False
        users = [s for s in self.kernel.statements if tile in read(s)]
        plans = [self.contraction(s) if isinstance(s, Contract) else None for s in users]
        return all(plan is not None and plan[2] is tile is not plan[3] for plan in plans)

    def layout(self, tile: Tile) -> list[Span]:
        """The spans of a tile in the order in which they lie in memory: the lanes last."""
        return sorted(tile.spans, key=lambda span: span.dim is self.lanes)

    def room(self, tile: Tile, after: int = 0) -> str:
        """How many elements the axes from number `after` on take; the last is padded."""
        layout = self.layout(tile)[after:]
        if not layout:
            return "1"
        sizes = [self.block(span.dim) for span in layout[:-1]]
        return " * ".join([*sizes, self.row(layout[-1].dim, self.held(tile))])

    def row(self, dim: Dim, held: str) -> str:
        """The length of a row of a tile along a dim, padded; it has a name."""
        if (dim, held) not in self.padded:
            name = self.blocks.get(dim, _word(dim.name)).lower()
            if held != "float":
                name = f"{name}_{held.removesuffix('_t')}"
            taken = set(self.padded.values())
            names = (f"{name}_row{n}" for n in ("", *range(2, 99)))
            self.padded[dim, held] = next(n for n in names if n not in taken)
        return self.padded[dim, held]

    def step(self, tile: Tile, span: Span) -> str:
        """How far apart two neighbours along an axis of a tile are."""
        if tile in self.borrowed:
            return self.buffer_step(self.borrowed[tile], span)
        at = self.layout(tile).index(span)
        return "1" if at == len(tile.spans) - 1 else self.room(tile, at + 1)

    def at(self, tile: Tile, variables: Mapping[Span, str]) -> str:
        """An element of a tile."""
        terms = []
        for span in self.layout(tile):
            step = self.step(tile, span)
            terms.append(variables[span] if step == "1" else f"{variables[span]} * {_factor(step)}")
        return f"{tile.name}[{' + '.join(terms) or '0'}]"

    def memory(self) -> None:
        """Every thread's own memory, cut into tiles."""
        sharing = share(self.kernel, self.kind)
        pieces = [(t.name, self.held(t), self.room(t)) for t in sharing.owners]
        pieces += [
            (b.name, STORED[b.dtype], self.buffer_room(b))
            for b in self.kernel.buffers
            if b.space is Space.SCRATCH
        ]
        for s in self.kernel.statements:
            if isinstance(s, Contract) and (name := self.turned_name(s)) is not None:
                plan = self.contraction(s)
                assert plan is not None
                wide = self.row(plan[1].dim, self.held(s.tile))
                pieces.append((name, self.held(s.tile), f"{self.block(s.span.dim)} * {wide}"))
        pieces = list(dict.fromkeys(pieces))
        self.line("size_t bytes = 0;")
        for name, held, room in pieces:
            self.line(f"const size_t {name}_at = reserve(&bytes, {room}, sizeof({held}));")
        self.line("char *const memory = allocate(bytes);")
        for name, held, _ in pieces:
            self.line(f"{held} *const {name} = ({held} *)(memory + {name}_at);")
        for tile, owner in sharing.taken.items():
            self.line(f"{self.held(tile)} *const {tile.name} = {owner.name};")

    def kind(self, tile: Tile) -> Kind | None:
        """What tiles that may share memory have in common; None for those that need none."""
        return None if tile in self.borrowed else (self.held(tile), self.room(tile))

    def buffer_room(self, buffer: Buffer) -> str:
        return " * ".join(self.axis_length(axis) for axis in buffer.axes) or "1"

    def axis_length(self, axis: BufferAxis) -> str:
        match axis.along:
            case Along.AXIS:
                return str(axis.dim.axis.extent)
            case Along.BLOCKS:
                return self.count(axis.dim)
            case Along.BLOCK:
                return self.block(axis.dim)

    def stride(self, buffer: Buffer, axis: BufferAxis) -> str:
        """How far apart two neighbours along an axis of a buffer are."""
        if buffer.space is Space.SCRATCH:
            later = buffer.axes[buffer.axes.index(axis) + 1 :]
            return f"({' * '.join(self.axis_length(a) for a in later) or '1'})"
        return f"{buffer.name}_{_word(axis.dim.name)}"

    def address(self, access: Access) -> str:
        """The first element of a block of a buffer."""
        terms = [access.buffer.name]
        for axis, span in zip(access.buffer.axes, access.spans, strict=True):
            start = self.start(span)
            if axis.along is Along.BLOCKS:
                start = span.at.name if isinstance(span.at, Index) else str(span.at)
            if axis.along is not Along.BLOCK and start != "0":
                terms.append(f"{start} * {self.stride(access.buffer, axis)}")
        return " + ".join(terms)

    def buffer_step(self, access: Access, span: Span) -> str:
        pairs = zip(access.buffer.axes, access.spans, strict=True)
        return next(
            self.stride(access.buffer, axis)
            for axis, own in pairs
            if own == span and axis.along is not Along.BLOCKS
        )

    # ----------------------------------------------------------- statements

    def body(self, body: Body) -> None:
        """The statements in order; a few go together with the next one."""
        pending = list(body)
        while pending:
            statement, rest = pending[0], pending[1:]
            following = rest[0] if rest else None
            match statement, following:
                case Fill(), Contract() if self.begins(statement, following):
                    self.line(f"/* {statement_text(following, guards=False)}, from 0 */")
                    self.contract(following, fresh=True)
                    pending = rest[1:]
                case Compute(), Fold() if self.goes_along(statement, following):
                    self.line(f"/* {statement_text(statement, guards=False)} */")
                    self.line(f"/* {statement_text(following, guards=False)} */")
                    self.compute(statement, following)
                    pending = rest[1:]
                case _:
                    self.statement(statement)
                    pending = rest

    def begins(self, fill: Fill, contract: Contract) -> bool:
        """Whether a contraction writes a tile that was just cleared: then nothing is cleared."""
        return fill.tile is contract.tile and fill.value == 0 and self.is_one_call(contract)

    def is_one_call(self, contract: Contract) -> bool:
        plan = self.contraction(contract)
        if plan is None:
            return False
        spans = {*contract.left.spans, *contract.right.spans}
        return spans == {contract.span, plan[1]} | ({plan[0]} if plan[0] is not None else set())

    def goes_along(self, compute: Compute, fold: Fold) -> bool:
        """Whether a reduction can be done while its operand is computed: not along the vectors."""
        return fold.operand is compute.tile and self.is_across(fold)

    def is_across(self, fold: Fold) -> bool:
        """Whether a reduction runs across the vectors, row upon row, not along them."""
        return self.layout(fold.operand)[-1] != fold.span

    def statement(self, statement: Statement) -> None:
        if isinstance(statement, For):
            if statement.part is None and statement.window is None:
                self.loop(statement)
            else:
                with self.braces(""):
                    self.loop(statement)
            return
        if isinstance(statement, Copy):
            return  # the block is fetched when it is waited for
        self.line(f"/* {statement_text(statement, guards=False)} */")
        match statement:
            case Load():
                self.load(statement.tile, statement.source)
            case Wait():
                self.load(statement.tile, statement.source)
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

    @contextmanager
    def over(self, spans: Sequence[Span], *, simd: str = "simd") -> Iterator[dict[Span, str]]:
        """Loops over the elements of some spans, the innermost in vectors."""
        variables = dict(zip(spans, "ijklmnopq"[: len(spans)], strict=True))
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
        name = index.name
        if loop.part is not None:
            chunk = f"BLOCKS({last}, {loop.part.parts})"
            share = f"{loop.part.index.name} * {chunk}"
            self.line(f"const int64_t {name}_first = MAX({first}, {share});")
            self.line(f"const int64_t {name}_last = MIN({last}, {share} + {chunk});")
            first, last = f"{name}_first", f"{name}_last"
        if loop.window is not None:
            first, last = self.window(loop, loop.window, first, last)
        with self.braces(f"for (int64_t {name} = {first}; {name} < {last}; {name}++)"):
            self.line_length(index)
            self.body(loop.body)

    def window(self, loop: For, window: Window, first: str, last: str) -> tuple[str, str]:
        """The blocks that some row of the block of rows sees."""
        name, block = loop.index.name, self.block(loop.index.dim)
        extent = loop.index.dim.axis.extent
        top = self.start(window.rows)
        bottom = f"{top} + {self.length(window.rows)} - 1"
        low, high = (None if e is None else self.edge(e) for e in (window.low, window.high))
        self.line(f"int64_t {name}_low = {first}, {name}_high = {last};")
        unseen = []
        if low is not None:
            unseen.append(f"{bottom} + {low} > {extent} - 1")
        if high is not None:
            unseen.append(f"{top} + {high} < 0")
        with self.braces(f"if (!({' || '.join(unseen)}))"):
            if low is not None:
                self.line(f"{name}_low = MAX({name}_low, MAX(0, {top} + {low}) / {block});")
            if high is not None:
                reach = f"({bottom} + {high}) / {block} + 1"
                self.line(f"{name}_high = MIN({name}_high, {reach});")
        return f"{name}_low", f"{name}_high"

    def edge(self, expr: Expr) -> str:
        return self.writer.write(expr, [], [], DType.int64)[0]

    def load(self, tile: Tile, source: Access) -> None:
        stored, held = STORED[source.buffer.dtype], self.held(tile)
        layout = self.layout(tile)
        if tile in self.borrowed:
            self.line(f"const {held} *const {tile.name} = {self.address(source)};")
            return
        if not layout:
            self.needs |= {("bfloat16",)} if stored == "bfloat16" else set()
            value = f"*({self.address(source)})"
            value = f"widened_bfloat16({value})" if stored == "bfloat16" else value
            self.line(f"{tile.name}[0] = {bare(value)};")
            return
        self.needs.add(("load", stored, held))
        with self.rows(tile, source) as (there, here, sizes, steps):
            rows, columns = steps
            to = f"{here}, {rows[0]}, {there}, {rows[1]}, {columns}"
            self.line(f"load_{stored}_{held}({to}, {sizes});")

    def store(self, statement: Store) -> None:
        tile, target = statement.tile, statement.target
        stored, held = STORED[target.buffer.dtype], self.held(tile)
        if statement.atomic:
            with self.over(self.layout(tile), simd="") as variables:
                terms = [f"{variables[s]} * {self.buffer_step(target, s)}" for s in tile.spans]
                place = " + ".join([self.address(target), *terms])
                self.line("#pragma omp atomic")
                self.line(f"*({place}) += {self.at(tile, variables)};")
            return
        if not tile.spans:
            self.needs |= {("bfloat16",)} if stored == "bfloat16" else set()
            value = f"{tile.name}[0]"
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
            here = " + ".join(
                [tile.name, *(f"{v} * {_factor(self.step(tile, s))}" for s, v in variables.items())]
            )
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
        with self.over(layout) as variables:
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
        self.start_fold(statement)
        if self.is_across(statement):
            with self.over([span, *(s for s in layout if s != span)]) as variables:
                self.line(self.folded(statement, variables, self.at(statement.operand, variables)))
            return
        dtype, held = statement.tile.dtype, self.held(statement.tile)
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

    def folded(self, statement: Fold, variables: Mapping[Span, str], value: str) -> str:
        """One more element in a reduction."""
        total, expr = self.at(statement.tile, variables), statement.combiner.combine[0]
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

    def contraction(self, statement: Contract) -> tuple[Span | None, Span, Tile, Tile] | None:
        """Its rows and columns, and which operand has each; None: do it plainly."""
        sides = (statement.left, statement.right)
        layout = self.layout(statement.tile)
        held = {self.held(t) for t in (*sides, statement.tile)}
        if not layout or len(held) > 1 or not held <= {"float", "double"}:
            return None
        columns = layout[-1]
        vectors = [t for t in sides if columns in t.spans]
        if len(vectors) != 1:
            return None
        broadcast = next(t for t in sides if t is not vectors[0] or sides[0] is sides[1])
        kept = [s for s in self.layout(broadcast) if s != statement.span]
        rows = next((s for s in reversed(kept) if s not in vectors[0].spans), None)
        return rows, columns, broadcast, vectors[0]

    def turned_name(self, statement: Contract) -> str | None:
        """The room for an operand that has to be turned first: its columns are not innermost."""
        plan = self.contraction(statement)
        if plan is None:
            return None
        _, columns, _, vectors = plan
        return None if self.step(vectors, columns) == "1" else f"{vectors.name}_turned"

    def moved(self, tile: Tile, variables: Mapping[Span, str]) -> str:
        """The first element of a tile at some positions."""
        terms = [
            f"{v} * {_factor(self.step(tile, s))}" for s, v in variables.items() if s in tile.spans
        ]
        return " + ".join([tile.name, *terms])

    def contract_plainly(self, statement: Contract) -> None:
        """Element by element: for vectors, axes that both operands keep, and whole numbers."""
        layout = self.layout(statement.tile)
        order = [statement.span, *layout]
        with self.over(order, simd="simd" if layout else "") as variables:
            left, right = (self.at(t, variables) for t in (statement.left, statement.right))
            self.line(f"{self.at(statement.tile, variables)} += {left} * {right};")


def _factor(text: str) -> str:
    """A text as a factor of a product."""
    return text if text.isidentifier() else f"({text})"


def _word(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)


def _block_names(dims: Sequence[Dim]) -> dict[Dim, str]:
    """A name for each dim: that of its axis, numbered where an axis is cut in several ways."""
    made: dict[Dim, str] = {}
    for dim in dims:
        name = _word(dim.name)
        taken = sum(1 for other in made if other.axis is dim.axis)
        made[dim] = f"{name}{taken + 1}" if taken else name
    return made
