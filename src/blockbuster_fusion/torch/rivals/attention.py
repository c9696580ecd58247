"""Recognises attention in a captured graph: a softmax of products, times values.

`scaled_dot_product_attention` is written out when a model is captured, and many models write it out
themselves. Either way, PyTorch's own operator is a rival of the kernels for it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node

from blockbuster_fusion.array.axes import Size
from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.capture.nodes import (
    is_float_cast,
    operand,
    short_name,
    tensor_of,
    tensors_of,
)
from blockbuster_fusion.torch.capture.symbolic import as_size, sizes_of
from blockbuster_fusion.torch.rivals.attention_masks import Mask, bias_of, masked_by, number_of
from blockbuster_fusion.torch.rivals.composites import Calling, Composite, has_form_of

aten = torch.ops.aten

RESHAPES = ("view", "_unsafe_view", "reshape", "clone", "expand")
"""Views that `matmul` puts between its operands and the product of batches of matrices."""


@dataclass(frozen=True)
class Attention(Composite):
    """The operands of attention, and the operators between them and its result."""

    query: Node
    key: Node
    value: Node
    is_key_turned: bool = False
    """True if `key` has its width before its length."""
    mask: Mask | None = None
    is_causal: bool = False
    scale: float = 1.0
    is_grouped: bool = False
    has_zeros: bool = False
    """True if the result is 0 for queries that see no key."""

    @property
    def lacks_batch(self) -> bool:
        """True if heads are the first axis; PyTorch's fast forms want a batch before it."""
        return tensor_of(self.query).dim() == 3

    @property
    def operator(self) -> torch._ops.OpOverload:
        return aten.scaled_dot_product_attention.default

    @property
    def operands(self) -> tuple[Node | None, ...]:
        mask = None if self.mask is None else self.mask.node
        return self.query, self.key, self.value, mask

    @property
    def form(self) -> tuple[object, ...]:
        form = None
        if self.mask is not None:
            form = (self.mask.hides, self.mask.fill, self.mask.may_hide_all, self.has_zeros)
        return self.is_key_turned, self.is_causal, self.scale, self.is_grouped, form

    def computed(self, calling: Calling, *operands: Any) -> Any:
        query, key, value, mask = operands
        if self.is_key_turned:
            key = calling(aten.transpose.int, (key, -1, -2))
        if self.mask is not None and self.mask.hides:
            mask = calling(aten.logical_not.default, (mask,))
        arrays = [query, key, value]
        if self.lacks_batch:
            arrays = [calling(aten.unsqueeze.default, (x, 0)) for x in arrays]
        whole = calling(
            self.operator,
            (*arrays, mask, 0.0, self.is_causal),
            scale=self.scale,
            enable_gqa=self.is_grouped,
        )
        whole = calling(aten.squeeze.dim, (whole, 0)) if self.lacks_batch else whole
        if self.mask is None or self.has_zeros:
            return whole
        return self.mask.mended(calling, whole, value, mask)


def found_attention(analysis: Analysis) -> list[Attention]:
    """All attention of a graph that PyTorch's operator can compute."""
    products = [n for n in analysis.nodes if short_name(n) == "bmm"]
    made = (_attention_at(n) for n in products)
    return [x for x in made if x is not None]


def _attention_at(product: Node) -> Attention | None:
    """The attention that ends with a product of weights and values, or None."""
    shape = sizes_of(operand(product, 0))[-2:]
    softmax = _solely_behind(operand(product, 0), shape)
    if softmax is None or softmax.target is not aten._softmax.default:
        return None
    rank = tensor_of(softmax).dim()
    if softmax.args[1] not in (-1, rank - 1):
        return None
    scores = _scores(operand(softmax), shape)
    value = _matrices(operand(product, 1))
    if scores is None or value is None:
        return None
    made = replace(scores, value=value, result=product)
    made = replace(made, members=(*made.members, softmax, product))
    return _checked(_grouped(_shown(made)), shape)


