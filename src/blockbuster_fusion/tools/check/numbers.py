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
from numpy.typing import NDArray

from blockbuster_fusion.host.numbers import round_to_bfloat16
from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.ir.types import DType

Array = NDArray[Any]
Axes = tuple[Axis, ...]

LARGEST = 12
"""A polynomial of more monomials is evaluated."""
OVERFLOWING = (
    *(np.exp, np.exp2, np.expm1, np.sinh, np.cosh, np.square),
    *(np.add, np.subtract, np.multiply, np.true_divide, np.power),
)
"""Functions whose results may be too large for a dtype, though their operands are not."""
CHUNK = 64
"""So many products of a dot are summed in one piece; the pieces are summed in pairs."""


@dataclass(eq=False, slots=True)
class Moment:
    """The sum of an array over some axes; `factors` are the two that it is the product of."""

    axes: Axes
    over: frozenset[Axis]
    whole: "Number"
    factors: tuple["Number", "Number"] | None
    array: Array | None = None
    centred: Array | None = None


Monomial = tuple[Moment, ...]
Poly = dict[Monomial, Fraction]


@dataclass(eq=False, slots=True)
class Number:
    """An array, known or to be computed.

    `sums` is the polynomial of moments that it is. `factors` are two arrays of which it is the
    product. `made` is the operator and the operands that it was computed from.
    """

    axes: Axes
    array: Array | None = None
    sums: Poly | None = None
    factors: tuple["Number", "Number"] | None = None
    made: tuple[Any, ...] = ()
    constant: Fraction | None = None
    top_of: "Number | None" = None
    """The array of which this is the maximum along an axis."""
    infinite: Array | None = None
    """Where that maximum is +inf."""


def constant(value: float) -> Number:
    """A number of the program's text."""
    exact = Fraction(value) if np.isfinite(value) else None
    return Number((), np.asarray(value).reshape(1), constant=exact)


