"""The dtype in which the operands of each contraction are multiplied.

Sums are float32 or float64. Operands that lie in memory as 16 bits are multiplied as they are, on
units made for that; the other side is rounded, if its numbers fit, and if the program does not
multiply more exactly there.
"""

from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.nest import (
    Compute,
    Contract,
    Kernel,
    Load,
    Lookup,
    Space,
    Statement,
    Tile,
    written,
)

NARROW = (DType.float16, DType.bfloat16)


class ProductTypes:
    """The dtypes in which the tiles of a kernel are loaded and multiplied."""

    def __init__(self, kernel: Kernel) -> None:
        self.loads: dict[Tile, DType] = {}
        self.makers: dict[Tile, list[Statement]] = {}
        for statement in kernel.statements:
            made = written(statement)
            if made is not None:
                self.makers.setdefault(made, []).append(statement)
            if isinstance(statement, Load | Lookup):
                self.loads[statement.tile] = statement.source.buffer.dtype
        arrays = (b for b in kernel.buffers if b.space is Space.GLOBAL)
        self.stores_narrow = any(b.dtype in NARROW for b in arrays)

    def stored(self, tile: Tile) -> DType:
        """The dtype of a tile, or that of the buffer it is loaded from."""
        return self.loads.get(tile, tile.dtype)

    def of(self, statement: Contract) -> DType:
        """The dtype in which the operands of a contraction are multiplied."""
        sides = (statement.left, statement.right)
        stored = [self.stored(side) for side in sides]
        if DType.float64 in stored:
            return DType.float64
        narrow = {dtype for dtype in stored if dtype in NARROW}
        if len(narrow) != 1:
            return DType.float32
        (dtype,) = narrow
        others = [side for side in sides if self.stored(side) not in NARROW]
        if others and not _is_exact_enough(dtype, statement.rounds_to):
            return DType.float32
        fits = dtype is DType.bfloat16 or all(map(self.is_exponential, others))
        return dtype if fits else DType.float32

    def is_exact(self, statement: Contract) -> bool:
        """True for products of wide numbers that are not rounded: tensor cores would round them.

        They may be rounded where other arrays have 16 bits, unless the program says otherwise.
        """
        dtype = self.of(statement)
        if dtype in NARROW or dtype is not DType.float32:
            return dtype not in NARROW
        sides = (statement.left, statement.right)
        is_rounded = self.stores_narrow or any(self.stored(side) in NARROW for side in sides)
        return statement.rounds_to is DType.float32 or not is_rounded

    def is_exponential(self, tile: Tile) -> bool:
        """True for an exponential: positive, and at most 1, so that it fits float16."""
        makers = self.makers[tile]
        return all(isinstance(s, Compute) and s.expr.op == "exp" for s in makers)


def _is_exact_enough(dtype: DType, wanted: DType | None) -> bool:
    """True if a number that is rounded to a 16-bit dtype is as exact as the program has it."""
    return wanted is None or wanted is dtype or wanted is DType.bfloat16
