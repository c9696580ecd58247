"""Merging of small kernels with equal grids.

Triton compiles a kernel in about a tenth of a second, plus a hundredth for each load with its
arithmetic. So many small kernels take long to compile and to launch. Neighbours with equal grids
are merged, up to the number of statements that Triton compiles in about a second: those that do
not depend on one another, and one that reads just the blocks that the same program of the other
has written. It takes them from there.
"""

from collections.abc import Hashable, Mapping
from dataclasses import replace

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.expr import arg
from blockbuster_fusion.nest.analysis.independence import meet, touched
from blockbuster_fusion.nest.nest import (
    Body,
    Call,
    Clear,
    Compute,
    Fill,
    Fold,
    Index,
    Kernel,
    Load,
    Lookup,
    Nest,
    NestStep,
    Positions,
    RunningFold,
    Statement,
    Store,
    accesses,
)
from blockbuster_fusion.nest.rewrite import FreshNames, Renaming, rebuilt

MOST_STATEMENTS = 128
"""Statements in a kernel of several: Triton takes about a second for so many."""

Straight = Load | Lookup | Compute | Positions | Fold | RunningFold | Fill | Store
"""Statements without loops or products."""


def merge_kernels(nest: Nest, blocks: Mapping[Dim, int], most: int = MOST_STATEMENTS) -> Nest:
    """Merges neighbouring kernels with equal grids; `blocks` are the tiles of dims."""
    steps: list[NestStep] = []
    for step in nest.steps:
        last = steps[-1] if steps else None
        if isinstance(last, Kernel) and isinstance(step, Kernel):
            moved = _on_grid_of(last, step, blocks)
            if moved is not None and _length(last) + _length(step) <= most:
                steps[-1] = replace(last, body=(*last.body, *moved))
                continue
        steps.append(step)
    return without_unread(replace(nest, steps=tuple(steps)))


def _length(kernel: Kernel) -> int:
    return sum(1 for _ in kernel.statements)


def _on_grid_of(first: Kernel, second: Kernel, blocks: Mapping[Dim, int]) -> Body | None:
    """The second kernel on the grid of the first, if one program may run both."""
    grids = [[_form(index, blocks) for index in kernel.grid] for kernel in (first, second)]
    if grids[0] != grids[1] or not is_straight(second):
        return None
    names, taken = FreshNames(first, second), FreshNames(first).taken

    def free(name: str) -> str:
        return names.numbered("t") if name in taken else name

    indices = dict(zip(second.grid, first.grid, strict=True))
    moved = Renaming(indices, {}, free).body(second.body)
    if not meet(first, second):
        return moved if is_straight(first) else None
    return continued(first, moved)


def continued(first: Kernel, body: Body) -> Body | None:
    """The statements after those of a kernel whose blocks they read, or None if they cannot be."""
    read, made = touched(first)
    also = {s.target.buffer for s in body if isinstance(s, Store)}
    if also & (read | made):
        return None
    every = [s.target.buffer for s in first.statements if isinstance(s, Store)]
    stores = {
        s.target.buffer: s
        for s in first.body
        if isinstance(s, Store) and every.count(s.target.buffer) == 1
    }
    continued: list[Statement] = []
    for statement in body:
        sources = [a.buffer for a in accesses(statement) if not isinstance(statement, Store)]
        if isinstance(statement, Fold):  # a load ends in zeros, and a computed tile does not
            statement = replace(statement, tail_masked=True)
        if not made.intersection(sources):
            continued.append(statement)
            continue
        stored = stores.get(sources[0])
        if not isinstance(statement, Load) or stored is None:
            return None
        is_same = stored.target == statement.source and loads_as_stored(statement, stored)
        if stored.atomic or not is_same:
            return None
        continued.append(Compute(statement.tile, arg(0), (stored.tile,)))
    return tuple(continued)


def loads_as_stored(load: Load, store: Store) -> bool:
    """True if numbers are stored and loaded with the dtype in which they are computed."""
    return load.tile.dtype == store.tile.dtype == load.source.buffer.dtype


def without_unread(nest: Nest) -> Nest:
    """The nest without the buffers between its kernels that no kernel reads any more."""
    kernels = nest.kernels
    read = {
        a.buffer
        for k in kernels
        for s in k.statements
        if not isinstance(s, Store)
        for a in accesses(s)
    }
    read |= {view.buffer for step in nest.steps if isinstance(step, Call) for view in step.operands}
    dead = {buffer for buffer in nest.between if buffer not in read}
    if not dead:
        return nest

    def live(body: Body) -> Body:
        return tuple(s for s in body if not (isinstance(s, Store) and s.target.buffer in dead))

    steps = [
        replace(step, body=rebuilt(step.body, live)) if isinstance(step, Kernel) else step
        for step in nest.steps
        if not (isinstance(step, Clear) and step.buffer in dead)
    ]
    between = tuple(buffer for buffer in nest.between if buffer not in dead)
    return replace(nest, steps=tuple(steps), between=between)


def _form(index: Index, blocks: Mapping[Dim, int]) -> Hashable:
    """The key that two indices share if they count the same blocks."""
    dim = index.dim
    return dim.axis.extent, dim.packed, dim.unit, blocks.get(dim)


def is_straight(kernel: Kernel) -> bool:
    return all(isinstance(s, Straight) for s in kernel.statements)
