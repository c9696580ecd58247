"""Arithmetic of terms: each function of expressions, applied to operands in any form."""

from collections.abc import Callable, Sequence

from blockbuster_fusion.ir.expr import Expr, call, const, fold, varying
from blockbuster_fusion.safety.guards import is_finite, is_finite_or_zero
from blockbuster_fusion.safety.pairs import logarithms
from blockbuster_fusion.safety.pairs.exponents import (
    LOG2,
    NOTHING,
    Addends,
    Exponent,
    bounded,
    compensated,
    is_nothing,
    is_of_two,
    log_of_size,
    met,
    over,
    plus,
    power,
    signed,
    summed,
    times,
)
from blockbuster_fusion.safety.pairs.terms import (
    FEW,
    ONE,
    Form,
    Term,
    joins,
    mapped,
    moved,
    negated,
    number_of,
    plain,
    product,
    scaled,
    significand,
)

LARGEST_POWER = 120.0
"""The logarithm, to base 2, of the largest factor that is taken from a significand."""


def no_origin(atom: Expr) -> Expr | None:
    """Nothing is known of an atom."""
    return None


def itself(atom: Expr) -> Expr:
    return atom


def never(atom: Expr, alone: bool) -> bool:
    """No atom is known to be a maximum."""
    return False


class TermArithmetic:
    """Arithmetic with terms.

    `origin` identifies the exponential of an atom. A shared exponent has the origin of those that
    it is the maximum of, and is subtracted from them before other additions. An origin may be
    negated, as that of the maximum of -x. `divisor` gives the form of such a maximum in a
    subtraction. `is_maximum` is True if no exponent of the same origin exceeds an atom: alone, or
    in the sum with others.
    """

    def __init__(
        self,
        origin: Callable[[Expr], Expr | None] = no_origin,
        divisor: Callable[[Expr], Expr] = itself,
        is_maximum: Callable[[Expr, bool], bool] = never,
    ) -> None:
        self.origin, self.divisor, self.is_maximum = origin, divisor, is_maximum
        self._bases: dict[Expr, Expr] = {}

    def base_of(self, atom: Expr) -> Expr:
        """The atom from which a guarded atom, or one bounded below by 0, was made."""
        return self._bases.get(atom, atom)

    def total(self, exponent: Exponent, *, divides: bool = False) -> Expr:
        """The exponent as an expression; with `divides`, an exponential is divided by its sum."""
        first, *others = (summed(part) for part in self._parts(exponent, divides=divides))
        for other in others:
            first = first + other
        return first

    def _parts(self, exponent: Exponent, *, divides: bool) -> list[Addends]:
        """The addends of an exponent: the atoms without a maximum, and pairs with a maximum."""
        rest, pairs = self._met(exponent)
        pairs = [self._divided(pair) if divides else pair for pair in pairs]
        return [rest, *pairs] if rest or not pairs else pairs

    def _met(self, exponent: Exponent) -> tuple[Addends, list[Addends]]:
        """The atoms of an exponent without a maximum, and pairs of an atom and its maximum."""
        rest: Addends = []
        groups: dict[Expr, tuple[Addends, Addends]] = {}
        for atom, factor in exponent:
            origin, of_origin = self._of_origin(atom, factor)
            if origin is None:
                rest.append((atom, factor))
                continue
            above, below = groups.setdefault(origin, ([], []))
            (above if of_origin > 0 else below).append((atom, factor))
        pairs: list[Addends] = []
        for above, below in groups.values():
            made, left = met(above, below)
            pairs += made
            rest += left
        return rest, pairs

    def _divided(self, pair: Addends) -> Addends:
        """An exponent minus its maximum, which is a divisor."""
        subtracted = [i for i, (_, factor) in enumerate(pair) if factor < 0]
        if len(subtracted) == 2:  # -x, minus the maximum of -x
            subtracted = [i for i in subtracted if self.is_maximum(pair[i][0], False)]
        return [
            (self.divisor(atom), f) if i in subtracted else (atom, f)
            for i, (atom, f) in enumerate(pair)
        ]

    def _of_origin(self, atom: Expr, factor: float) -> tuple[Expr | None, float]:
        """The origin of an atom without its sign, and the factor with that sign."""
        origin = self.origin(atom)
        if origin is None:
            return None, factor
        base, sign = signed(origin)
        return base, sign * factor

    def as_plain(self, term: Term) -> Expr:
        """The value as one plain expression."""
        if term.native is not None:
            return term.native
        value, exponent = term.value, term.exponent
        if term.form is Form.plain:
            assert value is not None
            return value
        if term.form is Form.moved:
            assert value is not None
            return self.total(exponent) + value
        if term.raw and (value is None or len(exponent) <= 2):
            made = self.power(exponent, divides=True)
            return made if value is None else value * made
        return self.materialised(ONE if value is None else value, exponent, divides=term.raw)

    def materialised(self, value: Expr, exponent: Exponent, *, divides: bool = False) -> Expr:
        """`value · e^exponent`, in two steps: no factor overflows unless the product does."""
        half = self.power(exponent, 0.5, divides=divides)
        zero = is_nothing(value, self.total(exponent, divides=divides))
        return call("where", zero, 0.0, value * half * half)

    def power(self, exponent: Exponent, scale: float = 1.0, *, divides: bool = False) -> Expr:
        """e^(scale·t), as a power of two if it was written as one.

        The sum t of several exponents is rounded, which may cost e^t many digits: 0.297 is left of
        1e5 + 0.3 - 1e5. The rounding error r is corrected to first order: e^(t+r) = e^t·(1 + r).
        That of the last addition is small if e^t is a number, so two exponents need no correction.
        """
        of_two = is_of_two(exponent)
        exponent = over(exponent, LOG2) if of_two else exponent
        if len(exponent) <= 2:
            total, lost = self.total(exponent, divides=divides), None
        else:
            total, lost = self.exact_total(exponent, divides=divides)
        made = power(total if scale == 1 else total * scale, of_two=of_two)
        return made if lost is None else made * (lost * (scale * LOG2 if of_two else scale) + 1.0)

    def exact_total(self, exponent: Exponent, *, divides: bool = False) -> tuple[Expr, Expr | None]:
        """The exponent as an expression, and its rounding error."""
        return compensated([x for part in self._parts(exponent, divides=divides) for x in part])

    def at_exponent(self, term: Term, common: Expr) -> Expr:
        """The significand that a term has for another exponent."""
        if term.form is Form.plain:
            assert term.value is not None
            return term.value * call("exp", -common)
        difference = plus(term.exponent, ((common, 1.0),), -1.0)
        if term.value is None:
            return self.power(difference)
        if not term.raw:
            return term.value * self.power(difference)
        return self.materialised(term.value, difference)

    # ------------------------------------------------------------ expressions

    def evaluate(self, expr: Expr, operands: Sequence[Term], *, lift: bool = True) -> Term:
        """The value of an expression of operands in any form.

        With `lift`, an exponential becomes a scaled term. Functions that cannot use one, such as a
        sigmoid, get the plain exponential.
        """
        varies = varying(expr)

        def step(node: Expr, terms: list[Term]) -> Term:
            if node.op == "arg":
                return operands[node.index]
            return self._apply(node, terms, lift) if node in varies else plain(node)

        return fold(expr, step)

    def _apply(self, node: Expr, terms: list[Term], lift: bool) -> Term:
        if node.op in ("exp", "exp2"):
            return self._exp(node, terms[0], lift)
        if all(t.form is Form.plain for t in terms):
            return self._in_plain(node, terms)
        rule = _RULES.get(node.op)
        made = None if rule is None else rule(self, node, *terms)
        return self._in_plain(node, terms) if made is None else made

    def _in_plain(self, node: Expr, terms: Sequence[Term]) -> Term:
        return plain(Expr(node.op, tuple(self.as_plain(t) for t in terms), node.value))

    def _exp(self, node: Expr, x: Term, lift: bool) -> Term:
        factor = LOG2 if node.op == "exp2" else 1.0
        if x.form is Form.moved and factor == 1 and not x.raw:
            assert x.value is not None
            return scaled(call("exp", x.value), x.exponent, raw=False)
        if not lift:
            return self._in_plain(node, [x])
        return scaled(None, ((self.as_plain(x), factor),), raw=True)

    def _mul(self, node: Expr, a: Term, b: Term) -> Term | None:
        if Form.few in (a.form, b.form):
            return self._few_times(node, a, b)
        for one, other in ((a, b), (b, a)):
            if one.form is Form.moved:
                factor = number_of(other)
                if factor is None or one.raw:
                    return None
                assert one.value is not None
                return moved(one.value * factor, times(one.exponent, factor))
        value = product(a.value, b.value)
        return scaled(value, plus(a.exponent, b.exponent), raw=a.raw or b.raw)

    def _few_times(self, node: Expr, a: Term, b: Term) -> Term | None:
        """A few exponentials times a factor, or divided by one."""
        few, other = (a, b) if a.form is Form.few else (b, a)
        if other.form is Form.few or other.form is Form.moved or few.numerator is not None:
            return None
        native = Expr(node.op, (self.as_plain(a), self.as_plain(b)))
        if few is b and node.op == "div":
            return Term(Form.few, None, native=native, addends=few.addends, numerator=other)
        rule = _RULES[node.op]
        addends = [rule(self, node, *((x, other) if few is a else (other, x))) for x in few.addends]
        made = tuple(x for x in addends if x is not None)
        if len(made) < len(addends):
            return None
        return Term(Form.few, None, native=native, addends=made)

    def _div(self, node: Expr, a: Term, b: Term) -> Term | None:
        if Form.few in (a.form, b.form):
            return self._few_times(node, a, b)
        if b.form is Form.moved:
            return None
        if a.form is Form.moved:
            factor = number_of(b)
            if not factor or a.raw:  # unknown, or 0
                return None
            assert a.value is not None
            return moved(a.value / factor, times(a.exponent, 1 / factor))
        value = a.value if b.value is None else (ONE if a.value is None else a.value) / b.value
        return scaled(value, plus(a.exponent, b.exponent, -1.0), raw=a.raw or b.raw)

    def _neg(self, node: Expr, a: Term) -> Term | None:
        if a.form is Form.few:
            return None
        value = -(ONE if a.value is None else a.value)
        if a.form is Form.moved:
            return moved(value, times(a.exponent, -1.0), raw=a.raw)
        return scaled(value, a.exponent, raw=a.raw)

    def _add(self, node: Expr, a: Term, b: Term) -> Term | None:
        sign = 1.0 if node.op == "add" else -1.0
        if Form.few not in (a.form, b.form):
            if Form.scaled not in (a.form, b.form):
                return self.add_moved(node, a, b, sign)
            made = self._together(a, b, lambda x, y: Expr(node.op, (x, y)))
            if made is not None:
                return made
        return self._few(node, a, b)

    def _few(self, node: Expr, a: Term, b: Term) -> Term | None:
        """A sum of a few exponentials: plain, unless its logarithm is taken."""
        if Form.moved in (a.form, b.form) or a.numerator or b.numerator:
            return None
        sides = [t.addends if t.form is Form.few else (t,) for t in (a, b)]
        if len(sides[0]) + len(sides[1]) > FEW:
            return None
        if node.op == "sub":
            sides[1] = tuple(negated(t) for t in sides[1])
        native = Expr(node.op, (self.as_plain(a), self.as_plain(b)))
        return Term(Form.few, None, native=native, addends=(*sides[0], *sides[1]))

    def add_moved(self, node: Expr, a: Term, b: Term, sign: float) -> Term:
        """A sum with a moved term: its exponent, which may be large, is added first to cancel."""
        assert a.value is not None
        assert b.value is not None
        if a.form is b.form or number_of(a) is not None or number_of(b) is not None:
            exponent = plus(a.exponent, b.exponent, sign)
            return moved(Expr(node.op, (a.value, b.value)), exponent, raw=a.raw or b.raw)
        if b.form is Form.moved:
            first = plus(((a.value, 1.0),), b.exponent, sign)
            return plain(Expr(node.op, (self.total(first, divides=True), b.value)))
        first = plus(a.exponent, ((b.value, 1.0),), sign)
        return plain(self.total(first) + a.value)

    def _together(self, a: Term, b: Term, op: Callable[[Expr, Expr], Expr]) -> Term | None:
        """A function of two terms at one exponent; f(x·c, y·c) = f(x, y)·c for positive c."""
        if a.form is b.form and set(a.exponent) == set(b.exponent):
            x, y = (ONE if t.value is None else t.value for t in (a, b))
            return scaled(op(x, y), a.exponent, raw=a.raw or b.raw)
        if (a.raw or b.raw) and not (joins(a, b) or joins(b, a)):
            return None
        for one, other in ((a, b), (b, a)):
            unit = one.raw and one.value is None
            if unit and joins(one, other) and self._is_below(one.exponent, other.exponent):
                met = self.power(plus(one.exponent, other.exponent, -1.0))
                assert other.value is not None
                value = op(met, other.value) if one is a else op(other.value, met)
                return scaled(value, other.exponent, raw=False)
        a, b = (plain(self.as_plain(t)) if t.form is not Form.scaled else t for t in (a, b))
        for one, other in ((a, b), (b, a)):
            if other.form is Form.plain and not one.raw and len(one.exponent) == 1:
                return self._beside_one(one, other, op, is_first=one is a)
        common = bounded(call("maximum", *(self._size(t) for t in (a, b))))
        value = op(self.at_exponent(a, common), self.at_exponent(b, common))
        return scaled(value, ((common, 1.0),), raw=False)

    def _beside_one(
        self, term: Term, other: Term, op: Callable[[Expr, Expr], Expr], *, is_first: bool
    ) -> Term:
        """A function of a scaled term and a plain one: their exponent is no less than 0."""
        ((atom, factor),) = term.exponent
        largest = bounded(call("maximum", atom if factor > 0 else -atom, 0.0))
        if factor > 0:
            self._bases[largest] = atom
        common: Exponent = ((largest, abs(factor)),)
        x = significand(term) * self.power(plus(term.exponent, common, -1.0))
        y = significand(other) * self.power(times(common, -1.0))
        return scaled(op(x, y) if is_first else op(y, x), common, raw=False)

    def _size(self, term: Term) -> Expr:
        """The exponent of a term, with that of its significand if that is not bounded."""
        exponent = self.total(term.exponent)
        if not term.raw or term.value is None:
            return exponent
        size = exponent + log_of_size(term.value)
        return call("where", is_nothing(term.value, exponent), NOTHING, size)

    def _is_below(self, exponent: Exponent, other: Exponent) -> bool:
        """True if the other exponent is the maximum of the origin of the first one."""
        alone = len(other) == 1
        tops = [self._of_origin(t, f) for t, f in other if f > 0 and self.is_maximum(t, alone)]
        if len(tops) != len(other) or len(exponent) != len(other):
            return False
        atoms = [self._of_origin(atom, factor) for atom, factor in exponent]
        return None not in dict(tops) and all(atoms.count(x) == tops.count(x) for x in atoms)

    def _where(self, node: Expr, condition: Term, a: Term, b: Term) -> Term | None:
        if Form.scaled not in (a.form, b.form):
            return None
        if is_finite_or_zero(node) and not a.raw and a.value is not None:
            test = is_finite(a.value)
            guarded = [(call("where", test, atom, 0.0), f) for atom, f in a.exponent]
            self._bases.update(
                (x, atom) for (x, _), (atom, _) in zip(guarded, a.exponent, strict=True)
            )
            return scaled(call("where", test, a.value, 0.0), tuple(guarded), raw=False)
        test = self.as_plain(condition)
        for term, other, first in ((a, b, True), (b, a, False)):
            if term.form is Form.scaled and number_of(other) == 0:
                return self._masked(term, test, first=first)

        def choose(x: Expr, y: Expr) -> Expr:
            return call("where", test, x, y)

        return self._together(a, b, choose)

    def _masked(self, term: Term, test: Expr, *, first: bool) -> Term:
        """A scaled term, or 0. Masked elements must not count in a maximum of exponents."""

        def choose(shown: Expr, hidden: Expr) -> Expr:
            pair = (shown, hidden) if first else (hidden, shown)
            return call("where", test, *pair)

        value = mapped(term.value, lambda x: choose(x, const(0.0)))
        (atom, factor), *others = sorted(term.exponent, key=lambda part: part[1] < 0)
        masked = choose(atom, NOTHING) if factor > 0 else choose(-atom, NOTHING)
        shown = tuple((choose(other, const(0.0)), f) for other, f in others)
        return scaled(value, ((masked, abs(factor)), *shown), raw=term.raw)

    def _larger(self, node: Expr, a: Term, b: Term) -> Term | None:
        if Form.scaled not in (a.form, b.form):
            return None
        for term, other in ((a, b), (b, a)):
            if term.form is Form.scaled and number_of(other) == 0 and not term.raw:
                assert term.value is not None
                return scaled(call(node.op, term.value, 0.0), term.exponent, raw=False)
        return self._together(a, b, lambda x, y: Expr(node.op, (x, y)))

    def _abs(self, node: Expr, a: Term) -> Term | None:
        if a.form is not Form.scaled:
            return None
        return scaled(mapped(a.value, lambda x: call("abs", x)), a.exponent, raw=a.raw)

    def _sqrt(self, node: Expr, a: Term) -> Term | None:
        if a.form is not Form.scaled:
            return None
        return scaled(mapped(a.value, lambda x: call("sqrt", x)), times(a.exponent, 0.5), raw=a.raw)

    def _pow(self, node: Expr, a: Term, b: Term) -> Term | None:
        exponent = number_of(b)
        if a.form is not Form.scaled or exponent is None:
            return None
        assert b.value is not None
        if a.value is None:
            return scaled(None, times(a.exponent, exponent), raw=a.raw)
        if exponent <= 1 or not a.raw:
            return scaled(a.value**b.value, times(a.exponent, exponent), raw=a.raw)
        # the power of a large significand would overflow where its exponent is as small
        size = call("floor", call("log2", call("maximum", call("abs", a.value), 1.0)))
        size = call("minimum", size, LARGEST_POWER)  # an infinite significand stays infinite
        value = (a.value * call("exp2", -size)) ** b.value
        whole = plus(a.exponent, ((size, LOG2),))
        return scaled(value, times(whole, exponent), raw=a.raw)

    def _cast(self, node: Expr, a: Term) -> Term | None:
        """A cast to a float keeps the parts: a significand alone may be larger than the value."""
        return a if a.form is Form.scaled and node.dtype.is_float else None


_RULES: dict[str, Callable[..., Term | None]] = {
    "mul": TermArithmetic._mul,
    "div": TermArithmetic._div,
    "neg": TermArithmetic._neg,
    "add": TermArithmetic._add,
    "sub": TermArithmetic._add,
    "where": TermArithmetic._where,
    "maximum": TermArithmetic._larger,
    "minimum": TermArithmetic._larger,
    "abs": TermArithmetic._abs,
    "sqrt": TermArithmetic._sqrt,
    "pow": TermArithmetic._pow,
    "log": logarithms.log,
    "log2": logarithms.log,
    "log10": logarithms.log,
    "log1p": logarithms.log1p,
    "cast": TermArithmetic._cast,
}
"""The functions that keep a form; all others are computed of plain values."""


_DEFAULT = TermArithmetic()
total = _DEFAULT.total
as_plain = _DEFAULT.as_plain
evaluate = _DEFAULT.evaluate
