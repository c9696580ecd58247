"""Records primitives over factors; expressions are recorded in canonical form, and only once."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from blockbuster_fusion.array.axes import Axes, Factor, Position, Size
from blockbuster_fusion.array.canonical import (
    canonical,
    has_opposite,
    masked_scale,
    turned_choice,
)
from blockbuster_fusion.array.primitives import AxisPositions, Given, Pointwise, Primitive
from blockbuster_fusion.array.records import GivenArray, PositionalArray, Record
from blockbuster_fusion.ir.axis import Axis, Symbol
from blockbuster_fusion.ir.expr import (
    Expr,
    arg,
    call,
    contains,
    count_operations,
    postorder,
    size,
    substitute,
)
from blockbuster_fusion.ir.types import DType

_Use = tuple[Expr, list[int]]
"""An expression and the records that are its arguments."""


@dataclass
class Recorder:
    """The records of a program, over one system of factors."""

    axes: Axes = field(default_factory=Axes)
    records: list[Record] = field(default_factory=list)
    given: dict[int, GivenArray] = field(default_factory=dict)
    """The arrays from outside, by record."""
    lengths: dict[Axis, Position] = field(default_factory=dict)
    """The factors of each axis that stands for a size in an expression."""
    depths: list[int] = field(default_factory=list)
    """The length of the longest chain of operators up to each record."""
    known: dict[tuple[Expr, tuple[int, ...], DType], int] = field(default_factory=dict)
    """The records of expressions, so that equal expressions are computed once."""

    def record(
        self,
        primitive: Primitive[Position],
        operands: Sequence[int],
        axes: Sequence[Factor],
        dtype: DType,
        positions: Sequence[Position] = (),
        sizes: Sequence[Size] = (),
    ) -> PositionalArray:
        """Records a primitive; its result as an array with these positions."""
        self.records.append(Record(primitive, tuple(operands), tuple(axes), dtype))
        self.depths.append(1 + max((self.depths[v] for v in operands), default=-1))
        seen = dict.fromkeys(f for p in positions for f in p)
        self.axes.keep_apart(dict.fromkeys([*axes, *seen]))
        return PositionalArray(tuple(positions), tuple(sizes), dtype, len(self.records) - 1)

    def size(self, factors: Iterable[Factor]) -> Expr:
        """The number of elements along some factors, as an expression.

        An axis of its own stands for the factors until these have names.
        """
        name = f"#{len(self.lengths)}"
        axis = Axis(name, Symbol(name))
        self.lengths[axis] = tuple(factors)
        return size(axis)

    def dtypes(self, records: Sequence[int]) -> list[DType]:
        return [self.records[r].dtype for r in records]

    def axes_of(self, *records: int) -> Position:
        """The factors that the arrays of some records have, each once."""
        every = (f for r in records for f in self.records[r].axes)
        return tuple(dict.fromkeys(self.axes.atoms(every)))

    # ------------------------------------------------------------------- expressions

    def pointwise(
        self,
        expr: Expr,
        records: Sequence[int],
        dtype: DType,
        positions: Sequence[Position] = (),
        sizes: Sequence[Size] = (),
    ) -> PositionalArray:
        """Records an expression of aligned arrays; one with sizes is made canonical later."""
        if contains(expr, "size"):
            axes = self.axes_of(*records)
            return self.record(Pointwise(expr), records, axes, dtype, positions, sizes)
        made, used = self.canonical(expr, records)
        key = (made, tuple(used), dtype)
        same = used[0] if made.op == "arg" else self.known.get(key)
        if same is not None and expr.op != "arg":
            self.axes.keep_apart(f for p in positions for f in p)
            return PositionalArray(tuple(positions), tuple(sizes), dtype, same)
        value = self.record(Pointwise(made), used, self.axes_of(*used), dtype, positions, sizes)
        self.known[key] = value.record
        return value

    def canonical(self, expr: Expr, records: Sequence[int]) -> _Use:
        """The canonical form of an expression, with the operands that simplify it substituted."""
        expr, used = _compact(expr, records)
        expr = canonical(expr, self.dtypes(used))
        simpler = self.with_opposite(expr, used) or self.with_operand(expr, used)
        if simpler is not None:
            return self.canonical(*simpler)
        return self.ordered(*_compact(expr, used))

    def with_opposite(self, expr: Expr, used: list[int]) -> _Use | None:
        """A choice with its number last, if the opposite of its condition is as simple."""
        turned = turned_choice(expr)
        if turned is None:
            return None
        at, choice = turned
        condition = self.expression(used[at])
        operands = self.records[used[at]].operands
        if condition is None or not has_opposite(condition, self.dtypes(operands)):
            return None
        opposite = self.pointwise(call("not_", arg(0)), [used[at]], DType.bool_)
        # the chosen value may be the condition itself, which stays as it is
        choice = call("where", arg(len(used)), *choice.args[1:])
        return choice, [*used, opposite.record]

    def with_operand(self, expr: Expr, used: list[int]) -> _Use | None:
        """The expression with one of its operands substituted, if that makes it simpler."""
        for at, number in enumerate(used):
            inner = self.expression(number)
            if inner is None:
                continue
            found = self.scaled_choice(expr, inner, number) or self.merged(expr, inner, at, used)
            if found is not None:
                return found
        return None

    def scaled_choice(self, expr: Expr, inner: Expr, number: int) -> _Use | None:
        """The scale of a masked array, moved to the values that the mask keeps."""
        scaled = masked_scale(expr, inner)
        if scaled is None:
            return None
        record = self.records[number]
        kept = self.pointwise(arg(0) * scaled.factor, [record.operands[scaled.kept]], record.dtype)
        choice = call("where", arg(0), arg(1), scaled.left_out)
        return choice, [record.operands[scaled.condition], kept.record]

    def merged(self, expr: Expr, inner: Expr, at: int, used: list[int]) -> _Use | None:
        """The expression with operand `at` substituted, if its canonical form has fewer steps."""
        operands, count = self.records[used[at]].operands, len(used)
        arguments = [arg(i) for i in range(count)]
        arguments[at] = substitute(inner, [arg(count + k) for k in range(len(operands))])
        together = substitute(expr, arguments)
        simple = canonical(together, self.dtypes([*used, *operands]))
        if count_operations(simple) < count_operations(together):
            return simple, [*used, *operands]
        return None

    def expression(self, number: int) -> Expr | None:
        """The expression of an elementwise record, if it has no sizes."""
        match self.records[number].primitive:
            case Pointwise(expr) if not contains(expr, "size"):
                return expr
        return None

    def ordered(self, expr: Expr, used: list[int]) -> _Use:
        """Of two arrays that commute, the one that takes fewer steps to compute comes first."""
        is_pair = expr.op in ("add", "mul") and [a.op for a in expr.args] == ["arg", "arg"]
        if is_pair and len(used) == 2 and self.depths[used[0]] > self.depths[used[1]]:
            return call(expr.op, arg(0), arg(1)), used[::-1]
        return expr, used

    # ------------------------------------------------------------------- other axes

    def along(self, number: int, swap: Mapping[Factor, Factor]) -> int | None:
        """A record computed again along other factors, or None if it would be expensive.

        Inputs are read twice and positions counted twice; integers and booleans that are computed
        from these are computed twice.
        """
        record = self.records[number]

        def moved(factors: Iterable[Factor]) -> Position:
            return tuple(swap.get(f, f) for f in self.axes.atoms(factors))

        axes = moved(record.axes)
        if axes == self.axes.atoms(record.axes):
            return number
        primitive, operands = record.primitive, list[int]()
        match primitive:
            case Given():
                pass
            case AxisPositions(factors):
                primitive = AxisPositions(moved(factors))
            case Pointwise() if not record.dtype.is_float:
                again = [self.along(v, swap) for v in record.operands]
                operands = [v for v in again if v is not None]
                if len(operands) < len(again):
                    return None
            case _:
                return None
        made = self.record(primitive, operands, axes, record.dtype).record
        if number in self.given:
            given = self.given[number]
            self.given[made] = GivenArray(given.source, tuple(map(moved, given.positions)))
        return made


def _compact(expr: Expr, records: Sequence[int]) -> _Use:
    """The expression with an argument for each record that it uses, in the order of their use."""
    used: dict[int, Expr] = {}
    for node in postorder(expr):
        if node.op == "arg":
            used.setdefault(records[node.index], arg(len(used)))
    return substitute(expr, [used.get(r, arg(0)) for r in records]), [*used]