def _chain(node: Node) -> Iterator[Node]:
    """A node, and those that it is a reshaped or cast form of."""
    yield node
    while _is_reshape(node) or is_float_cast(node):
        node = operand(node)
        yield node


def _solely_behind(node: Node, shape: list[Size]) -> Node | None:
    """The last node of a chain that nothing else reads, or None.

    All of it are matrices of queries and keys of one shape.
    """
    chain = [*_chain(node)]
    for n in chain:
        if len(n.users) != 1 or not tensors_of(n) or sizes_of(n)[-2:] != shape:
            return None
    return chain[-1]


def _is_reshape(node: Node) -> bool:
    return node.op == "call_function" and short_name(node) in RESHAPES


SCALES = {aten.mul.Tensor: 1, aten.mul.Scalar: 1, aten.div.Tensor: -1, aten.div.Scalar: -1}
"""Operators that scale by a number, with the power of the number."""


def _scores(node: Node, shape: list[Size]) -> Attention | None:
    """The queries, keys, scale and mask of scores, or None."""
    members: list[Node] = []
    mask: Mask | None = None
    scale = 1.0
    dtypes: set[torch.dtype] = set()
    while True:
        found = _solely_behind(node, shape)
        if found is None or found.op != "call_function" or found.kwargs:
            return None
        dtypes.update(tensor_of(n).dtype for n in _chain(node))
        node, target = found, found.target
        given: Any = node.args
        members.append(node)
        if target is aten.bmm.default:
            break
        if target in SCALES and isinstance(given[1], int | float) and given[1] > 0:
            scale *= float(given[1]) ** SCALES[target]
            node = given[0]
        elif target is aten.add.Tensor and mask is None and scale == 1:
            mask, node = _bias(*given)
        elif mask is None and (masked := masked_by(target, given, scale, dtypes)) is not None:
            mask, node = masked
        else:
            return None
        if not isinstance(node, Node):
            return None
    query, key = _matrices(operand(node, 0)), _matrices(operand(node, 1))
    if query is None or key is None:
        return None
    is_turned = True
    if short_name(key) in ("permute", "transpose") and _swaps_last(key):
        key, is_turned = operand(key), False
    return Attention(node, tuple(members), query, key, key, is_turned, mask, scale=scale)


def _bias(a: Any, b: Any) -> tuple[Mask | None, Any]:
    """The bias and the scores of a sum: scores are products, or multiples of them."""
    if not isinstance(a, Node) or not isinstance(b, Node):
        return None, None
    products = (aten.bmm.default, *SCALES)
    bias, scores = (b, a) if [*_chain(a)][-1].target in products else (a, b)
    return (bias_of(bias), scores) if tensors_of(bias) else (None, None)


def _matrices(node: Node) -> Node | None:
    """The batches of matrices that the operand of a product is a reshaped form of."""
    shape = [as_size(s) for s in tensor_of(node).shape[-2:]]
    size, walked, found = tensor_of(node).numel(), node, None
    while _is_reshape(walked):
        walked = operand(walked)
        tensor = tensor_of(walked)
        if [as_size(s) for s in tensor.shape[-2:]] != shape:
            break
        if tensor.dim() == 4 and tensor.numel() == size:
            found = walked
    return found or (node if tensor_of(node).dim() in (3, 4) else None)


def _swaps_last(node: Node) -> bool:
    """True if a node exchanges the last two axes of its operand and no others."""
    rank = tensor_of(node).dim()
    given: Any = node.args
    if short_name(node) == "transpose":
        return {given[1] % rank, given[2] % rank} == {rank - 2, rank - 1}
    order = [at % rank for at in given[1]]
    return order == [*range(rank - 2), rank - 1, rank - 2]


