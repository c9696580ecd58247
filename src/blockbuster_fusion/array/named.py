"""Array programs from records: atomic factors become named axes, records become operators."""

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import mul

from blockbuster_fusion.array.axes import AxesDisagree, Factor, Position, Size
from blockbuster_fusion.array.canonical import canonical
from blockbuster_fusion.array.primitives import (
    AxisPositions,
    Contraction,
    Given,
    Pointwise,
    Renaming,
    RunningSummary,
    Summary,
    TableLookup,
)
from blockbuster_fusion.array.program import (
    ArrayInput,
    ArrayOutput,
    ArrayProgram,
    ArrayType,
    Attribute,
    Operator,
)
from blockbuster_fusion.array.recorder import Recorder
from blockbuster_fusion.array.records import (
    FrameworkLayout,
    PlacedArray,
    PositionalArray,
    PositionalProgram,
    Record,
)
from blockbuster_fusion.array.table import result_type
from blockbuster_fusion.errors import NotExpressible
from blockbuster_fusion.ir.axis import Axis, Symbol
from blockbuster_fusion.ir.combiner import ADD
from blockbuster_fusion.ir.expr import Expr, arg, const, contains, rewrite, size
from blockbuster_fusion.ir.ops import Into
from blockbuster_fusion.ir.types import DType


