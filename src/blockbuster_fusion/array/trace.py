"""Tracing: a NumPy-like Python function becomes an array program.

Arrays are positional while the function runs, as in NumPy, and every position has a named axis
underneath. Transposing, broadcasting and length-1 axes are only bookkeeping on positions.
"""

import inspect
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

import numpy as np

from blockbuster_fusion.array.arrays import Array, as_dtype
from blockbuster_fusion.array.lower import check_batch, expand_program
from blockbuster_fusion.array.program import (
    ArrayInput,
    ArrayOutput,
    ArrayProgram,
    ArrayType,
    Attribute,
    Operator,
)
from blockbuster_fusion.array.table import result_type
from blockbuster_fusion.errors import BlockbusterError, TraceError
from blockbuster_fusion.ir.axis import Axis, Symbol
from blockbuster_fusion.ir.types import DType

Spec = Union[str, "ArraySpec", Sequence[str | int]]


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """The axes ("M", "M:128" or 128) and the dtype of an argument of `trace`."""

    axes: tuple[str | int, ...]
    dtype: DType = DType.float32


def array(*axes: str | int, dtype: str | DType = DType.float32) -> ArraySpec:
    """An argument for `trace`: `array("M", "D:64")`, `array(128, 64, dtype="float16")`."""
    split = [part for a in axes for part in (a.split() if isinstance(a, str) else [a])]
    return ArraySpec(tuple(split), as_dtype(dtype))


def trace(
    fn: Callable[..., Any],
    *specs: Spec,
    name: str | None = None,
    batch: str | Iterable[str] = (),
    dtype: str | DType = DType.float32,
    **named: Spec,
) -> ArrayProgram:
    """The array program that `fn` computes for arguments with the axes in `specs`.

    A spec is `"M D"` (symbolic sizes MM and DD), `"B:4 M D:64"`, a tuple of these or of plain
    numbers, or `array(...)`. Equal names are one axis; in one spec they are axes of one size, so
    that `"N N"` is a square array. `fn` returns an array, a tuple, or a dict
    whose keys name the outputs; axes of length 1 that `keepdims` or `None` made are left out of
    them. `batch` names axes that are to be walked one index at a time even where they could lie in
    blocks.
    """
    title = name or str(getattr(fn, "__name__", "program")).strip("<>")
    tracing, usual = Tracing(), as_dtype(dtype)
    bound = _bind(title, fn, specs, named)
    _replace(bound, lambda label, spec: tracing.declare(label, spec, usual))
    _replace(bound, tracing.argument)
    return tracing.finish(title, fn(*bound.args, **bound.kwargs), batch)


def _bind(
    title: str, fn: Callable[..., Any], specs: Sequence[Spec], named: Mapping[str, Spec]
) -> inspect.BoundArguments:
    """The spec of each parameter."""
    try:
        signature = inspect.signature(fn)
    except TypeError:
        raise TraceError(op=title, problem=f"{fn!r} cannot be called") from None
    except ValueError:
        signature = inspect.signature(lambda *x: None)  # a ufunc does not tell
    try:
        return signature.bind(*specs, **named)
    except TypeError as error:
        problem = f"{error}; say what axes each argument has, as in x='M D'"
        raise TraceError(op=title, problem=problem) from None


def _replace(bound: inspect.BoundArguments, make: Callable[[str, Any], Any]) -> None:
    """Puts `make(name, x)` in the place of every argument x."""
    for name, given in bound.arguments.items():
        match bound.signature.parameters[name].kind:
            case inspect.Parameter.VAR_POSITIONAL:
                made: Any = tuple(make(f"{name}{i}", x) for i, x in enumerate(given))
            case inspect.Parameter.VAR_KEYWORD:
                made = {key: make(key, x) for key, x in given.items()}
            case _:
                made = make(name, given)
        bound.arguments[name] = made


def _parse(op: str, part: Any) -> tuple[str | None, int | None]:
    """The name and the extent that a part of a spec gives, or one of them."""
    if isinstance(part, int | np.integer) and not isinstance(part, bool):
        if part < 0:
            raise TraceError(op=op, problem=f"the extent {part} is negative")
        return None, int(part)
    pattern = r"([A-Za-z_]\w*)(?::(\d+))?|(\d+)"
    parsed = re.fullmatch(pattern, part, re.ASCII) if isinstance(part, str) else None
    if parsed is None:
        problem = f"{part!r} is no axis: write a name, name:extent or an extent"
        raise TraceError(op=op, problem=problem)
    name, extent, alone = parsed.groups()
    return name, int(extent or alone) if extent or alone else None


