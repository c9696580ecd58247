"""Primitive array operators: each becomes one nest of maps in the block program."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from blockbuster_fusion.array.program import ArrayType
from blockbuster_fusion.errors import IllTyped
from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.ir.combiner import ADD, MAX, MIN, MUL, Combiner
from blockbuster_fusion.ir.expr import Expr, arg, arguments, arity, as_expr, call, cast, substitute
from blockbuster_fusion.ir.expr_dtypes import result_dtype
from blockbuster_fusion.ir.ops import Plain
from blockbuster_fusion.ir.split_expr import split_expression
from blockbuster_fusion.ir.types import DType, promote
from blockbuster_fusion.ir.verify_expr import axes_of, dtype_problem

A = TypeVar("A")
"""The kind of axis: a named Axis, or a sequence of factors without names yet (axes.py)."""


@dataclass(frozen=True, slots=True)
class Given:
    """An input of the program."""

    name: str


@dataclass(frozen=True, slots=True)
class Pointwise:
    """An expression for every element, broadcasting along axes that an operand lacks."""

    expr: Expr


@dataclass(frozen=True, slots=True)
class Summary(Generic[A]):
    """A reduction over one axis."""

    axis: A
    combiner: Combiner


@dataclass(frozen=True, slots=True)
class RunningSummary(Generic[A]):
    """An inclusive scan along one axis, as a running sum is."""

    axis: A
    combiner: Combiner


@dataclass(frozen=True, slots=True)
class Contraction(Generic[A]):
    """A sum of products over one axis that both operands have.

    `rounds_to` is the dtype in which it multiplies, where that matters.
    """

    axis: A
    rounds_to: DType | None = None


@dataclass(frozen=True, slots=True)
class TableLookup(Generic[A]):
    """The elements of a table at positions along one of its axes; the positions are data."""

    axis: A


@dataclass(frozen=True, slots=True)
class AxisPositions(Generic[A]):
    """0, 1, 2, … along an axis."""

    axis: A


@dataclass(frozen=True, slots=True)
class Renaming(Generic[A]):
    """The same array with one axis under another name."""

    old: A
    new: A


@dataclass(frozen=True, slots=True)
class External(Generic[A]):
    """An operator that only its namespace's executor knows; it gets each operand in its layout."""

    namespace: str
    name: str
    attributes: tuple[tuple[str, Plain], ...]
    layouts: tuple[tuple[A, ...], ...]


Primitive = (
    Given
    | Pointwise
    | Summary[A]
    | RunningSummary[A]
    | Contraction[A]
    | TableLookup[A]
    | AxisPositions[A]
    | Renaming[A]
    | External[A]
)


@dataclass(frozen=True, slots=True)
class PrimitiveStep:
    """One primitive with its operands (numbers of earlier steps) and the type of its result."""

    primitive: Primitive[Axis]
    operands: tuple[int, ...]
    type: ArrayType


@dataclass(frozen=True, slots=True)
class Ref:
    """The result of a step, as entries of the table use it."""

    step: int
    type: ArrayType

    @property
    def axes(self) -> tuple[Axis, ...]:
        return self.type.axes


