"""Symbolic sizes of PyTorch as products of a number and symbols."""

from typing import Any

import sympy
from torch.fx import Node
from torch.utils._sympy.functions import Max, Min

from blockbuster_fusion.array.axes import Size
from blockbuster_fusion.torch.capture.nodes import tensor_of


def as_size(extent: Any) -> Size:
    """A size as a product of a number and symbols."""
    if isinstance(extent, int):
        return Size(extent)
    number, factors = factored(expression_of(extent))
    return Size(number, tuple(sorted(str(factor) for factor in factors)))


def sizes_of(node: Node) -> list[Size]:
    """The shape of a node's result."""
    return [as_size(extent) for extent in tensor_of(node).shape]


def expression_of(extent: Any) -> Any:
    """The expression of a symbolic size, without maxima and minima that are decided.

    torch.export leaves 1 - max(0, 1 - n) where torch.compile decides that it is 1.
    """
    expr, known = extent.node.expr, extent.node.shape_env
    for term in expr.atoms(Max, Min):
        for x in term.args:
            bounds = [x >= y if isinstance(term, Max) else x <= y for y in term.args if y != x]
            if all(known._maybe_evaluate_static(sympy.sympify(bound)) for bound in bounds):
                expr = expr.xreplace({term: x})
                break
    return expr


def factored(expr: Any) -> tuple[int, list[Any]]:
    """The integer factor of a size, and its other factors: symbols, and sums."""
    number, factors = 1, list[Any]()
    for factor in sympy.Mul.make_args(sympy.sympify(expr)):
        if factor.is_Integer:
            number *= int(factor)
        elif factor.is_Pow and factor.exp.is_Integer and factor.exp > 0 and factor.base.is_Symbol:
            factors += [factor.base] * int(factor.exp)
        elif factor.is_Add and factor.primitive()[0].is_Integer:
            common, rest = factor.primitive()
            number *= int(common)
            factors.append(rest)
        else:
            factors.append(factor)
    return number, factors
