"""Finds what depends on weights alone, and moves it out of the graph of a call."""

import operator
from collections.abc import Iterable, Sequence

import torch
from torch.fx import Graph, Node

from blockbuster_fusion.torch.capture.nodes import (
    GIVEN,
    has_effect,
    is_pure_operator,
    storages_of,
    tensor_of,
    tensor_operands,
    tensors_of,
)
from blockbuster_fusion.torch.capture.operators import usable_row
from blockbuster_fusion.torch.freeze.constants import Constants
from blockbuster_fusion.torch.freeze.folded import FOLDED

CONVERT = torch.ops.prims.convert_element_type.default


def weights_of(graph: Graph, static: Sequence[int]) -> set[Node]:
    """The weights and tensors of a graph that it only reads: plain arrays of known shapes."""
    given = graph.find_nodes(op="placeholder")
    held = [given[i] for i in static if i < len(given)] + graph.find_nodes(op="get_attr")
    written = _written(graph)
    return {n for n in held if _is_array(n) and storages_of(n).isdisjoint(written)}


def split_constants(graph: Graph, weights: Iterable[Node], constants: Constants) -> None:
    """Moves what depends on weights alone out of a graph, into that of its constants."""
    found = constant_nodes(graph, weights)
    for node in graph.nodes:
        if node in found or node.op == "placeholder":
            constants.copy(node)
    sizes = _sizes_in_memory(found)
    for node in _taken(graph, found, sizes):
        node.replace_all_uses_with(constants.taken(graph, node))
    for node in reversed(found):
        if node.op == "call_function" and not node.users:
            graph.erase_node(node)
            if isinstance(node.target, torch._ops.OpOverload) and node in sizes:
                constants.spared.append(constants.copies[node])


def constant_nodes(graph: Graph, weights: Iterable[Node]) -> dict[Node, None]:
    """The weights, and all that depends on them alone, or on nothing, in order.

    A result of the graph is none, nor what shares memory with one: it is new in each call.
    """
    results = graph.output_node().all_input_nodes
    shown = set[int]().union(_written(graph), *map(storages_of, results))
    weights, found = {*weights}, dict[Node, None]()
    for node in graph.nodes:
        is_made = node.op == "call_function" and _is_pure(node) and _is_array(node)
        is_made = is_made and all(n in found for n in node.all_input_nodes)
        if node in weights or (is_made and storages_of(node).isdisjoint(shown)):
            found[node] = None
    return found


def _taken(graph: Graph, constants: dict[Node, None], sizes: dict[Node, int]) -> list[Node]:
    """The constants that a graph is to read: not the views of them, nor what is cheap to make."""
    wanted, taken = set[Node](), list[Node]()
    for node in reversed(graph.nodes):
        if node not in constants:
            wanted.update(node.all_input_nodes)
        elif node in wanted and node.op not in GIVEN:
            if node in sizes:
                taken.append(node)
            else:
                wanted.update(node.all_input_nodes)
    return taken[::-1]


def _sizes_in_memory(constants: Iterable[Node]) -> dict[Node, int]:
    """The constants that lie in memory, with their sizes.

    Views do not; nor do arrays that a kernel can cheaply compute from fewer elements: a mask of
    positions is a condition there, by which blocks are skipped.
    """
    sizes: dict[Node, int] = {}
    behind: dict[Node, int] = {}  # the elements in memory that a node is computed from
    views = set[Node]()
    for node in constants:
        sources = tensor_operands(node)
        if node.target is operator.getitem:  # a view if the operator with several results is one
            shown = [n for n in sources if n in views]
        else:
            shown = [n for n in sources if storages_of(n) & storages_of(node)]
        if shown:
            views.add(node)
        before = max((behind[n] for n in shown or sources), default=0)
        row = usable_row(node) if node.op == "call_function" else None
        is_cheap = row is not None and row.cheap and tensor_of(node).numel() > before
        behind[node] = before
        if not shown and not is_cheap and isinstance(node.meta["val"], torch.Tensor):
            behind[node] = sizes[node] = tensor_of(node).numel()
    return sizes


def _written(graph: Graph) -> set[int]:
    """The memory that operators of a graph write into."""
    operands = [n for node in graph.nodes if has_effect(node) for n in node.all_input_nodes]
    return set[int]().union(*map(storages_of, operands))


def _is_pure(node: Node) -> bool:
    """True if an operator has the same result every time."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return target is operator.getitem or target in FOLDED
    return target is CONVERT or (is_pure_operator(target) and "empty" not in str(target))


def _is_array(node: Node) -> bool:
    """True if the results of a node are plain arrays of known shapes."""
    tensors = tensors_of(node)
    plain = (t.layout is torch.strided and not t.is_nested for t in tensors)
    lengths = (n for t in tensors if not t.is_nested for n in (*t.shape, *t.stride()))
    return bool(tensors) and all(plain) and all(isinstance(n, int) for n in lengths)
