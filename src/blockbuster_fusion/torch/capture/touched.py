"""The bytes of an array that several views of it show together: each element counts once.

The elements of a view lie at an offset plus multiples of its strides. If all strides divide one
another, as those of slices of one array do, places are numbers with several digits: one for each
stride. A view is then a box of digits, and what several views show is a union of boxes.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch.fx import Node

from blockbuster_fusion.array.axes import Length
from blockbuster_fusion.torch.capture.nodes import memory_of, tensor_of, tensors_of
from blockbuster_fusion.torch.capture.symbolic import as_size

MOST_VIEWS = 8
"""The number of views whose union is counted; of more, the largest one counts."""

Box = tuple[tuple[int, int], ...]
"""For each digit, the first value and the one behind the last."""


def bytes_of(node: Node, length: Length) -> int:
    """The bytes of the results of a node."""
    return sum(length(as_size(math.prod(t.shape))) * t.dtype.itemsize for t in tensors_of(node))


def touched(base: Node, views: Iterable[Node], length: Length) -> int:
    """The bytes of an array that some views of it show together.

    Where views cannot be compared, as after a copy, it is the most that one of them shows.
    """
    shown = [*dict.fromkeys(views)]
    whole = bytes_of(base, length)
    most = min(whole, max(bytes_of(x, length) for x in shown))
    if most == whole or not 1 < len(shown) <= MOST_VIEWS:
        return most
    boxes = _boxes([tensor_of(x) for x in (base, *shown)], length)
    if boxes is None:
        return most
    return min(whole, _covered(boxes) * tensor_of(base).dtype.itemsize)


def _boxes(tensors: Sequence[torch.Tensor], length: Length) -> list[Box] | None:
    """The boxes of views of the first array, each once, or None if they are no boxes."""
    base, *views = tensors
    is_shown = all(memory_of(x) == memory_of(base) and x.dtype is base.dtype for x in views)
    if not is_shown or not memory_of(base):
        return None

    def numbers(given: Iterable[Any]) -> list[int]:
        return [length(as_size(n)) for n in given]

    places = []
    for x in views:
        offset = numbers([x.storage_offset()])[0] - numbers([base.storage_offset()])[0]
        dims = zip(numbers(x.shape), numbers(x.stride()), strict=True)
        places.append((offset, [(n, stride) for n, stride in dims if n > 1 and stride]))
    strides = sorted({s for _, dims in places for _, s in dims} | {1}, reverse=True)
    if any(a % b for a, b in pairwise(strides)):
        return None
    found = [_box(offset, dims, strides) for offset, dims in places]
    known = [*dict.fromkeys(x for x in found if x is not None)]
    return known if None not in found else None


def _box(offset: int, dims: Sequence[tuple[int, int]], strides: Sequence[int]) -> Box | None:
    """The digits of the elements of a view, or None if they are no box."""
    counts = dict.fromkeys(strides, 1)
    for count, stride in dims:
        if counts[stride] > 1:
            return None  # its elements overlap
        left = count
        for larger, smaller in _steps(strides, stride):  # a dimension may have several digits
            radix = larger // smaller
            if left <= radix or left % radix:
                break
            counts[smaller], left = radix, left // radix
            stride = larger
        counts[stride] *= left
    box: list[tuple[int, int]] = []
    above: int | None = None
    for stride in strides:
        first, offset = divmod(offset, stride)
        behind = first + counts[stride]
        if first < 0 or (above is not None and behind > above // stride):
            return None
        box.append((first, behind))
        above = stride
    return tuple(box)


def _steps(strides: Sequence[int], stride: int) -> Iterable[tuple[int, int]]:
    """The strides above one, from the next one on, each with that below it."""
    upwards = [s for s in reversed(strides) if s >= stride]
    return zip(upwards[1:], upwards, strict=False)


def _covered(boxes: Sequence[Box]) -> int:
    """The number of elements in a union of boxes."""
    if not boxes:
        return 0
    first, *rest = boxes
    common = (_common(first, other) for other in rest)
    shared = [x for x in dict.fromkeys(common) if x is not None]
    return math.prod(b - a for a, b in first) + _covered(rest) - _covered(shared)


def _common(one: Box, other: Box) -> Box | None:
    """The elements of two boxes, or None if they have none in common."""
    pairs = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True)]
    return tuple(pairs) if all(a < b for a, b in pairs) else None
