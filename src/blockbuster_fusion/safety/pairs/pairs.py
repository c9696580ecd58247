"""The pass that gives exponentials an exponent of their own: significand-exponent pairs.

Every value of a program is written in one of the forms of `terms`: plain, `S·e^t`, or `s + t`. An
exponential that reaches a sum starts as `e^t` with an exponent for each element; where it is summed
or contracted over an axis, all elements along that axis get one exponent, their maximum. Sums that
a loop carries become reductions of tuples, in which everything with one exponent is rescaled
together. What is stored as a result, or needed otherwise, is multiplied out.
"""

from dataclasses import replace

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.combiner import ADD, ANY, Combiner, Mode, Reduced
from blockbuster_fusion.ir.expr import Expr, arg, call, cast
from blockbuster_fusion.ir.graph import Graph, with_body
from blockbuster_fusion.ir.infer import map_types
from blockbuster_fusion.ir.ops import (
    BlockReduce,
    Dot,
    Elementwise,
    Input,
    Map,
    Node,
    Output,
    Pick,
    Reduce,
    Value,
)
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.safety.choices import Safe
from blockbuster_fusion.safety.pairs.demand import Demand, Demands
from blockbuster_fusion.safety.pairs.exponents import GREATEST, LARGEST, LOG2, power
from blockbuster_fusion.safety.pairs.operators import (
    Draft,
    Items,
    Powers,
    Written,
    holds_exp,
    merged,
    plain,
)
from blockbuster_fusion.safety.pairs.terms import Form

HEADROOM = {DType.float16: 10.0}
"""How far below the maximum an exponent is chosen for significands that are stored as float16.

They then go up to e^10 = 22026 instead of 1, and what is e^27 times smaller than the largest is
still a float16; with the maximum it would be e^17. After a sum nothing bounds them, and they are
stored as they are computed.
"""


def with_exponents(graph: Graph) -> Safe:
    """The program with pairs for the exponentials that reach a sum."""
    if not holds_exp(graph):
        return Safe(graph, ())
    level = Level(graph, Demands(graph), Draft(graph))
    for i in graph.inputs:
        level.nodes[i] = graph[i]
        level.inputs.append(i)
        level.written[Value(i)] = plain(Value(i))
    level.run()
    for out in graph.outputs:
        value = level.plain(out.value)
        level.outputs.append(Output(out.name, value, out.axes))
    return Safe(level.build().without_dead_nodes(), tuple(level.draft.choices))


def rescaled_sum(
    summands: int, factors: tuple[float, ...] = (1.0,), dtype: DType = DType.float32
) -> Combiner:
    """The sum of pairs that share exponents: (t1, …, S1, S2, …), all S at the larger t.

    A pair stands for S·e^(f1·t1 + …). Of several exponents each meets its own maximum first; that
    of the second is the maximum of its sum with what is left of the first.
    """
    size = len(factors) + summands
    of_two = all(factor == LOG2 for factor in factors)
    mine: Expr | None = None
    theirs: Expr | None = None
    maxima: list[Expr] = []
    for at, factor in enumerate(factors):
        scale = factor / LOG2 if of_two else factor
        own, other = arg(at), arg(size + at)
        common = call("maximum", _after(mine, scale, own), _after(theirs, scale, other))
        maxima.append(common)
        mine, theirs = _more(mine, own - common, scale), _more(theirs, other - common, scale)
    assert mine is not None
    assert theirs is not None
    mine, theirs = power(mine, of_two=of_two), power(theirs, of_two=of_two)
    sums = tuple(arg(i) * mine + arg(size + i) * theirs for i in range(len(factors), size))
    least = -GREATEST.get(dtype, LARGEST)
    identity = (*(least,) * len(factors), *(0.0,) * summands)
    return Combiner("rescaled_sum", identity, (*maxima, *sums))


def _after(left: Expr | None, scale: float, exponent: Expr) -> Expr:
    return exponent if left is None else (left if scale == 1 else left / scale) + exponent


def _more(left: Expr | None, difference: Expr, scale: float) -> Expr:
    scaled = difference if scale == 1 else difference * scale
    return scaled if left is None else left + scaled


