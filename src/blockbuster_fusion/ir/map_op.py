"""Rewriting the parts of an operator: its dims, axes, types, expressions and body."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from blockbuster_fusion.ir.axis import Axis, Dim
from blockbuster_fusion.ir.combiner import Combiner, Mode, Reduced
from blockbuster_fusion.ir.expr import Expr
from blockbuster_fusion.ir.ops import (
    BlockReduce,
    Dot,
    Elementwise,
    Input,
    Iota,
    Join,
    Map,
    Misc,
    Op,
    Pick,
    Reduce,
    Rename,
    Scan,
    Take,
)
from blockbuster_fusion.ir.types import Type

if TYPE_CHECKING:
    from blockbuster_fusion.ir.graph import Graph

T = TypeVar("T")


def _same(part: T) -> T:
    return part


def map_op(
    op: Op,
    *,
    dim: Callable[[Dim], Dim] = _same,
    axis: Callable[[Axis], Axis] = _same,
    kind: Callable[[Type], Type] = _same,
    expr: Callable[[Expr], Expr] = _same,
    body: Callable[["Graph"], "Graph"] = _same,
) -> Op:
    """`op` with each of its parts replaced; `op` itself if no part changes."""
    made: Op
    match op:
        case Input():
            made = Input(op.name, kind(op.type))
        case Elementwise():
            made = Elementwise(expr(op.expr))
        case BlockReduce() | Scan() | Reduce():
            made = type(op)(dim(op.dim), _map_combiner(op.combiner, expr))
        case Dot():
            made = Dot(dim(op.dim), op.rounds_to)
        case Join() | Iota():
            made = type(op)(dim(op.dim))
        case Pick():
            made = Pick(dim(op.dim), op.index)
        case Take():
            made = Take(axis(op.axis))
        case Rename():
            made = Rename(axis(op.old), axis(op.new))
        case Map():
            modes = tuple(_map_mode(mode, expr) for mode in op.modes)
            made = Map(dim(op.dim), body(op.body), op.iterated, modes, op.first)
        case Misc():
            layouts = tuple(tuple(axis(a) for a in layout) for layout in op.layouts)
            made = Misc(op.namespace, op.name, op.attributes, tuple(map(kind, op.results)), layouts)
    return op if made == op else made


def _map_combiner(combiner: Combiner, expr: Callable[[Expr], Expr]) -> Combiner:
    combine = tuple(map(expr, combiner.combine))
    if combine == combiner.combine:
        return combiner
    return Combiner(combiner.name, combiner.identity, combine)


def _map_mode(mode: Mode, expr: Callable[[Expr], Expr]) -> Mode:
    return mode and Reduced(_map_combiner(mode.combiner, expr), mode.component)
