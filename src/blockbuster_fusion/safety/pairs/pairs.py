"""The pass that rewrites exponentials as significand-exponent pairs.

Every value of a program has one of the forms of `terms`: plain, `S·e^t`, or `s + t`. An exponential
that reaches a sum starts as `e^t` with an exponent per element. If it is summed or contracted over
an axis, all elements along that axis share one exponent, their maximum. Sums that a loop carries
become reductions of tuples, in which all sums with one exponent are rescaled together. Results, and
values that are needed in plain form, are multiplied out.
"""

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.combiner import ADD, Mode
from blockbuster_fusion.ir.graph import Graph, with_body
from blockbuster_fusion.ir.ops import (
    BlockReduce,
    Dot,
    Elementwise,
    Input,
    Map,
    Node,
    Pick,
    Reduce,
    Value,
)
from blockbuster_fusion.safety.choices import Safe
from blockbuster_fusion.safety.pairs.demand import Demand, Demands
from blockbuster_fusion.safety.pairs.forms import PairForm, Powers, merged, plain
from blockbuster_fusion.safety.pairs.loops import Loop
from blockbuster_fusion.safety.pairs.operators import Operators
from blockbuster_fusion.safety.pairs.pair_graph import Draft, PairGraph, holds_exp
from blockbuster_fusion.safety.pairs.rescaled_sum import rescaled_sum
from blockbuster_fusion.safety.pairs.sharing import Sharing
from blockbuster_fusion.safety.pairs.terms import Form


def with_exponents(graph: Graph) -> Safe:
    """The program with pairs for the exponentials that reach a sum."""
    if not holds_exp(graph):
        return Safe(graph, ())
    rewriter = GraphRewriter(graph, Demands(graph), Draft(graph))
    made, builder = rewriter.graph, rewriter.graph.builder
    for i in graph.inputs:
        builder.nodes[i] = graph[i]
        builder.inputs.append(i)
        made.written[Value(i)] = plain(Value(i))
    rewriter.run()
    for out in graph.outputs:
        builder.output(out.name, made.plain(out.value), out.axes, out.into)
    return Safe(builder.build().without_dead_nodes(), tuple(made.draft.choices))


