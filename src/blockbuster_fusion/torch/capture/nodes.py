"""Facts about single nodes of an FX graph."""

from typing import Any, Protocol

import torch
from torch._ops import OpOverload
from torch.fx import Node

GIVEN = ("placeholder", "get_attr")
"""Kinds of nodes that compute nothing: inputs, and tensors that the graph holds."""

CASTS = ("aten._to_copy.default", "prims.convert_element_type.default")
SAME_NUMBERS = frozenset(
    {
        *("view", "_unsafe_view", "reshape", "clone", "expand", "slice", "select"),
        *("squeeze", "unsqueeze", "permute", "transpose", "t"),
    }
)
"""Operators whose results have numbers of their operand and no others."""
LOOKUPS = ("embedding", "gather", "index", "index_put", "index_select", "take", "nll_loss_forward")
"""Operators whose integers are positions: 0 is one wherever there is any."""
POSITIONS = frozenset({"index", "indices", "target", "targets", "offsets", "offs", "self_indices"})
"""The names of arguments whose whole numbers are positions."""
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_SHORT_NAMES: dict[int, tuple[str, OpOverload]] = {}
"""The names of operators that were asked for, by their addresses: hashing one takes longer."""


def name_of(node: Node) -> str:
    """The name of an operator as PyTorch writes it: `aten.mm.default`."""
    return str(node.target)


class Called(Protocol):
    """Something that calls an operator: a node of a graph, or one that is to come."""

    @property
    def target(self) -> Any: ...


def short_name(node: Called) -> str:
    """The name of an operator without namespace and overload; empty for other functions."""
    target = node.target
    found = _SHORT_NAMES.get(id(target))
    if found is not None:
        return found[0]
    if not isinstance(target, OpOverload):
        return ""
    name = str(target._schema.name.split("::")[1])
    _SHORT_NAMES[id(target)] = name, target
    return name


def takes_positions(target: object) -> bool:
    """True for operators with an array that PyTorch calls an index, a target or offsets."""
    arguments = target._schema.arguments if isinstance(target, OpOverload) else ()
    return any(a.name in POSITIONS and "Tensor" in str(a.type) for a in arguments)


def operand(node: Node, at: int = 0) -> Node:
    """The argument of a node at a position, which has to be a node."""
    found = node.args[at]
    if not isinstance(found, Node):
        raise TypeError(f"argument {at} of {node.name} is {found!r}, not a node")
    return found


def tensors_of(node: Node) -> list[torch.Tensor]:
    """The tensors among the results of a node."""
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return [value]
    given = value if isinstance(value, tuple | list) else ()
    return [x for x in given if isinstance(x, torch.Tensor)]


def tensor_of(node: Node) -> torch.Tensor:
    """The first tensor among the results of a node."""
    return tensors_of(node)[0]


def is_float(node: object) -> bool:
    """True if something is a node whose result is an array of floats."""
    return isinstance(node, Node) and bool(tensors_of(node)) and tensor_of(node).dtype in FLOATS


def is_float_cast(node: Node) -> bool:
    """True if a node converts floats to other floats, and no more."""
    if name_of(node) not in CASTS or not is_float(node) or not is_float(operand(node)):
        return False
    before, after = tensor_of(operand(node)), tensor_of(node)
    stays = before.device == after.device and before.layout == after.layout
    return stays and node.kwargs.keys() <= {"dtype", "device", "layout"}


def copied(node: Node) -> list[Node]:
    """A node, and those before it whose numbers it has, in another shape or as other floats."""
    found = [node]
    while short_name(found[-1]) in SAME_NUMBERS or is_float_cast(found[-1]):
        found.append(operand(found[-1]))
    return found


def tensor_operands(node: Node) -> list[Node]:
    """The operands of a node that are tensors."""
    given = node.all_input_nodes
    return [n for n in given if isinstance(n.meta.get("val"), torch.Tensor) or tensors_of(n)]


def storages_of(node: Node) -> set[int]:
    """Identifiers of the memory that the results of a node lie in."""
    return memory_of(node.meta.get("val"))


def memory_of(value: Any) -> set[int]:
    """Identifiers of the memory that arrays lie in."""
    given = value if isinstance(value, tuple | list) else (value,)
    tensors = (t for t in given if isinstance(t, torch.Tensor))
    strided = (t for t in tensors if t.layout is torch.strided and not t.is_nested)
    return {int(t.untyped_storage()._cdata) for t in strided}


def is_empty_tensor(tensor: torch.Tensor) -> bool:
    """True if a tensor is known to have no elements."""
    return any(isinstance(s, int) and s == 0 for s in tensor.shape)


def has_effect(node: Node) -> bool:
    """True if an operator writes into its operands."""
    target = node.target
    return isinstance(target, OpOverload) and target._schema.is_mutable


def is_pure_operator(target: OpOverload) -> bool:
    """True if an operator of PyTorch's own has no effects, and the same result every time."""
    is_random = torch.Tag.nondeterministic_seeded in target.tags
    is_own = target.namespace in ("aten", "mkldnn")
    return is_own and not target._schema.is_mutable and not is_random


def attribute_of(module: torch.nn.Module, path: str) -> Any:
    """The attribute of a module that a `get_attr` node names."""
    found: Any = module
    for word in path.split("."):
        found = getattr(found, word)
    return found
