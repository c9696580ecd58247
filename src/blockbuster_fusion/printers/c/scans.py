"""Scans of tiles as C."""

from blockbuster_fusion.ir.combiner import ADD, MUL
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.nest import Last, RunningFold
from blockbuster_fusion.printers.c.expressions import bare, number
from blockbuster_fusion.printers.c.kernel_text import KernelText
from blockbuster_fusion.printers.operators import C_TYPES


def write_running_fold(out: KernelText, statement: RunningFold) -> None:
    """Writes a scan: along the vectors element by element, or across them row upon row."""
    if out.layout.order(statement.tile)[-1] == statement.span:
        _write_along(out, statement)
    else:
        _write_across(out, statement)


def write_last(out: KernelText, statement: Last) -> None:
    """Writes the last elements of a tile."""
    layout, span = out.layout, statement.span
    with out.over(layout.order(statement.tile)) as variables:
        last = layout.at(statement.operand, variables | {span: f"({layout.length(span)} - 1)"})
        out.line(f"{layout.at(statement.tile, variables)} = {last};")


def _write_along(out: KernelText, statement: RunningFold) -> None:
    """Writes scans of rows; running sums and products of float32 are kept in float64."""
    layout, combiner, dtype = out.layout, statement.combiner, statement.tile.dtype
    if dtype is DType.float32 and combiner in (ADD, MUL):
        dtype = DType.float64
    order = layout.order(statement.tile)
    with out.over(order[:-1], simd="") as outer, out.braces(""):
        identity = number(combiner.identity[0], dtype)
        out.line(f"{C_TYPES[dtype]} total = {identity};")
        with out.over(order[-1:], simd="", around=len(order) - 1) as inner:
            x = layout.at(statement.operand, outer | inner)
            made = out.writer.combined(combiner.combine[0], ["total", x], dtype)
            out.line(f"total = {bare(made)};")
            out.line(f"{layout.at(statement.tile, outer | inner)} = total;")


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
