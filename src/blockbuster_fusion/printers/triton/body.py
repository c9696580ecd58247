"""The statements of a kernel as lines of Triton."""

from collections.abc import Collection, Iterable

from blockbuster_fusion.errors import NoKernel
from blockbuster_fusion.ir.combiner import MAX, MIN
from blockbuster_fusion.ir.expr import arguments
from blockbuster_fusion.ir.expr_dtypes import node_dtypes
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.analysis.joined_products import JoinedProducts, joined_products
from blockbuster_fusion.nest.analysis.shifted_exponentials import shifted_exponentials
from blockbuster_fusion.nest.analysis.spread_sums import spread_sums, streaming_loops
from blockbuster_fusion.nest.analysis.triangular_scans import triangular_scan
from blockbuster_fusion.nest.nest import (
    Body,
    Cascade,
    Compute,
    Contract,
    Fill,
    Fold,
    For,
    Kernel,
    Last,
    Load,
    Lookup,
    Positions,
    RunningFold,
    Span,
    Statement,
    Store,
    accesses,
    written,
)
from blockbuster_fusion.printers.operators import (
    TRITON_REDUCTIONS,
    TRITON_SCANS,
    TRITON_TYPES,
    TextForm,
)
from blockbuster_fusion.printers.triton.barriers import Barriers
from blockbuster_fusion.printers.triton.contractions import (
    contract,
    joined_begin,
    joined_dot,
    joined_end,
    joined_operand,
    spread,
    spread_begin,
    spread_end,
)
from blockbuster_fusion.printers.triton.expressions import number_text
from blockbuster_fusion.printers.triton.layout import aligned, position
from blockbuster_fusion.printers.triton.loops import is_interleaved, loop_lines
from blockbuster_fusion.printers.triton.maxima import seen_maxima
from blockbuster_fusion.printers.triton.moves import load, store
from blockbuster_fusion.printers.triton.names import ParameterNames
from blockbuster_fusion.printers.triton.triangles import by_triangles
from blockbuster_fusion.printers.triton.values import TileValues
from blockbuster_fusion.printers.triton.variables import Variables

_WITH_NAN = {
    MAX: TextForm("tl.reduce({0}, {axis}, larger)", part="larger"),
    MIN: TextForm("tl.reduce({0}, {axis}, smaller)", part="smaller"),
}
"""Reductions that give NaN if there is one."""


