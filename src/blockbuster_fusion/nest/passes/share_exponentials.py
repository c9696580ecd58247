"""Exponentials that a body needs twice are computed once.

A softmax has e^(x-m) in its sum and in its result. In the result the shift is NaN for a row that
has none, where(c, nan, m). So its exponential is where(c, nan, e^(x-m)), of what is known. That
holds for rows, which stay in the first cache of a CPU, or in registers of a GPU.
"""

from collections import Counter
from collections.abc import Container
from dataclasses import dataclass, field, replace

from blockbuster_fusion.ir.expr import Expr, arg, arguments, call, contains, rewrite, substitute
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.nest import (
    Body,
    Compute,
    Contract,
    Fold,
    Kernel,
    Statement,
    Tile,
    written,
)
from blockbuster_fusion.nest.passes.remove_dead_code import remove_dead_code
from blockbuster_fusion.nest.rewrite import rebuilt


def share_exponentials(kernel: Kernel) -> Kernel:
    """Reads exponentials again that a body has computed; kernels with products stay as they are."""
    statements = kernel.statements
    if any(isinstance(s, Contract) for s in statements):
        return kernel
    writers = Counter(tile for s in statements if (tile := written(s)) is not None)
    once = {tile for tile, count in writers.items() if count == 1}
    folds = [s for s in statements if isinstance(s, Fold)]
    rows = {s.operand for s in folds if s.span == s.operand.spans[-1]}

    def shared(body: Body) -> Body:
        known = _Known(once, rows)
        return tuple(known.statement(s) for s in body)

    made = replace(kernel, body=rebuilt(kernel.body, shared))
    return kernel if tuple(made.statements) == statements else remove_dead_code(made)


@dataclass(slots=True)
class _Known:
    """The exponentials and guarded shifts of a body so far; argument n stands for tile number n."""

    once: Container[Tile]
    """The tiles that do not change."""
    rows: Container[Tile]
    """The tiles that are reduced along their rows: each row is read again before the next."""
    tiles: dict[Tile, int] = field(default_factory=dict)
    exponentials: dict[Expr, Tile] = field(default_factory=dict)
    guarded: dict[int, Expr] = field(default_factory=dict)
    """Tiles of the form where(c, nan, tile)."""

    def statement(self, s: Statement) -> Statement:
        if not isinstance(s, Compute) or any(t not in self.once for t in (s.tile, *s.operands)):
            return s
        whole = substitute(s.expr, [self.argument(t) for t in s.operands])
        made = rewrite(whole, lambda node: self.shared(node, s.tile.dtype))
        is_wide = s.tile.dtype.bytes >= 4
        if whole.op == "exp" and made is whole and is_wide and s.tile in self.rows:
            self.exponentials[whole] = s.tile
        if whole.op == "where" and _is_nan(whole.args[1]) and whole.args[2].op == "arg":
            self.guarded[self.argument(s.tile).index] = whole
        if made is whole:
            return s
        tiles, used = [*self.tiles], sorted(arguments(made))
        expr = substitute(made, {number: arg(at) for at, number in enumerate(used)})
        return Compute(s.tile, expr, tuple(tiles[number] for number in used))

    def argument(self, tile: Tile) -> Expr:
        return arg(self.tiles.setdefault(tile, len(self.tiles)))

    def shared(self, node: Expr, dtype: DType) -> Expr:
        """An exponential as the tile that holds it, with the guard of its shift, if it is known."""
        if node.op != "exp":
            return node
        if (found := self.found(node, dtype)) is not None:
            return found
        if contains(node, "where"):  # a guard that is not chosen has no effect
            return node
        plain = {number: arg(number) for number in arguments(node)}
        for number in plain.keys() & self.guarded.keys():
            condition, nan, shift = self.guarded[number].args
            found = self.found(substitute(node, plain | {number: shift}), dtype)
            if found is not None:
                return call("where", condition, nan, found)
        return node

    def found(self, node: Expr, dtype: DType) -> Expr | None:
        tile = self.exponentials.get(node)
        return self.argument(tile) if tile is not None and tile.dtype is dtype else None


def _is_nan(node: Expr) -> bool:
    return node.op == "const" and node.number != node.number
