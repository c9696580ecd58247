"""Scans as products with triangles of ones, for tensor cores.

Two things keep a GPU's tensor cores busy. The triangle is made of a product, whose layout is that
of an operand in registers: Triton would read it from shared memory in each step else. And it has
-1 for 1: Triton does not turn a difference into a product that adds to the sums, and so the product
with the triangle does not wait for that with all ones of the step before.
"""

from collections.abc import Sequence

from blockbuster_fusion.nest.analysis.triangular_scans import (
    FURTHER,
    LONGEST,
    SHORTEST,
    TriangularScan,
)
from blockbuster_fusion.printers.operators import TRITON_TYPES
from blockbuster_fusion.printers.triton.layout import aligned
from blockbuster_fusion.printers.triton.moves import load, store
from blockbuster_fusion.printers.triton.values import TileValues


def by_triangles(
    values: TileValues,
    scan: TriangularScan,
    loop: tuple[str, str],
    declared: Sequence[str],
    usual: Sequence[str],
) -> list[str]:
    """The lines of a loop that scans by products, and those of the usual loop where that fails.

    `loop` is its variable and its bounds, `declared` the lines that its steps begin with.
    """
    name, bounds = loop
    stages = f"{values.variables.use('STAGES')} + {FURTHER}"
    names, made, carry = values.variables.names, scan.made.tile, scan.carry
    rows, columns = (values.variables.block(span.dim) for span in made.spans)
    lower, every, sums, again = (
        names.local(word, str(carry)) for word in ("lower", "every", "sums", "again")
    )
    dtype = TRITON_TYPES[scan.stored]
    block = f"{values.value(scan.load.tile)}.to({dtype})"
    step = [
        *declared,
        *load(values, scan.load),
        f"{made} = {sums} - tl.dot({lower}, {block})",
        *store(values, scan.store),
        f"{sums} = tl.dot({every}, {block}, {sums})",
    ]
    at = f"tl.arange(0, {rows})"
    first = aligned(values.value(carry), carry.spans, made.spans)
    sides = (f"[{rows}, {SHORTEST}], {-1 / SHORTEST}", f"[{SHORTEST}, {rows}], 1.0")
    left, right = (f"tl.full({side}, {dtype})" for side in sides)
    products = [
        f"{lower} = tl.dot({left}, {right})",
        f"{lower} = tl.where({at}[:, None] >= {at}[None, :], {lower}, 0.0).to({dtype})",
        f"{every} = tl.full([{rows}, {rows}], 1.0, {dtype})",
        f"{sums} = tl.broadcast_to({first}, {values.shape(made)})",
        f"for {name} in tl.range({bounds}, num_stages={stages}):",
        *(f"    {line}" for line in step),
        f'{again} = tl.max(tl.max(tl.where(tl.abs({sums}) < float("inf"), 0, 1), 1), 0) > 0',
    ]
    return [
        f"{again} = True",
        f"if {rows} >= {SHORTEST} and {rows} <= {LONGEST} and {columns} >= {SHORTEST}:",
        *(f"    {line}" for line in products),
        f"if {again}:  # 0 times an infinity is NaN",
        *(f"    {line}" for line in usual),
    ]
