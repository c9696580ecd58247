"""Masks of attention that a model writes out, by `where`, by `masked_fill`, or as a bias.

The fill of a mask is the score of a key that a query does not see: minus infinity, or a number so
low that its weight beside any other key is 0. With a fill that is not as low, as -1e4, a product of
weights and values is no attention.

**A query that sees no key** gets 0 by PyTorch's operator. A softmax that is written out gives NaN
for minus infinity, and the mean of the values for the lowest number: all scores are equal. Unless
the model puts zeros there, that takes the place of PyTorch's zeros. Biases as low count as minus
infinity on a GPU, so they are treated alike. A row with both is averaged over all keys.

PyTorch's operator adds a mask to the scores, so that a hidden score that is NaN or infinite stays
NaN. What is written out hides it, but for the value: 0 times NaN is NaN.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from blockbuster_fusion.array.axes import Size
from blockbuster_fusion.torch.capture.nodes import (
    copied,
    operand,
    short_name,
    tensor_of,
    tensors_of,
)
from blockbuster_fusion.torch.capture.symbolic import sizes_of
from blockbuster_fusion.torch.rivals.composites import Calling

aten = torch.ops.aten

FILLS = (aten.masked_fill.Scalar, aten.masked_fill.Tensor)
NEGATIONS = (aten.bitwise_not.default, aten.logical_not.default)
LOWEST = -1e30
"""No score is near this, so that the weight of one as low is 0 beside any other."""
LOW = -1e3
"""Biases above this hide no key."""
COMPARISONS = {
    aten.le.Tensor: (False, False),
    aten.ge.Tensor: (False, True),
    aten.gt.Tensor: (True, False),
    aten.lt.Tensor: (True, True),
}
"""Comparisons of columns and rows in causal masks: True if they hide, and if rows come first."""


@dataclass(frozen=True)
class Mask:
    """A mask of truth values, or a bias."""

    node: Node
    hides: bool = False
    """True if the mask is True where a query does not see a key."""
    fill: float | None = -math.inf
    """The score of a key that a query does not see; None for a bias that is known to be finite."""
    may_hide_all: bool = True
    """False if a query surely sees a key: a bias that is never low."""

    @property
    def is_bias(self) -> bool:
        return tensor_of(self.node).dtype is not torch.bool

    @property
    def averages(self) -> bool:
        """True if a query that sees no key may get the mean of the values."""
        return self.may_hide_all and (self.is_bias or self.fill != -math.inf)

    @property
    def rounds(self) -> bool:
        """True if low biases round the scores: in float16 no number is low enough to hide a key."""
        return self.may_hide_all and tensor_of(self.node).dtype is torch.float16

    def fits(self, query: Node, shape: list[Size]) -> bool:
        """True if PyTorch's operator takes the mask, for scores of a shape."""
        if tensor_of(self.node).dtype not in (torch.bool, tensor_of(query).dtype):
            return False
        whole = [*sizes_of(query)[:-2], *shape]
        own = sizes_of(self.node)
        if not 2 <= len(own) <= len(whole) or shape[-1] == Size(0):
            return False
        return all(n in (Size(1), m) for n, m in zip(own[::-1], whole[::-1], strict=False))

    def is_causal(self, shape: list[Size]) -> bool:
        """True if the mask shows a query the keys up to its own position: columns <= rows."""
        kind: Any = self.node.target
        if kind not in COMPARISONS or sizes_of(self.node) != shape:
            return False
        hides, rows_first = COMPARISONS[kind]
        given: Any = self.node.args
        pair = given[::-1] if rows_first else given
        return hides == self.hides and all(
            isinstance(n, Node)
            and short_name(n) == "unsqueeze"
            and n.args[1] == at
            and _counts_from_0(operand(n))
            and sizes_of(operand(n)) == [length]
            for n, at, length in zip(pair, (0, 1), shape[::-1], strict=True)
        )

    def mended(self, calling: Calling, whole: Any, value: Any, shown: Any) -> Any:
        """The result with what a softmax gives to queries that see no key.

        `shown` is the mask where True shows a key, or the bias. A row of low biases hides all keys.
        """
        if not self.may_hide_all:
            return whole
        mean = calling(aten.mean.dim, (value, [-2], True)) if self.averages else math.nan
        if self.is_bias:
            if self.fill == -math.inf:  # or a low number
                finite = calling(aten.ne.Scalar, (shown, -math.inf))
                finite = calling(aten.any.dim, (finite, -1, True))
                mean = calling(aten.where.ScalarOther, (finite, mean, math.nan))
            shown = calling(aten.gt.Scalar, (shown, LOWEST))
        sees = calling(aten.any.dim, (shown, -1, True))
        choice = aten.where.self if self.averages else aten.where.ScalarOther
        return calling(choice, (sees, whole, mean))


def bias_of(node: Node) -> Mask:
    """The mask that a bias is."""
    chain = copied(node)
    made: Any = chain[-1]
    if made.target is not aten.where.self:
        return Mask(node)
    least = max(torch.finfo(tensor_of(n).dtype).min for n in chain)
    sides = [number_of(x) for x in made.args[1:]]
    if not all(x is not None and least <= x < math.inf for x in sides):
        return Mask(node)
    return Mask(node, fill=None, may_hide_all=any(x is None or x <= LOW for x in sides))


def masked_by(
    target: Any, given: Any, scale: float, dtypes: Iterable[torch.dtype]
) -> tuple[Mask, Any] | None:
    """The mask that an operator applies, and the scores that it applies it to; or None.

    The scores are scaled afterwards, and cast to some dtypes.
    """
    if target is aten.where.self:
        mask, *sides = given
        hides = number_of(sides[1]) is None
        scores, fill = sides[::-1] if hides else sides
    elif target in FILLS:
        (scores, mask, fill), hides = given, True
    else:
        return None
    number = number_of(fill)
    if number is None or not isinstance(mask, Node) or not tensors_of(mask):
        return None
    if number != -math.inf and not _is_low(number * scale, dtypes):
        return None
    while mask.target in NEGATIONS and tensor_of(operand(mask)).dtype is torch.bool:
        mask, hides = operand(mask), not hides
    return Mask(mask, hides, number), scores


def _is_low(fill: float, dtypes: Iterable[torch.dtype]) -> bool:
    """True if a score is lower than any other, and a number of some dtypes."""
    return max(torch.finfo(dtype).min for dtype in dtypes) <= fill <= LOWEST


def number_of(given: Any) -> float | None:
    """The number that an argument is, or of which it is a tensor; or None."""
    if isinstance(given, Node):
        if short_name(given) not in ("scalar_tensor", "full"):
            return None
        given = given.args[1 if short_name(given) == "full" else 0]
    return float(given) if isinstance(given, int | float) else None


def _counts_from_0(node: Node) -> bool:
    given: Any = node.args
    if short_name(node) != "arange":
        return False
    return len(given) == 1 or (bool(given[0] == 0) and (len(given) == 2 or bool(given[2] == 1)))
