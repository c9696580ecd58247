"""The way in which the threads of a GPU share the blocks of a kernel without products."""

from enum import IntEnum

from blockbuster_fusion.nest.nest import Buffer, Contract, Fold, Kernel, Load, RunningFold, Store

VECTOR_BYTES = 16
"""The bytes that a thread of a GPU loads at a time."""


class Sharing(IntEnum):
    """The elements that a thread computes with; in a launch of several kernels, the last counts."""

    OWN = 0
    """Those that it has loaded, in vectors."""
    NARROW = 1
    """Those that it has loaded, in shorter pieces: rows are not aligned to vectors."""
    PASSED = 2
    """Others too: blocks are turned, or scanned."""
    GATHERED = 3
    """Those that it has loaded; after loops, threads fold what each has gathered."""
    FOLDED = 4
    """Those that it has loaded; then threads fold what they have together."""


def sharing(kernel: Kernel) -> Sharing:
    """The way in which threads share the blocks of a kernel."""
    statements = tuple(kernel.statements)
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
    return Sharing.OWN if all(map(is_aligned, kernel.global_buffers)) else Sharing.NARROW


def is_aligned(buffer: Buffer) -> bool:
    """True if rows of an array are known to begin at multiples of a vector."""
    length = buffer.axes[-1].dim.axis.extent if len(buffer.axes) > 1 else 0
    return isinstance(length, int) and length * buffer.dtype.bytes % VECTOR_BYTES == 0
