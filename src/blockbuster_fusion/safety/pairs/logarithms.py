"""Logarithms of terms: log(v·e^t) is log v + t; of a sum, the largest exponent is taken out."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from blockbuster_fusion.ir.expr import Expr, call, const
from blockbuster_fusion.safety.pairs.exponents import LOG2, bounded, is_of_two, over, power
from blockbuster_fusion.safety.pairs.terms import (
    ONE,
    Form,
    Term,
    moved,
    number_of,
    plain,
    significand,
)

if TYPE_CHECKING:
    from blockbuster_fusion.safety.pairs.arithmetic import TermArithmetic

BASES = {"log": 1.0, "log2": LOG2, "log10": math.log(10)}
"""The natural logarithm of the base of each logarithm."""


def log(rules: "TermArithmetic", node: Expr, a: Term) -> Term | None:
    if a.form is Form.moved:
        return None
    base = BASES[node.op]
    if a.form is Form.few:
        made = _log_of_sum(rules, a.addends)
        if a.numerator is not None:
            above = _log_of_one(rules, call("log", ONE), a.numerator, 1.0)
            made = rules.add_moved(Expr("sub", (ONE, ONE)), above, made, -1.0)
        if base == 1 or made.value is None:
            return made
        return moved(made.value * (1 / base), over(made.exponent, base), raw=True)
    return _log_of_one(rules, node, a, base)


def _log_of_one(rules: "TermArithmetic", node: Expr, a: Term, base: float) -> Term:
    exponent = over(a.exponent, base)
    if a.value is None:
        return plain(rules.total(exponent))
    if number_of(plain(a.value)) == 1:
        return moved(const(0.0), exponent)
    return moved(call(node.op, a.value), exponent)


def log1p(rules: "TermArithmetic", node: Expr, a: Term) -> Term | None:
    if a.form is Form.moved or a.numerator is not None:
        return None
    addends = a.addends if a.form is Form.few else (a,)
    return _log_of_sum(rules, (plain(ONE), *addends))


def _log_of_sum(rules: "TermArithmetic", addends: Sequence[Term]) -> Term:
    """log Σ v·e^t, as m + log Σ v·e^(t-m) for the largest t; sums near 1 lose no digits."""
    of_two = all(is_of_two(t.exponent) for t in addends if t.exponent)
    unit = LOG2 if of_two else 1.0
    exponents = [rules.total(over(t.exponent, unit)) for t in addends]
    if len(addends) == 2 and significand(addends[0]) is significand(addends[1]):
        return _log_of_two(significand(addends[0]), *exponents, of_two=of_two)
    top = exponents[0]
    for exponent in exponents[1:]:
        top = call("maximum", top, exponent)
    top = bounded(top)
    sizes = [number_of(t) for t in addends]
    one = sizes.index(1.0) if 1.0 in sizes else None
    value: Expr | None = None
    if one is not None:
        value = call("expm1", -(top * LOG2 if of_two else top))
    for at, (term, exponent) in enumerate(zip(addends, exponents, strict=True)):
        if at != one:
            part = power(exponent - top, of_two=of_two)
            part = part if term.value is None else term.value * part
            value = part if value is None else value + part
    assert value is not None
    return moved(call("log" if one is None else "log1p", value), ((top, unit),), raw=True)


def _log_of_two(value: Expr, a: Expr, b: Expr, *, of_two: bool) -> Term:
    """log(v·e^a + v·e^b) = log v + max(a, b) + log(1 + e^-|a-b|)."""
    numbers = [x for x in (a, b) if x.op == "const"]
    apart = call("abs", next(x for x in (a, b) if x not in numbers)) if numbers else None
    smaller = power(-(call("abs", a - b) if apart is None else apart), of_two=of_two)
    more = call("log1p", smaller)
    if apart is None:  # equal infinities have no difference
        more = call("where", Expr("eq", (a, b)), LOG2, more)
    if value is not ONE:
        more = more + call("log", value)
    return moved(more, ((call("maximum", a, b), LOG2 if of_two else 1.0),), raw=True)
