"""Views of dense arrays whose shapes depend on sizes: they are other shapes of the same array."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from blockbuster_fusion.array.axes import Size, product
from blockbuster_fusion.torch.plan.placement import Placement
from blockbuster_fusion.torch.plan.sized import SizedLength
from blockbuster_fusion.torch.plan.steps import OperatorStep, Slot, with_strides

aten = torch.ops.aten
RESHAPING = (torch.Tensor.reshape, aten.view.default, aten.reshape.default)
PERMUTING = (torch.Tensor.permute, aten.permute.default)
UNSQUEEZING = (torch.Tensor.unsqueeze, aten.unsqueeze.default)

Shape = tuple[tuple[SizedLength, ...], tuple[int, ...]]
"""The lengths of a view, and its dimensions in the order of memory; () if they are in order."""


def view_of(step: OperatorStep, x: Placement, sizes: Mapping[int, Size]) -> Shape | None:
    """The shape of a step's result, if that is a view of all of a dense array.

    `x` is the placement of the array, and `sizes` are those in slots.
    """
    if step.options or len(step.arguments) != 2:
        return None
    function, given = step.function, step.arguments[1]
    if function in PERMUTING:
        dims = [n % len(x.shape) for n in given]
        order = tuple(dims.index(at) for at in x.order or range(len(dims)))
        is_plain = list(order) == sorted(order)
        return tuple(x.shape[at] for at in dims), () if is_plain else order
    if x.order:
        return None
    if function in RESHAPING and all(_is_length(n, sizes) for n in given):
        return tuple(given), ()
    if function in UNSQUEEZING:
        at = given % (len(x.shape) + 1)
        return (*x.shape[:at], 1, *x.shape[at:]), ()
    if function is with_strides and _are_dense(given, x.shape, sizes):
        return x.shape, ()
    return None


def _is_length(n: Any, sizes: Mapping[int, Size]) -> bool:
    return n.number in sizes if isinstance(n, Slot) else n >= 0


def _are_dense(
    strides: Sequence[Any], shape: Sequence[SizedLength], sizes: Mapping[int, Size]
) -> bool:
    """True if strides are those of a dense array for all sizes."""
    if not all(_is_length(n, sizes) for n in (*strides, *shape)):
        return False
    wide, steps = (
        [sizes[n.number] if isinstance(n, Slot) else Size(n) for n in given]
        for given in (shape, strides)
    )
    return all(product(wide[at + 1 :]) == step for at, step in enumerate(steps))
