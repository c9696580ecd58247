"""Common parts of the linearity rules: mapped scales and shifts, and contractions.

A *broadcast operation* is `op(a, c)` for every element of a list `a`, with one item `c`: a scale
or a shift. A *contraction* is a dot over the list's dim, with its reduction, inside any number of
maps. If the dim has only one block there is no list, and either may occur without its map.
"""

from dataclasses import dataclass, replace

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.combiner import ADD
from blockbuster_fusion.ir.expr import Expr, arg, substitute
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.infer import infer, map_types
from blockbuster_fusion.ir.ops import Dot, Map, Node, Reduce, Value, item_expr

SCALES = frozenset({"mul", "div", "where"})
"""`where(c, a, 0)` is a scale by a mask: a masked row is 0, whatever its values."""
SHIFTS = frozenset({"add", "sub"})
SCALES_AND_SHIFTS = SCALES | SHIFTS


@dataclass(frozen=True, slots=True)
class Broadcast:
    """`op(a, c)`, or `op(c, a)`, with the operands as values of the graph."""

    node: int
    op: str
    a: Value
    c: Value
    a_first: bool
    dim: Dim | None
    """The dim of the map, None without one."""
    form: Expr
    """The expression of the two operands, in the order of the node's inputs."""

    def of(self, a: Expr, c: Expr) -> Expr:
        """The same operation on other operands."""
        return substitute(self.form, dict(enumerate((a, c) if self.a_first else (c, a))))


def broadcast_operation(graph: Graph, node: int, operations: frozenset[str]) -> Broadcast | None:
    """The scale or shift that a node is, if it is one of `operations`."""
    op = graph.op(node)
    expr = item_expr(op)
    if expr is None or not _binary(expr, operations):
        return None
    if isinstance(op, Map):
        return _mapped_broadcast(graph, node, op, expr)
    a, c = graph[node].inputs
    first = set(graph.type(c).items) <= set(graph.type(a).items)
    return _broadcast(expr, node, (a, c), first, None)


def _mapped_broadcast(graph: Graph, node: int, op: Map, expr: Expr) -> Broadcast | None:
    if op.first or len(op.modes) != 1 or op.reduces:
        return None
    assert op.body.sole is not None
    ports = [op.body.inputs.index(v.node) for v in op.body[op.body.sole].inputs]
    outer = tuple(graph[node].inputs[port] for port in ports)
    flags = [op.iterated[port] for port in ports]
    if flags.count(True) != 1:
        return None  # both are iterated: a product of two lists
    return _broadcast(expr, node, outer, flags[0], op.dim)


def _broadcast(
    expr: Expr, node: int, operands: tuple[Value, ...], first: bool, dim: Dim | None
) -> Broadcast | None:
    form = expr
    if expr.args[0].value != 0:
        operands = operands[::-1]  # arguments in the order of the expression
        first = not first
        form = substitute(expr, {0: arg(1), 1: arg(0)})
    if expr.op == "where":
        if dim is not None and first:
            return None  # the mask varies along the list
        first = False
    a, c = operands if first else operands[::-1]
    if expr.op in ("div", "sub") and not first:
        return None  # c/a and c-a are neither scales nor shifts of a
    return Broadcast(node, expr.op, a, c, first, dim, form)


def _binary(expr: Expr, operations: frozenset[str]) -> bool:
    """True if an expression is one of `operations` on two different arguments."""
    if expr.op not in operations:
        return False
    operands = [x for x in expr.args if x.op == "arg"]
    if expr.op == "where" and any(x.op == "const" and x.value == 0 for x in expr.args[1:]):
        return len(operands) == 2 and operands[0] is not operands[1]
    return len(operands) == len(expr.args) == 2 and operands[0] is not operands[1]


@dataclass(frozen=True, slots=True)
class Contracted:
    """A use of a value as an operand of a dot.

    `node` is the node of the graph; `dims` are the maps around the dot, outermost first; `other` is
    the other operand as a value of the graph; `result` is the result. Conditions of the rules:
    `alone`, the maps contain only the dot and its sum; `once`, the value is one operand of the dot
    and has no other use there; `summed`, over the dot's dim, in its loop or right after it.
    """

    node: int
    dims: tuple[Dim, ...]
    dim: Dim
    other: Value
    result: Value
    looped: bool = False
    alone: bool = True
    once: bool = True
    summed: bool = True


def contraction(graph: Graph, value: Value, node: int) -> Contracted | None:
    """The contraction of `value` by `node`, if it is one."""
    operands, op = graph[node].inputs, graph.op(node)
    if value not in operands:
        return None
    port, once = operands.index(value), operands.count(value) == 1
    if isinstance(op, Dot):
        other = operands[1 - port]
        return Contracted(node, (), op.dim, other, Value(node), once=once)
    if not isinstance(op, Map) or op.first or len(op.modes) != 1 or not op.body.holds_dot:
        return None
    inner = Value(op.body.inputs[port])
    uses = [i for i in op.body.users[inner.node] if inner in op.body[i].inputs]
    below = next(filter(None, (contraction(op.body, inner, i) for i in uses)), None)
    if below is None or below.other.node not in op.body.inputs:
        return None
    once = once and below.once and len(uses) == 1 and inner not in op.body.output_values
    alone = below.alone and _holds_only(op.body, below)
    other = operands[op.body.inputs.index(below.other.node)]
    if not op.iterated[port]:
        return replace(
            below,
            node=node,
            dims=(op.dim, *below.dims),
            other=other,
            result=Value(node),
            alone=alone,
            once=once,
            summed=below.summed and not op.reduces,
        )
    if below.dims or below.dim is not op.dim:
        return None
    if op.modes[0] is not None:
        summed = op.modes[0].combiner is ADD
        return Contracted(node, (), op.dim, other, Value(node), True, alone, once, summed)
    beside = _sum_beside(graph, node)
    result = Value(node if beside is None else beside)
    return Contracted(node, (), op.dim, other, result, True, alone, once, beside is not None)


def _holds_only(body: Graph, below: Contracted) -> bool:
    """True if a body computes and yields the contraction only."""
    held = {below.node, below.result.node}
    computed = len(body.nodes) - len(body.inputs)
    return computed == len(held) and body.outputs[0].value == below.result


def _sum_beside(graph: Graph, node: int) -> int | None:
    """The reduction by addition that is the only use of the list of a loop."""
    users = graph.users[node]
    if len(users) != 1 or Value(node) in graph.output_values:
        return None
    op = graph.op(users[0])
    return users[0] if isinstance(op, Reduce) and op.combiner is ADD else None


def use_count(graph: Graph, value: Value) -> int:
    """The number of uses of a value, by nodes and as an output."""
    as_output = sum(out.value == value for out in graph.outputs)
    return len(graph.uses(value)) + as_output


def replace_operand(graph: Graph, node: int, old_value: Value, value: Value) -> Node:
    """A node with `value` in place of another operand, and its types inferred again."""
    old = graph[node]
    operands = tuple(value if v == old_value else v for v in old.inputs)
    types = [graph.type(v) for v in operands]
    op = old.op
    if isinstance(op, Map):
        seen = [
            t.iterate(op.dim) if iterated else t
            for t, iterated in zip(types, op.iterated, strict=True)
        ]
        op = Map(op.dim, op.body.retype(seen), op.iterated, op.modes, op.first)
        return Node(op, operands, map_types(op))
    return Node(op, operands, infer(op, types))
