"""Losses that PyTorch computes by kernels of their own: of each element, or their mean or sum."""

from collections.abc import Callable

from blockbuster_fusion.array.positional import PositionalBuilder
from blockbuster_fusion.array.records import Operand, PositionalArray
from blockbuster_fusion.ir.combiner import ADD
from blockbuster_fusion.ir.expr import Expr, call
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.torch.table.reductions import average
from blockbuster_fusion.torch.table.row import reduction

NONE, MEAN = 0, 1
"""Numbers that PyTorch has for the reduction of a loss; 2 is the sum."""


def _reduced(p: PositionalBuilder, each: PositionalArray, kind: int) -> PositionalArray:
    """The losses of the elements, their mean, or their sum."""
    at = range(len(each.sizes))
    if kind == NONE or not at:
        return each
    return average(p, each, at, keep=False) if kind == MEAN else p.reduce(ADD, each, at)


@reduction("mse_loss")
def _mse_loss(
    p: PositionalBuilder, x: PositionalArray, target: PositionalArray, kind: int = MEAN
) -> PositionalArray:
    return _reduced(p, p.elementwise(lambda a, b: (a - b) ** 2, x, target), kind)


def _by_distance(
    p: PositionalBuilder,
    x: PositionalArray,
    target: PositionalArray,
    kind: int,
    bound: float,
    near: Callable[[Expr], Expr],
    far: Callable[[Expr], Expr],
) -> PositionalArray:
    """One loss for distances from the target below a bound, another for those from there on."""

    def made(a: Expr, b: Expr) -> Expr:
        off = call("abs", a - b)
        return call("where", off < bound, near(off), far(off))

    return _reduced(p, p.elementwise(made, x, target), kind)


@reduction("smooth_l1_loss")
def _smooth_l1_loss(
    p: PositionalBuilder,
    x: PositionalArray,
    target: PositionalArray,
    kind: int = MEAN,
    beta: float = 1.0,
) -> PositionalArray:
    divisor = beta or 1.0  # no distance is below 0
    return _by_distance(
        p, x, target, kind, beta, lambda off: 0.5 * off**2 / divisor, lambda off: off - 0.5 * beta
    )


@reduction("huber_loss")
def _huber_loss(
    p: PositionalBuilder,
    x: PositionalArray,
    target: PositionalArray,
    kind: int = MEAN,
    delta: float = 1.0,
) -> PositionalArray:
    return _by_distance(
        p,
        x,
        target,
        kind,
        delta,
        lambda off: 0.5 * off**2,
        lambda off: delta * (off - 0.5 * delta),
    )


@reduction("binary_cross_entropy")
def _binary_cross_entropy(
    p: PositionalBuilder,
    x: PositionalArray,
    target: PositionalArray,
    weight: PositionalArray | None = None,
    kind: int = MEAN,
) -> PositionalArray:
    """Logarithms are at least -100, as PyTorch has them.

    PyTorch raises if an input is not between 0 and 1, so that kernels get only what is sure to be:
    a sigmoid, for one (torch/capture/operators.py).
    """

    def made(a: Expr, b: Expr) -> Expr:
        wrong = call("maximum", call("log1p", -a), -100.0)
        right = call("maximum", call("log", a), -100.0)
        return (b - 1) * wrong - b * right

    each = p.elementwise(made, x, target)
    if weight is not None:
        each = p.elementwise(lambda a, b: a * b, each, weight)
    return _reduced(p, each, kind)


@reduction("nll_loss_forward")
def _nll_loss_forward(
    p: PositionalBuilder,
    x: PositionalArray,
    target: PositionalArray,
    weight: PositionalArray | None,
    kind: int,
    ignored: Operand,
) -> tuple[PositionalArray, PositionalArray]:
    """The negative of each row at its target, and the sum of the weights of all targets."""
    at = len(x.sizes) - 1
    kept = p.elementwise(lambda t, i: call("ne", t, i), target, ignored, dtype=DType.bool_)
    place = p.elementwise(lambda c, t: call("where", c, t, 0), kept, target)
    found = p.drop(p.take_along(x, p.insert(place, at), at), [at])
    if weight is None:
        share = p.elementwise(lambda c: call("where", c, 1.0, 0.0), kept, dtype=x.dtype)
    else:
        taken = p.take(weight, place if place.sizes else p.insert(place, 0), 0)
        taken = taken if place.sizes else p.drop(taken, [0])
        share = p.elementwise(lambda c, w: call("where", c, w, 0.0), kept, taken)
    each = p.elementwise(lambda c, v, w: call("where", c, -v * w, 0.0), kept, found, share)
    if kind == NONE:
        return each, p.constant(0.0, (), x.dtype)
    rows = range(len(each.sizes))
    total, shares = (p.reduce(ADD, t, rows) if rows else t for t in (each, share))
    if kind == MEAN:
        total = p.elementwise(lambda a, b: a / b, total, shares)
    return total, shares