class Level(Items):
    """One graph of the program while it is written anew."""

    def run(self) -> None:
        """Writes every node of the old graph."""
        for i, node in self.old.nodes.items():
            if not isinstance(node.op, Input):
                self.write(i, node)

    def write(self, i: int, node: Node) -> None:
        operands = [self.written[v] for v in node.inputs]
        match node.op:
            case Elementwise() as op:
                self.written[Value(i)] = self.elementwise(i, op, operands)
            case Map() as op:
                self.loop(i, node, op, operands)
            case _ if all(w.form is Form.plain for w in operands):
                self.copy(i, node, operands)
            case BlockReduce() as op:
                self.written[Value(i)] = self.block_reduce(i, op, operands[0])
            case Dot() as op:
                self.written[Value(i)] = self.dot(i, op, *operands)
            case Reduce(combiner=combiner) as op if combiner is ADD:
                self.written[Value(i)] = self.reduce(i, op, operands[0])
            case Pick() as op:
                self.written[Value(i)] = self.pick(op, operands[0])
            case _:
                self.copy(i, node, [plain(self.plain(v)) for v in node.inputs])

    # ---------------------------------------------------------------- lists and loops

    def pick(self, op: Pick, x: Written) -> Written:
        """One element of a list, part by part."""
        return x.renamed(
            {
                v: self.emit(op, v) if self.type(v).list_dim(op.dim) is not None else v
                for v in x.parts
            }
        )

    def reduce(self, i: int, op: Reduce, x: Written) -> Written:
        """A list of pairs, summed: one exponent for all."""
        if x.form is not Form.scaled:
            (listed,) = self.old[i].inputs
            return plain(self.emit(op, self.plain(listed), own=i))
        varying = tuple(part for part in x.exponent if self.type(part[0]).list_dim(op.dim))
        if not varying and x.value is not None:
            return x.but(self.emit(op, x.value, own=i), x.exponent)
        if x.raw or x.value is None or [factor for _, factor in varying] != [abs(varying[0][1])]:
            x, varying = self._paired(x, varying, op.dim)
        assert x.value is not None
        if not varying:
            return x.but(self.emit(op, x.value, own=i), x.exponent)
        factors = tuple(factor for _, factor in varying)
        parts = (*(atom for atom, _ in varying), x.value)
        self.nodes[i] = Node(
            Reduce(op.dim, rescaled_sum(1, factors, self.type(parts[0]).dtype)),
            parts,
            tuple(self.type(v).iterate(op.dim) for v in parts),
        )
        for at in range(len(factors)):
            self.follow(parts[at], Value(i, at))
        fixed = tuple(part for part in x.exponent if part not in varying)
        common = tuple((Value(i, at), factor) for at, factor in enumerate(factors))
        return x.but(Value(i, len(factors)), merged((*fixed, *common)))

    def _paired(self, x: Written, varying: Powers, dim: Dim) -> tuple[Written, Powers]:
        """A list with one significand and exponents for each element."""
        parts = list(dict.fromkeys([*x.parts, *(atom for atom, _ in varying)]))
        walked = [v for v in parts if self.type(v).list_dim(dim) is not None]
        whole = [v for v in parts if v not in walked]
        left: list[Powers] = []

        def body(inner: Builder, *ports: Value) -> list[tuple[Value, Mode]]:
            names = dict(zip([*walked, *whole], ports, strict=True))
            for old, new in names.items():
                self.follow(old, new)
            level = self.inside(inner)
            own = None if x.value is None else names[x.value]
            exponent = tuple((names[atom], factor) for atom, factor in x.exponent)
            pair = level.normalised(Written(Form.scaled, own, exponent, x.raw))
            inside = {names[v]: v for v in walked}
            value, common = level.pairs(pair, tuple(p for p in pair.exponent if p[0] in inside))
            outside = {names[v]: v for v in whole}
            left.append(tuple((outside[v], f) for v, f in pair.exponent if v in outside))
            left.append(common)
            return [(value, None), *((atom, None) for atom, _ in common)]

        value, *exponents = self.map(dim, walked, whole, body)
        fixed, common = left
        made = tuple((v, f) for v, (_, f) in zip(exponents, common, strict=True))
        for v, (inner, _) in zip(exponents, common, strict=True):
            self.follow(inner, v)
        return x.but(value, (*fixed, *made)), made

    def loop(self, i: int, node: Node, op: Map, operands: list[Written]) -> None:
        if all(w.form is Form.plain for w in operands) and not holds_exp(op.body):
            self.copy(i, self._retyped(node, op, operands), operands)
            return
        loop = _Loop(self, i, op)
        for port, (written, iterated) in enumerate(zip(operands, op.iterated, strict=True)):
            loop.hand_in(port, self._settled(i, op, port, written), iterated)
        loop.body.run()
        for number in range(len(op.modes)):
            loop.hand_out(number)
        loop.finish()

    def _retyped(self, node: Node, op: Map, operands: list[Written]) -> Node:
        """A map whose body does not change, for operands that may be laid out otherwise."""
        kinds = [self.type(w.value) for w in operands if w.value is not None]
        ports = zip(kinds, op.iterated, strict=True)
        seen = [kind.iterate(op.dim) if iterated else kind for kind, iterated in ports]
        body = op.body.retype(seen)
        return node if body is op.body else with_body(node, body)

    def _settled(self, i: int, op: Map, port: int, x: Written) -> Written:
        """An exponential that a loop sums in every iteration gets its exponent before the loop."""
        inner = self.demands.inside(i).of(Value(op.body.inputs[port]))
        return self.share_for(x, inner, i) if x.raw else x

    def share_for(self, x: Written, demand: Demand, node: int, headroom: float = 0.0) -> Written:
        """One exponent along the axis that everybody sums over; one for each element otherwise."""
        kinds = [self.type(atom) for atom, _ in x.exponent]
        if len(demand.axes) != 1 or demand.otherwise or any(kind.is_list for kind in kinds):
            return x
        (axis,) = demand.axes
        dims = {dim for kind in kinds for dim in kind.items if dim.axis is axis}
        return self.share(x, dims.pop(), node, headroom) if len(dims) == 1 else x


