"""Splits a large expression into a sequence of small ones."""

from blockbuster_fusion.ir.expr import Expr, arg, arity, postorder, varying, with_operands

DEEPEST = 24
"""The most nested operators of a printed expression."""
LARGEST = 64
"""The most operators of a printed expression; shared ones count at every use."""


def split_expression(
    expr: Expr, *, deepest: int = DEEPEST, largest: int = LARGEST
) -> tuple[list[Expr], Expr]:
    """The parts that are computed first, and the expression over their results.

    The result of part number i is argument `arity(expr) + i` of the later ones. Numbers stay with
    the operator that uses them: alone, they would have no dtype.
    """
    first = arity(expr)
    parts: list[Expr] = []
    made: dict[Expr, Expr] = {}
    """Each node rewritten over the parts that have been split off."""
    sizes: dict[Expr, tuple[int, int]] = {}
    """Depth and size of each rebuilt node."""
    varies = varying(expr)

    def split_off(node: Expr) -> None:
        parts.append(made[node])
        made[node] = arg(first + len(parts) - 1)
        sizes[node] = (0, 0)

    for node in postorder(expr):
        within = [a for a in dict.fromkeys(node.args) if a in varies and sizes[a][1]]
        within.sort(key=lambda a: sizes[a][1])
        while within and (
            1 + max(sizes[a][0] for a in node.args) > deepest
            or 1 + sum(sizes[a][1] for a in node.args) > largest
        ):
            split_off(within.pop())
        made[node] = with_operands(node, (made[a] for a in node.args))
        depth, size = (
            (1 + max(sizes[a][0] for a in node.args), 1 + sum(sizes[a][1] for a in node.args))
            if node.args
            else (0, 0)
        )
        sizes[node] = depth, size
    return parts, made[expr]
