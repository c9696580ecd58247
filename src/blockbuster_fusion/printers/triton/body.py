"""The statements of a kernel as lines of Triton."""

from collections.abc import Collection, Iterable, Sequence

from blockbuster_fusion.errors import NoKernel
from blockbuster_fusion.ir.expr import Expr, arguments, node_dtypes, postorder
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.nest import (
    Access,
    Along,
    Body,
    Buffer,
    Cascade,
    Compute,
    Contract,
    Fill,
    Fold,
    For,
    Kernel,
    Load,
    Lookup,
    Positions,
    Span,
    Statement,
    Store,
    Tile,
    accesses,
    walk,
)
from blockbuster_fusion.printers.operators import TRITON_REDUCTIONS, TRITON_TYPES, Form
from blockbuster_fusion.printers.triton.dots import Dots, is_dot, product_of
from blockbuster_fusion.printers.triton.expressions import number_text
from blockbuster_fusion.printers.triton.grid import loop_lines
from blockbuster_fusion.printers.triton.layout import aligned, position
from blockbuster_fusion.printers.triton.maxima import seen_maxima
from blockbuster_fusion.printers.triton.scope import Scope

WIDTH = 92
_OR_NAN = Form("or_nan({0}, {1}, {axis})", part="or_nan")
TWICE = "# loaded once more: Triton 3.6 miscompiles a tile that goes both to a dot and elsewhere"


