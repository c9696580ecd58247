"""The arrays of a kernel whose blocks a tensor descriptor can load or store.

A descriptor has the shape, the strides and the block of an array. A unit of the GPU copies whole
blocks by it, and fills in 0 beyond the end of an axis: no thread computes addresses or masks.
"""

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.nest.analysis.matrix_products import is_dot
from blockbuster_fusion.nest.analysis.product_types import NARROW, ProductTypes
from blockbuster_fusion.nest.nest import (
    Access,
    Along,
    Buffer,
    Contract,
    Kernel,
    Load,
    Space,
    Statement,
    Store,
    Tile,
    accesses,
    read,
)

Blocks = tuple[Dim, ...]
"""The dims of the blocks of an array."""


def describable_blocks(kernel: Kernel) -> dict[Buffer, Blocks]:
    """The matrices of which a kernel loads nothing but operands of dots, in blocks of one shape.

    All sizes are fixed: a descriptor is encoded for them.
    """
    if kernel.symbols:
        return {}
    types, users = ProductTypes(kernel), _users(kernel)
    found: dict[Buffer, set[Blocks]] = {}
    others: set[Buffer] = set()
    for statement in kernel.statements:
        if isinstance(statement, Load) and _is_operand(statement, types, users):
            source = statement.source
            found.setdefault(source.buffer, set()).add(tuple(span.dim for span in source.spans))
        else:
            others |= {access.buffer for access in accesses(statement)}
    kept = {buffer: dims for buffer, dims in found.items() if buffer not in others}
    return {buffer: next(iter(dims)) for buffer, dims in kept.items() if len(dims) == 1}


def described_blocks(kernel: Kernel) -> dict[Buffer, Blocks]:
    """The arrays whose blocks a kernel loads by descriptors, where their strides allow it."""
    return describable_blocks(kernel) if kernel.is_described else {}


def described_results(kernel: Kernel) -> dict[Buffer, Blocks]:
    """The matrices that a kernel stores by descriptors, each in one place.

    Programs that compute blocks in turns store one while they load the next. Others have nothing
    to do meanwhile, so that pointers serve as well.
    """
    if not (kernel.is_described and kernel.programs):
        return {}
    uses = [access.buffer for s in kernel.statements for access in accesses(s)]
    stores = [s for s in kernel.statements if isinstance(s, Store) and _is_plain(s)]
    return {
        s.target.buffer: tuple(span.dim for span in s.target.spans)
        for s in stores
        if uses.count(s.target.buffer) == 1
    }


def _is_plain(store: Store) -> bool:
    """True if a store writes a block of a matrix in 16 bits."""
    return store.places is None and not store.atomic and _is_matrix(store.target)


def _is_matrix(access: Access) -> bool:
    buffer, spans = access.buffer, access.spans
    is_whole = all(axis.along in (Along.AXIS, Along.PADDED) for axis in buffer.axes)
    is_global = buffer.space is Space.GLOBAL and buffer.dtype in NARROW
    return is_global and is_whole and len(spans) == 2 and all(span.dim.packed for span in spans)


def _users(kernel: Kernel) -> dict[Tile, list[Statement]]:
    users: dict[Tile, list[Statement]] = {}
    for statement in kernel.statements:
        for tile in read(statement):
            users.setdefault(tile, []).append(statement)
    return users


def _is_operand(load: Load, types: ProductTypes, users: dict[Tile, list[Statement]]) -> bool:
    """True if a block of a matrix goes to dots just as it is loaded."""
    if load.beyond != 0.0 or not _is_matrix(load.source):
        return False
    return all(_is_direct(s, load.tile, types) for s in users.get(load.tile, ()))


def _is_direct(statement: Statement, tile: Tile, types: ProductTypes) -> bool:
    if not isinstance(statement, Contract) or not is_dot(statement):
        return False
    sides = (statement.left, statement.right)
    is_masked = any(
        mask for side, mask in zip(sides, statement.tail_masked, strict=True) if side is tile
    )
    return tile in sides and not is_masked and types.of(statement) is types.stored(tile)
