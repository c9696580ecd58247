"""Tail masks: reductions and contractions that must mask elements beyond the end of an axis.

A printer whose loops end exactly needs no masks. A printer that computes on whole tiles (Triton)
loads zeros beyond the end, and computes on them. A mask is needed only where the resulting number
is not neutral. Blocks whose maximum is taken are -inf there, if that leaves fewer masks: in softmax
-inf is neutral for the maximum, and its exponential for the sum.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from blockbuster_fusion.ir.combiner import MAX
from blockbuster_fusion.ir.expr import FUNCTIONS, Expr, fold
from blockbuster_fusion.nest.nest import (
    Body,
    Compute,
    Contract,
    Fill,
    Fold,
    Kernel,
    Load,
    Lookup,
    Span,
    Statement,
    Tile,
    written,
)
from blockbuster_fusion.nest.rewrite import rebuilt


def tail_masks(kernel: Kernel) -> Kernel:
    """Masks the tail of reductions and contractions only where it is not neutral."""
    least = _with_least(kernel)
    made = [_masked(x) for x in ((kernel,) if least is kernel else (kernel, least))]
    return min(made, key=_masks)


def _with_least(kernel: Kernel) -> Kernel:
    """The kernel with -inf beyond the ends of blocks whose maximum is taken."""
    folds = (s for s in kernel.statements if isinstance(s, Fold) and s.combiner is MAX)
    largest = {s.operand for s in folds}
    found = {
        s
        for s in kernel.statements
        if isinstance(s, Load) and s.tile in largest and s.source.buffer.dtype.is_float
    }

    def rewrite(body: Body) -> Body:
        return tuple(replace(s, beyond=-math.inf) if s in found else s for s in body)

    return replace(kernel, body=rebuilt(kernel.body, rewrite)) if found else kernel


def _masks(kernel: Kernel) -> int:
    """The number of operands that a kernel masks."""
    folds = sum(isinstance(s, Fold) and s.tail_masked for s in kernel.statements)
    products = (s for s in kernel.statements if isinstance(s, Contract))
    return folds + sum(sum(s.tail_masked) for s in products)


def _masked(kernel: Kernel) -> Kernel:
    """The kernel with the masks that it needs."""
    beyond = _Beyond(_above_least(kernel))
    for statement in kernel.statements:
        beyond.visit(statement)

    def rewrite(body: Body) -> Body:
        return tuple(_with_mask(s, beyond) for s in body)

    return replace(kernel, body=rebuilt(kernel.body, rewrite))


def _above_least(kernel: Kernel) -> set[Tile]:
    """The tiles that never have -inf: bounded by constants, or the largest of such and others."""
    writers: dict[Tile, list[Statement]] = {}
    for statement in kernel.statements:
        if (tile := written(statement)) is not None:
            writers.setdefault(tile, []).append(statement)
    found = set(writers)
    while True:
        kept = {tile for tile in found if all(_is_above(s, found) for s in writers[tile])}
        if kept == found:
            return kept
        found = kept


def _is_above(statement: Statement, above: set[Tile]) -> bool:
    """True if a statement never writes -inf, given the tiles that do not have it."""
    if isinstance(statement, Fill):
        return statement.value > -math.inf
    if not isinstance(statement, Compute):
        return False
    operands = statement.operands

    def step(node: Expr, inner: list[bool]) -> bool:
        match node.op:
            case "arg":
                return operands[node.index] in above
            case "const":
                return float(node.number) > -math.inf
            case "maximum":
                return any(inner)
            case "minimum":
                return all(inner)
        return False

    return fold(statement.expr, step)


def _with_mask(statement: Statement, beyond: "_Beyond") -> Statement:
    if isinstance(statement, Fold):
        found = beyond.of(statement.operand, statement.span)
        return replace(statement, tail_masked=found != statement.combiner.identity[0])
    if isinstance(statement, Contract):
        sides = (statement.left, statement.right)
        left, right = (beyond.of(side, statement.span) for side in sides)
        return replace(
            statement,
            tail_masked=(left is None, right is None) if 0.0 in (left, right) else (True, True),
        )
    return statement


class _Beyond:
    """The number that each tile has beyond the end of each axis, or None if it is not known.

    `above` are the tiles that never have -inf.
    """

    def __init__(self, above: Collection[Tile]) -> None:
        self.above = above
        self.known: dict[tuple[Tile, Span], float | None] = {}

    def of(self, tile: Tile, span: Span) -> float | None:
        return self.known.get((tile, span))

    def visit(self, statement: Statement) -> None:
        match statement:
            case Load():
                self.set(statement.tile, dict.fromkeys(statement.tile.spans, statement.beyond))
            case Lookup():
                self.set(statement.tile, dict.fromkeys(statement.tile.spans, 0.0))
            case Fill():
                self.set(statement.tile, dict.fromkeys(statement.tile.spans, statement.value))
            case Compute():
                found = {
                    span: _constant(statement.expr, statement.operands, span, self)
                    for span in statement.tile.spans
                }
                self.set(statement.tile, found)
            case Fold():
                # elements within the other axis are reduced as well: only a 0 stays the same
                spans = statement.tile.spans
                kept = {s: self.of(statement.operand, s) for s in spans}
                self.set(statement.tile, {s: v if v == 0 else None for s, v in kept.items()})
            case Contract():
                for span in statement.tile.spans:
                    sides = [t for t in (statement.left, statement.right) if span in t.spans]
                    zero = any(self.of(side, span) == 0.0 for side in sides)
                    if not zero or self.of(statement.tile, span) != 0.0:
                        self.known[statement.tile, span] = None

    def set(self, tile: Tile, found: dict[Span, float | None]) -> None:
        for span, value in found.items():
            if (tile, span) in self.known and self.known[tile, span] != value:
                value = None  # an accumulator that had another value before
            self.known[tile, span] = value


def _constant(expr: Expr, operands: Sequence[Tile], span: Span, beyond: _Beyond) -> float | None:
    """The value of an expression beyond the end of an axis, if it is a constant."""

    def is_kept(shift: Expr) -> bool:
        """True if -inf less a number of all the row is -inf, or NaN where the number is."""
        shifts = operands[shift.index] if shift.op == "arg" else None
        return shifts is not None and shifts in beyond.above and span not in shifts.spans

    def step(node: Expr, inner: list[float | None]) -> float | None:
        if node.op == "arg":
            return beyond.of(operands[node.index], span)
        if node.op == "const":
            return float(node.number)
        if node.op == "cast":
            return inner[0]
        if node.op == "sub" and inner[0] == -math.inf and is_kept(node.args[1]):
            return -math.inf
        if node.op not in FUNCTIONS or None in inner:
            return None
        with np.errstate(all="ignore"):
            found = float(FUNCTIONS[node.op].numpy(*inner))
        return found if np.isfinite(found) else None

    return fold(expr, step)
