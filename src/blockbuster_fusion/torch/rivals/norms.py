"""Recognises RMSNorm and LayerNorm that a model writes out.

    x * rsqrt(mean(x * x) + eps) * weight
    (x - mean) / sqrt(variance + eps) * weight + bias

The statistic of a row is the mean of squares or the variance, along the last axes. From it a walk
leads over `+ eps` and the inverse root to the multiplication, then over casts, weight and bias. The
longest way that PyTorch's operator computes, `_fused_rms_norm` or `native_layer_norm`, is the norm.

**It is at least as exact.** For 16-bit arrays PyTorch's operator computes in float32, and rounds
once, at the end. What is written out may round in between: Llama casts before it multiplies by the
weight. A norm counts only if

- casts before the statistic are exact: to a wider float;
- no step is computed in a wider float than PyTorch's operator computes in;
- operands and result have one dtype, and the result has the shape and strides that it had;
- nothing else reads a value between `x` and the result.

In float32 and float64 both compute the same, in the same precision. Only `x / sqrt(s)` rounds once
less than `x * rsqrt(s)`: half a unit in the last place, and sums of squares are off by more.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from operator import getitem
from typing import Any

import torch
from torch.fx import Node

from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.capture.fakes import fake_mode_of
from blockbuster_fusion.torch.capture.nodes import (
    FLOATS,
    is_float,
    is_float_cast,
    operand,
    tensor_of,
    tensors_of,
)
from blockbuster_fusion.torch.capture.symbolic import as_size, sizes_of
from blockbuster_fusion.torch.rivals.composites import Calling, Composite, first_of, has_form_of

aten = torch.ops.aten
ADDITIONS = (aten.add.Tensor, aten.add.Scalar)


@dataclass(frozen=True)
class Norm(Composite):
    """The operands of a norm along the last axes, and the operators of it."""

    x: Node
    shape: tuple[int, ...]
    """The lengths of the axes along which it normalises."""
    eps: float
    weight: Node | None = None
    bias: Node | None = None
    is_centred: bool = False
    """True for a LayerNorm, which takes the mean off."""

    @property
    def operator(self) -> torch._ops.OpOverload:
        return aten.native_layer_norm.default if self.is_centred else aten._fused_rms_norm.default

    @property
    def operands(self) -> tuple[Node | None, ...]:
        return self.x, self.weight, self.bias

    @property
    def form(self) -> tuple[object, ...]:
        return self.shape, self.eps

    def computed(self, calling: Calling, *operands: Any) -> Any:
        x, weight, bias = operands
        parameters = (weight, bias) if self.is_centred else (weight,)
        made = calling(self.operator, (x, [*self.shape], *parameters, self.eps))
        return first_of(calling, made)


def found_norms(analysis: Analysis, among: Collection[Node] | None = None) -> list[Norm]:
    """All norms of a graph that are written out, and that PyTorch's operators can compute.

    With `among`, those whose statistic is among some operators.
    """
    nodes = analysis.nodes if among is None else [n for n in analysis.nodes if n in among]
    made = (_norm_at(n, analysis) for n in nodes if _shape_along(n) is not None)
    return [x for x in made if x is not None]


def _norm_at(statistic: Node, analysis: Analysis) -> Norm | None:
    """The longest norm with a statistic of rows, or None."""
    for start in _starts(statistic):
        scaled = _scaled(start)
        if scaled is None:
            continue
        for way in reversed([*_ends(scaled)]):
            found = _checked(way, analysis)
            if found is not None:
                return found
    return None


# ---------------------------------------------------------------- single steps


def _is_call(node: object, *targets: object) -> bool:
    """True if a node calls one of some operators, without options."""
    return isinstance(node, Node) and node.target in targets and not node.kwargs


def _unwidened(node: Node) -> list[Node]:
    """A node, and those before it of which it is an exact copy in a wider float."""
    found = [node]
    while is_float_cast(found[-1]):
        before = operand(found[-1])
        if not _is_wider(tensor_of(found[-1]).dtype, tensor_of(before).dtype):
            break
        found.append(before)
    return found


def _is_wider(a: torch.dtype, b: torch.dtype) -> bool:
    """True if every number of the dtype `b` is one of `a`."""
    return a == b or a.itemsize > b.itemsize


def _narrowest(node: object) -> Node | None:
    """The first node of which a node is an exact copy in a wider float; None if it is no float."""
    return _unwidened(node)[-1] if isinstance(node, Node) and is_float(node) else None


def _only_user(node: Node) -> Node | None:
    """The only operator that reads a node, or None."""
    users = [*node.users]
    return users[0] if len(users) == 1 and users[0].op == "call_function" else None


def _axes(node: Node) -> Any:
    """The axes along which a node reduces, which stay with length 1, or None."""
    given: Any = node.args
    if _is_call(node, aten.mean.dim) and len(given) == 3 and given[2] is True:
        return given[1]
    if node.target not in (aten.var.correction, aten.var_mean.correction) or len(given) != 2:
        return None
    options = node.kwargs
    is_population = options.get("correction") == 0 and options.get("keepdim") is True
    return given[1] if is_population and len(options) == 2 else None


def _shape_along(node: Node) -> tuple[int, ...] | None:
    """The lengths of the last axes along which a node reduces floats, or None."""
    axes = _axes(node)
    if not isinstance(axes, list | tuple) or not axes or not is_float(node.args[0]):
        return None
    shape = tensor_of(operand(node)).shape
    rank, count = len(shape), len(axes)
    if sorted(at % rank for at in axes) != [*range(rank - count, rank)]:
        return None
    last = [*shape[-count:]]
    return tuple(last) if all(type(n) is int for n in last) else None


def _square_of(node: Node) -> Node | None:
    """The node that another is the square of, or None."""
    is_power = _is_power(node, 2)
    is_product = _is_call(node, aten.mul.Tensor) and node.args[0] is node.args[1]
    return operand(node) if is_power or is_product else None


# ---------------------------------------------------------------- the way to the scale


@dataclass(frozen=True)
class _Way:
    """The steps from a statistic so far; the last is the result."""

    members: tuple[Node, ...]
    x: Node
    """The array that is normalised, as the statistic reads it."""
    shape: tuple[int, ...]
    is_centred: bool
    eps: float = 0.0
    weight: Node | None = None
    bias: Node | None = None

    @property
    def result(self) -> Node:
        return self.members[-1]

    def then(self, *nodes: Node, **known: Any) -> "_Way":
        return replace(self, members=(*self.members, *nodes), **known)


def _starts(statistic: Node) -> Iterator[_Way]:
    """The ways that begin with a statistic: of what is centred, and of what is not."""
    shape, read = _shape_along(statistic), operand(statistic)
    assert shape is not None
    if statistic.target is aten.var.correction:
        yield _Way((statistic,), read, shape, is_centred=True)
    elif statistic.target is aten.var_mean.correction:
        variances = [n for n in statistic.users if n.args[1:] == (0,)]
        if len(variances) == 1:
            yield _Way((statistic, variances[0]), read, shape, is_centred=True)
    else:
        x = _square_of(read)
        if x is None or not is_float(x):
            return
        centred = _centred(x, shape)
        if centred is not None:
            inner, *steps = centred
            yield _Way((*steps, read, statistic), inner, shape, is_centred=True)
        yield _Way((read, statistic), x, shape, is_centred=False)


def _centred(node: Node, shape: tuple[int, ...]) -> list[Node] | None:
    """The array that a node takes the mean off, the mean and the difference; or None."""
    if not _is_call(node, aten.sub.Tensor) or len(node.args) != 2:
        return None
    x, mean = node.args
    if not isinstance(x, Node) or not isinstance(mean, Node) or not is_float(x):
        return None
    steps = [mean]
    if mean.target is getitem and mean.args[1] == 1:
        steps.insert(0, operand(mean))
        is_mean = steps[0].target is aten.var_mean.correction
    else:
        is_mean = mean.target is aten.mean.dim
    if not is_mean or _shape_along(steps[0]) != shape:
        return None
    same = _narrowest(steps[0].args[0]) is _narrowest(x)
    return [x, *steps, node] if same and _rank(x) == _rank(operand(steps[0])) else None


def _rank(node: Node) -> int:
    return tensor_of(node).dim()


def _past_casts(way: _Way) -> _Way:
    """The way over the casts of floats that come next."""
    while (node := _only_user(way.result)) is not None and is_float_cast(node):
        way = way.then(node)
    return way


def _scaled(way: _Way) -> _Way | None:
    """The way up to `x` times the inverse root of the statistic, or None."""
    way = _past_casts(way)
    node = _only_user(way.result)
    if node is not None and _is_call(node, *ADDITIONS) and len(node.args) == 2:
        eps: Any = node.args[1]
        if node.args[0] is not way.result or type(eps) not in (int, float):
            return None
        way = _past_casts(way.then(node, eps=float(eps)))
        node = _only_user(way.result)
    if node is None:
        return None
    if _is_call(node, aten.rsqrt.default) or _is_power(node, -0.5):
        return _multiplied(way.then(node), inverse=True)
    if not _is_call(node, aten.sqrt.default) and not _is_power(node, 0.5):
        return None
    way = _past_casts(way.then(node))
    node = _only_user(way.result)
    if node is None or not _is_call(node, aten.reciprocal.default):
        return _multiplied(way, inverse=False)
    way = way.then(node)
    one = _only_user(node)
    if one is not None and _is_call(one, aten.mul.Tensor) and one.args == (node, 1):
        way = way.then(one)  # 1 / t is captured so
    return _multiplied(way, inverse=True)


def _is_power(node: Node, power: float) -> bool:
    return _is_call(node, aten.pow.Tensor_Scalar) and bool(node.args[1] == power)


def _multiplied(way: _Way, *, inverse: bool) -> _Way | None:
    """The way up to `x` times a scale, or divided by a root; weights may be in `x` already."""
    way = _past_casts(way)
    scale = way.result
    node = _only_user(scale)
    if node is None or not _is_call(node, aten.mul.Tensor if inverse else aten.div.Tensor):
        return None
    others = [n for n in node.args if n is not scale]
    if len(node.args) != 2 or len(others) != 1 or (not inverse and node.args[1] is not scale):
        return None
    (x,) = others
    if not isinstance(x, Node) or not is_float(x):
        return None
    steps = _numerator(way, x)
    if steps is not None:
        return way.then(*steps, node)
    for at in (0, 1) if _is_call(x, aten.mul.Tensor) else ():
        inner, weight = x.args[at], x.args[1 - at]
        steps = _numerator(way, inner) if isinstance(inner, Node) else None
        if steps is not None and _is_parameter(weight, way):
            return way.then(*steps, x, node, weight=weight)
    return None


def _numerator(way: _Way, node: Node) -> list[Node] | None:
    """The steps from what is normalised to a node that is it, or it without its mean; or None."""
    if not is_float(node) or _rank(node) != _rank(way.x):
        return None
    if not way.is_centred:
        return [] if _narrowest(node) is _narrowest(way.x) else None
    centred = next((c for n in _unwidened(node) if (c := _centred(n, way.shape))), None)
    if centred is None or _narrowest(centred[0]) is not _narrowest(way.x):
        return None
    return [*centred[1:], *reversed(_unwidened(node)[: _unwidened(node).index(centred[-1])])]


def _is_parameter(node: object, way: _Way) -> bool:
    """True if a node may be the weight or the bias: an array of the shape of a row."""
    if not isinstance(node, Node) or not is_float(node):
        return False
    return sizes_of(node) == [*map(as_size, way.shape)]


# ---------------------------------------------------------------- the end of the way


def _ends(way: _Way) -> Iterator[_Way]:
    """A way, and all longer ones: with casts, the weight and the bias."""
    yield way
    while (node := _only_user(way.result)) is not None:
        given = [n for n in node.args if n is not way.result]
        parameter = given[0] if len(node.args) == 2 and len(given) == 1 else None
        fits = parameter is not None and _is_parameter(parameter, way)
        if is_float_cast(node):
            way = way.then(node)
        elif fits and way.weight is None and _is_call(node, aten.mul.Tensor):
            way = way.then(node, weight=parameter)
        elif fits and _takes_bias(way) and _is_call(node, aten.add.Tensor):
            way = way.then(node, bias=parameter)
        else:
            return
        yield way


def _takes_bias(way: _Way) -> bool:
    return way.is_centred and way.weight is not None and way.bias is None


def _checked(way: _Way, analysis: Analysis) -> Norm | None:
    """The norm of a way that PyTorch's operator computes as exactly, or None."""
    dtype = tensor_of(way.result).dtype
    steps = dict.fromkeys(way.members)
    inner = torch.float32 if dtype.itemsize == 2 else dtype
    floats = [t for n in steps for t in tensors_of(n)]
    if any(t.dtype not in FLOATS or t.dtype.itemsize > inner.itemsize for t in floats):
        return None
    if any(user not in steps for n in steps if n is not way.result for user in n.users):
        return None
    x, weight, bias = (_of_dtype(n, dtype) for n in (way.x, way.weight, way.bias))
    lacks = (weight is None) != (way.weight is None) or (bias is None) != (way.bias is None)
    if x is None or x in steps or lacks:
        return None
    skipped = [n for n in _unwidened(way.x) if n is not x and {*n.users} <= steps.keys()]
    parts = (n for n in (*skipped, *steps) if n.target is not getitem)
    members = tuple(n for n in parts if n not in analysis.recomputed)
    made = Norm(way.result, members, x, way.shape, way.eps, weight, bias, is_centred=way.is_centred)
    return made if _has_same_form(made) else None


def _of_dtype(node: Node | None, dtype: torch.dtype) -> Node | None:
    """A node, or one that it is an exact copy of, with a dtype; or None."""
    found = [] if node is None else [n for n in _unwidened(node) if tensor_of(n).dtype == dtype]
    return found[0] if found else None


def _has_same_form(x: Norm) -> bool:
    """True if PyTorch's operator gives what the result was: shape, dtype and strides.

    It does on every device if its operand is contiguous.
    """
    made, shown = x.fake(), tensor_of(x.result)
    if made is None or not has_form_of(made, x.result):
        return False
    with fake_mode_of(shown):
        is_contiguous = tensor_of(x.x).is_contiguous()
    strides = [[*map(as_size, t.stride())] for t in (made, shown)]
    return bool(is_contiguous) and strides[0] == strides[1]