class _Loop:
    """A map while it is written anew: which values go in, and which come out."""

    def __init__(self, outer: Level, node: int, op: Map) -> None:
        self.outer, self.node, self.op = outer, node, op
        inside = outer.demands.inside(node)
        path = (*outer.path, node)
        self.body = Level(op.body, inside, outer.draft, path)
        self.ports: dict[tuple[Value, bool], Value] = {}
        """The input of the body for each operand, iterated or whole."""
        self.results: list[tuple[Value, Mode]] = []
        self.groups: dict[Powers, list[tuple[int, Value]]] = {}
        """Sums by the exponents that they share: their numbers, and what is summed."""
        self.fixed: dict[int, tuple[tuple[Value, float], ...]] = {}

    # ---------------------------------------------------------------- in

    def hand_in(self, port: int, written: Written, iterated: bool) -> None:
        old = self.op.body.inputs[port]
        if written.form is Form.plain:
            assert written.value is not None
            made = plain(self.port(written.value, iterated, old))
        else:
            walks = {
                v: self.port(v, iterated and self.outer.type(v).list_dim(self.op.dim) is not None)
                for v in written.parts
            }
            made = written.renamed(walks)
        self.body.written[Value(old)] = made

    def port(self, value: Value, iterated: bool, own: int | None = None) -> Value:
        """The body's input for an operand."""
        key = (value, iterated)
        if key not in self.ports:
            kind = self.outer.type(value)
            seen = kind.iterate(self.op.dim) if iterated else kind
            new = next(self.outer.ids) if own is None else own
            name = getattr(self.op.body.op(own), "name", "") if own is not None else ""
            self.body.nodes[new] = Node(Input(name, seen), (), (seen,))
            self.body.inputs.append(new)
            self.ports[key] = Value(new)
            self.outer.follow(value, Value(new))
        return self.ports[key]

    def outside(self, value: Value, *, whole: bool) -> Value | None:
        """The operand that a value in the body is; with `whole`, only if it stays the same."""
        for (operand, iterated), inner in self.ports.items():
            if inner == value and not (whole and iterated):
                return operand
        return None

    # ---------------------------------------------------------------- out

    def hand_out(self, number: int) -> None:
        """What becomes of one result of the body."""
        out, mode = self.op.body.outputs[number], self.op.modes[number]
        written, body = self.body.written[out.value], self.body
        if written.form is Form.plain:
            self.result(number, body.plain(out.value), mode)
        elif mode is None:
            self.stack(number, out.value, written)
        elif mode.combiner is ANY:
            self.yield_parts(number, written, mode)
        elif mode.combiner is ADD and written.form is Form.scaled:
            self.sum(number, written)
        else:
            self.result(number, body.plain(out.value), mode)

    def result(self, number: int, value: Value, mode: Mode) -> None:
        """A plain result."""
        made = Value(self.node, len(self.results))
        self.results.append((value, mode))
        self.outer.written[Value(self.node, number)] = plain(made)

    def stack(self, number: int, value: Value, written: Written) -> None:
        """A list: in plain numbers for whoever needs that, in parts for the others."""
        outer, body, known = self.outer.demands, self.body, Value(self.node, number)
        if outer.wants_plain(known) or not outer.takes_any_form(known):
            self.result(number, body.plain(value), None)
        if outer.takes_any_form(known):
            native = self.outer.written.get(known)
            if written.raw:
                written = self._stored(value, written, outer.of(known))
            elif body.old.type(value).dtype not in HEADROOM:
                written = self._rounded(value, written)
            self.yield_parts(number, written, None)
            if native is not None:
                assert native.value is not None
                self.outer.natives[self.outer.written[known]] = native.value

    def _stored(self, value: Value, written: Written, demand: Demand) -> Written:
        """An exponential that crosses a buffer: how it lies there."""
        body = self.body
        if any(body.type(part).is_list for part in written.parts):
            return written  # decided where its items were stacked
        if all(self.outside(part, whole=False) for part in written.parts):
            reason = "its exponents lie in memory already"
            body.choose(value.node, "exponent", "element", "every axis", reason)
            return written
        dtype = body.old.type(value).dtype
        made = body.share_for(written, demand, value.node, HEADROOM.get(dtype, 0.0))
        if made is written:
            reason = "it is summed along several axes, or used otherwise as well"
            body.choose(value.node, "exponent", "element", "every axis", reason)
            return made
        return self._rounded(value, made)

    def _rounded(self, value: Value, written: Written) -> Written:
        """A significand as it is stored: in the dtype of the list that it stands for."""
        body = self.body
        dtype = body.old.type(value).dtype
        if written.value is None or body.type(written.value).is_list:
            return written
        if body.type(written.value).dtype is dtype:
            return written
        return replace(written, value=body.emit(Elementwise(cast(arg(0), dtype)), written.value))

    def yield_parts(self, number: int, written: Written, mode: Mode) -> None:
        """Each part of a written value as a result, unless it came in from outside."""
        parts = {v: self._yielded(v, mode) for v in written.parts}
        self.outer.written[Value(self.node, number)] = written.renamed(parts)

    def _yielded(self, value: Value, mode: Mode) -> Value:
        outside = self.outside(value, whole=mode is not None)
        if outside is not None:
            self.body.follow(value, outside)
            return outside
        if (value, mode) not in self.results:
            self.results.append((value, mode))
        made = Value(self.node, self.results.index((value, mode)))
        self.body.follow(value, made)
        return made

    def sum(self, number: int, written: Written) -> None:
        """A sum that the loop carries: with all others that have the same exponents."""
        written = self.body.normalised(written)
        known = {atom: self.outside(atom, whole=True) for atom, _ in written.exponent}
        varying = tuple(part for part in written.exponent if known[part[0]] is None)
        self.fixed[number] = tuple(
            (outside, factor)
            for atom, factor in written.exponent
            if (outside := known[atom]) is not None
        )
        value, exponents = self.body.pairs(written, varying)
        if exponents:
            self.groups.setdefault(exponents, []).append((number, value))
            return
        self.result(number, value, Reduced(ADD))
        known_as = Value(self.node, number)
        made = self.outer.written[known_as]
        self.outer.written[known_as] = made.but(made.value, self.fixed[number])

    def finish(self) -> None:
        """The map, after its sums have been grouped."""
        for exponents, sums in self.groups.items():
            self._group(exponents, sums)
        body = self.body
        body.outputs.extend(Output("", value) for value, _ in self.results)
        needed = _needed(body)
        nodes = {i: node for i, node in body.nodes.items() if i in needed}
        ports = [key for key, inner in self.ports.items() if inner.node in needed]
        inputs = [self.ports[key].node for key in ports]
        modes = tuple(mode for _, mode in self.results)
        iterated = tuple(flag for _, flag in ports)
        made = Map(self.op.dim, Graph(nodes, inputs, body.outputs), iterated, modes, self.op.first)
        self.outer.nodes[self.node] = Node(made, tuple(v for v, _ in ports), map_types(made))

    def _group(self, exponents: Powers, sums: list[tuple[int, Value]]) -> None:
        values = list(dict.fromkeys(value for _, value in sums))
        atoms, factors = [atom for atom, _ in exponents], tuple(f for _, f in exponents)
        combiner = rescaled_sum(len(values), factors, self.body.type(atoms[0]).dtype)
        first = len(self.results)
        for component, value in enumerate([*atoms, *values]):
            self.results.append((value, Reduced(combiner, component)))
        common = tuple((Value(self.node, first + at), f) for at, f in enumerate(factors))
        for atom, (made, _) in zip(atoms, common, strict=True):
            if self.op.first == 0:
                self.body.follow(atom, made)
        later = {made for made, _ in common[1:]} & self.body.draft.maxima
        self.body.draft.maxima -= later
        self.body.draft.joint |= later
        for number, value in sums:
            result = Value(self.node, first + len(atoms) + values.index(value))
            exponent = merged((*self.fixed[number], *common))
            self.outer.written[Value(self.node, number)] = Written(Form.scaled, result, exponent)


def _needed(level: Level) -> set[int]:
    """The nodes that the outputs need."""
    needed: set[int] = set()
    stack = [out.value.node for out in level.outputs]
    while stack:
        i = stack.pop()
        if i not in needed:
            needed.add(i)
            stack.extend(v.node for v in level.nodes[i].inputs)
    return needed
