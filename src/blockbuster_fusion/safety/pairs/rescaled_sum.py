"""The combiner that sums significands with shared exponents."""

from blockbuster_fusion.ir.combiner import Combiner
from blockbuster_fusion.ir.expr import Expr, arg, call
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.safety.pairs.exponents import GREATEST, LARGEST, LOG2, is_of_two, power


def rescaled_sum(
    summands: int, factors: tuple[float, ...] = (1.0,), dtype: DType = DType.float32
) -> Combiner:
    """The sum of pairs that share exponents: (t1, …, S1, S2, …), all S at the larger t.

    A pair represents S·e^(f1·t1 + …). Each exponent is reduced by its own maximum first; that of
    the second includes the remainder of the first.
    """
    size = len(factors) + summands
    of_two = is_of_two([(None, factor) for factor in factors])
    mine: Expr | None = None
    theirs: Expr | None = None
    maxima: list[Expr] = []
    for at, factor in enumerate(factors):
        scale = factor / LOG2 if of_two else factor
        own, other = arg(at), arg(size + at)
        common = call("maximum", _after(mine, scale, own), _after(theirs, scale, other))
        maxima.append(common)
        mine, theirs = _more(mine, own - common, scale), _more(theirs, other - common, scale)
    assert mine is not None
    assert theirs is not None
    mine, theirs = power(mine, of_two=of_two), power(theirs, of_two=of_two)
    sums = tuple(arg(i) * mine + arg(size + i) * theirs for i in range(len(factors), size))
    least = -GREATEST.get(dtype, LARGEST)
    identity = (*(least,) * len(factors), *(0.0,) * summands)
    return Combiner("rescaled_sum", identity, (*maxima, *sums))


def _after(left: Expr | None, scale: float, exponent: Expr) -> Expr:
    return exponent if left is None else (left if scale == 1 else left / scale) + exponent


def _more(left: Expr | None, difference: Expr, scale: float) -> Expr:
    scaled = difference if scale == 1 else difference * scale
    return scaled if left is None else left + scaled