class GraphRewriter:
    """Rewrites one graph of the program, node by node."""

    def __init__(
        self, old: Graph, demands: Demands, draft: Draft, path: tuple[int, ...] = ()
    ) -> None:
        self.graph = PairGraph(old, demands, draft, path)
        self.sharing = Sharing(self.graph)
        self.operators = Operators(self.graph, self.sharing)

    def run(self) -> None:
        """Rewrites every node of the old graph."""
        for i, node in self.graph.old.nodes.items():
            if not isinstance(node.op, Input):
                self.write(i, node)

    def write(self, i: int, node: Node) -> None:
        operands = [self.graph.written[v] for v in node.inputs]
        match node.op:
            case Elementwise() as op:
                self.graph.written[Value(i)] = self.operators.elementwise(i, op, operands)
            case Map() as op:
                self.loop(i, node, op, operands)
            case _ if all(w.form is Form.plain for w in operands):
                self.graph.copy(i, node, operands)
            case BlockReduce() as op:
                self.graph.written[Value(i)] = self.operators.block_reduce(i, op, operands[0])
            case Dot() as op:
                self.graph.written[Value(i)] = self.operators.dot(i, op, *operands)
            case Reduce(combiner=combiner) as op if combiner is ADD:
                self.graph.written[Value(i)] = self.reduce(i, op, operands[0])
            case Pick() as op:
                self.graph.written[Value(i)] = self.pick(op, operands[0])
            case _:
                self.graph.copy(i, node, [plain(self.graph.plain(v)) for v in node.inputs])

    # ---------------------------------------------------------------- lists and loops

    def pick(self, op: Pick, x: PairForm) -> PairForm:
        """One element of a list, part by part."""
        return x.renamed(
            {
                v: self.graph.emit(op, v) if self.graph.type(v).list_dim(op.dim) is not None else v
                for v in x.parts
            }
        )

    def reduce(self, i: int, op: Reduce, x: PairForm) -> PairForm:
        """The sum of a list of pairs, with one exponent for all."""
        if x.form is not Form.scaled:
            (listed,) = self.graph.old[i].inputs
            return plain(self.graph.emit(op, self.graph.plain(listed), own=i))
        varying = tuple(part for part in x.exponent if self.graph.type(part[0]).list_dim(op.dim))
        if not varying and x.value is not None:
            return x.but(self.graph.emit(op, x.value, own=i), x.exponent)
        if x.raw or x.value is None or [factor for _, factor in varying] != [abs(varying[0][1])]:
            x, varying = self._paired(x, varying, op.dim)
        assert x.value is not None
        if not varying:
            return x.but(self.graph.emit(op, x.value, own=i), x.exponent)
        factors = tuple(factor for _, factor in varying)
        parts = (*(atom for atom, _ in varying), x.value)
        self.graph.nodes[i] = Node(
            Reduce(op.dim, rescaled_sum(1, factors, self.graph.type(parts[0]).dtype)),
            parts,
            tuple(self.graph.type(v).iterate(op.dim) for v in parts),
        )
        for at in range(len(factors)):
            self.graph.follow(parts[at], Value(i, at))
        fixed = tuple(part for part in x.exponent if part not in varying)
        common = tuple((Value(i, at), factor) for at, factor in enumerate(factors))
        return x.but(Value(i, len(factors)), merged((*fixed, *common)))

    def _paired(self, x: PairForm, varying: Powers, dim: Dim) -> tuple[PairForm, Powers]:
        """A list with one significand, and exponents, per element."""
        parts = list(dict.fromkeys([*x.parts, *(atom for atom, _ in varying)]))
        walked = [v for v in parts if self.graph.type(v).list_dim(dim) is not None]
        whole = [v for v in parts if v not in walked]
        further = self.sharing.is_scaled_further(x)
        left: list[Powers] = []

        def body(inner: Builder, *ports: Value) -> list[tuple[Value, Mode]]:
            names = dict(zip([*walked, *whole], ports, strict=True))
            for old, new in names.items():
                self.graph.follow(old, new)
            sharing = Sharing(self.graph.inside(inner))
            own = None if x.value is None else names[x.value]
            exponent = tuple((names[atom], factor) for atom, factor in x.exponent)
            inside = {names[v]: v for v in walked}
            whole_pair = PairForm(Form.scaled, own, exponent, x.raw)
            pair = sharing.normalised(whole_pair, lambda v: further and v in inside)
            value, common = sharing.pairs(pair, tuple(p for p in pair.exponent if p[0] in inside))
            outside = {names[v]: v for v in whole}
            left.append(tuple((outside[v], f) for v, f in pair.exponent if v in outside))
            left.append(common)
            return [(value, None), *((atom, None) for atom, _ in common)]

        value, *exponents = self.graph.builder.map(dim, walked, whole, body)
        fixed, common = left
        made = tuple((v, f) for v, (_, f) in zip(exponents, common, strict=True))
        for v, (inner, _) in zip(exponents, common, strict=True):
            self.graph.follow(inner, v)
        return x.but(value, (*fixed, *made)), made

    def loop(self, i: int, node: Node, op: Map, operands: list[PairForm]) -> None:
        if all(w.form is Form.plain for w in operands) and not holds_exp(op.body):
            self.graph.copy(i, self._retyped(node, op, operands), operands)
            return
        inside, path = self.graph.demands.inside(i), (*self.graph.path, i)
        body = GraphRewriter(op.body, inside, self.graph.draft, path)
        loop = Loop(self.graph, i, op, body)
        for port, (written, iterated) in enumerate(zip(operands, op.iterated, strict=True)):
            loop.hand_in(port, self._settled(i, op, port, written), iterated)
        body.run()
        for number in range(len(op.modes)):
            loop.hand_out(number)
        loop.finish()

    def _retyped(self, node: Node, op: Map, operands: list[PairForm]) -> Node:
        """A map with the same body, for operands that may have other layouts."""
        kinds = [self.graph.type(w.value) for w in operands if w.value is not None]
        ports = zip(kinds, op.iterated, strict=True)
        seen = [kind.iterate(op.dim) if iterated else kind for kind, iterated in ports]
        body = op.body.retype(seen)
        return node if body is op.body else with_body(node, body)

    def _settled(self, i: int, op: Map, port: int, x: PairForm) -> PairForm:
        """Shares the exponent of an exponential before a loop that sums it in every iteration."""
        inner = self.graph.demands.inside(i).of(Value(op.body.inputs[port]))
        return self.share_for(x, inner, i) if x.raw else x

    def share_for(self, x: PairForm, demand: Demand, node: int, headroom: float = 0.0) -> PairForm:
        """Shares one exponent along the axis if all uses sum over it; else one per element."""
        kinds = [self.graph.type(atom) for atom, _ in x.exponent]
        if len(demand.axes) != 1 or demand.otherwise or any(kind.is_list for kind in kinds):
            return x
        (axis,) = demand.axes
        dims = {dim for kind in kinds for dim in kind.items if dim.axis is axis}
        return self.sharing.share(x, dims.pop(), node, headroom) if len(dims) == 1 else x
