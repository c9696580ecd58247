"""Selections by a number of each row are made once for the row, not for each of its elements.

A softmax has r * where(m == inf, NaN, e): the maximum m and the factor r are numbers of a row, and
e is one of an element. What is selected times r is the same as e times what is selected of r.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from blockbuster_fusion.ir.expr import Expr, arguments, call, postorder, with_operands
from blockbuster_fusion.nest.nest import Body, Compute, Kernel, Span, Statement, Tile
from blockbuster_fusion.nest.rewrite import rebuilt


def select_once(kernel: Kernel) -> Kernel:
    """The kernel with factors of rows that are NaN where products with them were."""

    def moved(body: Body) -> Body:
        return tuple(map(_moved, body))

    return replace(kernel, body=rebuilt(kernel.body, moved))


def _moved(statement: Statement) -> Statement:
    if not isinstance(statement, Compute):
        return statement
    made: dict[Expr, Expr] = {}
    for node in postorder(statement.expr):
        same = with_operands(node, [made[x] for x in node.args])
        made[node] = _product(same, statement.operands)
    expr = made[statement.expr]
    return statement if expr is statement.expr else replace(statement, expr=expr)


def _product(node: Expr, operands: Sequence[Tile]) -> Expr:
    """A product whose factor of rows is selected, if the other factor was; or what is given."""
    if node.op != "mul":
        return node
    for factor, other in (node.args, node.args[::-1]):
        if other.op == "where" and _is_nan(other.args[1]):
            test, nan, value = other.args
            of_rows = _spans(test, operands) | _spans(factor, operands)
            if of_rows < _spans(value, operands):
                return call("where", test, nan, factor) * value
    return node


def _is_nan(node: Expr) -> bool:
    return node.op == "const" and math.isnan(node.number)


def _spans(node: Expr, operands: Sequence[Tile]) -> set[Span]:
    """The axes of the tiles that an expression depends on."""
    return {span for number in arguments(node) for span in operands[number].spans}
