"""Operators on items, rewritten with significands and exponents."""

from collections.abc import Sequence
from dataclasses import replace

from blockbuster_fusion.ir.combiner import ADD
from blockbuster_fusion.ir.expr import Expr, arg, call, substitute
from blockbuster_fusion.ir.ops import BlockReduce, Dot, Elementwise, Value
from blockbuster_fusion.ir.types import Type
from blockbuster_fusion.safety.linearity import is_linear, is_power
from blockbuster_fusion.safety.pairs.arguments import Arguments
from blockbuster_fusion.safety.pairs.forms import PairForm, merged, plain
from blockbuster_fusion.safety.pairs.pair_graph import PairGraph, has_exp
from blockbuster_fusion.safety.pairs.sharing import Sharing
from blockbuster_fusion.safety.pairs.terms import ONE, Form, Term
from blockbuster_fusion.safety.pairs.terms import plain as plain_term


class Operators:
    """Rewrites elementwise operators, block reductions and dots of a graph."""

    def __init__(self, graph: PairGraph, sharing: Sharing) -> None:
        self.graph, self.sharing = graph, sharing

    def elementwise(self, i: int, op: Elementwise, operands: list[PairForm]) -> PairForm:
        is_plain = all(w.form is Form.plain for w in operands)
        if is_plain and not has_exp(op):
            self.graph.copy(i, self.graph.old[i], operands)
            return self.graph.written[Value(i)]
        if not is_plain:
            operands = [self._settled_for(i, op, port, operands) for port in range(len(operands))]
            operands = [
                self._closed_for_power(i, op, port, operands) for port in range(len(operands))
            ]
        table = Arguments(self.graph)
        for value, w in zip(self.graph.old[i].inputs, operands, strict=True):
            if w.form is Form.plain and w.value is not None:
                table.identities[w.value] = self.graph.draft.identities.of(value)
        terms = [table.term(w) for w in operands]
        term = table.terms.evaluate(op.expr, terms)
        demand = self.graph.demands.of(Value(i))
        if term.form is Form.few and term.numerator is None and demand.logged:
            return self._emitted(term, table, i)
        if term.form is Form.few or (term.form is Form.moved and (is_plain or term.raw)):
            term = plain_term(table.terms.as_plain(term))
        if is_plain and (term.form is Form.plain or not demand.needs_exponent):
            term = self._native(i, term, table.terms.evaluate(op.expr, terms, lift=False))
        made = self._emitted(term, table, i)
        self._note_origin(op.expr, self.graph.old[i].inputs, made)
        return self._with_axes(made, self.graph.old.type(Value(i)), operands)

    def _note_origin(self, expr: Expr, inputs: Sequence[Value], made: PairForm) -> None:
        """Notes the origin of the exponent of a bare exponential."""
        if expr.op in ("exp", "exp2") and made.raw and made.value is None:
            known = [self.graph.draft.identities.of(value) for value in inputs]
            for atom, _ in made.exponent:
                self.graph.draft.origins.setdefault(atom, substitute(expr.args[0], known))

    def _native(self, i: int, term: Term, native: Term) -> Term:
        """The term of an expression whose exponentials need no exponent, or have it inside."""
        if term.form is not Form.plain:
            reason = "it reaches no sum, and no other factor, by linear operators"
            self.graph.choose(i, "native", "", "", reason)
            return native
        if term == native:
            self.graph.choose(i, "native", "", "", "what it meets there is no multiple of it")
        else:
            reason = "its logarithm, or a quotient, is taken with the exponents"
            self.graph.choose(i, "exponent", "element", "every axis", reason)
        return term

    def _settled_for(
        self, i: int, op: Elementwise, port: int, operands: Sequence[PairForm]
    ) -> PairForm:
        """Shares the exponent of an exponential that is summed with a factor and without it.

        Both sums then have one exponent, and one exponential serves both. A factor whose own
        exponent varies along the axis would enlarge elements that are too small by then.
        """
        x = operands[port]
        found = self.graph.demands.of(Value(i))
        if not x.raw or len(found.axes) != 1 or found.otherwise or not is_linear(op.expr, port):
            return x
        inputs = self.graph.old[i].inputs
        others = {
            d.axis
            for at, v in enumerate(inputs)
            if at != port
            for d in self.graph.old.type(v).items
        }
        (axis,) = found.axes & self.graph.demands.of(inputs[port]).alone & others or (None,)
        factors = [atom for at, w in enumerate(operands) if at != port for atom, _ in w.exponent]
        if any(d.axis is axis for atom in factors for d in self.graph.type(atom).items):
            return x
        dims = {d for atom, _ in x.exponent for d in self.graph.type(atom).items if d.axis is axis}
        return self.sharing.share(x, dims.pop(), i) if len(dims) == 1 else x

    def _closed_for_power(
        self, i: int, op: Elementwise, port: int, operands: Sequence[PairForm]
    ) -> PairForm:
        """A value in plain form if its power is only summed: that of a significand may overflow.

        The difference from its maximum, which would make up for it, is its whole exponent.
        """
        x, found = operands[port], self.graph.demands.of(Value(i))
        is_met = x.form is Form.scaled and x.value is not None and self.sharing.is_met(x)
        if not is_met or found.logged or found.multiplied or not is_power(op.expr, port):
            return x
        return plain(self.graph.native(x))

    def _with_axes(self, x: PairForm, kind: Type, operands: Sequence[PairForm]) -> PairForm:
        """Restores the axes of a value's type: it may lack some after an exponent cancels."""
        known = {dim.axis for part in x.parts for dim in self.graph.type(part).items}
        missing = {dim.axis for dim in kind.items} - known
        for part in (v for w in operands for v in w.parts):
            found = missing & {dim.axis for dim in self.graph.type(part).items}
            if found:
                one = ONE if x.value is None else arg(1)
                spread = Elementwise(call("where", Expr("eq", (arg(0), arg(0))), one, one))
                own = () if x.value is None else (x.value,)
                x = replace(x, value=self.graph.emit(spread, part, *own))
                missing -= found
        return x

    def _emitted(self, term: Term, table: Arguments, own: int | None = None) -> PairForm:
        """A term as values of this graph."""
        if term.form is Form.plain:
            return plain(table.emit(table.terms.as_plain(term), own))
        value = None if term.value is None else table.emit(term.value, own)
        exponent = []
        for atom, factor in term.exponent:
            made = table.emit(atom)
            base = table.terms.base_of(atom)
            if base is not atom:
                self.graph.follow(table.emit(base), made)
                self.graph.draft.floored.add(made)
            origin = table.origin(atom)
            if isinstance(origin, Expr):
                self.graph.draft.origins.setdefault(made, origin)
            exponent.append((made, factor))
        addends = tuple(self._addend(addend, table) for addend in term.addends)
        return PairForm(term.form, value, merged(exponent), term.raw, addends)

    def _addend(self, term: Term, table: Arguments) -> PairForm:
        if term.form is Form.plain and term.value is not None and term.value.op == "const":
            return PairForm(Form.plain, None, number=float(term.value.number))
        return self._emitted(term, table)

    def block_reduce(self, i: int, op: BlockReduce, x: PairForm) -> PairForm:
        if op.combiner is ADD and x.form is Form.scaled:
            x = self.sharing.share(x, op.dim, i)
            assert x.value is not None
            return x.but(self.graph.emit(op, x.value, own=i), x.exponent)
        return plain(self.graph.emit(op, self.graph.native(x), own=i))

    def dot(self, i: int, op: Dot, a: PairForm, b: PairForm) -> PairForm:
        a, b = (w if w.form is Form.scaled else plain(self.graph.native(w)) for w in (a, b))
        a, b = self.sharing.with_maxima_of(a, b)
        b, a = self.sharing.with_maxima_of(b, a)
        a, b = (self.sharing.share(w, op.dim, i) for w in (a, b))
        assert a.value is not None
        assert b.value is not None
        made = self.graph.emit(op, a.value, b.value, own=i)
        return a.but(made, merged((*a.exponent, *b.exponent)))
