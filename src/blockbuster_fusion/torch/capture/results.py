"""Strides of the results of a graph in eager mode, and memory that they share."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._prims_common import compute_elementwise_output_strides
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from blockbuster_fusion.array.axes import Size
from blockbuster_fusion.torch.capture.fakes import fake_result, inserted, meta_like
from blockbuster_fusion.torch.capture.nodes import (
    GIVEN,
    has_effect,
    is_empty_tensor,
    tensor_of,
    tensors_of,
)
from blockbuster_fusion.torch.capture.symbolic import as_size

aten = torch.ops.aten


@dataclass(frozen=True)
class ResultPlacement:
    """A result in eager mode; results with equal storage share memory."""

    tensor: torch.Tensor
    storage: int
    is_given: bool
    """True if it lies in the memory of an input."""


ResultPlacements = Sequence[ResultPlacement | None]
"""One for each result; None for results that are no strided tensors."""


def correct_strides(module: GraphModule) -> None:
    """Corrects the strides of nodes for which AOTAutograd computes others than PyTorch."""
    changed: set[Node] = set()
    for node in module.graph.nodes:
        alike = SAME_STRIDES.get(node.target)
        if alike is None and changed.isdisjoint(node.all_input_nodes):
            continue
        if not tensors_of(node) or has_effect(node) or _has_size_of_data(node):
            continue
        value = fake_result(alike or node.target, node.args, node, {} if alike else node.kwargs)
        if alike is None or strides_of(value) != strides_of(tensor_of(node)):
            node.meta = meta_like(node, value)
            changed.add(node)


def _power_of_number(base: Any, x: torch.Tensor) -> torch.Tensor:
    """A power of a number, which is contiguous whatever the strides of the exponents."""
    return torch.pow(base, x).contiguous()


def _looked_up(x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """Elements of an array at indices, with the strides of PyTorch's result."""
    at = [i for i, index in enumerate(indices) if index is not None]
    others = [i for i in range(x.dim()) if i not in at]
    known = [index for index in indices if index is not None]
    shape = torch.broadcast_shapes(*(i.shape for i in known))  # type: ignore[no-untyped-call]
    given = [index.expand(shape) for index in known]
    along = dict(zip(at, given, strict=True))
    made: torch.Tensor = aten.index.Tensor(x, [along.get(i) for i in range(len(indices))])
    if is_empty_tensor(made):
        return made
    rank, first = len(shape), at[0] if at[-1] - at[0] < len(at) else 0
    strides = [x.stride(i) for i in others]
    walked = x.as_strided(made.shape, [*strides[:first], *(0,) * rank, *strides[first:]])
    behind = (1,) * (len(others) - first)
    places = [i.long().reshape((*i.shape, *behind)).expand(made.shape) for i in given]
    return made.as_strided(made.shape, compute_elementwise_output_strides(walked, *places))


SAME_STRIDES: dict[Any, Any] = {
    aten.logical_and.default: aten.ne.Tensor,
    aten.logical_or.default: aten.ne.Tensor,
    aten.logical_xor.default: aten.ne.Tensor,
    aten.div.Tensor_mode: aten.add.Tensor,
    aten.pow.Scalar: _power_of_number,
    aten.index.Tensor: _looked_up,
}
"""Operators whose fake results have wrong strides, and functions with the right ones.

The functions give arrays of the same dtype, whatever they contain."""


def _has_size_of_data(node: Node) -> bool:
    """True if the size of a node depends on data.

    Each such size is a symbol of its own, so the node is not to be evaluated again.
    """
    if node.target is not aten.index.Tensor:
        return torch.Tag.dynamic_output_shape in getattr(node.target, "tags", ())
    indices: Any = node.args[1]
    given = [tensor_of(n).dtype for n in indices if n is not None]
    return any(dtype not in (torch.int64, torch.int32) for dtype in given)


def result_placements(module: GraphModule) -> list[ResultPlacement | None]:
    """The placements of a graph's results."""
    given = _given(module)
    made: list[ResultPlacement | None] = []
    for node in _results(module):
        tensor, storage = _tensor(node), storage_of(node)
        is_known = tensor is not None and storage is not None
        made.append(ResultPlacement(tensor, storage, storage in given) if is_known else None)  # type: ignore[arg-type]
    return made


def kept_whole(module: GraphModule) -> set[Node]:
    """The nodes in the memory of several results, or of a result that is a view of an input.

    Slices of these are not moved: slices that are computed alone would not share memory.
    """
    given = _given(module)
    results = {n for n in _results(module) if isinstance(n, Node)}
    count = Counter(storage_of(n) for n in results)
    kept = {s for s, times in count.items() if s is not None and (times > 1 or s in given)}
    return {n for n in module.graph.nodes if storage_of(n) in kept and n.op not in GIVEN}


def unshare(module: GraphModule, wanted: ResultPlacements) -> bool:
    """Copies results that have come to share memory with an input or with each other.

    Returns True if there are any.
    """
    given = _given(module)
    owner: dict[int | None, int] = {}
    output = module.graph.output_node()
    results = _results(module)
    made = [*results]
    for i, (node, placement) in enumerate(zip(results, wanted, strict=True)):
        if placement is None or placement.is_given or not isinstance(node, Node):
            continue
        storage = storage_of(node)
        if storage in given or owner.setdefault(storage, placement.storage) != placement.storage:
            with module.graph.inserting_after(node):
                made[i] = inserted(module.graph, aten.clone.default, (node,), node)
    output.args = (tuple(made),)
    return made != [*results]


def strides_of(tensor: torch.Tensor) -> tuple[Size, ...] | None:
    """The strides of a tensor; None if they depend on data."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return None
    strides = tensor.stride()
    if any(isinstance(s, torch.SymInt) and free_unbacked_symbols(s) for s in strides):
        return None
    return tuple(map(as_size, strides))


def storage_of(node: Any) -> int | None:
    """An identifier of the memory of a node with one result; None if it has no strides."""
    tensor = _tensor(node)
    if tensor is None or tensor.layout is not torch.strided or tensor.is_nested:
        return None
    return int(tensor.untyped_storage()._cdata)


def _tensor(node: Any) -> torch.Tensor | None:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value if isinstance(value, torch.Tensor) else None


def _results(module: GraphModule) -> Sequence[Any]:
    results: Any = module.graph.output_node().args[0]
    return [*results]


def _given(module: GraphModule) -> set[int | None]:
    nodes = (n for n in module.graph.nodes if n.op in GIVEN and tensors_of(n))
    return {storage_of(n) for n in nodes} - {None}
