"""Merges equal nodes that parts compute anew, as the masks of all layers.

Each part that needs such a node computes it anyway. So one node for all keeps no array in memory
that was not there before. Operators of PyTorch's that read it share one array.
"""

from collections.abc import Hashable
from typing import Any

from torch._ops import OperatorBase, OpOverload
from torch.fx import Node

from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.capture.nodes import is_pure_operator
from blockbuster_fusion.torch.capture.updates import is_shown


def merge_equal(analysis: Analysis) -> bool:
    """Replaces cheap nodes on inputs by equal ones before them; True if there were any."""
    known: dict[Hashable, Node] = {}
    has_merged = False
    for node in analysis.nodes:
        if not _is_pure(node):
            known.clear()  # it may write into what the nodes read
            continue
        if node not in analysis.recomputed or is_shown(node):
            continue
        first = known.setdefault((node.target, _form(node.args), _form(node.kwargs)), node)
        if first is not node:
            node.replace_all_uses_with(first)
            analysis.module.graph.erase_node(node)
            has_merged = True
    return has_merged


def _is_pure(node: Node) -> bool:
    """True for operators without effects, and for Python's own on sizes and tuples."""
    target = node.target
    if isinstance(target, OpOverload):
        return is_pure_operator(target)
    return not isinstance(target, OperatorBase)


def _form(given: Any) -> Hashable:
    """An argument as a key: 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    if isinstance(given, Node):
        return given
    if isinstance(given, list | tuple):
        return tuple(map(_form, given))
    if isinstance(given, dict):
        return tuple((name, _form(value)) for name, value in sorted(given.items()))
    return type(given), repr(given)
