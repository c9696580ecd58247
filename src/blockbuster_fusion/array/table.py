"""The lookup table: the expansion of each array operator into primitives.

An entry is a function of the recorder, the operands and the attributes; each primitive that it
records becomes one map in the block program. To add an operator, register one function:

    @operator("hardswish")
    def hardswish(p: Primitives, x: Ref) -> Ref:
        return p.elementwise(lambda t: t * call("minimum", call("maximum", t + 3, 0), 6) / 6, x)

While tracing, `ops.registered("hardswish", x)` records it.

As in the paper, entries are written for infinite precision: numerical safety is a later pass.
"""

import functools
from collections.abc import Callable, Sequence
from operator import mul
from typing import Any

from blockbuster_fusion.array.primitives import Primitives, Ref
from blockbuster_fusion.array.program import ArrayType
from blockbuster_fusion.errors import UnknownOperator
from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.ir.combiner import Combiner
from blockbuster_fusion.ir.expr import Expr, arg, call, const, size
from blockbuster_fusion.ir.ops import Plain
from blockbuster_fusion.ir.types import DType

Expansion = Callable[..., Ref]

TABLE: dict[str, Expansion] = {}


def operator(name: str) -> Callable[[Expansion], Expansion]:
    """Registers the decorated function as the table's entry for `name`."""

    def register(entry: Expansion) -> Expansion:
        TABLE[name] = entry
        return entry

    return register


def expand(p: Primitives, name: str, operands: list[Ref], attributes: dict[str, Any]) -> Ref:
    """The primitives of one operator, recorded in `p`."""
    if name not in TABLE:
        remedy = "register it with array.table.operator, or call it through ops.misc"
        raise UnknownOperator(name=name, remedy=remedy)
    return TABLE[name](p, *operands, **attributes)


def result_type(name: str, operands: Sequence[ArrayType], attributes: dict[str, Any]) -> ArrayType:
    """The type of an operator's result: that of its expansion for inputs of these types."""
    p = Primitives()
    refs = [p.given(str(i), kind) for i, kind in enumerate(operands)]
    return expand(p, name, refs, attributes).type


@operator("elementwise")
def _elementwise(p: Primitives, *operands: Ref, expr: Expr) -> Ref:
    return p.elementwise(expr, *operands)


@operator("matmul")
def _matmul(p: Primitives, x: Ref, y: Ref, *, axis: Axis, rounds_to: str | None = None) -> Ref:
    return p.contract(x, y, axis, None if rounds_to is None else DType(rounds_to))


@operator("reduce")
def _reduce(p: Primitives, x: Ref, *, axis: Axis, combiner: Combiner) -> Ref:
    return p.reduce(combiner, x, axis)


@operator("scan")
def _scan(p: Primitives, x: Ref, *, axis: Axis, combiner: Combiner) -> Ref:
    return p.scan(combiner, x, axis)


@operator("mean")
def _mean(p: Primitives, x: Ref, *, axes: tuple[Axis, ...]) -> Ref:
    for axis in axes:
        x = p.sum(x, axis)
    count = functools.reduce(mul, [size(axis) for axis in axes] or [const(1)])
    return p.elementwise(arg(0) / count, x)


@operator("softmax")
def _softmax(p: Primitives, x: Ref, *, axis: Axis) -> Ref:
    e = p.unary("exp", x)
    return p.mul(e, p.elementwise(1 / arg(0), p.sum(e, axis)))


@operator("log_softmax")
def _log_softmax(p: Primitives, x: Ref, *, axis: Axis) -> Ref:
    total = p.sum(p.unary("exp", x), axis)
    return p.add(x, p.elementwise(-call("log", arg(0)), total))


@operator("rmsnorm")
def _rmsnorm(p: Primitives, x: Ref, *weight: Ref, axis: Axis, eps: float) -> Ref:
    squares = p.sum(p.elementwise(arg(0) ** 2, x), axis)
    scaled = p.mul(x, p.elementwise((arg(0) / size(axis) + eps) ** -0.5, squares))
    return p.mul(scaled, weight[0]) if weight else scaled


@operator("layernorm")
def _layernorm(
    p: Primitives, x: Ref, *parameters: Ref, axis: Axis, eps: float, weight: bool, bias: bool
) -> Ref:
    minus_mean = p.elementwise(-arg(0) / size(axis), p.sum(x, axis))
    shifted = p.add(x, minus_mean)
    squares = p.sum(p.elementwise(arg(0) ** 2, shifted), axis)
    made = p.mul(shifted, p.elementwise((arg(0) / size(axis) + eps) ** -0.5, squares))
    if weight:
        made = p.mul(made, parameters[0])
    return p.add(made, parameters[-1]) if bias else made


@operator("take")
def _take(p: Primitives, table: Ref, index: Ref, *, axis: Axis) -> Ref:
    return p.take(table, index, axis)


@operator("index")
def _index(p: Primitives, *, axis: Axis) -> Ref:
    return p.positions(axis)


@operator("rename")
def _rename(p: Primitives, x: Ref, *, old: Axis, new: Axis) -> Ref:
    return p.rename(x, old, new)


@operator("misc")
def _misc(
    p: Primitives,
    *operands: Ref,
    namespace: str,
    name: str,
    arguments: tuple[tuple[str, Plain], ...],
    layouts: tuple[tuple[Axis, ...], ...],
    result: ArrayType,
) -> Ref:
    return p.external(namespace, name, arguments, layouts, operands, result)
