"""Sharing of exponents: one exponent for all elements that are summed together."""

import math
from collections.abc import Callable
from dataclasses import replace

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.combiner import MAX
from blockbuster_fusion.ir.expr import Expr, arg, call
from blockbuster_fusion.ir.ops import BlockReduce, Elementwise, Value
from blockbuster_fusion.safety.pairs.arguments import Arguments
from blockbuster_fusion.safety.pairs.arithmetic import TermArithmetic
from blockbuster_fusion.safety.pairs.exponents import (
    LOG2,
    NOTHING,
    bounded,
    in_exact_units,
    is_nothing,
    is_of_two,
    log_of_size,
    power,
    room_for,
    signed,
)
from blockbuster_fusion.safety.pairs.forms import PairForm, Powers, merged, plain
from blockbuster_fusion.safety.pairs.pair_graph import PairGraph
from blockbuster_fusion.safety.pairs.terms import ONE

LARGE = 40.0
"""The logarithm of the largest significand that is not scaled."""
LARGEST_SCALE = 60.0
"""The logarithm of the largest scale: an infinite significand stays infinite."""
OF_REMAINDERS = 2.0**-10
"""The part of the finite range that a maximum of rounding errors may have.

In a row of zeros it is the lowest number, which must stay finite when it is scaled.
"""
Meetings = list[tuple[Value, float, Value]]
"""Exponents, each with its factor and a maximum that is subtracted from it."""


def nowhere(value: Value) -> bool:
    """No maximum is kept apart."""
    return False


def _pairs_of(meetings: Meetings) -> list[tuple[Value, float]]:
    """The exponents and maxima that meet, with their factors."""
    return [part for atom, f, top in meetings for part in ((atom, f), (top, -abs(f)))]


def _less(exponent: Powers, gone: list[tuple[Value, float]]) -> Powers:
    """An exponent without the parts that are gone."""
    return merged((*exponent, *((v, -f) for v, f in gone)))