class Emitter:
    """Writes records as operators over named axes."""

    def __init__(self, name: str, recorder: Recorder) -> None:
        self.name, self.recorder = name, recorder
        self.records, self.axes = recorder.records, recorder.axes
        self.names: dict[Factor, Axis] = {}
        self.inputs: list[ArrayInput] = []
        self.layouts: list[FrameworkLayout] = []
        self.operators: list[Operator] = []
        self.types: list[ArrayType] = []
        self.values: dict[int, int] = {}

    def program(self, outputs: Mapping[str, PositionalArray | PlacedArray]) -> PositionalProgram:
        needed = self.needed([v for out in outputs.values() for v in _arrays(out)])
        records = [(i, r) for i, r in enumerate(self.records) if i in needed]
        self.refine([r.primitive for _, r in records if isinstance(r.primitive, Renaming)])
        read = dict.fromkeys(v for _, r in records for v in r.operands)
        # inputs come in the order of their first use
        for i in (*read, *(i for i, _ in records if i not in read)):
            record = self.records[i]
            if isinstance(record.primitive, Given):
                self.take_in(i, record, record.primitive.name)
        for i, record in records:
            if not isinstance(record.primitive, Given):
                self.values[i] = self.emit(record)
        given = tuple(self.output(name, out) for name, out in outputs.items())
        program = ArrayProgram(self.name, tuple(self.inputs), tuple(self.operators), given)
        shown = {n: x.base if isinstance(x, PlacedArray) else x for n, x in outputs.items()}
        seen = tuple(self.layout(name, name, v) for name, v in shown.items())
        open_sizes = [(axis, f.size) for f, axis in self.names.items() if not f.size.is_known]
        return PositionalProgram(program, tuple(self.layouts), seen, tuple(open_sizes))

    def output(self, name: str, out: PositionalArray | PlacedArray) -> ArrayOutput:
        """An output, with its place if it is written into an input."""
        if isinstance(out, PositionalArray):
            return ArrayOutput(name, self.values[out.record], self.order(out))
        along, rest = self.atoms(out.base.positions[out.at]), [*out.base.positions]
        del rest[out.at]
        have = set(self.atoms(self.records[out.value.record].axes))
        if len(along) != 1 or not have.issuperset(self.atoms([f for p in rest for f in p])):
            raise NotExpressible(what="rows that are broadcast to their place")
        base, index = (self.values[x.record] for x in (out.base, out.index))
        into = Into(base, index, self.axis(along[0]))
        return ArrayOutput(name, self.values[out.value.record], self.order(out.value), into)

    def refine(self, renamed: Sequence[Renaming[Position]]) -> None:
        """Splits an axis under one name wherever it is split under the other."""
        pairs = [pair for one in renamed for pair in zip(one.old, one.new, strict=True)]
        try:
            while any(self.axes.refine([old], [new]) for old, new in pairs):
                pass  # a split may require one in another pair
        except AxesDisagree as error:
            raise NotExpressible(what=f"one axis under two names ({error})") from None

    def needed(self, outputs: Iterable[PositionalArray]) -> set[int]:
        stack = [v.record for v in outputs]
        found: set[int] = set()
        while stack:
            i = stack.pop()
            if i < 0:
                raise NotExpressible(what="a constant as a result")
            if i not in found:
                found.add(i)
                stack.extend(self.records[i].operands)
        return found

    def take_in(self, i: int, record: Record, wanted: str) -> None:
        axes = self.atoms(record.axes)
        taken = {given.name for given in self.inputs}
        name, number = wanted, 2
        while name in taken:
            name, number = f"{wanted}_{number}", number + 1
        kind = ArrayType(tuple(map(self.axis, axes)), record.dtype)
        self.inputs.append(ArrayInput(name, kind))
        self.types.append(kind)
        self.values[i] = len(self.types) - 1
        given = self.recorder.given[i]
        positions = tuple(tuple((f.size, True) for f in self.atoms(p)) for p in given.positions)
        self.layouts.append(FrameworkLayout(name, given.source, positions))

    def layout(self, name: str, source: str, value: PositionalArray) -> FrameworkLayout:
        have = set(self.atoms(self.records[value.record].axes))
        positions = tuple(
            tuple((f.size, f in have) for f in self.atoms(position)) for position in value.positions
        )
        return FrameworkLayout(name, source, positions)

    def order(self, value: PositionalArray) -> tuple[Axis, ...]:
        """The axes of an output in the order of its positions."""
        have = set(self.atoms(self.records[value.record].axes))
        seen = [f for p in value.positions for f in self.atoms(p) if f in have]
        if len(seen) != len(have):
            raise NotExpressible(what="a result that does not show all its axes")
        return tuple(map(self.axis, seen))

    def atoms(self, factors: Sequence[Factor]) -> Position:
        return self.axes.atoms(factors)

    def axis(self, factor: Factor) -> Axis:
        """The axis of an atom."""
        if factor not in self.names:
            extent = factor.size
            known: int | Symbol = extent.number if extent.is_known else Symbol(_word(extent))
            self.names[factor] = Axis(_letter(len(self.names)), known)
        return self.names[factor]

    def with_sizes(self, expr: Expr, dtypes: Sequence[DType]) -> Expr:
        """An expression with the sizes of named axes, in canonical form."""
        if not contains(expr, "size"):
            return expr  # canonical since it was recorded

        def resolved(node: Expr) -> Expr:
            if node.op != "size":
                return node
            factors = self.atoms(self.recorder.lengths[node.axis])
            sizes = [size(self.axis(f)) for f in factors]
            return reduce(mul, sizes) if sizes else const(1)

        return canonical(rewrite(expr, resolved), dtypes)

    def emit(self, record: Record) -> int:
        operands = [self.values[v] for v in record.operands]
        match record.primitive:
            case Pointwise(expr):
                expr = self.with_sizes(expr, self.recorder.dtypes(record.operands))
                return self.operator("elementwise", operands, expr=expr)
            case Summary(factors, combiner):
                (made,) = operands
                for factor in reversed(self.atoms(factors)):
                    axis = self.axis(factor)
                    made = self.operator("reduce", [made], axis=axis, combiner=combiner)
                return made
            case RunningSummary(factors, combiner):
                atoms = self.atoms(factors)
                if len(atoms) > 1:
                    raise NotExpressible(what="a scan along several axes")
                axis = self.axis(atoms[0])
                return self.operator("scan", operands, axis=axis, combiner=combiner)
            case Contraction(factors, rounds_to):
                *others, last = self.atoms(factors)
                given = {} if rounds_to is None else {"rounds_to": str(rounds_to)}
                made = self.operator("matmul", operands, axis=self.axis(last), **given)
                for factor in reversed(others):
                    made = self.operator("reduce", [made], axis=self.axis(factor), combiner=ADD)
                return made
            case AxisPositions(factors):
                return self.count(self.atoms(factors))
            case TableLookup(factors):
                atoms = self.atoms(factors)
                if len(atoms) > 1:
                    raise NotExpressible(what="a lookup along several axes")
                return self.operator("take", operands, axis=self.axis(atoms[0]))
            case Renaming(old, new):
                return self.rename(operands[0], self.atoms(old), self.atoms(new))
            case other:
                raise AssertionError(f"{other} is taken in, not made")

    def rename(self, made: int, old: Position, new: Position) -> int:
        """Renames the axes of an array all at once, so that two may be exchanged."""
        pairs = [(a, b) for a, b in zip(old, new, strict=True) if a is not b]
        while pairs:
            taken = {a for a, _ in pairs}
            before, after = next((pair for pair in pairs if pair[1] not in taken), pairs[0])
            pairs.remove((before, after))
            if after in taken:  # a cycle of names: one axis gets a temporary name
                waiting = Factor(before.size)
                pairs.append((waiting, after))
                after = waiting
            made = self.operator("rename", [made], old=self.axis(before), new=self.axis(after))
        return made

    def count(self, atoms: Position) -> int:
        """The positions along a split axis, computed from those along its parts."""
        made = self.operator("index", [], axis=self.axis(atoms[0]))
        for factor in atoms[1:]:
            index = self.operator("index", [], axis=self.axis(factor))
            expr = arg(0) * size(self.axis(factor)) + arg(1)
            made = self.operator("elementwise", [made, index], expr=expr)
        return made

    def operator(self, name: str, operands: Sequence[int], **attributes: Attribute) -> int:
        kind = result_type(name, [self.types[v] for v in operands], attributes)
        self.operators.append(Operator(name, tuple(operands), tuple(attributes.items()), kind))
        self.types.append(kind)
        return len(self.types) - 1


def _arrays(out: PositionalArray | PlacedArray) -> Sequence[PositionalArray]:
    """The arrays that an output consists of."""
    return (out.base, out.index, out.value) if isinstance(out, PlacedArray) else (out,)


def _word(extent: Size) -> str:
    """A size as an identifier."""
    text = "_".join([*extent.symbols] + ([str(extent.number)] if extent.number != 1 else []))
    made = "".join(c if c.isalnum() else "_" for c in text)
    return made if made.isidentifier() else f"n_{made}"


LETTERS = "BMNKHDELGRTUVWXYZACFIJOPQS"


def _letter(number: int) -> str:
    """A name for an axis."""
    rounds, at = divmod(number, len(LETTERS))
    return LETTERS[at] + (str(rounds) if rounds else "")