def _grouped(x: Attention) -> Attention:
    """Attention with the keys and values before each was repeated for several heads.

    Where a mean of values may be wanted, they have all heads.
    """
    pair = [_unrepeated(node) for node in (x.key, x.value)]
    has_mean = x.mask is not None and x.mask.averages and not x.has_zeros
    if x.is_key_turned or pair[0] is None or pair[1] is None or has_mean:
        return x
    return replace(x, key=pair[0], value=pair[1], is_grouped=True)


def _unrepeated(node: Node) -> Node | None:
    """The array whose heads were repeated: heads become heads·times; or None."""
    steps = [node]
    while short_name(steps[-1]) in ("view", "_unsafe_view", "reshape", "clone"):
        steps.append(operand(steps[-1]))
    expand = steps[-1]
    if short_name(expand) != "expand" or len(steps) == 1 or tensor_of(expand).dim() != 5:
        return None
    source = operand(expand)
    wide, narrow = tensor_of(expand).shape, tensor_of(source).shape
    is_repeated = as_size(narrow[2]).number == 1 and not as_size(narrow[2]).symbols
    same = [as_size(wide[i]) == as_size(narrow[i]) for i in (0, 1, 3, 4)]
    if short_name(source) != "unsqueeze" or not is_repeated or not all(same):
        return None
    merged = [as_size(n) for n in (wide[0], wide[1] * wide[2], wide[3], wide[4])]
    views = [x for x in steps[:-1] if short_name(x) != "clone"]
    if not views or [as_size(n) for n in tensor_of(views[-1]).shape] != merged:
        return None  # other heads meet
    return operand(source)


def _shown(x: Attention) -> Attention:
    """Attention up to the last node that is its own: views, and zeros for hidden queries."""
    result, members = x.result, x.members
    rank = tensor_of(x.query).dim()
    users = [*result.users]
    is_viewed = len(users) == 1 and short_name(users[0]) in ("view", "_unsafe_view")
    if is_viewed and tensor_of(users[0]).dim() == rank:
        result = users[0]
        users = [*result.users]
    has_zeros = x.mask is not None and len(users) == 1 and _hides_all(users[0], x, result)
    if has_zeros:
        result, members = users[0], (*members, users[0])
    return replace(x, result=result, members=members, has_zeros=has_zeros)


def _hides_all(node: Node, x: Attention, result: Node) -> bool:
    """True if a node puts zeros where a query sees no key, as PyTorch's operator does."""
    if node.target is not aten.where.self:
        return False
    given: Any = node.args
    test, chosen, other = given
    if not isinstance(test, Node) or test.target is not aten.any.dim or chosen is not result:
        return False
    if number_of(other) != 0:
        return False
    assert x.mask is not None
    seen: Any
    seen, *rest = test.args
    if tensor_of(x.mask.node).dtype is not torch.bool:  # the bias is not minus infinity
        if seen.target is not aten.ne.Scalar or seen.args[1] != -math.inf:
            return False
        seen = seen.args[0]
    last = (-1, tensor_of(test).dim() - 1)
    along: Any = rest[0] if rest else None
    keeps = len(rest) > 1 and rest[1] is True
    is_own = seen is x.mask.node and not x.mask.hides
    return is_own and along in last and keeps


def _checked(x: Attention, shape: list[Size]) -> Attention | None:
    """Attention that PyTorch's operator computes with the same result, or None."""
    tensors = [tensor_of(n) for n in (x.query, x.key, x.value)]
    if len({t.dtype for t in tensors}) != 1 or not tensors[0].is_floating_point():
        return None
    if len({t.dim() for t in tensors}) != 1 or tensors[0].dim() not in (3, 4):
        return None
    if x.mask is not None and x.mask.is_causal(shape):
        x = replace(x, mask=None, is_causal=True)
    if x.mask is not None and not x.mask.fits(x.query, shape):
        return None
    if x.mask is not None and x.mask.rounds and not x.has_zeros:
        return None
    made = x.fake()
    return x if made is not None and has_form_of(made, x.result) else None