@dataclass(slots=True)
class Arithmetic:
    """Operations on numbers in one dtype, with or without samples."""

    dtype: type[np.floating[Any]]
    length: Callable[[Axis], int]
    samples: int = 0
    eps: float = 0.0
    """The relative size of a random change; 0 where there is one sample."""
    largest: float = np.inf
    """The largest number of the dtype that is judged."""
    narrow_eps: dict[DType, float] = field(default_factory=dict)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    moments: dict[tuple[frozenset[Axis], int], Moment] = field(default_factory=dict)

    # ---------------------------------------------------------------- rounding

    def moved(self, x: Array, sizes: Array | None = None, eps: float | None = None) -> Array:
        """A result as it is rounded: every sample but the first is changed at random."""
        if x.dtype.kind != "f":
            return x
        if x.dtype != self.dtype:
            x = x.astype(self.dtype)
        eps = self.eps if eps is None else eps
        if not self.samples or not eps:
            return x
        shape = (self.samples, *x.shape[1:])
        noise = self.rng.uniform(-1.0, 1.0, shape)
        noise[0] = 0.0
        change = noise * (np.abs(x) if sizes is None else sizes) * eps
        with np.errstate(all="ignore"):
            return np.asarray(np.where(np.isfinite(x) & np.isfinite(change), x + change, x))

    def given(self, x: Array) -> Array:
        """An input: exact, but for denormal numbers, which have the digits that they have."""
        kind = x.dtype
        x = x.astype(self.dtype)
        denormal = (np.abs(x) < np.finfo(kind).tiny) & (x != 0) if kind.kind == "f" else None
        if not self.samples or denormal is None or not denormal.any():
            return x
        unit = float(np.finfo(kind).smallest_subnormal)
        noise = self.rng.uniform(-0.5, 0.5, (self.samples, *x.shape[1:]))
        noise[0] = 0.0
        return np.asarray(x + np.where(denormal, noise * unit, 0.0))

    def as_float(self, x: Number) -> Number:
        """A number whose elements are floats; numbers of the program's text are weakly typed."""
        if x.array is None or x.array.dtype.kind == "f" or x.constant is not None:
            return x
        return Number(x.axes, x.array.astype(self.dtype))

    def aligned(self, x: Number, axes: Axes) -> Array:
        """The array of a number under other axes, of length 1 where it lacks one."""
        array = self.array(x)
        if x.axes == axes:
            return array
        present = [a for a in axes if a in x.axes]
        turned = array.transpose([0, *(1 + x.axes.index(a) for a in present)])
        lengths = dict(zip(present, turned.shape[1:], strict=True))
        return turned.reshape([turned.shape[0], *(lengths.get(a, 1) for a in axes)])

    def spread(self, x: Number, axes: Axes) -> Number:
        """A number with all these axes."""
        if x.axes == axes:
            return x
        array = self.aligned(x, axes)
        shape = (array.shape[0], *(self.length(a) for a in axes))
        return Number(axes, np.broadcast_to(array, shape))

    # ---------------------------------------------------------------- one function

    def apply(
        self, function: Callable[..., Any], *operands: Number, exact: bool = False, **made: Any
    ) -> Number:
        """A function of every element; `exact` says that nothing is rounded."""
        axes = union(operands)
        arrays = [self.aligned(x, axes) for x in operands]
        if any(x.dtype.kind == "f" for x in arrays):
            arrays = [
                x.astype(self.dtype, copy=False)
                if x.dtype.kind == "f" or number.constant is not None
                else x
                for x, number in zip(arrays, operands, strict=True)
            ]
        with np.errstate(all="ignore"):
            result = np.asarray(function(*arrays))
        moved = result if exact else self.moved(result)
        if function in OVERFLOWING and self.samples:
            moved = self._unless_overflowed(moved, arrays)
        return Number(axes, moved, **made)

    def _unless_overflowed(self, x: Array, operands: Sequence[Array]) -> Array:
        """A result that the samples do not agree on where the dtype cannot hold it.

        Division by 0 gives an infinity that is right.
        """
        if x.dtype.kind != "f":
            return x
        with np.errstate(all="ignore"):
            beyond = np.asarray(~(np.abs(x[0]) <= self.largest))
            if not beyond.any():
                return x
            for operand in operands:
                last = operand is operands[-1] and len(operands) > 1
                fits = np.isfinite(operand[0])
                beyond = np.asarray(beyond & (fits & (operand[0] != 0) if last else fits))
        return self.in_doubt(x, np.asarray(beyond))

    def add(self, x: Number, y: Number) -> Number:
        return self._linear(x, y, 1)

    def sub(self, x: Number, y: Number) -> Number:
        return self._linear(x, y, -1)

    def _linear(self, x: Number, y: Number, sign: int) -> Number:
        if x.sums is not None or y.sums is not None:
            a, b = poly(x), poly(y)
            if a is not None and b is not None:
                made = dict(a)
                for monomial, count in b.items():
                    made[monomial] = made.get(monomial, Fraction(0)) + sign * count
                if all(made.values()):  # sums that cancel leave what their rounding does
                    return self.polynomial(made, union((x, y)))
        result = self.apply(np.add if sign > 0 else np.subtract, x, y)
        computed = [n for n in (x, y) if self._is_computed(n)]
        if computed:  # each use of a computed number may have been computed on its own
            sizes = sum(self._error_of(self.aligned(n, result.axes)) for n in computed)
            result.array = self.moved(self.array(result), np.asarray(sizes))
        if self.samples and not np.isfinite(self.array(result)).all():
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
        """Whether the samples of a number differ."""
        return bool(self.samples) and self.array(x).shape[0] > 1

    def _copies(self, x: Number, y: Number) -> tuple[Number, Number]:
        """Two factors as they are when what both depend on is computed for each of them.

        The errors of x and of a norm of x cancel in their quotient, but not those of two copies.
        """
        if not self._is_computed(x) or not self._is_computed(y):
            return x, y
        first, second = (
            Number(n.axes, self.moved(self.array(n), self._error_of(self.array(n)))) for n in (x, y)
        )
        return first, second

    def _error_of(self, x: Array) -> Array:
        """The distance, in eps, of a computed number from itself computed once more."""
        with np.errstate(all="ignore"):
            spread = np.sqrt(np.mean((x[1:] - x[0]) ** 2, axis=0))
        return np.asarray(
            np.maximum(np.abs(x), np.where(np.isfinite(spread), spread, 0) / self.eps)
        )

    def mul(self, x: Number, y: Number) -> Number:
        if x.sums is not None or y.sums is not None:
            a, b = poly(x), poly(y)
            if a is not None and b is not None and len(a) * len(b) <= LARGEST:
                made: Poly = {}
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
        """A number that the samples do not agree on, where there are several right answers."""
        array, hidden = self.array(x), self.aligned(where, x.axes).any(axis=0)
        if not self.samples or not hidden.any():
            return x
        return Number(x.axes, self.in_doubt(array, np.asarray(hidden)))

    def in_doubt(self, x: Array, where: Array) -> Array:
        """An array whose samples are 1 or NaN by turns at some places."""
        if not where.any():
            return x
        made = np.broadcast_to(x, (self.samples, *x.shape[1:])).copy()
        made[1::2] = np.where(where, np.nan, made[1::2])
        made[2::2] = np.where(where, 1.0, made[2::2])
        return made

    def narrowed(self, x: Number, dtype: DType) -> Number:
        """A number as it is stored in 16 bits; what is going to cancel is stored in full."""
        if x.sums is not None:
            return x
        array = self.array(x)
        if self.samples:
            array = self.moved(array, eps=self.narrow_eps[dtype])
        elif dtype is DType.float16:
            array = array.astype(np.float16).astype(self.dtype)
        else:
            array = round_to_bfloat16(array).astype(self.dtype)
        return Number(x.axes, array, factors=x.factors, made=x.made)

    # ---------------------------------------------------------------- sums

    def sum(self, x: Number, axis: Axis) -> Number:
        """The sum over an axis, as a polynomial of moments."""
        rest = tuple(a for a in x.axes if a is not axis)
        if x.sums is not None and all(len(monomial) == 1 for monomial in x.sums):
            made: Poly = {}
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

    def polynomial(self, made: Poly, axes: Axes) -> Number:
        if len(made) > LARGEST or any(len(monomial) > 4 for monomial in made):
            return Number(axes, self.spread(self.evaluated(made), axes).array)
        return Number(axes, sums=made)

    def array(self, x: Number) -> Array:
        """The array that a number is."""
        if x.array is None:
            assert x.sums is not None
            x.array = self.spread(self.evaluated(x.sums), x.axes).array
            assert x.array is not None
        return x.array

    def evaluated(self, given: Poly) -> Number:
        """The value of a polynomial, after what cancels has been taken out."""
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
        """A monomial's value."""
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

    def summed(self, x: Number, axes: Axes, array: Array) -> Array:
        """The sum over the axes that are not left, in pairs."""
        gone = [1 + at for at, axis in enumerate(x.axes) if axis not in axes]
        left = [at for at in range(array.ndim) if at not in gone]
        turned = array.transpose(left + gone).reshape([array.shape[at] for at in left] + [-1])
        kept = [axis for axis in x.axes if axis in axes]
        with np.errstate(all="ignore"):
            made = in_pairs(np.ascontiguousarray(turned))
            sizes = np.abs(turned).sum(axis=-1) if self.samples and made.dtype.kind == "f" else None
        moved = self.moved(made, sizes)
        if self.samples and made.dtype.kind == "f":
            moved = self._unless_overflowed(moved, [np.abs(turned).max(axis=-1, initial=0.0)])
        return self.aligned(Number(tuple(kept), moved), axes)

    def reduce(self, function: np.ufunc, x: Number, axis: Axis, identity: float) -> Number:
        """A reduction by another function than a sum."""
        at = 1 + x.axes.index(axis)
        rest = tuple(a for a in x.axes if a is not axis)
        array = self.array(x)
        if array.shape[at] == 0:
            shape = array.shape[:at] + array.shape[at + 1 :]
            return Number(rest, np.full(shape, identity).astype(array.dtype))
        with np.errstate(all="ignore"):
            made = function.reduce(array, axis=at)
        exact = function is not np.multiply
        return Number(rest, made if exact else self.moved(made))

    def dot(self, x: Number, y: Number, axis: Axis) -> Number:
        """The sum over an axis of the products of two numbers; other axes of both stay, once."""
        axes = tuple(a for a in union((x, y)) if a is not axis)
        shared = tuple(a for a in axes if a in x.axes and a in y.axes)
        rows, columns = (tuple(a for a in axes if a in n.axes and a not in shared) for n in (x, y))
        left = self._matrix(x, (*shared, *rows, axis), len(shared), last=True)
        right = self._matrix(y, (*shared, axis, *columns), len(shared), last=False)
        with np.errstate(all="ignore"):
            made = product_in_pairs(left, right)
            sizes = np.matmul(np.abs(left), np.abs(right)) if self.samples else None
        made = self.moved(made, sizes)
        if self.samples:
            left, right = (
                np.abs(x).max(axis, keepdims=True, initial=0.0)
                for x, axis in ((left, -1), (right, -2))
            )
            made = self._unless_overflowed(made, [left + right])
        order = (*shared, *rows, *columns)
        shape = (made.shape[0], *(self.length(a) for a in order))
        return Number(axes, self.aligned(Number(order, made.reshape(shape)), axes))

    def _matrix(self, x: Number, order: Axes, shared: int, *, last: bool) -> Array:
        """An array as matrices for a product along its last axis, or along that before others."""
        array = self.aligned(x, order)
        if array.dtype.kind == "f":
            array = array.astype(self.dtype, copy=False)
        kept = array.shape[: 1 + shared]
        if last:
            return array.reshape(*kept, _product(array.shape[1 + shared : -1]), array.shape[-1])
        return array.reshape(*kept, array.shape[1 + shared], _product(array.shape[2 + shared :]))


