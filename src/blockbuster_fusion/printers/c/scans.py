"""Scans of tiles as C."""

from collections.abc import Mapping

from blockbuster_fusion.ir.combiner import ADD, LOGADDEXP, MAX, MIN, MUL
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.nest import Last, RunningFold, Span
from blockbuster_fusion.printers.c.expressions import bare, number
from blockbuster_fusion.printers.c.kernel_text import KernelText
from blockbuster_fusion.printers.operators import C_TYPES

RUN = 8
"""The elements that are scanned by themselves, so that only one in so many waits for the total."""
COLUMNS = 64
"""The columns that are scanned at a time, so that their totals stay near."""


def write_running_fold(out: KernelText, statement: RunningFold) -> None:
    """Writes a scan: along the vectors row by row, or across them row upon row."""
    order = out.layout.order(statement.tile)
    if order[-1] != statement.span:
        _write_across(out, statement)
        return
    with out.over(order[:-1], simd="") as outer:
        write_row_scan(out, statement, outer)


def write_row_scan(out: KernelText, statement: RunningFold, row: Mapping[Span, str]) -> None:
    """Writes the scan of one row."""
    layout, combiner, dtype = out.layout, statement.combiner, _kept(statement)
    expr, length = combiner.combine[0], layout.length(statement.span)

    def combined(first: str, second: str) -> str:
        return bare(out.writer.combined(expr, [first, second], dtype))

    def x(at: str) -> str:
        return layout.at(statement.operand, {**row, statement.span: at})

    def made(at: str) -> str:
        return layout.at(statement.tile, {**row, statement.span: at})

    with out.braces(""):
        out.line(f"{C_TYPES[dtype]} total = {number(combiner.identity[0], dtype)};")
        out.line("int64_t at = 0;")
        if _may_run(statement):
            with out.braces(f"for (; at + {RUN} <= {length}; at += {RUN})"):
                out.line(f"{C_TYPES[dtype]} part[{RUN}];")
                out.line(f"part[0] = {x('at')};")
                step = combined("part[w - 1]", x("(at + w)"))
                out.line(f"for (int w = 1; w < {RUN}; w++) part[w] = {step};")
                step = combined("total", "part[w]")
                out.line("#pragma omp simd")
                out.line(f"for (int w = 0; w < {RUN}; w++) {made('(at + w)')} = {step};")
                out.line(f"total = {combined('total', f'part[{RUN - 1}]')};")
        with out.braces(f"for (; at < {length}; at++)"):
            out.line(f"total = {combined('total', x('at'))};")
            out.line(f"{made('at')} = total;")


def write_last(out: KernelText, statement: Last) -> None:
    """Writes the last elements of a tile."""
    with out.over(out.layout.order(statement.tile)) as variables:
        write_row_last(out, statement, variables)


def write_row_last(out: KernelText, statement: Last, row: Mapping[Span, str]) -> None:
    """Writes the last element of one row."""
    layout, span = out.layout, statement.span
    last = layout.at(statement.operand, {**row, span: f"({layout.length(span)} - 1)"})
    out.line(f"{layout.at(statement.tile, row)} = {last};")


def _write_across(out: KernelText, statement: RunningFold) -> None:
    """Writes a scan across rows: for some columns at a time, row upon row."""
    layout, span, combiner = out.layout, statement.span, statement.combiner
    dtype, expr = _kept(statement), combiner.combine[0]
    *outer, last = [s for s in layout.order(statement.tile) if s != span]
    with out.over(outer, simd="") as variables:
        i, length = f"i{len(outer) + 1}", layout.length(last)
        with out.braces(f"for (int64_t at = 0; at < {length}; at += {COLUMNS})"):
            out.line(f"const int wide = (int)MIN({COLUMNS}, {length} - at);")
            out.line(f"{C_TYPES[dtype]} total[{COLUMNS}];")
            start = number(combiner.identity[0], dtype)
            out.line(f"for (int w = 0; w < wide; w++) total[w] = {start};")
            with out.braces(f"for (int64_t {i} = 0; {i} < {layout.length(span)}; {i}++)"):
                place = {**variables, span: i, last: "(at + w)"}
                x, made = (layout.at(t, place) for t in (statement.operand, statement.tile))
                out.line("#pragma omp simd")
                with out.braces("for (int w = 0; w < wide; w++)"):
                    combined = out.writer.combined(expr, ["total[w]", x], dtype)
                    out.line(f"total[w] = {bare(combined)};")
                    out.line(f"{made} = total[w];")


def _may_run(statement: RunningFold) -> bool:
    """True if runs may be combined by themselves: they are exact, or overflow no sooner.

    Logarithms take too long to be computed twice.
    """
    is_exact = statement.combiner in (MAX, MIN) or not statement.tile.dtype.is_float
    is_wider = _kept(statement) is not statement.tile.dtype
    return statement.combiner is not LOGADDEXP and (is_exact or is_wider)


def _kept(statement: RunningFold) -> DType:
    """The dtype of a running total: that of running sums and products of float32 is float64."""
    is_wide = statement.tile.dtype is DType.float32 and statement.combiner in (ADD, MUL)
    return DType.float64 if is_wide else statement.tile.dtype
