"""Contractions as products of matrices: the roles of their axes.

A product with rows and columns is a *dot*, which tensor cores compute. One with a vector is not.
"""

from dataclasses import dataclass

from blockbuster_fusion.nest.nest import Contract, Span, Tile

MOST_AXES = 3
"""The most axes of tiles that Triton multiplies and sums; more are merged."""


@dataclass(frozen=True, slots=True)
class Product:
    """The axes of a contraction by their role in a product of matrices.

    Both operands have `batch`; one has `rows`, the other `columns`.
    """

    batch: tuple[Span, ...]
    rows: tuple[Span, ...]
    columns: tuple[Span, ...]
    first: Tile
    second: Tile

    @property
    def is_plain(self) -> bool:
        """True for a product of two matrices without reshaping."""
        return not self.batch and len(self.rows) == len(self.columns) == 1

    @property
    def is_wide(self) -> bool:
        """True if it has more axes than Triton multiplies and sums."""
        return len(self.batch) + len(self.rows) + len(self.columns) + 1 > MOST_AXES


def product_of(statement: Contract) -> Product:
    """A contraction as a product of matrices."""
    first, second, tile = statement.left, statement.right, statement.tile
    own = [s for s in tile.spans if (s in first.spans) != (s in second.spans)]
    if own and own[0] not in first.spans:
        first, second = second, first
    batch = tuple(s for s in tile.spans if s not in own)
    rows = tuple(s for s in own if s in first.spans)
    return Product(batch, rows, tuple(s for s in own if s in second.spans), first, second)


def is_dot(statement: Contract) -> bool:
    """True if tensor cores compute it: a product of matrices, after reshaping if need be."""
    product = product_of(statement)
    return bool(product.rows and product.columns) and statement.tile.dtype.is_float
