"""The careful program: an unfused program in which every operator is computed as exactly as usual.

Arrays are whole: every axis has one block. Each result is rounded to its dtype, sums are pairwise,
variances take two passes, and every exponential is shifted by its own maximum before it is summed.
No operator is recognised by name: `numbers.py` has the sums, `terms.py` the exponents.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockbuster_fusion.errors import BadInput, WrongKind
from blockbuster_fusion.host.executors import executor_of
from blockbuster_fusion.host.numbers import round_to_bfloat16
from blockbuster_fusion.interp.arithmetic import looked_up, misplaced
from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.ir.combiner import ADD, ANY, LOGADDEXP, MAX, MIN, MUL, Combiner
from blockbuster_fusion.ir.expr import Expr, evaluate, fold
from blockbuster_fusion.ir.expr_dtypes import node_dtypes
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import (
    BlockReduce,
    Dot,
    Elementwise,
    Iota,
    Join,
    Map,
    Misc,
    Node,
    Pick,
    Reduce,
    Rename,
    Scan,
    Take,
    Value,
)
from blockbuster_fusion.ir.tiling import Extents
from blockbuster_fusion.ir.types import DType, Type
from blockbuster_fusion.tools.check.numbers import SampledArithmetic
from blockbuster_fusion.tools.check.powers import CarefulTerm, Moved, Power, axes_of
from blockbuster_fusion.tools.check.rounding import Rounding
from blockbuster_fusion.tools.check.terms import Careful
from blockbuster_fusion.tools.check.values import AxisOrder, Number, constant

Array = NDArray[Any]

NARROW = (DType.float16, DType.bfloat16)
SAMPLES = 7
MORE_SAMPLES = 63
"""Trials for a program that just fails: the spread of a few trials is not exact."""
NAN = 2
"""The code of NaN in the result of `special`."""
_UFUNCS = {MUL: np.multiply, MAX: np.maximum, MIN: np.minimum}
_SCANS = {**_UFUNCS, ADD: np.add, LOGADDEXP: np.logaddexp}


def eps_of(dtype: DType) -> float:
    """The distance from 1 to the next number."""
    known = {DType.float64: 2.0**-52, DType.float32: 2.0**-23, DType.float16: 2.0**-10}
    return known.get(dtype, 2.0**-7)


def largest_of(dtype: DType) -> float:
    """The largest number of a dtype."""
    known: dict[DType, type[np.floating[Any]]] = {
        DType.float64: np.float64,
        DType.float16: np.float16,
    }
    return float(np.finfo(known.get(dtype, np.float32)).max)


@dataclass(frozen=True, slots=True)
class Reference:
    """The results of a program without rounding, and the rounding error of each element."""

    exact: dict[str, Array]
    spread: dict[str, Array]
    """The change of an element when each intermediate result changes by up to one eps: the root
    mean square of some random trials."""
    certain: dict[str, Array]
    """True for elements that are finite in all trials, or in none.

    A NaN is not certain if what it was made of overflowed."""


def careful(graph: Graph, inputs: Mapping[str, Array], dtype: DType) -> dict[str, Array]:
    """The results of the careful program, computed and stored in `dtype`."""
    compute = np.float64 if dtype is DType.float64 else np.float32
    run = _Run(graph, inputs, Rounding(compute))
    return {name: x[0] for name, x in run.outputs(rounded=True).items()}


def reference(
    graph: Graph,
    inputs: Mapping[str, Array],
    dtype: DType,
    *,
    samples: int = SAMPLES,
    seed: int = 0,
) -> Reference:
    """The results of the careful program in float64, or in longdouble for float64."""
    double = dtype is DType.float64
    wide = np.longdouble if double else np.float64

    rounding = Rounding(
        wide,
        samples=1 + samples,
        eps=eps_of(DType.float64 if double else DType.float32),
        largest=largest_of(dtype),
        narrow_eps={kind: eps_of(kind) for kind in NARROW},
        rng=np.random.default_rng(seed),
    )
    made = _Run(graph, inputs, rounding).outputs(rounded=False)
    exact = {name: x[0] for name, x in made.items()}
    with np.errstate(all="ignore"):
        spread = {
            name: np.sqrt(np.mean((x[1:] - x[0]) ** 2, axis=0))
            if len(x) > 1
            else np.zeros(x.shape[1:])
            for name, x in made.items()
        }
    kinds = {name: special(x) for name, x in made.items()}
    certain = {
        name: (x == x[0]).all(axis=0) & ((x[0] != NAN) | (not rounding.doubted))
        for name, x in kinds.items()
    }
    return Reference(exact, spread, certain)


def special(x: Array) -> Array:
    """Codes of elements: 1 and -1 for infinities, `NAN` for NaN, 0 for finite numbers."""
    return np.where(np.isnan(x), NAN, np.where(np.isinf(x), np.sign(x), 0))


class _Run:
    """One evaluation of a graph."""

    def __init__(self, graph: Graph, inputs: Mapping[str, Array], rounding: Rounding) -> None:
        self.graph = graph
        self.extents = Extents()
        self.numbers = SampledArithmetic(self.extents.of, rounding)
        self.terms = Careful(self.numbers)
        self.given: list[CarefulTerm] = []
        for i in graph.inputs:
            op = graph.input(i)
            array = np.asarray(inputs[op.name])
            for axis, length in zip(op.type.axes, array.shape, strict=True):
                problem = self.extents.bind(axis, length, f"input {op.name}")
                if problem is not None:
                    raise BadInput(name=op.name, problem=problem)
            array = array[None]
            if op.type.dtype.is_float:
                array = self.numbers.rounding.given(array)
            self.given.append(Number(op.type.axes, array))

    def outputs(self, *, rounded: bool) -> dict[str, Array]:
        """Arrays by name, with the axis of samples in front."""
        with np.errstate(all="ignore"):
            values = self.graph_values(self.graph, self.given)
            made = {}
            for out in self.graph.outputs:
                kind = self.graph.type(out.value)
                axes = out.axes or kind.axes
                x = self.numbers.spread(self.terms.plain(values[out.value]), axes)
                array = self.numbers.array(x)
                made[out.name] = self.rounded(array, kind) if rounded else array
        return made

    @staticmethod
    def rounded(x: Array, kind: Type) -> Array:
        if kind.dtype is DType.float16:
            return x.astype(np.float16)
        return round_to_bfloat16(x) if kind.dtype is DType.bfloat16 else x

    def graph_values(self, graph: Graph, given: list[CarefulTerm]) -> dict[Value, CarefulTerm]:
        """Every value of a graph, for whole arrays."""
        values: dict[Value, CarefulTerm] = {
            Value(i): term for i, term in zip(graph.inputs, given, strict=True)
        }
        for i, node in graph.nodes.items():
            if i not in graph.inputs:
                operands = [values[v] for v in node.inputs]
                kinds = [graph.type(v) for v in node.inputs]
                for port, term in enumerate(self.node_terms(node, operands, kinds)):
                    values[Value(i, port)] = term
        return values

    def node_terms(
        self, node: Node, operands: list[CarefulTerm], kinds: list[Type]
    ) -> list[CarefulTerm]:
        terms = self.terms
        match node.op:
            case Elementwise(expr):
                return [self.elementwise(expr, operands, [kind.dtype for kind in kinds])]
            case BlockReduce(dim, combiner):
                return [self.reduced(operands[0], dim.axis, combiner)]
            case Scan(dim, combiner):
                x = terms.plain(operands[0])
                return [self.numbers.scan(_SCANS[combiner], x, dim.axis)]
            case Dot(dim):
                return [terms.dot(operands[0], operands[1], dim.axis)]
            case Reduce(dim, combiner):
                return self.gathered(operands, kinds, dim.packed, dim.axis, combiner)
            case Map():
                return self.mapped(node.op, operands)
            case Rename(old, new):
                return [self.renamed(operands[0], old, new)]
            case Iota(dim):
                return [Number((dim.axis,), np.arange(self.extents.of(dim.axis))[None])]
            case Take(axis):
                return [self.looked_up(axis, operands)]
            case Misc():
                return self.external(node.op, operands, kinds)
            case Pick() | Join():
                pass
        raise WrongKind(
            function="check",
            wanted="an unfused program",
            given=f"one with {type(node.op).__name__}",
            remedy="give the array program, or the block program that bb.lower makes",
        )

    def mapped(self, op: Map, operands: list[CarefulTerm]) -> list[CarefulTerm]:
        """The outputs of a loop: packed axes have one block, other axes stay axes of arrays."""
        values = self.graph_values(op.body, operands)
        made: list[CarefulTerm] = []
        for out, mode in zip(op.body.outputs, op.modes, strict=True):
            term = values[out.value]
            if mode is not None and not op.dim.packed:
                term = self.reduced(term, op.dim.axis, mode.combiner)
            elif mode is None and not op.dim.packed and op.dim.axis not in axes_of(term):
                axes = (op.dim.axis, *axes_of(term))
                term = self.numbers.spread(self.terms.plain(term), axes)
            made.append(term)
        return made

    def gathered(
        self,
        operands: list[CarefulTerm],
        kinds: list[Type],
        packed: bool,
        axis: Axis,
        combiner: Combiner,
    ) -> list[CarefulTerm]:
        """A list reduced to one item; a packed dim has one block, which is the item."""
        if packed:
            return operands
        return [self.reduced(x, axis, combiner) for x in operands]

    def reduced(self, x: CarefulTerm, axis: Axis, combiner: Combiner) -> CarefulTerm:
        if combiner is ADD:
            return self.terms.sum(x, axis)
        number = self.terms.plain(x)
        if combiner is ANY:
            return self.numbers.apply(
                lambda t: t.take(0, 1 + number.axes.index(axis)), number, exact=True
            )
        if combiner in _UFUNCS:
            return self.numbers.reduce(_UFUNCS[combiner], number, axis, combiner.identity[0])
        if combiner.arity != 1:
            remedy = "give the array program, or the block program that bb.lower makes"
            given = f"one with {combiner}"
            raise WrongKind(
                function="check", wanted="an unfused program", given=given, remedy=remedy
            )
        at = 1 + number.axes.index(axis)
        array = self.numbers.array(number)
        rest = tuple(a for a in number.axes if a is not axis)
        parts = [Number(rest, array.take(i, at)) for i in range(array.shape[at])]
        made: CarefulTerm = parts[0] if parts else constant(combiner.identity[0])
        for part in parts[1:]:
            made = self.elementwise(combiner.combine[0], [made, part], [DType.float32] * 2)
        return made

    # ---------------------------------------------------------------- expressions

    def elementwise(
        self, expr: Expr, operands: list[CarefulTerm], dtypes: list[DType]
    ) -> CarefulTerm:
        dtype_of = node_dtypes(expr, dtypes)

        def step(node: Expr, terms: list[CarefulTerm]) -> CarefulTerm:
            match node.op:
                case "arg":
                    return operands[node.index]
                case "const":
                    return self.literal(node.number)
                case "size":
                    return constant(float(self.extents.of(node.axis)))
                case "cast":
                    return self.cast(terms[0], node.dtype)
            if dtype_of[node] is None:
                return constant(float(evaluate(node, [], self.extents.of, lambda x, _: x)))
            return self.terms.apply(node.op, *terms)

        axes = tuple(dict.fromkeys(axis for x in operands for axis in axes_of(x)))
        term = fold(expr, step)
        if set(axes_of(term)) != set(axes):
            return self.numbers.spread(self.terms.plain(term), axes)
        return term

    @staticmethod
    def literal(value: float) -> Number:
        if isinstance(value, bool):
            return Number((), np.asarray([value]))
        return constant(value)

    def cast(self, x: CarefulTerm, dtype: DType) -> CarefulTerm:
        """Conversions between floats round to 16 bits or do nothing."""
        if isinstance(x, Power | Moved) and dtype.is_float:
            return x
        number = self.terms.plain(x)
        if not dtype.is_float:
            kind = np.dtype(dtype.value)
            return self.numbers.apply(lambda t: t.astype(kind), number, exact=True)
        number = self.numbers.as_float(number)
        return self.numbers.narrowed(number, dtype) if dtype in NARROW else number

    # ---------------------------------------------------------------- other operators

    def renamed(self, x: CarefulTerm, old: Axis, new: Axis) -> Number:
        number = self.terms.plain(x)
        length = self.extents.of(old)
        problem = self.extents.bind(new, length, f"axis {old}")
        if problem is not None:
            raise BadInput(name=str(new), problem=problem)
        axes: AxisOrder = tuple(new if a is old else a for a in number.axes)
        return Number(axes, self.numbers.array(number))

    def looked_up(self, axis: Axis, operands: list[CarefulTerm]) -> Number:
        table, places = (self.terms.plain(x) for x in operands)
        index = self.numbers.array(places)[0]
        problem = misplaced(index, self.extents.of(axis), axis)
        if problem is not None:
            raise BadInput(name="of take", problem=problem)
        kept = [a for a in table.axes if a is not axis]
        axes = tuple(dict.fromkeys((*places.axes, *kept)))
        turned = self.numbers.aligned(table, (axis, *kept))
        spread = self.numbers.aligned(places, axes)[0]
        at = [axes.index(a) for a in kept]
        return Number(axes, np.stack([looked_up(t, spread, at, len(axes)) for t in turned]))

    def external(
        self, op: Misc, operands: list[CarefulTerm], kinds: list[Type]
    ) -> list[CarefulTerm]:
        """An operator of an executor, called for every sample."""
        layouts = op.layouts or tuple(kind.axes for kind in kinds)
        arrays = [
            self.numbers.array(self.numbers.spread(self.terms.plain(x), layout))
            for x, layout in zip(operands, layouts, strict=True)
        ]
        executor = executor_of(op.namespace, op.name)
        count = max((len(array) for array in arrays), default=1)
        runs = [
            executor(
                op.name, dict(op.attributes), [array[min(s, len(array) - 1)] for array in arrays]
            )
            for s in range(count)
        ]
        made: list[CarefulTerm] = []
        for port, kind in enumerate(op.results):
            array = np.stack([np.asarray(run[port]) for run in runs])
            made.append(Number(kind.axes, self.numbers.rounding.moved(array)))
        return made
