"""The blocks that a loop of a Triton kernel goes through."""

from collections.abc import Callable, Sequence

from blockbuster_fusion.ir.expr import Expr
from blockbuster_fusion.nest.nest import UNSEEN, Contract, For, Span, Tile, Window, walk
from blockbuster_fusion.printers.triton.values import TileValues


def loop_lines(loop: For, values: TileValues) -> tuple[list[str], list[str], str]:
    """The lines before the loop, the lines within its passes, and its range.

    A loop has passes if a row may have seen nothing in its window: then the blocks before and
    after the window are visited too.
    """
    of = _variables(loop, values)
    first, last = str(loop.first), values.variables.count(loop.index.dim)
    lines: list[str] = []
    inner: list[str] = []
    if loop.window is not None and loop.window.clear is not None:
        return _divided_lines(loop, loop.window, loop.window.clear, first, last, values)
    if loop.window is not None:
        lines = _window_lines(loop, loop.window, first, last, values)
        if loop.window.seen:
            lines.append(f"{of('end')} = {last}")
            inner = _pass_lines(of, loop.window.seen, first, values)
            first, last = of("from"), of("to")
        else:
            first, last = of("first"), of("last")
    share, bounds = _share_lines(loop, first, last, values)
    return (lines, [*inner, *share], bounds) if inner else ([*lines, *share], [], bounds)


def _divided_lines(
    loop: For, window: Window, clear: bool, first: str, last: str, values: TileValues
) -> tuple[list[str], list[str], str]:
    """The blocks of a window that every row sees whole; or the others, in the loop right after."""
    of, variables = _variables(loop, values), values.variables
    if not clear:
        return [], [], f"{of('clear')}, {of('last')}"
    assert window.rows is not None
    block, extent = variables.block(loop.index.dim), variables.extent(loop.index.dim.axis)
    start, _ = _row_edges(window.rows, values)
    seen = f"tl.maximum({start} + {_edge(window.high, values)} + 1, 0) // {block}"
    lines = _window_lines(loop, window, first, last, values)
    lines += [
        "# the blocks that all these rows see whole need no mask",
        f"{of('clear')} = tl.minimum({seen}, {extent} // {block})",
    ]
    return lines, [], f"{of('first')}, {of('clear')}"


def _variables(loop: For, values: TileValues) -> Callable[[str], str]:
    """The names of the variables of a loop, by their purpose."""
    name = values.variables.names.indices[loop.index]
    return lambda kind: values.variables.names.local(kind, name)


def _pass_lines(
    of: Callable[[str], str], seen: Sequence[Tile], first: str, values: TileValues
) -> list[str]:
    """The blocks of a pass: those of the window, then those before it, then those after it."""
    blind = " | ".join(f"({values.least(tile)} <= {UNSEEN})" for tile in seen)
    ends = {
        "from": (of("first"), first, of("last")),
        "to": (of("last"), of("first"), of("end")),
    }
    lines = [f"{of('blind')} = ({of('pass')} == 0) | {blind}"]
    for made, (own, before, after) in ends.items():
        other = f"tl.where({of('pass')} == 1, {before}, {after})"
        lines.append(f"{of(made)} = tl.where({of('pass')} == 0, {own}, {other})")
    return [*lines, f"{of('to')} = tl.where({of('blind')}, {of('to')}, {of('from')})"]


def _share_lines(loop: For, first: str, last: str, values: TileValues) -> tuple[list[str], str]:
    """The lines before a loop that programs share, and its range: blocks in turns, or in a row."""
    of = _variables(loop, values)
    lines: list[str] = []
    if loop.share is not None:
        part = values.variables.names.indices[loop.share.index]
        if is_interleaved(loop):
            start = part if first == "0" else f"{first} + {part}"
            return lines, f"{start}, {last}, {loop.share.parts}"
        whole = last if first == "0" else f"{last} - {first}"
        lines.append(f"{of('share')} = tl.cdiv({whole}, {loop.share.parts})")
        start = f"{part} * {of('share')}"
        start = start if first == "0" else f"{first} + {start}"
        end = f"tl.minimum({start} + {of('share')}, {last})"
        return lines, f"{start}, {end}"
    return lines, f"{first}, {last}"


def is_interleaved(loop: For) -> bool:
    """True if the programs that share a loop take its blocks in turns."""
    if loop.share is None or loop.share.in_order:
        return False
    return not any(isinstance(s, Contract) for s in walk(loop.body))


def _window_lines(
    loop: For, window: Window, first: str, last: str, values: TileValues
) -> list[str]:
    of = _variables(loop, values)
    block = values.variables.block(loop.index.dim) if loop.index.dim.packed else "1"
    if window.seen is not None:
        return _seen_lines(loop, window, first, last, values)
    assert window.rows is not None
    start, end = _row_edges(window.rows, values)
    low, high = (_edge(edge, values) for edge in (window.low, window.high))
    lines = ["# only the blocks that the mask leaves to these rows; all, if it leaves a row none"]
    blind: list[str] = []
    first_text, last_text = first, last
    if low is not None:
        blind.append(f"({end} + {low} > {values.variables.extent(loop.index.dim.axis)})")
        first_text = f"tl.maximum({start} + {low}, {first} * {block}) // {block}"
    if high is not None:
        if high.startswith("(") or int(high) < 0:
            blind.append(f"({start} + {high} < 0)")
        last_text = f"tl.minimum(tl.cdiv(tl.maximum({end} + {high}, 0), {block}), {last})"
    if low is not None and high is not None:
        blind.append(f"({low} > {high})")
    if not blind:
        return [*lines, f"{of('first')} = {first_text}", f"{of('last')} = {last_text}"]
    lines.append(f"{of('blind')} = {' | '.join(blind)}")
    lines.append(f"{of('first')} = tl.where({of('blind')}, {first}, {first_text})")
    lines.append(f"{of('last')} = tl.where({of('blind')}, {last}, {last_text})")
    return lines


def _seen_lines(loop: For, window: Window, first: str, last: str, values: TileValues) -> list[str]:
    """The range of blocks that some row sees, even if another row sees none."""
    of = _variables(loop, values)
    block = values.variables.block(loop.index.dim) if loop.index.dim.packed else "1"
    low, high = (_edge(edge, values) for edge in (window.low, window.high))
    after = high and f"{high} + 1"
    if window.rows is not None:
        start, end = _row_edges(window.rows, values)
        low, after = low and f"{start} + {low}", high and f"{end} + {high}"
    below, above = first, last
    if low is not None:
        below = f"tl.minimum(tl.maximum({low}, {first} * {block}) // {block}, {last})"
    if after is not None:
        above = f"tl.minimum(tl.cdiv(tl.maximum({after}, 0), {block}), {last})"
    return [
        "# only the blocks that the mask leaves to these rows",
        f"{of('first')} = {below}",
        f"{of('last')} = tl.maximum({above}, {of('first')})",
    ]


def _edge(edge: Expr | Tile | None, values: TileValues) -> str | None:
    if isinstance(edge, Tile):
        return values.value(edge)
    return None if edge is None else values.variables.whole(edge)


def _row_edges(rows: Span, values: TileValues) -> tuple[str, str]:
    """The position of a block's first row, and the one after its last."""
    at = values.variables.at(rows)
    if not rows.dim.packed:
        return at, f"{at} + 1"
    block, extent = values.variables.block(rows.dim), values.variables.extent(rows.dim.axis)
    if rows.dim.unit:
        return "0", extent
    return f"{at} * {block}", f"tl.minimum(({at} + 1) * {block}, {extent})"