class Tracing:
    """One run of `trace`, and its record."""

    def __init__(self) -> None:
        self.inputs: list[ArrayInput] = []
        self.operators: list[Operator] = []
        self.types: list[ArrayType] = []
        self.meetings: list[set[Axis]] = []
        self.axes: dict[str, Axis] = {}
        self.anonymous: set[Axis] = set()
        self.merged: dict[Axis, Axis] = {}

    # ---------------------------------------------------------------- arguments and results

    def declare(self, argument: str, given: Any, dtype: DType) -> ArraySpec:
        """The spec of an argument; the axes that it names are known from now on."""
        if isinstance(given, str | tuple | list):
            given = array(*([given] if isinstance(given, str) else given), dtype=dtype)
        if not isinstance(given, ArraySpec):
            problem = f"{type(given).__name__} does not say which axes it has"
            raise TraceError(op=f"argument {argument}", problem=f"{problem}: write 'M D' or (3, 4)")
        for part in given.axes:
            name, extent = _parse(f"argument {argument}", part)
            if name is not None and extent is not None and self.is_symbolic(name):
                self.axes[name] = Axis(name, extent)  # "M" elsewhere and "M:4" here
            elif name is not None:
                self.axis(f"argument {argument}", part)
        return given

    def is_symbolic(self, name: str) -> bool:
        return name in self.axes and isinstance(self.axes[name].extent, Symbol)

    def argument(self, label: str, spec: ArraySpec) -> Array:
        """A new argument of the function, whose axes are declared."""
        op = f"argument {label}"
        axes: list[Axis] = []
        for part in spec.axes:
            axis = self.axis(op, part)
            axes.append(self.another(axis) if axis in axes else axis)
        kind = ArrayType(tuple(axes), spec.dtype)
        name = _unused(label, {i.name for i in self.inputs}, "_")
        self.inputs.append(ArrayInput(name, kind))
        return Array(self, self.new_value(kind), axes)

    def axis(self, op: str, part: str | int) -> Axis:
        """The axis that a part of a spec names, or a new unnamed one of that extent."""
        name, extent = _parse(op, part)
        if name is None:
            axis = self.fresh_axis("A", extent or 0)
            self.anonymous.add(axis)
            return axis
        if name not in self.axes:
            self.axes[name] = Axis(name, Symbol(symbol_name(name)) if extent is None else extent)
        known = self.axes[name]
        if extent not in (None, known.extent):
            problem = f"the axis {name} is {known.extent} elsewhere and {extent} here"
            raise TraceError(op=op, problem=problem)
        return known

    def fresh_axis(self, stem: str, extent: int | Symbol) -> Axis:
        """A new axis with an unused name."""
        number = 1
        while f"{stem}_{number}" in self.axes:
            number += 1
        axis = self.axes[f"{stem}_{number}"] = Axis(f"{stem}_{number}", extent)
        return axis

    def another(self, axis: Axis) -> Axis:
        """A new axis of the same extent, for a square array; it may be merged with another."""
        made = self.fresh_axis(axis.name, axis.extent)
        self.anonymous.add(made)
        return made

    def finish(self, title: str, result: Any, batch: str | Iterable[str]) -> ArrayProgram:
        """The program with these results."""
        if isinstance(result, Mapping):
            given = dict(result)
        elif isinstance(result, tuple | list):
            given = {f"O{i + 1}": x for i, x in enumerate(result)}
        else:
            given = {"O": result}
        if not given:
            raise TraceError(op=title, problem="the function returns nothing: return an array")
        taken = {i.name for i in self.inputs}
        outputs = []
        for key, x in given.items():
            if not isinstance(key, str) or not key:
                raise TraceError(op=title, problem=f"an output is named by a string, not {key!r}")
            if not isinstance(x, Array) or x.tracing is not self:
                what = (
                    "of another trace" if isinstance(x, Array) else f"{type(x).__name__}, no array"
                )
                remedy = "return a traced array, or a tuple or dict of them"
                raise TraceError(op=title, problem=f"result {key} is {what}: {remedy}")
            label = _unused(key, taken, "_out")
            taken.add(label)
            axes = tuple(a for a in x.axes if a is not None)
            outputs.append(ArrayOutput(label, x.value, axes))
        program = ArrayProgram(
            title,
            tuple(self.inputs),
            tuple(self.operators),
            tuple(outputs),
            self.batch(title, batch),
        )
        program = self.resolved(program)
        if program.batch:
            check_batch(program, expand_program(program)[0])
        return program

    def batch(self, title: str, names: str | Iterable[str]) -> frozenset[Axis]:
        """The axes named by `batch`."""
        if not isinstance(names, Iterable):
            raise TraceError(op=title, problem=f"batch is a list of axis names, not {names!r}")
        made = []
        for name in names.split() if isinstance(names, str) else names:
            if name not in self.axes:
                problem = f"unknown batch axis {name!r}: known are {', '.join(self.axes)}"
                raise TraceError(op=title, problem=problem)
            made.append(self.axes[name])
        return frozenset(made)

    def resolved(self, program: ArrayProgram) -> ArrayProgram:
        """The program with every axis that was merged into another replaced by it."""
        if not self.merged:
            return program

        def kind(t: ArrayType) -> ArrayType:
            return ArrayType(tuple(self.resolve(a) for a in t.axes), t.dtype)

        def attribute(x: Any) -> Any:
            match x:
                case Axis():
                    return self.resolve(x)
                case ArrayType():
                    return kind(x)
                case tuple():
                    return tuple(attribute(y) for y in x)
                case _:
                    return x

        return ArrayProgram(
            program.name,
            tuple(ArrayInput(i.name, kind(i.type)) for i in program.inputs),
            tuple(
                Operator(op.name, op.operands, attribute(op.attributes), kind(op.type))
                for op in program.operators
            ),
            tuple(
                ArrayOutput(o.name, o.value, tuple(self.resolve(a) for a in o.axes))
                for o in program.outputs
            ),
            frozenset(self.resolve(a) for a in program.batch),
        )

    # ---------------------------------------------------------------- recording

    def record(self, name: str, operands: Sequence[Array], /, **attributes: Attribute) -> int:
        """Records an operator, typed by the lookup table; the number of its result."""
        given = [self.type(x) for x in operands]
        try:
            kind = result_type(name, given, attributes)
        except BlockbusterError as error:
            raise TraceError(op=name, problem=str(error)) from None
        values = tuple(x.value for x in operands)
        self.operators.append(Operator(name, values, tuple(attributes.items()), kind))
        return self.new_value(kind, *given)

    def new_value(self, kind: ArrayType, *operands: ArrayType) -> int:
        """The number of a new value, computed from operands of these types."""
        self.types.append(kind)
        self.meetings.append({axis for t in (kind, *operands) for axis in t.axes})
        return len(self.types) - 1

    def type(self, x: Array) -> ArrayType:
        kind = self.types[x.value]
        return ArrayType(tuple(self.resolve(a) for a in kind.axes), kind.dtype)

    def resolve(self, axis: Axis) -> Axis:
        while axis in self.merged:
            axis = self.merged[axis]
        return axis

    # ---------------------------------------------------------------- axes that have to agree

    def agree(self, op: str, x: Array, have: Axis, want: Axis, unify: bool = True) -> Array:
        """`x` with its axis `have` merged with `want`, or renamed to it."""
        have, want = self.resolve(have), self.resolve(want)
        if have is want:
            return x
        if have.extent != want.extent:
            problem = f"the axes {want} ({want.extent}) and {have} ({have.extent}) do not fit"
            symbolic = isinstance(have.extent, Symbol) or isinstance(want.extent, Symbol)
            remedy = "; give both one name, which may stand twice in an array: 'N N' is square"
            raise TraceError(op=op, problem=problem + remedy * symbolic)
        for loose, firm in ((have, want), (want, have)) if unify else ():
            if loose in self.anonymous and not self.meet(loose, firm):
                self.merged[loose] = firm
                return x
        return self.rename(x, have, want)

    def meet(self, a: Axis, b: Axis) -> bool:
        """True if some operator has both axes, so that they cannot be one."""
        return any({a, b} <= {self.resolve(c) for c in axes} for axes in self.meetings)

    def rename(self, x: Array, old: Axis, new: Axis) -> Array:
        value = self.record("rename", [x], old=old, new=new)
        return Array(self, value, tuple(new if a is old else a for a in x.axes))


def symbol_name(axis: str) -> str:
    """The paper doubles a letter for the size of a dimension: K and KK."""
    return axis * 2 if len(axis) == 1 else f"{axis}_size"


def _unused(name: str, taken: Container[str], suffix: str) -> str:
    while name in taken:
        name += suffix
    return name
