"""Splits a sum of elements together with sums of powers of their distances from a center.

A norm sums its elements, and then the squares of their distances from the mean. Split one after the
other, these are two kernels, as the second one needs the mean. But the sums about the mean c of a
share lead to those about any other center. For a share of n elements u with R = sum of (u - c) and
S = sum of (u - c)², and e = c + d:

    sum of (u + d) = R + n·e
    sum of (u + d)² = S + e·(2·R + n·e)

So one kernel gives the sum, n, R and S for each share. Its program reads its share twice. The
squares are about a center that is near, so that nothing cancels (Chan, Golub and LeVeque, 1979). R
is the rounding error of c, and counts where the means of shares differ by far more than it.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from blockbuster_fusion.ir.combiner import ADD
from blockbuster_fusion.ir.expr import Expr, arg, call, const, size
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.analysis.power_sums import PowerSums
from blockbuster_fusion.nest.lower_combiner import combine, folded
from blockbuster_fusion.nest.nest import (
    Body,
    Compute,
    Fill,
    Fold,
    For,
    Kernel,
    Load,
    NestStep,
    Positions,
    Statement,
    Store,
    Tile,
)
from blockbuster_fusion.nest.passes.remove_dead_code import remove_dead_code
from blockbuster_fusion.nest.rewrite import FreshNames, Renaming
from blockbuster_fusion.nest.shares import Shares, combining, without_results

SQUARE = arg(0) ** 2
MEAN = arg(0) / call("maximum", arg(1), 1.0)
"""The mean of elements by their sum and number; 0 if there are none."""
MOVED = {
    1: arg(2) + arg(1) * arg(0),
    2: arg(3) + arg(0) * (2.0 * arg(2) + arg(1) * arg(0)),
}
"""The sum of a power about another center by e, n, R and S.

No square of e is computed, which may be too large: an empty share adds nothing.
"""


def power_sums_split(
    kernel: Kernel, loops: Sequence[PowerSums], parts: int, name: str
) -> tuple[list[NestStep], Kernel]:
    """The kernel of the shares of some loops, which gets a name, and the one that combines them.

    The first loop sums elements, and the others powers of distances (analysis/power_sums.py).
    """
    split = _SumsSplit(kernel, loops, parts)
    return [remove_dead_code(split.shared(name))], remove_dead_code(split.combined())


class _SumsSplit:
    """The split of one kernel into two."""

    def __init__(self, kernel: Kernel, loops: Sequence[PowerSums], parts: int) -> None:
        self.kernel, self.names = kernel, FreshNames(kernel)
        self.first, *self.others = loops
        (self.sum,) = self.first.sums
        self.total = self.sum.tile
        self.count, self.residues, self.squares = (self.names.like(self.total) for _ in range(3))
        self.shares = Shares.of(kernel, self.first.loop, parts)
        stored = (self.total, self.count, self.residues, self.squares)
        self.buffers = {tile: self.shares.buffer(tile) for tile in stored}

    # ---------------------------------------------------------------- the shares

    def shared(self, name: str) -> Kernel:
        """The kernel of the shares."""
        share, counted = self.shares.share, Tile(self.names.numbered("t"), (), self.total.dtype)
        mean = self.names.like(self.total)
        body = (
            *without_results(self.kernel.body[: self.first.at]),
            Fill(counted, 0.0),
            self.summed(counted),
            Fill(self.count, 0.0),
            Compute(self.count, arg(0) + arg(1), (self.count, counted)),
            Compute(mean, MEAN, (self.total, self.count)),
            Fill(self.residues, 0.0),
            Fill(self.squares, 0.0),
            self.powers_summed(mean),
            *(Store(self.shares.access(b, t, share.index), t) for t, b in self.buffers.items()),
        )
        return Kernel(name, (*self.kernel.grid, share.index), body)

    def summed(self, counted: Tile) -> For:
        """The loop that sums the elements of a share, and counts those of a row."""
        loop, names = self.first.loop, self.names
        (span,) = (fold.span for fold in self.sum.folds if fold.span.at is loop.index)
        others = [fold.span.dim.axis for fold in self.sum.folds if fold.span != span]
        each: Expr = math.prod(map(size, others), start=const(1.0))
        places = Tile(names.numbered("t"), (span,), DType.int64)
        counts = Tile(names.numbered("t"), (span,), self.total.dtype)
        count = Tile(names.numbered("t"), (), self.total.dtype)
        counting = (
            Positions(places, span),
            Compute(counts, call("where", arg(0) < size(span.dim.axis), each, 0.0), (places,)),
            Fold(count, counts, span, ADD, tail_masked=False),
            Compute(counted, ADD.combine[0], (counted, count)),
        )
        gathered = (*loop.gathered, (ADD, (counted,)))
        body = (*loop.body, *counting)
        return replace(loop, body=body, share=self.shares.share, gathered=gathered)

    def powers_summed(self, mean: Tile) -> For:
        """The loop that sums powers of the distances from the mean of a share."""
        loop, names = self.first.loop, self.names
        renaming = Renaming({}, {}, lambda _: names.numbered("t"))
        body = [*renaming.body(tuple(s for s in loop.body if self.makes_elements(s)))]
        element = renaming.tile(self.sum.folds[0].operand)
        distance, square = names.like(element), names.like(element)
        body.append(Compute(distance, arg(0) - arg(1), (element, mean)))
        body.append(Compute(square, SQUARE, (distance,)))
        for total, term in ((self.residues, distance), (self.squares, square)):
            operand = term
            for fold in self.sum.folds:
                made = names.like(fold.tile)
                body.append(Fold(made, operand, fold.span, ADD))
                operand = made
            body.append(Compute(total, ADD.combine[0], (total, operand)))
        gathered = ((ADD, (self.residues,)), (ADD, (self.squares,)))
        return replace(loop, body=tuple(body), share=self.shares.share, gathered=gathered)

    def makes_elements(self, statement: Statement) -> bool:
        """True for a load or a computation before the sum."""
        is_sum = isinstance(statement, Compute) and statement.tile is self.total
        return isinstance(statement, Load | Compute) and not is_sum

    # ------------------------------------------------------------ the combination

    def combined(self) -> Kernel:
        """The kernel that combines the shares."""
        made = {found.at: self.moved(found) for found in self.others}
        gathered = self.first.loop.gathered
        made[self.first.at] = combining(self.shares, gathered, self.buffers, self.names)
        body: Body = tuple(made.get(at, s) for at, s in enumerate(self.kernel.body))
        return replace(self.kernel, body=body)

    def moved(self, found: PowerSums) -> For:
        """The loop that moves the sums of each share to another center, and adds them up."""
        names, shares = self.names, self.shares
        blocks = {tile: shares.block(tile, names) for tile in self.buffers}
        total, *others = blocks.values()
        inner: list[Statement] = [
            Load(block, shares.access(self.buffers[tile], tile, shares.all))
            for tile, block in blocks.items()
        ]
        mean = names.like(total)
        inner.append(Compute(mean, MEAN, (total, blocks[self.count])))
        for own in found.sums:
            distance, moved = names.like(mean), names.like(mean)
            inner.append(Compute(distance, own.shifted, (mean, *own.operands)))
            operands = (distance, *others)[: 2 + own.power]
            inner.append(Compute(moved, MOVED[own.power], operands))
            coming: list[Tile] = [moved]
            if shares.span:
                coming, folds = folded(ADD, coming, shares.span[0], names)
                inner += folds
            inner += combine(ADD, coming, names, into=(own.tile,)).updates
        return For(shares.all, tuple(inner), gathered=found.loop.gathered)