class Sharing:
    """Gives values of a graph exponents that they share along an axis."""

    def __init__(self, graph: PairGraph) -> None:
        self.graph = graph
        self._shared: dict[tuple[PairForm, Dim, float], PairForm] = {}

    def share(self, x: PairForm, dim: Dim, node: int, headroom: float = 0.0) -> PairForm:
        """The same value with one exponent for all elements along an axis: their maximum."""
        if not self._varying(x, dim):
            return x
        key = (x, dim, headroom)
        if key not in self._shared:
            further = self.is_scaled_further(x)
            made = self.normalised(x, lambda v: further and dim in self.graph.type(v).items)
            if self._varying(made, dim):  # it may be largest where the difference is small
                made = self._at_maxima(x, self._varying(x, dim), dim, headroom)
                in_rows = any(self.graph.type(atom).items for atom, _ in made.exponent)
                kind, reason = "row" if in_rows else "block", "summed along it: linear on the way"
                self.graph.choose(node, "exponent", kind, dim.name, reason)
            self._shared[key] = made
        return self._shared[key]

    def _varying(self, x: PairForm, dim: Dim) -> Powers:
        return tuple(part for part in x.exponent if dim in self.graph.type(part[0]).items)

    def is_scaled_further(self, x: PairForm) -> bool:
        """True if exponents are left of a value when maxima have met those that they belong to.

        They may make up for a difference that is far below 0, even for all elements of a sum.
        """
        gone = _pairs_of(self._meetings(x))
        return bool(gone) and bool(_less(x.exponent, gone))

    def is_met(self, x: PairForm) -> bool:
        """True if each exponent of a value has met its maximum."""
        return bool(x.exponent) and not _less(x.exponent, _pairs_of(self._meetings(x)))

    def normalised(self, x: PairForm, apart: Callable[[Value], bool] = nowhere) -> PairForm:
        """A value in which maxima are subtracted from the exponents that they belong to.

        The differences are at most 0 and go into the significand. Maxima that are kept `apart`
        stay in the exponent.
        """
        met = [(a, f, t) for a, f, t in self._meetings(x) if not apart(t)]
        if not met:
            return x
        table = Arguments(self.graph)
        gone = _pairs_of(met)
        exponent = tuple((table.add(v), f) for v, f in merged(gone))
        factor = table.terms.power(exponent, divides=True)
        value = factor if x.value is None else table.add(x.value) * factor
        return x.but(table.emit(value), _less(x.exponent, gone))

    def _meetings(self, x: PairForm) -> Meetings:
        """Exponents, each with its factor and a maximum that is subtracted from it."""
        draft = self.graph.draft
        left = dict(x.exponent)
        known = [(v, *signed(draft.origins[v])) for v in left if v in draft.origins]
        known.sort(key=lambda part: part[0] in draft.maxima)  # maxima meet others first
        tops = [part for part in known if left[part[0]] < 0 and part[0] in draft.maxima]
        found: Meetings = []
        for a, origin, sign in known:
            for t, of_top, other in tops:
                f, factor = left[a], left[t]
                is_maximum = of_top == origin and other * sign * f > 0 and t != a and factor < 0
                if is_maximum and -factor <= abs(f) and self._spans(a, t):
                    part = math.copysign(factor, f)
                    found.append((a, part, t))
                    left[a], left[t] = f - part, 0.0
        return found

    def _spans(self, a: Value, maximum: Value) -> bool:
        return set(self.graph.type(maximum).items) <= set(self.graph.type(a).items)

    def _at_maxima(self, x: PairForm, varying: Powers, dim: Dim, headroom: float) -> PairForm:
        """The value with each exponent reduced by its own maximum along an axis.

        The maximum of a second exponent includes the remainder of the first.
        """
        table = Arguments(self.graph)
        own = None if x.value is None else table.add(x.value)
        left: Expr | None = None
        common: list[tuple[Value, float]] = []
        of_two = is_of_two(varying)
        for atom, factor in self._summed(varying):
            size = abs(factor) / LOG2 if of_two else abs(factor)
            exponent = table.add(atom) if factor > 0 else -table.add(atom)
            both = exponent if left is None else (left if size == 1 else left / size) + exponent
            top = self._top(both, own, size, of_two, dim, table)
            share = OF_REMAINDERS if atom in self.graph.draft.remainders else 1.0
            limit = bounded(arg(0), self.graph.type(top).dtype, share)
            top = self.graph.emit(Elementwise(limit - headroom if headroom else limit), top)
            self.graph.follow(atom, top, negated=factor < 0)
            if own is None:
                (self.graph.draft.maxima if left is None else self.graph.draft.joint).add(top)
            difference = exponent - table.add(top)
            difference = difference if size == 1 else difference * size
            left = difference if left is None else left + difference
            common.append((top, abs(factor)))
            headroom = 0.0
        assert left is not None
        value = power(left if own is None else left * 0.5, of_two=of_two)
        if own is not None:  # in two steps: neither overflows unless the product does
            value = call("where", is_nothing(own, left), 0.0, own * value * value)
        fixed = tuple(part for part in x.exponent if part not in varying)
        return x.but(table.emit(value), merged((*fixed, *common)))

    def _summed(self, exponent: Powers) -> Powers:
        """An exponent in few parts: a sum of several atoms is one number and its rounding error.

        Atoms are added if their factors differ by powers of two, which are exact.
        """
        made: list[tuple[Value, float]] = []
        for unit, atoms in in_exact_units(exponent):
            remainders = self.graph.draft.remainders
            if len(atoms) == 1 or (len(atoms) == 2 and any(v in remainders for v, _ in atoms)):
                made += [(atom, factor * unit) for atom, factor in atoms]
                continue
            table = Arguments(self.graph)
            room = room_for(atoms)
            scaled = [(table.add(atom) * (abs(f) / room), math.copysign(1, f)) for atom, f in atoms]
            total, lost = table.terms.exact_total(tuple(scaled))
            assert lost is not None
            sums = [table.emit(part) for part in (total, lost)]
            remainders.add(sums[1])
            made += [(part, unit * room) for part in sums]
        return tuple(made)

    def _top(
        self,
        exponent: Expr,
        own: Expr | None,
        size: float,
        of_two: bool,
        dim: Dim,
        table: Arguments,
    ) -> Value:
        """The largest exponent along an axis; with significands, that of the largest product.

        A significand above e^40 is scaled by the exponent, so that sums of such do not overflow.
        """
        if own is None:
            return self.graph.emit(BlockReduce(dim, MAX), table.emit(exponent))
        logarithm = log_of_size(own, of_two=of_two)
        product = exponent + (logarithm if size == 1 else logarithm / size)
        products = table.emit(call("where", is_nothing(own, exponent), NOTHING, product))
        largest = self.graph.emit(BlockReduce(dim, MAX), products)
        is_largest = Expr("eq", (table.add(products), table.add(largest)))
        chosen = call("where", is_largest, exponent, NOTHING)
        top = self.graph.emit(BlockReduce(dim, MAX), table.emit(chosen))
        unit = size * LOG2 if of_two else size
        scaled = call("minimum", arg(1) - LARGE / unit, arg(0) + LARGEST_SCALE / unit)
        return self.graph.emit(Elementwise(call("maximum", arg(0), scaled)), top, largest)

    def pairs(self, x: PairForm, varying: Powers) -> tuple[Value, Powers]:
        """The significand and the exponents of a tuple: finite, with positive factors.

        Each exponent has the axes of those before it.
        """
        varying = self._nested(self._summed(varying))
        if not x.raw and x.value is not None and all(factor > 0 for _, factor in varying):
            return x.value, varying
        table = Arguments(self.graph)
        made: list[tuple[Value, float]] = []
        left: list[tuple[Expr, float]] = []
        for atom, factor in varying:
            exponent = table.add(atom) if factor > 0 else -table.add(atom)
            limit = bounded(exponent, self.graph.type(atom).dtype) if x.raw else exponent
            common = table.emit(limit)
            self.graph.follow(atom, common, negated=factor < 0)
            made.append((common, abs(factor)))
            left += [(exponent, abs(factor)), (table.add(common), -abs(factor))]
        if not x.raw and x.value is not None:
            return x.value, tuple(made)
        value = TermArithmetic().power(tuple(left)) if varying else ONE
        if x.value is not None:
            own, difference = table.add(x.value), TermArithmetic().total(tuple(left))
            value = call("where", is_nothing(own, difference), 0.0, own * value)
        return table.emit(value), tuple(made)

    def _nested(self, exponent: Powers) -> Powers:
        """Exponents, each broadcast over the axes of those before it."""
        made: list[tuple[Value, float]] = []
        for atom, factor in sorted(exponent, key=lambda part: len(self.graph.type(part[0]).items)):
            spread = atom
            for before, _ in made[-1:]:
                if not set(self.graph.type(before).items) <= set(self.graph.type(atom).items):
                    same = Expr("eq", (arg(1), arg(1)))
                    both = Elementwise(call("where", same, arg(0), arg(0)))
                    spread = self.graph.emit(both, atom, before)
                    self.graph.follow(atom, spread)
            made.append((spread, factor))
        return tuple(made)

    def with_maxima_of(self, x: PairForm, other: PairForm) -> tuple[PairForm, PairForm]:
        """Two factors, with the maxima of the first one's exponents taken from the second."""
        if not x.raw:
            return x, other
        both = replace(x, exponent=(*x.exponent, *other.exponent))
        maxima = {t for _, _, t in self._meetings(both)}
        taken = tuple(part for part in other.exponent if part[0] in maxima)
        left = tuple(part for part in other.exponent if part[0] not in maxima)
        if not taken:
            return x, other
        if left or other.value is None:
            return replace(x, exponent=(*x.exponent, *taken)), replace(other, exponent=left)
        return replace(x, exponent=(*x.exponent, *taken)), plain(other.value)
