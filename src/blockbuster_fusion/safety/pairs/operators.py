"""Values in pairs: operators on items, written anew with significands and exponents."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from blockbuster_fusion.ir.analysis import analysis
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.combiner import ADD, MAX
from blockbuster_fusion.ir.expr import (
    Expr,
    arg,
    arguments,
    call,
    cast,
    const,
    contains,
    substitute,
)
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.infer import infer
from blockbuster_fusion.ir.ops import BlockReduce, Dot, Elementwise, Map, Node, Op, Value
from blockbuster_fusion.ir.types import Type
from blockbuster_fusion.safety.choices import Choice
from blockbuster_fusion.safety.linearity import is_linear
from blockbuster_fusion.safety.pairs.arithmetic import TermArithmetic
from blockbuster_fusion.safety.pairs.demand import Demands
from blockbuster_fusion.safety.pairs.exponents import (
    GREATEST,
    LARGEST,
    LOG2,
    NOTHING,
    bounded,
    is_nothing,
    is_of_two,
    log_of_size,
    power,
)
from blockbuster_fusion.safety.pairs.identity import Identities
from blockbuster_fusion.safety.pairs.terms import ONE, Form, Term
from blockbuster_fusion.safety.pairs.terms import plain as plain_term

Powers = tuple[tuple[Value, float], ...]
"""An exponent: values, each with its factor."""

UNDEFINED = const(float("nan"))


@dataclass(frozen=True, slots=True)
class Written:
    """How a value is written in the new program; see `Term`."""

    form: Form
    value: Value | None
    exponent: Powers = ()
    raw: bool = False
    addends: "tuple[Written, ...]" = ()
    number: float | None = None
    """A plain value that is a number."""

    def but(self, value: Value | None, exponent: "Powers") -> "Written":
        """The same number with another significand and exponent, after it has been shared."""
        return Written(Form.scaled if exponent else Form.plain, value, exponent)

    @property
    def parts(self) -> tuple[Value, ...]:
        """The values that it is made of."""
        own = () if self.value is None else (self.value,)
        inner = (part for addend in self.addends for part in addend.parts)
        return tuple(dict.fromkeys((*own, *(atom for atom, _ in self.exponent), *inner)))

    def renamed(self, names: Mapping[Value, Value]) -> "Written":
        """The same over other values."""
        value = None if self.value is None else names[self.value]
        exponent = merged((names[atom], factor) for atom, factor in self.exponent)
        addends = tuple(addend.renamed(names) for addend in self.addends)
        return replace(self, value=value, exponent=exponent, addends=addends)


def plain(value: Value) -> Written:
    return Written(Form.plain, value)


@analysis
def holds_exp(graph: Graph) -> bool:
    """True if there is an exponential in this graph or in a map of it."""
    return any(_has_exp(node.op) for node in graph.nodes.values())


def _has_exp(op: Op) -> bool:
    if isinstance(op, Map):
        return holds_exp(op.body)
    return isinstance(op, Elementwise) and contains(op.expr, "exp", "exp2")


def merged(exponent: Iterable[tuple[Value, float]]) -> tuple[tuple[Value, float], ...]:
    """An exponent with each atom once; what cancels is gone."""
    made: dict[Value, float] = {}
    for atom, factor in exponent:
        made[atom] = made.get(atom, 0.0) + factor
    return tuple((atom, factor) for atom, factor in made.items() if factor != 0)


class Arguments:
    """The operands of an expression in the making: values, or written values in plain form."""

    def __init__(self, level: "Items") -> None:
        self.level = level
        self.entries: dict[Value | Written, int] = {}
        self.identities: dict[Value, Expr] = {}
        """What is known of plain operands."""
        self.terms = TermArithmetic(self.origin, self._divisor, self._is_maximum)

    def add(self, entry: Value | Written) -> Expr:
        return arg(self.entries.setdefault(entry, len(self.entries)))

    def term(self, written: Written) -> Term:
        """A written value as a term over these arguments."""
        made = self._term(written)
        if not written.raw and written.form is not Form.few:
            return made
        return replace(made, native=self.add(written))

    def _term(self, written: Written) -> Term:
        if written.number is not None:
            return plain_term(const(written.number))
        value = None if written.value is None else self.add(written.value)
        exponent = tuple((self.add(atom), factor) for atom, factor in written.exponent)
        addends = tuple(self.term(addend) for addend in written.addends)
        return Term(written.form, value, exponent, written.raw, addends=addends)

    def plain(self, written: Written) -> Expr:
        """A written value as a plain expression over these arguments."""
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
        return self.level.emit(Elementwise(substitute(expr, renamed)), *operands, own=own)

    def origin(self, atom: Expr) -> Hashable:
        """The exponential that an atom comes from, as the identity of what it is taken of."""
        atom = self.terms.base_of(atom)
        if atom.op == "arg":
            return self._known(self._entry(atom.index))
        known = {index: self._known(self._entry(index)) for index in arguments(atom)}
        found = {index: x for index, x in known.items() if x is not None}
        return substitute(atom, found) if len(found) == len(known) else None

    def _known(self, entry: Value | Written) -> Expr | None:
        if not isinstance(entry, Value):
            return None
        return self.level.draft.origins.get(entry, self.identities.get(entry))

    def _divisor(self, atom: Expr) -> Expr:
        if atom.op != "arg" or self.emit(atom) in self.level.draft.floored:
            return atom
        return self.add(self.level.divisor(self.emit(atom)))

    def _is_maximum(self, atom: Expr, alone: bool) -> bool:
        atom = self.terms.base_of(atom)
        if atom.op != "arg":
            return False
        entry, draft = self._entry(atom.index), self.level.draft
        return entry in draft.maxima or (not alone and entry in draft.joint)

    def _entry(self, index: int) -> Value | Written:
        return list(self.entries)[index]

    def _resolved(self, index: int) -> Value:
        entry = self._entry(index)
        return entry if isinstance(entry, Value) else self.level.native(entry)


class Draft:
    """What the graphs of one program share while it is written anew."""

    def __init__(self, program: Graph) -> None:
        self.ids = count(program.max_id + 1)
        self.choices: list[Choice] = []
        self.identities = Identities(program)
        self.origins: dict[Value, Expr] = {}
        """The exponentials that exponents come from, also those that are shared."""
        self.maxima: set[Value] = set()
        """Shared exponents that no exponent of the same origin exceeds."""
        self.floored: set[Value] = set()
        """Maxima that are no less than 0, as that of 1 + Σe^x is: more than the sum of e^x."""
        self.joint: set[Value] = set()
        """Maxima of a second exponent, beside what the first one leaves: e^(x+y) has two."""
        self._dims = set(program.dims)

    def loop_over(self, dim: Dim) -> Dim:
        """A dim to walk a list by: its own, or a new one where the list is free."""
        if not dim.is_free:
            return dim
        known = [d.index for d in self._dims if d.axis is dim.axis and d.index is not None]
        made = Dim(dim.axis, max(known, default=-1) + 1, dim.packed)
        self._dims.add(made)
        return made


class Items(Builder):
    """One graph of the program while it is written anew: its items."""

    def __init__(
        self, old: Graph, demands: Demands, draft: Draft, path: tuple[int, ...] = ()
    ) -> None:
        super().__init__(draft.ids)
        self.old, self.demands, self.draft, self.path = old, demands, draft, path
        self.written: dict[Value, Written] = {}
        self.natives: dict[Written, Value] = {}
        self._shared: dict[tuple[Written, Dim, float], Written] = {}
        self._made: dict[tuple[Op, tuple[Value, ...]], Value] = {}

    def copy(self, i: int, node: Node, operands: Sequence[Written]) -> None:
        """A node as it was, with its operands' new names."""
        values = tuple(w.value for w in operands if w.value is not None)
        kinds = [self.type(v) for v in values]
        if values != node.inputs or kinds != [self.old.type(v) for v in node.inputs]:
            node = Node(node.op, values, infer(node.op, kinds))
        self.nodes[i] = node
        self.written.update((Value(i, p), plain(Value(i, p))) for p in range(len(node.types)))

    def emit(self, op: Op, *operands: Value, own: int | None = None) -> Value:
        """A node with one result, under the id `own` where that is free; the same one only once."""
        if (op, operands) not in self._made:
            if own is None or own in self.nodes:
                self._made[op, operands] = self.one(op, *operands)
            else:
                self.nodes[own] = Node(op, operands, infer(op, [self.type(v) for v in operands]))
                self._made[op, operands] = Value(own)
        return self._made[op, operands]

    def plain(self, value: Value) -> Value:
        """A value of the old graph in plain form, with the dtype that it had."""
        made = self.native(self.written[value], self.old.type(value).lists)
        dtype = self.old.type(value).dtype
        if self.type(made).dtype is dtype or self.type(made).is_list:
            return made
        return self.emit(Elementwise(cast(arg(0), dtype)), made)

    def native(self, written: Written, lists: Sequence[Dim] = ()) -> Value:
        """A written value in plain form; of a list, `lists` are the dims to walk."""
        if written.form is Form.plain:
            assert written.value is not None
            return written.value
        if written not in self.natives:
            self.natives[written] = self._multiplied_out(written, lists)
        return self.natives[written]

    def _multiplied_out(self, written: Written, lists: Sequence[Dim]) -> Value:
        dims = [self.draft.loop_over(dim) for dim in lists]

        def innermost(inner: Builder, *parts: Value) -> Value:
            names = dict(zip(written.parts, parts, strict=True))
            level = self.inside(inner)
            for old, new in names.items():
                self.follow(old, new)
            table = Arguments(level)
            return table.emit(table.plain(written.renamed(names)))

        return self.nest(dims, list(written.parts), innermost)

    def inside(self, inner: Builder) -> "Items":
        """The graph of a new map while it is built."""
        level = Items(Graph({}, [], []), self.demands, self.draft)
        level.nodes = inner.nodes
        return level

    def follow(self, old: Value, new: Value) -> None:
        """A value has the origin of another."""
        if old in self.draft.origins:
            self.draft.origins[new] = self.draft.origins[old]
        for known in (self.draft.maxima, self.draft.joint, self.draft.floored):
            if old in known:
                known.add(new)

    def divisor(self, exponent: Value) -> Value:
        """A maximum as it is subtracted from what it is the maximum of.

        With an infinity among them, none of the quotients is a number.
        """
        largest = GREATEST.get(self.type(exponent).dtype, LARGEST)
        infinite = Expr("eq", (arg(0), const(largest)))
        return self.emit(Elementwise(call("where", infinite, UNDEFINED, arg(0))), exponent)

    # ---------------------------------------------------------------- operators on items

    def elementwise(self, i: int, op: Elementwise, operands: list[Written]) -> Written:
        is_plain = all(w.form is Form.plain for w in operands)
        if is_plain and not _has_exp(op):
            self.copy(i, self.old[i], operands)
            return self.written[Value(i)]
        if not is_plain:
            operands = [self._settled_for(i, op, port, w) for port, w in enumerate(operands)]
        table = Arguments(self)
        for value, w in zip(self.old[i].inputs, operands, strict=True):
            if w.form is Form.plain and w.value is not None:
                table.identities[w.value] = self.draft.identities.of(value)
        terms = [table.term(w) for w in operands]
        term = table.terms.evaluate(op.expr, terms)
        is_few = term.form is Form.few and term.numerator is None
        if is_few and self.demands.of(Value(i)).logged:
            return self._emitted(term, table, i)
        if term.form is Form.few or (term.form is Form.moved and (is_plain or term.raw)):
            term = plain_term(table.terms.as_plain(term))
        if is_plain and (term.form is Form.plain or not self.demands.of(Value(i)).needs_exponent):
            term = self._native(i, term, table.terms.evaluate(op.expr, terms, lift=False))
        made = self._emitted(term, table, i)
        self._note_origin(op.expr, self.old[i].inputs, made)
        return self._with_axes(made, self.old.type(Value(i)), operands)

    def _note_origin(self, expr: Expr, inputs: Sequence[Value], made: Written) -> None:
        """The exponent of a bare exponential comes from what it is taken of."""
        if expr.op in ("exp", "exp2") and made.raw and made.value is None:
            known = [self.draft.identities.of(value) for value in inputs]
            for atom, _ in made.exponent:
                self.draft.origins.setdefault(atom, substitute(expr.args[0], known))

    def _native(self, i: int, term: Term, native: Term) -> Term:
        """An expression whose exponentials need no exponent, or have it inside."""
        if term.form is not Form.plain:
            reason = "it reaches no sum, and no other factor, by linear operators"
            self.choose(i, "native", "", "", reason)
            return native
        if term == native:
            self.choose(i, "native", "", "", "what it meets there is no multiple of it")
        else:
            reason = "its logarithm, or a quotient, is taken with the exponents"
            self.choose(i, "exponent", "element", "every axis", reason)
        return term

    def _settled_for(self, i: int, op: Elementwise, port: int, x: Written) -> Written:
        """An exponential that meets a factor, where it is summed along the same axis without it.

        Both sums then have one exponent, and one exponential serves them.
        """
        found = self.demands.of(Value(i))
        if not x.raw or len(found.axes) != 1 or found.otherwise or not is_linear(op.expr, port):
            return x
        inputs = self.old[i].inputs
        others = {
            d.axis for at, v in enumerate(inputs) if at != port for d in self.old.type(v).items
        }
        (axis,) = found.axes & self.demands.of(inputs[port]).alone & others or (None,)
        dims = {d for atom, _ in x.exponent for d in self.type(atom).items if d.axis is axis}
        return self.share(x, dims.pop(), i) if len(dims) == 1 else x

    def _with_axes(self, x: Written, kind: Type, operands: Sequence[Written]) -> Written:
        """A value with the axes of its type: one with an exponent that cancels may lack some."""
        known = {dim.axis for part in x.parts for dim in self.type(part).items}
        missing = {dim.axis for dim in kind.items} - known
        for part in (v for w in operands for v in w.parts):
            found = missing & {dim.axis for dim in self.type(part).items}
            if found:
                one = ONE if x.value is None else arg(1)
                spread = Elementwise(call("where", Expr("eq", (arg(0), arg(0))), one, one))
                own = () if x.value is None else (x.value,)
                x = replace(x, value=self.emit(spread, part, *own))
                missing -= found
        return x

    def _emitted(self, term: Term, table: Arguments, own: int | None = None) -> Written:
        """A term as values of this graph."""
        if term.form is Form.plain:
            return plain(table.emit(table.terms.as_plain(term), own))
        value = None if term.value is None else table.emit(term.value, own)
        exponent = []
        for atom, factor in term.exponent:
            made = table.emit(atom)
            base = table.terms.base_of(atom)
            if base is not atom:
                self.follow(table.emit(base), made)
                self.draft.floored.add(made)
            origin = table.origin(atom)
            if isinstance(origin, Expr):
                self.draft.origins.setdefault(made, origin)
            exponent.append((made, factor))
        addends = tuple(self._addend(addend, table) for addend in term.addends)
        return Written(term.form, value, merged(exponent), term.raw, addends)

    def _addend(self, term: Term, table: Arguments) -> Written:
        if term.form is Form.plain and term.value is not None and term.value.op == "const":
            return Written(Form.plain, None, number=float(term.value.number))
        return self._emitted(term, table)

    def block_reduce(self, i: int, op: BlockReduce, x: Written) -> Written:
        if op.combiner is ADD and x.form is Form.scaled:
            x = self.share(x, op.dim, i)
            assert x.value is not None
            return x.but(self.emit(op, x.value, own=i), x.exponent)
        return plain(self.emit(op, self.native(x), own=i))

    def dot(self, i: int, op: Dot, a: Written, b: Written) -> Written:
        a, b = (w if w.form is Form.scaled else plain(self.native(w)) for w in (a, b))
        a, b = self._with_maxima_of(a, b)
        b, a = self._with_maxima_of(b, a)
        a, b = self.share(a, op.dim, i), self.share(b, op.dim, i)
        assert a.value is not None
        assert b.value is not None
        made = self.emit(op, a.value, b.value, own=i)
        return a.but(made, merged((*a.exponent, *b.exponent)))

    def _with_maxima_of(self, x: Written, other: Written) -> tuple[Written, Written]:
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

    def share(self, x: Written, dim: Dim, node: int, headroom: float = 0.0) -> Written:
        """The same value with one exponent for all elements along an axis: their maximum."""
        if not self._varying(x, dim):
            return x
        key = (x, dim, headroom)
        if key not in self._shared:
            made = self.normalised(x)
            varying = self._varying(made, dim)
            if varying:
                made = self._at_maxima(made, varying, dim, headroom)
                kind = "row" if any(self.type(atom).items for atom, _ in made.exponent) else "block"
                self.choose(node, "exponent", kind, dim.name, "summed along it: linear on the way")
            self._shared[key] = made
        return self._shared[key]

    def _varying(self, x: Written, dim: Dim) -> Powers:
        return tuple(part for part in x.exponent if dim in self.type(part[0]).items)

    def normalised(self, x: Written) -> Written:
        """A value in which maxima that came from outside meet the exponents that they belong to.

        Their differences are no larger than 0: they go into the significand.
        """
        met = self._meetings(x)
        if not met:
            return x
        table = Arguments(self)
        gone = [(v, s * f) for a, f, t in met for v, s in ((a, 1.0), (t, -1.0))]
        exponent = tuple((table.add(v), f) for v, f in merged(gone))
        factor = table.terms.power(exponent, divides=True)
        value = factor if x.value is None else table.add(x.value) * factor
        return x.but(table.emit(value), merged((*x.exponent, *((v, -f) for v, f in gone))))

    def _meetings(self, x: Written) -> list[tuple[Value, float, Value]]:
        """Exponents, each with its factor and a maximum that is subtracted from it."""
        origins, maxima = self.draft.origins, self.draft.maxima
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
        return set(self.type(maximum).items) <= set(self.type(a).items)

    def _at_maxima(self, x: Written, varying: Powers, dim: Dim, headroom: float) -> Written:
        """Each exponent meets its own maximum before anything is added to it.

        The maximum of a second one is that of its sum with what is left of the first.
        """
        table = Arguments(self)
        own = None if x.value is None else table.add(x.value)
        left: Expr | None = None
        common: list[tuple[Value, float]] = []
        of_two = is_of_two(varying)
        for atom, factor in varying:
            size = abs(factor) / LOG2 if of_two else abs(factor)
            exponent = table.add(atom) if factor > 0 else -table.add(atom)
            both = exponent if left is None else (left if size == 1 else left / size) + exponent
            top = self._top(both, own, size, of_two, dim, table)
            limit = bounded(arg(0), self.type(top).dtype)
            top = self.emit(Elementwise(limit - headroom if headroom else limit), top)
            if factor > 0:
                self.follow(atom, top)
            if factor > 0 and own is None:
                (self.draft.maxima if left is None else self.draft.joint).add(top)
            difference = exponent - table.add(top)
            difference = difference if size == 1 else difference * size
            left = difference if left is None else left + difference
            common.append((top, abs(factor)))
            headroom = 0.0
        assert left is not None
        value = power(left if own is None else left * 0.5, of_two=of_two)
        if own is not None:  # in two steps: neither overflows where the product does not
            value = call("where", is_nothing(own, left), 0.0, own * value * value)
        fixed = tuple(part for part in x.exponent if part not in varying)
        return x.but(table.emit(value), merged((*fixed, *common)))

    def _top(
        self,
        exponent: Expr,
        own: Expr | None,
        size: float,
        of_two: bool,
        dim: Dim,
        table: Arguments,
    ) -> Value:
        """The largest exponent along an axis; beside significands, that of the largest product."""
        if own is None:
            return self.emit(BlockReduce(dim, MAX), table.emit(exponent))
        logarithm = log_of_size(own, of_two=of_two)
        product = exponent + (logarithm if size == 1 else logarithm / size)
        products = table.emit(call("where", is_nothing(own, exponent), NOTHING, product))
        largest = self.emit(BlockReduce(dim, MAX), products)
        is_largest = Expr("eq", (table.add(products), table.add(largest)))
        chosen = call("where", is_largest, exponent, NOTHING)
        return self.emit(BlockReduce(dim, MAX), table.emit(chosen))

    def pairs(self, x: Written, varying: Powers) -> tuple[Value, Powers]:
        """A significand, and exponents for a tuple: finite ones, with positive factors.

        Each has the axes of those before it: the maximum of a sum has those of all its parts.
        """
        varying = self._nested(varying)
        if not x.raw and x.value is not None and all(factor > 0 for _, factor in varying):
            return x.value, varying
        table = Arguments(self)
        made: list[tuple[Value, float]] = []
        left: list[tuple[Expr, float]] = []
        for atom, factor in varying:
            exponent = table.add(atom) if factor > 0 else -table.add(atom)
            limit = bounded(exponent, self.type(atom).dtype) if x.raw else exponent
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
        """Exponents of which each is spread over the axes of those before it."""
        made: list[tuple[Value, float]] = []
        for atom, factor in sorted(exponent, key=lambda part: len(self.type(part[0]).items)):
            spread = atom
            for before, _ in made[-1:]:
                if not set(self.type(before).items) <= set(self.type(atom).items):
                    same = Expr("eq", (arg(1), arg(1)))
                    both = Elementwise(call("where", same, arg(0), arg(0)))
                    spread = self.emit(both, atom, before)
                    self.follow(atom, spread)
            made.append((spread, factor))
        return tuple(made)

    def choose(self, node: int, kind: str, shared: str, axis: str, reason: str) -> None:
        self.draft.choices.append(Choice(self.path, node, kind, shared, axis, reason))
