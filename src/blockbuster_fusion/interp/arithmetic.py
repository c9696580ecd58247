"""Functional operators and combiners on blocks, which are NumPy arrays."""

from collections.abc import Sequence

import numpy as np

from blockbuster_fusion.cost.plan import (
    Alignment,
    DoBlockReduce,
    DoDot,
    DoElementwise,
    DoScan,
    Gather,
)
from blockbuster_fusion.errors import BadInput, IllTyped
from blockbuster_fusion.host.numbers import NumericMode, NumpyArray
from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.ir.combiner import ADD, LOGADDEXP, MAX, MIN, MUL, Combiner
from blockbuster_fusion.ir.expr import evaluate
from blockbuster_fusion.ir.tiling import Extents

_UFUNCS: dict[Combiner, np.ufunc] = {
    ADD: np.add,
    MUL: np.multiply,
    MAX: np.maximum,
    MIN: np.minimum,
    LOGADDEXP: np.logaddexp,
}


def aligned(x: NumpyArray, alignment: Alignment | None) -> NumpyArray:
    """A view of `x` under the dims that the alignment was made for."""
    return x if alignment is None else x.transpose(alignment.order)[alignment.index]


def looked_up(table: NumpyArray, places: NumpyArray, kept: Sequence[int], rank: int) -> NumpyArray:
    """The elements of a table at some places along its first axis.

    The places are aligned to the result, which has `rank` axes; those of the table's others are at
    `kept`.
    """
    grid = [
        np.arange(length).reshape([-1 if axis == at else 1 for axis in range(rank)])
        for at, length in zip(kept, table.shape[1:], strict=True)
    ]
    return np.asarray(table[(places, *grid)])


def misplaced(places: NumpyArray, length: int, axis: Axis) -> str | None:
    """The problem with places outside a table of this length, or None."""
    for place in (places.min(), places.max()) if places.size else ():
        if not 0 <= place < length:
            return f"is looked up along {axis} at {place}, and its places are 0 to {length - 1}"
    return None


def placed(
    name: str,
    axis: Axis,
    base: tuple[NumpyArray, Sequence[Axis]],
    index: tuple[NumpyArray, Sequence[Axis]],
    rows: tuple[NumpyArray, Sequence[Axis]],
) -> NumpyArray:
    """A copy of `base` with rows at the places `index` along an axis, each given with its axes.

    Places may count from the end. The copy has the dtype of the rows.
    """
    (array, axes), (places, along), (x, own) = base, index, rows

    def spread(y: NumpyArray, its: Sequence[Axis]) -> NumpyArray:
        """An array along the axes of the rows."""
        y = y.transpose([[*its].index(a) for a in own if a in its])
        return y.reshape(
            [length if a in its else 1 for a, length in zip(own, x.shape, strict=True)]
        )

    length = array.shape[[*axes].index(axis)]
    from_start = np.where(places < 0, places + length, places)
    problem = misplaced(from_start, length, axis)
    if problem is not None:
        raise BadInput(name=name, problem=problem)
    made = np.array(array, x.dtype)
    others = {a: np.arange(n) for a, n in zip(axes, array.shape, strict=True) if a is not axis}
    made[
        tuple(spread(from_start, along) if a is axis else spread(others[a], (a,)) for a in axes)
    ] = x
    return made


class Gathered:
    """Combines items pairwise, like the carries of a binary counter, so that sums stay accurate."""

    def __init__(self, arithmetic: "BlockArithmetic", gather: Gather) -> None:
        self.arithmetic, self.gather = arithmetic, gather
        self.parts: list[tuple[int, list[NumpyArray]]] = []

    def __bool__(self) -> bool:
        return bool(self.parts)

    def add(self, coming: list[NumpyArray]) -> None:
        """Adds an item; two parts of equally many items are combined."""
        size = 1
        while self.parts and self.parts[-1][0] == size:
            coming = self.arithmetic.combine(self.gather, self.parts.pop()[1], coming)
            size *= 2
        self.parts.append((size, coming))

    def result(self) -> list[NumpyArray]:
        """All items, combined in order."""
        *before, (_, made) = self.parts
        for _, earlier in reversed(before):
            made = self.arithmetic.combine(self.gather, earlier, made)
        return made


