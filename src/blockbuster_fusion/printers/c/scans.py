"""Scans of tiles as C."""

from collections.abc import Mapping

from blockbuster_fusion.ir.combiner import ADD, LOGADDEXP, MUL
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.nest import Last, RunningFold, Span
from blockbuster_fusion.printers.c.expressions import bare, number
from blockbuster_fusion.printers.c.kernel_text import KernelText
from blockbuster_fusion.printers.operators import C_TYPES

RUN = 8
"""The elements that are scanned by themselves, so that only one in so many waits for the total."""


def write_running_fold(out: KernelText, statement: RunningFold) -> None:
    """Writes a scan: along the vectors row by row, or across them row upon row."""
    order = out.layout.order(statement.tile)
    if order[-1] != statement.span:
        _write_across(out, statement)
        return
    with out.over(order[:-1], simd="") as outer:
        write_row_scan(out, statement, outer)


def write_row_scan(out: KernelText, statement: RunningFold, row: Mapping[Span, str]) -> None:
    """Writes the scan of one row; running sums and products of float32 are kept in float64."""
    layout, combiner, dtype = out.layout, statement.combiner, statement.tile.dtype
    if dtype is DType.float32 and combiner in (ADD, MUL):
        dtype = DType.float64
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
        if combiner is not LOGADDEXP:  # which takes too long to be computed twice
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
    """Writes a scan row upon row: each row is combined with the one before it."""
    layout, span, expr = out.layout, statement.span, statement.combiner.combine[0]
    order = layout.order(statement.tile)
    at = order.index(span) + 1
    with out.over(order[:at], simd="") as outer:
        i = outer[span]
        for head in (f"if ({i} == 0)", "else"):
            with out.braces(head), out.over(order[at:], around=at) as inner:
                variables = outer | inner
                x, made = (layout.at(t, variables) for t in (statement.operand, statement.tile))
                if head != "else":
                    out.line(f"{made} = {x};")
                    continue
                before = layout.at(statement.tile, variables | {span: f"({i} - 1)"})
                combined = out.writer.combined(expr, [before, x], statement.tile.dtype)
                out.line(f"{made} = {bare(combined)};")
