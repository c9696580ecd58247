"""Sharing of exponents: one exponent for all elements that are summed together."""

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
    is_nothing,
    is_of_two,
    log_of_size,
    power,
    summed,
)
from blockbuster_fusion.safety.pairs.forms import PairForm, Powers, merged, plain
from blockbuster_fusion.safety.pairs.pair_graph import PairGraph
from blockbuster_fusion.safety.pairs.terms import ONE

MOST = 3
"""A sum shares so many exponents at most."""


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
            made = self.normalised(x)
            varying = self._varying(made, dim)
            if varying:
                made = self._at_maxima(made, varying, dim, headroom)
                in_rows = any(self.graph.type(atom).items for atom, _ in made.exponent)
                kind, reason = "row" if in_rows else "block", "summed along it: linear on the way"
                self.graph.choose(node, "exponent", kind, dim.name, reason)
            self._shared[key] = made
        return self._shared[key]

    def _varying(self, x: PairForm, dim: Dim) -> Powers:
        return tuple(part for part in x.exponent if dim in self.graph.type(part[0]).items)

    def normalised(self, x: PairForm) -> PairForm:
        """A value in which maxima are subtracted from the exponents that they belong to.

        The differences are at most 0 and go into the significand.
        """
        met = self._meetings(x)
        if not met:
            return x
        table = Arguments(self.graph)
        gone = [(v, s * f) for a, f, t in met for v, s in ((a, 1.0), (t, -1.0))]
        exponent = tuple((table.add(v), f) for v, f in merged(gone))
        factor = table.terms.power(exponent, divides=True)
        value = factor if x.value is None else table.add(x.value) * factor
        return x.but(table.emit(value), merged((*x.exponent, *((v, -f) for v, f in gone))))

    def _meetings(self, x: PairForm) -> list[tuple[Value, float, Value]]:
        """Exponents, each with its factor and a maximum that is subtracted from it."""
        origins, maxima = self.graph.draft.origins, self.graph.draft.maxima
        tops = [(t, -f) for t, f in x.exponent if f < 0 and t in maxima]
        found: list[tuple[Value, float, Value]] = []
        for a, f in x.exponent:
            for top in list(tops) if f > 0 and a in origins else ():
                t, factor = top
                if factor <= f and origins.get(t) == origins[a] and self._spans(a, t):
                    found.append((a, factor, t))
                    tops.remove(top)
                    f -= factor
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
        for atom, factor in self._few(varying, of_two):
            size = abs(factor) / LOG2 if of_two else abs(factor)
            exponent = table.add(atom) if factor > 0 else -table.add(atom)
            both = exponent if left is None else (left if size == 1 else left / size) + exponent
            top = self._top(both, own, size, of_two, dim, table)
            limit = bounded(arg(0), self.graph.type(top).dtype)
            top = self.graph.emit(Elementwise(limit - headroom if headroom else limit), top)
            if factor > 0:
                self.graph.follow(atom, top)
            if factor > 0 and own is None:
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

    def _few(self, exponent: Powers, of_two: bool) -> Powers:
        """The exponents, with those behind the first few added up.

        The first ones may be large, and lie apart so that they meet their own maxima. The others
        are what earlier maxima left over. Without a limit each sum of sums would have one more.
        """
        if len(exponent) <= MOST:
            return exponent
        table, (*kept, _) = Arguments(self.graph), exponent[:MOST]
        unit = LOG2 if of_two else 1.0
        rest = [(table.add(atom), factor / unit) for atom, factor in exponent[len(kept) :]]
        return (*kept, (table.emit(summed(rest)), unit))

    def _top(
        self,
        exponent: Expr,
        own: Expr | None,
        size: float,
        of_two: bool,
        dim: Dim,
        table: Arguments,
    ) -> Value:
        """The largest exponent along an axis; with significands, that of the largest product."""
        if own is None:
            return self.graph.emit(BlockReduce(dim, MAX), table.emit(exponent))
        logarithm = log_of_size(own, of_two=of_two)
        product = exponent + (logarithm if size == 1 else logarithm / size)
        products = table.emit(call("where", is_nothing(own, exponent), NOTHING, product))
        largest = self.graph.emit(BlockReduce(dim, MAX), products)
        is_largest = Expr("eq", (table.add(products), table.add(largest)))
        chosen = call("where", is_largest, exponent, NOTHING)
        return self.graph.emit(BlockReduce(dim, MAX), table.emit(chosen))

    def pairs(self, x: PairForm, varying: Powers) -> tuple[Value, Powers]:
        """The significand and the exponents of a tuple: finite, with positive factors.

        Each exponent has the axes of those before it.
        """
        varying = self._nested(varying)
        if not x.raw and x.value is not None and all(factor > 0 for _, factor in varying):
            return x.value, varying
        table = Arguments(self.graph)
        made: list[tuple[Value, float]] = []
        left: list[tuple[Expr, float]] = []
        for atom, factor in varying:
            exponent = table.add(atom) if factor > 0 else -table.add(atom)
            limit = bounded(exponent, self.graph.type(atom).dtype) if x.raw else exponent
            common = table.emit(limit)
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
