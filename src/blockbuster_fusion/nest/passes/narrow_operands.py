"""Arrays between kernels in 16 bits, if all that reads them rounds them to that.

A GPU multiplies 16-bit numbers of memory as they are; the other operand of such a product is
rounded. If that comes from another kernel, it is rounded when it is stored: the numbers are the
same, and blocks go straight to tensor cores, at half the bytes.
"""

from collections.abc import Mapping
from dataclasses import replace

from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.analysis.matrix_products import is_dot
from blockbuster_fusion.nest.analysis.product_types import NARROW, ProductTypes
from blockbuster_fusion.nest.nest import (
    Access,
    Body,
    Buffer,
    Contract,
    Kernel,
    Load,
    Nest,
    Statement,
    Store,
    Tile,
    accesses,
    read,
)
from blockbuster_fusion.nest.rewrite import rebuilt


def narrow_operands(nest: Nest) -> Nest:
    """A nest whose arrays between kernels are as narrow as the products that read them."""
    narrower = {b: made for b in nest.between if (made := _narrowed(b, nest)) is not None}
    if not narrower:
        return nest
    steps = tuple(_with(s, narrower) if isinstance(s, Kernel) else s for s in nest.steps)
    between = tuple(narrower.get(buffer, buffer) for buffer in nest.between)
    return replace(nest, steps=steps, between=between)


def _narrowed(buffer: Buffer, nest: Nest) -> Buffer | None:
    """An array in the dtype to which all products that read it round it; None if some do not."""
    known = {*nest.inputs, *(view.buffer for view in nest.outputs)}
    if buffer.dtype is not DType.float32 or buffer in known or len(buffer.axes) < 2:
        return None
    if not all(isinstance(step, Kernel) for step in nest.steps):
        return None  # an operator on the host, or a sum that starts at 0, may need it as it is
    found: set[DType | None] = set()
    for kernel in nest.kernels:
        if buffer in kernel.buffers:
            found |= _dtypes(buffer, kernel)
    (dtype,) = found if len(found) == 1 else (None,)
    return None if dtype is None else replace(buffer, dtype=dtype)


def _dtypes(buffer: Buffer, kernel: Kernel) -> set[DType | None]:
    """The dtypes in which a kernel reads an array; None for any but that of a product."""
    statements, types = [*kernel.statements], ProductTypes(kernel)
    users: dict[Tile, list[Statement]] = {}
    for statement in statements:
        for tile in read(statement):
            users.setdefault(tile, []).append(statement)
    made: set[DType | None] = set()
    for s in statements:
        if not any(access.buffer is buffer for access in accesses(s)):
            continue
        if isinstance(s, Store):
            made |= {None} if s.atomic else set()
        elif isinstance(s, Load):
            made |= {_rounded(user, types) for user in users.get(s.tile, ())}
        else:
            made.add(None)
    return made


def _rounded(statement: Statement, types: ProductTypes) -> DType | None:
    """The dtype to which a product rounds its operands."""
    if not isinstance(statement, Contract) or not is_dot(statement):
        return None
    dtype = types.of(statement)
    return dtype if dtype in NARROW else None


def _with(kernel: Kernel, buffers: Mapping[Buffer, Buffer]) -> Kernel:
    """A kernel with other arrays."""

    def other(access: Access) -> Access:
        return replace(access, buffer=buffers.get(access.buffer, access.buffer))

    def rewrite(body: Body) -> Body:
        return tuple(
            replace(s, source=other(s.source))
            if isinstance(s, Load)
            else replace(s, target=other(s.target))
            if isinstance(s, Store)
            else s
            for s in body
        )

    return replace(kernel, body=rebuilt(kernel.body, rewrite))
