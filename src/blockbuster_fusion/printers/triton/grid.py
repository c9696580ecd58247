"""The block of each dim that a program of a Triton grid computes."""

from blockbuster_fusion.nest.nest import For, Index, Kernel, Window
from blockbuster_fusion.printers.triton.variables import Variables


def grid_lines(kernel: Kernel, variables: Variables) -> list[str]:
    """The lines that compute the indices of the grid from the number of a program.

    The two fastest indices go in groups: GROUP blocks of the one for each block of the other. So
    programs that run together share what they read. Rows that see the most blocks come first.
    """
    lines = ["pid = tl.program_id(0)"] if kernel.grid or variables.names.copies else []
    rest = "pid"
    grid = list(kernel.grid)
    late = {
        id(window.rows.at)
        for window in _windows(kernel)
        if window.high is not None and window.rows is not None
    }
    if len(grid) >= 2:
        grouped = _grouped(grid[-2], grid[-1], rest, len(grid) > 2, late, variables)
        if kernel.is_mirrored:
            grouped = _mirrored(grid[-2], grid[-1], grouped, variables)
        lines += grouped
        slow, fast = (variables.count(i.dim) for i in grid[-2:])
        rest = f"({rest} // ({slow} * {fast}))"
        grid = grid[:-2]
    while grid:
        index = grid.pop()
        own = rest
        if grid:
            count = variables.count(index.dim)
            own, rest = (
                f"{rest} % {count}",
                f"({rest[1:-1] if rest[0] == '(' else rest} // {count})",
            )
        elif own[0] == "(":
            own = own[1:-1]
        lines.append(_index(index, own, late, variables))
    return lines


def turn_lines(kernel: Kernel, variables: Variables, lines: list[str]) -> list[str]:
    """The lines of a program, run for every block whose turn it is.

    The loads of the next block are started while one is stored (`flatten`).
    """
    total = " * ".join(variables.count(index.dim) for index in kernel.grid)
    programs = variables.use("PROGRAMS")
    head = f"for pid in tl.range(tl.program_id(0), {total}, {programs}, flatten=True):"
    return [head, *("    " * bool(line) + line for line in lines)]


def _windows(kernel: Kernel) -> list[Window]:
    loops = [s for s in kernel.statements if isinstance(s, For)]
    return [loop.window for loop in loops if loop.window is not None]


def _grouped(
    slow: Index, fast: Index, rest: str, more: bool, late: set[int], variables: Variables
) -> list[str]:
    variables.used.add("GROUP")
    slow_count, fast_count = variables.count(slow.dim), variables.count(fast.dim)
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
        _index(slow, f"group * GROUP + {inner} % rows", late, variables),
        _index(fast, f"{inner} // rows", late, variables),
    ]


def _mirrored(slow: Index, fast: Index, grouped: list[str], variables: Variables) -> list[str]:
    """The same by diagonals, each right before its mirror, if blocks are square."""
    place = [line for line in grouped if line.startswith("place = ")]
    at = "place" if place else "pid"
    row, column = (variables.names.indices[index] for index in (slow, fast))
    count = variables.count(slow.dim)
    by_diagonals = [
        f"diagonal = {at} // {count}",
        "diagonal = tl.where(diagonal % 2 == 1, diagonal + 1, -diagonal) // 2",
        f"{row} = {at} % {count}",
        f"{column} = ({row} + diagonal + {count}) % {count}",
    ]
    return [
        *place,
        f"if {variables.block(slow.dim)} == {variables.block(fast.dim)}:",
        *(f"    {line}" for line in by_diagonals),
        "else:",
        *(f"    {line}" for line in grouped if line not in place),
    ]


def _index(index: Index, own: str, late: set[int], variables: Variables) -> str:
    if id(index) in late:
        own = f"{variables.count(index.dim)} - 1 - {own if own.isidentifier() else f'({own})'}"
    return f"{variables.names.indices[index]} = {own}"
