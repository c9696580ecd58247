"""The lanes of a kernel with contractions: the dim along which its vectors run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.nest.nest import Contract, For, Kernel, Space, Span, Store, Tile


@dataclass(frozen=True, slots=True)
class ContractionPlan:
    """A contraction as the micro-kernel computes it.

    One operand is read in vectors along the columns, the other is broadcast along them.
    """

    rows: Span | None
    columns: Span
    broadcast: Tile
    vectors: Tile


def lanes_of(kernel: Kernel) -> Dim | None:
    """The packed dim of the grid that results have innermost; None without contractions.

    Results are laid out as the program has its loops, so the order of a grid changes no vectors.
    Shares of a split reduction are laid out otherwise: there it is the last packed dim of the grid.
    """
    packed = [index for index in kernel.grid if index.dim.packed]
    statements = kernel.statements
    if not packed or not any(isinstance(s, Contract) for s in statements):
        return None
    if any(isinstance(s, For) and s.share is not None for s in statements):
        return packed[-1].dim
    stores = [s.target for s in statements if isinstance(s, Store)]
    for target in stores:
        own = [index for span in target.spans for index in packed if index is span.at]
        if own and target.buffer.space is Space.GLOBAL:
            return own[-1].dim
    return packed[-1].dim


def planned_contraction(
    statement: Contract, order: Callable[[Tile], Sequence[Span]], held: Callable[[Tile], str]
) -> ContractionPlan | None:
    """The roles of operands and axes; None where no micro-kernel serves.

    `order` gives the spans of a tile as they lie in memory, and `held` the C type of its elements.
    """
    sides = (statement.left, statement.right)
    spans = order(statement.tile)
    types = {held(t) for t in (*sides, statement.tile)}
    if not spans or len(types) > 1 or not types <= {"float", "double"}:
        return None
    columns = spans[-1]
    vectors = [t for t in sides if columns in t.spans]
    if len(vectors) != 1:
        return None
    broadcast = next(t for t in sides if t is not vectors[0] or sides[0] is sides[1])
    kept = [s for s in order(broadcast) if s != statement.span]
    rows = next((s for s in reversed(kept) if s not in vectors[0].spans), None)
    return ContractionPlan(rows, columns, broadcast, vectors[0])
