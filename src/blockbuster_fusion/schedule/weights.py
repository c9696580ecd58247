"""The operations of expressions, in additions, by target."""

from collections.abc import Iterator, Mapping

from blockbuster_fusion.ir.expr import Expr
from blockbuster_fusion.ir.signs import is_share

LIBM = (
    *("tan", "sinh", "cosh", "cbrt", "arcsin", "arccos", "arctan", "arcsinh", "arccosh"),
    *("arctanh", "arctan2"),
)
"""Functions that kernels in C call for each number alone."""
VECTORS = ("log10", "expm1", "log1p", "sin", "cos", "tanh", "erf")
"""Functions that kernels in C have in vectors, and that CUDA has in its library."""
SHARE = "log1p of a share"
"""The logarithm of 1 and an exponential up to 1, which is a short polynomial on a GPU."""
WEIGHTS: dict[str, dict[str, float]] = {
    "cpu": {
        **dict.fromkeys(LIBM, 150.0),
        "exp": 5.0,
        **dict.fromkeys(("exp2", "expm1", "tanh", "erf", "sin", "cos"), 8.0),
        **dict.fromkeys(("log", "log2", "log10"), 11.0),
        "log1p": 15.0,
        "pow": 60.0,
        "div": 6.0,
        "floordiv": 12.0,
        "mod": 60.0,
        "sqrt": 3.0,
        "where": 3.0,
    },
    "cuda": {
        **dict.fromkeys((*LIBM, *VECTORS), 20.0),
        "erf": 10.0,
        SHARE: 10.0,
        **dict.fromkeys(("exp", "exp2", "log", "log2", "div", "sqrt"), 6.0),
        "pow": 30.0,
        "floordiv": 12.0,
        "mod": 30.0,
    },
}
"""Operations of a function by target, in additions; 1 for all others."""
SIMPLE = 6.0
"""The most additions that an instruction stands for; functions have more."""


def weight(expr: Expr, weights: Mapping[str, float]) -> float:
    """The operations of an expression, in additions."""
    return max(sum(_weight(node, weights) for node in _calls(expr)), 0.5)


def functions(expr: Expr, weights: Mapping[str, float]) -> float:
    """The operations of the functions in an expression, in additions."""
    found = (_weight(node, weights) for node in _calls(expr))
    return sum(each for each in found if each > SIMPLE)


def _calls(expr: Expr) -> Iterator[Expr]:
    """The functions of an expression; a part that occurs twice is given once."""
    seen: set[Expr] = set()
    stack = [expr]
    while stack:
        node = stack.pop()
        if node not in seen and node.args:
            seen.add(node)
            yield node
            stack.extend(node.args)


def _weight(node: Expr, weights: Mapping[str, float]) -> float:
    """The operations of one function; a square is a product, and x^-0.5 a root."""
    if node.op == "cast":
        return 0.5
    if node.op == "log1p" and is_share(node.args[0]):
        return weights.get(SHARE, weights.get(node.op, 1.0))
    if node.op == "pow" and node.args[1].op == "const":
        count = float(node.args[1].number)
        if count in (2.0, 0.5, -0.5, -1.0, 3.0):
            return 1.0 if count > 1 else weights["div"]
    return weights.get(node.op, 1.0)
