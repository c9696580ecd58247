"""Contractions as Triton: dots, or products that are summed."""

from collections.abc import Sequence

from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.nest import Contract, Span, Tile
from blockbuster_fusion.printers.operators import TRITON_TYPES
from blockbuster_fusion.printers.triton.dots import is_dot, product_of
from blockbuster_fusion.printers.triton.layout import aligned
from blockbuster_fusion.printers.triton.values import TileValues


def contract(values: TileValues, statement: Contract, fresh: bool) -> str:
    tile = statement.tile
    if is_dot(statement):
        return f"{tile} = {_dot(values, statement, fresh)}"
    left, right = (
        values.guarded(values.value(side), side.spans, statement.span, "0.0")
        if guard
        else values.value(side)
        for side, guard in zip(
            (statement.left, statement.right), statement.tail_masked, strict=True
        )
    )
    product = product_of(statement)
    if product.is_wide and not product.columns:
        return _merged_sum(values, statement, (left, right), fresh)
    sides = (statement.left.spans, statement.right.spans)
    wide = max(sides, key=len)
    spans = wide if {*sides[0], *sides[1]} == {*wide} else (*tile.spans, statement.span)
    products = f"{aligned(left, sides[0], spans)} * {aligned(right, sides[1], spans)}"
    made = f"tl.sum({products}, {spans.index(statement.span)})"
    made = aligned(made, tuple(s for s in spans if s != statement.span), tile.spans)
    return f"{tile} = {made}" if fresh else f"{tile} += {made}"


def _dot(values: TileValues, statement: Contract, fresh: bool) -> str:
    (dtype, precision), tile = values.dots.mode(statement), statement.tile
    guards = dict(zip((statement.left, statement.right), statement.tail_masked, strict=True))
    product, summed = product_of(statement), (statement.span,)
    batch, rows, columns = product.batch, product.rows, product.columns
    groups = ((batch, rows, summed), (batch, summed, columns))
    arguments = [
        _merged(
            values, _dotted(values, side, dtype, guards[side], statement.span), side.spans, group
        )
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
    made = _parted(values, made, (*batch, *rows, *columns), tile)
    return made if fresh else f"{tile} + {made}"


def _merged_sum(values: TileValues, statement: Contract, texts: Sequence[str], fresh: bool) -> str:
    """A wide product in which one operand has no axes of its own, with merged axes."""
    product, tile, span = product_of(statement), statement.tile, statement.span
    by_side = dict(zip((statement.left, statement.right), texts, strict=True))
    batch, rows = product.batch, product.rows
    groups = [g for g in (batch, rows) if g]
    first = _merged(values, by_side[product.first], product.first.spans, (*groups, (span,)))
    second = _merged(values, by_side[product.second], product.second.spans, (batch, (span,)))
    if rows:
        second += "[:, None, :]" if batch else "[None, :]"
    made = f"tl.sum({first} * {second}, {len(groups)})"
    made = _parted(values, made, (*batch, *rows), tile)
    return f"{tile} = {made}" if fresh else f"{tile} += {made}"


def _merged(
    values: TileValues, text: str, spans: Sequence[Span], groups: Sequence[tuple[Span, ...]]
) -> str:
    """A tile with the axes of each group merged into one."""
    variables = values.variables
    groups = [group for group in groups if group]
    made = aligned(text, spans, [span for group in groups for span in group])
    if all(len(group) == 1 for group in groups):
        return made
    lengths = [" * ".join(variables.block(s.dim) for s in group) for group in groups]
    return f"tl.reshape({made}, [{', '.join(lengths)}])"


def _parted(values: TileValues, text: str, spans: Sequence[Span], tile: Tile) -> str:
    """A product with its merged axes split into those of a tile."""
    variables = values.variables
    lengths = ", ".join(variables.block(span.dim) for span in spans)
    return aligned(f"tl.reshape({text}, [{lengths}])", spans, tile.spans)


def _dotted(values: TileValues, tile: Tile, dtype: DType, guard: bool, span: Span) -> str:
    """An operand of a dot, in the dtype of the dot."""
    own = values.dots.narrow.get(tile, tile.dtype)
    text = values.aliases.get(tile, tile.name)
    if guard:
        text = values.guarded(text, tile.spans, span, "0.0")
    return text if own is dtype else f"{text}.to({TRITON_TYPES[dtype]})"
