"""Finds expressions that are multiples of an argument, or of its inverse or a power of it."""

from blockbuster_fusion.ir.expr import Expr, fold_nodes
from blockbuster_fusion.safety.guards import is_finite_or_zero


def is_linear(expr: Expr, index: int) -> bool:
    """True if an expression is a multiple of its argument number `index`.

    Only then may the argument share an exponent with other elements of the sum.
    """
    return _relation(expr, index) == "linear"


def is_inverse(expr: Expr, index: int) -> bool:
    """True if an expression is a multiple of the inverse of its argument number `index`.

    It has an exponent to cancel, but may not share one: the smallest elements count most.
    """
    return _relation(expr, index) == "inverse"


def is_power(expr: Expr, index: int) -> bool:
    """True if an expression is a multiple of a power of its argument number `index`.

    It has a multiple of the argument's exponent.
    """
    return _relation(expr, index) == "power"


def is_summand(expr: Expr, index: int) -> bool:
    """True if an expression is a multiple of a sum with the argument in it, or of its inverse."""
    return _relation(expr, index) == "summand"


def takes_log(expr: Expr, index: int) -> bool:
    """True if the expression takes a logarithm of the argument, or of a sum with it."""
    made = _relations(expr, index)
    return any(node.op in LOGARITHMS and made[node.args[0]] in _IN_SUMS[1:] for node in made)


LOGARITHMS = ("log", "log2", "log10", "log1p")
_POWERS = ("linear", "inverse", "power")
_IN_SUMS = ("free", "linear", "inverse", "summand")


def _relation(expr: Expr, index: int) -> str:
    return _relations(expr, index)[expr]


def _relations(expr: Expr, index: int) -> dict[Expr, str]:
    return fold_nodes(expr, lambda node, kinds: _linearity(node, kinds, index))


def _linearity(node: Expr, kinds: list[str], index: int) -> str:
    if node.op == "arg":
        return "linear" if node.value == index else "free"
    if all(kind == "free" for kind in kinds):
        return "free"
    if is_finite_or_zero(node):
        return kinds[1]
    match node.op, kinds:
        case ("mul", [kind, "free"] | ["free", kind]) | ("div", [kind, "free"]):
            return kind
        case "div", ["free", kind]:
            return {"linear": "inverse", "inverse": "linear"}.get(kind, kind)
        case "mul" | "div", [kind, other] if kind in _POWERS and other in _POWERS:
            return "power"
        case ("pow", [kind, "free"]) | ("sqrt", [kind]) if kind in _POWERS:
            return "power"
        case "neg" | "cast" | "abs", [kind]:
            return kind
        case "add" | "sub", [kind, other] if kind == other:
            return kind
        case "add" | "sub", [kind, other] if kind in _IN_SUMS and other in _IN_SUMS:
            return "summand"
        case "where", ["free", *kinds]:
            branches = zip(node.args[1:], kinds, strict=True)
            found = {k for a, k in branches if a.op != "const" or a.value}
            return found.pop() if len(found) == 1 and "free" not in found else "other"
    return "other"
