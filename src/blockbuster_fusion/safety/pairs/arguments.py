"""The operands of an expression that is being built in a graph of pairs."""

from dataclasses import replace
from typing import TYPE_CHECKING

from blockbuster_fusion.ir.expr import Expr, arg, arguments, const, substitute
from blockbuster_fusion.ir.ops import Elementwise, Value
from blockbuster_fusion.safety.pairs.arithmetic import TermArithmetic
from blockbuster_fusion.safety.pairs.forms import PairForm
from blockbuster_fusion.safety.pairs.terms import Form, Term
from blockbuster_fusion.safety.pairs.terms import plain as plain_term

if TYPE_CHECKING:
    from blockbuster_fusion.safety.pairs.pair_graph import PairGraph


class Arguments:
    """The operands of an expression under construction: values, or pairs in plain form."""

    def __init__(self, graph: "PairGraph") -> None:
        self.graph = graph
        self.entries: dict[Value | PairForm, int] = {}
        self.identities: dict[Value, Expr] = {}
        """The identities of plain operands."""
        self.terms = TermArithmetic(self.origin, self._divisor, self._is_maximum)

    def add(self, entry: Value | PairForm) -> Expr:
        return arg(self.entries.setdefault(entry, len(self.entries)))

    def term(self, written: PairForm) -> Term:
        """A value in some form as a term over these arguments."""
        made = self._term(written)
        if not written.raw and written.form is not Form.few:
            return made
        return replace(made, native=self.add(written))

    def _term(self, written: PairForm) -> Term:
        if written.number is not None:
            return plain_term(const(written.number))
        value = None if written.value is None else self.add(written.value)
        exponent = tuple((self.add(atom), factor) for atom, factor in written.exponent)
        addends = tuple(self.term(addend) for addend in written.addends)
        return Term(written.form, value, exponent, written.raw, addends=addends)

    def plain(self, written: PairForm) -> Expr:
        """A value in some form as a plain expression over these arguments."""
        if written.form is not Form.few:
            return self.terms.as_plain(self._term(written))
        first, *rest = (self.plain(addend) for addend in written.addends)
        for part in rest:
            first = first + part
        return first

    def emit(self, expr: Expr, own: int | None = None) -> Value:
        """The value of an expression over these arguments."""
        if expr.op == "arg":
            return self._resolved(expr.index)
        operands: list[Value] = []
        renamed: dict[int, Expr] = {}
        for index in sorted(arguments(expr)):
            value = self._resolved(index)
            if value not in operands:
                operands.append(value)
            renamed[index] = arg(operands.index(value))
        return self.graph.emit(Elementwise(substitute(expr, renamed)), *operands, own=own)

    def origin(self, atom: Expr) -> Expr | None:
        """The origin of an atom: the identity of the argument of its exponential."""
        atom = self.terms.base_of(atom)
        if atom.op == "arg":
            return self._known(self._entry(atom.index))
        known = {index: self._known(self._entry(index)) for index in arguments(atom)}
        found = {index: x for index, x in known.items() if x is not None}
        return substitute(atom, found) if len(found) == len(known) else None

    def _known(self, entry: Value | PairForm) -> Expr | None:
        if not isinstance(entry, Value):
            return None
        return self.graph.draft.origins.get(entry, self.identities.get(entry))

    def _divisor(self, atom: Expr) -> Expr:
        if atom.op != "arg" or self.emit(atom) in self.graph.draft.floored:
            return atom
        return self.add(self.graph.divisor(self.emit(atom)))

    def _is_maximum(self, atom: Expr, alone: bool) -> bool:
        atom = self.terms.base_of(atom)
        if atom.op != "arg":
            return False
        entry, draft = self._entry(atom.index), self.graph.draft
        return entry in draft.maxima or (not alone and entry in draft.joint)

    def _entry(self, index: int) -> Value | PairForm:
        return list(self.entries)[index]

    def _resolved(self, index: int) -> Value:
        entry = self._entry(index)
        return entry if isinstance(entry, Value) else self.graph.native(entry)