class BodyPrinter(Scope):
    """One kernel in the making."""

    def __init__(self, kernel: Kernel, constant: Collection[str] = ()) -> None:
        super().__init__(kernel, constant)
        self.kernel = kernel
        self.dots = Dots(kernel, self.names.again)
        self.seen_maxima = seen_maxima(kernel)
        self.aliases: dict[Tile, str] = {}
        self.wide_positions = any(_multiplies(s) for s in kernel.statements)
        self.wide_ints = self.wide_positions or any(
            a.buffer.dtype is DType.int64 for s in kernel.statements for a in accesses(s)
        )
        self.memory = _Memory(kernel)

    def lines(self) -> list[str]:
        """The kernel's body."""
        return self.body(self.kernel.body)

    def body(self, body: Body) -> list[str]:
        made: list[str] = []
        for at, statement in enumerate(body):
            after = body[at + 1] if at + 1 < len(body) else None
            before = body[at - 1] if at else None
            if _begins(statement, after):
                continue  # the contraction that follows begins with nothing
            for access in accesses(statement):
                if self.memory.barrier(access.buffer, isinstance(statement, Store)):
                    made.append("tl.debug_barrier()")
            made += self.statement(
                statement, fresh=before is not None and _begins(before, statement)
            )
        return made

    def statement(self, statement: Statement, fresh: bool) -> Iterable[str]:
        match statement:
            case Load():
                return self.load(statement.tile, statement.source)
            case Lookup():
                return self.load(statement.tile, statement.source, statement)
            case Store():
                return self.store(statement)
            case Compute():
                made = f"{statement.tile} = {self.compute(statement)}"
                return [*self.expr.definitions(), made]
            case Positions():
                self.aliases[statement.tile] = self.counted(statement.span)
                return []
            case Fold():
                return [f"{statement.tile} = {self.fold(statement)}"]
            case Contract():
                return [self.contract(statement, fresh)]
            case Fill():
                return [f"{statement.tile} = {self.filled(statement.tile, statement.value)}"]
            case For():
                return self.loop(statement)
            case Cascade():
                return self.cascade(statement)

    # ------------------------------------------------------------------ values

    def value(self, tile: Tile) -> str:
        """A tile as it is computed with: wide, where it was loaded narrow."""
        name = self.aliases.get(tile) or self.dots.again.get(tile) or tile.name
        narrow = self.dots.narrow.get(tile)
        return name if narrow is None else f"{name}.to({TRITON_TYPES[tile.dtype]})"

    def counted(self, span: Span) -> str:
        name = self.positions(span) if span.dim.packed else self.at(span)
        return f"tl.cast({name}, tl.int64)" if self.wide_positions else name

    def shape(self, tile: Tile) -> str:
        return f"[{', '.join(self.block(s.dim) for s in tile.spans)}]"

    def filled(self, tile: Tile, value: float) -> str:
        if value == 0 or (tile.dtype is DType.bool_ and value < 0):
            return f"tl.zeros({self.shape(tile)}, {TRITON_TYPES[tile.dtype]})"
        if tile.dtype is DType.bool_:
            value = 1
        text = self.limit(value) if not tile.dtype.is_float else number_text(value, tile.dtype)
        return f"tl.full({self.shape(tile)}, {text}, {TRITON_TYPES[tile.dtype]})"

    def limit(self, value: float) -> str:
        """A number among whole numbers, which have no infinity."""
        bits = 63 if self.wide_ints else 31
        if value == float("inf"):
            return str(2**bits - 1)
        return str(-(2**bits)) if value == float("-inf") else str(int(value))

    def compute(self, statement: Compute) -> str:
        tile, operands, expr = statement.tile, statement.operands, statement.expr
        dtypes = [t.dtype for t in operands]
        found = node_dtypes(expr, dtypes)[expr]
        there = {span for t in operands for span in t.spans}
        spans = tuple(s for s in tile.spans if s in there)
        texts = [aligned(self.value(t), t.spans, spans or tile.spans) for t in operands]
        text = self.expr.write(expr, texts, dtypes)
        if found is None and not arguments(expr):
            return f"tl.full({self.shape(tile)}, {text}, {TRITON_TYPES[tile.dtype]})"
        if len(spans) == len(tile.spans):
            return text
        text = aligned(f"({text})", spans, tile.spans) if spans else text
        return f"tl.broadcast_to({text}, {self.shape(tile)})"

    def fold(self, statement: Fold) -> str:
        operand, span, combiner = statement.operand, statement.span, statement.combiner
        text = self.value(operand)
        identity = combiner.identity[0]
        is_truth = operand.dtype is DType.bool_ and statement.tile.dtype is DType.bool_
        if operand.dtype is DType.bool_:
            text = f"{text}.to(tl.int32)"
            identity = min(max(identity, 0), 1)
        if statement.guarded:
            is_float = operand.dtype.is_float
            other = number_text(identity, operand.dtype) if is_float else self.limit(identity)
            if self.wide_ints and operand.dtype is DType.int64:
                text = f"tl.cast({text}, tl.int64)"  # what comes of positions may be narrow
            text = self.guarded(text, operand.spans, span, other)
        axis = operand.spans.index(span)
        if combiner not in TRITON_REDUCTIONS:
            what = f"a block is folded by {combiner}"
            raise NoKernel(what=what, remedy='run it with target="interpret"')
        made = self.expr.reduction(TRITON_REDUCTIONS[combiner], text, axis=axis)
        if statement in self.seen_maxima:
            made = self.expr.reduction(_OR_NAN, made, text, axis=axis)
        left = tuple(s for s in operand.spans if s != span)
        made = aligned(made, left, statement.tile.spans)
        return f"{made} != 0" if is_truth else made

    def guarded(self, text: str, spans: Sequence[Span], span: Span, other: str) -> str:
        inside = f"{self.inside(span)}{position(spans, span)}"
        return f"tl.where({inside}, {text}, {other})"

    # ------------------------------------------------------------ contractions

    def contract(self, statement: Contract, fresh: bool) -> str:
        tile = statement.tile
        if is_dot(statement):
            return f"{tile} = {self.dot(statement, fresh)}"
        left, right = (
            self.guarded(self.value(side), side.spans, statement.span, "0.0")
            if guard
            else self.value(side)
            for side, guard in zip(
                (statement.left, statement.right), statement.guarded, strict=True
            )
        )
        product = product_of(statement)
        if product.is_wide and not product.columns:
            return self.merged_sum(statement, (left, right), fresh)
        sides = (statement.left.spans, statement.right.spans)
        wide = max(sides, key=len)
        spans = wide if {*sides[0], *sides[1]} == {*wide} else (*tile.spans, statement.span)
        products = f"{aligned(left, sides[0], spans)} * {aligned(right, sides[1], spans)}"
        made = f"tl.sum({products}, {spans.index(statement.span)})"
        made = aligned(made, tuple(s for s in spans if s != statement.span), tile.spans)
        return f"{tile} = {made}" if fresh else f"{tile} += {made}"

    def dot(self, statement: Contract, fresh: bool) -> str:
        (dtype, precision), tile = self.dots.mode(statement), statement.tile
        guards = dict(zip((statement.left, statement.right), statement.guarded, strict=True))
        product, summed = product_of(statement), (statement.span,)
        batch, rows, columns = product.batch, product.rows, product.columns
        groups = ((batch, rows, summed), (batch, summed, columns))
        arguments = [
            self.merged(self.dotted(side, dtype, guards[side], statement.span), side.spans, group)
            for side, group in zip((product.first, product.second), groups, strict=True)
        ]
        if not fresh and product.is_plain:
            arguments.append(aligned(tile.name, tile.spans, (*rows, *columns)))
        if precision is not None:
            arguments.append(f'input_precision="{precision}"')
        if tile.dtype is DType.float64:
            arguments.append("out_dtype=tl.float64")
        made = f"tl.dot({', '.join(arguments)})"
        if product.is_plain:
            return aligned(made, (*rows, *columns), tile.spans)
        made = self.parted(made, (*batch, *rows, *columns), tile)
        return made if fresh else f"{tile} + {made}"

    def merged_sum(self, statement: Contract, texts: Sequence[str], fresh: bool) -> str:
        """A product of too many axes to be multiplied one by one, in which no side has its own."""
        product, tile, span = product_of(statement), statement.tile, statement.span
        by_side = dict(zip((statement.left, statement.right), texts, strict=True))
        batch, rows = product.batch, product.rows
        groups = [g for g in (batch, rows) if g]
        first = self.merged(by_side[product.first], product.first.spans, (*groups, (span,)))
        second = self.merged(by_side[product.second], product.second.spans, (batch, (span,)))
        if rows:
            second += "[:, None, :]" if batch else "[None, :]"
        made = f"tl.sum({first} * {second}, {len(groups)})"
        made = self.parted(made, (*batch, *rows), tile)
        return f"{tile} = {made}" if fresh else f"{tile} += {made}"

    def merged(self, text: str, spans: Sequence[Span], groups: Sequence[tuple[Span, ...]]) -> str:
        """A tile with its axes in an order, those of each group merged into one."""
        groups = [group for group in groups if group]
        made = aligned(text, spans, [span for group in groups for span in group])
        if all(len(group) == 1 for group in groups):
            return made
        lengths = [" * ".join(self.block(s.dim) for s in group) for group in groups]
        return f"tl.reshape({made}, [{', '.join(lengths)}])"

    def parted(self, text: str, spans: Sequence[Span], tile: Tile) -> str:
        """A product whose merged axes are those of a tile again."""
        lengths = ", ".join(self.block(span.dim) for span in spans)
        return aligned(f"tl.reshape({text}, [{lengths}])", spans, tile.spans)

    def dotted(self, tile: Tile, dtype: DType, guard: bool, span: Span) -> str:
        """An operand of a dot, in the dtype that the dot takes."""
        own = self.dots.narrow.get(tile, tile.dtype)
        text = self.aliases.get(tile, tile.name)
        if guard:
            text = self.guarded(text, tile.spans, span, "0.0")
        return text if own is dtype else f"{text}.to({TRITON_TYPES[dtype]})"

    # ------------------------------------------------------------------ memory

    def load(self, tile: Tile, source: Access, lookup: Lookup | None = None) -> list[str]:
        narrow = tile in self.dots.narrow
        wide = (
            ""
            if narrow or tile.dtype is source.buffer.dtype
            else f".to({TRITON_TYPES[tile.dtype]})"
        )
        spans = _spans(source) if lookup is None else tile.spans
        place, mask = self.place(source, tile, lookup), self.mask(spans, tile, lookup)
        if mask:
            mask.append("other=0.0" if source.buffer.dtype.is_float else "other=0")
        made = _call(f"{tile} = tl.load", place, mask, wide)
        again = self.dots.again.get(tile)
        if again is not None:
            policy = 'eviction_policy="evict_last"'
            made += [TWICE, *_call(f"{again} = tl.load", place, [*mask, policy], wide)]
        return made

    def store(self, statement: Store) -> list[str]:
        target, tile = statement.target, statement.tile
        value = self.value(tile)
        if tile.dtype is not target.buffer.dtype:
            kept = self.dots.narrow.get(tile) is target.buffer.dtype
            value = tile.name if kept else f"{value}.to({TRITON_TYPES[target.buffer.dtype]})"
        place, rest = self.place(target, tile), [value, *self.mask(_spans(target), tile)]
        if statement.atomic:
            return _call("tl.atomic_add", place, [*rest, 'sem="relaxed"'])
        return _call("tl.store", place, rest)

    def place(self, access: Access, tile: Tile, lookup: Lookup | None = None) -> tuple[str, str]:
        """Pointers to the elements of a block: (where it begins, the way from there)."""
        buffer = access.buffer
        start = [self.use(self.names.pointers[buffer])]
        if buffer in self.names.copies:
            start.append(f"tl.cast(pid, tl.int64) * {self.use(self.names.copies[buffer])}")
        inner: list[str] = []
        axes = zip(buffer.axes, access.spans, self.names.strides[buffer], strict=True)
        for number, (axis, span, stride) in enumerate(axes):
            if lookup is not None and number == lookup.axis:
                at = f"tl.cast({self.value(lookup.places)}, tl.int64)"
                at = aligned(at, lookup.places.spans, tile.spans)
                inner.append(f"{at} * {self.use(stride)}")
                continue
            begin = self.number(span) if axis.along is Along.BLOCKS else self.start(span)
            if begin is not None and axis.along is not Along.BLOCK:
                start.append(f"{begin} * {self.use(stride)}")
            if axis.along is not Along.BLOCKS and span.dim.packed:
                at = f"{self.offset(span.dim)}{position(tile.spans, span)}"
                inner.append(f"{at} * {self.use(stride)}")
        way = " + ".join(inner)
        return " + ".join(start), f"({way})" if len(inner) > 1 else way

    def mask(self, spans: Sequence[Span], tile: Tile, lookup: Lookup | None = None) -> list[str]:
        """What keeps a load or a store within the ends of some axes, a lookup within its table."""
        masks = [f"{self.inside(span)}{position(tile.spans, span)}" for span in spans]
        if lookup is not None:
            self.expr.helpers.add("on_axis")
            found = f"on_axis({self.value(lookup.places)}, {self.extent(lookup.along)})"
            masks.append(aligned(found, lookup.places.spans, tile.spans))
        return [f"mask={' & '.join(masks)}"] if masks else []

    # ------------------------------------------------------------------- loops

    def loop(self, loop: For) -> list[str]:
        self.memory.enter(loop.body)
        name = self.names.indices[loop.index]
        before, passes, bounds = loop_lines(loop, self)
        inner = self.body(loop.body)
        if self.memory.carried(loop.body):
            bounds += ", num_stages=1"  # what one iteration stores, the next loads
        inside = [*self.declarations(loop.index), *inner]
        self.memory.enter(loop.body)
        made = [f"for {name} in tl.range({bounds}):", *(f"    {x}" for x in inside)]
        if passes:
            # where a row has seen nothing in the window, the blocks before and after it count too
            counter = self.names.local("pass", name)
            made = [f"for {counter} in range(0, 3):", *(f"    {x}" for x in (*passes, *made))]
        return [*before, *made]

    def cascade(self, statement: Cascade) -> list[str]:
        """Statements for a loop with many blocks, beside it or after a run of them."""
        run = self.use(self.names.runs[statement.index.dim])
        inner = [f"    {line}" for line in self.body(statement.body)]
        if not statement.inside:
            return [f"if {run}:", *inner]
        at = self.names.indices[statement.index]
        after = [f"    if {at} % {run} == {run} - 1:", *(f"    {line}" for line in inner)]
        return [f"if {run}:", *after]


