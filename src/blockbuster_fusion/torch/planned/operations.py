"""The operations of PyTorch's operators."""

import math
from collections.abc import Callable

from torch.fx import Node

from blockbuster_fusion.array.axes import Length
from blockbuster_fusion.torch.capture.nodes import short_name, tensors_of
from blockbuster_fusion.torch.capture.symbolic import as_size

Shape = list[int]


def operations_of(node: Node, length: Length) -> int:
    """The operations of an operator: of products all, of others one for each element."""

    def shape(x: object) -> Shape:
        found = tensors_of(x) if isinstance(x, Node) else []
        return [length(as_size(n)) for n in found[0].shape] if found else []

    made = [math.prod(length(as_size(n)) for n in t.shape) for t in tensors_of(node)]
    count = COUNTS.get(short_name(node))
    given = [shape(x) for x in node.args]
    return sum(made) if count is None or not made else count(made[0], given)


def _product(made: int, given: list[Shape]) -> int:
    return 2 * made * given[0][-1]


def _sum_of_products(made: int, given: list[Shape]) -> int:
    return 2 * made * given[1][-1]


def _attention(made: int, given: list[Shape]) -> int:
    query, key, value = given[:3]
    return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _convolution(made: int, given: list[Shape]) -> int:
    return 2 * made * math.prod(given[1][1:])


COUNTS: dict[str, Callable[[int, list[Shape]], int]] = {
    **dict.fromkeys(("mm", "bmm", "mv", "linear", "_linear_pointwise"), _product),
    **dict.fromkeys(("addmm", "baddbmm"), _sum_of_products),
    "scaled_dot_product_attention": _attention,
    "convolution": _convolution,
}
"""The operations of products, by the elements of the result and the shapes of the operands."""
