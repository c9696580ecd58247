"""Loops while they are rewritten: the values that go into a map, and those that come out."""

from dataclasses import replace
from typing import TYPE_CHECKING

from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.combiner import ADD, ANY, Mode, Reduced
from blockbuster_fusion.ir.expr import arg, cast
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.infer import map_types
from blockbuster_fusion.ir.ops import Elementwise, Input, Map, Node, Output, Value
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.safety.pairs.demand import Demand
from blockbuster_fusion.safety.pairs.forms import PairForm, Powers, merged, plain
from blockbuster_fusion.safety.pairs.pair_graph import PairGraph
from blockbuster_fusion.safety.pairs.rescaled_sum import rescaled_sum
from blockbuster_fusion.safety.pairs.terms import Form

if TYPE_CHECKING:
    from blockbuster_fusion.safety.pairs.pairs import GraphRewriter

HEADROOM = {DType.float16: 10.0}
"""The distance of an exponent below the maximum, for significands that are stored as float16.

They then go up to e^10 = 22026 instead of 1, and elements e^27 times smaller than the largest are
representable; with the maximum it would be e^17. After a sum they have no bound and are stored as
they are.
"""


class Loop:
    """A map while it is rewritten: its operands and its results."""

    def __init__(self, outer: PairGraph, node: int, op: Map, rewriter: "GraphRewriter") -> None:
        self.outer, self.node, self.op = outer, node, op
        self.rewriter, self.body = rewriter, rewriter.graph
        self.ports: dict[tuple[Value, bool], Value] = {}
        """The input of the body for each operand, iterated or whole."""
        self.results: list[tuple[Value, Mode]] = []
        self.groups: dict[Powers, list[tuple[int, Value]]] = {}
        """Sums by shared exponents: result numbers and summands."""
        self.fixed: dict[int, tuple[tuple[Value, float], ...]] = {}

    # ---------------------------------------------------------------- in

    def hand_in(self, port: int, written: PairForm, iterated: bool) -> None:
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
            new = next(self.outer.draft.ids) if own is None else own
            name = getattr(self.op.body.op(own), "name", "") if own is not None else ""
            self.body.nodes[new] = Node(Input(name, seen), (), (seen,))
            self.body.builder.inputs.append(new)
            self.ports[key] = Value(new)
            self.outer.follow(value, Value(new))
        return self.ports[key]

    def outside(self, value: Value, *, whole: bool) -> Value | None:
        """The operand behind an input of the body; with `whole`, only if it is not iterated."""
        for (operand, iterated), inner in self.ports.items():
            if inner == value and not (whole and iterated):
                return operand
        return None

    # ---------------------------------------------------------------- out

    def hand_out(self, number: int) -> None:
        """Rewrites one result of the body."""
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
        """Adds a plain result."""
        made = Value(self.node, len(self.results))
        self.results.append((value, mode))
        self.outer.written[Value(self.node, number)] = plain(made)

    def stack(self, number: int, value: Value, written: PairForm) -> None:
        """Stacks a list: as plain numbers for uses that need them, as parts for the others."""
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

    def _stored(self, value: Value, written: PairForm, demand: Demand) -> PairForm:
        """The form in which an exponential is stored in a buffer."""
        body = self.body
        if any(body.type(part).is_list for part in written.parts):
            return written  # decided when its items were stacked
        if all(self.outside(part, whole=False) for part in written.parts):
            reason = "its exponents lie in memory already"
            body.choose(value.node, "exponent", "element", "every axis", reason)
            return written
        dtype = body.old.type(value).dtype
        made = self.rewriter.share_for(written, demand, value.node, HEADROOM.get(dtype, 0.0))
        if made is written:
            reason = "it is summed along several axes, or used otherwise as well"
            body.choose(value.node, "exponent", "element", "every axis", reason)
            return made
        return self._rounded(value, made)

    def _rounded(self, value: Value, written: PairForm) -> PairForm:
        """A form whose significand has the dtype of the list that it represents."""
        body = self.body
        dtype = body.old.type(value).dtype
        if written.value is None or body.type(written.value).is_list:
            return written
        if body.type(written.value).dtype is dtype:
            return written
        return replace(written, value=body.emit(Elementwise(cast(arg(0), dtype)), written.value))

    def yield_parts(self, number: int, written: PairForm, mode: Mode) -> None:
        """Yields each part of a form as a result, unless it is an operand of the map."""
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

    def sum(self, number: int, written: PairForm) -> None:
        """Adds a sum that the loop carries to those with the same exponents."""
        sharing = self.rewriter.sharing
        known = {atom: self.outside(atom, whole=True) for atom, _ in written.exponent}
        further = sharing.is_scaled_further(written)
        normalised = sharing.normalised(written, lambda v: further and known[v] is None)
        if all(known[atom] is not None for atom, _ in normalised.exponent):
            written = normalised
        varying = tuple(part for part in written.exponent if known[part[0]] is None)
        self.fixed[number] = tuple(
            (outside, factor)
            for atom, factor in written.exponent
            if (outside := known[atom]) is not None
        )
        value, exponents = sharing.pairs(written, varying)
        if exponents:
            self.groups.setdefault(exponents, []).append((number, value))
            return
        self.result(number, value, Reduced(ADD))
        known_as = Value(self.node, number)
        made = self.outer.written[known_as]
        self.outer.written[known_as] = made.but(made.value, self.fixed[number])

    def finish(self) -> None:
        """Builds the map, with its sums in groups."""
        for exponents, sums in self.groups.items():
            self._group(exponents, sums)
        body = self.body
        body.builder.outputs.extend(Output("", value) for value, _ in self.results)
        needed = _needed(body.builder)
        nodes = {i: node for i, node in body.nodes.items() if i in needed}
        ports = [key for key, inner in self.ports.items() if inner.node in needed]
        inputs = [self.ports[key].node for key in ports]
        modes = tuple(mode for _, mode in self.results)
        iterated = tuple(flag for _, flag in ports)
        graph = Graph(nodes, inputs, body.builder.outputs)
        made = Map(self.op.dim, graph, iterated, modes, self.op.first)
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
            self.outer.written[Value(self.node, number)] = PairForm(Form.scaled, result, exponent)


def _needed(builder: Builder) -> set[int]:
    """The nodes that the outputs need."""
    needed: set[int] = set()
    stack = [out.value.node for out in builder.outputs]
    while stack:
        i = stack.pop()
        if i not in needed:
            needed.add(i)
            stack.extend(v.node for v in builder.nodes[i].inputs)
    return needed
