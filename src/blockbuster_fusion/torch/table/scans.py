"""Scans along a position: running sums, products, maxima and minima."""

import torch

from blockbuster_fusion.array.positional import PositionalBuilder
from blockbuster_fusion.array.records import PositionalArray
from blockbuster_fusion.errors import NotExpressible
from blockbuster_fusion.ir.combiner import ADD, LOGADDEXP, MAX, MIN, MUL, Combiner
from blockbuster_fusion.torch.table.pointwise import converted
from blockbuster_fusion.torch.table.reductions import axes_of
from blockbuster_fusion.torch.table.row import DTYPES, EmitFunction, reduction


def _scanned(combiner: Combiner) -> EmitFunction:
    def entry(
        p: PositionalBuilder, x: PositionalArray, dim: int, *, dtype: torch.dtype | None = None
    ) -> PositionalArray:
        if dtype is not None and dtype not in DTYPES:
            raise NotExpressible(what=f"a scan in {dtype}")
        x = x if dtype is None else converted(p, x, DTYPES[dtype])
        at = axes_of(x, dim)
        return p.scan(combiner, x, at[0]) if at else x

    return entry


def _values(combiner: Combiner) -> EmitFunction:
    """The first of two results; no kernel computes the other one, the places of the values."""

    def entry(p: PositionalBuilder, x: PositionalArray, dim: int) -> tuple[PositionalArray]:
        return (_scanned(combiner)(p, x, dim),)

    return entry


reduction("cumsum")(_scanned(ADD))
reduction("cumprod")(_scanned(MUL))
reduction("logcumsumexp")(_scanned(LOGADDEXP))
reduction("cummax")(_values(MAX))
reduction("cummin")(_values(MIN))
