"""Dots as C: operands in pairs, and calls of the micro-kernel for them."""

from collections.abc import Mapping
from functools import partial

from blockbuster_fusion.nest.nest import Access, Contract, Span, Statement, Tile
from blockbuster_fusion.printers.c.dots import Pairs
from blockbuster_fusion.printers.c.kernel_text import KernelText
from blockbuster_fusion.printers.c.lanes import ContractionPlan
from blockbuster_fusion.printers.c.prelude_dots import FEW_COLUMNS, PAIR
from blockbuster_fusion.printers.c.tile_facts import factor
from blockbuster_fusion.printers.operators import C_STORED


def write_copies(out: KernelText, statement: Statement) -> None:
    """Writes the copies in pairs of tiles that are made before a statement."""
    for pairs in out.layout.dots.copied.get(statement, ()):
        write_pairs(out, pairs)


def write_pairs(out: KernelText, pairs: Pairs, source: Access | None = None) -> None:
    """Writes the copy in pairs of a block of an array, or of a tile."""
    layout, tile = out.layout, pairs.tile
    stored, first, step = layout.held(tile), layout.name(tile), partial(layout.step, tile)
    if source is not None:
        stored, first = C_STORED[source.buffer.dtype], layout.address(source)
        step = partial(layout.buffer_step, source)
    out.needs.add(("pairs", stored))
    with out.over(pairs.outer, simd="") as variables:
        there = " + ".join([first, *(f"{v} * {factor(step(s))}" for s, v in variables.items())])
        to = f"{layout.pairs_at(pairs, variables)}, {layout.row(pairs.columns.dim, PAIR)}"
        lengths = f"{layout.length(pairs.span)}, {layout.length(pairs.columns)}"
        steps = f"{step(pairs.span)}, {step(pairs.columns)}"
        out.line(f"pairs_{stored}({to}, {there}, {steps}, {lengths});")


def write_dot(
    out: KernelText,
    statement: Contract,
    plan: ContractionPlan,
    variables: Mapping[Span, str],
    *,
    fresh: bool,
) -> None:
    """Writes the call of the micro-kernel; few columns are few rows of the other product."""
    layout, tile, pairs = out.layout, statement.tile, out.layout.dots.operands[statement]
    rows, columns, broadcast = plan.rows, plan.columns, plan.broadcast
    held, unit = layout.held(broadcast), layout.dots.unit
    out.needs.add(("contract_pairs", held, unit))

    def step(operand: Tile, axis: Span | None) -> str:
        return "0" if axis is None else layout.step(operand, axis)

    high, wide = "1" if rows is None else layout.length(rows), layout.length(columns)
    length, along = layout.length(statement.span), layout.step(broadcast, statement.span)
    left = f"{layout.moved(broadcast, variables)}, {step(broadcast, rows)}"
    right, row = layout.pairs_at(pairs, variables), layout.row(pairs.columns.dim, PAIR)
    made = f"{layout.moved(tile, variables)}"
    operands = f"{left}, {along}, {right}, {row}, {made}, {step(tile, rows)}"
    call = f"contract_pairs_{held}_{unit}({int(fresh)}, {high}, {wide}, {length}, {operands});"
    if held == "bfloat16" and layout.can_be_few(columns):
        out.needs.add(("few_dots", PAIR))
        steps = f"{step(tile, columns)}, {step(tile, rows)}"
        operands = f"{right}, 1, {row}, {left}, {made}, {steps}"
        out.line(f"if ({wide} <= {FEW_COLUMNS[unit]} && {along} == 1)")
        out.line(f"    few_dots_{PAIR}({int(fresh)}, {wide}, {high}, {length}, {operands});")
        call = f"else {call}"
    out.line(call)
