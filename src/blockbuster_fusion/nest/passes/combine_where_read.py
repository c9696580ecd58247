"""Has the kernels that read statistics combine their shares themselves.

Where a reduction is split, a kernel combines the shares of its programs into a number for each row,
and the next one reads that. The shares are few: so each program of the next kernel combines those
of its own rows, and one launch is saved.
"""

from collections.abc import Iterator
from dataclasses import replace

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.expr import arg
from blockbuster_fusion.nest.nest import (
    Body,
    Buffer,
    Compute,
    Contract,
    Fold,
    Index,
    Kernel,
    Load,
    Nest,
    NestStep,
    Statement,
    Store,
    Tile,
    accesses,
    walk,
)
from blockbuster_fusion.nest.passes.merge_kernels import without_unread
from blockbuster_fusion.nest.rewrite import FreshNames, Renaming, rebuilt


def combine_where_read(nest: Nest) -> Nest:
    """The nest without kernels that only combine shares for the kernel after them."""
    steps: list[NestStep] = []
    for step in nest.steps:
        last = steps[-1] if steps else None
        if isinstance(last, Kernel) and isinstance(step, Kernel) and _only_combines(nest, last):
            combined = _combining(last, step)
            if combined is not None and not _is_read_elsewhere(nest, last, step):
                steps[-1] = combined
                continue
        steps.append(step)
    return without_unread(replace(nest, steps=tuple(steps)))


def _only_combines(nest: Nest, kernel: Kernel) -> bool:
    """True if a kernel makes numbers for rows of what other kernels have made, for others."""
    between = {*nest.between}
    for s in kernel.statements:
        if isinstance(s, Contract) or not between.issuperset(a.buffer for a in accesses(s)):
            return False
        if isinstance(s, Store) and (s.atomic or s.places is not None or len(s.tile.spans) > 1):
            return False
    return all(any(s is own for own in kernel.body) for s in _stores(kernel))


def _stores(kernel: Kernel) -> Iterator[Store]:
    return (s for s in kernel.statements if isinstance(s, Store))


def _is_read_elsewhere(nest: Nest, first: Kernel, second: Kernel) -> bool:
    """True if another kernel than the second reads what the first one makes."""
    made = {s.target.buffer for s in _stores(first)}
    others = (step for step in nest.steps if step is not first and step is not second)
    return any(
        not made.isdisjoint(a.buffer for a in accesses(s))
        for step in others
        if isinstance(step, Kernel)
        for s in step.statements
    )


def _combining(first: Kernel, second: Kernel) -> Kernel | None:
    """The second kernel with the statements of the first before its own; None if it cannot be."""
    stored = {s.target.buffer: s for s in _stores(first)}
    if len(stored) < len([*_stores(first)]):
        return None
    indices: dict[Index, Index] = {}
    for load in _loads(second, stored):
        pairs = zip(stored[load.source.buffer].target.spans, load.source.spans, strict=True)
        for own, other in pairs:
            if not isinstance(own.at, Index) or other.at not in second.grid:
                return None
            assert isinstance(other.at, Index)
            if indices.setdefault(own.at, other.at) != other.at:
                return None
    if not indices or set(indices) != set(first.grid):
        return None
    names = FreshNames(first, second)
    dims: dict[Dim, Dim] = {own.dim: other.dim for own, other in indices.items()}
    renaming = Renaming(indices, dims, lambda name: names.numbered("t"))
    body = renaming.body(tuple(s for s in first.body if not isinstance(s, Store)))
    made = {buffer: renaming.tile(store.tile) for buffer, store in stored.items()}
    rows = {*dims.values()}

    def taken(body: Body) -> Body:
        return tuple(_taken(s, made, rows) for s in body)

    return replace(second, body=(*body, *rebuilt(second.body, taken)))


def _loads(kernel: Kernel, buffers: dict[Buffer, Store]) -> list[Load]:
    return [s for s in walk(kernel.body) if isinstance(s, Load) and s.source.buffer in buffers]


def _taken(s: Statement, made: dict[Buffer, Tile], rows: set[Dim]) -> Statement:
    """A statement that takes what it would load; a load ends in zeros, and a tile does not."""
    if isinstance(s, Load) and s.source.buffer in made:
        return Compute(s.tile, arg(0), (made[s.source.buffer],))
    if isinstance(s, Fold) and s.span.dim in rows:
        return replace(s, tail_masked=True)
    return s
