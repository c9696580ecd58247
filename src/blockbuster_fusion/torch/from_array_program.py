"""Array programs in PyTorch's own operators, as a user would write them.

Compiled programs are compared with them, in speed and in exactness. They are written as the text of
a Python function, which can be read, and which torch.compile can trace.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.nn import functional

from blockbuster_fusion.array import ops
from blockbuster_fusion.array.program import ArrayOutput, ArrayProgram, Operator, check_program
from blockbuster_fusion.array.trace import trace
from blockbuster_fusion.errors import UnknownOperator
from blockbuster_fusion.ir.axis import Axis, Symbol
from blockbuster_fusion.ir.combiner import ADD, LOGADDEXP, MAX, MIN, MUL, Combiner
from blockbuster_fusion.ir.expr import FUNCTIONS, Expr, format_number, postorder
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.naming import NOTHING, Scope

_REDUCTIONS = {ADD: "sum", MAX: "amax", MIN: "amin"}
_SCANS = {
    ADD: "{0}.cumsum({1})",
    MUL: "{0}.cumprod({1})",
    MAX: "{0}.cummax({1}).values",
    MIN: "{0}.cummin({1}).values",
    LOGADDEXP: "{0}.logcumsumexp({1})",
}
_NAMES = {
    "arcsin": "asin",
    "arccos": "acos",
    "arctan": "atan",
    "arcsinh": "asinh",
    "arccosh": "acosh",
    "arctanh": "atanh",
    "arctan2": "atan2",
    "and_": "logical_and",
    "or_": "logical_or",
    "not_": "logical_not",
    "mod": "remainder",
    "floordiv": "floor_divide",
}
"""The names of functions that PyTorch calls by another name."""


def torch_program(
    program: ArrayProgram, watched: Collection[int] = ()
) -> Callable[..., tuple[torch.Tensor, ...]]:
    """A function of tensors, in order, that gives the program's outputs as a tuple.

    It computes in the dtype of its first float input. The results of the operators in `watched`
    come after the outputs.
    """
    check_program("torch_program", program)
    names: dict[str, Any] = {"torch": torch, "functional": functional}
    exec(torch_source(program, watched), names)
    made: Callable[..., tuple[torch.Tensor, ...]] = names["program"]
    return made


def torch_source(program: ArrayProgram, watched: Collection[int] = ()) -> str:
    """The text of that function."""
    return _Writer(program).text(watched)


@dataclass(frozen=True, slots=True)
class _Named:
    """A tensor by its name, with its axes."""

    name: str
    axes: tuple[Axis, ...]
    dtype: DType


class _Writer:
    """Writes the text of one function."""

    def __init__(self, program: ArrayProgram) -> None:
        self.program = program
        self.lines: list[str] = []
        self.values: list[_Named] = []
        self.sizes: dict[Symbol, str] = {}

    def text(self, watched: Collection[int]) -> str:
        program = self.program
        scope = Scope(NOTHING)
        given = [scope.claim(f"x_{i.name}") for i in program.inputs]
        for name, array in zip(given, program.inputs, strict=True):
            self.values.append(_Named(name, array.type.axes, array.type.dtype))
            for at, axis in enumerate(array.type.axes):
                if isinstance(axis.extent, Symbol) and axis.extent not in self.sizes:
                    self.sizes[axis.extent] = f"{name}.shape[{at}]"
        floats = [v.name for v in self.values if v.dtype.is_float]
        self.dtype = f"{floats[0]}.dtype" if floats else "torch.float32"
        self.device = f"{given[0]}.device" if given else "None"
        for number, operator in enumerate(program.operators):
            self.values.append(self.operator(f"v{number + 1}", operator))
        results = [self.result(out) for out in program.outputs]
        results += [self.values[len(given) + number].name for number in sorted(watched)]
        body = "".join(f"    {line}\n" for line in [*self.lines, f"return ({', '.join(results)},)"])
        return f"def program({', '.join(given)}):\n{body}"

    def result(self, out: ArrayOutput) -> str:
        """An output: an array, or a copy of an input with some rows replaced."""
        if out.into is None:
            return with_axes(self.values[out.value], self.whole(out.value, out.axes))
        base, index = (self.values[v] for v in (out.into.base, out.into.index))
        rows = with_axes(self.values[out.value], self.whole(out.value, out.axes))
        places = [
            with_axes(index if axis is out.into.axis else self.counted(axis), out.axes)
            for axis in base.axes
        ]
        where = f"[{', '.join(places)}]"
        return f"torch.ops.aten.index_put({base.name}, {where}, {rows}.to({base.name}.dtype))"

    def counted(self, axis: Axis) -> _Named:
        """The positions along an axis."""
        text = f"torch.arange({self.size(axis)}, device={self.device})"
        return _Named(text, (axis,), DType.int64)

    def whole(self, value: int, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        assert set(axes) == set(self.values[value].axes)
        return axes

    def assign(self, name: str, text: str, axes: Sequence[Axis], dtype: DType) -> _Named:
        self.lines.append(f"{name} = {text}")
        return _Named(name, tuple(axes), dtype)

    def size(self, axis: Axis) -> str:
        return str(axis.extent) if isinstance(axis.extent, int) else self.sizes[axis.extent]

    # ---------------------------------------------------------------- operators

    def operator(self, name: str, operator: Operator) -> _Named:
        """The tensor of an operator, with the lines that compute it."""
        operands = [self.values[v] for v in operator.operands]
        attributes, dtype = dict(operator.attributes), operator.type.dtype
        match operator.name, attributes:
            case "elementwise", {"expr": Expr() as expr}:
                return self.elementwise(name, operands, expr, operator)
            case "matmul", {"axis": Axis() as axis}:
                return self.matmul(name, operands, axis, operator)
            case "index", {"axis": Axis() as axis}:
                return self.assign(name, self.counted(axis).name, (axis,), dtype)
            case "rename", {"old": Axis() as old, "new": Axis() as new}:
                x = operands[0]
                return _Named(x.name, tuple(new if a is old else a for a in x.axes), dtype)
            case "mean", {"axes": tuple(gone)}:
                x = operands[0]
                at = [x.axes.index(a) for a in gone if isinstance(a, Axis)]
                left = [a for a in x.axes if a not in gone]
                return self.assign(name, f"{x.name}.mean({at})", left, dtype)
            case "take", {"axis": Axis() as axis}:
                return self.take(name, operands, axis, dtype)
            case _, {"axis": Axis() as axis}:
                at_axis = operands[0].axes.index(axis)
                return self.along(name, operands, operator, at_axis, attributes)
        raise UnknownOperator(name=operator.name, remedy="it has no form in PyTorch here")

    def take(self, name: str, operands: Sequence[_Named], axis: Axis, dtype: DType) -> _Named:
        """A lookup along an axis; along others that the index has, places look at their own."""
        table, index, *_ = operands
        shared = [a for a in table.axes if a is not axis and a in index.axes]
        rest = [a for a in table.axes if a is not axis and a not in shared]
        places = [*(with_axes(self.counted(a), index.axes) for a in shared), index.name]
        text = f"{with_axes(table, [*shared, axis, *rest])}[{', '.join(places)}]"
        return self.assign(name, text, [*index.axes, *rest], dtype)

    def along(
        self,
        name: str,
        operands: Sequence[_Named],
        operator: Operator,
        at: int,
        attributes: Mapping[str, Any],
    ) -> _Named:
        """An operator along one axis of its first operand."""
        x, dtype = operands[0], operator.type.dtype
        place = at - len(x.axes) if at == len(x.axes) - 1 else at
        if operator.name == "reduce":
            combiner: Combiner = attributes["combiner"]
            left = [a for i, a in enumerate(x.axes) if i != at]
            function = _REDUCTIONS[combiner]
            return self.assign(name, f"{x.name}.{function}({place})", left, dtype)
        if operator.name == "scan":
            function = _SCANS[attributes["combiner"]]
            return self.assign(name, function.format(x.name, place), x.axes, dtype)
        if operator.name in ("softmax", "log_softmax"):
            text = f"torch.{operator.name}({x.name}, {place})"
            return self.assign(name, text, x.axes, dtype)
        if operator.name not in ("layernorm", "rmsnorm"):
            raise UnknownOperator(name=operator.name, remedy="it has no form in PyTorch here")
        moved = (*(a for i, a in enumerate(x.axes) if i != at), x.axes[at])
        text, parameters = with_axes(x, moved), [p.name for p in operands[1:]]
        shape, eps = f"({self.size(x.axes[at])},)", float(attributes["eps"])
        if operator.name == "rmsnorm":
            weight = parameters[0] if parameters else None
            call = f"functional.rms_norm({text}, {shape}, {weight}, {eps!r})"
        else:
            weight = parameters[0] if attributes["weight"] else None
            bias = parameters[-1] if attributes["bias"] else None
            call = f"functional.layer_norm({text}, {shape}, {weight}, {bias}, {eps!r})"
        return self.assign(name, call, moved, dtype)

    def matmul(
        self, name: str, operands: Sequence[_Named], axis: Axis, operator: Operator
    ) -> _Named:
        """A product as `@` has it: batch axes, rows and the axis; batch axes, the axis, columns."""
        left, right = (self.as_float(x) for x in operands)
        rows = [a for a in left.axes if a not in right.axes]
        columns = [a for a in right.axes if a not in left.axes]
        result = operator.type.axes
        if not rows or not columns:
            letters = {a: chr(97 + i) for i, a in enumerate(dict.fromkeys(left.axes + right.axes))}
            words = ["".join(letters[a] for a in some) for some in (left.axes, right.axes, result)]
            equation = f"{words[0]},{words[1]}->{words[2]}"
            text = f"torch.einsum({equation!r}, {left.name}, {right.name})"
            return self.assign(name, text, result, operator.type.dtype)
        row, column = rows[-1], columns[-1]
        natural = dict.fromkeys(a for a in (*left.axes, *right.axes) if a is not axis)
        lead = [a for a in natural if a not in (row, column)]
        # a side that has no batch axes stays a matrix, as a user would have it
        sides = [
            with_axes(x, [*(lead if any(a in x.axes for a in lead) else []), *own])
            for x, own in ((left, (row, axis)), (right, (axis, column)))
        ]
        text = f"{sides[0]} @ {sides[1]}"
        return self.assign(name, text, [*lead, row, column], operator.type.dtype)

    def as_float(self, x: _Named) -> _Named:
        if x.dtype.is_float:
            return x
        return _Named(f"{x.name}.to({self.dtype})", x.axes, DType.float32)

    # ---------------------------------------------------------------- elementwise

    def elementwise(
        self, name: str, operands: Sequence[_Named], expr: Expr, operator: Operator
    ) -> _Named:
        most = max(operands, key=lambda x: len(x.axes), default=_Named("", (), DType.float32))
        missing = [a for a in operator.type.axes if a not in most.axes]
        axes = [*missing, *most.axes]
        texts = [with_axes(x, axes) for x in operands]
        texts = [_without_leading_ones(t) for t in texts]
        known = _known_functions().get(expr)
        if known is not None:
            text = known.format(texts[0])
        else:
            text = self.written(name, expr, texts)
        covered = {a for x in operands for a in x.axes}
        if not covered.issuperset(axes):
            shape = ", ".join(self.size(a) for a in axes)
            text = f"torch.as_tensor({text}).expand(({shape},))"
        return self.assign(name, text, axes, operator.type.dtype)

    def written(self, name: str, expr: Expr, operands: Sequence[str]) -> str:
        """An expression as Python text; subexpressions that are used several times get names."""
        uses: dict[Expr, int] = {}
        nodes = list(postorder(expr))
        for node in nodes:
            for a in node.args:
                uses[a] = uses.get(a, 0) + 1
        made: dict[Expr, str] = {}
        tensors: set[Expr] = set()
        for node in nodes:
            if node.op == "arg" or not tensors.isdisjoint(node.args):
                tensors.add(node)
            text = self.node(node, [made[a] for a in node.args], tensors, operands)
            if node.args and node in tensors and uses.get(node, 0) > 1:
                shared = f"{name}_{len(made)}"
                self.lines.append(f"{shared} = {text}")
                text = shared
            made[node] = text
        return made[expr]

    def node(
        self, node: Expr, args: Sequence[str], tensors: Collection[Expr], operands: Sequence[str]
    ) -> str:
        match node.op:
            case "arg":
                return operands[node.index]
            case "const":
                return f"float('{node.value}')" if _odd(node.number) else format_number(node.number)
            case "size":
                return self.size(node.axis)
            case "cast":
                dtype = self.dtype if node.dtype.is_float else f"torch.{node.value}"
                if node.args[0] not in tensors:
                    return f"torch.as_tensor({args[0]}, dtype={dtype})"
                return f"{args[0]}.to({dtype})"
        function = FUNCTIONS[node.op]
        if node not in tensors:  # numbers and sizes
            if function.infix is not None:
                return _infix(function.infix, args)
            return f"torch.{_NAMES.get(node.op, node.op)}(torch.tensor(float({args[0]}))).item()"
        if node.op in ("maximum", "minimum"):
            for number, x in (args, args[::-1]):
                at = args.index(number)
                if node.args[at] not in tensors:
                    bound = "min" if node.op == "maximum" else "max"
                    return f"{x}.clamp({bound}={number})"
        if node.op == "where" and node.args[0] not in tensors:
            args = [f"torch.as_tensor({args[0]}, device={self.device})", *args[1:]]
        if function.infix is not None and node.op not in ("and_", "or_", "not_"):
            return _infix(function.infix, args)
        return f"torch.{_NAMES.get(node.op, node.op)}({', '.join(args)})"


def _odd(value: float) -> bool:
    return value != value or value in (float("inf"), float("-inf"))


def _infix(infix: str, args: Sequence[str]) -> str:
    return f"({infix}{args[0]})" if len(args) == 1 else f"({args[0]} {infix.strip()} {args[1]})"


def with_axes(x: _Named, axes: Sequence[Axis]) -> str:
    """A tensor with its axes in another order; an axis that it lacks has length 1."""
    order = [x.axes.index(a) for a in axes if a in x.axes]
    text = x.name
    if order != sorted(order):
        swapped = [*range(len(order) - 2), len(order) - 1, len(order) - 2]
        text += ".mT" if order == swapped else f".permute({order})"
    lacking = [a not in x.axes for a in axes]
    if any(lacking):
        text += f"[{', '.join('None' if lacks else ':' for lacks in lacking)}]"
    return text


def _without_leading_ones(text: str) -> str:
    """Axes of length 1 at the front are added by broadcasting anyway."""
    head, bracket, inside = text.rpartition("[")
    parts = inside.rstrip("]").split(", ")
    if not bracket or set(parts) - {"None", ":"} or "None" not in parts:
        return text
    while parts and parts[0] == "None":
        parts.pop(0)
    return f"{head}[{', '.join(parts)}]" if "None" in parts else head


@cache
def _known_functions() -> dict[Expr, str]:
    """Expressions that PyTorch has a function for."""
    functions: Iterable[tuple[Callable[..., Any], str]] = (
        (ops.relu, "torch.relu({})"),
        (ops.swish, "functional.silu({})"),
        (ops.gelu, "functional.gelu({})"),
        (ops.square, "torch.square({})"),
        (ops.rsqrt, "torch.rsqrt({})"),
        (ops.reciprocal, "torch.reciprocal({})"),
        (ops.sigmoid, "torch.sigmoid({})"),
    )
    made: dict[Expr, str] = {}
    for function, text in functions:
        operators = trace(function, "M").operators
        if len(operators) == 1 and operators[0].name == "elementwise":
            match dict(operators[0].attributes):
                case {"expr": Expr() as expr}:
                    made[expr] = text
    return made
