"""Careful arithmetic with exponentials: each is shifted by its own maximum before it is summed.

Beside plain numbers there are powers, `significand · e^t`, and moved numbers, `value + t`, which
is what the logarithm of a power is. The exponent t is a formal sum of arrays, so that what cancels
is gone: the maximum that a sum of exponentials was shifted by meets the exponentials it divides.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.ir.expr import FUNCTIONS
from blockbuster_fusion.tools.check.numbers import SampledArithmetic
from blockbuster_fusion.tools.check.powers import (
    CarefulTerm,
    ExponentSum,
    Moved,
    Power,
    axes_of,
    plus,
)
from blockbuster_fusion.tools.check.values import Number, constant

LN2, LN10 = float(np.log(2.0)), float(np.log(10.0))
BASES = {"log": 1.0, "log2": LN2, "log10": LN10}
EXACT = {"maximum", "minimum", "abs", "sign", "floor", "ceil", "round", "trunc", "where", "neg"}
"""Functions whose results are not rounded."""


class Careful:
    """Operations on terms."""

    def __init__(self, numbers: SampledArithmetic) -> None:
        self.numbers = numbers
        self._shared: dict[tuple[int, Axis], tuple[Power, Power]] = {}
        self._known: dict[tuple[Any, ...], tuple[tuple[CarefulTerm, ...], CarefulTerm]] = {}

    # ---------------------------------------------------------------- plain numbers

    def plain(self, x: CarefulTerm) -> Number:
        """The value of a term as one array."""
        match x:
            case Number():
                return x
            case Power():
                if x.plain is None:
                    x.plain = self._closed(x)
                return x.plain
            case Moved():
                return self.numbers.add(self.total(x.exponent), x.value)

    def _closed(self, x: Power) -> Number:
        """The value of a power, in two steps that overflow only if the result does."""
        total = self.total(x.exponent)
        if x.significand is None:
            made = self.numbers.apply(np.exp, total)
        elif np.nanmax(self.numbers.array(total), initial=-np.inf) < 80:
            made = self.numbers.mul(self.numbers.apply(np.exp, total), x.significand)
        else:
            half = self.numbers.apply(lambda t: np.exp(t / 2), total)
            made = self.numbers.mul(self.numbers.mul(x.significand, half), half)
        made = self._less_infinity(made, x.exponent)
        beyond = ~(np.abs(self.numbers.array(made)) <= self.numbers.rounding.largest)
        for operand in (total, x.significand):
            if operand is not None:
                beyond = beyond & np.isfinite(self.numbers.aligned(operand, made.axes))
        if beyond.any():  # what becomes of a number that the dtype cannot hold is not judged
            made = self.numbers.undecided(made, Number(made.axes, beyond))
        return Number(made.axes, self.numbers.array(made), made=("power", x))

    def _less_infinity(self, x: Number, exponent: ExponentSum) -> Number:
        """A number whose exponent was shifted by a maximum that may be inf; there it is undecided.

        The program as written gives 0 beside inf; a shift by inf gives NaN.
        """
        for atom, factor in exponent:
            if factor < 0 and atom.infinite is not None and atom.infinite.any():
                x = self.numbers.undecided(x, Number(atom.axes, atom.infinite))
        return x

    def total(self, exponent: ExponentSum) -> Number:
        """The exponent as one array; a maximum is subtracted from its own array first."""
        numbers, left = self.numbers, list(exponent)
        parts: list[Number] = []
        for top, factor in exponent:
            pair = next((p for p in left if p[0] is top.top_of and p[1] == -factor), None)
            if pair is not None:
                left.remove(pair)
                left.remove((top, factor))
                parts.append(self.times(numbers.sub(pair[0], top), pair[1]))
        for atom, factor in sorted(left, key=lambda part: part[1] < 0):
            parts.append(self.times(atom, factor))
        made = parts[0] if parts else constant(0.0)
        for part in parts[1:]:
            made = numbers.add(made, part)
        return made

    def times(self, x: Number, factor: float) -> Number:
        if factor in (1.0, -1.0):
            return x if factor == 1 else self.numbers.neg(x)
        return self.numbers.mul(x, constant(factor))

    # ---------------------------------------------------------------- functions

    def apply(self, name: str, *terms: CarefulTerm) -> CarefulTerm:
        """A scalar function of terms; the same function of the same terms is computed once."""
        key = (name, *map(id, terms))
        if key not in self._known:
            self._known[key] = (terms, self._applied(name, terms))
        return self._known[key][1]

    def _applied(self, name: str, terms: tuple[CarefulTerm, ...]) -> CarefulTerm:
        rule: Callable[..., CarefulTerm | None] | None = _RULES.get(name)
        made = None if rule is None else rule(self, name, *terms)
        return made if made is not None else self._plainly(name, terms)

    def _plainly(self, name: str, terms: tuple[CarefulTerm, ...]) -> Number:
        operands = [self.plain(t) for t in terms]
        numbers = self.numbers
        if FUNCTIONS[name].result == "float":
            operands = [numbers.as_float(x) for x in operands]
        match name:
            case "add":
                made = numbers.add(*operands)
            case "sub":
                made = numbers.sub(*operands)
            case "mul":
                made = numbers.mul(*operands)
            case "div":
                made = numbers.div(*operands)
            case "neg":
                made = numbers.neg(*operands)
            case _:
                function = FUNCTIONS[name].numpy
                made = numbers.apply(function, *operands, exact=name in EXACT)
        if made.sums is None and not made.made:
            made.made = (name, terms)
        return made

    def exp(self, name: str, x: CarefulTerm) -> CarefulTerm:
        if isinstance(x, Moved) and name == "exp":
            return Power(self.numbers.apply(np.exp, x.value), x.exponent)
        number = self.plain(x)
        if number.constant is not None:
            return self._plainly(name, (number,))
        factor = LN2 if name == "exp2" else 1.0
        return Power(None, ((number, factor),), self._plainly(name, (number,)))

    def mul(self, _: str, a: CarefulTerm, b: CarefulTerm) -> CarefulTerm | None:
        for one, other in ((a, b), (b, a)):
            if isinstance(one, Moved):
                factor = other.constant if isinstance(other, Number) else None
                if factor is None:
                    return None
                number = float(factor)
                return Moved(self.times(one.value, number), plus((), one.exponent, number))
        return self._product("mul", a, b, 1.0)

    def div(self, _: str, a: CarefulTerm, b: CarefulTerm) -> CarefulTerm | None:
        if isinstance(a, Moved) and isinstance(b, Number) and b.constant:
            number = float(1 / b.constant)
            return Moved(self.numbers.div(a.value, b), plus((), a.exponent, number))
        return self._product("div", a, b, -1.0)

    def _product(
        self, name: str, a: CarefulTerm, b: CarefulTerm, sign: float
    ) -> CarefulTerm | None:
        """A product or quotient in which a power takes part."""
        if isinstance(a, Moved) or isinstance(b, Moved):
            return None
        if isinstance(a, Number) and isinstance(b, Number):
            return None
        (x, t), (y, u) = (
            (p.significand, p.exponent) if isinstance(p, Power) else (p, ()) for p in (a, b)
        )
        if sign > 0:
            value = y if x is None else x if y is None else self.numbers.mul(x, y)
        else:
            value = x if y is None else self.numbers.div(constant(1.0) if x is None else x, y)
        exponent = plus(t, u, sign)
        natives = [p.plain if isinstance(p, Power) else p for p in (a, b)]
        if natives[0] is not None and natives[1] is not None:
            met = all(p.met for p in (a, b) if isinstance(p, Power))
            plain = self._plainly(name, (natives[0], natives[1]))
            return Power(value, exponent, plain, met=met)
        if not exponent:
            return constant(1.0) if value is None else value
        made = Power(value, exponent)
        if len({factor > 0 for _, factor in exponent}) > 1:  # it has met its maximum
            total = self._less_infinity(self.total(exponent), exponent)
            return Power(value, ((total, 1.0),), self.plain(made), met=True)
        return made

    def neg(self, _: str, a: CarefulTerm) -> CarefulTerm | None:
        match a:
            case Power():
                value = constant(-1.0) if a.significand is None else self.numbers.neg(a.significand)
                plain = None if a.plain is None else self.numbers.neg(a.plain)
                return Power(value, a.exponent, plain, met=a.met)
            case Moved():
                return Moved(self.numbers.neg(a.value), plus((), a.exponent, -1.0))
        return None

    def add(self, name: str, a: CarefulTerm, b: CarefulTerm) -> CarefulTerm | None:
        sign = 1.0 if name == "add" else -1.0
        if isinstance(a, Moved) or isinstance(b, Moved):
            return self._add_moved(name, a, b, sign)
        if isinstance(a, Number) and isinstance(b, Number):
            return None
        natives = [p.plain if isinstance(p, Power) else p for p in (a, b)]
        if natives[0] is not None and natives[1] is not None:
            made = self._plainly(name, (natives[0], natives[1]))
            return Number(made.axes, self.numbers.array(made), made=(name, (a, b)))
        return self.together(name, a, b)

    def together(self, name: str, a: Number | Power, b: Number | Power) -> CarefulTerm:
        """A sum or difference of powers, brought to one exponent."""
        numbers = self.numbers
        powers = [p if isinstance(p, Power) else Power(p, ()) for p in (a, b)]
        exponents = [{(id(atom), factor) for atom, factor in p.exponent} for p in powers]
        one = constant(1.0)
        if exponents[0] == exponents[1]:
            x, y = (one if p.significand is None else p.significand for p in powers)
            value = numbers.add(x, y) if name == "add" else numbers.sub(x, y)
            return Power(value, powers[0].exponent)
        totals = [self.total(p.exponent) for p in powers]
        top = self._bounded(numbers.apply(np.maximum, *totals, exact=True))
        parts = []
        for power, total in zip(powers, totals, strict=True):
            factor = numbers.apply(np.exp, numbers.sub(total, top))
            own = power.significand
            parts.append(factor if own is None else numbers.mul(own, factor))
        made = numbers.add(*parts) if name == "add" else numbers.sub(*parts)
        return Power(made, ((top, 1.0),))

    def _add_moved(
        self, name: str, a: CarefulTerm, b: CarefulTerm, sign: float
    ) -> CarefulTerm | None:
        """A sum with a moved number: exponents that may cancel are added first."""
        numbers = self.numbers
        a, b = (self.plain(term) if isinstance(term, Power) else term for term in (a, b))
        combine = numbers.add if sign > 0 else numbers.sub
        match a, b:
            case Moved(), Moved():
                value, exponent = combine(a.value, b.value), plus(a.exponent, b.exponent, sign)
                return Moved(value, exponent) if exponent else value
            case Moved(), Number() if b.constant is not None:
                return Moved(combine(a.value, b), plus((), a.exponent))
            case Number(), Moved() if a.constant is not None:
                return Moved(combine(a, b.value), plus((), b.exponent, sign))
            case Number(), Moved():
                exponent = plus(((a, 1.0),), b.exponent, sign)
                return combine(self._less_infinity(self.total(exponent), exponent), b.value)
            case Moved(), Number():
                return numbers.add(self.total(plus(a.exponent, ((b, 1.0),), sign)), a.value)
        return None

    def log(self, name: str, a: CarefulTerm) -> CarefulTerm | None:
        base, few = BASES[name], False
        if isinstance(a, Number) and a.made:
            match a.made:
                case ("power", Power() as power):
                    a = power
                case ("add" | "sub" as op, (x, y)) if isinstance(x, Power) or isinstance(y, Power):
                    a, few = self.together(op, x, y), True
                case ("div", (x, Number() as y)) if _adds_powers(y):
                    return self.apply("sub", self.apply(name, x), self.apply(name, y))
        if not isinstance(a, Power):
            return None
        exponent = plus((), a.exponent, 1 / base)
        if a.significand is None:
            return self.total(exponent)
        value = self.numbers.apply(FUNCTIONS[name].numpy, a.significand)
        made = Moved(value, exponent) if exponent else value
        return self.plain(made) if few else made

    def log1p(self, _: str, a: CarefulTerm) -> CarefulTerm | None:
        """log(1 + e^t) = max(t, 0) + log1p(e^-|t|), for a power without a significand."""
        if not isinstance(a, Power):
            return None
        numbers = self.numbers
        if a.significand is None:
            t = self.total(a.exponent)
            less = numbers.apply(lambda x: np.log1p(np.exp(-np.abs(x))), t)
            return numbers.add(numbers.apply(lambda x: np.maximum(x, 0), t, exact=True), less)
        return self.plain(self.apply("log", self.together("add", constant(1.0), a)))

    def power(self, name: str, a: CarefulTerm, b: CarefulTerm) -> CarefulTerm | None:
        count = b.constant if isinstance(b, Number) else None
        if count is None:
            return None
        number = float(count)
        if isinstance(a, Power):
            value = a.significand
            if value is not None:
                value = self.numbers.apply(np.power, value, constant(number))
            plain = None if a.plain is None else self._plainly(name, (a.plain, constant(number)))
            return Power(value, plus((), a.exponent, number), plain, met=a.met)
        if number == 2 and isinstance(a, Number):
            return self.numbers.mul(a, a)
        return None

    def sqrt(self, _: str, a: CarefulTerm) -> CarefulTerm | None:
        return self.power("pow", a, constant(0.5)) if isinstance(a, Power) else None

    def where(
        self, _: str, condition: CarefulTerm, a: CarefulTerm, b: CarefulTerm
    ) -> CarefulTerm | None:
        """A choice between an exponential and 0; where it is 0, the exponent is -inf."""
        for term, other, first in ((a, b, True), (b, a, False)):
            zero = isinstance(other, Number) and other.constant == 0
            if not isinstance(term, Power) or not zero:
                continue
            test, numbers = self.plain(condition), self.numbers

            def chosen(
                x: Number, hidden: float, test: Number = test, first: bool = first
            ) -> Number:
                return self.numbers.apply(
                    lambda c, t: np.where(c if first else ~c, t, t.dtype.type(hidden)),
                    test,
                    x,
                    exact=True,
                )

            exponent = ((chosen(numbers.spread(*self._whole(term)), -np.inf), 1.0),)
            value = None if term.significand is None else chosen(term.significand, 0.0)
            plain = None if term.plain is None else chosen(term.plain, 0.0)
            return Power(value, exponent, plain, met=term.met)
        return None

    def _whole(self, x: Power) -> tuple[Number, tuple[Axis, ...]]:
        total = self.total(x.exponent)
        return total, total.axes

    # ---------------------------------------------------------------- sums

    def sum(self, x: CarefulTerm, axis: Axis) -> CarefulTerm:
        """The sum over an axis."""
        if isinstance(x, Power):
            if x.met:
                return self._unless_vanished(self.numbers.sum(self.plain(x), axis))
            shared = self.shared(x, axis)
            assert shared.significand is not None
            return Power(self.numbers.sum(shared.significand, axis), shared.exponent)
        return self.numbers.sum(self.plain(x), axis)

    def dot(self, a: CarefulTerm, b: CarefulTerm, axis: Axis) -> CarefulTerm:
        """The sum of products over an axis."""
        powers = [term for term in (a, b) if isinstance(term, Power)]
        if powers and all(power.met for power in powers):
            plain = self.numbers.dot(self.plain(a), self.plain(b), axis)
            return self._unless_vanished(plain)
        (x, t), (y, u) = (self._operand(term, axis) for term in (a, b))
        made, exponent = self.numbers.dot(x, y, axis), plus(t, u)
        return Power(made, exponent) if exponent else made

    def _unless_vanished(self, x: Number) -> Number:
        """A sum of exponentials shifted by other maxima; where it is 0, it is not judged."""
        vanished = np.abs(self.numbers.array(x)) < 1 / self.numbers.rounding.largest
        return self.numbers.undecided(x, Number(x.axes, vanished)) if vanished.any() else x

    def _operand(self, term: CarefulTerm, axis: Axis) -> tuple[Number, ExponentSum]:
        """An operand of a dot, and the exponent that is factored out of it."""
        if not isinstance(term, Power):
            return self.plain(term), ()
        shared = self.shared(term, axis)
        assert shared.significand is not None
        return shared.significand, shared.exponent

    def shared(self, x: Power, axis: Axis) -> Power:
        """The same power with one exponent along an axis: each was shifted by its maximum.

        Several exponents are shifted each by its own maximum before they are added.
        """
        key = (id(x), axis)
        if key not in self._shared:
            self._shared[key] = (x, self._share(x, axis))
        return self._shared[key][1]

    def _share(self, x: Power, axis: Axis) -> Power:
        numbers = self.numbers
        axes = axes_of(x)
        fixed = [(atom, factor) for atom, factor in x.exponent if axis not in atom.axes]
        varying = [(atom, factor) for atom, factor in x.exponent if axis in atom.axes]
        value = x.significand
        total: Number | None = None
        for atom, factor in varying:
            scaled, top = atom, None
            if factor != 1:
                scaled = self.times(atom, factor)
            top = self._top(scaled, axis)
            if factor == 1:
                top.top_of = atom
            fixed.append((top, 1.0))
            shifted = numbers.sub(scaled, top)
            total = shifted if total is None else numbers.add(total, shifted)
        if total is not None and len(varying) > 1:
            top = self._top(total, axis)
            total = numbers.sub(total, top)
            fixed.append((top, 1.0))
        if total is not None:
            factor_of_e = numbers.apply(np.exp, total)
            if value is None:
                value = factor_of_e
            else:  # an infinite sum beside larger finite ones
                infinite = Number(value.axes, np.isinf(numbers.array(value)))
                value = numbers.undecided(numbers.mul(value, factor_of_e), infinite)
        made = constant(1.0) if value is None else value
        return Power(numbers.spread(made, axes) if axis not in made.axes else made, tuple(fixed))

    def _top(self, x: Number, axis: Axis) -> Number:
        """The maximum along an axis; 0 where it is infinite, so that nothing is inf - inf."""
        return self._bounded(self.numbers.reduce(np.maximum, x, axis, -np.inf))

    def _bounded(self, top: Number) -> Number:
        """A maximum, or 0 where it is infinite."""
        made = self.numbers.apply(_finite, top, exact=True)
        made.infinite = np.isposinf(self.numbers.array(top))
        return made


def _adds_powers(x: Number) -> bool:
    """True for a sum of two terms of which at least one is an exponential."""
    return x.made[:1] in (("add",), ("sub",)) and any(isinstance(y, Power) for y in x.made[1])


def _finite(x: Any) -> Any:
    return np.where(np.isinf(x), x.dtype.type(0), x)


_RULES: dict[str, Callable[..., CarefulTerm | None]] = {
    "exp": Careful.exp,
    "exp2": Careful.exp,
    "mul": Careful.mul,
    "div": Careful.div,
    "neg": Careful.neg,
    "add": Careful.add,
    "sub": Careful.add,
    "log": Careful.log,
    "log2": Careful.log,
    "log10": Careful.log,
    "log1p": Careful.log1p,
    "pow": Careful.power,
    "sqrt": Careful.sqrt,
    "where": Careful.where,
}
