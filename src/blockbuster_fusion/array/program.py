"""Array programs: operators over whole arrays with named axes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from blockbuster_fusion.errors import WrongKind
from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.ir.combiner import Combiner
from blockbuster_fusion.ir.expr import Expr
from blockbuster_fusion.ir.ops import Into, Plain
from blockbuster_fusion.ir.types import DType


@dataclass(frozen=True, slots=True)
class ArrayType:
    """The axes of an array, in its own order, and its dtype."""

    axes: tuple[Axis, ...]
    dtype: DType

    def __str__(self) -> str:
        return f"{self.dtype}[{' '.join(a.name for a in self.axes)}]"


Attribute = Plain | Expr | Axis | Combiner | ArrayType | tuple["Attribute", ...]


@dataclass(frozen=True, slots=True)
class ArrayInput:
    """An input of the program."""

    name: str
    type: ArrayType


@dataclass(frozen=True, slots=True)
class Operator:
    """An entry of the lookup table applied to values of the program.

    Values are numbered: the inputs first, then the results of the operators in order.
    """

    name: str
    operands: tuple[int, ...]
    attributes: tuple[tuple[str, Attribute], ...]
    type: ArrayType


@dataclass(frozen=True, slots=True)
class ArrayOutput:
    """An output of the program; `axes` is the order of the array's axes.

    `into` is its place in an input, if it is written there.
    """

    name: str
    value: int
    axes: tuple[Axis, ...]
    into: Into | None = None


@dataclass(frozen=True, slots=True)
class ArrayProgram:
    """A model: a list of operators, each with one array as its result."""

    name: str
    inputs: tuple[ArrayInput, ...]
    operators: tuple[Operator, ...]
    outputs: tuple[ArrayOutput, ...]
    batch: frozenset[Axis] = field(default=frozenset())

    @property
    def places(self) -> frozenset[int]:
        """The numbers of the inputs that are places of outputs in other inputs."""
        return frozenset(out.into.index for out in self.outputs if out.into is not None)

    def type(self, value: int) -> ArrayType:
        """The type of a value."""
        count = len(self.inputs)
        return self.inputs[value].type if value < count else self.operators[value - count].type

    def __str__(self) -> str:
        names = [i.name for i in self.inputs]
        lines = [f"{self.name}({', '.join(f'{i.name}: {i.type}' for i in self.inputs)}):"]
        for op in self.operators:
            names.append(f"v{len(names) - len(self.inputs) + 1}")
            shown = [names[v] for v in op.operands]
            shown += [f"{key}={shown_attribute(value)}" for key, value in op.attributes]
            lines.append(f"    {names[-1]} = {op.name}({', '.join(shown)}): {op.type}")
        given = ", ".join(
            f"{out.name}={names[out.value]}{_into(out.into, names)}" for out in self.outputs
        )
        return "\n".join([*lines, f"    return {given}"])


def _into(into: Into | None, names: Sequence[str]) -> str:
    if into is None:
        return ""
    return f" into {names[into.base]} along {into.axis} at {names[into.index]}"


def shown_attribute(value: Attribute) -> str:
    """An attribute of an operator in a listing."""
    if isinstance(value, tuple):
        return f"({', '.join(map(shown_attribute, value))})"
    return str(value)


def check_program(function: str, program: object) -> None:
    """WrongKind if `program` is no array program."""
    if not isinstance(program, ArrayProgram):
        given = type(program).__name__
        remedy = "bb.trace makes one from a function"
        raise WrongKind(function=function, wanted="an array program", given=given, remedy=remedy)
