"""Loops over blocks as C, and the windows of blocks that they visit."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from blockbuster_fusion.ir.expr import Expr
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.nest import UNSEEN, For, Tile, Window
from blockbuster_fusion.printers.c.expressions import number
from blockbuster_fusion.printers.c.kernel_text import KernelText


@contextmanager
def looping(out: KernelText, loop: For) -> Iterator[None]:
    """The loop over the blocks of a dim; its body is written within the context."""
    layout = out.layout
    index, dim = loop.index, loop.index.dim
    first, last = str(loop.first), layout.count(dim)
    name = layout.name(index)
    if loop.share is not None:
        chunk = f"BLOCKS({last}, {loop.share.parts})"
        share = f"{layout.name(loop.share.index)} * {chunk}"
        begin, end = (layout.id((w, index), f"{name}_{w}") for w in ("first", "last"))
        out.line(f"const int64_t {begin} = MAX({first}, {share});")
        out.line(f"const int64_t {end} = MIN({last}, {share} + {chunk});")
        first, last = begin, end
    beyond: AbstractContextManager[None] = nullcontext()
    if loop.window is not None and loop.window.seen is None:
        first, last = _window(out, loop, loop.window, first, last)
    elif loop.window is not None:
        begin, end = _seen_window(out, loop, loop.window, first, last)
        if loop.window.seen:
            beyond = _visits(out, loop, loop.window.seen, (first, begin, end, last))
            begin, end = (layout.id((w, index), f"{name}_{w}") for w in ("from", "to"))
        first, last = begin, end
    with beyond, out.braces(f"for (int64_t {name} = {first}; {name} < {last}; {name}++)"):
        out.line_length(index)
        yield


@contextmanager
def _visits(
    out: KernelText, loop: For, seen: Sequence[Tile], ends: Sequence[str]
) -> Iterator[None]:
    """Visits the blocks of a window; if a row saw nothing there, also those before and after."""
    layout = out.layout
    name = layout.name(loop.index)
    first, begin, end, last = ends
    at, start, stop, unseen = (
        layout.id((word, loop.index), f"{name}_{word}") for word in ("pass", "from", "to", "blind")
    )
    with out.braces(f"for (int {at} = 0; {at} < 3; {at}++)"):
        with out.braces(f"if ({at} == 1)"):
            out.line(f"int64_t {unseen} = 0;")
            for tile in seen:
                with out.over(layout.order(tile), simd=f"simd reduction(+:{unseen})") as where:
                    above = f"{layout.at(tile, where)} > {number(UNSEEN, tile.dtype)}"
                    out.line(f"{unseen} += !({above});")
            out.line(f"if ({unseen} == 0) break;")
        for made, before, within, after in (
            (start, first, begin, end),
            (stop, begin, end, last),
        ):
            choice = f"{at} == 0 ? {within} : {at} == 1 ? {before} : {after}"
            out.line(f"const int64_t {made} = {choice};")
        yield


def _seen_window(
    out: KernelText, loop: For, window: Window, first: str, last: str
) -> tuple[str, str]:
    """The range of blocks that some row sees, even if another row sees none."""
    layout = out.layout
    index, block = loop.index, layout.block(loop.index.dim)
    begin, end = (layout.id((w, index), f"{layout.name(index)}_{w}") for w in ("low", "high"))
    low, high = (None if e is None else _edge(out, e) for e in (window.low, window.high))
    if window.rows is not None:
        top = layout.start(window.rows)
        low = low and f"{top} + {low}"
        high = high and f"{top} + {layout.length(window.rows)} - 1 + {high}"
    extent = layout.extent(loop.index.dim.axis)
    below = f"MAX(0, MIN({extent}, {low})) / {block}" if low else first
    above = f"BLOCKS(MAX(0, MIN({extent} - 1, {high}) + 1), {block})" if high else last
    out.line(f"const int64_t {begin} = MIN({last}, MAX({first}, {below}));")
    out.line(f"const int64_t {end} = MAX({begin}, MIN({last}, {above}));")
    return begin, end


def _window(out: KernelText, loop: For, window: Window, first: str, last: str) -> tuple[str, str]:
    """The range of blocks that some row of a block sees; all blocks if a row sees none."""
    layout = out.layout
    assert window.rows is not None
    index, block = loop.index, layout.block(loop.index.dim)
    begin, end = (layout.id((w, index), f"{layout.name(index)}_{w}") for w in ("low", "high"))
    extent = layout.extent(loop.index.dim.axis)
    top = layout.start(window.rows)
    bottom = f"{top} + {layout.length(window.rows)} - 1"
    low, high = (None if e is None else _edge(out, e) for e in (window.low, window.high))
    out.line(f"int64_t {begin} = {first}, {end} = {last};")
    unseen = []
    if low is not None:
        unseen.append(f"{bottom} + {low} > {extent} - 1")
    if high is not None:
        unseen.append(f"{top} + {high} < 0")
    if low is not None and high is not None:
        unseen.append(f"{low} > {high}")
    with out.braces(f"if (!({' || '.join(unseen)}))"):
        if low is not None:
            out.line(f"{begin} = MAX({begin}, MAX(0, {top} + {low}) / {block});")
        if high is not None:
            reach = f"({bottom} + {high}) / {block} + 1"
            out.line(f"{end} = MIN({end}, {reach});")
    return begin, end


def _edge(out: KernelText, edge: Expr | Tile) -> str:
    layout = out.layout
    return (
        f"{layout.name(edge)}[0]"
        if isinstance(edge, Tile)
        else out.writer.inline(edge, DType.int64)
    )
