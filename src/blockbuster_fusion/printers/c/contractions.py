"""Contractions as C: calls of the micro-kernel, or plain loops."""

from blockbuster_fusion.nest.analysis.few_rows import FewRows
from blockbuster_fusion.nest.nest import Contract, Span, Tile
from blockbuster_fusion.printers.c.kernel_text import KernelText
from blockbuster_fusion.printers.c.reductions import summand, summed
from blockbuster_fusion.printers.operators import C_STORED


def write_contract(out: KernelText, statement: Contract, *, fresh: bool = False) -> None:
    layout = out.layout
    if statement in layout.few_rows:
        _multiply_few_rows(out, statement, layout.few_rows[statement], fresh=fresh)
        return
    plan = layout.contraction(statement)
    if plan is None:
        _contract_plainly(out, statement)
        return
    tile, span = statement.tile, statement.span
    rows, columns, broadcast, vectors = plan.rows, plan.columns, plan.broadcast, plan.vectors
    held, last = layout.held(tile), layout.turned_name(statement)
    out.needs.add(("contract", held))
    used = {span, columns, rows}
    spans = (*tile.spans, *broadcast.spans, *vectors.spans)
    others = list(dict.fromkeys(s for s in spans if s not in used))
    with out.over(others, simd="") as variables:
        if last is not None:
            out.needs.add(("load", held, held))
            room = layout.row(columns.dim, held)
            steps = f"{layout.step(vectors, span)}, {layout.step(vectors, columns)}"
            block = layout.moved(vectors, variables)
            lengths = f"{layout.length(span)}, {layout.length(columns)}"
            out.line(f"load_{held}_{held}({last}, {room}, {block}, {steps}, {lengths});")
            right = f"{last}, {room}"
        else:
            right = f"{layout.moved(vectors, variables)}, {layout.step(vectors, span)}"
        high = "1" if rows is None else layout.length(rows)
        down = "0" if rows is None else layout.step(broadcast, rows)
        left = f"{layout.moved(broadcast, variables)}, {down}, {layout.step(broadcast, span)}"
        below = "0" if rows is None else layout.step(tile, rows)
        made = f"{layout.moved(tile, variables)}, {below}"
        lengths = f"{high}, {layout.length(columns)}, {layout.length(span)}"
        begin = int(fresh)
        out.line(f"contract_{held}({begin}, {lengths}, {left}, {right}, {made});")


def _multiply_few_rows(out: KernelText, statement: Contract, plan: FewRows, *, fresh: bool) -> None:
    """Writes the product of few rows with many; axes that are neither get loops."""
    layout = out.layout
    few, many, tile, span = plan.few, plan.many, statement.tile, statement.span
    rows, columns = plan.rows, plan.columns
    place = layout.borrowed.get(many)
    held = layout.held(tile)
    stored = held if place is None else C_STORED[place.buffer.dtype]
    out.needs.add(("few_rows", stored, held))
    used = {span, columns, rows}
    spans = (*tile.spans, *few.spans, *many.spans)
    with out.over([s for s in dict.fromkeys(spans) if s not in used], simd="") as variables:

        def operand(own: Tile, *axes: Span | None) -> str:
            steps = ("0" if axis is None else layout.step(own, axis) for axis in axes)
            return ", ".join([layout.moved(own, variables), *steps])

        high = "1" if rows is None else layout.length(rows)
        lengths = f"{high}, {layout.length(columns)}, {layout.length(span)}"
        operands = f"{operand(few, rows, span)}, {operand(many, columns, span)}"
        made = operand(tile, rows, columns)
        out.line(f"few_rows_{stored}_{held}({int(fresh)}, {lengths}, {operands}, {made});")


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
