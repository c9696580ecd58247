"""Array programs from operators over positions, as frameworks have them.

A front end calls one method for each operator of a model. Positions become sequences of factors
(axes.py), views and broadcasts only rearrange these, and at the end the factors are named axes of
an ArrayProgram. What has no such form raises `NotExpressible`, and the front end cuts there.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from types import MappingProxyType

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
from blockbuster_fusion.array.canonical import (
    canonical,
    has_opposite,
    masked_scale,
    turned_choice,
)
from blockbuster_fusion.array.named import Emitter
from blockbuster_fusion.array.records import (
    Contraction,
    Counting,
    Given,
    Lookup,
    Made,
    Operand,
    Pointwise,
    PositionalArray,
    PositionalProgram,
    Record,
    Renamed,
    Summary,
)
from blockbuster_fusion.errors import NotExpressible
from blockbuster_fusion.ir.combiner import ADD, MAX, MIN, MUL, Combiner
from blockbuster_fusion.ir.expr import (
    Expr,
    arg,
    call,
    cast,
    const,
    count_operations,
    postorder,
    result_dtype,
    substitute,
)
from blockbuster_fusion.ir.types import DType, promote


@dataclass
class PositionalBuilder:
    """An array program in the making."""

    name: str
    axes: Axes = field(default_factory=Axes)
    records: list[Record] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    """How many operators lie one behind the other up to each record."""
    sources: dict[int, str] = field(default_factory=dict)
    known: dict[tuple[Expr, tuple[int, ...], DType], int] = field(default_factory=dict)
    """The records of expressions of records: what is written twice is computed once."""

    # ------------------------------------------------------------------- where values come from

    def input(
        self, name: str, sizes: Sequence[Size], dtype: DType, source: str = ""
    ) -> PositionalArray:
        """An array from outside; the same `source` may be taken in more than once."""
        positions = tuple(self.axes.new(s) for s in sizes)
        factors = tuple(f for p in positions for f in p)
        value = self.record(Given(name, positions), (), factors, dtype, positions, tuple(sizes))
        self.sources[value.record] = source or name
        return value

    def constant(
        self, value: Expr | int | float | bool, sizes: Sequence[Size], dtype: DType
    ) -> PositionalArray:
        """One number everywhere."""
        if not isinstance(value, Expr):
            kind = float if dtype.is_float else bool if dtype is DType.bool_ else int
            value = const(kind(value))
        positions = tuple(self.axes.new(s) for s in sizes)
        return PositionalArray(positions, tuple(sizes), dtype, constant=value)

    def counting(self, extent: Size) -> PositionalArray:
        """0, 1, 2, … up to a size."""
        if extent == ONE:
            return self.constant(0, (ONE,), DType.int64)
        position = self.axes.new(extent)
        return self.record(Counting(position), (), position, DType.int64, (position,), (extent,))

    def record(
        self,
        made: Made,
        operands: Sequence[int],
        axes: Sequence[Factor],
        dtype: DType,
        positions: Sequence[Position],
        sizes: Sequence[Size],
    ) -> PositionalArray:
        """A new array."""
        self.records.append(Record(made, tuple(operands), tuple(axes), dtype))
        self.depths.append(1 + max((self.depths[v] for v in operands), default=-1))
        seen = dict.fromkeys(f for p in positions for f in p)
        self.axes.keep_apart(dict.fromkeys([*axes, *seen]))
        return PositionalArray(tuple(positions), tuple(sizes), dtype, len(self.records) - 1)

    # ------------------------------------------------------------------- computing

    def elementwise(
        self, make: Callable[..., Expr], *operands: Operand, dtype: DType | None = None
    ) -> PositionalArray:
        """`make` of every element, called with an Expr for each operand; broadcasts as usual."""
        return self.sized(lambda _, *x: make(*x), *operands, dtype=dtype)

    def sized(
        self, make: Callable[..., Expr], *operands: Operand, dtype: DType | None = None
    ) -> PositionalArray:
        """The same, with `make(size_of, …)` told the sizes of factors."""
        values = self.aligned([x for x in operands if isinstance(x, PositionalArray)])
        arrays = [v for v in values if v.constant is None]
        kinds = [v.dtype for v in arrays]
        numbers = iter(range(len(arrays)))
        left = iter(values)
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
        positions, sizes = _widest(values)
        probe = make(lambda factors: const(2.0), *terms)
        kind = dtype or result_dtype(probe, kinds)
        if arrays and result_dtype(probe, kinds) is not kind:  # numbers alone have no dtype
            return self.sized(lambda *x: cast(make(*x), kind), *operands, dtype=kind)
        if not arrays and not _has_sizes(make, terms):
            return PositionalArray(positions, sizes, kind, constant=probe)
        if not arrays:
            raise NotExpressible(what="a number that depends on sizes alone")
        records = [v.record for v in arrays]
        if not _has_sizes(make, terms):
            return self.pointwise(probe, records, kind, positions, sizes)
        axes = self.axes_of(records)
        pointwise = Pointwise(lambda size_of: canonical(make(size_of, *terms), kinds))
        return self.record(pointwise, records, axes, kind, positions, sizes)

    def pointwise(
        self,
        expr: Expr,
        records: Sequence[int],
        dtype: DType,
        positions: Sequence[Position],
        sizes: Sequence[Size],
    ) -> PositionalArray:
        """An expression of arrays that lie alike, in its one form (canonical.py)."""
        made, used = self.canonical(expr, records)
        key = (made, tuple(used), dtype)
        same = used[0] if made.op == "arg" else self.known.get(key)
        if same is not None and expr.op != "arg":
            self.axes.keep_apart(f for p in positions for f in p)
            return PositionalArray(tuple(positions), tuple(sizes), dtype, same)
        pointwise = Pointwise(lambda size_of: made, made)
        axes = self.axes_of(used)
        value = self.record(pointwise, used, axes, dtype, positions, sizes)
        self.known[key] = value.record
        return value

    def canonical(self, expr: Expr, records: Sequence[int]) -> tuple[Expr, list[int]]:
        """The one form of an expression of records, taking in records that simplify with it."""
        expr, used = _compact(expr, records)
        expr = canonical(expr, self.dtypes(used))
        turned = turned_choice(expr)
        if turned is not None and self.has_opposite(used[turned[0]]):
            at, choice = turned
            opposite = self.pointwise(call("not_", arg(0)), [used[at]], DType.bool_, (), ())
            # what is chosen may be the condition itself, which stays as it is
            choice = call("where", arg(len(used)), *choice.args[1:])
            return self.canonical(choice, [*used, opposite.record])
        for i, number in enumerate(used):
            inner = self.records[number].made
            if not isinstance(inner, Pointwise) or inner.expr is None:
                continue
            scaled = masked_scale(expr, inner.expr)
            if scaled is not None:
                operands = self.records[number].operands
                kept = self.pointwise(
                    arg(0) * scaled.factor,
                    [operands[scaled.kept]],
                    self.records[number].dtype,
                    (),
                    (),
                )
                choice = call("where", arg(0), arg(1), scaled.left_out)
                return self.canonical(choice, [operands[scaled.condition], kept.record])
            operands = self.records[number].operands
            count = len(used)
            taken_in = [
                substitute(inner.expr, [arg(count + k) for k in range(len(operands))])
                if j == i
                else arg(j)
                for j in range(count)
            ]
            together = substitute(expr, taken_in)
            simple = canonical(together, self.dtypes([*used, *operands]))
            if count_operations(simple) < count_operations(together):
                return self.canonical(simple, [*used, *operands])
        return self.ordered(*_compact(expr, used))

    def has_opposite(self, number: int) -> bool:
        record = self.records[number]
        made = record.made
        if not isinstance(made, Pointwise) or made.expr is None:
            return False
        return has_opposite(made.expr, self.dtypes(record.operands))

    def ordered(self, expr: Expr, used: list[int]) -> tuple[Expr, list[int]]:
        """Of two arrays that commute, the one that takes fewer steps to compute comes first."""
        is_pair = expr.op in ("add", "mul") and [a.op for a in expr.args] == ["arg", "arg"]
        if is_pair and len(used) == 2 and self.depths[used[0]] > self.depths[used[1]]:
            return call(expr.op, arg(0), arg(1)), used[::-1]
        return expr, used

    def dtypes(self, records: Sequence[int]) -> list[DType]:
        return [self.records[r].dtype for r in records]

    def axes_of(self, records: Sequence[int]) -> tuple[Factor, ...]:
        every = (f for r in records for f in self.records[r].axes)
        return tuple(dict.fromkeys(self.axes.atoms(every)))

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
            positions, sizes = _without(x, at, keep=keep)
            return replace(x, positions=positions, sizes=sizes)
        x = self.as_array(x)
        if combiner in (ADD, MUL) and x.dtype in (DType.bool_, DType.int32):
            x = self.elementwise(lambda t: cast(t, DType.int64), x, dtype=DType.int64)
        factors = self.axes.atoms(f for p in at for f in x.positions[p])
        have = self.axes.atoms(self.records[x.record].axes)
        absent = [f for f in factors if f not in have]
        if absent and not distinct:
            x = self.combined_copies(combiner, x, absent)
        factors = tuple(f for f in factors if f in have)
        if not factors and combiner is ADD and x.dtype.is_float:
            x = self.elementwise(lambda t: t + 0.0, x)  # a sum begins with 0.0, also that of -0.0
        positions, sizes = _without(x, at, keep=keep)
        if not factors:
            return replace(x, positions=positions, sizes=sizes)
        axes = tuple(f for f in have if f not in factors)
        made = Summary(tuple(dict.fromkeys(f for f in have if f in factors)), combiner)
        return self.record(made, (x.record,), axes, x.dtype, positions, sizes)

    def present(self, x: PositionalArray, at: Iterable[int]) -> list[Factor]:
        """The axes at some positions along which `x` is not broadcast."""
        have = self.axes.atoms(self.records[x.record].axes)
        return [f for f in self.axes.atoms(f for i in at for f in x.positions[i]) if f in have]

    def along(self, x: PositionalArray, at: Iterable[int]) -> list[Factor]:
        """The axes at some positions, along which `x` may be broadcast."""
        return [f for i in at for f in x.positions[i]]

    def take(
        self,
        table: PositionalArray,
        index: PositionalArray,
        at: int,
        walked: Mapping[int, int] = MappingProxyType({}),
    ) -> PositionalArray:
        """`table` at the places along a position that `index` says, whose positions stand there.

        `walked` are neighbours of that position, each with the one of the index that it is walked
        together with.
        """
        index = self.index_apart(table, index)
        wide = [
            (table, i, j) for i, j in walked.items() if ONE not in (table.sizes[i], index.sizes[j])
        ]
        index = self.agreed(index, wide)
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
        """The same where the index has all the other positions of the table, walked together."""
        for i, (have, want) in enumerate(zip(table.sizes, index.sizes, strict=True)):
            if i != at and have != want:
                raise NotExpressible(what="a lookup in a part of a table")
        return self.take(table, index, at, {i: i for i in range(len(table.sizes)) if i != at})

    def index_apart(self, table: PositionalArray, index: PositionalArray) -> PositionalArray:
        if index.constant is not None:
            index = self.spread(index)
        taken = {f for p in table.positions for f in self.axes.atoms(p)}
        return self.apart(self.as_array(index), range(len(index.positions)), taken)

    def spread(self, x: PositionalArray) -> PositionalArray:
        """A constant as an array, along the first position that has a length."""
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
        table = self.as_array(table)
        factors = self.axes.atoms(table.positions[at])
        have = self.axes.atoms(self.records[table.record].axes)
        if not isinstance(self.records[table.record].made, Given):
            raise NotExpressible(what="a lookup in a table that is computed in the same kernel")
        if len(factors) != 1 or factors[0] not in have:
            raise NotExpressible(what="a lookup along several axes, or along none")
        rest = [f for f in have if f is not factors[0]]
        axes = dict.fromkeys([*self.axes.atoms(self.records[index.record].axes), *rest])
        self.axes.keep_apart([*axes, *factors])
        operands = (table.record, index.record)
        made = Lookup(factors)
        return self.record(made, operands, tuple(axes), table.dtype, positions, sizes)

    def combined_copies(
        self, combiner: Combiner, x: PositionalArray, absent: Sequence[Factor]
    ) -> PositionalArray:
        """`x` combined with itself, as often as it is repeated along some axes."""
        if combiner in (MAX, MIN):
            return x
        if combiner is not ADD:
            raise NotExpressible(what="a product along a broadcast axis")
        return self.sized(lambda size_of, t: t * size_of(absent), x)

    def contract(
        self, x: PositionalArray, y: PositionalArray, left: str, right: str, result: str
    ) -> PositionalArray:
        """The sum of products, with a letter for each position as in `bmk,bkn->bmn`."""
        x, y = self.as_array(x), self.as_array(y)
        shared = [(left.index(c), right.index(c)) for c in left if c in right]
        wide = [(x, i, j) for i, j in shared if ONE not in (x.sizes[i], y.sizes[j])]
        y = self.agreed(y, wide)
        at = {letter: (x.positions[i], x.sizes[i]) for i, letter in enumerate(left)}
        y_only = [i for i, letter in enumerate(right) if letter not in left]
        taken = {f for p in x.positions for f in self.axes.atoms(p)}
        y = self.apart(y, y_only, taken)
        for i, letter in enumerate(right):
            if letter not in at or not self.axes.atoms(at[letter][0]):
                at[letter] = (y.positions[i], y.sizes[i])
        summed = [at[letter][0] for letter in left if letter in right and letter not in result]
        factors = self.axes.atoms(f for p in summed for f in p)
        axes_x = self.axes.atoms(self.records[x.record].axes)
        axes_y = self.axes.atoms(self.records[y.record].axes)
        positions = [at[letter][0] for letter in result]
        sizes = [at[letter][1] for letter in result]
        if any(f not in axes_x or f not in axes_y for f in factors):
            raise NotExpressible(what="a contraction along a broadcast axis")
        axes = tuple(f for f in dict.fromkeys([*axes_x, *axes_y]) if f not in factors)
        self.axes.keep_apart(dict.fromkeys([*axes_x, *axes_y]))
        kind = promote(x.dtype, y.dtype)
        # a sum of one product is that product
        made = Contraction(factors) if factors else Pointwise(lambda size_of: arg(0) * arg(1))
        return self.record(made, (x.record, y.record), axes, kind, positions, sizes)

    # ------------------------------------------------------------------- positions that agree

    def aligned(self, values: Sequence[PositionalArray]) -> list[PositionalArray]:
        """The values with as many positions each, and what stands at each the same axes."""
        rank = max((len(v.positions) for v in values), default=0)
        made: list[PositionalArray] = []
        for value in (_with_rank(v, rank) for v in values):
            wide = [at for at in range(rank) if value.sizes[at] != ONE]
            first = {at: next((v for v in made if v.sizes[at] != ONE), None) for at in wide}
            value = self.agreed(value, [(v, at, at) for at, v in first.items() if v is not None])
            made.append(self.apart_elsewhere(value, made))
        return made

    def apart_elsewhere(
        self, y: PositionalArray, others: Sequence[PositionalArray]
    ) -> PositionalArray:
        """`y` with no axis that another value has at another position: x and x transposed."""
        for at, position in enumerate(y.positions):
            here = {f for v in others for f in self.axes.atoms(v.positions[at])}
            elsewhere = {
                f
                for v in others
                for i, p in enumerate(v.positions)
                if i != at
                for f in self.axes.atoms(p)
            }
            atoms = self.axes.atoms(position)
            if any(f in elsewhere for f in atoms):
                if any(f in here for f in atoms):
                    raise NotExpressible(what="an array and itself with axes exchanged")
                y = self.renamed(y, [at])
        return y

    def agreed(
        self, y: PositionalArray, wanted: Sequence[tuple[PositionalArray, int, int]]
    ) -> PositionalArray:
        """`y` with the same axes as other values: (`x`, its position, that of `y`) each."""
        try:
            made = y
            for x, at, y_at in wanted:
                made = self.unified(x, at, made, y_at)
            return made
        except AxesMeet:
            # an axis that one position needs stands at another one: all are named anew
            made = self.renamed(y, range(len(y.positions)))
        try:
            for x, at, y_at in wanted:
                made = self.unified(x, at, made, y_at)
            return made
        except AxesMeet:
            raise NotExpressible(what="an array that has one axis twice") from None

    def unified(
        self, x: PositionalArray, at: int, y: PositionalArray, y_at: int
    ) -> PositionalArray:
        """`y` with what stands at one of its positions the same axes as in `x`, or AxesMeet."""
        try:
            try:
                self.axes.unify(x.positions[at], y.positions[y_at])
            except AxesMeet:
                y = self.renamed(y, [y_at])
                self.axes.unify(x.positions[at], y.positions[y_at])
        except AxesDisagree as error:
            raise NotExpressible(what=f"positions that fit no common axes ({error})") from None
        return y

    def fitted(self, x: PositionalArray, at: int, y: PositionalArray, y_at: int) -> PositionalArray:
        """`y` with what stands at one of its positions the same axes as in `x`."""
        return self.agreed(y, [(x, at, y_at)])

    def apart(self, y: PositionalArray, at: Sequence[int], taken: set[Factor]) -> PositionalArray:
        """`y` with none of the factors in `taken` at some positions: one array has none twice."""
        clash = [i for i in at if any(f in taken for f in self.axes.atoms(y.positions[i]))]
        return self.renamed(y, clash) if clash else y

    def renamed(self, y: PositionalArray, at: Sequence[int]) -> PositionalArray:
        """`y` with new axes at some positions."""
        old = self.axes.atoms(f for i in at for f in y.positions[i])
        new = tuple(Factor(f.size) for f in old)
        swap = dict(zip(old, new, strict=True))

        def moved(position: Position) -> Position:
            return tuple(swap.get(f, f) for f in self.axes.atoms(position))

        positions = tuple(moved(p) for p in y.positions)
        if y.constant is not None:
            return replace(y, positions=positions)
        again = self.taken_again(y.record, swap)
        if again is not None:
            self.axes.keep_apart(f for p in positions for f in p)
            return replace(y, positions=positions, record=again)
        have = self.axes.atoms(self.records[y.record].axes)
        axes = tuple(swap.get(f, f) for f in have)
        really = [f for f in old if f in have]
        if not really:
            return replace(y, positions=positions)
        made = Renamed(tuple(really), tuple(swap[f] for f in really))
        return self.record(made, (y.record,), axes, y.dtype, positions, y.sizes)

    def taken_again(self, number: int, swap: Mapping[Factor, Factor]) -> int | None:
        """A record along other axes: an input taken in twice, or positions counted twice, and what
        is computed from these in whole numbers and truths."""
        record = self.records[number]

        def moved(factors: Iterable[Factor]) -> Position:
            return tuple(swap.get(f, f) for f in self.axes.atoms(factors))

        axes = moved(record.axes)
        if axes == self.axes.atoms(record.axes):
            return number
        made, operands = record.made, list[int]()
        match made:
            case Given(name, positions):
                made = Given(name, tuple(moved(p) for p in positions))
            case Counting(factors):
                made = Counting(moved(factors))
            case Pointwise() if not record.dtype.is_float:
                again = [self.taken_again(v, swap) for v in record.operands]
                operands = [v for v in again if v is not None]
                if len(operands) < len(again):
                    return None
            case _:
                return None
        value = self.record(made, operands, axes, record.dtype, (), ())
        if number in self.sources:
            self.sources[value.record] = self.sources[number]
        return value.record

    def as_array(self, x: PositionalArray) -> PositionalArray:
        """`x` as an array that was recorded."""
        if x.constant is not None:
            raise NotExpressible(what="a reduction or contraction of a constant")
        return x

    # ------------------------------------------------------------------- views

    def view(self, x: PositionalArray, sizes: Sequence[Size]) -> PositionalArray:
        """`x` in another shape."""
        try:
            positions = self.axes.regroup(x.positions, x.sizes, sizes)
        except (AxesDisagree, AxesMeet) as error:
            raise NotExpressible(what=f"a view that no split of axes gives ({error})") from None
        return replace(x, positions=tuple(positions), sizes=tuple(sizes))

    def permute(self, x: PositionalArray, order: Sequence[int]) -> PositionalArray:
        """The positions in another order."""
        return replace(
            x,
            positions=tuple(x.positions[i] for i in order),
            sizes=tuple(x.sizes[i] for i in order),
        )

    def insert(self, x: PositionalArray, at: int) -> PositionalArray:
        """A new position of length 1."""
        positions = (*x.positions[:at], (), *x.positions[at:])
        return replace(x, positions=positions, sizes=(*x.sizes[:at], ONE, *x.sizes[at:]))

    def drop(self, x: PositionalArray, at: Sequence[int]) -> PositionalArray:
        """Without some positions of length 1."""
        positions, sizes = _without(x, at, keep=False)
        return replace(x, positions=positions, sizes=sizes)

    def expand(self, x: PositionalArray, sizes: Sequence[Size]) -> PositionalArray:
        """`x` broadcast to a shape."""
        x = _with_rank(x, len(sizes))
        positions = [
            self.axes.new(wanted) if have == ONE else position
            for position, have, wanted in zip(x.positions, x.sizes, sizes, strict=True)
        ]
        self.axes.keep_apart(f for p in positions for f in p)
        return replace(x, positions=tuple(positions), sizes=tuple(sizes))

    def stack(self, values: Sequence[PositionalArray], at: int) -> PositionalArray:
        """Equal pieces behind one another along a position, which is split: piece, place in it."""
        which = self.axes.new(Size(len(values)))
        if len(which) == 0:
            return values[0]
        piece = values[0].sizes[at]
        if any(v.sizes[at] != piece for v in values):
            raise NotExpressible(what="a concatenation of unequal pieces")
        values = self.aligned(values) if piece != ONE else [*values]
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
            shape = tuple(ONE for _ in range(len(whole[0].sizes) - at - 1))
            number = self.record(
                Counting(which), (), which, DType.int64, (which, *(() for _ in shape)),
                (Size(len(values)), *shape),
            )  # fmt: skip
            made = self.elementwise(_chosen, number, *whole, dtype=values[0].dtype)
        merged = (*made.positions[at], *made.positions[at + 1])
        return replace(
            made,
            positions=(*made.positions[:at], merged, *made.positions[at + 2 :]),
            sizes=(*made.sizes[:at], product(made.sizes[at : at + 2]), *made.sizes[at + 2 :]),
        )

    # ------------------------------------------------------------------- the program

    def finish(self, outputs: Mapping[str, PositionalArray]) -> PositionalProgram:
        """The array program that gives these values."""
        return Emitter(self.name, self.records, self.axes, self.sources).program(outputs)


def _chosen(number: Expr, *pieces: Expr) -> Expr:
    """The piece that a number says."""
    made = pieces[-1]
    for i, piece in reversed([*enumerate(pieces[:-1])]):
        made = call("where", call("eq", number, i), piece, made)
    return made


def _compact(expr: Expr, records: Sequence[int]) -> tuple[Expr, list[int]]:
    """The expression with an argument for each record that it uses, in the order of their use."""
    used: dict[int, Expr] = {}
    for node in postorder(expr):
        if node.op == "arg":
            used.setdefault(records[node.index], arg(len(used)))
    return substitute(expr, [used.get(r, arg(0)) for r in records]), [*used]


def _has_sizes(make: Callable[..., Expr], terms: Sequence[Expr]) -> bool:
    asked = False

    def size_of(factors: Sequence[Factor]) -> Expr:
        nonlocal asked
        asked = True
        return const(2.0)

    make(size_of, *terms)
    return asked


def _is_wider(constant: PositionalArray, kinds: Sequence[DType]) -> bool:
    """Whether a constant array makes arrays of these dtypes wider; a single number does not."""
    wide = {DType.float64: {DType.float64}, DType.int64: {DType.int64, *_FLOATS}}
    enough = wide.get(constant.dtype)
    return bool(constant.sizes and kinds and enough and enough.isdisjoint(kinds))


_FLOATS = frozenset(dtype for dtype in DType if dtype.is_float)


def _with_rank(x: PositionalArray, rank: int) -> PositionalArray:
    missing = rank - len(x.positions)
    if not missing:
        return x
    return replace(x, positions=((),) * missing + x.positions, sizes=(ONE,) * missing + x.sizes)


def _widest(values: Sequence[PositionalArray]) -> tuple[tuple[Position, ...], tuple[Size, ...]]:
    """At each position of aligned values what the first that is not of length 1 has there."""
    positions: list[Position] = []
    sizes: list[Size] = []
    for column in zip_longest(*(zip(v.positions, v.sizes, strict=True) for v in values)):
        position, extent = next(((p, s) for p, s in column if s != ONE), ((), ONE))
        positions.append(position)
        sizes.append(extent)
    return tuple(positions), tuple(sizes)


def _without(
    x: PositionalArray, at: Sequence[int], *, keep: bool
) -> tuple[tuple[Position, ...], tuple[Size, ...]]:
    pairs = [*zip(x.positions, x.sizes, strict=True)]
    made = [((), ONE) if i in at else pair for i, pair in enumerate(pairs) if keep or i not in at]
    return tuple(p for p, _ in made), tuple(s for _, s in made)
