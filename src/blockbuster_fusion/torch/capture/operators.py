"""Facts about single operators, from their arguments alone: refusals, concatenations, lookups."""

import operator
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from blockbuster_fusion.select.operators import Kind
from blockbuster_fusion.torch.capture.nodes import (
    copied,
    is_empty_tensor,
    operand,
    short_name,
    tensor_of,
    tensor_operands,
    tensors_of,
)
from blockbuster_fusion.torch.capture.symbolic import as_size
from blockbuster_fusion.torch.table import row_for
from blockbuster_fusion.torch.table.row import DTYPES, Row

UNPROMOTED = frozenset(
    {
        *("mm", "bmm", "addmm", "baddbmm", "mv", "dot", "linear", "matmul", "convolution"),
        *("native_layer_norm", "layer_norm", "native_group_norm"),
    }
)
"""Operators that do not promote the dtypes of their operands."""
PROBABILITIES = ("sigmoid", "hardsigmoid", "softmax", "_softmax", "_safe_softmax")
"""Operators whose results are between 0 and 1."""


def usable_row(node: Node) -> Row | None:
    """The row of the operator table for a node, unless kernels cannot compute the node."""
    row = row_for(node.target)
    return None if row is None or refusal(node) is not None else row


SCANS = ("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin")
"""Operators that combine each element with those before it."""


def refusal(node: Node) -> str | None:
    """The reason why kernels cannot compute a node whose operator is known, or None."""
    sources = node.all_input_nodes if short_name(node) != "cat" else concatenated(node)[0]
    seen = [*_read_results(node), *(t for n in sources for t in tensors_of(n))]
    for tensor in seen:
        if tensor.dtype not in DTYPES:
            return f"kernels do not compute with {tensor.dtype}"
        if tensor.layout is not torch.strided or tensor.is_nested:
            return "sparse and nested tensors are not laid out in strides"
        for size in tensor.shape:
            if isinstance(size, torch.SymInt):
                if free_unbacked_symbols(size):
                    return "sizes that depend on data"
            elif size == 0:
                return "an axis of length 0"
    if _mixes_dtypes(node):
        return "operands of several dtypes, which PyTorch refuses"
    if short_name(node) == "binary_cross_entropy" and not is_probability(operand(node)):
        return "PyTorch raises where its input is not between 0 and 1"
    if short_name(node) == "cumprod" and tensor_of(node).dtype.is_floating_point:
        return "running products by blocks may be NaN where PyTorch's are 0"
    if short_name(node) in ("cummax", "cummin") and 1 in _read_places(node):
        return "the places of running maxima or minima"
    devices = {t.device.type for t in seen if t.dim()}
    if len(devices) > 1 or not devices <= {"cpu", "cuda"}:
        return f"tensors on {', '.join(sorted(devices))}"
    return None


def _read_results(node: Node) -> list[torch.Tensor]:
    """The tensors among the results of a node that others read; of a single result, that one."""
    value = node.meta.get("val")
    if not isinstance(value, tuple | list):
        return tensors_of(node)
    read = _read_places(node)
    found = [x for at, x in enumerate(value) if at in read or not read]
    return [x for x in found if isinstance(x, torch.Tensor)]


def _read_places(node: Node) -> set[object]:
    """The numbers of those results of a node that others read."""
    elements = [user for user in node.users if user.target is operator.getitem]
    return {element.args[1] for element in elements if element.users}


def _mixes_dtypes(node: Node) -> bool:
    """True if an operator that does not promote dtypes has operands of several."""
    if short_name(node) not in UNPROMOTED:
        return False
    first, *others = [t.dtype for n in node.all_input_nodes for t in tensors_of(n)]
    is_norm = short_name(node).endswith(("layer_norm", "group_norm"))
    if is_norm and first in (torch.float16, torch.bfloat16):
        return bool({*others} - {first, torch.float32})  # parameters may be wide
    return any(dtype is not first for dtype in others)


def is_probability(node: Node) -> bool:
    """True if the numbers of a node are between 0 and 1, or NaN, whatever its operands are."""
    made = copied(node)[-1]
    is_clamped = short_name(made) == "clamp" and made.args[1:] == (0, 1)
    return is_clamped or short_name(made) in PROBABILITIES


