"""Loads, lookups and stores as Triton."""

from collections.abc import Sequence

from blockbuster_fusion.nest.nest import Access, Along, Load, Lookup, Span, Store, Tile
from blockbuster_fusion.printers.operators import TRITON_TYPES
from blockbuster_fusion.printers.triton.expressions import number_text
from blockbuster_fusion.printers.triton.layout import aligned, position
from blockbuster_fusion.printers.triton.values import TileValues

WIDTH = 92
TWICE = "# loaded once more: Triton 3.6 miscompiles a tile that goes both to a dot and elsewhere"


def load(values: TileValues, statement: Load | Lookup) -> list[str]:
    tile, source = statement.tile, statement.source
    lookup = statement if isinstance(statement, Lookup) else None
    narrow = tile in values.dots.narrow
    wide = "" if narrow or tile.dtype is source.buffer.dtype else f".to({TRITON_TYPES[tile.dtype]})"
    spans = _spans(source) if lookup is None else tile.spans
    place, mask = _pointers(values, source, tile, lookup), _mask(values, spans, tile, lookup)
    if mask:
        beyond = statement.beyond if isinstance(statement, Load) else 0.0
        is_float = source.buffer.dtype.is_float
        mask.append(f"other={number_text(beyond)}" if is_float else "other=0")
    made = _call(f"{tile} = tl.load", place, mask, wide)
    again = values.dots.again.get(tile)
    if again is not None:
        policy = 'eviction_policy="evict_last"'
        made += [TWICE, *_call(f"{again} = tl.load", place, [*mask, policy], wide)]
    return made if source.buffer not in values.described else _described(values, statement, made)


def _described(values: TileValues, statement: Load | Lookup, by_pointers: list[str]) -> list[str]:
    """The load of a block by a descriptor, or by pointers if the launch gives these."""
    variables, source, tile = values.variables, statement.source, statement.tile
    given = variables.use(variables.names.pointers[source.buffer])
    starts = ", ".join(map(variables.first, source.spans))
    block = aligned(f"{given}.load([{starts}])", source.spans, tile.spans)
    return [
        f"if isinstance({given}, tl.tensor_descriptor):",
        f"    {tile} = {block}",
        "else:",
        *(f"    {line}" for line in by_pointers),
    ]


def store(values: TileValues, statement: Store) -> list[str]:
    target, tile = statement.target, statement.tile
    value = values.value(tile)
    if tile.dtype is not target.buffer.dtype:
        kept = values.dots.narrow.get(tile) is target.buffer.dtype
        value = tile.name if kept else f"{value}.to({TRITON_TYPES[target.buffer.dtype]})"
    placed = None if statement.places is None else statement
    spans = _spans(target) if placed is None else tile.spans
    place = _pointers(values, target, tile, placed)
    rest = [value, *_mask(values, spans, tile, placed)]
    if statement.atomic:
        return _call("tl.atomic_add", place, [*rest, 'sem="relaxed"'])
    made = _call("tl.store", place, rest)
    return made if target.buffer not in values.described else _stored(values, statement, made)


def _stored(values: TileValues, statement: Store, by_pointers: list[str]) -> list[str]:
    """The store of a block by a descriptor, or by pointers if the launch gives these."""
    variables, target, tile = values.variables, statement.target, statement.tile
    variables.expr.helpers.add("store_halves")
    given = variables.use(variables.names.pointers[target.buffer])
    block = aligned(values.value(tile), tile.spans, target.spans)
    row, column = map(variables.first, target.spans)
    return [
        f"if isinstance({given}, tl.tensor_descriptor):",
        f"    store_halves({given}, {block}, {row}, {column})",
        "else:",
        *(f"    {line}" for line in by_pointers),
    ]


def _pointers(
    values: TileValues, access: Access, tile: Tile, placed: Lookup | Store | None = None
) -> tuple[str, str]:
    """Pointers to the elements of a block: its first element, and the offsets from there."""
    variables = values.variables
    buffer = access.buffer
    start = [variables.use(variables.names.pointers[buffer])]
    if buffer in variables.names.copies:
        start.append(f"tl.cast(pid, tl.int64) * {variables.use(variables.names.copies[buffer])}")
    inner: list[str] = []
    axes = zip(buffer.axes, access.spans, variables.names.strides[buffer], strict=True)
    for number, (axis, span, stride) in enumerate(axes):
        if placed is not None and placed.places is not None and number == placed.axis:
            at = f"tl.cast({values.value(placed.places)}, tl.int64)"
            at = aligned(at, placed.places.spans, tile.spans)
            inner.append(f"{at} * {variables.use(stride)}")
            continue
        begin = variables.number(span) if axis.along is Along.BLOCKS else variables.start(span)
        if begin is not None and axis.along is not Along.BLOCK:
            start.append(f"{begin} * {variables.use(stride)}")
        if axis.along is not Along.BLOCKS and span.dim.packed:
            at = f"{variables.offset(span.dim)}{position(tile.spans, span)}"
            inner.append(f"{at} * {variables.use(stride)}")
    way = " + ".join(inner)
    return " + ".join(start), f"({way})" if len(inner) > 1 else way


def _mask(
    values: TileValues, spans: Sequence[Span], tile: Tile, placed: Lookup | Store | None = None
) -> list[str]:
    """The mask of a load or store: within some axes, and within the one that places are on."""
    variables = values.variables
    masks = [f"{variables.inside(span)}{position(tile.spans, span)}" for span in spans]
    if placed is not None and placed.places is not None:
        variables.expr.helpers.add("on_axis")
        found = f"on_axis({values.value(placed.places)}, {variables.extent(placed.along)})"
        masks.append(aligned(found, placed.places.spans, tile.spans))
    return [f"mask={' & '.join(masks)}"] if masks else []


def _spans(access: Access) -> list[Span]:
    """The spans of an access along which its tile has an axis that may end within a block."""
    pairs = zip(access.buffer.axes, access.spans, strict=True)
    whole = (Along.BLOCKS, Along.PADDED)
    return [s for axis, s in pairs if axis.along not in whole and s.dim.packed]


def _call(
    function: str, place: tuple[str, str], arguments: Sequence[str], end: str = ""
) -> list[str]:
    """A call with pointers, on one line or on several."""
    line = f"{function}({', '.join([' + '.join(p for p in place if p), *arguments])}){end}"
    if len(line) <= WIDTH:
        return [line]
    start, way = place
    first = [f"    {start}", f"    + {way},"] if way else [f"    {start},"]
    return [f"{function}(", *first, *(f"    {a}," for a in arguments), f"){end}"]