class _Memory:
    """Which buffers a kernel both writes and reads: the threads of a program must wait there."""

    def __init__(self, kernel: Kernel) -> None:
        self.shared = self._both(kernel.body)
        self.written: set[Buffer] = set()
        self.read: set[Buffer] = set()

    @staticmethod
    def _both(body: Body) -> set[Buffer]:
        sides: tuple[set[Buffer], set[Buffer]] = (set(), set())
        for s in walk(body):
            sides[isinstance(s, Store)].update(a.buffer for a in accesses(s))
        return sides[0] & sides[1]

    def barrier(self, buffer: Buffer, stores: bool) -> bool:
        """Whether a barrier has to stand before this access."""
        if buffer not in self.shared:
            return False
        needed = buffer in (self.read if stores else self.written)
        if needed:
            self.written.clear()
            self.read.clear()
        (self.written if stores else self.read).add(buffer)
        return needed

    def enter(self, body: Body) -> None:
        """What an earlier iteration has done has been done when the next begins."""
        for s in walk(body):
            buffers = {a.buffer for a in accesses(s)} & self.shared
            (self.written if isinstance(s, Store) else self.read).update(buffers)

    def carried(self, body: Body) -> bool:
        return bool(self._both(body))


def _spans(access: Access) -> list[Span]:
    """The blocks of a buffer that have an axis."""
    pairs = zip(access.buffer.axes, access.spans, strict=True)
    return [s for axis, s in pairs if axis.along is not Along.BLOCKS and s.dim.packed]


def _begins(statement: Statement, after: Statement | None) -> bool:
    """Whether a tile is cleared just before a contraction that adds to it."""
    clears = isinstance(statement, Fill) and statement.value == 0
    return clears and isinstance(after, Contract) and after.tile is statement.tile  # type: ignore[union-attr]


def _multiplies(statement: Statement) -> bool:
    """Whether whole numbers are multiplied, which may need more than 32 bits."""
    if not isinstance(statement, Compute):
        return False
    found: dict[Expr, DType | None] = node_dtypes(
        statement.expr, [t.dtype for t in statement.operands]
    )
    return any(
        node.op in ("mul", "pow") and found[node] is DType.int64
        for node in postorder(statement.expr)
    )


def _call(
    function: str, place: tuple[str, str], arguments: Sequence[str], end: str = ""
) -> list[str]:
    """A call about a place in memory, on one line or on several."""
    line = f"{function}({', '.join([' + '.join(p for p in place if p), *arguments])}){end}"
    if len(line) <= WIDTH:
        return [line]
    start, way = place
    first = [f"    {start}", f"    + {way},"] if way else [f"    {start},"]
    return [f"{function}(", *first, *(f"    {a}," for a in arguments), f"){end}"]
