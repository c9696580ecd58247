"""Arithmetic with significands and exponents, on expression trees.

A *term* is what an expression computes, written in one of three forms:

- plain: `value`;
- scaled: `value · e^t`, the paper's significand-exponent pair;
- moved: `value + t`, which is what the logarithm of a pair is.

The exponent t is a formal sum of atoms with factors, so that what cancels is seen to cancel:
`(S, t) · (1/s, -t)` is plain. Nothing here knows of graphs: atoms are whatever can be told apart.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from blockbuster_fusion.ir.expr import Expr, arguments, call, const, postorder
from blockbuster_fusion.ir.types import DType

Exponent = tuple[tuple[Expr, float], ...]
"""A formal sum: atoms, each with its factor."""

LOG2 = math.log(2)
ONE = const(1.0)
NOTHING = const(float("-inf"))
"""The exponent of zero."""
LEAST = -3.4028235e38
"""No exponent that is shared is less, so that what stands for a row of which nothing is left is
finite. It is the least float32, because a mask may be as low as that."""


class Form(Enum):
    """How a value is written."""

    plain = "plain"
    scaled = "scaled"
    moved = "moved"


@dataclass(frozen=True, slots=True)
class Term:
    """A value in one of the three forms.

    `value` None stands for 1 in a scaled term. A term is `raw` while no sum has gone through its
    exponential: nothing says then that the significand is not far below 1. `native` is the same
    value as a plain argument, for who needs that.
    """

    form: Form
    value: Expr | None
    exponent: Exponent = ()
    raw: bool = False
    native: Expr | None = None


def plain(value: Expr) -> Term:
    return Term(Form.plain, value)


def scaled(value: Expr | None, exponent: Exponent, *, raw: bool) -> Term:
    """A scaled term; without an exponent it is plain."""
    if not exponent:
        return plain(ONE if value is None else value)
    if raw and value is not None and value.op == "const" and value.value == 1:
        value = None
    return Term(Form.scaled, value, exponent, raw)


def moved(value: Expr, exponent: Exponent) -> Term:
    """A moved term; without an exponent it is plain."""
    return Term(Form.moved, value, exponent) if exponent else plain(value)


# ---------------------------------------------------------------- exponents


def plus(a: Exponent, b: Exponent, factor: float = 1.0) -> Exponent:
    """a + factor·b; what cancels is gone."""
    made = dict(a)
    for atom, count in b:
        made[atom] = made.get(atom, 0.0) + factor * count
    return tuple((atom, count) for atom, count in made.items() if count != 0)


def times(a: Exponent, factor: float) -> Exponent:
    return plus((), a, factor)


def total(exponent: Exponent) -> Expr:
    """The exponent as an expression."""
    made: Expr | None = None
    for atom, factor in sorted(exponent, key=lambda part: part[1] < 0):
        part = atom if abs(factor) == 1 else atom * abs(factor)
        if made is None:
            made = part if factor > 0 else -part
        else:
            made = made + part if factor > 0 else made - part
    return const(0.0) if made is None else made


# ---------------------------------------------------------------- from one form to another


def as_plain(term: Term) -> Expr:
    """The value as one plain expression."""
    if term.native is not None:
        return term.native
    value, exponent = term.value, term.exponent
    if term.form is Form.plain:
        assert value is not None
        return value
    if term.form is Form.moved:
        assert value is not None
        return total(exponent) + value
    if term.raw:
        made = power_of_e(exponent)
        return made if value is None else value * made
    return materialised(ONE if value is None else value, total(exponent))


def materialised(value: Expr, exponent: Expr) -> Expr:
    """`value · e^exponent`, in two steps: neither factor overflows where the product does not."""
    half = call("exp", exponent * 0.5)
    return call("where", value.__class__("eq", (value, const(0.0))), 0.0, value * half * half)


def power_of_e(exponent: Exponent) -> Expr:
    """e^t; where it was written as a power of two it stays one."""
    if len(exponent) == 1 and exponent[0][1] == LOG2:
        return call("exp2", exponent[0][0])
    return call("exp", total(exponent))


def at_exponent(term: Term, common: Expr) -> Expr:
    """The significand that a term has for another exponent."""
    if term.form is Form.plain:
        assert term.value is not None
        return term.value * call("exp", -common)
    factor = call("exp", total(term.exponent) - common)
    return factor if term.value is None else term.value * factor


# ---------------------------------------------------------------- arithmetic


def evaluate(expr: Expr, operands: Sequence[Term], *, lift: bool = True) -> Term:
    """What an expression computes of operands in any form.

    With `lift`, an exponential becomes a scaled term; in places where that would not do (a sigmoid,
    say) it is written as the plain exponential again.
    """
    made: dict[Expr, Term] = {}
    for node in postorder(expr):
        if node.op == "arg":
            assert isinstance(node.value, int)
            made[node] = operands[node.value]
        elif not arguments(node):
            made[node] = plain(node)  # a number
        else:
            made[node] = _apply(node, [made[a] for a in node.args], lift)
    return made[expr]


def _apply(node: Expr, terms: list[Term], lift: bool) -> Term:
    if node.op in ("exp", "exp2"):
        return _exp(node, terms[0], lift)
    if all(t.form is Form.plain for t in terms):
        return plain(Expr(node.op, tuple(as_plain(t) for t in terms), node.value))
    rule = _RULES.get(node.op)
    made = None if rule is None else rule(node, *terms)
    return _in_plain(node, terms) if made is None else made


def _in_plain(node: Expr, terms: Sequence[Term]) -> Term:
    return plain(Expr(node.op, tuple(as_plain(t) for t in terms), node.value))


def _exp(node: Expr, x: Term, lift: bool) -> Term:
    factor = LOG2 if node.op == "exp2" else 1.0
    if x.form is Form.moved and factor == 1:
        assert x.value is not None
        return scaled(call("exp", x.value), x.exponent, raw=False)
    if not lift:
        return _in_plain(node, [x])
    return scaled(None, ((as_plain(x), factor),), raw=True)


def _mul(_: Expr, a: Term, b: Term) -> Term | None:
    for one, other in ((a, b), (b, a)):
        if one.form is Form.moved:
            factor = _number(other)
            if factor is None:
                return None
            assert one.value is not None
            return moved(one.value * factor, times(one.exponent, factor))
    value = _product(a.value, b.value)
    return scaled(value, plus(a.exponent, b.exponent), raw=a.raw or b.raw)


def _product(a: Expr | None, b: Expr | None) -> Expr | None:
    return b if a is None else a if b is None else a * b


def _div(_: Expr, a: Term, b: Term) -> Term | None:
    if b.form is Form.moved:
        return None
    if a.form is Form.moved:
        factor = _number(b)
        if factor is None:
            return None
        assert a.value is not None
        return moved(a.value / factor, times(a.exponent, 1 / factor))
    value = a.value if b.value is None else (ONE if a.value is None else a.value) / b.value
    return scaled(value, plus(a.exponent, b.exponent, -1.0), raw=a.raw or b.raw)


def _neg(_: Expr, a: Term) -> Term:
    value = -(ONE if a.value is None else a.value)
    if a.form is Form.moved:
        return moved(value, times(a.exponent, -1.0))
    return scaled(value, a.exponent, raw=a.raw)


def _add(node: Expr, a: Term, b: Term) -> Term | None:
    sign = 1.0 if node.op == "add" else -1.0
    if Form.scaled not in (a.form, b.form):
        return _add_moved(node, a, b, sign)
    return _together(a, b, lambda x, y: Expr(node.op, (x, y)))


def _add_moved(node: Expr, a: Term, b: Term, sign: float) -> Term:
    """Sums with a moved term: the exponent, which may be large, is added to what it may cancel."""
    assert a.value is not None
    assert b.value is not None
    if a.form is b.form or _number(a) is not None or _number(b) is not None:
        return moved(Expr(node.op, (a.value, b.value)), plus(a.exponent, b.exponent, sign))
    if b.form is Form.moved:
        first = plus(((a.value, 1.0),), b.exponent, sign)
        return plain(Expr(node.op, (total(first), b.value)))
    first = plus(a.exponent, ((b.value, 1.0),), sign)
    return plain(total(first) + a.value)


def _together(a: Term, b: Term, op: Callable[[Expr, Expr], Expr]) -> Term | None:
    """A function of two terms at one exponent; f(x·c, y·c) = f(x, y)·c for positive c."""
    if a.form is b.form and set(a.exponent) == set(b.exponent):
        x, y = (ONE if t.value is None else t.value for t in (a, b))
        return scaled(op(x, y), a.exponent, raw=a.raw or b.raw)
    if (a.raw or b.raw) and not (_joins(a, b) or _joins(b, a)):
        return None
    a, b = (plain(as_plain(t)) if t.form is Form.moved else t for t in (a, b))
    common = call("maximum", *(total(t.exponent) for t in (a, b)))
    if a.exponent and b.exponent:
        common = call("maximum", common, LEAST)
    value = op(at_exponent(a, common), at_exponent(b, common))
    return scaled(value, ((common, 1.0),), raw=False)


def _joins(a: Term, b: Term) -> bool:
    """Whether an exponential, which has no significand, is joined by what has been summed."""
    return a.raw and a.value is None and b.form is Form.scaled and not b.raw


def _where(node: Expr, condition: Term, a: Term, b: Term) -> Term | None:
    if Form.scaled not in (a.form, b.form):
        return None
    test = as_plain(condition)
    for term, other, first in ((a, b, True), (b, a, False)):
        if term.form is Form.scaled and _number(other) == 0:
            return _masked(term, test, first=first)

    def choose(x: Expr, y: Expr) -> Expr:
        return call("where", test, x, y)

    return _together(a, b, choose)


def _masked(term: Term, test: Expr, *, first: bool) -> Term:
    """A scaled term, or 0. Nothing hidden may count where a maximum of exponents is taken."""

    def choose(shown: Expr, hidden: Expr) -> Expr:
        return call("where", test, shown, hidden) if first else call("where", test, hidden, shown)

    exponent = choose(total(term.exponent), NOTHING)
    value = _of(term.value, lambda x: choose(x, const(0.0)))
    return scaled(value, ((exponent, 1.0),), raw=term.raw)


def _larger(node: Expr, a: Term, b: Term) -> Term | None:
    if Form.scaled not in (a.form, b.form):
        return None
    for term, other in ((a, b), (b, a)):
        if term.form is Form.scaled and _number(other) == 0 and not term.raw:
            assert term.value is not None
            return scaled(call(node.op, term.value, 0.0), term.exponent, raw=False)
    return _together(a, b, lambda x, y: Expr(node.op, (x, y)))


def _abs(_: Expr, a: Term) -> Term | None:
    if a.form is Form.moved:
        return None
    return scaled(_of(a.value, lambda x: call("abs", x)), a.exponent, raw=a.raw)


def _sqrt(_: Expr, a: Term) -> Term | None:
    if a.form is Form.moved:
        return None
    return scaled(_of(a.value, lambda x: call("sqrt", x)), times(a.exponent, 0.5), raw=a.raw)


def _pow(node: Expr, a: Term, b: Term) -> Term | None:
    power = _number(b)
    if a.form is Form.moved or power is None:
        return None
    assert b.value is not None
    value = None if a.value is None else a.value**b.value
    return scaled(value, times(a.exponent, power), raw=a.raw)


def _log(node: Expr, a: Term) -> Term | None:
    if a.form is Form.moved:
        return None
    base = {"log": 1.0, "log2": LOG2, "log10": math.log(10)}[node.op]
    exponent = times(a.exponent, 1 / base)
    return plain(total(exponent)) if a.value is None else moved(call(node.op, a.value), exponent)


def _log1p(_: Expr, a: Term) -> Term | None:
    if a.form is Form.moved or a.raw:
        return None
    one_more = _together(plain(ONE), a, lambda x, y: x + y)
    return None if one_more is None else _log(call("log", ONE), one_more)


def _cast(node: Expr, a: Term) -> Term | None:
    """The parts stay as wide as they are: a significand alone may be larger than the value."""
    assert isinstance(node.value, DType)
    return None if a.form is Form.moved or not node.value.is_float else a


def _of(value: Expr | None, function: Callable[[Expr], Expr]) -> Expr | None:
    """A function of a significand for which f(1) = 1."""
    return None if value is None else function(value)


def _number(term: Term) -> float | None:
    """The number that a term is, if it is one."""
    if term.form is not Form.plain or term.value is None or term.value.op != "const":
        return None
    assert isinstance(term.value.value, int | float)
    return float(term.value.value)


_RULES: dict[str, Callable[..., Term | None]] = {
    "mul": _mul,
    "div": _div,
    "neg": _neg,
    "add": _add,
    "sub": _add,
    "where": _where,
    "maximum": _larger,
    "minimum": _larger,
    "abs": _abs,
    "sqrt": _sqrt,
    "pow": _pow,
    "log": _log,
    "log2": _log,
    "log10": _log,
    "log1p": _log1p,
    "cast": _cast,
}
"""What keeps its form; everything else is computed of plain values."""


# ---------------------------------------------------------------- who may share an exponent


def is_linear(expr: Expr, index: int) -> bool:
    """Whether an expression is a multiple of its argument number `index`.

    Only then may the argument share an exponent with its neighbours on the way to a sum.
    """
    return _relation(expr, index) == "linear"


def is_inverse(expr: Expr, index: int) -> bool:
    """Whether an expression is a multiple of the inverse of its argument number `index`.

    It has an exponent to cancel, but may not share one: what is least counts most.
    """
    return _relation(expr, index) == "inverse"


def _relation(expr: Expr, index: int) -> str:
    made: dict[Expr, str] = {}
    for node in postorder(expr):
        made[node] = _linearity(node, [made[a] for a in node.args], index)
    return made[expr]


def _linearity(node: Expr, kinds: list[str], index: int) -> str:
    if node.op == "arg":
        return "linear" if node.value == index else "free"
    if all(kind == "free" for kind in kinds):
        return "free"
    match node.op, kinds:
        case ("mul", [kind, "free"] | ["free", kind]) | ("div", [kind, "free"]):
            return kind
        case "div", ["free", kind]:
            return {"linear": "inverse", "inverse": "linear"}.get(kind, "other")
        case "neg" | "cast" | "abs", [kind]:
            return kind
        case "add" | "sub", [kind, other] if kind == other:
            return kind
        case "where", ["free", *kinds]:
            branches = zip(node.args[1:], kinds, strict=True)
            found = {k for a, k in branches if a.op != "const" or a.value}
            return found.pop() if len(found) == 1 and "free" not in found else "other"
    return "other"
