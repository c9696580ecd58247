"""Asynchrony: loads of a serial loop fetched some iterations ahead, into rings on the chip.

Printers that leave this to their compiler (Triton) or have no use for it (C) load where the nest
waits; one for a warp-specialised machine gives copies to a producer and the rest to consumers.
"""

from dataclasses import replace

from blockbuster_fusion.nest.nest import (
    Access,
    Along,
    Body,
    Buffer,
    BufferAxis,
    Copy,
    For,
    Kernel,
    Load,
    Role,
    Space,
    Statement,
    Wait,
)
from blockbuster_fusion.nest.rewrite import rebuilt


def staged(kernel: Kernel, stages: int, *, specialised: bool = False) -> Kernel:
    """The kernel with each load that varies in an innermost loop fetched `stages - 1` ahead.

    `specialised`: copies belong to a producer, what waits for them to consumers.
    """
    if stages < 2:
        return kernel

    def rewrite(body: Body) -> Body:
        return tuple(_staged(s, stages, specialised) if isinstance(s, For) else s for s in body)

    return replace(kernel, body=rebuilt(kernel.body, rewrite))


def _staged(loop: For, stages: int, specialised: bool) -> For:
    if any(isinstance(s, For) for s in loop.body):
        return loop
    copies: list[Statement] = []
    rest: list[Statement] = []
    producer, consumer = (Role.PRODUCER, Role.CONSUMER) if specialised else (Role.ALL, Role.ALL)
    for statement in loop.body:
        if isinstance(statement, Load) and _varies(statement.source, loop):
            ring = _ring(statement, stages)
            copies.append(Copy(ring, statement.source, loop.index, stages - 1, producer))
            rest.append(Wait(statement.tile, ring, statement.source, consumer))
        else:
            rest.append(statement)
    return replace(loop, body=(*copies, *rest))


def _varies(access: Access, loop: For) -> bool:
    return any(span.at is loop.index for span in access.spans)


def _ring(load: Load, stages: int) -> Buffer:
    axes = tuple(BufferAxis(span.dim, Along.BLOCK) for span in load.tile.spans)
    name = f"{load.tile.name}_ring"
    return Buffer(name, axes, load.source.buffer.dtype, Space.RING, stages)
