"""Arrays of a careful evaluation: named axes, rounding, and sums that do not cancel.

Arrays have their named axes behind an axis of *samples*. An evaluation in the program's own dtype
has one sample. An evaluation for reference has several: the first is exact, and in each of the
others every result is moved at random (Monte Carlo arithmetic), by up to one eps of itself. A sum
over an axis moves by up to one eps of the sum of its terms' sizes, and a sum of two numbers by up
to one eps of those that were computed themselves. The spread of the samples tells what rounding
costs each element of a result, whatever the luck of one run.

A sum is kept as a polynomial of *moments* until its value is needed. There the sum of the products
of two arrays, less the product of their means, becomes the sum of the products of their differences
from the means. So a variance written as E[x²] - E[x]² is computed in two passes, as it should be.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.tools.check.pairwise import in_pairs, product_in_pairs
from blockbuster_fusion.tools.check.rounding import Rounding
from blockbuster_fusion.tools.check.values import (
    Array,
    AxisOrder,
    Moment,
    MomentPolynomial,
    Number,
    constant,
    polynomial_of,
    union,
)

LARGEST = 12
"""The most monomials of a polynomial; a larger one is evaluated."""
OVERFLOWING = (
    *(np.exp, np.exp2, np.expm1, np.sinh, np.cosh, np.square),
    *(np.add, np.subtract, np.multiply, np.true_divide, np.power),
)
"""Functions whose results may be too large for a dtype, though their operands are not."""


@dataclass(slots=True)
class SampledArithmetic:
    """Operations on numbers in one dtype, with or without samples."""

    length: Callable[[Axis], int]
    rounding: Rounding
    moments: dict[tuple[frozenset[Axis], int], Moment] = field(default_factory=dict)

    def as_float(self, x: Number) -> Number:
        """A number whose elements are floats; numbers of the program's text are weakly typed."""
        if x.array is None or x.array.dtype.kind == "f" or x.constant is not None:
            return x
        return Number(x.axes, x.array.astype(self.rounding.dtype))

    def aligned(self, x: Number, axes: AxisOrder) -> Array:
        """The array of a number with other axes; those that it lacks have length 1."""
        array = self.array(x)
        if x.axes == axes:
            return array
        present = [a for a in axes if a in x.axes]
        turned = array.transpose([0, *(1 + x.axes.index(a) for a in present)])
        lengths = dict(zip(present, turned.shape[1:], strict=True))
        return turned.reshape([turned.shape[0], *(lengths.get(a, 1) for a in axes)])

    def spread(self, x: Number, axes: AxisOrder) -> Number:
        """A number broadcast to these axes."""
        if x.axes == axes:
            return x
        array = self.aligned(x, axes)
        shape = (array.shape[0], *(self.length(a) for a in axes))
        return Number(axes, np.broadcast_to(array, shape))

    # ---------------------------------------------------------------- one function

    def apply(
        self, function: Callable[..., Any], *operands: Number, exact: bool = False, **made: Any
    ) -> Number:
        """Applies a function to every element; nothing is rounded if `exact`."""
        axes = union(operands)
        arrays = [self.aligned(x, axes) for x in operands]
        if any(x.dtype.kind == "f" for x in arrays):
            arrays = [
                x.astype(self.rounding.dtype, copy=False)
                if x.dtype.kind == "f" or number.constant is not None
                else x
                for x, number in zip(arrays, operands, strict=True)
            ]
        with np.errstate(all="ignore"):
            result = np.asarray(function(*arrays))
        moved = result if exact else self.rounding.moved(result)
        if function in OVERFLOWING and self.rounding.samples:
            moved = self.rounding.unless_overflowed(moved, arrays)
        return Number(axes, moved, **made)

    def add(self, x: Number, y: Number) -> Number:
        return self._linear(x, y, 1)

    def sub(self, x: Number, y: Number) -> Number:
        return self._linear(x, y, -1)

    def _linear(self, x: Number, y: Number, sign: int) -> Number:
        if x.sums is not None or y.sums is not None:
            a, b = polynomial_of(x), polynomial_of(y)
            if a is not None and b is not None:
                made = dict(a)
                for monomial, count in b.items():
                    made[monomial] = made.get(monomial, Fraction(0)) + sign * count
                if all(made.values()):  # sums that cancel leave what their rounding does
                    return self.polynomial(made, union((x, y)))
        result = self.apply(np.add if sign > 0 else np.subtract, x, y)
        computed = [n for n in (x, y) if self._is_computed(n)]
        if computed:  # each use of a computed number may have been computed on its own
            sizes = sum(self.rounding.error_of(self.aligned(n, result.axes)) for n in computed)
            result.array = self.rounding.moved(self.array(result), np.asarray(sizes))
        if self.rounding.samples and not np.isfinite(self.array(result)).all():
            # A shift by an infinite number may be left out where nothing else feels a shift, and
            # of a row with an infinite mean nothing finite is left.
            shifts = [np.isinf(self.aligned(n, result.axes)) for n in (x, y)]
            doubtful = shifts[0] & shifts[1]
            for number, infinite in zip((x, y), shifts, strict=True):
                if len(number.axes) < len(result.axes):
                    doubtful = doubtful | infinite
            return self.undecided(result, Number(result.axes, doubtful))
        return result

    def _is_computed(self, x: Number) -> bool:
        """True if the samples of a number differ."""
        return bool(self.rounding.samples) and self.array(x).shape[0] > 1

    def _copies(self, x: Number, y: Number) -> tuple[Number, Number]:
        """Two factors with independent errors, as if each computed their common operands anew.

        The errors of x and of a norm of x cancel in their quotient, but not those of two copies.
        """
        if not self._is_computed(x) or not self._is_computed(y):
            return x, y
        first, second = (
            Number(
                n.axes, self.rounding.moved(self.array(n), self.rounding.error_of(self.array(n)))
            )
            for n in (x, y)
        )
        return first, second

    def mul(self, x: Number, y: Number) -> Number:
        if x.sums is not None or y.sums is not None:
            a, b = polynomial_of(x), polynomial_of(y)
            if a is not None and b is not None and len(a) * len(b) <= LARGEST:
                made: MomentPolynomial = {}
                for left, c in a.items():
                    for right, d in b.items():
                        monomial = tuple(sorted((*left, *right), key=id))
                        made[monomial] = made.get(monomial, Fraction(0)) + c * d
                return self.polynomial(made, union((x, y)))
        factors = (x, y) if x.constant is None and y.constant is None else None
        return self.apply(np.multiply, *self._copies(x, y), factors=factors)

    def div(self, x: Number, y: Number) -> Number:
        if x.sums is not None and y.constant:
            made = {monomial: count / y.constant for monomial, count in x.sums.items()}
            return self.polynomial(made, x.axes)
        return self.apply(np.true_divide, *self._copies(x, y))

    def neg(self, x: Number) -> Number:
        if x.sums is not None:
            return self.polynomial({m: -c for m, c in x.sums.items()}, x.axes)
        return self.apply(np.negative, x, exact=True)

    def undecided(self, x: Number, where: Number) -> Number:
        """A number whose samples disagree where there are several right answers."""
        array, hidden = self.array(x), self.aligned(where, x.axes).any(axis=0)
        if not self.rounding.samples or not hidden.any():
            return x
        return Number(x.axes, self.rounding.in_doubt(array, np.asarray(hidden)))

    def narrowed(self, x: Number, dtype: DType) -> Number:
        """A number rounded to 16 bits; a polynomial of moments, which may cancel, is not."""
        if x.sums is not None:
            return x
        array = self.rounding.narrowed(self.array(x), dtype)
        return Number(x.axes, array, factors=x.factors, made=x.made)

    # ---------------------------------------------------------------- sums

    def sum(self, x: Number, axis: Axis) -> Number:
        """The sum over an axis, as a polynomial of moments."""
        rest = tuple(a for a in x.axes if a is not axis)
        if x.sums is not None and all(len(monomial) == 1 for monomial in x.sums):
            made: MomentPolynomial = {}
            for (old,), count in x.sums.items():
                if axis in old.axes:
                    moment = self.moment(old.whole, old.factors, old.over | {axis})
                    made[(moment,)] = made.get((moment,), Fraction(0)) + count
                else:
                    made[(old,)] = made.get((old,), Fraction(0)) + count * self.length(axis)
            if all(made.values()):
                return self.polynomial(made, rest)
            x = Number(x.axes, self.array(x))
        factors = x.factors
        if factors is not None and not all(axis in f.axes for f in factors):
            factors = None
        self.array(x)
        return self.polynomial({(self.moment(x, factors, frozenset({axis})),): Fraction(1)}, rest)

    def moment(
        self, whole: Number, factors: tuple[Number, Number] | None, over: frozenset[Axis]
    ) -> Moment:
        key = (over, id(whole))
        if key not in self.moments:
            axes = tuple(a for a in whole.axes if a not in over)
            self.moments[key] = Moment(axes, over, whole, factors)
        return self.moments[key]

    def polynomial(self, made: MomentPolynomial, axes: AxisOrder) -> Number:
        if len(made) > LARGEST or any(len(monomial) > 4 for monomial in made):
            return Number(axes, self.spread(self.evaluated(made), axes).array)
        return Number(axes, sums=made)

    def array(self, x: Number) -> Array:
        """The array of a number; it is computed if need be."""
        if x.array is None:
            assert x.sums is not None
            x.array = self.spread(self.evaluated(x.sums), x.axes).array
            assert x.array is not None
        return x.array

    def evaluated(self, given: MomentPolynomial) -> Number:
        """The value of a polynomial; moments that cancel are replaced by centred ones first."""
        made = dict(given)
        parts: list[Number] = []
        for monomial in list(given):
            for at, moment in enumerate(monomial):
                means = self._means(moment) if moment.factors is not None else None
                if means is None or monomial not in made:
                    continue
                others = monomial[:at] + monomial[at + 1 :]
                partner = tuple(sorted((*others, *means), key=id))
                wanted = -made[monomial] / self.count(moment.over)
                if partner in made and abs(made[partner] - wanted) <= abs(wanted) / 10**9:
                    parts.append(self.product(made.pop(monomial), others, self.centred(moment)))
                    del made[partner]
                    break
        for monomial, count in made.items():
            parts.append(self.product(count, monomial, None))
        if not parts:
            return constant(0.0)
        total, *rest = sorted(parts, key=lambda part: part.constant is not None)
        for part in rest:
            total = self.apply(np.add, total, part)
        return total

    def _means(self, moment: Moment) -> tuple[Moment, Moment] | None:
        """The sums of both factors of a moment."""
        assert moment.factors is not None
        found = []
        for factor in moment.factors:
            if not moment.over <= set(factor.axes):
                return None
            found.append(self.moment(factor, factor.factors, moment.over))
        return found[0], found[1]

    def count(self, over: frozenset[Axis]) -> int:
        made = 1
        for axis in over:
            made *= self.length(axis)
        return made

    def product(self, count: Fraction, moments: Sequence[Moment], centred: Number | None) -> Number:
        """The value of a monomial."""
        factors = [Number(m.axes, self.moment_array(m)) for m in moments]
        if centred is not None:
            factors.append(centred)
        if not factors:
            return constant(float(count))
        made, *rest = factors
        for factor in rest:
            made = self.apply(np.multiply, made, factor)
        if count == 1:
            return made
        if abs(count.numerator) == 1 and count.denominator < 2**53:
            divisor = constant(float(count.denominator * count.numerator))
            return self.apply(np.true_divide, made, divisor)
        return self.apply(np.multiply, made, constant(float(count)))

    def moment_array(self, moment: Moment) -> Array:
        if moment.array is None:
            moment.array = self.summed(moment.whole, moment.axes, self.array(moment.whole))
        return moment.array

    def centred(self, moment: Moment) -> Number:
        """The sum of the products of two arrays' differences from their means."""
        if moment.centred is None:
            assert moment.factors is not None
            differences: list[Number] = []
            for factor in moment.factors:
                if differences and factor is moment.factors[0]:
                    differences.append(differences[0])
                    continue
                total = self.moment(factor, factor.factors, moment.over)
                count = constant(float(self.count(moment.over)))
                held = Number(total.axes, self.moment_array(total))
                mean = self.apply(np.true_divide, held, count)
                differences.append(self.apply(np.subtract, factor, mean))
            squares = self.apply(np.multiply, *differences)
            moment.centred = self.summed(squares, moment.axes, self.array(squares))
        return Number(moment.axes, moment.centred)

    def summed(self, x: Number, axes: AxisOrder, array: Array) -> Array:
        """The pairwise sum over all axes but these."""
        gone = [1 + at for at, axis in enumerate(x.axes) if axis not in axes]
        left = [at for at in range(array.ndim) if at not in gone]
        turned = array.transpose(left + gone).reshape([array.shape[at] for at in left] + [-1])
        kept = [axis for axis in x.axes if axis in axes]
        with np.errstate(all="ignore"):
            made = in_pairs(np.ascontiguousarray(turned))
            sizes = (
                np.abs(turned).sum(axis=-1)
                if self.rounding.samples and made.dtype.kind == "f"
                else None
            )
        moved = self.rounding.moved(made, sizes)
        if self.rounding.samples and made.dtype.kind == "f":
            moved = self.rounding.unless_overflowed(
                moved, [np.abs(turned).max(axis=-1, initial=0.0)]
            )
        return self.aligned(Number(tuple(kept), moved), axes)

    def reduce(self, function: np.ufunc, x: Number, axis: Axis, identity: float) -> Number:
        """A reduction by a function other than addition."""
        at = 1 + x.axes.index(axis)
        rest = tuple(a for a in x.axes if a is not axis)
        array = self.array(x)
        if array.shape[at] == 0:
            shape = array.shape[:at] + array.shape[at + 1 :]
            return Number(rest, np.full(shape, identity).astype(array.dtype))
        with np.errstate(all="ignore"):
            made = function.reduce(array, axis=at)
        exact = function is not np.multiply
        return Number(rest, made if exact else self.rounding.moved(made))

    def scan(self, function: np.ufunc, x: Number, axis: Axis) -> Number:
        """A scan, accumulated in float64; a sum has the error of its summands."""
        at, array = 1 + x.axes.index(axis), self.array(x)
        if array.dtype.kind != "f" or not array.shape[at]:
            return Number(x.axes, function.accumulate(array, axis=at))
        with np.errstate(all="ignore"):
            made = function.accumulate(array, axis=at, dtype=np.float64)
            sizes = np.abs(made)
            if function is np.add:
                sizes = np.add.accumulate(np.abs(array), axis=at, dtype=np.float64)
            elif function is np.logaddexp:
                sizes += 1
        made = made.astype(self.rounding.dtype)
        if function in (np.maximum, np.minimum):
            return Number(x.axes, made)
        made = self.rounding.moved(made, sizes)
        if self.rounding.samples:  # what has overflowed once does not come back in every order
            largest = np.maximum.accumulate(np.abs(made[0]), axis=at - 1)
            beyond = (largest > self.rounding.largest) & np.isfinite(array[0]).all()
            made = self.rounding.in_doubt(made, np.asarray(beyond))
        return Number(x.axes, made)

    def dot(self, x: Number, y: Number, axis: Axis) -> Number:
        """The contraction of two numbers over an axis; axes that both have are batch axes."""
        axes = tuple(a for a in union((x, y)) if a is not axis)
        shared = tuple(a for a in axes if a in x.axes and a in y.axes)
        rows, columns = (tuple(a for a in axes if a in n.axes and a not in shared) for n in (x, y))
        left = self._matrix(x, (*shared, *rows, axis), len(shared), last=True)
        right = self._matrix(y, (*shared, axis, *columns), len(shared), last=False)
        with np.errstate(all="ignore"):
            made = product_in_pairs(left, right)
            sizes = np.matmul(np.abs(left), np.abs(right)) if self.rounding.samples else None
        made = self.rounding.moved(made, sizes)
        if self.rounding.samples:
            left, right = (
                np.abs(x).max(axis, keepdims=True, initial=0.0)
                for x, axis in ((left, -1), (right, -2))
            )
            made = self.rounding.unless_overflowed(made, [left + right])
        order = (*shared, *rows, *columns)
        shape = (made.shape[0], *(self.length(a) for a in order))
        return Number(axes, self.aligned(Number(order, made.reshape(shape)), axes))

    def _matrix(self, x: Number, order: AxisOrder, shared: int, *, last: bool) -> Array:
        """An array as a batch of matrices: summed along its last axis, or along the first."""
        array = self.aligned(x, order)
        if array.dtype.kind == "f":
            array = array.astype(self.rounding.dtype, copy=False)
        kept = array.shape[: 1 + shared]
        if last:
            return array.reshape(*kept, _product(array.shape[1 + shared : -1]), array.shape[-1])
        return array.reshape(*kept, array.shape[1 + shared], _product(array.shape[2 + shared :]))


def _product(lengths: Sequence[int]) -> int:
    made = 1
    for length in lengths:
        made *= length
    return made
