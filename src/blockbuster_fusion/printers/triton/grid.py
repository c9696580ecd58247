"""The block of each dim that a program of a Triton grid computes."""

from collections.abc import Sequence

from blockbuster_fusion.nest.analysis.launch_order import goes_straight
from blockbuster_fusion.nest.analysis.longest_last import longest_last
from blockbuster_fusion.nest.nest import Index, Kernel, Space
from blockbuster_fusion.printers.triton.variables import Variables

PROGRAM = "pid = tl.program_id(0)"


def has_number(kernel: Kernel) -> bool:
    """True if the programs of a kernel differ, or have arrays of their own."""
    return bool(kernel.grid) or any(b.space is Space.SCRATCH for b in kernel.buffers)


def grid_lines(kernel: Kernel, variables: Variables) -> list[str]:
    """The lines that compute the indices of the grid from `pid`, the number of a program.

    The two fastest indices go in groups: GROUP blocks of the one for each block of the other. So
    programs that run together share what they read. Pointwise programs share nothing, and spend no
    time on groups.
    """
    rows = longest_last(kernel)
    if rows is not None:
        return _longest_first(kernel, rows, variables)
    if len(kernel.grid) < 2 or goes_straight(kernel):
        return _places(kernel.grid, "pid", variables)
    slow, fast = kernel.grid[-2:]
    lines = _grouped(kernel, variables)
    if kernel.is_mirrored:
        lines = _mirrored(slow, fast, lines, variables)
    inner = f"({variables.count(slow.dim)} * {variables.count(fast.dim)})"
    return [*lines, *_places(kernel.grid[:-2], f"(pid // {inner})", variables)]


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


def _places(grid: Sequence[Index], number: str, variables: Variables) -> list[str]:
    """The lines that compute some indices from the number of their combination, the last first."""
    lines: list[str] = []
    for at, index in reversed([*enumerate(grid)]):
        own = bare = number[1:-1] if number[0] == "(" else number
        if at:
            count = variables.count(index.dim)
            own, number = f"{number} % {count}", f"({bare} // {count})"
        lines.append(f"{variables.names.indices[index]} = {own}")
    return lines


def _longest_first(kernel: Kernel, rows: Index, variables: Variables) -> list[str]:
    """The lines for a grid whose last rows take longest: those of GROUP heads start first.

    Heads are the combinations of the other indices. Programs of one head read the same blocks, so
    not all heads are taken at once.
    """
    row, count = variables.names.indices[rows], variables.count(rows.dim)
    others = [index for index in kernel.grid if index is not rows]
    if not others:
        return [f"{row} = {count} - 1 - pid"]
    length = variables.use(variables.names.groups[kernel.name])
    heads = " * ".join(variables.count(index.dim) for index in others)
    lines = [
        f"width = {length} * {count}",
        "group = pid // width",
        f"rows = tl.minimum({heads} - group * {length}, {length})",
        f"{row} = {count} - 1 - pid % width // rows",
    ]
    place = f"group * {length} + pid % width % rows"
    if len(others) == 1:
        return [*lines, *_places(others, place, variables)]
    return [*lines, f"place = {place}", *_places(others, "place", variables)]


def _grouped(kernel: Kernel, variables: Variables) -> list[str]:
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
        f"{variables.names.indices[slow]} = group * {length} + {inner} % rows",
        f"{variables.names.indices[fast]} = {inner} // rows",
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
