"""Contractions as C: calls of the micro-kernel, products with few rows, or plain loops."""

from collections.abc import Mapping

from blockbuster_fusion.nest.analysis.few_rows import FEW, FewRows
from blockbuster_fusion.nest.nest import Contract, Span, Tile
from blockbuster_fusion.printers.c.dot_text import write_copies, write_dot
from blockbuster_fusion.printers.c.kernel_text import KernelText
from blockbuster_fusion.printers.c.lanes import ContractionPlan
from blockbuster_fusion.printers.c.reductions import summand, summed
from blockbuster_fusion.printers.operators import C_STORED


def write_contract(out: KernelText, statement: Contract, *, fresh: bool = False) -> None:
    layout = out.layout
    write_copies(out, statement)
    few_rows = layout.few_rows.get(statement)
    if few_rows is not None:
        _write_few_rows(out, statement, few_rows, fresh=fresh)
        return
    plan = layout.contraction(statement)
    if plan is None:
        _contract_plainly(out, statement)
        return
    spans = (*statement.tile.spans, *plan.broadcast.spans, *plan.vectors.spans)
    used = {statement.span, plan.columns, plan.rows}
    with out.over([s for s in dict.fromkeys(spans) if s not in used], simd="") as variables:
        write = write_dot if statement in layout.dots.operands else _call_micro_kernel
        write(out, statement, plan, variables, fresh=fresh)


def _call_micro_kernel(
    out: KernelText,
    statement: Contract,
    plan: ContractionPlan,
    variables: Mapping[Span, str],
    *,
    fresh: bool,
) -> None:
    """Writes the call; if there may be few columns, these are few rows of the other product."""
    layout, tile, span = out.layout, statement.tile, statement.span
    rows, columns, broadcast, vectors = plan.rows, plan.columns, plan.broadcast, plan.vectors
    held, last = layout.held(tile), layout.turned_name(statement)
    out.needs.add(("contract", held))
    block, deep = layout.moved(vectors, variables), layout.step(vectors, span)
    high, wide, length = _length(out, rows), layout.length(columns), layout.length(span)
    if last is not None:
        out.needs.add(("load", held, held))
        room = layout.row(columns.dim, held)
        steps = f"{deep}, {layout.step(vectors, columns)}"
        out.line(f"load_{held}_{held}({last}, {room}, {block}, {steps}, {length}, {wide});")
        block, deep = last, room
    left = _operand(out, broadcast, variables, rows, span)
    made = _operand(out, tile, variables, rows)
    lengths = f"{high}, {wide}, {length}"
    call = f"contract_{held}({int(fresh)}, {lengths}, {left}, {block}, {deep}, {made});"
    step = layout.step(broadcast, span)
    if layout.can_be_few(columns) and (step == "1" or broadcast in layout.borrowed):
        out.needs.add(("few_rows", held, held))
        made = _operand(out, tile, variables, columns, rows)
        operands = f"{block}, 1, {deep}, {left}, {made}"
        out.line(f"if ({wide} <= {FEW} && {step} == 1)")
        out.line(f"    few_rows_{held}_{held}({int(fresh)}, {wide}, {high}, {length}, {operands});")
        call = f"else {call}"
    out.line(call)


def _write_few_rows(out: KernelText, statement: Contract, roles: FewRows, *, fresh: bool) -> None:
    """Writes the product of few rows with many; axes that are neither get loops."""
    layout, tile, span = out.layout, statement.tile, statement.span
    place, held = layout.borrowed.get(roles.many), layout.held(tile)
    stored = held if place is None else C_STORED[place.buffer.dtype]
    out.needs.add(("few_rows", stored, held))
    used = {span, roles.columns, roles.rows}
    spans = dict.fromkeys((*tile.spans, *roles.few.spans, *roles.many.spans))
    with out.over([s for s in spans if s not in used], simd="") as variables:
        lengths = ", ".join(_length(out, s) for s in (roles.rows, roles.columns, span))
        few = _operand(out, roles.few, variables, roles.rows, span)
        many = _operand(out, roles.many, variables, roles.columns, span)
        made = _operand(out, tile, variables, roles.rows, roles.columns)
        call = f"few_rows_{stored}_{held}({int(fresh)}, {lengths}, {few}, {many}, {made});"
        if stored == "bfloat16" and statement in layout.dots.few_rows:
            out.needs.add(("few_dots", "float"))
            many = _operand(out, roles.many, variables, roles.columns)
            out.line(f"if ({layout.step(roles.many, span)} == 1)")
            out.line(f"    few_dots_float({int(fresh)}, {lengths}, {few}, {many}, {made});")
            call = f"else {call}"
        out.line(call)


def _length(out: KernelText, span: Span | None) -> str:
    return "1" if span is None else out.layout.length(span)


def _operand(out: KernelText, tile: Tile, variables: Mapping[Span, str], *axes: Span | None) -> str:
    """The address of a tile, and its strides along some axes."""
    steps = ("0" if axis is None else out.layout.step(tile, axis) for axis in axes)
    return ", ".join([out.layout.moved(tile, variables), *steps])


def _contract_plainly(out: KernelText, statement: Contract) -> None:
    """Writes a contraction as plain loops: for vectors, batch axes and integers."""
    layout = out.layout
    order, sides = layout.order(statement.tile), (statement.left, statement.right)
    held = {layout.held(t) for t in (*sides, statement.tile)}
    if not order and held in ({"float"}, {"double"}):
        (kind,) = held
        out.needs.add(("sum", kind))
        rows = (f"{layout.name(t)}, {layout.step(t, statement.span)}" for t in sides)
        products = f"dot_{kind}({layout.length(statement.span)}, {', '.join(rows)})"
        out.line(f"{layout.name(statement.tile)}[0] += {products};")
        return
    if layout.part_name(statement) is not None:
        with out.over(order) as variables:
            out.line(f"{summand(out, statement, variables)} = 0;")
    with summed(out, [statement.span, *order], statement) as variables:
        left, right = (layout.at(t, variables) for t in sides)
        out.line(f"{summand(out, statement, variables)} += {left} * {right};")
