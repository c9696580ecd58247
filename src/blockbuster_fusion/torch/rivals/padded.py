"""Pads products whose rows are not aligned in memory: matrices of odd widths on a GPU.

The library's fast kernels load 16 bytes at once, so they need rows whose lengths are multiples of
that. For other lengths it takes others, which are several times slower. Zeros that are appended to
the matrices change nothing in the elements that are kept. Copies cost time too, so the padded
product counts only where it was measured to be faster.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.capture.nodes import tensor_of
from blockbuster_fusion.torch.rivals.composites import Calling, Composite

aten = torch.ops.aten
DEVICES = ("cuda",)
NARROW = (torch.float16, torch.bfloat16)
ALIGNED = 16
"""The bytes of which the length of a row should be a multiple."""


@dataclass(frozen=True)
class PaddedProduct(Composite):
    """A product of two matrices, and a row that may be added to it."""

    left: Node
    right: Node
    added: Node | None
    padding: tuple[int, int, int]
    """Zeros that are appended along rows, summed axis and columns."""

    @property
    def operator(self) -> torch._ops.OpOverload:
        return aten.mm.default if self.added is None else aten.addmm.default

    @property
    def operands(self) -> tuple[Node | None, ...]:
        return (self.left, self.right, self.added)

    @property
    def form(self) -> tuple[object, ...]:
        return ("padded", *self.padding)

    def computed(self, calling: Calling, *operands: Any) -> Any:
        left, right, added = operands
        rows, summed, columns = self.padding
        left = _appended(calling, left, (summed, rows))
        right = _appended(calling, right, (columns, summed))
        if added is None:
            whole = calling(self.operator, (left, right))
        else:
            whole = calling(self.operator, (_appended(calling, added, (columns,)), left, right))
        for dim, zeros in enumerate((rows, columns)):
            if zeros:
                whole = calling(aten.slice.Tensor, (whole, dim, 0, -zeros))
        if columns:
            whole = calling(aten.clone.default, (whole,), memory_format=torch.contiguous_format)
        return whole


def _appended(calling: Calling, x: Any, zeros: Sequence[int]) -> Any:
    """An array with zeros at the end of its axes, the last axis first."""
    if not any(zeros):
        return x
    ends = [n for count in zeros for n in (0, count)]
    return calling(aten.constant_pad_nd.default, (x, ends, 0.0))


def found_padded(analysis: Analysis) -> list[PaddedProduct]:
    """The products of a graph that may be faster with zeros appended."""
    found = (_padded(node) for node in analysis.module.graph.nodes)
    return [x for x in found if x is not None]


def _padded(node: Node) -> PaddedProduct | None:
    added: Any = None
    left: Any
    right: Any
    if node.kwargs:
        return None
    if node.target is aten.mm.default:
        left, right = node.args
    elif node.target is aten.addmm.default:
        added, left, right = node.args
    else:
        return None
    matrices = (left, right, node)
    if not all(isinstance(n, Node) and _is_narrow(n) for n in matrices):
        return None
    if added is not None and not (
        isinstance(added, Node) and [*tensor_of(added).shape] == [tensor_of(node).shape[1]]
    ):
        return None
    padding = _padding(*map(tensor_of, matrices))
    if padding is None or not any(padding):
        return None
    return PaddedProduct(node, (node,), left, right, added, padding)


def _is_narrow(node: Node) -> bool:
    """True for a matrix of a 16-bit float, of known lengths, on a GPU."""
    x = tensor_of(node)
    is_known = all(isinstance(n, int) for n in (*x.shape, *x.stride()))
    return is_known and x.dtype in NARROW and x.device.type in DEVICES


def _padding(
    left: torch.Tensor, right: torch.Tensor, made: torch.Tensor
) -> tuple[int, int, int] | None:
    """The zeros that align the rows of all three; None if they do not lie row behind row."""
    lengths = (left.shape[0], left.shape[1], right.shape[1])
    unaligned = set[int]()
    for x, axes in ((left, (0, 1)), (right, (1, 2)), (made, (0, 2))):
        turned = [*x.stride()] == [1, x.shape[0]] and x.shape[1] > 1
        if not turned and not x.is_contiguous():
            return None
        unaligned.add(axes[0] if turned else axes[1])
    each = ALIGNED // made.dtype.itemsize
    rows, summed, columns = (-n % each if i in unaligned else 0 for i, n in enumerate(lengths))
    return rows, summed, columns
