"""Guards against infinities and NaN in expressions."""

from blockbuster_fusion.ir.expr import Expr, call, const


def finite_or_zero(x: Expr) -> Expr:
    """`x` if it is a finite number, else 0."""
    return call("where", is_finite(x), x, 0.0)


def is_finite(x: Expr) -> Expr:
    """The test that `x` is a finite number."""
    return Expr("eq", (x - x, const(0.0)))


def is_finite_or_zero(expr: Expr) -> bool:
    """True if an expression is the result of `finite_or_zero`."""
    return expr.op == "where" and expr == finite_or_zero(expr.args[1])
