"""Operands of products, copied first so that their rows begin at multiples of 16 bytes.

A GPU copies blocks of matrices to shared memory in vectors of 16 bytes, while it multiplies others.
Rows of another length, such as 2949 numbers of 16 bits, are read number by number instead. The
copies have whole blocks, with zeros beyond the ends of axes. So products with them mask nothing.
"""

from dataclasses import dataclass, replace

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.nest.analysis.matrix_products import is_dot
from blockbuster_fusion.nest.nest import (
    Access,
    Along,
    Body,
    Buffer,
    BufferAxis,
    Contract,
    Index,
    Kernel,
    Load,
    Nest,
    NestStep,
    Space,
    Span,
    Store,
    Tile,
)
from blockbuster_fusion.nest.rewrite import rebuilt

ALIGNED = 16
"""The bytes that a GPU copies at a time."""


def pad_operands(nest: Nest) -> Nest:
    """Copies the operands of products whose rows are not aligned; each is copied once."""
    stores = [s for kernel in nest.kernels for s in kernel.statements if isinstance(s, Store)]
    inputs = {*nest.inputs} - {store.target.buffer for store in stores}
    padding = _Padding(inputs, {buffer.name for k in nest.kernels for buffer in k.buffers})
    steps: list[NestStep] = []
    for step in nest.steps:
        made = padding.kernel(step) if isinstance(step, Kernel) else step
        steps += [*padding.pending(), made]
    between = (*nest.between, *padding.copies.values())
    return replace(nest, steps=tuple(steps), between=between)


def is_ragged(access: Access) -> bool:
    """True if a matrix of known size has rows that do not begin at multiples of 16 bytes."""
    if not access.spans or not all(_is_loop(span) for span in access.spans):
        return False
    extents = [span.dim.axis.extent for span in access.spans]
    known = [extent for extent in extents if isinstance(extent, int)]
    if len(known) < len(extents) or not any(span.dim.packed for span in access.spans[:-1]):
        return False
    return known[-1] * access.buffer.dtype.bytes % ALIGNED != 0


def _is_loop(span: Span) -> bool:
    """True for a block of a loop."""
    return isinstance(span.at, Index) and not span.dim.unit


@dataclass
class _Padding:
    """The copies that are made so far."""

    inputs: set[Buffer]
    names: set[str]

    def __post_init__(self) -> None:
        self.copies: dict[tuple[Buffer, tuple[Dim, ...]], Buffer] = {}
        self.waiting: list[Kernel] = []

    def pending(self) -> list[Kernel]:
        """The kernels that make the copies which the next step reads."""
        made, self.waiting = self.waiting, []
        return made

    def kernel(self, kernel: Kernel) -> Kernel:
        """A kernel that reads copies of its operands."""
        dots = [s for s in kernel.statements if isinstance(s, Contract) and is_dot(s)]
        operands = {side for s in dots for side in (s.left, s.right)}

        def rewrite(body: Body) -> Body:
            return tuple(
                replace(s, source=self.copied(kernel.name, s.source))
                if isinstance(s, Load) and s.tile in operands and self.is_copied(s.source)
                else s
                for s in body
            )

        return replace(kernel, body=rebuilt(kernel.body, rewrite))

    def is_copied(self, access: Access) -> bool:
        axes = access.buffer.axes
        is_plain = all(axis.along is Along.AXIS for axis in axes)
        return access.buffer in self.inputs and is_plain and is_ragged(access)

    def copied(self, kernel: str, access: Access) -> Access:
        """The same block of a copy."""
        key = (access.buffer, tuple(span.dim for span in access.spans))
        if key not in self.copies:
            self.copies[key] = self.copy(kernel, access)
        return Access(self.copies[key], access.spans)

    def copy(self, kernel: str, access: Access) -> Buffer:
        """A new copy, and the kernel that makes it."""
        buffer, dims = access.buffer, [span.dim for span in access.spans]
        axes = (BufferAxis(d, Along.PADDED if d.packed else Along.AXIS) for d in dims)
        name = self.fresh(f"{buffer.name}_padded")
        made = Buffer(name, tuple(axes), buffer.dtype, Space.GLOBAL)
        grid = tuple(Index(d.name.lower(), d) for d in dims)
        spans = tuple(map(Span, dims, grid))
        tile = Tile("t1", tuple(s for s in spans if s.dim.packed), buffer.dtype)
        body = (Load(tile, Access(buffer, spans)), Store(Access(made, spans), tile))
        self.waiting.append(Kernel(f"{kernel}_{name}", grid, body))
        return made

    def fresh(self, wanted: str) -> str:
        """A name that no buffer has."""
        count = 1
        name = wanted
        while name in self.names:
            count += 1
            name = f"{wanted}_{count}"
        self.names.add(name)
        return name
