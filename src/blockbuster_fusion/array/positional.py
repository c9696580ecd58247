"""Array programs from operators over positions, as frameworks have them.

A front end calls one method for each operator of a model. Positions become sequences of factors
(axes.py), views and broadcasts only rearrange these, and at the end the factors are named axes of
an ArrayProgram. An operator without such a form raises `NotExpressible`, and the front end runs it
by the framework.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from types import MappingProxyType

from blockbuster_fusion.array.agreement import Agreement
from blockbuster_fusion.array.axes import (
    ONE,
    Axes,
    AxesDisagree,
    AxesMeet,
    Factor,
    Position,
    Size,
    product,
)
from blockbuster_fusion.array.named import Emitter
from blockbuster_fusion.array.primitives import (
    AxisPositions,
    Contraction,
    Given,
    Pointwise,
    Primitive,
    RunningSummary,
    Summary,
    TableLookup,
)
from blockbuster_fusion.array.recorder import Recorder
from blockbuster_fusion.array.records import (
    GivenArray,
    Operand,
    PlacedArray,
    PositionalArray,
    PositionalProgram,
)
from blockbuster_fusion.errors import NotExpressible
from blockbuster_fusion.ir.combiner import ADD, MAX, MIN, MUL, Combiner
from blockbuster_fusion.ir.expr import Expr, arg, call, cast, const, contains
from blockbuster_fusion.ir.expr_dtypes import result_dtype
from blockbuster_fusion.ir.types import DType, promote


@dataclass
class PositionalBuilder:
    """Builds an array program from operators over positions."""

    name: str
    recorder: Recorder = field(default_factory=Recorder)
    rounds_to: DType | None = None
    """The dtype in which products multiply, where that matters."""

    def multiplying_in(self, dtype: DType | None) -> "PositionalBuilder":
        """Builds products of a dtype, in the same program."""
        return replace(self, rounds_to=dtype)

    @property
    def axes(self) -> Axes:
        return self.recorder.axes

    @cached_property
    def agreement(self) -> Agreement:
        return Agreement(self.recorder)

    # ------------------------------------------------------------------- sources

    def input(
        self, name: str, sizes: Sequence[Size], dtype: DType, source: str = ""
    ) -> PositionalArray:
        """An array from outside; the same `source` may be read more than once."""
        positions = tuple(self.axes.new(s) for s in sizes)
        factors = tuple(f for p in positions for f in p)
        x = self.recorder.record(Given(name), (), factors, dtype, positions, sizes)
        self.recorder.given[x.record] = GivenArray(source or name, positions)
        return x

    def constant(
        self, value: Expr | int | float | bool, sizes: Sequence[Size], dtype: DType
    ) -> PositionalArray:
        """An array of equal numbers."""
        if not isinstance(value, Expr):
            kind = float if dtype.is_float else bool if dtype is DType.bool_ else int
            value = const(kind(value))
        positions = tuple(self.axes.new(s) for s in sizes)
        return PositionalArray(positions, tuple(sizes), dtype, constant=value)

    def counting(self, extent: Size) -> PositionalArray:
        """0, 1, 2, … up to a size."""
        if extent == ONE:
            return self.constant(0, (ONE,), DType.int64)
        return self.positions(self.axes.new(extent), extent)

    def positions(self, position: Position, extent: Size, after: int = 0) -> PositionalArray:
        """0, 1, 2, … along a position, before some positions of length 1."""
        at, sizes = (position, *((),) * after), (extent, *(ONE,) * after)
        return self.recorder.record(AxisPositions(position), (), position, DType.int64, at, sizes)

    def primitive(self, x: PositionalArray) -> Primitive[Position] | None:
        """The primitive that computes an array; a constant has none."""
        return None if x.constant is not None else self.recorder.records[x.record].primitive

    # ------------------------------------------------------------------- expressions

    def elementwise(
        self, make: Callable[..., Expr], *operands: Operand, dtype: DType | None = None
    ) -> PositionalArray:
        """`make` of every element, called with an Expr for each operand; broadcasts as usual."""
        values = self.agreement.aligned([x for x in operands if isinstance(x, PositionalArray)])
        arrays = [v for v in values if v.constant is None]
        kinds = [v.dtype for v in arrays]
        expr = make(*_terms(operands, values, kinds))
        found = result_dtype(expr, kinds)
        kind = dtype or found
        if arrays and found is not kind:  # numbers alone have no dtype
            expr = cast(expr, kind)
        positions, sizes = _widest(values)
        if arrays:
            records = [v.record for v in arrays]
            return self.recorder.pointwise(expr, records, kind, positions, sizes)
        if contains(expr, "size"):
            raise NotExpressible(what="a number that depends on sizes alone")
        return PositionalArray(positions, sizes, kind, constant=expr)

    def size(self, factors: Iterable[Factor]) -> Expr:
        """The number of elements along some factors, for use in an elementwise expression."""
        return self.recorder.size(factors)

    # ------------------------------------------------------------------- reductions

    def reduce(
        self,
        combiner: Combiner,
        x: PositionalArray,
        at: Sequence[int],
        *,
        keep: bool = False,
        distinct: bool = False,
    ) -> PositionalArray:
        """`x` with some positions combined.

        Elements that are repeated along a broadcast axis count once if `distinct`.
        """
        if x.constant is not None and combiner in (MAX, MIN):
            return x.without(at, keep=keep)
        x = self.as_array(x)
        if combiner in (ADD, MUL) and x.dtype in (DType.bool_, DType.int32):
            x = self.elementwise(lambda t: cast(t, DType.int64), x, dtype=DType.int64)
        factors = self.axes.atoms(f for p in at for f in x.positions[p])
        have = self.recorder.axes_of(x.record)
        absent = [f for f in factors if f not in have]
        if absent and not distinct:
            x = self.combined_copies(combiner, x, absent)
        factors = tuple(f for f in factors if f in have)
        if not factors and combiner is ADD and x.dtype.is_float:
            x = self.elementwise(lambda t: t + 0.0, x)  # a sum begins with 0.0, also that of -0.0
        result = x.without(at, keep=keep)
        if not factors:
            return result
        axes = tuple(f for f in have if f not in factors)
        made = Summary(tuple(dict.fromkeys(f for f in have if f in factors)), combiner)
        return self.recorder.record(
            made, (x.record,), axes, x.dtype, result.positions, result.sizes
        )

    def scan(self, combiner: Combiner, x: PositionalArray, at: int) -> PositionalArray:
        """`x` with each element combined with those before it along a position."""
        counts = combiner in (ADD, MUL) and x.dtype in (DType.bool_, DType.int32)
        dtype = DType.int64 if counts else x.dtype
        factors = self.axes.atoms(x.positions[at])
        have = () if x.constant is not None else self.recorder.axes_of(x.record)
        if factors and not any(factor in have for factor in factors):
            return self.scan_of_equals(combiner, x, at, dtype)
        if counts:
            x = self.elementwise(lambda t: cast(t, dtype), x, dtype=dtype)
        if not factors:
            return x
        if len(factors) > 1:
            raise NotExpressible(what="a scan along several axes")
        made = RunningSummary(factors, combiner)
        return self.recorder.record(made, (x.record,), have, dtype, x.positions, x.sizes)

    def scan_of_equals(
        self, combiner: Combiner, x: PositionalArray, at: int, dtype: DType
    ) -> PositionalArray:
        """The scan of equal elements: running sums are multiples."""
        if combiner in (MAX, MIN):
            return x
        if combiner is not ADD:
            raise NotExpressible(what="such a scan along a broadcast axis")
        after = len(x.sizes) - at - 1
        counted = self.positions(x.positions[at], x.sizes[at], after)
        return self.elementwise(lambda t, n: cast(t, dtype) * (n + 1), x, counted, dtype=dtype)

    def present(self, x: PositionalArray, at: Iterable[int]) -> list[Factor]:
        """The axes at some positions along which `x` is not broadcast."""
        have = self.recorder.axes_of(x.record)
        return [f for f in self.axes.atoms(f for i in at for f in x.positions[i]) if f in have]

    def along(self, x: PositionalArray, at: Iterable[int]) -> list[Factor]:
        """The axes at some positions, along which `x` may be broadcast."""
        return [f for i in at for f in x.positions[i]]

    def combined_copies(
        self, combiner: Combiner, x: PositionalArray, absent: Sequence[Factor]
    ) -> PositionalArray:
        """`x` combined with its copies along some axes."""
        if combiner in (MAX, MIN):
            return x
        if combiner is not ADD:
            raise NotExpressible(what="a product along a broadcast axis")
        return self.elementwise(lambda t: t * self.size(absent), x)

    def as_array(self, x: PositionalArray) -> PositionalArray:
        """`x` itself, or NotExpressible if it is a constant."""
        if x.constant is not None:
            raise NotExpressible(what="a reduction or contraction of a constant")
        return x

    def contract(
        self, x: PositionalArray, y: PositionalArray, left: str, right: str, result: str
    ) -> PositionalArray:
        """The sum of products, with a letter for each position as in `bmk,bkn->bmn`."""
        x, y = self.as_array(x), self.as_array(y)
        shared = [(left.index(c), right.index(c)) for c in left if c in right]
        wide = [(x, i, j) for i, j in shared if ONE not in (x.sizes[i], y.sizes[j])]
        y = self.agreement.agreed(y, wide)
        at = {letter: (x.positions[i], x.sizes[i]) for i, letter in enumerate(left)}
        y_only = [i for i, letter in enumerate(right) if letter not in left]
        taken = {f for p in x.positions for f in self.axes.atoms(p)}
        y = self.agreement.apart(y, y_only, taken)
        for i, letter in enumerate(right):
            if letter not in at or not self.axes.atoms(at[letter][0]):
                at[letter] = (y.positions[i], y.sizes[i])
        summed = [at[letter][0] for letter in left if letter in right and letter not in result]
        factors = self.axes.atoms(f for p in summed for f in p)
        axes_x, axes_y = self.recorder.axes_of(x.record), self.recorder.axes_of(y.record)
        positions = [at[letter][0] for letter in result]
        sizes = [at[letter][1] for letter in result]
        if any(f not in axes_x or f not in axes_y for f in factors):
            raise NotExpressible(what="a contraction along a broadcast axis")
        axes = tuple(f for f in dict.fromkeys([*axes_x, *axes_y]) if f not in factors)
        self.axes.keep_apart(dict.fromkeys([*axes_x, *axes_y]))
        kind = promote(x.dtype, y.dtype)
        # a sum of one product is that product
        product = Contraction(factors, self.rounds_to) if factors else Pointwise(arg(0) * arg(1))
        operands = (x.record, y.record)
        return self.recorder.record(product, operands, axes, kind, positions, sizes)

    # ------------------------------------------------------------------- lookups

    def take(
        self,
        table: PositionalArray,
        index: PositionalArray,
        at: int,
        walked: Mapping[int, int] = MappingProxyType({}),
    ) -> PositionalArray:
        """The elements of `table` at the places `index` along a position.

        The positions of the index replace that position. `walked` maps its neighbours to the
        positions of the index that they are iterated together with.
        """
        index = self.index_apart(table, index)
        wide = [
            (table, i, j) for i, j in walked.items() if ONE not in (table.sizes[i], index.sizes[j])
        ]
        index = self.agreement.agreed(index, wide)
        here = [*zip(index.positions, index.sizes, strict=True)]
        for i, j in walked.items():
            if table.sizes[i] != ONE:
                here[j] = (table.positions[i], table.sizes[i])
        first, last = min((at, *walked)), max((at, *walked))
        have = [*zip(table.positions, table.sizes, strict=True)]
        made = [*have[:first], *here, *have[last + 1 :]]
        return self.looked_up(table, index, at, [p for p, _ in made], [s for _, s in made])

    def take_along(
        self, table: PositionalArray, index: PositionalArray, at: int
    ) -> PositionalArray:
        """The same if the index has all the other positions of the table, iterated together."""
        for i, (have, want) in enumerate(zip(table.sizes, index.sizes, strict=True)):
            if i != at and have != want:
                raise NotExpressible(what="a lookup in a part of a table")
        return self.take(table, index, at, {i: i for i in range(len(table.sizes)) if i != at})

    def index_apart(self, table: PositionalArray, index: PositionalArray) -> PositionalArray:
        if index.constant is not None:
            index = self.spread(index)
        taken = {f for p in table.positions for f in self.axes.atoms(p)}
        return self.agreement.apart(self.as_array(index), range(len(index.positions)), taken)

    def spread(self, x: PositionalArray) -> PositionalArray:
        """A constant as an array along its first position that is longer than 1."""
        number = x.constant
        at = next((i for i, s in enumerate(x.sizes) if s != ONE), None)
        if at is None or number is None:
            raise NotExpressible(what="a lookup of one place")
        counted = self.counting(x.sizes[at])
        made = self.elementwise(lambda t: t * 0 + number, counted)
        positions = (*x.positions[:at], made.positions[0], *x.positions[at + 1 :])
        return replace(made, positions=positions, sizes=x.sizes)

    def looked_up(
        self,
        table: PositionalArray,
        index: PositionalArray,
        at: int,
        positions: Sequence[Position],
        sizes: Sequence[Size],
    ) -> PositionalArray:
        """The result of a lookup, with its positions.

        If a table is computed element by element, its operands are looked up instead.
        """
        table = self.as_array(table)
        factors = self.axes.atoms(table.positions[at])
        if len(factors) != 1 or factors[0] not in self.recorder.axes_of(table.record):
            raise NotExpressible(what="a lookup along several axes, or along none")
        found: dict[int, int] = {}
        for number in self.computed_along(table.record, factors[0]):
            made = self.recorder.records[number]
            if factors[0] not in self.recorder.axes_of(number):
                found[number] = number
            elif isinstance(made.primitive, Pointwise):
                operands = [found[x] for x in made.operands]
                each = self.recorder.pointwise(made.primitive.expr, operands, made.dtype)
                found[number] = each.record
            else:
                found[number] = self.looked_up_in_input(number, index.record, factors)
        return replace(
            table, positions=tuple(positions), sizes=tuple(sizes), record=found[table.record]
        )

    def computed_along(self, record: int, factor: Factor) -> list[int]:
        """The records that an array is computed from element by element, operands first.

        Those without a factor are given, and not what they are computed from.
        """
        found: set[int] = set()
        pending = [record]
        while pending:
            number = pending.pop()
            if number in found:
                continue
            found.add(number)
            made = self.recorder.records[number]
            if isinstance(made.primitive, Pointwise) and factor in self.recorder.axes_of(number):
                pending += made.operands
        return sorted(found)

    def looked_up_in_input(self, table: int, index: int, factors: Position) -> int:
        """The record of a lookup in an input."""
        made = self.recorder.records[table]
        if not isinstance(made.primitive, Given):
            raise NotExpressible(what="a lookup in a table that is computed in the same kernel")
        rest = [f for f in self.recorder.axes_of(table) if f is not factors[0]]
        axes = tuple(dict.fromkeys([*self.recorder.axes_of(index), *rest]))
        self.axes.keep_apart([*axes, *factors])
        lookup: TableLookup[Position] = TableLookup(factors)
        return self.recorder.record(lookup, (table, index), axes, made.dtype).record

    def placed(
        self,
        base: PositionalArray,
        index: PositionalArray,
        at: int,
        value: PositionalArray,
        along: Sequence[int],
    ) -> PlacedArray:
        """`value` as rows of `base`, an input, at the places `index` along a position of it.

        `along` has the position of the value that each position of the index runs along.
        """
        wide = [(i, j) for i, j in enumerate(along) if index.sizes[i] != ONE]
        others = [[s for i, s in enumerate(x.sizes) if i != at] for x in (base, value)]
        if len(value.sizes) != len(base.sizes) or others[0] != others[1]:
            raise NotExpressible(what="rows of another shape than their place")
        if any(index.sizes[i] != value.sizes[j] for i, j in wide):
            raise NotExpressible(what="rows of another number than their places")
        value = self.elementwise(lambda t: t, self.as_array(value))
        kept = [i for i, s in enumerate(base.sizes) if i != at and s != ONE]
        base = self.agreement.agreed(base, [(value, i, i) for i in kept])
        index = self.agreement.agreed(index, [(value, j, i) for i, j in wide])
        if not all(isinstance(self.primitive(x), Given) for x in (base, index)):
            raise NotExpressible(what="places or rows of what is computed in the same kernel")
        return PlacedArray(value, base, index, at)

    def fitted(self, x: PositionalArray, at: int, y: PositionalArray, y_at: int) -> PositionalArray:
        """`y` with the axes of one position of `x` at one of its own."""
        return self.agreement.agreed(y, [(x, at, y_at)])

    # ------------------------------------------------------------------- views

    def view(self, x: PositionalArray, sizes: Sequence[Size]) -> PositionalArray:
        """`x` in another shape."""
        try:
            positions = self.axes.regroup(x.positions, x.sizes, sizes)
        except (AxesDisagree, AxesMeet) as error:
            raise NotExpressible(what=f"a view that no split of axes gives ({error})") from None
        return replace(x, positions=tuple(positions), sizes=tuple(sizes))

    def permute(self, x: PositionalArray, order: Sequence[int]) -> PositionalArray:
        """`x` with its positions in another order."""
        return replace(
            x,
            positions=tuple(x.positions[i] for i in order),
            sizes=tuple(x.sizes[i] for i in order),
        )

    def insert(self, x: PositionalArray, at: int) -> PositionalArray:
        """`x` with a new position of length 1."""
        positions = (*x.positions[:at], (), *x.positions[at:])
        return replace(x, positions=positions, sizes=(*x.sizes[:at], ONE, *x.sizes[at:]))

    def drop(self, x: PositionalArray, at: Sequence[int]) -> PositionalArray:
        """`x` without some positions of length 1."""
        return x.without(at)

    def expand(self, x: PositionalArray, sizes: Sequence[Size]) -> PositionalArray:
        """`x` broadcast to a shape."""
        x = x.with_rank(len(sizes))
        positions = [
            self.axes.new(wanted) if have == ONE else position
            for position, have, wanted in zip(x.positions, x.sizes, sizes, strict=True)
        ]
        self.axes.keep_apart(f for p in positions for f in p)
        return replace(x, positions=tuple(positions), sizes=tuple(sizes))

    def stack(self, values: Sequence[PositionalArray], at: int) -> PositionalArray:
        """Equally long arrays concatenated along a position, which becomes (array, index in it)."""
        which = self.axes.new(Size(len(values)))
        if len(which) == 0:
            return values[0]
        piece = values[0].sizes[at]
        if any(v.sizes[at] != piece for v in values):
            raise NotExpressible(what="a concatenation of unequal pieces")
        values = self.agreement.aligned(values) if piece != ONE else [*values]
        whole = [
            replace(
                v,
                positions=(*v.positions[:at], which, v.positions[at], *v.positions[at + 1 :]),
                sizes=(*v.sizes[:at], Size(len(values)), piece, *v.sizes[at + 1 :]),
            )
            for v in values
        ]
        if all(v == values[0] for v in values):
            made = whole[0]
            self.axes.keep_apart(f for p in made.positions for f in p)
        else:
            after = len(whole[0].sizes) - at - 1
            number = self.positions(which, Size(len(values)), after)
            made = self.elementwise(_chosen, number, *whole, dtype=values[0].dtype)
        merged = (*made.positions[at], *made.positions[at + 1])
        return replace(
            made,
            positions=(*made.positions[:at], merged, *made.positions[at + 2 :]),
            sizes=(*made.sizes[:at], product(made.sizes[at : at + 2]), *made.sizes[at + 2 :]),
        )

    # ------------------------------------------------------------------- the program

    def finish(self, outputs: Mapping[str, PositionalArray | PlacedArray]) -> PositionalProgram:
        """The array program that gives these arrays."""
        return Emitter(self.name, self.recorder).program(outputs)


def _terms(
    operands: Sequence[Operand], values: Sequence[PositionalArray], kinds: Sequence[DType]
) -> list[Expr]:
    """An expression for each operand: an argument for an array, or a number.

    `values` are the arrays and constants among the operands, `kinds` the dtypes of the arrays.
    """
    numbers, left = iter(range(len(kinds))), iter(values)
    terms: list[Expr] = []
    for operand in operands:
        if not isinstance(operand, PositionalArray):
            terms.append(const(operand))
            continue
        value = next(left)
        if value.constant is None:
            terms.append(arg(next(numbers)))
        else:
            is_wider = _is_wider(value, kinds)
            terms.append(cast(value.constant, value.dtype) if is_wider else value.constant)
    return terms


def _chosen(number: Expr, *pieces: Expr) -> Expr:
    """The piece with a number."""
    made = pieces[-1]
    for i, piece in reversed([*enumerate(pieces[:-1])]):
        made = call("where", call("eq", number, i), piece, made)
    return made


def _is_wider(constant: PositionalArray, kinds: Sequence[DType]) -> bool:
    """True if a constant array makes arrays of these dtypes wider; a single number does not."""
    wide = {DType.float64: {DType.float64}, DType.int64: {DType.int64, *_FLOATS}}
    enough = wide.get(constant.dtype)
    return bool(constant.sizes and kinds and enough and enough.isdisjoint(kinds))


_FLOATS = frozenset(dtype for dtype in DType if dtype.is_float)


def _widest(values: Sequence[PositionalArray]) -> tuple[tuple[Position, ...], tuple[Size, ...]]:
    """The broadcast positions and sizes: at each position those of the first longer than 1."""
    positions: list[Position] = []
    sizes: list[Size] = []
    for column in zip_longest(*(zip(v.positions, v.sizes, strict=True) for v in values)):
        position, extent = next(((p, s) for p, s in column if s != ONE), ((), ONE))
        positions.append(position)
        sizes.append(extent)
    return tuple(positions), tuple(sizes)
