"""Loop nests as Triton: a Python module with a `@triton.jit` function for each kernel."""

from collections.abc import Collection, Iterable

from blockbuster_fusion.naming import comment
from blockbuster_fusion.nest.nest import Kernel, Nest, Store, accesses
from blockbuster_fusion.printers.triton.body import BodyPrinter
from blockbuster_fusion.printers.triton.grid import grid_lines, turn_lines
from blockbuster_fusion.printers.triton.helpers import HELPERS
from blockbuster_fusion.printers.triton.variables import Variables


def print_triton(nest: Nest, constant: Collection[str] = ()) -> str:
    """The source of a module with the kernels of a nest.

    `constant` names the sizes that are compile-time constants.
    """
    helpers, libdevice, functions = kernels_in_triton(nest, constant)
    head = ["import triton", "import triton.language as tl"]
    if libdevice:
        head.append("from triton.language.extra import libdevice")
    parts = ["\n".join(head), *(HELPERS[h].strip() for h in HELPERS if h in helpers), *functions]
    return "\n\n\n".join(parts) + "\n"


def kernels_in_triton(
    nest: Nest, constant: Collection[str] = ()
) -> tuple[set[str], bool, list[str]]:
    """The helpers that kernels call, True if they call libdevice, and the kernels as Triton."""
    helpers: set[str] = set()
    libdevice = False
    functions: list[str] = []
    for kernel in nest.kernels:
        printer = BodyPrinter(kernel, frozenset(constant))
        functions.append(_function(kernel, printer))
        helpers |= printer.variables.expr.helpers
        libdevice |= printer.variables.expr.libdevice
    return helpers, libdevice, functions


def _function(kernel: Kernel, printer: BodyPrinter) -> str:
    body = printer.lines()
    grid = grid_lines(kernel, printer.variables)
    preamble = printer.variables.preamble()
    lines = [*grid, *preamble, *body]
    if kernel.programs:
        lines = turn_lines(kernel, printer.variables, [*grid[1:], *preamble, *body])
    header = [
        f"def {kernel.name}(",
        *_parameters(kernel, printer.variables),
        "):",
        _docstring(kernel),
    ]
    return "\n".join(["@triton.jit", *header, *("    " * bool(x) + x for x in lines)])


def _docstring(kernel: Kernel) -> str:
    stores = [s.target.buffer for s in kernel.statements if isinstance(s, Store)]
    made = list(dict.fromkeys(stores))
    read = [
        a.buffer
        for s in kernel.statements
        if not isinstance(s, Store)
        for a in accesses(s)
        if a.buffer not in made
    ]
    names = [", ".join(b.name for b in some) for some in (made, dict.fromkeys(read))]
    return f'    """{comment(" from ".join(n for n in names if n))}."""'


def _parameters(kernel: Kernel, variables: Variables) -> Iterable[str]:
    """The parameters that the body needs, a line for each buffer and each kind.

    Strides are constants if all sizes are fixed. So Triton knows which powers of 2 divide them,
    and how many elements may be loaded at once.
    """
    names, used = variables.names, variables.used
    kind = "" if kernel.symbols else ": tl.constexpr"
    for buffer, pointer in names.pointers.items():
        strides = [names.copies[buffer]] if buffer in names.copies else []
        own = [name for name in (*strides, *names.strides[buffer]) if name in used]
        if pointer in used:
            yield f"    {', '.join([pointer, *(f'{name}{kind}' for name in own)])},"
    sizes = [
        (s.name in variables.constant, name) for s, name in names.sizes.items() if name in used
    ]
    for constant in (False, True):
        texts = [f"{n}: tl.constexpr" if c else n for c, n in sizes if c is constant]
        if texts:
            yield f"    {', '.join(texts)},"
    lengths = [name for name in names.run_lengths.values() if name in used]
    if lengths:
        yield f"    {', '.join(lengths)},"
    for group in (
        names.blocks.values(),
        names.evens.values(),
        names.runs.values(),
        ["GROUP", "STAGES", "PROGRAMS"],
    ):
        texts = [f"{name}: tl.constexpr" for name in group if name in used]
        for at in range(0, len(texts), 4):
            yield f"    {', '.join(texts[at : at + 4])},"
