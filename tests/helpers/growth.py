"""Bounds on the size of fused programs and on the steps: "It ends" in docs/architecture.md."""

from collections.abc import Callable

import blockbuster_fusion as bb
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import Dot, Elementwise, Map, Node, Op, Reduce
from blockbuster_fusion.rules.linear import SCALES_AND_SHIFTS
from blockbuster_fusion.rules.recompute import LARGEST, Recompute


def size(program: Graph) -> int:
    """The number of nodes of a program, those in its maps included."""
    return sum(len(graph.nodes) for _, graph in program.walk())


def copies(fusion: bb.Fusion) -> int:
    """The number of cloned producers."""
    return sum(step.rule == Recompute.name for step in fusion.trace)


def largest(fusion: bb.Fusion) -> int:
    """The size of the largest snapshot."""
    return max(size(snapshot) for snapshot in fusion.fused)


def depth(program: Graph) -> int:
    """The depth of the deepest nest of loops."""
    return max(len(path) for path, _ in program.walk())


def passages(program: Graph) -> int:
    """The number of times that scales and shifts may pass a contraction, over all paths."""
    after: dict[int, int] = {}
    """For each node: the contractions on the ways from its results, counted once for each way."""
    for i in reversed(list(program.nodes)):
        after[i] = 0
        for user in program.users[i]:
            ways = sum(value.node == i for value in program[user].inputs)
            if _holds(program[user], _is_dot):
                after[i] += ways * (1 + after[user])
            elif _holds(program[user], _is_linear):
                after[i] += ways * after[user]
    return sum(
        _holds(node, _is_scale) * (_holds(node, _is_dot) + after[i])
        for i, node in program.nodes.items()
    )


def _holds(node: Node, wanted: Callable[[Op], bool]) -> int:
    """The number of operators of a kind in a node: itself, and those in its loops."""
    if not isinstance(node.op, Map):
        return int(wanted(node.op))
    nodes = (inner for _, graph in node.op.body.walk() for inner in graph.nodes.values())
    return sum(wanted(inner.op) for inner in nodes if not isinstance(inner.op, Map))


def _is_dot(op: Op) -> bool:
    return isinstance(op, Dot)


def _is_scale(op: Op) -> bool:
    """A scale or shift of one operand by another, as far as its expression tells."""
    if not isinstance(op, Elementwise) or op.expr.op not in SCALES_AND_SHIFTS:
        return False
    return all(x.op == "arg" for x in op.expr.args)


def _is_linear(op: Op) -> bool:
    return _is_scale(op) or isinstance(op, Reduce)


def allowed(fusion: bb.Fusion) -> int:
    """The bound on the size of a snapshot."""
    made = 4 + 3 * depth(fusion.initial)  # four operators, each with operands that come into loops
    return (
        2 * size(fusion.initial)
        + LARGEST * copies(fusion)
        + made * passages(fusion.initial) * (1 + copies(fusion))
    )


def allowed_steps(fusion: bb.Fusion) -> int:
    """The bound on the number of steps."""
    made = 2 + 4 * (1 + depth(fusion.initial))  # rule 8 and the swap; then four nests are fused
    return 2 * size(fusion.initial) + made * passages(fusion.initial) * (1 + copies(fusion))
