"""Simplifies graphs: fewer and simpler operators, with the same results."""

import math
import operator
import sys
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import _disable_current_modes

from blockbuster_fusion.select.operators import Kind
from blockbuster_fusion.torch.capture.fakes import inserted
from blockbuster_fusion.torch.capture.nodes import is_pure_operator, operand, tensor_of
from blockbuster_fusion.torch.capture.updates import IN_PLACE, is_shown
from blockbuster_fusion.torch.table import row_for

aten = torch.ops.aten

MOST_ELEMENTS = 1 << 16
"""The size of the largest constant that is evaluated at compile time."""

_VALUES = {aten.max.dim: aten.amax.default, aten.min.dim: aten.amin.default}
"""Reductions with indices, and the same reductions without."""


def simplify(module: GraphModule) -> None:
    """Removes checks and unread indices, folds uniform constants, and pads axis by axis.

    Updates of inputs are copied back themselves, and not a copy of them.
    """
    _remove_checks(module)
    _drop_copies_of_updates(module)
    _drop_indices(module)
    _fold_uniform(module)
    _split_pads(module)


def _remove_checks(module: GraphModule) -> None:
    """Removes the checks of dtypes that torch.export adds; they hold in every call."""
    graph = module.graph
    for node in graph.find_nodes(
        op="call_function", target=aten._assert_tensor_metadata.default, sort=False
    ):
        graph.erase_node(node)


def _drop_copies_of_updates(module: GraphModule) -> None:
    """Replaces copies of an input's update, where nothing else reads the update, by the update.

    `index_copy_` makes one for an array that is not contiguous.
    """
    graph = module.graph
    for back in graph.find_nodes(op="call_function", target=aten.copy_.default):
        target, copy = back.args[:2]
        if not isinstance(copy, Node) or copy.target is not aten.clone.default or is_shown(copy):
            continue
        update = operand(copy)
        is_strided = any(user.target is aten.as_strided.default for user in copy.users)
        is_update = update.target in IN_PLACE and update.args[0] is target
        if is_update and not is_strided and [*update.users] == [copy]:
            copy.replace_all_uses_with(update)
            graph.erase_node(copy)


def _drop_indices(module: GraphModule) -> None:
    """Replaces `x.max(-1).values` by `amax`."""
    graph = module.graph
    for node in [n for n in graph.nodes if n.op == "call_function" and n.target in _VALUES]:
        users = [*node.users]
        if not all(u.target is operator.getitem and u.args[1] == 0 for u in users):
            continue
        source, dim, *keep = node.args
        for user in users:
            with graph.inserting_before(user):
                made = graph.call_function(_VALUES[node.target], (source, [dim], *keep))
            made.meta = dict(user.meta)
            user.replace_all_uses_with(made)
            graph.erase_node(user)
        graph.erase_node(node)


def _fold_uniform(module: GraphModule) -> None:
    """Evaluates operators that depend on no input, and folds uniform results.

    Those with a row are left to kernels, unless they combine along an axis. Some models look for
    the borders of texts that are packed into one, by a `cumsum` over positions. This finds that
    there are none.
    """
    graph = module.graph
    depends: dict[Node, bool] = {}
    changed = False
    for node in [*graph.nodes]:
        depends[node] = node.op != "call_function" or any(depends[n] for n in node.all_input_nodes)
        row = row_for(node.target)
        is_left = row is not None and row.kind is not Kind.REDUCTION
        if depends[node] or is_left or not _is_plain(node):
            continue
        number = _one_number(node)
        if number is not None:
            tensor = tensor_of(node)
            options: dict[str, Any] = {
                "dtype": tensor.dtype,
                "device": tensor.device,
                "pin_memory": False,
            }
            with graph.inserting_before(node):
                made = graph.call_function(
                    aten.full.default, ([*map(int, tensor.shape)], number), options
                )
            made.meta = dict(node.meta)
            node.replace_all_uses_with(made)
            depends[made] = False
            changed = True
    if changed:
        graph.eliminate_dead_code()


def _split_pads(module: GraphModule) -> None:
    """Replaces padding along several axes by one for each, and negative padding by slices."""
    graph = module.graph
    for node in graph.find_nodes(op="call_function", target=aten.constant_pad_nd.default):
        source, pads, *fill = node.args
        rank = tensor_of(node).dim()
        pairs = {rank - 1 - i // 2: pads[i : i + 2] for i in range(0, len(pads), 2)}
        pairs = {dim: pair for dim, pair in pairs.items() if [*pair] != [0, 0]}
        taken = [d for d, (a, b) in pairs.items() if _is_negative(a) and _is_negative(b)]
        if not taken and len(pairs) < 2:
            continue
        made = source
        with graph.inserting_before(node):
            for dim in taken:
                before, after = pairs.pop(dim)
                where = (dim, -before, after or sys.maxsize)
                made = inserted(graph, aten.slice.Tensor, (made, *where), node)
            for dim, pair in pairs.items():
                wide = [*(0,) * (2 * (rank - 1 - dim)), *pair]
                made = inserted(graph, node.target, (made, wide, *fill), node)
            if not pairs:  # a slice would share memory
                made = inserted(graph, aten.clone.default, (made,), node)
        made.meta = dict(node.meta)  # views of it share its memory
        node.replace_all_uses_with(made)
        graph.erase_node(node)


def _is_negative(pad: Any) -> bool:
    return isinstance(pad, int) and pad <= 0


def _is_plain(node: Node) -> bool:
    """True if an operator is pure and its result is one small array of known size."""
    value, target = node.meta.get("val"), node.target
    if not isinstance(value, torch.Tensor) or not isinstance(target, torch._ops.OpOverload):
        return False
    if not is_pure_operator(target) or "empty" in str(target) or value.layout is not torch.strided:
        return False
    if not all(isinstance(s, int) for s in value.shape):
        return False
    return 0 < math.prod(value.shape) <= MOST_ELEMENTS


def _one_number(node: Node) -> int | float | bool | None:
    """The number that all elements of a constant are, or None."""
    with _disable_current_modes(), torch.no_grad():
        made = _evaluated(node, {})
        if made is None or made.dtype.is_complex:
            return None
        first = made.flatten()[0]
        number = first.item()
        is_one = bool((made == first).all()) and math.isfinite(number)
        is_one = is_one and bool((made.signbit() == first.signbit()).all())
        return number if is_one else None


def _evaluated(node: Node, known: dict[Node, Any]) -> Any:
    """The value of a node that depends on no input, or None where an operand is too large."""
    if node not in known:
        operands = [n for n in node.all_input_nodes if n not in known]
        is_known = all(_evaluated(n, known) is not None for n in operands)
        known[node] = None
        if is_known and _is_plain(node):
            arguments = torch.fx.map_arg(node.args, lambda n: known[n])
            options = torch.fx.map_arg(node.kwargs, lambda n: known[n])
            assert callable(node.target)
            known[node] = node.target(*arguments, **{**options, **_on_cpu(options)})
    return known[node]


def _on_cpu(options: Any) -> dict[str, Any]:
    return {"device": "cpu"} if "device" in options else {}
