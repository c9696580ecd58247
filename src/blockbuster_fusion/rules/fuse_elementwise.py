"""Rule 9: two elementwise operators in a row become one."""

from collections.abc import Iterator

from blockbuster_fusion.ir.expr import cast, substitute, tree_size
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.infer import infer
from blockbuster_fusion.ir.ops import Elementwise, Node, Value
from blockbuster_fusion.ir.split_expr import LARGEST
from blockbuster_fusion.rules.rule import Guard, Match, Rule


def both_unary(graph: Graph, match: Match) -> bool:
    return all(len(graph[i].inputs) == 1 for i in match.nodes)


def used_once(graph: Graph, match: Match) -> bool:
    u, v = match.nodes
    return graph.users[u] == (v,) and Value(u) not in graph.output_values


def _is_small(graph: Graph, *nodes: int) -> bool:
    exprs = [op.expr for i in nodes if isinstance(op := graph.op(i), Elementwise)]
    return tree_size(*exprs, limit=LARGEST) <= LARGEST


class FuseElementwise(Rule):
    """Rule 9: f -> g  =>  g∘f, for unary elementwise operators.

    They stay two if together they would be split into several expressions anyway.
    """

    name = "fuse_consecutive_elementwise"
    number = 9
    anchors = (Elementwise,)
    guards = (
        Guard("both_unary", "one of the operators has more than one operand", both_unary),
        Guard("used_once", "the first result is used elsewhere too", used_once),
    )

    def sites(self, graph: Graph, node: int) -> Iterator[Match]:
        for user in graph.users[node]:
            if isinstance(graph.op(user), Elementwise) and _is_small(graph, node, user):
                yield Match(self, graph, (node, user))

    def rewrite(self, graph: Graph, match: Match) -> Graph:
        u, v = match.nodes
        first, second = graph.op_as(u, Elementwise), graph.op_as(v, Elementwise)
        operands = dict.fromkeys(range(len(graph[v].inputs)), first.expr)
        composed = Elementwise(substitute(second.expr, operands))
        kinds = [graph.type(x) for x in graph[u].inputs]
        if infer(composed, kinds) != graph[v].types:
            # alone, a number has its own dtype; composed, it would adopt another: cast it
            dtype = graph.type(Value(u)).dtype
            composed = Elementwise(substitute(second.expr, {0: cast(first.expr, dtype)}))
        node = Node(composed, graph[u].inputs, infer(composed, kinds))
        return graph.edit(drop={u}, add={v: node})