def _product(lengths: Sequence[int]) -> int:
    made = 1
    for length in lengths:
        made *= length
    return made


def product_in_pairs(left: Array, right: Array) -> Array:
    """A product of matrices: sums of so many products as a chunk has, and those summed in pairs."""
    length = left.shape[-1]
    sums: list[tuple[int, Array]] = []
    """What has been summed, each with the number of chunks in it."""
    for start in range(0, max(length, 1), CHUNK):
        stop = start + CHUNK
        made = _product_of(left[..., start:stop], right[..., start:stop, :])
        count = 1
        while sums and sums[-1][0] == count:
            made, count = sums.pop()[1] + made, 2 * count
        sums.append((count, made))
    total = sums.pop()[1]
    while sums:
        total = sums.pop()[1] + total
    return total


def _product_of(left: Array, right: Array) -> Array:
    """A product of matrices; libraries of linear algebra may take 0 times inf for 0."""
    if np.isfinite(left).all() and np.isfinite(right).all():
        return np.asarray(np.matmul(left, right))
    return np.asarray(np.einsum("...ij,...jk->...ik", left, right))


def in_pairs(x: Array) -> Array:
    """The sum along the last axis: pairs, then pairs of pairs, and so on."""
    if x.shape[-1] == 0:
        return np.zeros(x.shape[:-1], x.dtype)
    while x.shape[-1] > 1:
        if x.shape[-1] % 2:
            x = np.concatenate([x[..., :-1:2] + x[..., 1::2], x[..., -1:]], axis=-1)
        else:
            x = x[..., ::2] + x[..., 1::2]
    return np.asarray(x[..., 0])


def union(numbers: Sequence[Number]) -> Axes:
    """All axes of some numbers, in order."""
    return tuple(dict.fromkeys(axis for x in numbers for axis in x.axes))


def poly(x: Number) -> Poly | None:
    """A number as a polynomial of moments, if it is one."""
    if x.sums is not None:
        return x.sums
    return {(): x.constant} if x.constant is not None else None
