"""Rule 7: the first iteration of a map is peeled off."""

from collections.abc import Iterator

from blockbuster_fusion.ir.builder import Sketch
from blockbuster_fusion.ir.combiner import ANY
from blockbuster_fusion.ir.expr import arg, arguments, substitute
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.infer import map_types
from blockbuster_fusion.ir.ops import Elementwise, Input, Join, Map, Node, Pick, Value
from blockbuster_fusion.rules.copy import copied_node
from blockbuster_fusion.rules.extend_map import first_twins
from blockbuster_fusion.rules.rule import Guard, Match, Rule


def starts_at_zero(graph: Graph, match: Match) -> bool:
    return graph.map(match.nodes[0]).first == 0


def scans_nothing(graph: Graph, match: Match) -> bool:
    return not graph.map(match.nodes[0]).scans


class PeelFirst(Rule):
    """Rule 7: u, map[X]{… map[Y]{w} …}  =>  u, {… map[Y]{w} …} for x=0, the map for x=1:X.

    The alternative to rule 6 if work must not be replicated: the copy for x=0 is beside u and can
    be fused with it. The paper's algorithm never applies it.
    """

    name = "peel_first_iteration"
    number = 7
    anchors = (Map,)
    guards = (
        Guard("starts_at_zero", "the map has been peeled already", starts_at_zero),
        Guard("scans_nothing", "a scan goes on from its first block to the others", scans_nothing),
    )

    def sites(self, graph: Graph, node: int) -> Iterator[Match]:
        found = first_twins(graph, node)
        if found is not None:
            u, _, variant = found
            yield Match(self, graph, (node, u), graph.map(node).dim, variant)

    def rewrite(self, graph: Graph, match: Match) -> Graph:
        v = match.nodes[0]
        node, op = graph[v], graph.map(v)
        ids = match.ids()
        sketch = Sketch(graph, ids)
        known: dict[Value, Value] = {}
        for port, (value, iterated) in enumerate(zip(node.inputs, op.iterated, strict=True)):
            picked = sketch.one(Pick(op.dim, 0), value) if iterated else value
            known[Value(op.body.inputs[port])] = picked
        for i, inner in op.body.nodes.items():
            if not isinstance(inner.op, Input):
                new = next(ids)
                operands = [known[x] for x in inner.inputs]
                sketch.nodes[new] = copied_node(inner, operands, ids)
                known |= {Value(i, p): Value(new, p) for p in range(len(inner.types))}
        rest = Map(op.dim, op.body, op.iterated, op.modes, first=1)
        firsts = [known[out.value] for out in op.body.outputs]
        redirect: dict[Value, Value] = {}
        sketch.nodes[v] = Node(rest, node.inputs, map_types(rest))
        for port, mode in enumerate(op.modes):
            if mode is None:
                made = sketch.one(Join(op.dim), firsts[port], Value(v, port))
            elif mode.combiner is ANY:
                made = firsts[port]
            else:
                start = port - mode.component
                group = range(start, start + mode.combiner.arity)
                operands = [*(firsts[p] for p in group), *(Value(v, p) for p in group)]
                combine = mode.combiner.combine[mode.component]
                needed = sorted(arguments(combine))
                moved = substitute(combine, {old: arg(new) for new, old in enumerate(needed)})
                made = sketch.one(Elementwise(moved), *(operands[i] for i in needed))
            redirect[Value(v, port)] = made
        return graph.edit(add=sketch.nodes, redirect=redirect)
