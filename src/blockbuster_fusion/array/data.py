"""Array programs as plain data: what JSON holds, written and read back exactly.

    {"name": "softmax", "axes": [["M", "MM"], ["N", 64]], "exprs": [["arg", [], 0], …],
     "combiners": [["add", [0.0], [2]]], "inputs": [["X", [[0, 1], "float32"]]],
     "operators": [["exp", [0], [["axis", {"axis": 1}]], [[0, 1], "float32"]]],
     "outputs": [["Y", 1, [0, 1]]], "batch": []}

Axes, expressions and combiners stand in tables, and are named by their places there. So an
expression that shares its parts stays small, and one of any depth needs no recursion. An output
that is written into an input has its place after its axes: the numbers of the input and of the
index, and the axis. Infinite numbers are texts, because JSON has none. Reading makes a program and
executes nothing.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

from blockbuster_fusion.array.program import (
    ArrayInput,
    ArrayOutput,
    ArrayProgram,
    ArrayType,
    Attribute,
    Operator,
)
from blockbuster_fusion.errors import BadData
from blockbuster_fusion.ir.axis import Axis, Symbol
from blockbuster_fusion.ir.combiner import Combiner
from blockbuster_fusion.ir.expr import Expr, postorder
from blockbuster_fusion.ir.ops import Into
from blockbuster_fusion.ir.types import DType

Data = dict[str, Any]
T = TypeVar("T", bound=Hashable)


def program_data(program: ArrayProgram) -> Data:
    """The program as plain data."""
    return _Writer().program(program)


def program_from_data(data: Data) -> ArrayProgram:
    """The program that `program_data` wrote, or BadData."""
    try:
        return _Reader(data).program()
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise BadData(what="an array program", problem=problem) from error


def axis_data(axis: Axis) -> list[Any]:
    """An axis as plain data: its name, and its extent or the name of its symbol."""
    return [axis.name, axis.extent if isinstance(axis.extent, int) else axis.extent.name]


def axis_from_data(data: Sequence[Any]) -> Axis:
    """The axis that `axis_data` wrote."""
    name, extent = data
    return Axis(name, extent if isinstance(extent, int) else Symbol(extent))


class _Table:
    """Things that are named by their places, each once."""

    def __init__(self) -> None:
        self.places: dict[object, int] = {}
        self.rows: list[Any] = []

    def place(self, thing: T, row: Callable[[T], Any]) -> int:
        if thing not in self.places:
            made = row(thing)  # may add what it mentions first
            self.places[thing] = len(self.rows)
            self.rows.append(made)
        return self.places[thing]


class _Writer:
    def __init__(self) -> None:
        self.axes, self.exprs, self.combiners = _Table(), _Table(), _Table()

    def program(self, program: ArrayProgram) -> Data:
        inputs = [[given.name, self.type(given.type)] for given in program.inputs]
        operators = [
            [
                op.name,
                [*op.operands],
                [[key, self.attribute(value)] for key, value in op.attributes],
                self.type(op.type),
            ]
            for op in program.operators
        ]
        outputs = [
            [out.name, out.value, [*map(self.axis, out.axes)], *self.into(out.into)]
            for out in program.outputs
        ]
        batch = sorted(map(self.axis, program.batch))
        return {
            "name": program.name,
            "axes": self.axes.rows,
            "exprs": self.exprs.rows,
            "combiners": self.combiners.rows,
            "inputs": inputs,
            "operators": operators,
            "outputs": outputs,
            "batch": batch,
        }

    def into(self, into: Into | None) -> list[Any]:
        return [] if into is None else [[into.base, into.index, self.axis(into.axis)]]

    def axis(self, axis: Axis) -> int:
        return self.axes.place(axis, axis_data)

    def type(self, kind: ArrayType) -> list[Any]:
        return [[*map(self.axis, kind.axes)], str(kind.dtype)]

    def expr(self, expr: Expr) -> int:
        for node in postorder(expr):
            self.exprs.place(node, self.expr_row)
        return self.exprs.places[expr]

    def expr_row(self, node: Expr) -> list[Any]:
        value: Any = node.value
        match value:
            case Axis():
                value = self.axis(value)
            case DType():
                value = str(value)
        return [node.op, [self.exprs.places[x] for x in node.args], _number(value)]

    def combiner(self, combiner: Combiner) -> int:
        return self.combiners.place(
            combiner,
            lambda c: [c.name, [*map(_number, c.identity)], [*map(self.expr, c.combine)]],
        )

    def attribute(self, value: Attribute) -> Any:
        match value:
            case Axis():
                return {"axis": self.axis(value)}
            case Expr():
                return {"expr": self.expr(value)}
            case Combiner():
                return {"combiner": self.combiner(value)}
            case ArrayType():
                return {"type": self.type(value)}
            case tuple():
                return [*map(self.attribute, value)]
            case float() if not math.isfinite(value):
                return {"number": _number(value)}
        return value


class _Reader:
    """Makes a program of its data."""

    def __init__(self, data: Data) -> None:
        self.data = data
        self.axes = [axis_from_data(axis) for axis in data["axes"]]
        self.exprs: list[Expr] = []
        for op, args, value in data["exprs"]:
            operands = tuple(_at(self.exprs, i) for i in args)
            self.exprs.append(Expr(op, operands, self.value(op, value)))
        self.combiners = [
            Combiner(name, tuple(map(float, identity)), tuple(_at(self.exprs, i) for i in combine))
            for name, identity, combine in data["combiners"]
        ]

    def program(self) -> ArrayProgram:
        data = self.data
        return ArrayProgram(
            data["name"],
            tuple(ArrayInput(name, self.type(kind)) for name, kind in data["inputs"]),
            tuple(
                Operator(
                    name,
                    tuple(operands),
                    tuple((key, self.attribute(value)) for key, value in attributes),
                    self.type(kind),
                )
                for name, operands, attributes, kind in data["operators"]
            ),
            tuple(
                ArrayOutput(name, value, self.along(axes), self.into(into))
                for name, value, axes, *into in self.outputs
            ),
            frozenset(self.along(data["batch"])),
        )

    @property
    def outputs(self) -> list[Any]:
        found: list[Any] = self.data["outputs"]
        return found

    def into(self, data: list[Any]) -> Into | None:
        for base, index, axis in data:
            return Into(base, index, _at(self.axes, axis))
        return None

    def along(self, axes: list[int]) -> tuple[Axis, ...]:
        return tuple(_at(self.axes, i) for i in axes)

    def type(self, data: list[Any]) -> ArrayType:
        return ArrayType(self.along(data[0]), DType(data[1]))

    def value(self, op: str, value: Any) -> Any:
        """The value of a node of an expression."""
        match op:
            case "size":
                return _at(self.axes, value)
            case "cast":
                return DType(value)
        return float(value) if isinstance(value, str) else value

    def attribute(self, data: Any) -> Attribute:
        made: Attribute = data
        match data:
            case {"axis": at}:
                made = _at(self.axes, at)
            case {"expr": at}:
                made = _at(self.exprs, at)
            case {"combiner": at}:
                made = _at(self.combiners, at)
            case {"type": kind}:
                made = self.type(kind)
            case {"number": text}:
                made = float(text)
            case list():
                made = tuple(map(self.attribute, data))
        return made


def _number(value: Any) -> Any:
    """A number that JSON has, or the text of one."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _at(items: Sequence[T], place: Any) -> T:
    """The item in a place; places are counted from 0."""
    if type(place) is not int or place < 0:
        raise ValueError(f"{place!r} is no place")
    return items[place]