class BodyPrinter:
    """Writes the statements of one kernel; its variables are declared as they are used."""

    def __init__(
        self, kernel: Kernel, constant: Collection[str] = (), names: ParameterNames | None = None
    ) -> None:
        self.kernel = kernel
        self.variables = Variables(kernel, constant, names)
        self.values = TileValues(kernel, self.variables)
        self.barriers = Barriers(kernel)
        self.seen_maxima = seen_maxima(kernel)
        self.spread = dict.fromkeys(
            s for loop in kernel.statements if isinstance(loop, For) for s in spread_sums(loop)
        )
        self.streaming_loops = {*streaming_loops(kernel)}
        self.joined = {s: pair for pair in joined_products(kernel) for s in pair.statements}
        self.shifted = shifted_exponentials(kernel)
        loops = [s for s in kernel.statements if isinstance(s, For)]
        self.turns = {x.index: x.share.parts for x in loops if x.share and is_interleaved(x)}

    def lines(self) -> list[str]:
        """The body of the kernel."""
        return self.body(self.kernel.body)

    def body(self, body: Body) -> list[str]:
        made: list[str] = []
        for at, statement in enumerate(body):
            after = body[at + 1] if at + 1 < len(body) else None
            before = body[at - 1] if at else None
            pair = self.joined.get(statement)
            if pair is not None and statement is not pair.statements[-1]:
                continue  # it comes with the last one
            if _begins(statement, after):
                continue  # the contraction that follows begins with nothing
            for access in accesses(statement):
                if self.barriers.barrier(access.buffer, isinstance(statement, Store)):
                    made.append("tl.debug_barrier()")
            made += self.statement(
                statement, fresh=before is not None and _begins(before, statement)
            )
        return made

    def statement(self, statement: Statement, fresh: bool) -> Iterable[str]:
        match statement:
            case Load() | Lookup():
                return load(self.values, statement)
            case Store():
                return store(self.values, statement)
            case Compute():
                made = f"{statement.tile} = {self.compute(statement)}"
                return [*self.variables.expr.definitions(), made]
            case Positions():
                self.values.aliases[statement.tile] = self.values.counted(statement.span)
                return []
            case Fold():
                return [f"{statement.tile} = {self.fold(statement)}"]
            case RunningFold():
                return [f"{statement.tile} = {self.running_fold(statement)}"]
            case Last():
                return [f"{statement.tile} = {self.last(statement)}"]
            case Contract() if statement in self.joined:
                return self.joint(self.joined[statement])
            case Contract() if statement in self.spread:
                return [spread(self.values, statement)]
            case Contract():
                return [contract(self.values, statement, fresh)]
            case Fill():
                return [f"{statement.tile} = {self.values.filled(statement.tile, statement.value)}"]
            case For():
                return self.loop(statement)
            case Cascade():
                return self.cascade(statement)

    def joint(self, pair: JoinedProducts) -> list[str]:
        """Two products as one, or each by itself if the launch gives two arrays."""
        apart = [line for s in pair.loads for line in load(self.values, s)]
        apart += [contract(self.values, s, fresh=False) for s in pair.products]
        return [
            self.if_joined(pair),
            f"    {joined_dot(self.values, pair)}",
            "else:",
            *(f"    {line}" for line in apart),
        ]

    def if_joined(self, pair: JoinedProducts) -> str:
        return f"if len({joined_operand(self.values, pair)}.shape) == 3:"

    def compute(self, statement: Compute) -> str:
        tile, operands, expr = statement.tile, statement.operands, statement.expr
        if statement.groups is not None:
            return self.compute_in_groups(statement, statement.groups)
        dtypes = [t.dtype for t in operands]
        found = node_dtypes(expr, dtypes)[expr]
        there = {span for t in operands for span in t.spans}
        spans = tuple(s for s in tile.spans if s in there)
        texts = [aligned(self.values.value(t), t.spans, spans or tile.spans) for t in operands]
        flushed = self.shifted.get(statement, ())
        text = self.variables.expr.write(expr, texts, dtypes, flushed)
        if found is None and not arguments(expr):
            return f"tl.full({self.values.shape(tile)}, {text}, {TRITON_TYPES[tile.dtype]})"
        if len(spans) == len(tile.spans):
            return text
        text = aligned(f"({text})", spans, tile.spans) if spans else text
        return f"tl.broadcast_to({text}, {self.values.shape(tile)})"

    def compute_in_groups(self, statement: Compute, groups: Span) -> str:
        """Computes with numbers of groups: places have an axis within their group."""
        tile, operands, values = statement.tile, statement.operands, self.values
        _, onto = values.in_groups("", tile.spans, groups)
        cut = [values.in_groups(values.value(t), t.spans, groups) for t in operands]
        texts = [aligned(text, spans, onto) for text, spans in cut]
        flushed = self.shifted.get(statement, ())
        dtypes = [t.dtype for t in operands]
        text = self.variables.expr.write(statement.expr, texts, dtypes, flushed)
        if {span for _, spans in cut for span in spans} != {*onto}:
            text = f"tl.broadcast_to({text}, {values.shape_in_groups(tile.spans, groups)})"
        return f"tl.reshape({text}, {values.shape(tile)})"

    def fold(self, statement: Fold) -> str:
        operand, span, combiner = statement.operand, statement.span, statement.combiner
        text = self.values.value(operand)
        identity = combiner.identity[0]
        is_truth = operand.dtype is DType.bool_ and statement.tile.dtype is DType.bool_
        if operand.dtype is DType.bool_:
            text = f"{text}.to(tl.int32)"
            identity = min(max(identity, 0), 1)
        if statement.tail_masked:
            is_float = operand.dtype.is_float
            other = (
                number_text(identity, operand.dtype) if is_float else self.values.limit(identity)
            )
            if self.values.wide_ints and operand.dtype is DType.int64:
                text = f"tl.cast({text}, tl.int64)"  # what comes of positions may be narrow
            text = self.values.guarded(text, operand.spans, span, other)
        spans = operand.spans
        if statement.groups is not None:
            text, spans = self.values.in_groups(text, spans, statement.groups)
        axis = spans.index(span)
        if combiner not in TRITON_REDUCTIONS:
            what = f"a block is folded by {combiner}"
            raise NoKernel(what=what, remedy='run it with target="interpret"')
        forms = _WITH_NAN if statement in self.seen_maxima else TRITON_REDUCTIONS
        made = self.variables.expr.reduction(forms[combiner], text, axis=axis)
        left = tuple(s for s in spans if s != span)
        made = aligned(made, left, statement.tile.spans)
        return f"{made} != 0" if is_truth else made

    def running_fold(self, statement: RunningFold) -> str:
        operand, combiner = statement.operand, statement.combiner
        text = self.values.value(operand)
        if operand.dtype is DType.int64:
            text = f"tl.cast({text}, tl.int64)"  # what comes of positions may be narrow
        axis = operand.spans.index(statement.span)
        made = self.variables.expr.reduction(TRITON_SCANS[combiner], text, axis=axis)
        return aligned(made, operand.spans, statement.tile.spans)

    def last(self, statement: Last) -> str:
        """The sum of the last elements and zeros: an element is not read by its place."""
        operand, span = statement.operand, statement.span
        block = self.variables.block(span.dim)
        there = f"(tl.arange(0, {block}) == {block} - 1){position(operand.spans, span)}"
        text = f"tl.where({there}, {self.values.value(operand)}, 0)"
        left = tuple(s for s in operand.spans if s != span)
        made = f"tl.sum({text}, {operand.spans.index(span)})"
        return aligned(made, left, statement.tile.spans)

    def loop(self, loop: For) -> list[str]:
        self.barriers.enter(loop.body)
        name = self.variables.names.indices[loop.index]
        before, passes, bounds = loop_lines(loop, self.values)
        inner = self.body(loop.body)
        if self.barriers.carried(loop.body):
            bounds += ", num_stages=1"  # what one iteration stores, the next loads
        elif loop in self.streaming_loops:
            stages = self.variables.use("STAGES")
            bounds += f", num_stages={stages}, loop_unroll_factor=1 + ({stages} == 1)"
        declared = self.variables.declarations(loop.index)
        inside = [*declared, *inner]
        self.barriers.enter(loop.body)
        made = [f"for {name} in tl.range({bounds}):", *(f"    {x}" for x in inside)]
        scan = triangular_scan(loop)
        if scan is not None:
            made = by_triangles(self.values, scan, (name, bounds), declared, made)
        if passes:
            # where a row has seen nothing in the window, the blocks before and after it count too
            counter = self.variables.names.local("pass", name)
            made = [f"for {counter} in range(0, 3):", *(f"    {x}" for x in (*passes, *made))]
        sums = [s for s in loop.body if isinstance(s, Contract) and s in self.spread]
        begin = [spread_begin(self.values, s) for s in sums]
        end = [spread_end(self.values, s) for s in sums]
        for pair in dict.fromkeys(self.joined[s] for s in loop.body if s in self.joined):
            begin.append(joined_begin(self.values, pair))
            end += [self.if_joined(pair), f"    {joined_end(self.values, pair)}"]
        return [*begin, *before, *made, *end]

    def cascade(self, statement: Cascade) -> list[str]:
        """The statements that move a partial sum into the total of a long loop."""
        names, dim = self.variables.names, statement.index.dim
        run = self.variables.use(names.runs[dim])
        inner = [f"    {line}" for line in self.body(statement.body)]
        if not statement.inside:
            return [f"if {run}:", *inner]
        written_here = {written(s) for s in statement.body}
        for s in (s for s in self.spread if s.tile in written_here):
            moved = [spread_end(self.values, s), spread_begin(self.values, s)]
            inner = [*(f"    {line}" for line in moved), *inner]
        at = names.indices[statement.index]
        at = f"{at} // {self.turns[statement.index]}" if statement.index in self.turns else at
        length = self.variables.use(names.run_lengths[dim]) if dim in names.run_lengths else run
        after = [f"    if {at} % {length} == {length} - 1:", *(f"    {line}" for line in inner)]
        return [f"if {run}:", *after]


def _begins(statement: Statement, after: Statement | None) -> bool:
    """True if a tile is cleared just before a contraction adds to it."""
    match statement, after:
        case Fill(), Contract():
            return statement.value == 0 and after.tile is statement.tile
    return False
