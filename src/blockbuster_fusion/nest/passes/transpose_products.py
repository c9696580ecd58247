"""Computes the transposes of products with few rows, on a GPU.

Tensor cores multiply 64 rows at a time with any number of columns. A product of few rows with many
columns wastes most of them. Its transpose has many rows and few columns.
"""

from dataclasses import replace

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.nest.analysis.matrix_products import is_dot, product_of
from blockbuster_fusion.nest.nest import Contract, Kernel, Tile, tiles
from blockbuster_fusion.nest.rewrite import Renaming

MOST_ROWS, GROUP = 32, 64
"""The most rows of a product that is transposed, and the least columns."""


def transpose_products(kernel: Kernel) -> Kernel:
    """The kernel with the axes of its products, and of what is made of them, in another order."""
    dims = few_rows_and_columns(kernel)
    if dims is None:
        return kernel
    found = dict.fromkeys(tile for s in kernel.statements for tile in tiles(s))
    same = [tile for tile in found if tuple(span.dim for span in tile.spans) == dims]
    turned = {tile: Tile(tile.name, tile.spans[::-1], tile.dtype) for tile in same}
    return replace(kernel, body=Renaming({}, {}, tiles=turned).body(kernel.body))


def few_rows_and_columns(kernel: Kernel) -> tuple[Dim, Dim] | None:
    """The dims of the rows and columns of a kernel's products, if these are to be transposed.

    All products have the same, and there is nothing but rows and columns.
    """
    dots = [s for s in kernel.statements if isinstance(s, Contract)]
    if not dots or not all(is_dot(s) and product_of(s).is_plain for s in dots):
        return None
    pairs = {(product_of(s).rows[0].dim, product_of(s).columns[0].dim) for s in dots}
    if len(pairs) > 1:
        return None
    rows, columns = pair = next(iter(pairs))
    few, many = rows.axis.extent, columns.axis.extent
    if not isinstance(few, int) or not isinstance(many, int):
        return None
    return pair if few <= MOST_ROWS and many >= GROUP else None
