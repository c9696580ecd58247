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
from blockbuster_fusion.ir.expr import arg, call, cast
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
from blockbuster_fusion.safety.demand import Demand, Demands
from blockbuster_fusion.safety.items import Draft, Items, Written, holds_exp, merged, plain
from blockbuster_fusion.safety.terms import LEAST, Form

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


def rescaled_sum(summands: int) -> Combiner:
    """The sum of pairs that share an exponent: (t, S1, S2, …), all S at the larger t."""
    size = 1 + summands
    common = call("maximum", arg(0), arg(size))
    mine, theirs = (call("exp", arg(at) - common) for at in (0, size))
    sums = tuple(arg(i) * mine + arg(size + i) * theirs for i in range(1, size))
    return Combiner("rescaled_sum", (LEAST, *(0.0,) * summands), (common, *sums))


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
        parts = {
            v: self.emit(op, v) if self.type(v).list_dim(op.dim) is not None else v for v in x.parts
        }
        value = None if x.value is None else parts[x.value]
        return replace(
            x, value=value, exponent=merged((parts[atom], factor) for atom, factor in x.exponent)
        )

    def reduce(self, i: int, op: Reduce, x: Written) -> Written:
        """A list of pairs, summed: one exponent for all."""
        if x.form is Form.moved:
            (listed,) = self.old[i].inputs
            return plain(self.emit(op, self.plain(listed), own=i))
        varying = tuple(part for part in x.exponent if self.type(part[0]).list_dim(op.dim))
        if not varying and x.value is not None:
            return replace(x, value=self.emit(op, x.value, own=i), raw=False)
        if x.value is None or len(varying) != 1 or varying[0][1] != 1:
            x, varying = self._paired(x, varying, op.dim)
        assert x.value is not None
        ((exponent, _),) = varying
        self.nodes[i] = Node(
            Reduce(op.dim, rescaled_sum(1)),
            (exponent, x.value),
            tuple(self.type(v).iterate(op.dim) for v in (exponent, x.value)),
        )
        fixed = tuple(part for part in x.exponent if part not in varying)
        return Written(Form.scaled, Value(i, 1), merged((*fixed, (Value(i, 0), 1.0))))

    def _paired(
        self, x: Written, varying: tuple[tuple[Value, float], ...], dim: Dim
    ) -> tuple[Written, tuple[tuple[Value, float], ...]]:
        """A list with one significand and one exponent for each element."""
        parts = list(dict.fromkeys([*x.parts, *(atom for atom, _ in varying)]))
        walked = [v for v in parts if self.type(v).list_dim(dim) is not None]
        whole = [v for v in parts if v not in walked]

        def body(inner: Builder, *ports: Value) -> list[tuple[Value, Mode]]:
            names = dict(zip([*walked, *whole], ports, strict=True))
            level = Items(Graph({}, [], []), self.demands, self.draft)
            level.nodes = inner.nodes
            own = None if x.value is None else names[x.value]
            exponent = tuple((names[atom], factor) for atom, factor in varying)
            pair = Written(Form.scaled, own, exponent)
            return [(level.significand(pair), None), (level.bounded(x, exponent), None)]

        value, together = self.map(dim, walked, whole, body)
        fixed = tuple(part for part in x.exponent if part not in varying)
        made = ((together, 1.0),)
        return Written(Form.scaled, value, (*fixed, *made)), made

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
        self.groups: dict[Value, list[tuple[int, Value]]] = {}
        """Sums by the exponent that they share: their numbers, and what is summed."""
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
            value = None if written.value is None else walks[written.value]
            exponent = tuple((walks[atom], factor) for atom, factor in written.exponent)
            made = replace(written, value=value, exponent=exponent)
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
            inside = tuple(p for p in made.exponent if self.outside(p[0], whole=False) is None)
            others = tuple(p for p in made.exponent if p not in inside)
            together = ((body.total(inside), 1.0),) if inside else ()
            return replace(made, exponent=(*others, *together))
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
        value = None if written.value is None else parts[written.value]
        exponent = tuple((parts[atom], factor) for atom, factor in written.exponent)
        made = replace(written, value=value, exponent=exponent)
        self.outer.written[Value(self.node, number)] = made

    def _yielded(self, value: Value, mode: Mode) -> Value:
        outside = self.outside(value, whole=mode is not None)
        if outside is not None:
            return outside
        if (value, mode) not in self.results:
            self.results.append((value, mode))
        return Value(self.node, self.results.index((value, mode)))

    def sum(self, number: int, written: Written) -> None:
        """A sum that the loop carries: with all others that have the same exponent."""
        known = {atom: self.outside(atom, whole=True) for atom, _ in written.exponent}
        varying = tuple(part for part in written.exponent if known[part[0]] is None)
        self.fixed[number] = tuple(
            (outside, factor)
            for atom, factor in written.exponent
            if (outside := known[atom]) is not None
        )
        value = self.body.significand(written)
        if varying:
            exponent = self.body.bounded(written, varying)
            self.groups.setdefault(exponent, []).append((number, value))
            return
        self.result(number, value, Reduced(ADD))
        made = self.outer.written[Value(self.node, number)]
        self.outer.written[Value(self.node, number)] = replace(
            made, form=Form.scaled, exponent=self.fixed[number]
        )

    def finish(self) -> None:
        """The map, after its sums have been grouped."""
        for exponent, sums in self.groups.items():
            self._group(exponent, sums)
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

    def _group(self, exponent: Value, sums: list[tuple[int, Value]]) -> None:
        values = list(dict.fromkeys(value for _, value in sums))
        combiner = rescaled_sum(len(values))
        first = len(self.results)
        for component, value in enumerate([exponent, *values]):
            self.results.append((value, Reduced(combiner, component)))
        for number, value in sums:
            result = Value(self.node, first + 1 + values.index(value))
            made = merged((*self.fixed[number], (Value(self.node, first), 1.0)))
            self.outer.written[Value(self.node, number)] = Written(Form.scaled, result, made)


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
