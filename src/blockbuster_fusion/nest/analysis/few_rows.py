"""Finds products with few rows, in which weights are read once, in place.

With 1 to 16 rows a product on a CPU takes as long as its weights take to come from memory. So these
are neither copied nor transposed. If the summed axis of a weight is contiguous, the product is made
of dot products, in vectors along that axis. If its other axis is, rows of the weight are added up,
each times a number of the few rows. Strides are known in the call only, and decide there.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.nest import (
    Access,
    Contract,
    Load,
    Space,
    Span,
    Statement,
    Store,
    Tile,
    read,
)

FEW = 16
"""The most rows of such a product."""


@dataclass(frozen=True, slots=True)
class FewRows:
    """The roles of operands and axes in a product of few rows with many."""

    few: Tile
    many: Tile
    rows: Span | None
    """The axis of the few rows; None if there is one row."""
    columns: Span
    """The axis of the many rows, which are columns of the product."""


def products_with_few_rows(
    statements: Sequence[Statement], longest: Callable[[Span], float]
) -> dict[Contract, FewRows]:
    """The products of a kernel with their roles; none if any has many rows and columns.

    `longest` is the length of the longest block of a span. Products of vectors have no roles.
    """
    products = [s for s in statements if isinstance(s, Contract) and s.tile.spans]
    roles = {s: _roles(s, longest) for s in products}
    found = {s: few_rows for s, few_rows in roles.items() if few_rows is not None}
    return found if len(found) == len(products) else {}


def _roles(statement: Contract, longest: Callable[[Span], float]) -> FewRows | None:
    sides = (statement.left, statement.right)
    if not _is_one_type(*(tile.dtype for tile in (*sides, statement.tile))):
        return None

    def own(at: int) -> list[Span]:
        """The axes that only one side has."""
        return [span for span in sides[at].spans if span not in sides[1 - at].spans]

    counts = [math.prod(map(longest, own(at))) for at in (0, 1)]
    few = 0 if counts[0] <= counts[1] else 1
    many = 1 - few
    if counts[few] > FEW or not own(many):
        return None
    return FewRows(sides[few], sides[many], next(reversed(own(few)), None), own(many)[-1])


def _is_one_type(*dtypes: DType) -> bool:
    """True if all are floats that are computed with as one type: 16 bits are widened to 32."""
    is_wide = {dtype is DType.float64 for dtype in dtypes}
    return len(is_wide) == 1 and all(dtype.is_float for dtype in dtypes)


def weights_in_place(
    statements: Sequence[Statement], products: Mapping[Contract, FewRows]
) -> dict[Tile, Access]:
    """The blocks that are the many rows of products and nothing else: they are read in place."""
    changed = {s.target.buffer for s in statements if isinstance(s, Store)}

    def is_weight(load: Load) -> bool:
        uses = [s for s in statements if load.tile in read(s)]
        roles = [products.get(s) if isinstance(s, Contract) else None for s in uses]
        return (
            load.source.buffer.space is Space.GLOBAL
            and load.source.buffer not in changed
            and _is_one_type(load.source.buffer.dtype, load.tile.dtype)
            and all(r is not None and r.many is load.tile is not r.few for r in roles)
        )

    return {s.tile: s.source for s in statements if isinstance(s, Load) and is_weight(s)}