class BlockArithmetic:
    """Operators on blocks, with the numbers and extents of one run."""

    def __init__(self, numbers: NumericMode, extents: Extents) -> None:
        self.numbers = numbers
        self.extents = extents

    def elementwise(self, action: DoElementwise, operands: Sequence[NumpyArray]) -> NumpyArray:
        arguments = [aligned(x, a) for x, a in zip(operands, action.alignments, strict=True)]
        made = evaluate(action.expr, arguments, self.extents.of, self.numbers.rounded)
        if action.spread is not None:
            made = np.broadcast_to(made, [operands[at].shape[axis] for at, axis in action.spread])
        return self.numbers.rounded(made, action.dtype)

    def dot(self, action: DoDot, a: NumpyArray, b: NumpyArray) -> NumpyArray:
        i, j = action.axes
        if action.shared or not (np.isfinite(a).all() and np.isfinite(b).all()):
            # a BLAS may compute 0 times inf as 0
            made = np.einsum(a, action.left, b, action.right, action.result)
        elif a.ndim <= 2 and b.ndim <= 2:
            made = np.dot(a if i == a.ndim - 1 else a.T, b if j == 0 else b.T)
        else:
            made = np.tensordot(a, b, axes=(i, j))
        return self.numbers.rounded(made, action.dtype)

    def block_reduce(self, action: DoBlockReduce, x: NumpyArray) -> NumpyArray:
        axis, gather = action.axis, action.gather
        (component,) = gather.components
        if x.shape[axis] == 0:
            shape = x.shape[:axis] + x.shape[axis + 1 :]
            return self.numbers.identity(component.identity, shape, component.dtype)
        ufunc = _UFUNCS.get(gather.combiner)
        if ufunc is not None:
            if gather.combiner is ADD:  # NumPy sums pairwise along a contiguous axis
                x, axis = np.ascontiguousarray(np.moveaxis(x, axis, -1)), -1
            made = ufunc.reduce(x, axis=axis, dtype=self.numbers.held[component.dtype])
            return self.numbers.rounded(made, component.dtype)
        gathered = [x.take(0, axis)]
        for at in range(1, x.shape[axis]):
            gathered = self.combine(gather, gathered, [x.take(at, axis)])
        return self.finished(gather, gathered)[0]

    def scan(
        self, action: DoScan, x: NumpyArray, carry: NumpyArray | None
    ) -> tuple[NumpyArray, NumpyArray | None]:
        """The scan of a block from a carry, and the next carry: the last elements, not rounded."""
        axis, gather = action.axis, action.gather
        (component,) = gather.components
        x = np.moveaxis(np.asarray(x, self.numbers.held[component.dtype]), axis, 0)
        if not len(x):
            return self.numbers.rounded(np.moveaxis(x, 0, axis), component.dtype), carry
        if carry is not None:
            x = np.concatenate([carry[None], x])
        ufunc = _UFUNCS.get(gather.combiner)
        if ufunc is not None:
            made = ufunc.accumulate(x, axis=0, dtype=x.dtype)
        else:
            rows = [[x[0]]]
            for row in x[1:]:
                rows.append(self.combine(gather, rows[-1], [row]))
            made = np.stack([row for (row,) in rows])
        last = made[-1]
        made = made if carry is None else made[1:]
        return self.numbers.rounded(np.moveaxis(made, 0, axis), component.dtype), last

    def combine(
        self, gather: Gather, gathered: Sequence[NumpyArray], coming: Sequence[NumpyArray]
    ) -> list[NumpyArray]:
        """The accumulated items combined with the next ones; 16-bit floats are not rounded yet."""
        ufunc = _UFUNCS.get(gather.combiner)
        if ufunc is not None:
            made = [ufunc(gathered[0], coming[0])]
        else:
            made = self._combined(gather, [*gathered, *coming])
        for old, new in zip(gathered, made, strict=True):
            if old.shape != new.shape:
                problem = f"an item of shape {new.shape} comes after one of shape {old.shape}"
                raise IllTyped(op=f"combiner {gather.combiner}", problem=problem)
        return made

    def _combined(self, gather: Gather, arguments: Sequence[NumpyArray]) -> list[NumpyArray]:
        made = []
        for component in gather.components:
            turned = list(arguments)
            for at, alignment in component.arguments:
                turned[at] = aligned(arguments[at], alignment)
            x = evaluate(component.expr, turned, self.extents.of, self.numbers.rounded)
            held = self.numbers.held[component.dtype]
            made.append(np.asarray(x, held))
        return made

    def finished(self, gather: Gather, gathered: Sequence[NumpyArray]) -> list[NumpyArray]:
        """The accumulated items, rounded to the declared dtypes."""
        return [
            self.numbers.rounded(x, component.dtype)
            for x, component in zip(gathered, gather.components, strict=True)
        ]

    def identities(self, gather: Gather, shapes: Sequence[tuple[int, ...]]) -> list[NumpyArray]:
        """The identities of a combiner: the result of combining nothing."""
        return [
            self.numbers.identity(component.identity, shape, component.dtype)
            for component, shape in zip(gather.components, shapes, strict=True)
        ]
