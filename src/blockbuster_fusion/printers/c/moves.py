"""Loads, lookups and stores as C: blocks move between buffers and tiles."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from blockbuster_fusion.nest.nest import Access, Lookup, Span, Store, Tile
from blockbuster_fusion.printers.c.dot_text import write_pairs
from blockbuster_fusion.printers.c.expressions import bare
from blockbuster_fusion.printers.c.kernel_text import KernelText
from blockbuster_fusion.printers.c.tile_facts import factor
from blockbuster_fusion.printers.operators import C_STORED


def write_load(out: KernelText, tile: Tile, source: Access) -> None:
    layout = out.layout
    if layout.is_view(tile):
        _write_view(out, tile, source)
        return
    if tile in layout.dots.loaded:
        write_pairs(out, layout.dots.loaded[tile], source)
        return
    stored, held = C_STORED[source.buffer.dtype], layout.held(tile)
    order = layout.order(tile)
    if tile in layout.borrowed:
        out.line(f"const {stored} *const {layout.name(tile)} = {layout.address(source)};")
        return
    if not order:
        value = f"*({layout.address(source)})"
        value = f"widened_bfloat16({value})" if stored == "bfloat16" else value
        out.line(f"{layout.name(tile)}[0] = {bare(value)};")
        return
    out.needs.add(("load", stored, held))
    with _rows(out, tile, source) as (there, here, sizes, steps):
        rows, columns = steps
        to = f"{here}, {rows[0]}, {there}, {rows[1]}, {columns}"
        out.line(f"load_{stored}_{held}({to}, {sizes});")


def _write_view(out: KernelText, tile: Tile, source: Access) -> None:
    """Writes where a block lies; one whose rows are not contiguous is copied first."""
    layout, stored, name = out.layout, C_STORED[source.buffer.dtype], out.layout.name(tile)
    order = layout.order(tile)
    if not order:
        out.line(f"const {stored} *const {name} = {layout.address(source)};")
        return
    row = layout.row_step(source, tile)
    out.line(f"const {stored} *{name} = {layout.address(source)};")
    steps = {span: layout.step(tile, span) for span in order[:-1]}
    for span, step in steps.items():
        out.line(f"int64_t {step} = {layout.buffer_step(source, span)};")
    if row == "1":
        return
    out.needs.add(("load", stored, stored))
    copy = layout.copy_name(tile)
    with out.braces(f"if ({row} != 1)"):
        with copied(out, tile, source, copy) as (there, here, sizes, (rows, columns)):
            to = f"{here}, {rows[0]}, {there}, {rows[1]}, {columns}"
            out.line(f"load_{stored}_{stored}({to}, {sizes});")
        out.line(f"{name} = {copy};")
        for at, step in enumerate(steps.values(), 1):
            out.line(f"{step} = {layout.room(tile, at, stored)};")


def write_lookup(out: KernelText, statement: Lookup) -> None:
    """Writes a lookup by rows of the table, or by bands if the vectors run along the indices.

    Nothing is read at an index out of range; the return value of the kernel tells of it.
    """
    layout = out.layout
    tile, source, places = statement.tile, statement.source, statement.places
    stored, held = C_STORED[source.buffer.dtype], layout.held(tile)
    stride = layout.stride(source.buffer, source.buffer.axes[statement.axis])
    length = layout.extent(statement.along)
    order = layout.order(tile)
    out.needs.add(("places",))
    if not order:
        _write_scalar_lookup(out, statement, stride)
        return
    last = order[-1]
    inner = [s for s in order[:-1] if s not in places.spans][-1:]
    outer = [s for s in order[:-1] if s not in inner]

    def step(span: Span) -> str:
        return layout.buffer_step(source, span) if span in source.spans else "0"

    with out.over(outer, simd="") as variables:
        here = layout.moved(tile, variables)
        moved = [f"{v} * {step(s)}" for s, v in variables.items() if s in source.spans]
        there = " + ".join([layout.address(source), *moved])
        down, rows, high = "0", "0", "1"
        if inner:
            down, rows, high = layout.step(tile, inner[0]), step(inner[0]), layout.length(inner[0])
        sizes = f"{rows}, {step(last)}, {high}, {layout.length(last)}"
        if last in places.spans:
            out.needs.add(("take", stored, held, layout.held(places)))
            at = f"{layout.moved(places, variables)}, {stride}"
            name = f"take_{stored}_{held}_{layout.held(places)}"
            out.line(f"{name}({here}, {down}, {there}, {length}, {at}, {sizes}, &astray);")
        else:
            out.needs.add(("load", stored, held))
            place = layout.at(places, variables)
            row = f"{there} + {place} * {stride}"
            out.line(f"if (on_axis({place}, {length}, &astray))")
            out.line(f"    load_{stored}_{held}({here}, {down}, {row}, {sizes});")


def _write_scalar_lookup(out: KernelText, statement: Lookup, stride: str) -> None:
    layout, source = out.layout, statement.source
    index = f"{layout.name(statement.places)}[0]"
    value = f"*({layout.address(source)} + {index} * {stride})"
    if C_STORED[source.buffer.dtype] == "bfloat16":
        value = f"widened_bfloat16({value})"
    out.line(f"if (on_axis({index}, {layout.extent(statement.along)}, &astray))")
    out.line(f"    {layout.name(statement.tile)}[0] = {bare(value)};")


def write_store(out: KernelText, statement: Store) -> None:
    layout = out.layout
    tile, target = statement.tile, statement.target
    stored, held = C_STORED[target.buffer.dtype], layout.held(tile)
    if statement.places is not None:
        _write_scatter(out, statement, statement.places)
        return
    if statement.atomic:
        with out.over(layout.order(tile), simd="") as variables:
            terms = [f"{variables[s]} * {layout.buffer_step(target, s)}" for s in tile.spans]
            place = " + ".join([layout.address(target), *terms])
            out.line("#pragma omp atomic")
            out.line(f"*({place}) += {layout.at(tile, variables)};")
        return
    if not tile.spans:
        value = layout.at(tile, {})
        value = f"narrowed_bfloat16({bare(value)})" if stored == "bfloat16" else value
        out.line(f"*({layout.address(target)}) = {bare(value)};")
        return
    out.needs.add(("store", stored, held))
    with _rows(out, tile, target) as (there, here, sizes, steps):
        rows, columns = steps
        to = f"{there}, {rows[1]}, {columns}, {here}, {rows[0]}"
        out.line(f"store_{stored}_{held}({to}, {sizes});")


def _write_scatter(out: KernelText, statement: Store, places: Tile) -> None:
    """Writes a store at places that are data, row by row, or by elements along the places.

    Nothing is stored at a place beyond the axis; the return value of the kernel tells of it.
    """
    layout = out.layout
    tile, target = statement.tile, statement.target
    stored, held = C_STORED[target.buffer.dtype], layout.held(tile)
    stride = layout.stride(target.buffer, target.buffer.axes[statement.axis])
    order = layout.order(tile)
    last = [s for s in order[-1:] if s not in places.spans]
    out.needs.add(("places",))
    out.needs.add(("store", stored, held))
    with out.over(order[: len(order) - len(last)], simd="") as variables:
        place, here = layout.at(places, variables), layout.moved(tile, variables)
        moved = [
            f"{v} * {layout.buffer_step(target, s)}"
            for s, v in variables.items()
            if s in target.spans
        ]
        there = " + ".join([layout.address(target), *moved, f"{place} * {stride}"])
        columns = layout.buffer_step(target, last[0]) if last else "1"
        sizes = f"1, {layout.length(last[0]) if last else '1'}"
        out.line(f"if (on_axis({place}, {layout.extent(statement.along)}, &astray))")
        out.line(f"    store_{stored}_{held}({there}, 0, {columns}, {here}, 0, {sizes});")


Rows = tuple[str, str, str, tuple[tuple[str, str], str]]
"""Addresses, lengths and strides of a block and a tile of its shape."""


@contextmanager
def _rows(out: KernelText, tile: Tile, access: Access) -> Iterator[Rows]:
    """Loops over all but the last two axes of a tile."""
    layout = out.layout

    def step(span: Span) -> str:
        return layout.step(tile, span)

    with _pairs(out, tile, access, layout.name(tile), step) as found:
        yield found


@contextmanager
def copied(out: KernelText, tile: Tile, access: Access, copy: str) -> Iterator[Rows]:
    """Loops over all but the last two axes of a copy of a block, of the buffer's own type."""
    layout, stored = out.layout, C_STORED[access.buffer.dtype]
    order = layout.order(tile)

    def step(span: Span) -> str:
        return layout.room(tile, order.index(span) + 1, stored)

    with _pairs(out, tile, access, copy, step) as found:
        yield found


@contextmanager
def _pairs(
    out: KernelText, tile: Tile, access: Access, name: str, step: Callable[[Span], str]
) -> Iterator[Rows]:
    """Loops over all but the last two axes of a block in memory and one in a tile or a copy."""
    layout = out.layout
    *outer, last = layout.order(tile)
    inner = outer[-1:]
    with out.over(outer[:-1], simd="") as variables:
        there = " + ".join(
            [
                layout.address(access),
                *(f"{v} * {layout.buffer_step(access, s)}" for s, v in variables.items()),
            ]
        )
        here = " + ".join([name, *(f"{v} * {factor(step(s))}" for s, v in variables.items())])
        rows = ("0", "0")
        if inner:
            rows = (step(inner[0]), layout.buffer_step(access, inner[0]))
        high = layout.length(inner[0]) if inner else "1"
        sizes = f"{high}, {layout.length(last)}"
        yield there, here, sizes, (rows, layout.buffer_step(access, last))
