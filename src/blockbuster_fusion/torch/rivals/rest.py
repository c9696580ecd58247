"""The rest of a graph after a selection: cheap operators that PyTorch's operators read.

Parts of kernels compute a cheap operator anew, as a mask is. An operator of PyTorch's reads its
result in memory. So some of them are operators after a selection that were none before.
"""

from collections.abc import Collection
from dataclasses import replace

from torch.fx import Node

from blockbuster_fusion.array.axes import Length
from blockbuster_fusion.select.operators import Kind, Operator
from blockbuster_fusion.select.units import Units, contracted
from blockbuster_fusion.torch.capture.describe import described
from blockbuster_fusion.torch.compile_parts import PartCompiler


def rest_of(parts: PartCompiler) -> list[Node]:
    """The operators that kernels can compute, and that are in no part and not left to PyTorch."""
    analysis, taken = parts.analysis, {n for nodes in parts.taken for n in nodes}
    left = [n for n in analysis.operators if n not in taken]
    return [n for n in left if analysis.kind(n) is not Kind.MISC]


def rest_units(
    parts: PartCompiler, rest: Collection[Node], length: Length
) -> tuple[Units, list[Node]]:
    """The units of the rest, and a node for each of their operators.

    What runs between two of the rest is there, too, and can't be fused: each part as a whole.
    """
    groups = parts.parts()
    number = {node: i for i, own in enumerate(groups) for node in own}
    own = [i for i, nodes in enumerate(groups) if nodes[0] in rest]
    before = parts.analysis.needs
    operands = [
        {number[v] for n in nodes for v in before[n] if v in number} - {i}
        for i, nodes in enumerate(groups)
    ]
    users: list[set[int]] = [set() for _ in groups]
    for i, numbers in enumerate(operands):
        for v in numbers:
            users[v].add(i)
    after, needed = {*own}, {*own}
    for i in range(len(groups)):
        if not operands[i].isdisjoint(after):
            after.add(i)
    for i in reversed(range(len(groups))):
        if not users[i].isdisjoint(needed):
            needed.add(i)
    kept = sorted(after & needed)
    place = {i: n for n, i in enumerate(kept)}
    known = {op.name: op for op in described(parts.analysis, length, rest)}
    made = []
    for i in kept:
        node = groups[i][0]
        own_operands = tuple(sorted(place[v] for v in operands[i] if v in place))
        is_read = not users[i] <= place.keys()
        if node in rest:
            op = known[node.name]
            made.append(replace(op, operands=own_operands, is_output=op.is_output or is_read))
        else:
            made.append(Operator(node.name, Kind.MISC, own_operands))
    return contracted(made), [groups[i][0] for i in kept]
