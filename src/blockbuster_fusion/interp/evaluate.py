"""Whole-array evaluation of an array program in NumPy: the oracle for lowering."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from blockbuster_fusion.array.lower import expand_program
from blockbuster_fusion.array.primitives import (
    AxisPositions,
    Contraction,
    External,
    Given,
    Pointwise,
    PrimitiveStep,
    Renaming,
    RunningSummary,
    Summary,
    TableLookup,
)
from blockbuster_fusion.array.program import ArrayProgram, ArrayType, check_program
from blockbuster_fusion.errors import BadInput, BadResult
from blockbuster_fusion.host.executors import executor_of
from blockbuster_fusion.host.numbers import NumericMode, NumpyArray, as_array, misfit
from blockbuster_fusion.interp.arithmetic import looked_up, misplaced, placed
from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.ir.combiner import ADD, LOGADDEXP, MAX, MIN, MUL, Combiner
from blockbuster_fusion.ir.expr import evaluate as evaluate_expr
from blockbuster_fusion.ir.tiling import Extents
from blockbuster_fusion.ir.types import DType

_UFUNCS = {ADD: np.add, MUL: np.multiply, MAX: np.maximum, MIN: np.minimum, LOGADDEXP: np.logaddexp}


def evaluate(
    program: ArrayProgram, inputs: Mapping[str, Any] | Sequence[Any]
) -> dict[str, NumpyArray]:
    """The program's outputs by name, computed on whole arrays, given by name or in order.

    Dtypes are as in `interpret`: each result is rounded to its declared dtype. If any array is
    float64, all floats are.
    """
    check_program("evaluate", program)
    if not isinstance(inputs, Mapping):
        inputs = dict(zip((given.name for given in program.inputs), inputs, strict=False))
    known = ", ".join(given.name for given in program.inputs)
    for name in {i.name for i in program.inputs} ^ set(inputs):
        problem = "there is no such input" if name in inputs else "is missing"
        raise BadInput(name=name, problem=f"{problem}; the inputs are {known}")
    arrays = {i.name: as_array(i.name, inputs[i.name]) for i in program.inputs}
    exact = any(x.dtype == np.float64 and type(inputs[n]) is not float for n, x in arrays.items())
    evaluation = _Evaluation(arrays, NumericMode(exact=exact))
    steps, outputs = expand_program(program)
    with np.errstate(all="ignore"):
        for step in steps:
            evaluation.add(step)
    results = {}
    for out, i in zip(program.outputs, outputs, strict=True):
        turned = _align(evaluation.values[i], steps[i].type.axes, out.axes)
        made = evaluation.numbers.given(turned, steps[i].type.dtype)
        if out.into is not None:
            kinds = [program.inputs[v] for v in (out.into.base, out.into.index)]
            base, index = ((arrays[kind.name], kind.type.axes) for kind in kinds)
            made = placed(out.name, out.into.axis, base, index, (made, out.axes))
        results[out.name] = made
    return results


class _Evaluation:
    """The values of the steps so far."""

    def __init__(self, inputs: Mapping[str, NumpyArray], numbers: NumericMode) -> None:
        self.inputs = inputs
        self.numbers = numbers
        self.extents = Extents()
        self.values: list[NumpyArray] = []
        self.types: list[ArrayType] = []

    def add(self, step: PrimitiveStep) -> None:
        made = self.numbers.rounded(self.compute(step), step.type.dtype)
        self.values.append(made)
        self.types.append(step.type)

    def compute(self, step: PrimitiveStep) -> Any:
        operands = [self.values[v] for v in step.operands]
        axes = [self.types[v].axes for v in step.operands]
        match step.primitive:
            case Given(name):
                return self.given(name, step.type)
            case Pointwise(expr):
                shape = [self.extents.of(a) for a in step.type.axes]
                aligned = [
                    _align(x, a, step.type.axes) for x, a in zip(operands, axes, strict=True)
                ]
                made = evaluate_expr(expr, aligned, self.extents.of, self.numbers.rounded)
                return np.broadcast_to(made, shape)
            case Summary(axis, combiner):
                return self.reduced(combiner, operands[0], axes[0].index(axis), step.type.dtype)
            case RunningSummary(axis, combiner):
                return self.scanned(combiner, operands[0], axes[0].index(axis))
            case Contraction():
                letters = {a: i for i, a in enumerate(dict.fromkeys([*axes[0], *axes[1]]))}
                left, right, result = (
                    [letters[a] for a in some] for some in (*axes, step.type.axes)
                )
                return np.einsum(operands[0], left, operands[1], right, result)
            case TableLookup(axis):
                return self.looked_up(axis, operands, axes, step)
            case AxisPositions(axis):
                return np.arange(self.extents.of(axis))
            case Renaming():
                return operands[0]
            case External():
                return self.external(step.primitive, step.operands, step.type)

    def given(self, name: str, kind: ArrayType) -> NumpyArray:
        array = self.inputs[name]
        problem = self.bind(array, kind, f"input {name}") or misfit(array, kind.dtype)
        if problem is not None:
            raise BadInput(name=name, problem=problem)
        return array

    def bind(self, array: NumpyArray, kind: ArrayType, owner: str) -> str | None:
        """Binds the lengths of an array's axes; the reason why it is not of the type, or None."""
        if array.ndim != len(kind.axes):
            wanted = ", ".join(axis.name for axis in kind.axes)
            return f"has the shape {array.shape}, and the program wants the axes ({wanted})"
        bound = zip(kind.axes, array.shape, strict=True)
        problems = [self.extents.bind(axis, length, owner) for axis, length in bound]
        return next(filter(None, problems), None)

    def reduced(self, combiner: Combiner, x: NumpyArray, at: int, dtype: DType) -> NumpyArray:
        if x.shape[at] == 0:
            shape = x.shape[:at] + x.shape[at + 1 :]
            return self.numbers.identity(combiner.identity[0], shape, dtype)
        if combiner in _UFUNCS:
            made: NumpyArray = _UFUNCS[combiner].reduce(x, axis=at)
            return made
        gathered: NumpyArray = x.take(0, at)
        for i in range(1, x.shape[at]):
            both = [gathered, x.take(i, at)]
            (expr,) = combiner.combine
            gathered = np.asarray(evaluate_expr(expr, both, self.extents.of, self.numbers.rounded))
        return gathered

    def scanned(self, combiner: Combiner, x: NumpyArray, at: int) -> NumpyArray:
        made: NumpyArray = _UFUNCS[combiner].accumulate(x, axis=at, dtype=x.dtype)
        return made

    def looked_up(
        self,
        axis: Axis,
        operands: Sequence[NumpyArray],
        axes: Sequence[tuple[Axis, ...]],
        step: PrimitiveStep,
    ) -> NumpyArray:
        (table, places), (own, across) = operands, axes
        problem = misplaced(places, self.extents.of(axis), axis)
        if problem is not None:
            raise BadInput(name=f"of take, {self.types[step.operands[0]]},", problem=problem)
        kept = [a for a in own if a is not axis]
        turned = _align(table, own, [axis, *kept])
        at = [step.type.axes.index(a) for a in kept]
        return looked_up(turned, _align(places, across, step.type.axes), at, len(step.type.axes))

    def external(self, op: External[Axis], operands: Sequence[int], kind: ArrayType) -> NumpyArray:
        arrays = []
        for v, layout in zip(operands, op.layouts, strict=True):
            x = _align(self.values[v], self.types[v].axes, layout)
            arrays.append(self.numbers.given(x, self.types[v].dtype))
        results = executor_of(op.namespace, op.name)(op.name, dict(op.attributes), arrays)
        if not isinstance(results, list | tuple) or len(results) != 1:
            problem: str | None = "the executor does not give a list of one array"
        else:
            made = np.asarray(results[0])
            problem = self.bind(made, kind, f"{op.namespace}.{op.name}") or misfit(made, kind.dtype)
        if problem is not None:
            raise BadResult(namespace=op.namespace, name=op.name, problem=problem)
        return made


def _align(x: NumpyArray, axes: Sequence[Axis], target: Sequence[Axis]) -> NumpyArray:
    """`x` transposed to the order of `target`, with length 1 where it lacks an axis."""
    present = [a for a in target if a in axes]
    moved = np.transpose(x, [axes.index(a) for a in present])
    return moved.reshape([moved.shape[present.index(a)] if a in axes else 1 for a in target])
