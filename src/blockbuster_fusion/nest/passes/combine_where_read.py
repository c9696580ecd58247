"""Has the kernels that read statistics combine their shares themselves.

Where a reduction is split, a kernel combines the shares of its programs into a number for each row,
and the next one reads that. The shares are few: so each program of the next kernel combines those
of its own rows, and one launch is saved.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import takewhile

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.expr import arg
from blockbuster_fusion.nest.analysis.independence import touched
from blockbuster_fusion.nest.nest import (
    Body,
    Buffer,
    Compute,
    Contract,
    For,
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
from blockbuster_fusion.nest.passes.merge_kernels import loads_as_stored, without_unread
from blockbuster_fusion.nest.rewrite import FreshNames, Renaming, rebuilt
from blockbuster_fusion.nest.shares import is_axis_of_parts


def combine_where_read(nest: Nest) -> Nest:
    """The nest without kernels that only combine shares for the kernel after them."""
    steps: list[NestStep] = []
    for at, step in enumerate(nest.steps):
        last = steps[-1] if steps else None
        if isinstance(last, Kernel) and isinstance(step, Kernel) and _only_combines(nest, last):
            combined = _combining(last, step)
            others = (*steps[:-1], *nest.steps[at + 1 :])
            if combined is not None and not _are_read(_made(last), others):
                steps[-1] = combined
                continue
        steps.append(step)
    return without_unread(replace(nest, steps=tuple(steps)))


def _only_combines(nest: Nest, kernel: Kernel) -> bool:
    """True if a kernel makes numbers for rows of the shares of a reduction, for other kernels."""
    between = {*nest.between}
    for s in kernel.statements:
        if isinstance(s, Contract) or not between.issuperset(a.buffer for a in accesses(s)):
            return False
        if isinstance(s, For) and not is_axis_of_parts(s.index.dim.axis):
            return False
        if isinstance(s, Store) and (s.atomic or s.places is not None or len(s.tile.spans) > 1):
            return False
    return all(any(s is own for own in kernel.body) for s in _stores(kernel))


def _stores(kernel: Kernel) -> list[Store]:
    return [s for s in kernel.statements if isinstance(s, Store)]


def _made(kernel: Kernel) -> set[Buffer]:
    return {s.target.buffer for s in _stores(kernel)}


def _are_read(buffers: set[Buffer], steps: Iterable[NestStep]) -> bool:
    """True if some steps touch one of the buffers."""
    return any(not buffers.isdisjoint(set().union(*touched(step))) for step in steps)


def _combining(first: Kernel, second: Kernel) -> Kernel | None:
    """The second kernel with the statements of the first; None if it cannot be.

    They come behind the blocks that the second one loads first: these arrive meanwhile.
    """
    stored = {s.target.buffer: s for s in _stores(first)}
    if len(stored) < len(_stores(first)):
        return None
    indices: dict[Index, Index] = {}
    for s in walk(second.body):
        if stored.keys().isdisjoint(a.buffer for a in accesses(s)):
            continue
        if not isinstance(s, Load) or not loads_as_stored(s, stored[s.source.buffer]):
            return None
        pairs = zip(stored[s.source.buffer].target.spans, s.source.spans, strict=True)
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

    def taken(body: Body) -> Body:
        return tuple(_taken(s, made) for s in body)

    rest = rebuilt(second.body, taken)
    loads = tuple(takewhile(lambda s: isinstance(s, Load), rest))
    return replace(second, body=(*loads, *body, *rest[len(loads) :]))


def _taken(s: Statement, made: Mapping[Buffer, Tile]) -> Statement:
    """A statement that takes what it would load."""
    if isinstance(s, Load) and s.source.buffer in made:
        return Compute(s.tile, arg(0), (made[s.source.buffer],))
    return s
