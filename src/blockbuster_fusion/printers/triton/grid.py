"""Which block each program of a Triton grid has, and which blocks a loop goes through."""

from collections.abc import Callable, Sequence

from blockbuster_fusion.ir.expr import Expr
from blockbuster_fusion.nest.nest import UNSEEN, For, Index, Kernel, Span, Tile, Window
from blockbuster_fusion.printers.triton.scope import Scope


def grid_lines(kernel: Kernel, scope: Scope) -> list[str]:
    """The program's number taken apart into the grid's indices.

    The two fastest are walked in groups: GROUP blocks of the one for each block of the other, so
    that programs that run together share what they read. Rows that see the most come first.
    """
    lines = ["pid = tl.program_id(0)"] if kernel.grid or scope.names.copies else []
    rest = "pid"
    grid = list(kernel.grid)
    late = {
        id(window.rows.at)
        for window in _windows(kernel)
        if window.high is not None and window.rows is not None
    }
    if len(grid) >= 2:
        grouped = _grouped(grid[-2], grid[-1], rest, len(grid) > 2, late, scope)
        lines += grouped
        slow, fast = (scope.count(i.dim) for i in grid[-2:])
        rest = f"({rest} // ({slow} * {fast}))"
        grid = grid[:-2]
    while grid:
        index = grid.pop()
        own = rest
        if grid:
            count = scope.count(index.dim)
            own, rest = (
                f"{rest} % {count}",
                f"({rest[1:-1] if rest[0] == '(' else rest} // {count})",
            )
        elif own[0] == "(":
            own = own[1:-1]
        lines.append(_index(index, own, late, scope))
    return lines


def _windows(kernel: Kernel) -> list[Window]:
    loops = [s for s in kernel.statements if isinstance(s, For)]
    return [loop.window for loop in loops if loop.window is not None]


def _grouped(
    slow: Index, fast: Index, rest: str, more: bool, late: set[int], scope: Scope
) -> list[str]:
    scope.used.add("GROUP")
    slow_count, fast_count = scope.count(slow.dim), scope.count(fast.dim)
    place = rest
    lines = []
    if more or rest != "pid":
        place = "place"
        own = f"{rest} % ({slow_count} * {fast_count})" if more else rest[1:-1]
        lines.append(f"place = {own}")
    inner = f"{place} % width"
    return [
        *lines,
        f"width = GROUP * {fast_count}",
        f"group = {place} // width",
        f"rows = tl.minimum({slow_count} - group * GROUP, GROUP)",
        _index(slow, f"group * GROUP + {inner} % rows", late, scope),
        _index(fast, f"{inner} // rows", late, scope),
    ]


def _index(index: Index, own: str, late: set[int], scope: Scope) -> str:
    if id(index) in late:
        own = f"{scope.count(index.dim)} - 1 - {own if own.isidentifier() else f'({own})'}"
    return f"{scope.names.indices[index]} = {own}"


def loop_lines(loop: For, scope: Scope) -> tuple[list[str], list[str], str]:
    """(what is worked out before the loop, and within its passes, the range that it goes through).

    A loop has passes where a row may have seen nothing in its window: then the blocks before and
    after that are visited as well.
    """
    of = _variables(loop, scope)
    first, last = str(loop.first), scope.count(loop.index.dim)
    lines: list[str] = []
    inner: list[str] = []
    if loop.window is not None:
        lines = _window_lines(loop, loop.window, first, last, scope)
        if loop.window.seen:
            lines.append(f"{of('end')} = {last}")
            inner = _pass_lines(of, loop.window.seen, first, scope)
            first, last = of("from"), of("to")
        else:
            first, last = of("first"), of("last")
    share, bounds = _share_lines(loop, first, last, scope)
    return (lines, [*inner, *share], bounds) if inner else ([*lines, *share], [], bounds)


def _variables(loop: For, scope: Scope) -> Callable[[str], str]:
    """The names of the variables of a loop, by what they are for."""
    name = scope.names.indices[loop.index]
    return lambda kind: scope.names.local(kind, name)


def _pass_lines(
    of: Callable[[str], str], seen: Sequence[Tile], first: str, scope: Scope
) -> list[str]:
    """Which blocks a pass goes through: the window's, those before it, those after it."""
    blind = " | ".join(f"({scope.least(tile)} <= {UNSEEN})" for tile in seen)
    ends = {
        "from": (of("first"), first, of("last")),
        "to": (of("last"), of("first"), of("end")),
    }
    lines = [f"{of('blind')} = ({of('pass')} == 0) | {blind}"]
    for made, (own, before, after) in ends.items():
        other = f"tl.where({of('pass')} == 1, {before}, {after})"
        lines.append(f"{of(made)} = tl.where({of('pass')} == 0, {own}, {other})")
    return [*lines, f"{of('to')} = tl.where({of('blind')}, {of('to')}, {of('from')})"]


def _share_lines(loop: For, first: str, last: str, scope: Scope) -> tuple[list[str], str]:
    of = _variables(loop, scope)
    lines: list[str] = []
    if loop.part is not None:
        part = scope.names.indices[loop.part.index]
        whole = last if first == "0" else f"{last} - {first}"
        lines.append(f"{of('share')} = tl.cdiv({whole}, {loop.part.parts})")
        start = f"{part} * {of('share')}"
        start = start if first == "0" else f"{first} + {start}"
        end = f"tl.minimum({start} + {of('share')}, {last})"
        return lines, f"{start}, {end}"
    return lines, f"{first}, {last}"


def _window_lines(loop: For, window: Window, first: str, last: str, scope: Scope) -> list[str]:
    of = _variables(loop, scope)
    block = scope.block(loop.index.dim) if loop.index.dim.packed else "1"
    if window.seen is not None:
        return _seen_lines(loop, window, first, last, scope)
    assert window.rows is not None
    start, end = _row_edges(window.rows, scope)
    low, high = (_edge(edge, scope) for edge in (window.low, window.high))
    lines = ["# only the blocks that the mask leaves to these rows; all, if it leaves a row none"]
    blind: list[str] = []
    first_text, last_text = first, last
    if low is not None:
        blind.append(f"({end} + {low} > {scope.extent(loop.index.dim.axis)})")
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


def _seen_lines(loop: For, window: Window, first: str, last: str, scope: Scope) -> list[str]:
    """The blocks that some row sees, whether or not every row sees one."""
    of = _variables(loop, scope)
    block = scope.block(loop.index.dim) if loop.index.dim.packed else "1"
    low, high = (_edge(edge, scope) for edge in (window.low, window.high))
    after = high and f"{high} + 1"
    if window.rows is not None:
        start, end = _row_edges(window.rows, scope)
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


def _edge(edge: Expr | Tile | None, scope: Scope) -> str | None:
    if isinstance(edge, Tile):
        return scope.value(edge)
    return None if edge is None else scope.whole(edge)


def _row_edges(rows: Span, scope: Scope) -> tuple[str, str]:
    """The position of a block's first row, and the one after its last."""
    at = scope.at(rows)
    if not rows.dim.packed:
        return at, f"{at} + 1"
    block, extent = scope.block(rows.dim), scope.extent(rows.dim.axis)
    if rows.dim.unit:
        return "0", extent
    return f"{at} * {block}", f"tl.minimum(({at} + 1) * {block}, {extent})"
