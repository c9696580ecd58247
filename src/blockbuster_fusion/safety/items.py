"""Values in pairs: operators on items, written anew with significands and exponents."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count

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
    postorder,
    substitute,
)
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.infer import infer
from blockbuster_fusion.ir.ops import BlockReduce, Dot, Elementwise, Map, Node, Op, Value
from blockbuster_fusion.ir.types import Type
from blockbuster_fusion.safety.choices import Choice
from blockbuster_fusion.safety.demand import Demands
from blockbuster_fusion.safety.terms import (
    LEAST,
    NOTHING,
    ONE,
    Form,
    Term,
    as_plain,
    evaluate,
    total,
)


@dataclass(frozen=True, slots=True)
class Written:
    """How a value is written in the new program; see `Term`."""

    form: Form
    value: Value | None
    exponent: tuple[tuple[Value, float], ...] = ()
    raw: bool = False

    @property
    def parts(self) -> tuple[Value, ...]:
        """The values that it is made of."""
        own = () if self.value is None else (self.value,)
        return (*own, *(atom for atom, _ in self.exponent))


def plain(value: Value) -> Written:
    return Written(Form.plain, value)


def holds_exp(graph: Graph) -> bool:
    """Whether there is an exponential in this graph or in a map of it."""
    known = graph.memo.get("holds_exp")
    if known is None:
        known = graph.memo["holds_exp"] = any(_has_exp(node.op) for node in graph.nodes.values())
    return bool(known)


def _has_exp(op: Op) -> bool:
    if isinstance(op, Map):
        return holds_exp(op.body)
    return isinstance(op, Elementwise) and any(
        part.op in ("exp", "exp2") for part in postorder(op.expr)
    )


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
        self.entries: list[Value | Written] = []

    def add(self, entry: Value | Written) -> Expr:
        if entry not in self.entries:
            self.entries.append(entry)
        return arg(self.entries.index(entry))

    def term(self, written: Written) -> Term:
        """A written value as a term over these arguments."""
        if written.form is Form.plain:
            assert written.value is not None
            return Term(Form.plain, self.add(written.value))
        value = None if written.value is None else self.add(written.value)
        exponent = tuple((self.add(atom), factor) for atom, factor in written.exponent)
        native = self.add(written) if written.raw else None
        return Term(written.form, value, exponent, written.raw, native)

    def emit(self, expr: Expr, own: int | None = None) -> Value:
        """The value of an expression over these arguments."""
        if expr.op == "arg":
            assert isinstance(expr.value, int)
            return self._resolved(expr.value)
        operands: list[Value] = []
        renamed: dict[int, Expr] = {}
        for index in sorted(arguments(expr)):
            value = self._resolved(index)
            if value not in operands:
                operands.append(value)
            renamed[index] = arg(operands.index(value))
        return self.level.emit(Elementwise(substitute(expr, renamed)), *operands, own=own)

    def _resolved(self, index: int) -> Value:
        entry = self.entries[index]
        return entry if isinstance(entry, Value) else self.level.native(entry)


class Draft:
    """What the graphs of one program share while it is written anew."""

    def __init__(self, program: Graph) -> None:
        self.ids = count(program.max_id + 1)
        self.choices: list[Choice] = []
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
            names = dict(zip(written.parts, (arg(i) for i in range(len(parts))), strict=True))
            exponent = tuple((names[atom], factor) for atom, factor in written.exponent)
            value = None if written.value is None else names[written.value]
            term = Term(written.form, value, exponent, written.raw)
            return inner.one(Elementwise(as_plain(term)), *parts)

        return self.nest(dims, list(written.parts), innermost)

    # ---------------------------------------------------------------- operators on items

    def elementwise(self, i: int, op: Elementwise, operands: list[Written]) -> Written:
        is_plain = all(w.form is Form.plain for w in operands)
        if is_plain and not _has_exp(op):
            self.copy(i, self.old[i], operands)
            return self.written[Value(i)]
        table = Arguments(self)
        terms = [table.term(w) for w in operands]
        term = evaluate(op.expr, terms)
        if term.raw and is_plain and not self.demands.of(Value(i)).needs_exponent:
            self.choose(
                i, "native", "", "", "it reaches no sum, and no other factor, by linear operators"
            )
            term = evaluate(op.expr, terms, lift=False)
        elif term.form is Form.plain and is_plain:
            self.choose(i, "native", "", "", "what it meets there is no multiple of it")
        return self._with_axes(self._emitted(term, table, i), self.old.type(Value(i)), operands)

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

    def _emitted(self, term: Term, table: Arguments, own: int) -> Written:
        """A term as values of this graph."""
        if term.form is Form.plain:
            return plain(table.emit(as_plain(term), own))
        value = None if term.value is None else table.emit(term.value, own)
        exponent = tuple((table.emit(atom), factor) for atom, factor in term.exponent)
        return Written(term.form, value, merged(exponent), term.raw)

    def block_reduce(self, i: int, op: BlockReduce, x: Written) -> Written:
        if op.combiner is ADD and x.form is Form.scaled:
            x = self.share(x, op.dim, i)
            assert x.value is not None
            return replace(x, value=self.emit(op, x.value, own=i), raw=False)
        return plain(self.emit(op, self.native(x), own=i))

    def dot(self, i: int, op: Dot, a: Written, b: Written) -> Written:
        a, b = (plain(self.native(w)) if w.form is Form.moved else w for w in (a, b))
        a, b = self.share(a, op.dim, i), self.share(b, op.dim, i)
        assert a.value is not None
        assert b.value is not None
        exponent = merged((*a.exponent, *b.exponent))
        form = Form.scaled if exponent else Form.plain
        return Written(form, self.emit(op, a.value, b.value, own=i), exponent)

    def share(self, x: Written, dim: Dim, node: int, headroom: float = 0.0) -> Written:
        """The same value with one exponent for all elements along an axis: their maximum."""
        varying = tuple(part for part in x.exponent if dim in self.type(part[0]).items)
        if not varying:
            return x
        key = (x, dim, headroom)
        if key not in self._shared:
            exponent = self.total(varying)
            top = self.emit(BlockReduce(dim, MAX), self._magnitude(x, exponent))
            bounded = call("maximum", arg(0), LEAST)
            common = self.emit(Elementwise(bounded - headroom if headroom else bounded), top)
            factor = call("exp", arg(0) - arg(1))
            if x.value is None:
                value = self.emit(Elementwise(factor), exponent, common)
            else:
                is_zero = Expr("eq", (arg(2), const(0.0)))  # and its factor perhaps infinite
                scaled = call("where", is_zero, 0.0, arg(2) * factor)
                value = self.emit(Elementwise(scaled), exponent, common, x.value)
            fixed = tuple(part for part in x.exponent if part not in varying)
            self._shared[key] = Written(Form.scaled, value, merged((*fixed, (common, 1.0))))
            kind = "row" if self.type(common).items else "block"
            self.choose(node, "exponent", kind, dim.name, "summed along it: linear on the way")
        return self._shared[key]

    def _magnitude(self, x: Written, exponent: Value) -> Value:
        """The exponents that the elements would have without a significand; what is 0 has none."""
        if x.value is None:
            return exponent
        size = call("log", call("maximum", call("abs", arg(1)), 1e-30))
        is_zero = Expr("eq", (arg(1), const(0.0)))
        expr = call("where", is_zero, NOTHING, arg(0) + size)
        return self.emit(Elementwise(expr), exponent, x.value)

    def total(self, exponent: Sequence[tuple[Value, float]]) -> Value:
        """The sum of some parts of an exponent."""
        table = Arguments(self)
        return table.emit(total(tuple((table.add(atom), factor) for atom, factor in exponent)))

    def bounded(self, x: Written, exponent: Sequence[tuple[Value, float]]) -> Value:
        """Their sum, for a tuple: two that stand for nothing would be -inf together."""
        made = self.total(exponent)
        if not x.raw and [factor for _, factor in exponent] == [1]:
            return made
        return self.emit(Elementwise(call("maximum", arg(0), LEAST)), made)

    def significand(self, x: Written) -> Value:
        """The significand as a value; ones where there is none."""
        if x.value is not None:
            return x.value
        one = call("where", Expr("eq", (arg(0), arg(0))), 1.0, 1.0)
        return self.emit(Elementwise(one), self.total(x.exponent))

    def choose(self, node: int, kind: str, shared: str, axis: str, reason: str) -> None:
        self.draft.choices.append(Choice(self.path, node, kind, shared, axis, reason))
