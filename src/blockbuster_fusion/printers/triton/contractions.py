"""Contractions as Triton: dots, or products that are summed."""

from collections.abc import Sequence

from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.analysis.joined_products import JoinedProducts
from blockbuster_fusion.nest.analysis.matrix_products import is_dot, product_of
from blockbuster_fusion.nest.analysis.spread_sums import spread_over
from blockbuster_fusion.nest.nest import Contract, Span, Tile
from blockbuster_fusion.printers.operators import TRITON_TYPES
from blockbuster_fusion.printers.triton.layout import aligned
from blockbuster_fusion.printers.triton.values import TileValues


def contract(values: TileValues, statement: Contract, fresh: bool) -> str:
    tile = statement.tile
    if is_dot(statement):
        return f"{tile} = {_dot(values, statement, fresh)}"
    product = product_of(statement)
    if product.is_wide and not product.columns:
        return _merged_sum(values, statement, _guarded_sides(values, statement), fresh)
    made = _summed(statement, _products(values, statement))
    return f"{tile} = {made}" if fresh else f"{tile} += {made}"


def spread(values: TileValues, statement: Contract) -> str:
    """Adds products to the sums of a loop that are spread over a block."""
    return f"{values.variables.names.spread(statement.tile)} += {_products(values, statement)}"


def spread_begin(values: TileValues, statement: Contract) -> str:
    """Sums that are spread over a block, before a loop."""
    shape = ", ".join(values.variables.block(span.dim) for span in spread_over(statement))
    dtype = TRITON_TYPES[statement.tile.dtype]
    return f"{values.variables.names.spread(statement.tile)} = tl.zeros([{shape}], {dtype})"


def spread_end(values: TileValues, statement: Contract) -> str:
    """The sum of what is spread over a block, after a loop."""
    name = values.variables.names.spread(statement.tile)
    return f"{statement.tile} += {_summed(statement, name)}"


def _guarded_sides(values: TileValues, statement: Contract) -> tuple[str, str]:
    """Both operands, 0 beyond the end of the summed axis."""
    left, right = (
        values.guarded(values.value(side), side.spans, statement.span, "0.0")
        if guard
        else values.value(side)
        for side, guard in zip(
            (statement.left, statement.right), statement.tail_masked, strict=True
        )
    )
    return left, right


def _products(values: TileValues, statement: Contract) -> str:
    """The products of two blocks, before they are summed."""
    left, right = _guarded_sides(values, statement)
    spans = spread_over(statement)
    sides = ((left, statement.left.spans), (right, statement.right.spans))
    return " * ".join(aligned(text, own, spans) for text, own in sides)


def _summed(statement: Contract, products: str) -> str:
    """The sum of products, as a block of the result."""
    spans = spread_over(statement)
    made = f"tl.sum({products}, {spans.index(statement.span)})"
    left = tuple(s for s in spans if s != statement.span)
    return aligned(made, left, statement.tile.spans)


def _dot(values: TileValues, statement: Contract, fresh: bool) -> str:
    (dtype, precision), tile = values.dots.mode(statement), statement.tile
    guards = dict(zip((statement.left, statement.right), statement.tail_masked, strict=True))
    product, summed = product_of(statement), statement.summed
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


def joined_begin(values: TileValues, pair: JoinedProducts) -> str:
    """Two products side by side, before a loop."""
    first, _ = pair.products
    rows, columns = (values.variables.block(span.dim) for span in first.tile.spans)
    name, dtype = values.variables.names.joined(first.tile), TRITON_TYPES[first.tile.dtype]
    return f"{name} = tl.zeros([{rows}, 2 * {columns}], {dtype})"


def joined_dot(values: TileValues, pair: JoinedProducts) -> str:
    """Adds two products at a time."""
    (first, _), (load, _), variables = pair.products, pair.loads, values.variables
    product, (dtype, _) = product_of(first), values.dots.mode(first)
    guard = first.tail_masked[first.right is product.first]
    rows = _dotted(values, product.first, dtype, guard, first.span)
    rows = aligned(rows, product.first.spans, (*product.rows, first.span))
    name, given = variables.names.joined(first.tile), joined_operand(values, pair)
    starts = ", ".join(map(variables.first, load.source.spans))
    variables.expr.helpers.add("both_blocks")
    return f"{name} = tl.dot({rows}, tl.trans(both_blocks({given}, {starts})), {name})"


def joined_end(values: TileValues, pair: JoinedProducts) -> str:
    """The two products by themselves, after a loop."""
    first, second = (product.tile for product in pair.products)
    names, other = values.variables.names, pair.buffers[1]
    values.variables.expr.helpers.add("both_products")
    order = values.variables.use(names.pointers[other])
    return f"{first}, {second} = both_products({names.joined(first)}, {order})"


def joined_operand(values: TileValues, pair: JoinedProducts) -> str:
    """The parameter for the descriptor of both arrays; the other one tells which is first."""
    return values.variables.use(values.variables.names.pointers[pair.buffers[0]])


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
