"""Dots: contractions on tensor cores, and the dtypes of their operands."""

from collections.abc import Callable

from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.analysis.matrix_products import is_dot
from blockbuster_fusion.nest.analysis.product_types import NARROW, ProductTypes
from blockbuster_fusion.nest.nest import (
    Contract,
    For,
    Kernel,
    Load,
    Lookup,
    Statement,
    Tile,
    read,
    walk,
)


class Dots:
    """The loads that are operands of dots without conversion, and the dtype of each dot.

    `narrow` are tiles that stay as loaded; other uses widen them. `again` names the second variable
    of a tile that a loop loads twice.
    """

    def __init__(self, kernel: Kernel, again: Callable[[Tile], str]) -> None:
        self.types = ProductTypes(kernel)
        self.users: dict[Tile, list[Statement]] = {}
        for statement in kernel.statements:
            for tile in read(statement):
                self.users.setdefault(tile, []).append(statement)
        self.narrow = {
            tile: dtype
            for tile, dtype in self.types.loads.items()
            if dtype in NARROW and tile.dtype is not dtype and self._goes_in(tile, dtype)
        }
        self.again = {
            tile: again(tile)
            for loop in kernel.statements
            if isinstance(loop, For)
            for s in walk(loop.body)
            if isinstance(s, Load | Lookup) and self._is_mixed(tile := s.tile)
        }

    def stored(self, tile: Tile) -> DType:
        """The dtype of a tile, or that of the buffer it is loaded from."""
        return self.types.stored(tile)

    def mode(self, statement: Contract) -> tuple[DType, str | None]:
        """The dtype of a dot's operands, and its `input_precision`."""
        dtype = self.types.of(statement)
        if dtype in NARROW:
            return dtype, None
        return dtype, "ieee" if self.types.is_exact(statement) else "tf32"

    def _goes_in(self, tile: Tile, dtype: DType) -> bool:
        return any(
            isinstance(s, Contract) and is_dot(s) and self.mode(s)[0] is dtype
            for s in self.users.get(tile, ())
        )

    def _is_mixed(self, tile: Tile) -> bool:
        """True if a loaded tile is an operand of a dot as loaded, and is used elsewhere too."""
        direct = [self._is_direct(s, tile) for s in self.users.get(tile, ())]
        return any(direct) and not all(direct)

    def _is_direct(self, statement: Statement, tile: Tile) -> bool:
        if not isinstance(statement, Contract) or not is_dot(statement):
            return False
        dtype, precision = self.mode(statement)
        guard = statement.tail_masked[statement.right is tile]
        return precision != "ieee" and not guard and self.stored(tile) is dtype
