"""Updates of inputs: operators that copy an array with a part replaced, and are copied back to it.

If nothing else reads the input, the update is done on it in the first place: so a static cache of
keys and values is written at the new positions alone.
"""

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import Node

from blockbuster_fusion.select.parts import Kind
from blockbuster_fusion.torch.capture.nodes import operand, tensor_of, tensors_of
from blockbuster_fusion.torch.capture.operators import indices_of, refusal
from blockbuster_fusion.torch.capture.symbolic import as_size
from blockbuster_fusion.torch.table import row_for


def _replace_slice(x: torch.Tensor, source: torch.Tensor, *where: Any) -> torch.Tensor:
    torch.ops.aten.slice.Tensor(x, *where).copy_(source)
    return x


IN_PLACE: dict[Any, Any] = {
    torch.ops.aten.index_put.default: torch.ops.aten.index_put_.default,
    torch.ops.aten.slice_scatter.default: _replace_slice,
}
"""Operators that copy an array with a part replaced, and functions that replace it in place."""


def updates_in_place(nodes: Iterable[Node]) -> dict[Node, Node]:
    """The updates of inputs that can be done in place, with their copies back to the inputs."""
    found: dict[Node, Node] = {}
    for copy in nodes:
        if copy.target is not torch.ops.aten.copy_.default:
            continue
        target, update = copy.args[:2]
        if not isinstance(update, Node) or not isinstance(target, Node):
            continue
        is_update = update.target in IN_PLACE and update.args[0] is target
        if is_update and not is_shown(update) and set(target.users) == {copy, update}:
            found[update] = copy
    return found


def is_shown(node: Node) -> bool:
    """True if a node, or a view of it, is a result of the graph."""
    stack, seen = [node], set[Node]()
    while stack:
        for user in stack.pop().users:
            if user.op == "output":
                return True
            row = row_for(user.target)
            is_view = user.target is operator.getitem or (row is not None and row.kind is Kind.VIEW)
            if is_view and user not in seen:
                seen.add(user)
                stack.append(user)
    return False


def scattered_axis(update: Node) -> int | None:
    """The only axis along which an update writes rows at places that are data.

    None if it adds to the rows, broadcasts them, or has other indices than a vector.
    """
    if update.target is not torch.ops.aten.index_put.default or refusal(update) is not None:
        return None
    adds = update.args[3] if len(update.args) > 3 else update.kwargs.get("accumulate", False)
    given, base, rows = indices_of(update), operand(update), tensor_of(operand(update, 2))
    if adds or len(given) != 1 or base.op != "placeholder" or not tensors_of(base):
        return None
    ((at, node),) = given.items()
    index, shape = tensor_of(node), [as_size(s) for s in tensor_of(base).shape]
    is_vector = index.dim() <= 1 and index.dtype in (torch.int64, torch.int32)
    wanted = [*shape[:at], *map(as_size, index.shape), *shape[at + 1 :]]
    is_whole = [as_size(s) for s in rows.shape] == wanted and tensor_of(base).dtype is rows.dtype
    return at if is_vector and is_whole and shape[at] != as_size(1) else None
