"""Elementwise expressions and reductions as C."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

from blockbuster_fusion.ir.combiner import ADD
from blockbuster_fusion.nest.nest import Compute, Contract, Fold, Span
from blockbuster_fusion.printers.c.expressions import bare, number
from blockbuster_fusion.printers.c.kernel_text import KernelText
from blockbuster_fusion.printers.c.layout import PART

TOGETHER, WIDE = 8, 1000
"""The rows that a reduction across rows reads at once: sums in the cache are changed less often.

Rows of fewer elements are read one by one: there, processors foresee less of several rows."""


def write_compute(out: KernelText, statement: Compute, fold: Fold | None = None) -> None:
    """Writes an expression for every element, and a reduction of it in the same loop."""
    layout = out.layout
    order = layout.order(statement.tile)
    if fold is not None:
        _start_fold(out, fold)
    marker = len(out.lines)
    with summed(out, order, fold) as variables:
        texts = [layout.at(t, variables) for t in statement.operands]
        dtypes = layout.operand_dtypes(statement)
        value, definitions = out.writer.write(statement.expr, texts, dtypes, statement.tile.dtype)
        made = layout.at(statement.tile, variables)
        if fold is None:
            out.line(f"{made} = {bare(value)};")
        else:
            out.line(f"const {layout.held(statement.tile)} x = {bare(value)};")
            if statement.tile not in layout.passing:
                out.line(f"{made} = x;")
            out.line(_folded(out, fold, variables, "x"))
    if definitions:
        loops = out.lines[marker:]
        del out.lines[marker:]
        with out.braces(""):
            for definition in definitions:
                out.line(definition)
            out.lines += [f"    {line}" for line in loops]


def write_fold(out: KernelText, statement: Fold) -> None:
    """Writes a reduction: across the vectors, row upon row, or along them with partial results."""
    layout = out.layout
    order, span = layout.order(statement.operand), statement.span
    if layout.is_across(statement):
        _start_fold(out, statement)
        _fold_across(out, statement)
        return
    dtype, held = statement.tile.dtype, layout.held(statement.tile)
    if statement.combiner is ADD and held == layout.held(statement.operand) and dtype.is_float:
        out.needs.add(("sum", held))
        with out.over(order[:-1], simd="") as variables:
            sum_of = f"sum_{held}({layout.moved(statement.operand, variables)}"
            made = layout.at(statement.tile, variables)
            out.line(f"{made} = {sum_of}, {layout.length(span)});")
        return
    _start_fold(out, statement)
    identity = number(statement.combiner.identity[0], dtype)
    expr = statement.combiner.combine[0]
    scope = out.braces("") if len(order) == 1 else nullcontext()
    with scope, out.over(order[:-1], simd="") as variables:
        row = layout.moved(statement.operand, variables)
        total = layout.at(statement.tile, variables)
        out.line(f"const {layout.held(statement.operand)} *const row = {row};")
        out.line(f"{held} lanes[16];")
        out.line(f"for (int w = 0; w < 16; w++) lanes[w] = {identity};")
        out.line("int64_t at = 0;")
        combined = out.writer.combined(expr, ["lanes[w]", "row[at + w]"], dtype)
        with out.braces(f"for (; at + 16 <= {layout.length(span)}; at += 16)"):
            out.line("#pragma omp simd")
            out.line(f"for (int w = 0; w < 16; w++) lanes[w] = {bare(combined)};")
        rest = out.writer.combined(expr, [total, "row[at]"], dtype)
        out.line(f"for (; at < {layout.length(span)}; at++) {total} = {bare(rest)};")
        last = out.writer.combined(expr, [total, "lanes[w]"], dtype)
        out.line(f"for (int w = 0; w < 16; w++) {total} = {bare(last)};")


def _fold_across(out: KernelText, statement: Fold) -> None:
    """Writes a reduction row upon row; some long rows are combined in pairs before that."""
    layout, length = out.layout, out.layout.length(statement.span)
    is_wide = layout.longest(_kept(out, statement)[-1]) >= WIDE
    with out.braces(""):
        out.line("int64_t i1 = 0;")
        for rows in (TOGETHER, 1) if is_wide else (1,):
            with out.braces(f"for (; i1 + {rows} <= {length}; i1 += {rows})"):
                _fold_rows(out, statement, [f"(i1 + {row})" for row in range(rows)])
                if layout.part_name(statement) is not None:
                    with out.braces(f"if ((i1 + {rows}) % {PART} == 0)"):
                        _add_part(out, statement)
        if layout.part_name(statement) is not None:
            _add_part(out, statement)


def _fold_rows(out: KernelText, statement: Fold, rows: Sequence[str]) -> None:
    layout, expr = out.layout, statement.combiner.combine[0]
    with out.over(_kept(out, statement), around=1) as variables:
        values = [layout.at(statement.operand, {statement.span: i} | variables) for i in rows]
        while len(values) > 1:
            pairs = zip(values[::2], values[1::2], strict=True)
            values = [out.writer.combined(expr, pair, statement.tile.dtype) for pair in pairs]
        out.line(_folded(out, statement, variables, values[0]))


def _add_part(out: KernelText, statement: Fold) -> None:
    """Writes the addition of partial sums to their totals."""
    with out.over(_kept(out, statement), around=1) as variables:
        part = summand(out, statement, variables)
        out.line(f"{out.layout.at(statement.tile, variables)} += {part};")
        out.line(f"{part} = 0;")


def _kept(out: KernelText, statement: Fold) -> list[Span]:
    return [s for s in out.layout.order(statement.operand) if s != statement.span]


def _start_fold(out: KernelText, statement: Fold) -> None:
    layout = out.layout
    with out.over(_kept(out, statement)) as variables:
        identity = number(statement.combiner.identity[0], statement.tile.dtype)
        out.line(f"{layout.at(statement.tile, variables)} = {identity};")
        if layout.part_name(statement) is not None:
            out.line(f"{summand(out, statement, variables)} = 0;")


def summand(out: KernelText, statement: Fold | Contract, variables: Mapping[Span, str]) -> str:
    """An element of a sum, or of its partial sum."""
    layout = out.layout
    total = layout.at(statement.tile, variables)
    return (layout.part_name(statement) or layout.name(statement.tile)) + total[total.index("[") :]


@contextmanager
def summed(
    out: KernelText, order: Sequence[Span], statement: Fold | Contract | None
) -> Iterator[dict[Span, str]]:
    """Loops over elements that are summed; a long sum is made of partial sums."""
    layout = out.layout
    if statement is None or layout.part_name(statement) is None:
        along = statement is not None and statement.span == order[-1]
        with out.over(order, simd="" if along else "simd") as variables:
            yield variables
        return
    at = order.index(statement.span) + 1
    with out.over(order[:at], simd="") as outer:
        with out.over(order[at:], around=at) as inner:
            yield outer | inner
        i, length = outer[statement.span], layout.length(statement.span)
        with (
            out.braces(f"if ({i} % {PART} == {PART - 1} || {i} + 1 == {length})"),
            out.over(order[at:], around=at) as inner,
        ):
            part = summand(out, statement, outer | inner)
            out.line(f"{layout.at(statement.tile, outer | inner)} += {part};")
            out.line(f"{part} = 0;")


def _folded(out: KernelText, statement: Fold, variables: Mapping[Span, str], value: str) -> str:
    """The statement that combines one more element."""
    total, expr = summand(out, statement, variables), statement.combiner.combine[0]
    made = out.writer.combined(expr, [total, value], statement.tile.dtype)
    return f"{total} = {bare(made)};"
