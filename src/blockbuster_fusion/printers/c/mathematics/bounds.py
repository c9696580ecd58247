"""The accuracy of the mathematics in C: functions as expressions, with a bound for each dtype."""

from dataclasses import dataclass

from blockbuster_fusion.ir.expr import Expr, arg, call

X, Y = arg(0), arg(1)


@dataclass(frozen=True, slots=True)
class BoundedFunction:
    """A function whose error is bounded, in units of the last place of the exact result."""

    name: str
    expr: Expr
    reference: str
    """The function in the C library, for operands x and y; `{l}` is the suffix of a wide type."""
    float32: float
    float64: float
    arity: int = 1

    def bound(self, dtype: str) -> float:
        return self.float32 if dtype == "float32" else self.float64


def _one(name: str, float32: float, float64: float) -> BoundedFunction:
    return BoundedFunction(name, call(name, X), f"{name}{{l}}(x)", float32, float64)


BOUNDS = {
    row.name: row
    for row in (
        _one("exp", 1.5, 1.5),
        _one("exp2", 1.5, 1.5),
        _one("expm1", 2.0, 2.5),
        _one("log", 1.5, 1.5),
        _one("log2", 1.5, 2.0),
        _one("log10", 1.5, 2.0),
        _one("log1p", 2.0, 2.0),
        _one("tanh", 3.0, 3.0),
        _one("erf", 1.5, 1.5),
        _one("sin", 2.0, 1.5),
        _one("cos", 2.0, 1.5),
        BoundedFunction("pow", call("pow", X, Y), "pow{l}(x, y)", 1.0, 1.5, arity=2),
        BoundedFunction("rsqrt", X**-0.5, "1 / sqrt{l}(x)", 1.5, 1.5),
        BoundedFunction("sigmoid", 1 / (1 + call("exp", -X)), "1 / (1 + exp{l}(-x))", 3.0, 3.0),
        BoundedFunction(
            "softplus",
            call("maximum", 0.0, X) + call("log1p", call("exp", -call("abs", X))),
            "(x > 0 ? x : x != x ? x : 0) + log1p{l}(exp{l}(-fabs{l}(x)))",
            *(2.5, 2.5),
        ),
    )
}
"""The bounds by the names of functions; `blockbuster mathematics` checks them."""
