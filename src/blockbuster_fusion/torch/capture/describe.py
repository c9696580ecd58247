"""Operators of a captured graph as a selection sees them."""

from torch.fx import Node

from blockbuster_fusion.select.parts import Kind, OperatorInfo
from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.capture.collectives import is_collective
from blockbuster_fusion.torch.capture.nodes import has_effect, tensor_operands, tensors_of


def described(analysis: Analysis) -> list[OperatorInfo]:
    """A description of each operator that is to be put into a part, in order."""
    number = {node: i for i, node in enumerate(analysis.operators)}
    stored, before = _stored(analysis), _before(analysis)
    found = []
    for node in analysis.operators:
        roots = [r for n in tensor_operands(node) for r in analysis.roots(n)]
        roots += before.get(node, ())
        found.append(
            OperatorInfo(
                analysis.kind(node),
                tuple(dict.fromkeys(number[r] for r in roots if r in number)),
                analysis.regions[node],
                has_weight=analysis.has_weight(node),
                is_stored=node in stored,
                is_output=node in analysis.outputs or analysis.has_returned_view(node),
                factors=_factors(analysis, node),
            )
        )
    return found


def _before(analysis: Analysis) -> dict[Node, list[Node]]:
    """For each collective, the one before it; and so for what is written after a collective.

    All ranks have to call collectives in one order, whatever each has chosen for the rest. What is
    in flight must not be overwritten before the wait for it.
    """
    found: dict[Node, list[Node]] = {}
    last: Node | None = None
    for node in analysis.operators:
        follows = is_collective(node.target) or has_effect(node)
        if follows and last is not None:
            found[node] = [last]
        if is_collective(node.target) or (follows and last is not None):
            last = node
    return found


def _factors(analysis: Analysis, node: Node) -> frozenset[str]:
    """The names of the arrays that a product multiplies, seen through views."""
    if analysis.kind(node) is not Kind.CONTRACTION:
        return frozenset()
    return frozenset(analysis.base(n).name for n in node.all_input_nodes[-2:])


def _stored(analysis: Analysis) -> set[Node]:
    """The operators whose results have to lie in memory: others read slices of them, or look up."""
    indexed = [n for n in analysis.nodes if tensors_of(n) and analysis.is_indexed(n)]
    bases = [analysis.base(n) for n in indexed]
    for node in analysis.operators:
        if analysis.kind(node) is Kind.MISC:
            bases += [analysis.base(n) for n in node.all_input_nodes]
        elif not _is_looked_up_before(analysis, node):
            bases += [analysis.base(n) for n in analysis.reads_in_memory(node)]
        if analysis.is_scattered(node):
            bases.append(node)  # it lies in an input
    return {analysis.owner(base) for base in bases}


def _is_looked_up_before(analysis: Analysis, node: Node) -> bool:
    """True if a node looks elements up in a table whose elements are computed by themselves.

    But for sums and the like, that is: then the lookup reads what they are computed from.
    """
    table = analysis.table(node)
    if table is None or analysis.is_scattered(node):
        return False
    maker = analysis.owner(analysis.base(table))
    is_by_element = analysis.kind(maker) in (Kind.POINTWISE, Kind.REDUCTION)
    return is_by_element and not analysis.is_scattered(maker)