class Primitives:
    """Records the primitives that operators expand to. Table entries are written against this."""

    def __init__(self) -> None:
        self.steps: list[PrimitiveStep] = []

    def given(self, name: str, kind: ArrayType) -> Ref:
        """An input of the program."""
        return self._step(Given(name), (), kind)

    def elementwise(self, function: Expr | Callable[..., Expr], *operands: Ref) -> Ref:
        """`function` of every element; a Python function is called with one Expr per operand.

        A large expression is computed in several steps.
        """
        if not isinstance(function, Expr):
            function = as_expr(function(*(arg(i) for i in range(len(operands)))))
        dtypes = tuple(x.type.dtype for x in operands)
        _check(function, dtypes)
        axes = tuple(dict.fromkeys(a for x in operands for a in x.axes))
        kind = ArrayType(axes, result_dtype(function, dtypes))
        parts, rest = split_expression(function)
        if not parts:
            return self._step(Pointwise(function), operands, kind)
        known = list(operands)
        for part in parts:
            expr, used = _used(part, known)
            known.append(self.elementwise(expr, *used))
        expr, used = _used(rest, known)
        return self._step(Pointwise(expr), used, kind)

    def mul(self, x: Ref, y: Ref) -> Ref:
        """`x * y`: a scale where one lacks axes of the other."""
        return self.elementwise(arg(0) * arg(1), x, y)

    def add(self, x: Ref, y: Ref) -> Ref:
        """`x + y`: a shift where one lacks axes of the other."""
        return self.elementwise(arg(0) + arg(1), x, y)

    def unary(self, name: str, x: Ref) -> Ref:
        """The scalar function called `name` of every element."""
        return self.elementwise(call(name, arg(0)), x)

    def reduce(self, combiner: Combiner, x: Ref, axis: Axis) -> Ref:
        """`x` without `axis`, its elements combined."""
        if axis not in x.axes:
            raise IllTyped(op=f"{combiner} over {axis}", problem=f"{x.type} has no such axis")
        if combiner in (ADD, MUL) and x.type.dtype in (DType.bool_, DType.int32):
            x = self.elementwise(cast(arg(0), DType.int64), x)  # a sum of bools counts
        kept = tuple(a for a in x.axes if a is not axis)
        return self._step(Summary(axis, combiner), (x,), ArrayType(kept, x.type.dtype))

    def scan(self, combiner: Combiner, x: Ref, axis: Axis) -> Ref:
        """`x` with each element combined with those before it along `axis`."""
        if axis not in x.axes:
            raise IllTyped(op=f"scan {combiner} over {axis}", problem=f"{x.type} has no such axis")
        if combiner in (ADD, MUL) and x.type.dtype in (DType.bool_, DType.int32):
            x = self.elementwise(cast(arg(0), DType.int64), x)  # a sum of bools counts
        return self._step(RunningSummary(axis, combiner), (x,), x.type)

    def sum(self, x: Ref, axis: Axis) -> Ref:
        return self.reduce(ADD, x, axis)

    def max(self, x: Ref, axis: Axis) -> Ref:
        return self.reduce(MAX, x, axis)

    def min(self, x: Ref, axis: Axis) -> Ref:
        return self.reduce(MIN, x, axis)

    def contract(self, x: Ref, y: Ref, axis: Axis, rounds_to: DType | None = None) -> Ref:
        """The sum over `axis` of `x * y`; other axes that both have stay, once.

        No operand is rounded to a less exact dtype than `rounds_to`.
        """
        for which, operand in (("left", x), ("right", y)):
            if axis not in operand.axes:
                problem = f"the {which} operand {operand.type} has no such axis"
                raise IllTyped(op=f"contraction over {axis}", problem=problem)
        axes = tuple(dict.fromkeys(a for r in (x, y) for a in r.axes if a is not axis))
        dtype = promote(x.type.dtype, y.type.dtype)
        return self._step(Contraction(axis, rounds_to), (x, y), ArrayType(axes, dtype))

    def take(self, table: Ref, index: Ref, axis: Axis) -> Ref:
        """The elements of `table` at the places `index` along `axis`, as in `table[index]`.

        The result has the axes of the index, then the other axes of the table; along axes of both,
        each element of the index looks into its own part of the table. Places count from 0
        upwards; a place outside the axis is an error that kernels on a GPU do not notice.

        A table that is computed elementwise is not stored: its operands are looked up instead.
        """
        name = f"take along {axis}"
        if axis not in table.axes:
            raise IllTyped(op=name, problem=f"the table {table.type} has no such axis")
        if index.type.dtype not in (DType.int64, DType.int32):
            problem = f"the places are {index.type.dtype}, not int64 or int32: cast them"
            raise IllTyped(op=name, problem=problem)
        if axis in index.axes:
            problem = f"the places {index.type} have that axis themselves: rename the table's"
            raise IllTyped(op=name, problem=problem)
        made: dict[int, Ref] = {}
        for i in self._elementwise_from(table.step, axis):
            step = self.steps[i]
            kept = (a for a in step.type.axes if a is not axis)
            kind = ArrayType(tuple(dict.fromkeys((*index.axes, *kept))), step.type.dtype)
            if isinstance(step.primitive, Pointwise):
                operands = [made.get(v) or Ref(v, self.steps[v].type) for v in step.operands]
                made[i] = self._step(step.primitive, operands, kind)
            elif isinstance(step.primitive, AxisPositions):
                made[i] = self.elementwise(cast(arg(0), DType.int64), index)  # position i is i
            else:
                made[i] = self._step(TableLookup(axis), (Ref(i, step.type), index), kind)
        return made[table.step]

    def _elementwise_from(self, last: int, axis: Axis) -> list[int]:
        """The steps along an axis that a step is computed from elementwise, and itself, in order.

        The first of them are those that are not elementwise.
        """
        found, stack = {last}, [last]
        while stack:
            step = self.steps[stack.pop()]
            if isinstance(step.primitive, Pointwise):
                new = {v for v in step.operands if axis in self.steps[v].type.axes} - found
                found |= new
                stack.extend(new)
        return sorted(found)

    def positions(self, axis: Axis) -> Ref:
        """The index along `axis`."""
        return self._step(AxisPositions(axis), (), ArrayType((axis,), DType.int64))

    def rename(self, x: Ref, old: Axis, new: Axis) -> Ref:
        """`x` with the axis `old` called `new`."""
        axes = tuple(new if a is old else a for a in x.axes)
        if len(set(axes)) < len(axes):
            raise IllTyped(op=f"rename {old}->{new}", problem=f"{x.type} has {new} already")
        if isinstance(self.steps[x.step].primitive, AxisPositions):
            return self.positions(new)  # positions have no memory to rename
        return self._step(Renaming(old, new), (x,), ArrayType(axes, x.type.dtype))

    def external(
        self,
        namespace: str,
        name: str,
        attributes: tuple[tuple[str, Plain], ...],
        layouts: tuple[tuple[Axis, ...], ...],
        operands: Iterable[Ref],
        kind: ArrayType,
    ) -> Ref:
        """An operator that stays a misc operator."""
        return self._step(External(namespace, name, attributes, layouts), tuple(operands), kind)

    def _step(self, primitive: Primitive[Axis], operands: Sequence[Ref], kind: ArrayType) -> Ref:
        self.steps.append(PrimitiveStep(primitive, tuple(x.step for x in operands), kind))
        return Ref(len(self.steps) - 1, kind)


def _check(expr: Expr, dtypes: tuple[DType, ...]) -> None:
    """IllTyped if an expression cannot be computed for arguments of these dtypes."""
    unsound = axes_of(expr)
    if isinstance(unsound, str):
        raise IllTyped(op="an expression", problem=unsound)  # it cannot even be printed
    if arity(expr) != len(dtypes):
        problem: str | None = f"takes {arity(expr)} operands and has {len(dtypes)}"
    else:
        problem = dtype_problem(expr, dtypes)
    if problem is not None:
        raise IllTyped(op=expr, problem=problem)


def _used(expr: Expr, operands: Sequence[Ref]) -> tuple[Expr, list[Ref]]:
    """The expression renumbered over the operands that it uses, and these operands."""
    used = sorted(arguments(expr))
    numbered = substitute(expr, {old: arg(new) for new, old in enumerate(used)})
    return numbered, [operands[i] for i in used]
