"""The block of each dim that a program of a Triton grid computes."""

from blockbuster_fusion.nest.nest import For, Index, Kernel, Space, Window
from blockbuster_fusion.printers.triton.variables import Variables

PROGRAM = "pid = tl.program_id(0)"


def has_number(kernel: Kernel) -> bool:
    """True if the programs of a kernel differ, or have arrays of their own."""
    return bool(kernel.grid) or any(b.space is Space.SCRATCH for b in kernel.buffers)


def grid_lines(kernel: Kernel, variables: Variables) -> list[str]:
    """The lines that compute the indices of the grid from `pid`, the number of a program.

    The two fastest indices go in groups: GROUP blocks of the one for each block of the other. So
    programs that run together share what they read. Rows that see the most blocks come first.
    """
    lines: list[str] = []
    rest = "pid"
    grid = list(kernel.grid)
    late = {
        id(window.rows.at)
        for window in _windows(kernel)
        if window.high is not None and window.rows is not None
    }
    if len(grid) >= 2:
        grouped = _grouped(kernel, late, variables)
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


def grid_length(kernel: Kernel, variables: Variables) -> str:
    """The number of blocks of the grid."""
    return " * ".join(variables.count(index.dim) for index in kernel.grid) or "1"


def turn_lines(kernel: Kernel, variables: Variables, lines: list[str]) -> list[str]:
    """The lines of a program, run for every block whose turn it is.

    The loads of the next block are started while one is stored (`flatten`).
    """
    programs = variables.use("PROGRAMS")
    total = grid_length(kernel, variables)
    head = f"for pid in tl.range(tl.program_id(0), {total}, {programs}, flatten=True):"
    return [head, *("    " * bool(line) + line for line in lines)]


def _windows(kernel: Kernel) -> list[Window]:
    loops = [s for s in kernel.statements if isinstance(s, For)]
    return [loop.window for loop in loops if loop.window is not None]


def _grouped(kernel: Kernel, late: set[int], variables: Variables) -> list[str]:
    length = variables.use(variables.names.groups[kernel.name])
    slow, fast = kernel.grid[-2:]
    slow_count, fast_count = variables.count(slow.dim), variables.count(fast.dim)
    place, lines = "pid", []
    if len(kernel.grid) > 2:
        place = "place"
        lines.append(f"place = pid % ({slow_count} * {fast_count})")
    inner = f"{place} % width"
    return [
        *lines,
        f"width = {length} * {fast_count}",
        f"group = {place} // width",
        f"rows = tl.minimum({slow_count} - group * {length}, {length})",
        _index(slow, f"group * {length} + {inner} % rows", late, variables),
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