def is_patchwise(convolution: Node) -> bool:
    """True if the windows of a convolution do not overlap, so that it is one product."""
    arguments: list[Any] = [*convolution.args]
    _, weight, _, stride, padding, dilation, transposed, _, groups = arguments
    window = [*tensor_of(weight).shape[2:]]
    is_plain = not transposed and groups == 1 and not any(padding) and {*dilation} == {1}
    return is_plain and [*stride] == window


def is_whole_slice(node: Node) -> bool:
    """True if a node is a slice that leaves nothing out."""
    if short_name(node) != "slice" or not isinstance(node.args[0], Node):
        return False
    before, after = tensor_of(node.args[0]), tensor_of(node)
    step = node.args[4] if len(node.args) > 4 else 1
    return [*map(as_size, before.shape)] == [*map(as_size, after.shape)] and bool(step == 1)


# ---------------------------------------------------------------- concatenations


def concatenated(cat: Node) -> tuple[list[Node], int]:
    """The pieces of a concatenation that are not empty, and its dimension."""
    given: Any = cat.args[0]
    dim: Any = cat.args[1] if len(cat.args) > 1 else cat.kwargs.get("dim", 0)
    pieces = [p for p in given if isinstance(p, Node) and not is_empty_tensor(tensor_of(p))]
    return pieces, dim % tensor_of(cat).dim()


def are_of_one_dtype(nodes: list[Node]) -> bool:
    """True if all results of some nodes have the same dtype."""
    return len({t.dtype for n in nodes for t in tensors_of(n)}) == 1


# ---------------------------------------------------------------- lookups


def indices_of(index: Node) -> dict[int, Node]:
    """The indices of an index operator, by the axis that each is along."""
    given: Any = index.args[1]
    return {at: i for at, i in enumerate(given) if isinstance(i, Node)}


def has_counted_indices(index: Node) -> bool:
    """True if every axis of an index operator has an index that counts positions."""
    given: Any = index.args[1]
    return all(isinstance(i, Node) and counts_positions(i) for i in given)


def lookup_axis(index: Node) -> int | None:
    """The only axis along which an index operator looks up at positions that are data, or None.

    The indices of the other axes, if there are any, count positions.
    """
    given, shape = indices_of(index), tensor_of(operand(index)).shape
    walked = {
        at
        for at, i in given.items()
        if len(given) > 1 and counts_positions(i)
        if as_size(tensor_of(i).numel()) == as_size(shape[at])
    }
    data = [at for at in given if at not in walked]
    are_adjacent = max(given) - min(given) < len(given)
    if len(data) != 1 or not are_adjacent:
        return None
    dtype = tensor_of(given[data[0]]).dtype
    return data[0] if dtype in (torch.int64, torch.int32) else None


def counts_positions(node: Node) -> bool:
    """True if a node is 0, 1, 2, …: an `arange` from 0, or a view of one."""
    while node.op == "call_function" and short_name(node) != "arange":
        row = usable_row(node)
        is_sum = short_name(node) == "add" and node.args[1:] == (0,)
        if row is None or (row.kind is not Kind.VIEW and not is_sum):
            return False
        (node,) = tensor_operands(node)
    if node.op != "call_function":
        return False
    return node.args[:1] in ((0,), ()) or len(node.args) == 1


def as_slice(node: Node) -> tuple[Any, tuple[Any, ...]] | None:
    """The view that gives a piece of a split alone, with its arguments; None for other nodes."""
    if node.target is not operator.getitem:
        return None
    split, at = node.args
    name = short_name(split) if isinstance(split, Node) else ""
    if not isinstance(split, Node) or not isinstance(at, int) or at < 0 or split.kwargs:
        return None
    if any(tensor.is_nested for tensor in tensors_of(split)):
        return None
    if name == "unbind":
        source, dim = (*split.args, 0)[:2]
        return torch.ops.aten.select.int, (source, dim, at)
    if name not in ("split", "split_with_sizes"):
        return None
    source, given, dim = (*split.args, 0)[:3]
    lengths = [given] * (at + 1) if isinstance(given, int) else given
    if not isinstance(lengths, list | tuple) or not all(isinstance(n, int) for n in lengths):
        return None
    start = sum(lengths[:at])
    return torch.ops.aten.slice.Tensor, (source, dim, start, start + lengths[at])
