"""Loop nests as Triton: a Python module with a `@triton.jit` function for each kernel.

Several kernels of one launch are functions that a program chooses from by its number.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence

from blockbuster_fusion.naming import comment
from blockbuster_fusion.nest.nest import Grids, Kernel, Launchable, Nest, Store, accesses
from blockbuster_fusion.printers.triton.body import BodyPrinter
from blockbuster_fusion.printers.triton.grid import (
    PROGRAM,
    grid_length,
    grid_lines,
    has_number,
    turn_lines,
)
from blockbuster_fusion.printers.triton.helpers import HELPERS
from blockbuster_fusion.printers.triton.names import ParameterNames
from blockbuster_fusion.printers.triton.variables import Variables

EARLY = (
    "gdc_wait()  # for the results of earlier kernels: this one may start before they end",
    "gdc_launch_dependents()  # the next kernel may start, too",
)
"""The first lines of early kernels: no load and no store may come before the wait
(nest/passes/start_early.py)."""


def print_triton(nest: Nest, constant: Collection[str] = ()) -> str:
    """The source of a module with the kernels of a nest.

    `constant` names the sizes that are compile-time constants.
    """
    helpers, libdevice, functions = kernels_in_triton(nest, constant)
    head = ["import triton", "import triton.language as tl"]
    if libdevice:
        head.append("from triton.language.extra import libdevice")
    if any(launched.early for launched in nest.launches):
        head.append("from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait")
    parts = ["\n".join(head), *(HELPERS[h].strip() for h in HELPERS if h in helpers), *functions]
    return "\n\n\n".join(parts) + "\n"


def kernels_in_triton(
    nest: Nest, constant: Collection[str] = ()
) -> tuple[set[str], bool, list[str]]:
    """The helpers that kernels call, True if they call libdevice, and the kernels as Triton."""
    helpers: set[str] = set()
    libdevice = False
    functions: list[str] = []
    for launched in nest.launches:
        printer = _Printer(launched, frozenset(constant))
        functions += printer.functions()
        for body in printer.bodies:
            helpers |= body.variables.expr.helpers
            libdevice |= body.variables.expr.libdevice
    return helpers, libdevice, functions


class _Printer:
    """Writes the functions of one launch."""

    def __init__(self, launched: Launchable, constant: frozenset[str]) -> None:
        self.launched, self.constant = launched, constant
        self.names = ParameterNames(launched)
        self.bodies = [BodyPrinter(k, constant, self.names) for k in launched.kernels]

    def functions(self) -> list[str]:
        if isinstance(self.launched, Kernel):
            return [self.kernel(self.launched, self.bodies[0])]
        pairs = zip(self.launched.kernels, self.bodies, strict=True)
        made = [self.body(kernel, body) for kernel, body in pairs]
        return [*made, self.choice(self.launched)]

    def kernel(self, kernel: Kernel, body: BodyPrinter) -> str:
        """The function of a kernel that is launched by itself."""
        lines = _program(kernel, body)
        if kernel.programs:
            lines = turn_lines(kernel, body.variables, lines)
        elif has_number(kernel):
            lines = [PROGRAM, *lines]
        return _function(kernel, self.annotated(body.variables.used), lines)

    def body(self, kernel: Kernel, body: BodyPrinter) -> str:
        """The function of one of several kernels: it gets the number of the program in its grid."""
        lines = _program(kernel, body)
        own = [["pid"]] if has_number(kernel) else []
        return _function(kernel, [*own, *self.annotated(body.variables.used)], lines)

    def choice(self, grids: Grids) -> str:
        """The function that calls the body of the grid that a program belongs to.

        There is an `if` for each body, and no `else`: so Triton gives them the same shared memory.
        """
        lines, used, last = [PROGRAM], set[str](), len(grids.kernels)
        begin = ""
        for number, (kernel, body) in enumerate(zip(grids.kernels, self.bodies, strict=True), 1):
            end = self.names.local("end", str(number)) if number < last else ""
            if end:
                own = Variables(kernel, self.constant, self.names)
                count = grid_length(kernel, own)
                lines.append(f"{end} = {begin} + {count}" if begin else f"{end} = {count}")
                used |= own.used
            within = [f"pid >= {begin}"] * bool(begin) + [f"pid < {end}"] * bool(end)
            test = within[0] if len(within) == 1 else " & ".join(f"({x})" for x in within)
            given = [[f"pid - {begin}" if begin else "pid"]] if has_number(kernel) else []
            given += [[name for name, _ in group] for group in self.parameters(body.variables.used)]
            arguments = [f"        {', '.join(names)}," for names in given if names]
            lines += [f"if {test}:", f"    {kernel.name}(", *arguments, "    )"]
            used |= body.variables.used
            begin = end
        return _function(grids, self.annotated(used), lines)

    def annotated(self, used: Collection[str]) -> list[list[str]]:
        """The parameters among some names, with their annotations, in the groups of their lines."""
        constant = {False: "", True: ": tl.constexpr"}
        groups = self.parameters(used)
        return [[f"{name}{constant[is_constant]}" for name, is_constant in g] for g in groups]

    def parameters(self, used: Collection[str]) -> Iterator[list[tuple[str, bool]]]:
        """The parameters among some names, a group for each buffer and each kind.

        A name comes with True if it is a constant. Strides are constants if all sizes are fixed. So
        Triton knows which powers of 2 divide them, and how many elements may be loaded at once.
        """
        names, is_fixed = self.names, not self.launched.symbols
        for buffer, pointer in names.pointers.items():
            strides = [names.copies[buffer]] if buffer in names.copies else []
            own = [name for name in (*strides, *names.strides[buffer]) if name in used]
            if pointer in used:
                yield [(pointer, False), *((name, is_fixed) for name in own)]
        sizes = [(name, s.name in self.constant) for s, name in names.sizes.items() if name in used]
        for constant in (False, True):
            yield [pair for pair in sizes if pair[1] is constant]
        yield [(name, False) for name in names.run_lengths.values() if name in used]
        options = [*names.groups.values(), "STAGES", "PROGRAMS"]
        for group in (names.blocks, names.evens, names.runs):
            yield from _fours(name for name in group.values() if name in used)
        yield from _fours(name for name in options if name in used)


def _program(kernel: Kernel, printer: BodyPrinter) -> list[str]:
    """The lines of one program, which has the number `pid`."""
    body = printer.lines()
    grid = grid_lines(kernel, printer.variables)
    return [*grid, *printer.variables.preamble(), *body]


def _function(
    launched: Launchable, parameters: Sequence[Sequence[str]], lines: Sequence[str]
) -> str:
    header = [f"def {launched.name}(", *(f"    {', '.join(p)}," for p in parameters if p), "):"]
    indented = ("    " * bool(line) + line for line in [*EARLY * launched.early, *lines])
    return "\n".join(["@triton.jit", *header, _docstring(launched), *indented])


def _docstring(launched: Launchable) -> str:
    stores = [s.target.buffer for s in launched.statements if isinstance(s, Store)]
    made = list(dict.fromkeys(stores))
    read = [
        a.buffer
        for s in launched.statements
        if not isinstance(s, Store)
        for a in accesses(s)
        if a.buffer not in made
    ]
    names = [", ".join(b.name for b in some) for some in (made, dict.fromkeys(read))]
    return f'    """{comment(" from ".join(n for n in names if n))}."""'


def _fours(names: Iterable[str]) -> Iterator[list[tuple[str, bool]]]:
    """Constants, four to a line."""
    pairs = [(name, True) for name in names]
    yield from (pairs[at : at + 4] for at in range(0, len(pairs), 4))
