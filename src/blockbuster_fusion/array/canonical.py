"""Canonical forms of expressions that can be written in several ways.

A rewritten expression gives the same number for every element, or the number that PyTorch gives:
there `x**0.5` is a square root. Rules that hold for real numbers only are not used.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blockbuster_fusion.ir.expr import Expr, call, const, rewrite
from blockbuster_fusion.ir.expr_dtypes import result_dtype
from blockbuster_fusion.ir.types import DType

COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
MIRRORED = {"gt": "lt", "ge": "le"}
OPPOSITE = {"eq": "ne", "ne": "eq"}
OPPOSITE_OF_WHOLE = {"lt": "le", "le": "lt"}
"""The opposites that hold without NaN: `not x < y` is `y <= x`."""


def canonical(expr: Expr, dtypes: Sequence[DType]) -> Expr:
    """The canonical form of an expression whose arguments have these dtypes."""

    def simplified(node: Expr) -> Expr:
        while (simpler := _simpler(node, dtypes)) is not None:
            node = simpler
        return node

    return rewrite(expr, simplified)


@dataclass(frozen=True, slots=True)
class Scaled:
    """`where(condition, x, ±inf) * factor`, which is `where(condition, x * factor, ±inf)`."""

    condition: int
    kept: int
    factor: Expr
    left_out: Expr


def masked_scale(expr: Expr, inner: Expr) -> Scaled | None:
    """`expr` of its one argument `inner`, as a scaled choice; None if it is none."""
    match expr:
        case Expr("mul", (Expr("arg"), Expr("const") as factor)):
            pass
        case Expr("mul", (Expr("const") as factor, Expr("arg"))):
            pass
        case _:
            return None
    match inner:
        case Expr("where", (Expr("arg") as condition, Expr("arg") as kept, left_out)):
            pass
        case _:
            return None
    if not _is(left_out, math.isinf) or not _is(factor, lambda c: 0 < c < math.inf):
        return None
    return Scaled(condition.index, kept.index, factor, left_out)


def turned_choice(expr: Expr) -> tuple[int, Expr] | None:
    """The condition of `where(condition, number, x)`, and the choice with the number last.

    The new choice is for the opposite of the condition.
    """
    match expr:
        case Expr("where", (Expr("arg") as condition, Expr("const") as number, x)):
            if x.op == "const":
                return None
            return condition.index, call("where", condition, x, number)
    return None


def has_opposite(condition: Expr, dtypes: Sequence[DType]) -> bool:
    """True if the opposite of a condition is as simple."""
    return canonical(call("not_", condition), dtypes).op != "not_"


def _simpler(node: Expr, dtypes: Sequence[DType]) -> Expr | None:
    """The expression after one rule at its root, or None if no rule applies."""
    found = _rewritten(node, dtypes)
    if found is None or result_dtype(found, dtypes) is not result_dtype(node, dtypes):
        return None
    return found


def _rewritten(node: Expr, dtypes: Sequence[DType]) -> Expr | None:
    match node:
        case Expr("and_", (x, y)):
            return y if _is_number(x, True) else x if _is_number(y, True) else None
        case Expr("or_", (x, y)):
            return y if _is_number(x, False) else x if _is_number(y, False) else None
        case Expr("not_", (Expr("not_", (x,)),)) | Expr("neg", (Expr("neg", (x,)),)):
            return x
        case Expr("not_", (Expr(op, (x, y)),)) if op in OPPOSITE:
            return call(OPPOSITE[op], x, y)
        case Expr("not_", (Expr(op, (x, y)),)) if op in OPPOSITE_OF_WHOLE:
            return call(OPPOSITE_OF_WHOLE[op], y, x) if _are_whole(dtypes, x, y) else None
        case Expr("where", (Expr("not_", (condition,)), x, y)):
            return call("where", condition, y, x)
        case Expr("mul", (x, y)) if x is y and x.op != "const":
            return x**2
        case Expr("mul", (x, y)) if _is_number(y, -1):
            return -x
        case Expr("mul", (x, y)) if _is_number(x, -1):
            return -y
        case Expr("div", (x, y)) if _is(y, _has_exact_inverse):
            return x * const(1 / y.number)
        case Expr("div", (one, Expr("sqrt", (x,)))) if _is_number(one, 1):
            return x**-0.5
        case Expr("pow", (x, y)) if _is_number(y, 0.5):
            return call("sqrt", x)
        case Expr("pow", (x, y)) if _is_number(y, -1):
            return 1 / x
        case Expr("pow", (x, y)) if _is_number(y, 1):
            return x
        case Expr(op, (Expr("sub", (x, y)), zero)) if op in COMPARISONS and _is_number(zero, 0):
            return call(op, x, y) if _are_whole(dtypes, x, y) else None
        case Expr(op, (x, y)) if op in MIRRORED:
            return call(MIRRORED[op], y, x)
        case Expr("sub" | "add", (x, y)) if x.op == y.op == "const":
            return _folded(node)
    return None


def _are_whole(dtypes: Sequence[DType], *nodes: Expr) -> bool:
    return all(not result_dtype(a, dtypes).is_float for a in nodes)


def _folded(node: Expr) -> Expr | None:
    if any(isinstance(a.value, bool) for a in node.args):
        return None
    x, y = (a.number for a in node.args)
    return const(x + y if node.op == "add" else x - y)


def _is(x: Expr, holds: Callable[[float], bool]) -> bool:
    return x.op == "const" and not isinstance(x.value, bool) and holds(x.number)


def _is_number(x: Expr, wanted: float | bool) -> bool:
    is_bool = isinstance(wanted, bool)
    return x.op == "const" and isinstance(x.value, bool) is is_bool and x.value == wanted


def _has_exact_inverse(y: float) -> bool:
    """True if division by a number equals multiplication by its inverse: powers of two."""
    return bool(y) and abs(math.frexp(y)[0]) == 0.5 and 2.0**-100 <= abs(y) <= 2.0**100
