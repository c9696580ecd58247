"""A graph while it is rewritten: values that are pairs of significands and exponents."""

from collections.abc import Sequence
from itertools import count

from blockbuster_fusion.ir.analysis import analysis
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.expr import Expr, arg, call, cast, const, contains
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.infer import infer
from blockbuster_fusion.ir.ops import Elementwise, Map, Node, Op, Value
from blockbuster_fusion.ir.types import Type
from blockbuster_fusion.safety.choices import SafetyChoice
from blockbuster_fusion.safety.pairs.arguments import Arguments
from blockbuster_fusion.safety.pairs.demand import Demands
from blockbuster_fusion.safety.pairs.exponents import GREATEST, LARGEST
from blockbuster_fusion.safety.pairs.forms import PairForm, plain
from blockbuster_fusion.safety.pairs.identity import Identities
from blockbuster_fusion.safety.pairs.terms import Form

UNDEFINED = const(float("nan"))


@analysis
def holds_exp(graph: Graph) -> bool:
    """True if there is an exponential in this graph or in a map of it."""
    return any(has_exp(node.op) for node in graph.nodes.values())


def has_exp(op: Op) -> bool:
    if isinstance(op, Map):
        return holds_exp(op.body)
    return isinstance(op, Elementwise) and contains(op.expr, "exp", "exp2")


class Draft:
    """State that the graphs of one program share while it is rewritten."""

    def __init__(self, program: Graph) -> None:
        self.ids = count(program.max_id + 1)
        self.choices: list[SafetyChoice] = []
        self.identities = Identities(program)
        self.origins: dict[Value, Expr] = {}
        """The origin of each exponent, shared ones included."""
        self.maxima: set[Value] = set()
        """Shared exponents that no exponent of the same origin exceeds."""
        self.floored: set[Value] = set()
        """Maxima bounded below by 0, as that of 1 + Σe^x."""
        self.joint: set[Value] = set()
        """Maxima of a second exponent plus the remainder of the first: e^(x+y) has two."""
        self.remainders: set[Value] = set()
        """Rounding errors of sums of exponents, and their maxima."""
        self._dims = set(program.dims)

    def loop_over(self, dim: Dim) -> Dim:
        """The dim of a loop over a list: its own, or a new one if the list is free."""
        if not dim.is_free:
            return dim
        known = [d.index for d in self._dims if d.axis is dim.axis and d.index is not None]
        made = Dim(dim.axis, max(known, default=-1) + 1, dim.packed)
        self._dims.add(made)
        return made


class PairGraph:
    """One graph of the program while it is rewritten; `builder` collects the new nodes."""

    def __init__(
        self,
        old: Graph,
        demands: Demands,
        draft: Draft,
        path: tuple[int, ...] = (),
        builder: Builder | None = None,
    ) -> None:
        self.old, self.demands, self.draft, self.path = old, demands, draft, path
        self.builder = Builder(draft.ids) if builder is None else builder
        self.written: dict[Value, PairForm] = {}
        self.natives: dict[PairForm, Value] = {}
        self._made: dict[tuple[Op, tuple[Value, ...]], Value] = {}

    @property
    def nodes(self) -> dict[int, Node]:
        """The new nodes."""
        return self.builder.nodes

    def type(self, value: Value) -> Type:
        """The type of a new value."""
        return self.builder.type(value)

    def copy(self, i: int, node: Node, operands: Sequence[PairForm]) -> None:
        """Copies a node, with the new names of its operands."""
        values = tuple(w.value for w in operands if w.value is not None)
        kinds = [self.type(v) for v in values]
        if values != node.inputs or kinds != [self.old.type(v) for v in node.inputs]:
            node = Node(node.op, values, infer(node.op, kinds))
        self.nodes[i] = node
        self.written.update((Value(i, p), plain(Value(i, p))) for p in range(len(node.types)))

    def emit(self, op: Op, *operands: Value, own: int | None = None) -> Value:
        """A node with one result, under the id `own` if that is free; equal nodes are shared."""
        if (op, operands) not in self._made:
            if own is None or own in self.nodes:
                self._made[op, operands] = self.builder.one(op, *operands)
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

    def native(self, written: PairForm, lists: Sequence[Dim] = ()) -> Value:
        """A value in plain form; for a list, `lists` are the dims to iterate."""
        if written.form is Form.plain:
            assert written.value is not None
            return written.value
        if written not in self.natives:
            self.natives[written] = self._multiplied_out(written, lists)
        return self.natives[written]

    def _multiplied_out(self, written: PairForm, lists: Sequence[Dim]) -> Value:
        dims = [self.draft.loop_over(dim) for dim in lists]

        def innermost(inner: Builder, *parts: Value) -> Value:
            names = dict(zip(written.parts, parts, strict=True))
            for old, new in names.items():
                self.follow(old, new)
            table = Arguments(self.inside(inner))
            return table.emit(table.plain(written.renamed(names)))

        return self.builder.nest(dims, list(written.parts), innermost)

    def inside(self, inner: Builder) -> "PairGraph":
        """The graph of a new map while it is built."""
        return PairGraph(Graph({}, [], []), self.demands, self.draft, builder=inner)

    def follow(self, old: Value, new: Value, *, negated: bool = False) -> None:
        """Gives a value the origin of another, or of its negative."""
        if old in self.draft.origins:
            origin = self.draft.origins[old]
            self.draft.origins[new] = -origin if negated else origin
        if old in self.draft.remainders:
            self.draft.remainders.add(new)
        if negated:
            return
        draft = self.draft
        for known in (draft.maxima, draft.joint, draft.floored):
            if old in known:
                known.add(new)

    def divisor(self, exponent: Value) -> Value:
        """A maximum in the form in which it is subtracted: NaN if it is infinite.

        With an infinity in a row, none of the quotients is a number.
        """
        largest = GREATEST.get(self.type(exponent).dtype, LARGEST)
        infinite = Expr("eq", (arg(0), const(largest)))
        return self.emit(Elementwise(call("where", infinite, UNDEFINED, arg(0))), exponent)

    def choose(self, node: int, kind: str, shared: str, axis: str, reason: str) -> None:
        """Notes a decision of the safety pass."""
        self.draft.choices.append(SafetyChoice(self.path, node, kind, shared, axis, reason))
