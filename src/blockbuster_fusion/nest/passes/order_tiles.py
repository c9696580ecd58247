"""Axes of computed tiles in the order of the arrays that they are stored in.

The operands of an expression may bring their axes in any order: the halves of a head after its
elements. A tile in another order than its array would be turned around element by element.
"""

from dataclasses import replace

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.nest.nest import (
    Compute,
    Kernel,
    Load,
    Lookup,
    Positions,
    Statement,
    Store,
    Tile,
)
from blockbuster_fusion.nest.rewrite import reading

Pointwise = Load | Lookup | Positions | Compute | Store


def order_tiles(kernel: Kernel) -> Kernel:
    """Orders the axes of what a pointwise kernel computes; other kernels stay as they are."""
    if not all(isinstance(s, Pointwise) for s in kernel.body):
        return kernel
    rank: dict[Dim, int] = {}
    for s in kernel.body:
        if isinstance(s, Store):
            for span in s.target.spans:
                rank.setdefault(span.dim, len(rank))
    body: list[Statement] = []
    moved: dict[Tile, Tile] = {}
    for s in kernel.body:
        for old, new in moved.items():
            s = reading(s, old, new)
        if isinstance(s, Compute) and all(span.dim in rank for span in s.tile.spans):
            spans = tuple(sorted(s.tile.spans, key=lambda span: rank[span.dim]))
            if spans != s.tile.spans:
                moved[s.tile] = Tile(s.tile.name, spans, s.tile.dtype)
                s = replace(s, tile=moved[s.tile])
        body.append(s)
    return replace(kernel, body=tuple(body))
