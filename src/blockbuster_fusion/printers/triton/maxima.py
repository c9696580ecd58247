"""Maxima that only shift exponents, and those whose value matters.

`tl.max` leaves NaN out. Where a maximum is subtracted within an exponential and used for nothing
else, as in softmax, a NaN comes through the exponential anyway. Elsewhere NaN is kept.
"""

from blockbuster_fusion.ir.combiner import MAX, MIN
from blockbuster_fusion.ir.expr import Expr
from blockbuster_fusion.nest.nest import Compute, Fold, Kernel, Statement, Tile, read


def seen_maxima(kernel: Kernel) -> frozenset[Fold]:
    """The maxima and minima of a kernel whose value is used outside of exponentials."""
    readers: dict[Tile, list[Statement]] = {}
    for statement in kernel.statements:
        for tile in read(statement):
            readers.setdefault(tile, []).append(statement)
    folds = (s for s in kernel.statements if isinstance(s, Fold) and s.combiner in (MAX, MIN))
    return frozenset(s for s in folds if s.operand.dtype.is_float and _is_seen(s.tile, readers))


def _is_seen(tile: Tile, readers: dict[Tile, list[Statement]]) -> bool:
    pending, known = [tile], {tile}
    while pending:
        one = pending.pop()
        for statement in readers.get(one, ()):
            if not isinstance(statement, Compute):
                return True
            if not _comes_out(statement, one):
                continue
            if statement.expr.op not in ("arg", "maximum", "minimum"):
                return True
            if statement.tile not in known:
                known.add(statement.tile)
                pending.append(statement.tile)
    return False


def _comes_out(statement: Compute, tile: Tile) -> bool:
    """True if an expression has the tile anywhere but within an exponential."""
    stack: list[Expr] = [statement.expr]
    while stack:
        node = stack.pop()
        if isinstance(node.value, int) and node.op == "arg":
            if statement.operands[node.value] is tile:
                return True
        elif node.op not in ("exp", "exp2"):
            stack.extend(node.args)
    return False
