"""Recognises linear layers: products with a transposed weight that PyTorch runs.

    view(mm(view(x, [-1, K]), permute(W, [1, 0])), [..., N])

A captured graph has a linear layer as a product with three views around it. The model called one
operator, `linear`, and so does a plan where PyTorch runs the product: it is the same product, with
fewer calls. Nothing is timed: both compute the same in the same way.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.capture.nodes import tensor_of
from blockbuster_fusion.torch.capture.symbolic import as_size
from blockbuster_fusion.torch.rivals.composites import Calling, Composite, gives_result

aten = torch.ops.aten
VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)


@dataclass(frozen=True)
class Linear(Composite):
    """The operands of a linear layer."""

    x: Node
    weight: Node
    bias: Node | None = None

    @property
    def operator(self) -> torch._ops.OpOverload:
        return aten.linear.default

    @property
    def operands(self) -> tuple[Node | None, ...]:
        return (self.x, self.weight, self.bias)

    @property
    def form(self) -> tuple[object, ...]:
        return ()

    def computed(self, calling: Calling, *operands: Any) -> Any:
        return calling(self.operator, operands)


def found_linears(analysis: Analysis) -> list[Linear]:
    """The linear layers of a graph whose results have the form that the graph wants."""
    found = (_linear(node) for node in analysis.module.graph.nodes)
    return [x for x in found if x is not None]


def _linear(node: Node) -> Linear | None:
    """The linear layer that a product is, with the views around it if nothing else reads them."""
    bias: Node | None = None
    if node.target is aten.mm.default and not node.kwargs:
        left, right = node.args
    elif node.target is aten.addmm.default and not node.kwargs:
        added, left, right = node.args
        bias = added if isinstance(added, Node) else None
        if bias is None or tensor_of(bias).dim() != 1:
            return None
    else:
        return None
    weight = _transposed(right)
    if weight is None or not isinstance(left, Node):
        return None
    for x, result in _with_views(left, node):
        made = Linear(result, (node,), x, weight, bias)
        if gives_result(made):
            return made
    return None


def _with_views(left: Node, product: Node) -> Iterator[tuple[Node, Node]]:
    """The operand and the result of a product, with the views around them and without."""
    before = left.args[0] if left.target in VIEWS else None
    after = [user for user in product.users if user.target in VIEWS]
    is_alone = len(after) == len(product.users) == 1
    if is_alone and isinstance(before, Node) and _keeps_rows(before, left):
        yield before, after[0]
    yield left, product


def _keeps_rows(x: Node, rows: Node) -> bool:
    """True if a view puts all axes but the last into one."""
    return as_size(tensor_of(x).shape[-1]) == as_size(tensor_of(rows).shape[-1])


def _transposed(node: Any) -> Node | None:
    """The matrix that a node transposes, or None."""
    if not isinstance(node, Node):
        return None
    arguments: tuple[Any, ...] = node.args
    is_turned = (
        (node.target is aten.permute.default and [*arguments[1]] == [1, 0])
        or node.target is aten.t.default
        or (node.target is aten.transpose.int and {n % 2 for n in arguments[1:]} == {0, 1})
    )
    found = arguments[0] if is_turned else None
    return found if isinstance(found, Node) and tensor_of(found).dim() == 2 else None
