"""What operators do to the dimensions of their operands: slices, views, reductions."""

import operator
import sys
from typing import Any

import sympy
from torch.fx import Node

from blockbuster_fusion.torch.capture.graph import short_name, tensors_of
from blockbuster_fusion.torch.slices.band import Band, Bands, Place, extents, place

SAME_PLACE = frozenset({"clone", "alias", "detach", "_to_copy", "lift_fresh_copy", "contiguous"})
RESHAPING = frozenset({"view", "_unsafe_view", "reshape"})
TURNING = frozenset({"permute", "transpose", "t", "unsqueeze", "squeeze", "expand"})
REDUCTIONS = frozenset({"sum", "mean", "amax", "amin", "any", "all", "prod", "_softmax"})


class InTheWay(Exception):
    """A part that has no form further up: it is a part of what lies in memory."""


def slice_of(node: Node) -> tuple[Node, Bands] | None:
    """Of what a slice is a part, and which."""
    source = node.args[0] if node.args else None
    if not isinstance(source, Node) or node.op != "call_function":
        return None
    if node.target is operator.getitem:
        return _slice_by_split(node, source)
    name = short_name(node)
    if name not in ("slice", "select"):
        return None
    lengths = extents(tensors_of(source)[0])
    given: list[Any] = [*node.args[1:]]
    given += [0, 0, None, 1][len(given) :]
    dim, start, stop, step = _dim(given[0], len(lengths)), *given[1:]
    width = extents(tensors_of(node)[0])[dim] if name == "slice" else place(1)
    first = _first(start or 0, None if name == "select" else stop, lengths[dim], width)
    if first is None or not _is_simple(width):
        return None
    if name == "select" or step == 1:
        return source, (Band(dim, first, first + width),)
    times = lengths[dim] / place(step) if isinstance(step, int) else None
    is_even = times is not None and times.is_Integer and times == width
    if not is_even or not first.is_Integer or not first < step:
        return None
    return source, (Band(dim, first, first + 1, place(step)),)


def _first(start: Any, stop: Any, length: Place, width: Place) -> Place | None:
    """Where a slice begins, counted from the beginning, as far as that is known."""
    if not isinstance(start, int):
        return None
    if start >= 0:
        return place(start)
    if length.is_Integer:
        return place(max(0, int(length) + start))
    is_open = stop is None or (isinstance(stop, int) and stop >= sys.maxsize)
    return length - width if is_open and width != 1 else None


def _slice_by_split(node: Node, split: Node) -> tuple[Node, Bands] | None:
    name = short_name(split)
    source = split.args[0] if split.args else None
    at = node.args[1]
    if name not in ("split", "split_with_sizes", "unbind") or not isinstance(source, Node):
        return None
    assert isinstance(at, int)
    dim = _dim_of_split(split)
    if name == "unbind":
        return source, (Band(dim, place(at), place(at + 1)),)
    widths = [extents(t)[dim] for t in tensors_of(split)]
    start = sum(widths[:at], start=place(0))
    return source, (Band(dim, start, start + widths[at]),)


def _dim(dim: Any, rank: int) -> int:
    assert isinstance(dim, int)
    return dim % rank


def _dim_of_split(split: Node) -> int:
    source = split.args[0]
    assert isinstance(source, Node)
    at = 1 if short_name(split) == "unbind" else 2
    given = split.args[at] if len(split.args) > at else split.kwargs.get("dim", 0)
    return _dim(given, tensors_of(source)[0].dim())


def lost_dim(node: Node) -> int | None:
    """The dimension of its operand that a slice of one place does not have any more."""
    if short_name(node) == "select":
        return _dim(node.args[1], tensors_of(node)[0].dim() + 1)
    split = node.args[0]
    if node.target is operator.getitem and isinstance(split, Node):
        return _dim_of_split(split) if short_name(split) == "unbind" else None
    return None


def _is_simple(width: Place) -> bool:
    """Whether a length is no choice between two."""
    choices = {"Max", "Min", "Piecewise"}
    return not any(type(x).__name__ in choices for x in sympy.preorder_traversal(width))


def source_dim(node: Node, dim: int) -> int | None:
    """Which dimension of its operand a dimension of a view is; None for a broadcast one."""
    source = node.args[0]
    assert isinstance(source, Node)
    before, after = tensors_of(source)[0].shape, tensors_of(node)[0].shape
    arguments: Any = node.args[1:]
    match short_name(node):
        case name if name in SAME_PLACE:
            return dim
        case "permute":
            return int(arguments[0][dim]) % len(before)
        case "transpose":
            a, b = (i % len(before) for i in arguments)
            return b if dim == a else a if dim == b else dim
        case "t":
            return len(before) - 1 - dim
        case "unsqueeze":
            at = arguments[0] % len(after)
            return None if dim == at else dim - (dim > at)
        case "squeeze":
            gone = squeezed_dims(node)
            left = [d for d in range(len(before)) if d not in gone]
            return left[dim]
        case "expand":
            at = dim - (len(after) - len(before))
            is_broadcast = at < 0 or (before[at] == 1 and after[dim] != 1)
            return None if is_broadcast else at
    raise InTheWay


def squeezed_dims(node: Node) -> list[int]:
    """The dimensions of its operand that a `squeeze` removes: those asked for, of length 1."""
    source, *arguments = node.args
    assert isinstance(source, Node)
    lengths = tensors_of(source)[0].shape
    given: Any = arguments[0] if arguments else range(len(lengths))
    asked = given if isinstance(given, list | tuple | range) else [given]
    return sorted({d % len(lengths) for d in asked if lengths and lengths[d] == 1})


def reduced_dims(node: Node) -> tuple[Node, list[int]] | None:
    """What a reduction reduces, and along which dimensions."""
    source = node.args[0] if node.args else None
    if not isinstance(source, Node) or short_name(node) not in REDUCTIONS:
        return None
    rank = tensors_of(source)[0].dim()
    if not rank:
        return None
    given: Any = node.args[1] if len(node.args) > 1 else None
    dims = [given] if isinstance(given, int) else [*(given or range(rank))]
    return source, [d % rank for d in dims]
