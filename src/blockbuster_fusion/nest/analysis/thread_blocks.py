"""The way in which the threads of a GPU share the blocks of a kernel without products."""

from enum import IntEnum

from blockbuster_fusion.ir.expr import FUNCTIONS, postorder
from blockbuster_fusion.nest.nest import (
    Buffer,
    Compute,
    Contract,
    Fold,
    Kernel,
    Load,
    RunningFold,
    Statement,
    Store,
)

VECTOR_BYTES = 16
"""The bytes that a thread of a GPU loads at a time."""


class Sharing(IntEnum):
    """The elements that a thread computes with; in a launch of several kernels, the last counts."""

    OWN = 0
    """Those that it has loaded, in vectors."""
    BUSY = 1
    """Those of one array, in vectors, of which it computes functions: two loads are under way."""
    NARROW = 2
    """Those that it has loaded, in shorter pieces: rows are not aligned to vectors."""
    PASSED = 3
    """Others too: blocks are turned, or scanned."""
    GATHERED = 4
    """Those that it has loaded; after loops, threads fold what each has gathered."""
    FOLDED = 5
    """Those that it has loaded; then threads fold what they have together."""


def sharing(kernel: Kernel) -> Sharing:
    """The way in which threads share the blocks of a kernel."""
    statements = kernel.statements
    if any(isinstance(s, Fold) and s.groups is not None for s in statements):
        return Sharing.GATHERED
    if any(isinstance(s, Fold | Contract) for s in statements):
        return Sharing.FOLDED
    results = [[x.dim for x in s.target.spans] for s in statements if isinstance(s, Store)]
    loaded = [[x.dim for x in s.source.spans] for s in statements if isinstance(s, Load)]
    is_turned = any(
        block[-1] in result[:-1] and result[-1] in block
        for block in loaded
        for result in results
        if block
    )
    if is_turned or any(isinstance(s, RunningFold) for s in statements):
        return Sharing.PASSED
    if not all(map(is_aligned, kernel.global_buffers)):
        return Sharing.NARROW
    blocks = [block for block in loaded if len(block) == max(map(len, loaded))]
    return Sharing.BUSY if len(blocks) == 1 and any(map(_is_long, statements)) else Sharing.OWN


def _is_long(statement: Statement) -> bool:
    """True if functions of numbers are computed that take a GPU several instructions."""
    if not isinstance(statement, Compute):
        return False
    found = [FUNCTIONS[node.op] for node in postorder(statement.expr) if node.op in FUNCTIONS]
    return any(f.arity == 1 and f.result == "float" for f in found)


def is_aligned(buffer: Buffer) -> bool:
    """True if rows of an array are known to begin at multiples of a vector."""
    length = buffer.axes[-1].dim.axis.extent if len(buffer.axes) > 1 else 0
    return isinstance(length, int) and length * buffer.dtype.bytes % VECTOR_BYTES == 0
