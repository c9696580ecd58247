"""Which block each program of a Triton grid has, and which blocks a loop goes through."""

from collections.abc import Sequence

from blockbuster_fusion.codegen.nest import UNSEEN, For, Index, Kernel, Span, Tile, Window
from blockbuster_fusion.codegen.triton_scope import Scope
from blockbuster_fusion.ir.expr import Expr


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
    name = scope.names.indices[loop.index]
    first, last = str(loop.first), scope.count(loop.index.dim)
    lines: list[str] = []
    inner: list[str] = []
    if loop.window is not None:
        lines = _window_lines(loop, loop.window, first, last, scope)
        if loop.window.seen:
            lines.append(f"end_{name} = {last}")
            inner = _pass_lines(name, loop.window.seen, first, scope)
            first, last = f"from_{name}", f"to_{name}"
        else:
            first, last = f"first_{name}", f"last_{name}"
    share, bounds = _share_lines(loop, first, last, scope)
    return (lines, [*inner, *share], bounds) if inner else ([*lines, *share], [], bounds)


def _pass_lines(name: str, seen: Sequence[Tile], first: str, scope: Scope) -> list[str]:
    """Which blocks a pass goes through: the window's, those before it, those after it."""
    blind = " | ".join(f"({scope.least(tile)} <= {UNSEEN})" for tile in seen)
    ends = {
        "from": (f"first_{name}", first, f"last_{name}"),
        "to": (f"last_{name}", f"first_{name}", f"end_{name}"),
    }
    lines = [f"blind_{name} = (pass_{name} == 0) | {blind}"]
    for made, (own, before, after) in ends.items():
        other = f"tl.where(pass_{name} == 1, {before}, {after})"
        lines.append(f"{made}_{name} = tl.where(pass_{name} == 0, {own}, {other})")
    return [*lines, f"to_{name} = tl.where(blind_{name}, to_{name}, from_{name})"]


def _share_lines(loop: For, first: str, last: str, scope: Scope) -> tuple[list[str], str]:
    name = scope.names.indices[loop.index]
    lines: list[str] = []
    if loop.part is not None:
        part = scope.names.indices[loop.part.index]
        whole = last if first == "0" else f"{last} - {first}"
        lines.append(f"share_{name} = tl.cdiv({whole}, {loop.part.parts})")
        start = f"{part} * share_{name}"
        start = start if first == "0" else f"{first} + {start}"
        end = f"tl.minimum({start} + share_{name}, {last})"
        return lines, f"{start}, {end}"
    return lines, f"{first}, {last}"


def _window_lines(loop: For, window: Window, first: str, last: str, scope: Scope) -> list[str]:
    name = scope.names.indices[loop.index]
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
        return [*lines, f"first_{name} = {first_text}", f"last_{name} = {last_text}"]
    lines.append(f"blind_{name} = {' | '.join(blind)}")
    lines.append(f"first_{name} = tl.where(blind_{name}, {first}, {first_text})")
    lines.append(f"last_{name} = tl.where(blind_{name}, {last}, {last_text})")
    return lines


def _seen_lines(loop: For, window: Window, first: str, last: str, scope: Scope) -> list[str]:
    """The blocks that some row sees, whether or not every row sees one."""
    name = scope.names.indices[loop.index]
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
        f"first_{name} = {below}",
        f"last_{name} = tl.maximum({above}, first_{name})",
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
