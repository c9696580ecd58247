"""Merging of small kernels that do not depend on one another.

Triton compiles a kernel in about a tenth of a second, plus a hundredth for each load with its
arithmetic. So many small kernels take long to compile and to launch. Neighbours with equal grids
are merged, up to the number of statements that Triton compiles in about a second.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.nest.nest import (
    Access,
    Buffer,
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
    Span,
    Statement,
    Store,
    Tile,
    accesses,
    tiles,
)

MOST_STATEMENTS = 128
"""Statements in a kernel of several: Triton takes about a second for so many."""

Straight = Load | Lookup | Compute | Positions | Fold | Fill | Store
"""Statements without loops or products."""


def merge_kernels(nest: Nest, blocks: Mapping[Dim, int], most: int = MOST_STATEMENTS) -> Nest:
    """Merges neighbouring kernels with equal grids; `blocks` are the tiles of dims."""
    steps: list[NestStep] = []
    for step in nest.steps:
        last = steps[-1] if steps else None
        if isinstance(last, Kernel) and isinstance(step, Kernel):
            moved = _on_grid_of(last, step, blocks)
            if moved is not None and _length(last) + _length(step) <= most:
                steps[-1] = replace(last, body=(*last.body, *moved.body))
                continue
        steps.append(step)
    return replace(nest, steps=tuple(steps))


def _length(kernel: Kernel) -> int:
    return sum(1 for _ in kernel.statements)


def _on_grid_of(first: Kernel, second: Kernel, blocks: Mapping[Dim, int]) -> Kernel | None:
    """The second kernel on the grid of the first, if they may run at the same time."""
    grids = [[_form(index, blocks) for index in kernel.grid] for kernel in (first, second)]
    if grids[0] != grids[1] or not (_is_straight(first) and _is_straight(second)):
        return None
    if _names(first) & _names(second) or _meet(first, second):
        return None
    return _Moving(dict(zip(second.grid, first.grid, strict=True))).kernel(second)


def _form(index: Index, blocks: Mapping[Dim, int]) -> Hashable:
    """The key that two indices share if they count the same blocks."""
    dim = index.dim
    return dim.axis.extent, dim.packed, dim.unit, blocks.get(dim)


def _is_straight(kernel: Kernel) -> bool:
    return all(isinstance(s, Straight) for s in kernel.statements)


def _names(kernel: Kernel) -> set[str]:
    return {tile.name for s in kernel.statements for tile in tiles(s)}


def _meet(first: Kernel, second: Kernel) -> bool:
    """True if one kernel writes a buffer that the other reads or writes."""
    (one, made), (other, also) = _touched(first), _touched(second)
    return not made.isdisjoint(other | also) or not also.isdisjoint(one)


def _touched(kernel: Kernel) -> tuple[set[Buffer], set[Buffer]]:
    """The buffers that a kernel reads, and those that it writes."""
    sides: tuple[set[Buffer], set[Buffer]] = (set(), set())
    for s in kernel.statements:
        sides[isinstance(s, Store)].update(access.buffer for access in accesses(s))
    return sides


@dataclass(frozen=True)
class _Moving:
    """Rewrites statements to other indices; buffers stay as they are."""

    indices: Mapping[Index, Index]

    def kernel(self, kernel: Kernel) -> Kernel:
        made: dict[Tile, Tile] = {}
        body = tuple(self.statement(s, made) for s in kernel.body)
        return Kernel(kernel.name, tuple(self.indices.values()), body)

    def statement(self, s: Statement, made: dict[Tile, Tile]) -> Statement:
        def tile(old: Tile) -> Tile:
            if old not in made:
                made[old] = Tile(old.name, self.spans(old.spans), old.dtype)
            return made[old]

        match s:
            case Load():
                return Load(tile(s.tile), self.access(s.source))
            case Lookup():
                return Lookup(tile(s.tile), self.access(s.source), tile(s.places), s.axis)
            case Store():
                places = None if s.places is None else tile(s.places)
                return replace(s, target=self.access(s.target), tile=tile(s.tile), places=places)
            case Compute():
                return Compute(tile(s.tile), s.expr, tuple(map(tile, s.operands)))
            case Positions():
                return Positions(tile(s.tile), self.span(s.span))
            case Fold():
                span = self.span(s.span)
                return Fold(tile(s.tile), tile(s.operand), span, s.combiner, s.tail_masked)
            case Fill():
                return Fill(tile(s.tile), s.value)
        raise AssertionError(s)

    def access(self, access: Access) -> Access:
        return Access(access.buffer, self.spans(access.spans))

    def spans(self, spans: Sequence[Span]) -> tuple[Span, ...]:
        return tuple(map(self.span, spans))

    def span(self, span: Span) -> Span:
        if not isinstance(span.at, Index) or span.at not in self.indices:
            return span
        index = self.indices[span.at]
        return Span(index.dim, index)
