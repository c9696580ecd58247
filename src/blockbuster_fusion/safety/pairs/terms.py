"""Terms: values of expressions as significands and exponents.

A *term* is the value of an expression in one of four forms:

- plain: `value`;
- scaled: `value · e^t`, the paper's significand-exponent pair;
- moved: `value + t`, the logarithm of a pair;
- few: a sum of a few exponentials, plain unless its logarithm is taken.

The exponent t is a formal sum of atoms with factors, so that cancellation is exact:
`(S, t) · (1/s, -t)` is plain. Terms are independent of graphs: an atom is any expression.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from blockbuster_fusion.ir.expr import Expr, const
from blockbuster_fusion.safety.pairs.exponents import Exponent

ONE = const(1.0)
FEW = 8
"""A sum of more exponentials than this stays plain."""


class Form(Enum):
    """The form in which a value is represented."""

    plain = "plain"
    scaled = "scaled"
    moved = "moved"
    few = "few"


@dataclass(frozen=True, slots=True)
class Term:
    """A value in one of the four forms.

    `value` None represents 1 in a scaled term. A term is `raw` until its exponential is summed: the
    significand may then be far below 1, and each element has its own exponent. `native` is the same
    value as a plain argument. `addends` are the terms of a sum of a few exponentials; with a
    `numerator`, the term is that divided by their sum.
    """

    form: Form
    value: Expr | None
    exponent: Exponent = ()
    raw: bool = False
    native: Expr | None = None
    addends: "tuple[Term, ...]" = ()
    numerator: "Term | None" = None


def plain(value: Expr) -> Term:
    return Term(Form.plain, value)


def scaled(value: Expr | None, exponent: Exponent, *, raw: bool) -> Term:
    """A scaled term; without an exponent it is plain."""
    if not exponent:
        return plain(ONE if value is None else value)
    if raw and value is not None and value.op == "const" and value.value == 1:
        value = None
    return Term(Form.scaled, value, exponent, raw)


def moved(value: Expr, exponent: Exponent, *, raw: bool = False) -> Term:
    """A moved term; without an exponent it is plain."""
    return Term(Form.moved, value, exponent, raw) if exponent else plain(value)


def product(a: Expr | None, b: Expr | None) -> Expr | None:
    return b if a is None else a if b is None else a * b


def negated(term: Term) -> Term:
    value = -(ONE if term.value is None else term.value)
    return Term(term.form, value, term.exponent, term.raw)


def significand(term: Term) -> Expr:
    """The significand of a term."""
    return ONE if term.value is None else term.value


def joins(a: Term, b: Term) -> bool:
    """True if `a` is an exponential and `b` has been summed."""
    return a.raw and b.form is Form.scaled and not b.raw


def mapped(value: Expr | None, function: Callable[[Expr], Expr]) -> Expr | None:
    """A function of a significand for which f(1) = 1."""
    return None if value is None else function(value)


def number_of(term: Term) -> float | None:
    """The number that a term represents, if it is constant."""
    if term.form is not Form.plain or term.value is None or term.value.op != "const":
        return None
    return float(term.value.number)
