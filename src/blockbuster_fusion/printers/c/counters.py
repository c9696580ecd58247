"""Counters of the bytes that C kernels load and store, for tests of predicted traffic.

A kernel KERNEL that is printed with counters has two arrays, with an entry for the loads of each
global buffer and then one for its stores. `BLOCKBUSTER_moved_KERNEL` counts bytes, each time that
an element is loaded or stored. `BLOCKBUSTER_touched_KERNEL` has the address of a map for each,
with a byte for every element of the buffer, which becomes 1. An address of 0 stands for no map.
Each statement counts where it stands, in all its loops (nest/analysis/traffic.py has the measures).
"""

from collections.abc import Iterable, Mapping

from blockbuster_fusion.nest.nest import (
    Access,
    Along,
    Index,
    Load,
    Lookup,
    Space,
    Span,
    Statement,
    Store,
    accesses,
    is_placed,
)
from blockbuster_fusion.printers.c.kernel_text import KernelText
from blockbuster_fusion.printers.operators import C_STORED

MOVED, TOUCHED = "BLOCKBUSTER_moved", "BLOCKBUSTER_touched"
"""The arrays of a kernel; no name of a program begins so (printers/reserved.py)."""


def counter_names(kernel: str) -> tuple[str, str]:
    """The names of a kernel's arrays: the bytes that it moves, and the maps of what it touches."""
    return f"{MOVED}_{kernel}", f"{TOUCHED}_{kernel}"


def write_counters(out: KernelText) -> None:
    """Writes the arrays of a kernel, which are seen from outside."""
    kernel = out.layout.kernel
    moved, touched = counter_names(kernel.name)
    count = max(1, 2 * len(kernel.global_buffers))
    out.line(f"int64_t {moved}[{count}];")
    out.line(f"unsigned char *{touched}[{count}];")


def write_own_counters(out: KernelText) -> None:
    """Writes the counters of a thread."""
    count = max(1, 2 * len(out.layout.kernel.global_buffers))
    out.line(f"int64_t {MOVED}[{count}] = {{0}};")


def write_totals(out: KernelText) -> None:
    """Writes the addition of a thread's counters to those of the kernel."""
    kernel = out.layout.kernel
    moved, _ = counter_names(kernel.name)
    with out.braces(f"for (int c0 = 0; c0 < {2 * len(kernel.global_buffers)}; c0++)"):
        out.line("#pragma omp atomic")
        out.line(f"{moved}[c0] += {MOVED}[c0];")


def write_counts(out: KernelText, statements: Iterable[Statement]) -> None:
    """Writes the counts of the loads and stores among statements that are about to run."""
    for statement in statements:
        if isinstance(statement, Load | Lookup | Store):
            (access,) = accesses(statement)
            if access.buffer.space is Space.GLOBAL:
                _write_count(out, statement, access)


def _write_count(out: KernelText, statement: Load | Lookup | Store, access: Access) -> None:
    """Writes the count of all elements of a block."""
    layout = out.layout
    kernel, buffer = layout.kernel, access.buffer
    stores = isinstance(statement, Store)
    at = kernel.global_buffers.index(buffer) + stores * len(kernel.global_buffers)
    _, touched = counter_names(kernel.name)
    out.comment(f"{'stores' if stores else 'loads'} of {buffer.name}")
    with out.braces(""), out.over(layout.order(statement.tile), simd="") as variables:
        places = _places(out, statement, access, variables)
        index = "0"
        for place, axis in zip(places, buffer.axes, strict=True):
            index = f"({index}) * ({layout.axis_length(axis)}) + {place}"
        size = f"sizeof({C_STORED[buffer.dtype]})"
        count = f"{MOVED}[{at}] += {size}; if ({touched}[{at}]) {touched}[{at}][{index}] = 1;"
        guard = ""
        if is_placed(statement):
            place, length = places[statement.axis], layout.extent(statement.along)
            guard = f"if ((uint64_t)({place}) < (uint64_t)({length})) "
        out.line(f"{guard}{{ {count} }}")


def _places(
    out: KernelText,
    statement: Load | Lookup | Store,
    access: Access,
    variables: Mapping[Span, str],
) -> list[str]:
    """The position of an element along each axis of a buffer."""
    layout = out.layout
    made: list[str] = []
    for axis, span in zip(access.buffer.axes, access.spans, strict=True):
        if axis.along is Along.BLOCKS:
            at = layout.name(span.at) if isinstance(span.at, Index) else str(span.at)
            made.append("0" if span.dim.unit else at)
        else:
            made.append(f"({layout.start(span)} + {variables.get(span, '0')})")
    if not isinstance(statement, Load) and statement.places is not None:
        made[statement.axis] = f"(int64_t){layout.at(statement.places, variables)}"
    return made
