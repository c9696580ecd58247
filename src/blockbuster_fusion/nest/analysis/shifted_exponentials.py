"""Exponentials of a block less its own maximum: one of them is 1, along an axis.

Numbers far below 1 vanish in what they are summed with, or beside the largest of a row. So a GPU
need not keep those that are too small for a normal float, which takes as many instructions again.
"""

from collections import Counter
from collections.abc import Mapping

from blockbuster_fusion.ir.combiner import MAX
from blockbuster_fusion.ir.expr import Expr, postorder
from blockbuster_fusion.nest.nest import Compute, Fold, Kernel, Tile, written


def shifted_exponentials(kernel: Kernel) -> dict[Compute, frozenset[Expr]]:
    """The exponentials of blocks less their maxima, by the statements that compute them."""
    statements = kernel.statements
    writers = Counter(tile for s in statements if (tile := written(s)) is not None)
    once = {tile for tile, count in writers.items() if count == 1}
    above: dict[Tile, frozenset[Tile]] = {}
    found: dict[Compute, frozenset[Expr]] = {}
    for s in statements:
        if isinstance(s, Fold) and s.combiner is MAX and {s.tile, s.operand} <= once:
            above[s.tile] = frozenset((s.operand,))
        elif isinstance(s, Compute):
            blocks = frozenset[Tile]().union(*(above.get(t, ()) for t in s.operands))
            if s.tile in once and blocks and _is_no_less(s.expr):
                above[s.tile] = blocks
            shifted = frozenset(x for x in postorder(s.expr) if _is_shifted(x, s, above))
            found |= {s: shifted} if shifted else {}
    return found


def _is_no_less(expr: Expr) -> bool:
    """True if an expression is at least each of its operands, but for a bound near infinity."""
    inner = [node for node in postorder(expr) if node.args]
    return all(node.op == "maximum" or _is_bounded(node) for node in inner)


def _is_bounded(node: Expr) -> bool:
    """True for the smaller one of something and the largest number."""
    is_large = (a.op == "const" and a.number > LARGE for a in node.args)
    return node.op == "minimum" and any(is_large)


LARGE = 1e38
"""A number that only guards against infinities."""


def _is_shifted(node: Expr, s: Compute, above: Mapping[Tile, frozenset[Tile]]) -> bool:
    """True for an exponential of a tile less a number that none of its elements exceeds."""
    if node.op != "exp" or node.args[0].op != "sub":
        return False
    left, right = node.args[0].args
    if left.op != "arg" or right.op != "arg":
        return False
    return s.operands[left.index] in above.get(s.operands[right.index], ())
