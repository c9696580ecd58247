"""The effect of operators on the dimensions of their operands: slices, views, reductions."""

import operator
import sys
from dataclasses import replace
from typing import Any

import sympy
import torch
from torch.fx import Node

from blockbuster_fusion.torch.capture.nodes import operand, short_name, tensor_of, tensors_of
from blockbuster_fusion.torch.slices.band import Band, Bands, SymbolicInt, extents, symbolic

SAME_POSITIONS = frozenset(
    {"clone", "alias", "detach", "_to_copy", "lift_fresh_copy", "contiguous"}
)
RESHAPING = frozenset({"view", "_unsafe_view", "reshape"})
PERMUTING = frozenset({"permute", "transpose", "t", "unsqueeze", "squeeze", "expand"})
REDUCTIONS = frozenset({"sum", "mean", "amax", "amin", "any", "all", "prod", "_softmax"})

NodeSlice = tuple[Node, Bands]
"""A slice of a node."""


class CannotMove(Exception):
    """A slice cannot be computed from slices of operands: it is a slice of what is in memory."""


def slice_of(node: Node) -> NodeSlice | None:
    """The slice that a node takes of its operand, or None if it is no slice with one band."""
    source = node.args[0] if node.args else None
    if not isinstance(source, Node) or node.op != "call_function":
        return None
    if node.target is operator.getitem:
        return _slice_by_split(node, source)
    name = short_name(node)
    if name not in ("slice", "select"):
        return None
    lengths = extents(tensor_of(source))
    given: list[Any] = [*node.args[1:]]
    given += [0, 0, None, 1][len(given) :]
    dim, start, stop, step = given[0] % len(lengths), *given[1:]
    width = extents(tensor_of(node))[dim] if name == "slice" else symbolic(1)
    first = _first(start or 0, None if name == "select" else stop, lengths[dim], width)
    if first is None or not _is_simple(width):
        return None
    if name == "select" or step == 1:
        return source, (Band(dim, first, first + width),)
    times = lengths[dim] / symbolic(step) if isinstance(step, int) else None
    is_even = times is not None and times.is_Integer and times == width
    if not is_even or not first.is_Integer or not first < step:
        return None
    return source, (Band(dim, first, first + 1, symbolic(step)),)


def _first(start: Any, stop: Any, length: SymbolicInt, width: SymbolicInt) -> SymbolicInt | None:
    """The first position of a slice, counted from the beginning, or None if it is not known."""
    if not isinstance(start, int):
        return None
    if start >= 0:
        return symbolic(start)
    if length.is_Integer:
        return symbolic(max(0, int(length) + start))
    is_open = stop is None or (isinstance(stop, int) and stop >= sys.maxsize)
    return length - width if is_open and width != 1 else None


def _slice_by_split(node: Node, split: Node) -> NodeSlice | None:
    name = short_name(split)
    if name not in ("split", "split_with_sizes", "unbind"):
        return None
    at: Any = node.args[1]
    source, dim = operand(split), _dim_of_split(split)
    if name == "unbind":
        return source, (Band(dim, symbolic(at), symbolic(at + 1)),)
    widths = [extents(t)[dim] for t in tensors_of(split)]
    start = sum(widths[:at], start=symbolic(0))
    return source, (Band(dim, start, start + widths[at]),)


def _dim_of_split(split: Node) -> int:
    at = 1 if short_name(split) == "unbind" else 2
    given: Any = split.args[at] if len(split.args) > at else split.kwargs.get("dim", 0)
    return int(given) % tensor_of(operand(split)).dim()


def lost_dim(node: Node) -> int | None:
    """The dimension of its operand that a slice of one element removes, or None."""
    if short_name(node) == "select":
        dim: Any = node.args[1]
        return int(dim) % (tensor_of(node).dim() + 1)
    split = node.args[0]
    if node.target is operator.getitem and isinstance(split, Node):
        return _dim_of_split(split) if short_name(split) == "unbind" else None
    return None


def _is_simple(width: SymbolicInt) -> bool:
    """True if a length is no choice between two."""
    choices = {"Max", "Min", "Piecewise"}
    return not any(type(x).__name__ in choices for x in sympy.preorder_traversal(width))


def source_dim(node: Node, dim: int) -> int | None:
    """The dimension of its operand that a dimension of a view is; None for a broadcast one."""
    before, after = tensor_of(operand(node)).shape, tensor_of(node).shape
    arguments: Any = node.args[1:]
    match short_name(node):
        case name if name in SAME_POSITIONS:
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
    raise CannotMove


def squeezed_dims(node: Node) -> list[int]:
    """The dimensions of its operand that a `squeeze` removes: those asked for, of length 1."""
    lengths = tensor_of(operand(node)).shape
    given: Any = node.args[1] if len(node.args) > 1 else range(len(lengths))
    asked = given if isinstance(given, list | tuple | range) else [given]
    return sorted({d % len(lengths) for d in asked if lengths and lengths[d] == 1})


def reduced_dims(node: Node) -> tuple[Node, list[int]] | None:
    """The operand of a reduction, and the dimensions that it reduces."""
    source = node.args[0] if node.args else None
    if not isinstance(source, Node) or short_name(node) not in REDUCTIONS:
        return None
    rank = tensor_of(source).dim()
    if not rank:
        return None
    given: Any = node.args[1] if len(node.args) > 1 else None
    dims = [given] if isinstance(given, int) else [*(given or range(rank))]
    return source, [d % rank for d in dims]


def overlap(band: Band, at: SymbolicInt, end: SymbolicInt) -> tuple[SymbolicInt, SymbolicInt]:
    """The positions that a band and a piece have in common, or CannotMove if sizes decide."""
    if band.period is not None:
        raise CannotMove
    before, behind = band.start - at, band.stop - end
    if not (before.is_nonpositive or before.is_nonnegative):
        raise CannotMove
    if not (behind.is_nonpositive or behind.is_nonnegative):
        raise CannotMove
    start = at if before.is_nonpositive else band.start
    stop = end if behind.is_nonnegative else band.stop
    width = stop - start
    if width.is_nonpositive:
        return at, at
    if width.is_positive or width.is_nonnegative:
        return start, stop
    raise CannotMove


def broadcast_bands(bands: Bands, result: torch.Tensor, operand: torch.Tensor) -> Bands:
    """Bands of a result as bands of an operand that is broadcast to it, or CannotMove."""
    lengths, own = extents(result), extents(operand)
    missing = len(lengths) - len(own)
    found = []
    for band in bands:
        at = band.dim - missing
        if at >= 0 and own[at] != 1:
            if own[at] != lengths[band.dim]:
                raise CannotMove
            found.append(replace(band, dim=at))
    return tuple(found)
