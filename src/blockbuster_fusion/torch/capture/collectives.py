"""Collectives: operators that move arrays between the ranks of a group, and wait for other ranks.

One that runs on one rank alone waits for ever. So nothing runs one but a call of the model: times
are predicted (machine/link.py), and `bb.explain` has arrays of zeros in place of results. A
functional collective only starts the transfer. Its operand is read, and its result filled, until
`wait_tensor` returns.
"""

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed
from torch._ops import OpOverload
from torch.fx import Node

from blockbuster_fusion.array.axes import Length
from blockbuster_fusion.torch.capture.nodes import operand, tensors_of
from blockbuster_fusion.torch.capture.symbolic import as_size

FUNCTIONAL = ("_c10d_functional", "_c10d_functional_autograd", "c10d_functional")
"""Namespaces of collectives that give their results, as torch.compile captures them."""
NAMESPACES = (*FUNCTIONAL, "c10d", "symm_mem")
"""Namespaces in which every operator belongs to a collective."""
OTHERS = ("_dtensor::shard_dim_alltoall",)
"""Functional collectives of other namespaces."""
WAIT = "wait_tensor"
REASON = "a collective, which runs between kernels; nothing is fused across it"


def is_collective(target: object) -> bool:
    """True for an operator that starts a transfer between ranks, and for one that waits for it."""
    if not isinstance(target, OpOverload):
        return False
    return target.namespace in NAMESPACES or target._schema.name in OTHERS


def is_functional(target: OpOverload) -> bool:
    """True for a collective that writes to no operand: its results are all that it gives."""
    is_own = target.namespace in FUNCTIONAL or target._schema.name in OTHERS
    return is_own and not target._schema.is_mutable


def is_wait(target: object) -> bool:
    """True for the operator that waits for the transfer of an array."""
    return is_collective(target) and str(target).split(".")[1] == WAIT


def started(wait: Node) -> Node:
    """The collective that a wait is for; the wait itself if its array comes from elsewhere."""
    found = operand(wait)
    while found.target is operator.getitem:
        found = operand(found)
    return found if is_collective(found.target) else wait


def waits_for(collective: Node) -> list[Node]:
    """The waits for the arrays of a collective, which are several if it gives several."""
    users = [*collective.users]
    for user in users:
        if user.target is operator.getitem:
            users.extend(user.users)
    return [user for user in users if is_wait(user.target)]


def needs_contiguous(target: object) -> bool:
    """True if an operator refuses operands that are not contiguous, as some collectives do."""
    return isinstance(target, OpOverload) and torch.Tag.needs_contiguous_strides in target.tags


@dataclass(frozen=True)
class Transfer:
    """The array that a collective moves, and the group."""

    operator: str
    """The name of the collective: `all_reduce`."""
    bytes: int
    """The size of the whole array: of the operand or of the result, whichever is larger."""
    ranks: int | None
    """The size of the group; None if this process does not know the group."""


def transfer_of(node: Node, length: Length) -> Transfer:
    """The transfer that a collective starts, with lengths in place of symbolic sizes."""
    given = [t for n in node.all_input_nodes for t in tensors_of(n)]
    size = max(_bytes(given, length), _bytes(tensors_of(node), length))
    return Transfer(str(node.target).split(".")[1], size, _ranks(node))


def _bytes(tensors: list[torch.Tensor], length: Length) -> int:
    total = 0
    for tensor in tensors:
        count = tensor.dtype.itemsize
        for size in tensor.shape:
            count *= length(as_size(size))
        total += count
    return total


def _ranks(node: Node) -> int | None:
    """The size of the group of a collective, which is an argument or known by its name."""
    assert isinstance(node.target, OpOverload)
    names = [argument.name for argument in node.target._schema.arguments]
    given: dict[str, Any] = dict(zip(names, node.args, strict=False)) | node.kwargs
    size, group = given.get("group_size"), given.get("group_name")
    if isinstance(size, int):
        return size
    try:
        groups: Any = distributed.distributed_c10d
        found: Any = groups._resolve_process_group(group) if isinstance(group, str) else group
        return int(found.size())
    except (AttributeError, LookupError, RuntimeError, ValueError):  # a group of other processes
        return None
